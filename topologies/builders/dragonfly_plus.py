"""Dragonfly+: groups of leaves and spines, all leaves of a group on all its spines, spines on other groups.

Shpiner, Haramaty, Eliad, Zdornov, Gafni and Zahavi, "Dragonfly+: Low Cost Topology for Scaling Datacenters" (HiPINEB
2017); the same as Megafly (Flajslik et al., ISC 2018). A group has `leaves` with `p` NPUs each and `spines` with `h`
global ports each; at most spines x h + 1 groups. Each two groups are joined by equally many cables, which begin at
different spines: port q of a group is at spine q mod spines, and leads as far as in a `dragonfly`, to port (ports - 1 -
q).
"""

import numpy as np
from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Parameters, Rate, Sizes, Time


class Arguments(Parameters):
    """Parameters of the dragonfly+."""

    p: Count = Field(description="NPUs of a leaf")
    leaves: Count = Field(description="leaves of a group")
    spines: Count | None = Field(None, description="spines of a group; as many as leaves if not given")
    h: Count | None = Field(None, description="global ports of a spine; as many as NPUs of a leaf if not given")
    groups: Count | None = Field(None, description="number of groups; spines x h + 1, the maximum, if not given")
    rate: Rate = Field(400 * GBPS, description="rate of an NPU's link")
    delay: Time = Field(25 * NS, description="propagation delay of an NPU's link")
    local_rate: Rate | None = Field(None, description="rate of a cable within a group; rate if not given")
    local_delay: Time | None = Field(None, description="delay of a cable within a group; delay if not given")
    global_rate: Rate | None = Field(None, description="rate of a cable between groups; rate if not given")
    global_delay: Time = Field(500 * NS, description="propagation delay of a cable between groups")
    switch_latency: Time = Field(0, description="forwarding latency of a switch")
    dims: Sizes = Field((), description="logical dimensions, fastest first; one of all NPUs if not given")


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the numbers of nodes and cables of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    groups, spines, parallel = _sizes(arguments, name)
    leaves = groups * arguments.leaves
    npus = leaves * arguments.p
    between = parallel * groups * (groups - 1) // 2
    return Extent(npus, leaves + groups * spines, npus + leaves * spines + between, leaves)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network, whose pods are its groups; TopologyError for too many groups.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    groups, spines, parallel = _sizes(arguments, name)
    leaves, p = arguments.leaves, arguments.p
    npu = np.arange(groups * leaves * p)
    builder = GraphBuilder(name, len(npu))
    builder.set_npu_pods(npu // (leaves * p))
    leaf, spine = (
        builder.add_named_switches(
            [f"{word} {i}" for i in range(groups * count)],
            latency_ps=arguments.switch_latency,
            pod=np.repeat(np.arange(groups), count),
            group=np.repeat(np.arange(groups), count),
        )
        for word, count in (("leaf", leaves), ("spine", spines))
    )
    builder.add_cables(npu, leaf[npu // p], arguments.rate, arguments.delay)
    # each leaf with all spines of its group
    above = spine.reshape(groups, spines)[np.repeat(np.arange(groups), leaves)]
    local_delay = arguments.delay if arguments.local_delay is None else arguments.local_delay
    builder.add_cables(np.repeat(leaf, spines), above.reshape(-1), arguments.local_rate or arguments.rate, local_delay)
    ports = parallel * (groups - 1)
    here, port = np.divmod(np.arange(groups * ports), max(ports, 1))
    there = (here + 1 + port // max(parallel, 1)) % groups
    once = here < there
    builder.add_cables(
        spine[(here * spines + port % spines)[once]],
        spine[(there * spines + (ports - 1 - port) % spines)[once]],
        arguments.global_rate or arguments.rate,
        arguments.global_delay,
    )
    between = groups * groups // 4 * parallel * (arguments.global_rate or arguments.rate)
    # between halves of the groups; another half may have less
    builder.set_bisection(min(between, len(npu) // 2 * arguments.rate), is_exact=False)
    return builder.graph(dims=arguments.dims)


def _sizes(arguments: Arguments, name: str) -> tuple[int, int, int]:
    """Return the numbers of groups, of spines of a group, and of cables of two groups; errors begin with the name."""
    spines = arguments.spines or arguments.leaves
    ports = spines * (arguments.h or arguments.p)
    groups = ports + 1 if arguments.groups is None else arguments.groups
    if groups > ports + 1:
        raise TopologyError.at(name, f"groups = {groups}", f"at most {ports + 1}, for {ports} global ports of a group")
    return groups, spines, ports // max(groups - 1, 1)
