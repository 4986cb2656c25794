"""HyperX: switches at the points of a grid, each linked to all others of each of its lines.

Ahn, Binkert, Davis, McLaren and Schreiber, "HyperX: Topology, Routing, and Packaging of Efficient Large-Scale Networks"
(SC 2009), section 3: L dimensions of `sizes` switches, `p` NPUs on each switch, and `width` parallel cables between two
switches of a line (L, S, T and K there). Packets take all shortest paths, in any order of the dimensions; with
`dimension_order` only those that correct the first dimension first, which wait in no circle with a single lane (Dally
and Seitz, 1987). With one dimension it is a full mesh of switches, with sizes of 2 a hypercube.
"""

import math
from dataclasses import replace

import numpy as np
from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Flag, Parameters, Rate, Sizes, Time
from nadi.topologies.table_routing import build_table_routing

# A path has a link per dimension, and a table holds paths of at most 7 links between groups
# (`nadi.topologies.routing.GLOBAL_LENGTH`)
_MAX_DIMENSIONS = 7


class Arguments(Parameters):
    """Parameters of the HyperX."""

    sizes: Sizes = Field(description="switches along each dimension, 2 or more, fastest first")
    p: Count = Field(description="NPUs of a switch")
    width: Sizes = Field(
        (1,), description="parallel cables between two switches of a line, by dimension or one for all"
    )
    rate: Rate = Field(400 * GBPS, description="rate of an NPU's link")
    delay: Time = Field(25 * NS, description="propagation delay of an NPU's link")
    switch_rate: Rate | None = Field(None, description="rate of a cable between switches; rate if not given")
    switch_delay: Time = Field(500 * NS, description="propagation delay of a cable between switches")
    switch_latency: Time = Field(0, description="forwarding latency of a switch")
    dimension_order: Flag = Field(False, description="whether packets correct one dimension after another, first first")
    dims: Sizes = Field((), description="logical dimensions, fastest first; one of all NPUs if not given")


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the numbers of nodes and cables of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    widths = _widths(arguments, name)
    switches = math.prod(arguments.sizes)
    between = sum(switches * (size - 1) // 2 * width for size, width in zip(arguments.sizes, widths, strict=True))
    return Extent(switches * arguments.p, switches, switches * arguments.p + between, switches)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network, whose pods are its slices along the last dimension, if there are several.

    A group is one switch: detours lead over any switch. Raises TopologyError: sizes or widths do not fit.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    widths = _widths(arguments, name)
    sizes, p = arguments.sizes, arguments.p
    count = math.prod(sizes)
    number = np.arange(count)
    pod = number // (count // sizes[-1]) if len(sizes) > 1 else np.full(count, -1)
    npu = np.arange(count * p)
    builder = GraphBuilder(name, len(npu))
    builder.set_npu_pods(pod[npu // p])
    switch = builder.add_named_switches(
        [f"router {i}" for i in range(count)], latency_ps=arguments.switch_latency, pod=pod, group=number
    )
    builder.add_cables(npu, switch[npu // p], arguments.rate, arguments.delay)
    stride = 1
    for size, width in zip(sizes, widths, strict=True):
        # each pair of places of a line once, for all switches with place 0
        one, other = np.triu_indices(size, 1)
        first = np.repeat(number[number // stride % size == 0], len(one))
        lines = len(first) // len(one)
        ends = switch[first + np.tile(one, lines) * stride], switch[first + np.tile(other, lines) * stride]
        builder.add_cables(*ends, arguments.switch_rate or arguments.rate, arguments.switch_delay, width)
        stride *= size
    # Ahn et al., section 3.2: the cut through the middle of the dimension with the fewest cables there. With an even
    # size it has as many as the second eigenvalue of the cables, size x width, asks for (Fiedler, 1973).
    weakest = min(range(len(sizes)), key=lambda d: sizes[d] * widths[d])
    size = sizes[weakest]
    between = widths[weakest] * (size // 2) * (size - size // 2) * (count // size)
    between_bps = between * (arguments.switch_rate or arguments.rate)
    builder.set_bisection(min(between_bps, len(npu) // 2 * arguments.rate), is_exact=size % 2 == 0)
    graph = builder.graph(dims=arguments.dims)
    return _in_order(graph, arguments) if arguments.dimension_order else graph


def _in_order(graph: Graph, arguments: Arguments) -> Graph:
    """Return the network whose packets correct the first dimension first, then the next."""
    # the numbers of switches at both ends differ by less than the stride of the next dimension, and by a multiple of
    # their own dimension's
    strides = np.cumprod((1, *arguments.sizes[:-1]))
    apart = np.abs(graph.link_src.astype(np.int64) - graph.link_dst)
    order = (np.searchsorted(strides, apart, side="right") - 1).astype(np.int8)
    group = graph.group
    routing = build_table_routing(graph.npus, graph.nodes, graph.link_src, graph.link_dst, group, order)
    return replace(graph, link_order=order, routing=routing)


def _widths(arguments: Arguments, name: str) -> tuple[int, ...]:
    """Return the number of parallel cables of each dimension; errors begin with the name."""
    sizes, widths = arguments.sizes, arguments.width
    if min(sizes) == 1 or len(sizes) > _MAX_DIMENSIONS:
        found = f"sizes = {'x'.join(map(str, sizes))}"
        raise TopologyError.at(name, found, f"one to {_MAX_DIMENSIONS} sizes of 2 or more")
    if len(widths) not in {1, len(sizes)}:
        raise TopologyError.at(name, f"width has {len(widths)} entries", f"1 or {len(sizes)}, one for each dimension")
    return widths * (len(sizes) if len(widths) == 1 else 1)
