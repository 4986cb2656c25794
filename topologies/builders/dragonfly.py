"""Dragonfly: groups of switches, all to all within a group, and cables between all groups.

Kim, Dally, Scott and Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology" (ISCA 2008): `p` NPUs and `h`
global ports on each of the `a` switches of a group; at most a h + 1 groups. Global port q = h j + i of a group, the
i-th of its switch j, leads to the group q + 1 further on, and arrives there at port a h - 1 - q: the arrangement of
spcl's simulator (`tests/topologies/test_dragonfly.py`).
"""

import numpy as np
from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Parameters, Rate, Sizes, Time


class Arguments(Parameters):
    """Parameters of the dragonfly."""

    p: Count = Field(description="NPUs of a switch")
    a: Count = Field(description="switches of a group")
    h: Count = Field(description="global ports of a switch")
    groups: Count | None = Field(None, description="number of groups; a h + 1, the maximum, if not given")
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
    groups, parallel = _sizes(arguments, name)
    switches = groups * arguments.a
    local = groups * arguments.a * (arguments.a - 1) // 2
    between = parallel * groups * (groups - 1) // 2
    return Extent(switches * arguments.p, switches, switches * arguments.p + local + between, switches)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network, whose pods are its groups; TopologyError for too many groups.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    groups, parallel = _sizes(arguments, name)
    a, h = arguments.a, arguments.h
    npu = np.arange(groups * a * arguments.p)
    builder = GraphBuilder(name, len(npu))
    builder.set_npu_pods(npu // (a * arguments.p))
    group = np.repeat(np.arange(groups), a)
    switch = builder.add_named_switches(
        [f"router {i}" for i in range(groups * a)], latency_ps=arguments.switch_latency, pod=group, group=group
    )
    builder.add_cables(npu, switch[npu // arguments.p], arguments.rate, arguments.delay)
    # each pair of switches of a group once
    one, other = np.triu_indices(a, 1)
    first = np.repeat(np.arange(groups) * a, len(one))
    local_delay = arguments.delay if arguments.local_delay is None else arguments.local_delay
    builder.add_cables(
        switch[first + np.tile(one, groups)],
        switch[first + np.tile(other, groups)],
        arguments.local_rate or arguments.rate,
        local_delay,
    )
    # ports in use of all groups; with fewer groups than a h + 1, `parallel` consecutive ports lead to one group
    ports = parallel * (groups - 1)
    here, port = np.divmod(np.arange(groups * ports), max(ports, 1))
    there = (here + 1 + port // parallel) % groups
    once = here < there
    builder.add_cables(
        switch[(here * a + port // h)[once]],
        switch[(there * a + (ports - 1 - port) // h)[once]],
        arguments.global_rate or arguments.rate,
        arguments.global_delay,
    )
    # Between halves of the groups; with an odd number of groups one is divided. To move a switch of some group to the
    # other side cuts a / 2 local cables or more, and saves h global ones there and, as groups may then differ in number
    # by two, parallel x groups / 2 for each whole group: no other half has less where local cables outweigh these.
    global_rate, local_rate = arguments.global_rate or arguments.rate, arguments.local_rate or arguments.rate
    between = groups * groups // 4 * parallel * global_rate
    outweigh = a * local_rate >= global_rate * (2 * h + parallel * groups / a)
    builder.set_bisection(min(between, len(npu) // 2 * arguments.rate), is_exact=groups % 2 == 0 and outweigh)
    return builder.graph(dims=arguments.dims)


def _sizes(arguments: Arguments, name: str) -> tuple[int, int]:
    """Return the number of groups and of cables between each two; errors begin with the name."""
    ports = arguments.a * arguments.h
    groups = ports + 1 if arguments.groups is None else arguments.groups
    if groups > ports + 1:
        raise TopologyError.at(name, f"groups = {groups}", f"at most {ports + 1}, for {ports} global ports of a group")
    return groups, ports // max(groups - 1, 1)
