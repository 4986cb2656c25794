"""Servers behind NVSwitches under two or three tiers: rails, planes of NICs with several ports, pods, cores.

A *unit* is a group of servers that share leaves: one for each rail and port of a NIC. A GPU's rail is the index of its
NIC in the server modulo the rails; one rail is a top-of-rack switch. GPUs that share a NIC have equal shares of its
rate, also while the others are silent. Port p of every NIC leads into plane p, whose leaves and
spines meet no other plane's below the cores. A *pod* is a group of units that share spines: every leaf is linked to all
spines of its pod and plane or, where rails have spines of their own, of its pod, plane and rail. Spine j of every pod,
plane and rail is linked to all cores of core plane j modulo core_planes.

Where rails do not meet above the leaves, `forwarding` lets a server pass on what comes for its GPUs on another rail:
its NVSwitch has a cable to each of its leaves. Packets from rail to rail take it at one of the two ends.
"""

from typing import NamedTuple

import numpy as np
from pydantic import Field

from nadi.inputs.arrays import Int64
from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import NVSWITCH, Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, CountOrNone, Flag, Name, Parameters, Rate, Ratio, Time, uplink_count


class Arguments(Parameters):
    """Parameters of the fat tree with rails."""

    npus: Count = Field(description="number of NPUs, a multiple of gpus_per_host")
    gpus_per_host: Count = Field(8, description="NPUs of a server")
    nics_per_host: Count | None = Field(None, description="NICs of a server, shared evenly; gpus_per_host if not given")
    rails: Count | None = Field(None, description="leaves of a unit and plane; nics_per_host if not given")
    ports: Count = Field(1, description="ports of a NIC, each into a plane of its own")
    hosts_per_unit: Count = Field(32, description="servers of a unit; the last unit may have fewer")
    units_per_pod: Count | None = Field(None, description="units of a pod; all units are one pod if not given")
    rail_spines: Flag = Field(False, description="each rail has spines of its own")
    spines: CountOrNone | None = Field(
        None,
        description="spines of a pod, plane and, with rail_spines, rail; 0 where optical switches connect the leaves",
    )
    uplinks: Count = Field(1, description="parallel cables between a leaf and a spine")
    oversubscription: Ratio | None = Field(None, description="rate of a leaf's NICs over its uplinks'; gives spines")
    cores: Count | None = Field(None, description="cores of a core plane; none if not given")
    core_planes: Count | None = Field(None, description="groups of cores; as many as spines if not given")
    core_uplinks: Count = Field(1, description="parallel cables between a spine and a core")
    forwarding: Flag = Field(False, description="servers forward between rails, over cables from NVSwitches to leaves")
    rate: Rate = Field(400 * GBPS, description="rate of a port of a NIC")
    delay: Time = Field(500 * NS, description="propagation delay of a NIC's link")
    nvlink_rate: Rate = Field(3600 * GBPS, description="rate between an NPU and the NVSwitch, each direction")
    nvlink_delay: Time = Field(25 * NS, description="propagation delay between an NPU and the NVSwitch")
    uplink_rate: Rate | None = Field(None, description="rate of a cable between leaf and spine; rate if not given")
    uplink_delay: Time | None = Field(None, description="delay of a cable between leaf and spine; delay if not given")
    core_rate: Rate | None = Field(None, description="rate between spine and core; uplink_rate if not given")
    core_delay: Time | None = Field(None, description="delay between spine and core; uplink_delay if not given")
    switch_latency: Time = Field(0, description="forwarding latency of leaves, spines and cores")
    nvswitch_latency: Time = Field(0, description="forwarding latency of an NVSwitch")
    accelerator: Name = Field("", description="model of the NPUs, as h100, which selects NCCL's constants")


class _Counts(NamedTuple):
    """Counts of the fat tree."""

    hosts: int  # number of servers
    nics: int  # number of NICs of a server
    per_unit: int  # number of servers of a unit
    units: int  # number of units
    per_pod: int  # number of units of a pod
    pods: int  # number of pods
    rails: int  # number of rails
    groups: int  # number of groups of spines in a pod and plane
    spines: int  # number of spines of such a group; 0 = no spines are needed
    core_planes: int  # number of core planes
    cores: int  # number of cores of a core plane


def extent(arguments: Arguments, name: str, *, keeps_spines: bool = False) -> Extent:
    """Return the numbers of nodes and cables of the network; the arguments are those of `build`.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
        keeps_spines: Whether spines exist that a single leaf would make needless.
    """
    counts = _counts(arguments, name, keeps_spines=keeps_spines)
    leaves = counts.units * counts.rails * arguments.ports
    leaf_groups = 1 if counts.groups > 1 else counts.rails
    spines = counts.pods * arguments.ports * counts.groups * counts.spines
    uplinks = counts.units * arguments.ports * counts.groups * leaf_groups * counts.spines * arguments.uplinks
    cables = arguments.npus * (1 + arguments.ports) + uplinks + spines * counts.cores * arguments.core_uplinks
    if arguments.forwarding:
        cables += counts.hosts * counts.rails * arguments.ports
    switches = counts.hosts + leaves + spines + counts.core_planes * counts.cores
    return Extent(arguments.npus, switches, cables, counts.hosts + leaves)


def build(arguments: Arguments, name: str, *, keeps_spines: bool = False) -> Graph:
    """Build the network. Logical dimensions are (gpus_per_host, servers).

    Pods of the graph are the pods, with their spines, if units_per_pod is given; else the units, without spines. Spines
    are omitted if each has one leaf and there are no cores, except with `keeps_spines`; cores are omitted if all leaves
    meet at the spines. Raises
    TopologyError: npus is no multiple of gpus_per_host, or gpus_per_host of rails, the number of spines is not whole or
    no multiple of core_planes, rails, pods or planes are not connected, or there are too many NPUs.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
        keeps_spines: Whether spines exist that a single leaf would make needless.
    """
    counts = _counts(arguments, name, keeps_spines=keeps_spines)
    npu = np.arange(arguments.npus)
    host, place = np.divmod(npu, arguments.gpus_per_host)
    unit = host // counts.per_unit
    pod_of_unit = np.arange(counts.units) // (counts.per_pod if arguments.units_per_pod else 1)

    builder = GraphBuilder(name, arguments.npus)
    builder.set_npu_pods(pod_of_unit[unit])
    nvswitch, leaf = _add_units(builder, arguments, counts, pod_of_unit)
    builder.add_cables(npu, nvswitch[host], arguments.nvlink_rate, arguments.nvlink_delay)
    nic = place // (arguments.gpus_per_host // counts.nics)
    # a link per GPU, as the graph has no NICs: a share of the NIC's rate, even while the others are silent
    share_bps = arguments.rate * counts.nics // arguments.gpus_per_host  # of the NIC that some GPUs share
    for plane in range(arguments.ports):
        builder.add_cables(npu, leaf[unit, plane, nic % counts.rails], share_bps, arguments.delay)
    if arguments.forwarding:
        # all leaves of the server's unit, in every plane and rail
        own = leaf[np.arange(counts.hosts) // counts.per_unit].reshape(counts.hosts, -1)
        builder.add_cables(np.repeat(nvswitch, own.shape[1]), own.reshape(-1), arguments.rate, arguments.delay)
    if counts.spines:
        _add_spines_and_cores(builder, arguments, counts, leaf)
    return builder.graph(
        dims=(arguments.gpus_per_host, counts.hosts),
        host=host,
        accelerator=arguments.accelerator,
        npus_per_nic=arguments.gpus_per_host // counts.nics,
        in_parts=arguments.spines == 0,
    )


def _counts(arguments: Arguments, name: str, *, keeps_spines: bool) -> _Counts:
    """Return the numbers of the network's parts, which fit together; errors begin with the name."""
    per_host, nics = arguments.gpus_per_host, arguments.nics_per_host or arguments.gpus_per_host
    rails = arguments.rails or nics
    for key, count, divisor_key, divisor in (
        ("gpus_per_host", per_host, "nics_per_host", nics),
        ("npus", arguments.npus, "gpus_per_host", per_host),
        ("nics_per_host" if arguments.nics_per_host else "gpus_per_host", nics, "rails", rails),
    ):
        if count % divisor:
            raise TopologyError.at(name, f"{key} = {count}", f"a multiple of {divisor_key} = {divisor}")
    hosts = arguments.npus // per_host
    per_unit = min(arguments.hosts_per_unit, hosts)
    units = -(-hosts // per_unit)
    per_pod = min(arguments.units_per_pod or units, units)
    pods = -(-units // per_pod)
    groups = rails if arguments.rail_spines else 1
    has_cores = pods * groups > 1 and arguments.cores is not None
    leaves_of_spine = per_pod * (1 if groups > 1 else rails)
    spines = core_planes = 0
    if has_cores or keeps_spines or leaves_of_spine > 1:
        down_bps = per_unit * (nics // rails) * arguments.rate
        uplink_bps = (arguments.uplink_rate or arguments.rate) * arguments.uplinks
        spines = uplink_count(arguments, name, "spines", "oversubscription", down_bps, uplink_bps)
    if has_cores:
        if not spines:
            raise TopologyError.at(name, "cores without spines", "spines, or no cores")
        core_planes = arguments.core_planes or spines
        if spines % core_planes:
            raise TopologyError.at(name, f"spines = {spines}", f"a multiple of core_planes = {core_planes}")
    cores = arguments.cores or 0 if has_cores else 0
    return _Counts(hosts, nics, per_unit, units, per_pod, pods, rails, groups, spines, core_planes, cores)


def _add_units(builder: GraphBuilder, arguments: Arguments, counts: _Counts, pod_of_unit: Int64) -> tuple[Int64, Int64]:
    """Add units one by one, for close numbers; return NVSwitches by server, and leaves int64[units, ports, rails]."""
    # pod_of_unit: int64[units], number of the pod of each unit.
    nvswitch, leaf = [], []
    for unit in range(counts.units):
        count = min(counts.per_unit, counts.hosts - unit * counts.per_unit)
        pod = int(pod_of_unit[unit])
        nvswitch.append(
            builder.add_switches("nvswitch", count, latency_ps=arguments.nvswitch_latency, kind=NVSWITCH, pod=pod)
        )
        leaf.append(
            builder.add_switches("leaf", arguments.ports * counts.rails, latency_ps=arguments.switch_latency, pod=pod)
        )
    return np.concatenate(nvswitch), np.stack(leaf).reshape(counts.units, arguments.ports, counts.rails)


def _add_spines_and_cores(builder: GraphBuilder, arguments: Arguments, counts: _Counts, leaves: Int64) -> None:
    """Add spines, cores and their cables to a network with leaves int64[units, ports, rails]."""
    latency_ps = arguments.switch_latency
    uplink_rate = arguments.uplink_rate or arguments.rate
    uplink_delay = arguments.delay if arguments.uplink_delay is None else arguments.uplink_delay
    spine = []
    for pod in range(counts.pods):
        units = leaves[pod * counts.per_pod : (pod + 1) * counts.per_pod]
        for plane in range(arguments.ports):
            for group in range(counts.groups):
                below = units[:, plane, group] if counts.groups > 1 else units[:, plane].reshape(-1)
                above = builder.add_switches(
                    "spine", counts.spines, latency_ps=latency_ps, pod=pod if arguments.units_per_pod else -1
                )
                ends = np.repeat(below, counts.spines), np.tile(above, len(below))
                builder.add_cables(*ends, uplink_rate, uplink_delay, arguments.uplinks)
                spine.append(above)
    if counts.cores:
        core = builder.add_switches("core", counts.core_planes * counts.cores, latency_ps=latency_ps)
        core_rate = arguments.core_rate or uplink_rate
        core_delay = uplink_delay if arguments.core_delay is None else arguments.core_delay
        # spine j of every group has the cores of plane j mod core_planes
        plane_of = np.tile(np.arange(counts.spines) % counts.core_planes, len(spine))
        above = core.reshape(counts.core_planes, counts.cores)[plane_of]
        below = np.repeat(np.concatenate(spine), counts.cores)
        builder.add_cables(below, above.reshape(-1), core_rate, core_delay, arguments.core_uplinks)
