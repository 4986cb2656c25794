"""Two tiers: leaves with NPUs, every leaf linked to every spine."""

import numpy as np
from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, CountOrNone, Parameters, Rate, Ratio, Sizes, Time, uplink_count


class Arguments(Parameters):
    """Parameters of the leaf-spine network."""

    npus: Count | None = Field(None, description="number of NPUs; leaves x hosts_per_leaf if not given")
    leaves: Count | None = Field(None, description="number of leaves; as many as npus need if not given")
    hosts_per_leaf: Count = Field(16, description="NPUs of a leaf; the last leaf may have fewer")
    spines: CountOrNone | None = Field(
        None,
        description="number of spines, 0 where optical switches connect the leaves; as many as oversubscription needs "
        "if not given",
    )
    uplinks: Count = Field(1, description="parallel cables between a leaf and a spine")
    oversubscription: Ratio | None = Field(None, description="NPU rate over uplink rate of a leaf; 1 if not given")
    rate: Rate = Field(400 * GBPS, description="rate of an NPU's link")
    delay: Time = Field(500 * NS, description="propagation delay of an NPU's link")
    uplink_rate: Rate | None = Field(None, description="rate of a cable between leaf and spine; rate if not given")
    uplink_delay: Time | None = Field(None, description="delay of a cable between leaf and spine; delay if not given")
    switch_latency: Time = Field(0, description="forwarding latency of a switch")
    dims: Sizes = Field((), description="logical dimensions, fastest first; one of all NPUs if not given")


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the numbers of nodes and cables of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    npus, leaves = _sizes(arguments, name)
    spines = _spines(arguments, name, npus)
    return Extent(npus, leaves + spines, npus + leaves * spines * arguments.uplinks, leaves)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network, whose pods are leaves with NPUs; TopologyError for contradictory counts or too many NPUs.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    npus, leaves = _sizes(arguments, name)
    uplink_rate = arguments.uplink_rate or arguments.rate
    spines = _spines(arguments, name, npus)
    builder = GraphBuilder(name, npus)
    leaf_of = np.arange(npus) // arguments.hosts_per_leaf
    # a leaf and its NPUs are a pod, which a partition by pods keeps together (partition.methods.by_pod)
    builder.set_npu_pods(leaf_of)
    leaf = builder.add_named_switches(
        [f"leaf {i}" for i in range(leaves)], latency_ps=arguments.switch_latency, pod=np.arange(leaves)
    )
    spine = builder.add_switches("spine", spines, latency_ps=arguments.switch_latency)
    builder.add_cables(np.arange(npus), leaf[leaf_of], arguments.rate, arguments.delay)
    uplink_delay = arguments.delay if arguments.uplink_delay is None else arguments.uplink_delay
    builder.add_cables(np.repeat(leaf, spines), np.tile(spine, leaves), uplink_rate, uplink_delay, arguments.uplinks)
    return builder.graph(dims=arguments.dims, in_parts=spines == 0)


def _spines(arguments: Arguments, name: str, npus: int) -> int:
    """Return the number of spines; errors begin with the name."""
    # a single leaf may be partly filled; uplinks serve the NPUs that exist
    down_bps = min(arguments.hosts_per_leaf, npus) * arguments.rate
    uplink_bps = (arguments.uplink_rate or arguments.rate) * arguments.uplinks
    return uplink_count(arguments, name, "spines", "oversubscription", down_bps, uplink_bps)


def _sizes(arguments: Arguments, name: str) -> tuple[int, int]:
    """Return the numbers of NPUs and of leaves; errors begin with the name."""
    hosts, npus, leaves = arguments.hosts_per_leaf, arguments.npus, arguments.leaves
    if npus is None and leaves is None:
        raise TopologyError.at(name, "neither npus nor leaves is given", "one of them")
    if npus is None or leaves is None:
        return npus or (leaves or 0) * hosts, leaves or -(-(npus or 0) // hosts)
    if -(-npus // hosts) != leaves:
        raise TopologyError.at(name, f"leaves = {leaves}", f"{-(-npus // hosts)} for {npus} NPUs, {hosts} to a leaf")
    return npus, leaves
