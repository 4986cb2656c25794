"""Three tiers: pods of leaves and spines, joined by cores (a k-ary fat tree, or counts and rates of your choice).

Source of the k-ary form: Al-Fares, Loukissas, Vahdat, "A scalable, commodity data center network architecture",
SIGCOMM 2008, section 2.2. Every leaf is linked to every spine of its pod; spine j of every pod is linked to all cores
of plane j.
"""

import math
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Parameters, Rate, Ratio, Sizes, Time, uplink_count


class Arguments(Parameters):
    """Parameters of the fat tree."""

    k: Count | None = Field(None, description="ports of every switch, even: k pods, k^3/4 NPUs; sets all other counts")
    npus: Count | None = Field(None, description="number of NPUs; alone, the counts are chosen for full bisection")
    hosts_per_leaf: Count | None = Field(None, description="NPUs of a leaf; the last leaf may have fewer")
    leaves_per_pod: Count | None = Field(None, description="leaves of a pod; hosts_per_leaf if not given")
    pods: Count | None = Field(None, description="number of pods; as many as npus need if not given")
    spines_per_pod: Count | None = Field(None, description="spines of a pod; by oversubscription if not given")
    cores_per_plane: Count | None = Field(None, description="uplinks of a spine; by core_oversubscription if not given")
    oversubscription: Ratio | None = Field(None, description="NPU rate over uplink rate of a leaf; 1 if not given")
    core_oversubscription: Ratio | None = Field(None, description="down rate over up rate of a spine; 1 if not given")
    rate: Rate = Field(400 * GBPS, description="rate of an NPU's link")
    spine_rate: Rate | None = Field(None, description="rate between leaf and spine; rate if not given")
    core_rate: Rate | None = Field(None, description="rate between spine and core; spine_rate if not given")
    delay: Time = Field(500 * NS, description="propagation delay of an NPU's link")
    spine_delay: Time | None = Field(None, description="delay between leaf and spine; delay if not given")
    core_delay: Time | None = Field(None, description="delay between spine and core; spine_delay if not given")
    switch_latency: Time = Field(0, description="forwarding latency of a switch")
    dims: Sizes = Field((), description="logical dimensions, fastest first; one of all NPUs if not given")


@dataclass(frozen=True)
class _Counts:
    """Counts of the fat tree."""

    npus: int
    hosts_per_leaf: int
    leaves_per_pod: int
    pods: int


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the numbers of nodes and cables of the network; it refuses what `build` refuses.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    counts = _counts(arguments, name)
    spines, cores = _uplinks(arguments, name, counts)
    leaves = -(-counts.npus // counts.hosts_per_leaf)
    switches = leaves + spines * (counts.pods + cores)
    # a cable per NPU, one from each leaf to each spine of its pod, and `cores` from each spine of each pod
    return Extent(counts.npus, switches, counts.npus + spines * (leaves + counts.pods * cores), leaves)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the fat tree; a single pod has no cores. Pods hold NPUs, leaves and spines.

    Raises TopologyError: k is odd, counts contradict one another or are too few, the oversubscription does not give a
    whole number of spines or cores, or there are too many NPUs.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    counts = _counts(arguments, name)
    spines, cores = _uplinks(arguments, name, counts)
    spine_rate, core_rate = _rates(arguments)
    spine_delay = arguments.delay if arguments.spine_delay is None else arguments.spine_delay
    core_delay = spine_delay if arguments.core_delay is None else arguments.core_delay

    builder = GraphBuilder(name, counts.npus)
    npu = np.arange(counts.npus)
    leaf_of = npu // counts.hosts_per_leaf
    builder.set_npu_pods(leaf_of // counts.leaves_per_pod)
    leaf, spine = _add_pods(builder, counts, spines, arguments.switch_latency)
    builder.add_cables(npu, np.concatenate(leaf)[leaf_of], arguments.rate, arguments.delay)
    for leaves_here, spines_here in zip(leaf, spine, strict=True):
        # all pairs of a leaf and a spine of the pod: leaves 0 0 1 1 with spines 0 1 0 1
        ends = np.repeat(leaves_here, spines), np.tile(spines_here, len(leaves_here))
        builder.add_cables(*ends, spine_rate, spine_delay)
    if counts.pods > 1:
        core = builder.add_switches("core", spines * cores, latency_ps=arguments.switch_latency)
        # Spine j of each pod takes the j-th run of `cores` cores, its plane. With two pods of two spines and planes of
        # two cores: spines 0 0 1 1 2 2 3 3 with cores 0 1 2 3 0 1 2 3.
        builder.add_cables(np.repeat(np.concatenate(spine), cores), np.tile(core, counts.pods), core_rate, core_delay)
    return builder.graph(dims=arguments.dims)


def _counts(arguments: Arguments, name: str) -> _Counts:
    """Return the numbers of the tree's parts, from k or from those that are given; errors begin with the name."""
    k, npus = arguments.k, arguments.npus
    hosts, leaves, pods = arguments.hosts_per_leaf, arguments.leaves_per_pod, arguments.pods
    if k is not None:
        if k % 2:
            raise TopologyError.at(name, f"k = {k}", "an even number")
        for key in ("npus", "hosts_per_leaf", "leaves_per_pod", "pods"):
            if getattr(arguments, key) is not None:
                raise TopologyError.at(name, f"both k and {key} are given", f"one of them, as k sets {key}")
        # half of the k ports of a leaf or spine lead down, the other half up: k pods of k/2 leaves with k/2 hosts each
        return _Counts(k**3 // 4, k // 2, k // 2, k)
    if npus is None:
        if hosts is None or pods is None:
            raise TopologyError.at(name, "too few counts", "k, npus, or hosts_per_leaf and pods")
        npus = hosts * (leaves or hosts) * pods
    hosts = hosts or _choose_hosts_per_leaf(npus)
    leaves = leaves or hosts
    needed = -(-npus // (hosts * leaves))
    if pods is not None and pods != needed:
        raise TopologyError.at(name, f"pods = {pods}", f"{needed} for {npus} NPUs, {hosts} x {leaves} to a pod")
    return _Counts(npus, min(hosts, npus), min(leaves, -(-npus // hosts)), needed)


def _choose_hosts_per_leaf(npus: int) -> int:
    """Return the hosts per leaf nearest to the k-ary tree's (npus / 2)^(1/3), preferably with full leaves and pods."""
    # with h = k/2 hosts per leaf the k-ary tree has 2h pods of h leaves: 2 h^3 NPUs
    ideal = (npus / 2) ** (1 / 3)
    full = [h for h in range(1, int(2 * ideal) + 1) if npus % (h * h) == 0 and h >= ideal / 2]
    # nearest by ratio: half of the ideal is as far from it as its double
    return min(full, key=lambda h: abs(math.log(h / ideal)), default=max(1, math.ceil(ideal)))


def _rates(arguments: Arguments) -> tuple[int, int]:
    """Return the rates in bits per second between leaf and spine, and between spine and core."""
    spine_bps = arguments.spine_rate or arguments.rate
    return spine_bps, arguments.core_rate or spine_bps


def _uplinks(arguments: Arguments, name: str, counts: _Counts) -> tuple[int, int]:
    """Return the number of spines of a pod, and of cores of a plane; errors begin with the name."""
    spine_bps, core_bps = _rates(arguments)
    down_bps = counts.hosts_per_leaf * arguments.rate
    spines = uplink_count(arguments, name, "spines_per_pod", "oversubscription", down_bps, spine_bps)
    if counts.pods == 1:
        return spines, 0
    down_bps = counts.leaves_per_pod * spine_bps
    return spines, uplink_count(arguments, name, "cores_per_plane", "core_oversubscription", down_bps, core_bps)


def _add_pods(
    builder: GraphBuilder, counts: _Counts, spines: int, latency_ps: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Add leaves and spines, `spines` per pod, pod by pod for close numbers; return the nodes of both by pod."""
    leaf, spine = [], []
    all_leaves = -(-counts.npus // counts.hosts_per_leaf)
    for pod in range(counts.pods):
        leaves = min(counts.leaves_per_pod, all_leaves - pod * counts.leaves_per_pod)
        leaf.append(builder.add_switches("leaf", leaves, latency_ps=latency_ps, pod=pod))
        spine.append(builder.add_switches("spine", spines, latency_ps=latency_ps, pod=pod))
    return leaf, spine
