"""Hierarchies of dimensions (ring, fully connected, switch): their neighbours, and their `DimensionRouting`."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from nadi.inputs.arrays import Float64, Int8, Int32, Int64
from nadi.inputs.limits import MAX_CABLES
from nadi.topologies.graph import NONE, RING, SINGLE, TABLE, Extent, Graph, Routing, TopologyError

# Kinds of dimensions -> routing mode of an NPU in one
KINDS = {"Ring": RING, "FullyConnected": TABLE, "Switch": SINGLE}
_NICKNAMES = {"ring": "Ring", "r": "Ring", "fullyconnected": "FullyConnected", "fc": "FullyConnected"}
_NICKNAMES |= {"switch": "Switch", "sw": "Switch"}
_DIMENSION = re.compile(r"([A-Za-z]+)\(([0-9]{1,9})\)")


@dataclass(frozen=True)
class Dimension:
    """One dimension of a hierarchy: `kind` of KINDS, `size` members (two or more)."""

    kind: str
    size: int


def parse_dimensions(text: object) -> tuple[Dimension, ...]:
    """Return the dimensions of "Ring(4)_FC(2)_SW(8)", fastest first; TopologyError for other forms or < 2 members.

    Args:
        text: A text such as "Ring(4)_FC(2)_SW(8)", or a list of its parts.
    """
    parts = text.split("_") if isinstance(text, str) else text
    if not isinstance(parts, Sequence) or not parts:
        raise TopologyError(f"{text!r} is no list of dimensions; expected a form like Ring(4)_Switch(8)")
    return tuple(_parse_dimension(part) for part in parts)


def format_dimensions(dimensions: Sequence[Dimension]) -> str:
    """Return the text that `parse_dimensions` reads.

    Args:
        dimensions: The dimensions, fastest first.
    """
    return "_".join(f"{d.kind}({d.size})" for d in dimensions)


@dataclass(frozen=True, eq=False)
class DimensionRouting(Routing):
    """Dimension-ordered routing: packets correct the first dimension with different digits first."""

    sizes: Int32  # int32[D], members of each dimension, fastest first
    digit: Int32  # int32[nodes, D], own coordinate; -1 = any (a switch of that dimension)
    mode: Int8  # int8[nodes, D], action in the dimension: RING, TABLE, SINGLE, NONE (never needed)
    # int64[nodes, D], index of `sets`. RING: sets[o] leads towards +1 and sets[o + 1] towards -1; packets take the
    # shorter way, and either at the opposite node of an even ring. TABLE: sets[o + digit of the destination]. SINGLE:
    # sets[o].
    offset: Int64
    sets: Int32  # int32[], port sets; -1 where a set is not needed (a TABLE's own digit)
    set_ptr: Int32  # int32[sets + 1], see `set_link`
    set_link: Int32  # int32[], set s holds the links set_link[set_ptr[s]:set_ptr[s + 1]], ascending

    npus_forward: ClassVar[bool] = True

    @property
    def dimensions(self) -> int:  # type: ignore[override]
        """Number of dimensions."""
        return len(self.sizes)

    @property
    def stack(self) -> str:
        """The dimensions, as topology `stack` takes them."""
        return format_dimensions(dimensions_of(self))

    def next_links(self, graph: Graph, node: int, dst: int) -> list[int]:  # noqa: ARG002 - as of all routings
        """Return the links as described in `Routing`: the first dimension with different digits decides.

        Args:
            graph: The network in which packets travel.
            node: The number of the NPU or switch that has the packet.
            dst: The number of the NPU to which the packet travels.
        """
        dimension = next(d for d in range(len(self.sizes)) if self.digit[node, d] != self.digit[dst, d])
        mode, offset = self.mode[node, dimension], self.offset[node, dimension]
        if mode == NONE:
            raise AssertionError(f"node {node} cannot correct dimension {dimension} on the way to npu {dst}")
        if mode == RING:
            size = int(self.sizes[dimension])
            ahead = int(self.digit[dst, dimension] - self.digit[node, dimension]) % size
            # The set at `offset` leads ahead, the next one back. In a ring of 8, 3 places ahead is forwards, 5 is
            # backwards, and for 4 both directions are shortest.
            ways = [offset] * (2 * ahead <= size) + [offset + 1] * (2 * ahead >= size)
            return sorted({link for way in ways for link in _links_of(self, self.sets[way])})
        if mode == TABLE:
            offset += self.digit[dst, dimension]
        return _links_of(self, self.sets[offset])

    def path_links(self, src: Int64, dst: Int64) -> Int64:
        """Return int64[p]: number of links over all dimensions: around rings, one, or up and down.

        Args:
            src: int64[p], the NPUs at which the paths begin.
            dst: int64[p], the NPUs at which the paths end.
        """
        links = np.zeros(len(src), np.int64)
        for d, size in enumerate(self.sizes.tolist()):
            # int64, as a difference of int32 digits would be negative before the remainder
            ahead = (self.digit[dst, d].astype(np.int64) - self.digit[src, d]) % size
            mode = self.mode[0, d]
            # a dimension with a switch takes two links, up to it and down; a full mesh takes one
            across = np.minimum(ahead, size - ahead) if mode == RING else np.where(mode == SINGLE, 2, 1) * (ahead > 0)
            links += across
        return links

    def longest_links(self) -> int:
        """Return the number of links between the two farthest NPUs."""
        links_of_kind = {"FullyConnected": 1, "Switch": 2}  # between the two farthest members
        return sum(links_of_kind.get(d.kind, d.size // 2) for d in dimensions_of(self))

    def diameter(self, npus: int) -> int:  # noqa: ARG002 - as of all routings
        """Return the number of links between the two farthest NPUs.

        Args:
            npus: The number of NPUs.
        """
        return self.longest_links()

    def ecmp_width(self) -> int:
        """Return the maximum number of equal-cost links among which an NPU or switch chooses."""
        sizes = np.diff(self.set_ptr)
        even = (self.sizes % 2 == 0) & (self.sizes > 2)
        first = self.offset[(self.mode == RING) & even]
        # at half of an even ring both directions are equally long, and a node chooses among the links of both
        both = sizes[self.sets[first]] + sizes[self.sets[first + 1]]
        return int(max(sizes.max(initial=1), both.max(initial=1)))

    def bisection_bps(self, graph: Graph) -> int:
        """Return the minimum rate in bit/s of one direction from the lower to the upper half of a dimension.

        Args:
            graph: The network.
        """
        cuts = []
        for d, size in enumerate(self.sizes):
            lower = self.digit[:, d] < size // 2
            if self.mode[0, d] == SINGLE:
                # half of the NPUs of each switch are below the cut: what they can send is the sum of their links to it
                leaving = (self.digit[graph.link_dst, d] == -1) & (self.digit[graph.link_src, d] >= 0)
                cuts.append(int(graph.link_rate_bps[leaving & lower[graph.link_src]].sum()))
            else:
                # a node with digit -1 is a switch of dimension d itself; switches of other dimensions have a digit and
                # no links in d
                here = (self.digit[:, d] >= 0)[graph.link_src] & (self.digit[:, d] >= 0)[graph.link_dst]
                cuts.append(int(graph.link_rate_bps[here & lower[graph.link_src] & ~lower[graph.link_dst]].sum()))
        return min(cuts)

    def loads(self, graph: Graph, src: Int64, dst: Int64, packets: Float64) -> Float64:
        """Return float64[links]: packets of each link, shared equally among the links that `next_links` allows.

        Args:
            graph: The network.
            src: int64[p], the sending NPU of each pair.
            dst: int64[p], the receiving NPU of each pair, another than `src`.
            packets: float64[p], packets of each pair.
        """
        return dimension_loads(graph, self, src, dst, packets)

    def certain_loads(
        self, graph: Graph, src: Int64, dst: Int64, amounts: Float64
    ) -> list[tuple[npt.NDArray[np.integer], Int64, Float64]]:
        """Return the sums of pairs at all port sets on their paths, without pairs that have two paths.

        Args:
            graph: The network.
            src: int64[p], the sending NPU of each pair.
            dst: int64[p], the receiving NPU of each pair.
            amounts: float64[k, p], k amounts of each pair; sums are float64[k, sets].
        """
        sizes = np.diff(self.set_ptr)
        tied = np.zeros(len(src), np.bool_)
        for d, size in enumerate(self.sizes.tolist()):
            ahead = (self.digit[dst, d].astype(np.int64) - self.digit[src, d]) % size
            # half-way round a ring both directions are shortest, so neither must carry the traffic
            tied |= (self.mode[0, d] == RING) & (size > 2) & (2 * ahead == size)
        sure = np.flatnonzero(~tied)
        loads = [self.loads(graph, src[sure], dst[sure], values[sure]) for values in amounts]
        # a load is divided equally among parallel links: that of the first, times their number, is the set's
        sums = np.stack([of_link[self.set_link[self.set_ptr[:-1]]] * sizes for of_link in loads])
        return [(self.set_link, np.repeat(np.arange(len(sizes)), sizes), sums)]

    def group_places(self, graph: Graph) -> Callable[[Int64], list[Int64]]:  # noqa: ARG002 - as of all routings
        """Return a function to the members' digits relative to the first member, modulo the sizes.

        Args:
            graph: The network.
        """

        def places(groups: Int64) -> list[Int64]:
            digit = self.digit[groups].astype(np.int64)
            # moving a group along a ring changes nothing
            return [((digit - digit[:, :1]) % self.sizes.astype(np.int64)).reshape(len(groups), -1)]

        return places

    def ways_along(self, npu: int, dim: int, dims: tuple[int, ...], members: int) -> int:
        """Return the number of other members of a line of a dimension if an NPU has a link to each; 1 otherwise.

        Args:
            npu: The number of the NPU.
            dim: The number of the logical dimension; -1 = none.
            dims: The logical dimensions of the network.
            members: The number of members of the line.
        """
        is_mesh = dim >= 0 and tuple(self.sizes.tolist()) == dims and self.mode[npu, dim] == TABLE
        return members - 1 if is_mesh else 1

    def directions(self, graph: Graph) -> Int64:
        """Return int64[D, links], how each link changes the digits.

        Args:
            graph: The network.
        """
        return ((self.digit[graph.link_dst] - self.digit[graph.link_src]) % self.sizes).T.astype(np.int64)


def _links_of(routing: DimensionRouting, port_set: int) -> list[int]:
    return [int(link) for link in routing.set_link[routing.set_ptr[port_set] : routing.set_ptr[port_set + 1]]]


def dimensions_of(routing: DimensionRouting) -> tuple[Dimension, ...]:
    """Return the dimensions of a routing.

    Args:
        routing: The routing of a network with dimensions.
    """
    kind_of = {mode: kind for kind, mode in KINDS.items()}
    return tuple(Dimension(kind_of[int(mode)], int(n)) for mode, n in zip(routing.mode[0], routing.sizes, strict=True))


@dataclass(frozen=True)
class Hierarchy:
    """Nodes and cables of a hierarchy of dimensions; the result of `lay_out`."""

    dimensions: tuple[Dimension, ...]  # dimensions, fastest first
    npus: int  # number of NPUs, the product of the sizes
    # number of nodes: NPUs, then the switches dimension by dimension, one for each line of a Switch dimension
    nodes: int
    digit: Int32  # int32[nodes, D], coordinates; -1 in the dimension that a switch serves
    cable_a: tuple[Int64, ...]  # ends of cables: an int64[cables of the dimension] for each dimension
    cable_b: tuple[Int64, ...]  # ends of cables: an int64[cables of the dimension] for each dimension


def lay_out(dimensions: Sequence[Dimension]) -> Hierarchy:
    """Number the nodes and list the cables. NPU i has digit (i // product of the earlier sizes) mod size.

    A Ring of two is one cable; FullyConnected has a cable for each pair; each line of a Switch dimension (the NPUs that
    differ in that digit only) has a switch of its own, with a cable to each of them. Raises TopologyError: there are
    too many NPUs or cables.

    Args:
        dimensions: The dimensions, fastest first.
    """
    sizes = [d.size for d in dimensions]
    npus = math.prod(sizes)
    cables = sum(_cables(dimension, npus) for dimension in dimensions)
    if cables > MAX_CABLES:
        raise TopologyError(
            f"{format_dimensions(dimensions)} has {npus} NPUs and {cables} cables; expected at most {MAX_CABLES}"
        )
    npu = np.arange(npus)
    # distance of the numbers of neighbours in each dimension
    stride = [math.prod(sizes[:d]) for d in range(len(sizes))]
    digits = [np.stack([npu // s % n for s, n in zip(stride, sizes, strict=True)], axis=1)]
    nodes = npus
    cable_a, cable_b = [], []
    for d, dimension in enumerate(dimensions):
        n, own = dimension.size, digits[0][:, d]
        if dimension.kind == "Ring":
            # a ring of two would have its only cable twice
            starts = npu[own < n - 1] if n == 2 else npu
            # the last of a ring of n leads back to the first: its digit changes by 1 - n
            a, b = starts, starts + ((own[starts] + 1) % n - own[starts]) * stride[d]
        elif dimension.kind == "FullyConnected":
            # each pair once, from the lower digit
            a, other = np.nonzero(own[:, None] < np.arange(n))
            b = a + (other - own[a]) * stride[d]
        else:
            # the number of an NPU without its digit in this dimension is the number of its switch
            a, b = npu, nodes + npu % stride[d] + npu // (stride[d] * n) * stride[d]
            # one row per line of the dimension, from its first NPU: the switch shares all other digits with its NPUs
            line = digits[0][own == 0].copy()
            line[:, d] = -1
            digits.append(line)
            nodes += len(line)
        cable_a.append(a)
        cable_b.append(b)
    digit = np.concatenate(digits).astype(np.int32)
    return Hierarchy(tuple(dimensions), npus, nodes, digit, tuple(cable_a), tuple(cable_b))


def extent_of(dimensions: Sequence[Dimension]) -> Extent:
    """Return the counts of nodes and cables of `lay_out`.

    Args:
        dimensions: The dimensions, fastest first.
    """
    npus = math.prod(d.size for d in dimensions)
    cables = sum(_cables(dimension, npus) for dimension in dimensions)
    return Extent(npus, sum(npus // d.size for d in dimensions if d.kind == "Switch"), cables)


def _cables(dimension: Dimension, npus: int) -> int:
    """Return the number of cables of one dimension in a hierarchy of `npus` NPUs."""
    if dimension.kind == "FullyConnected":
        return npus * (dimension.size - 1) // 2
    return npus // 2 if dimension == Dimension("Ring", 2) else npus


def build_dimension_routing(layout: Hierarchy, link_src: Int32, link_dst: Int32) -> DimensionRouting:
    """Return the routing for links that join exactly the neighbours of the layout; TopologyError for other links.

    Args:
        layout: The numbers and neighbours of the nodes.
        link_src: int32[links], the sending node of each link.
        link_dst: int32[links], the receiving node of each link.
    """
    # a pair of nodes as one number, so that searchsorted finds the links of a pair
    link_key = link_src.astype(np.int64) * layout.nodes + link_dst
    order = np.argsort(link_key, kind="stable")
    # parallel links between two nodes have equal keys and form one port set, from `first` to the next pair's `first`
    pair_key, first = np.unique(link_key[order], return_index=True)
    ends = np.concatenate([np.concatenate(layout.cable_a), np.concatenate(layout.cable_b)])
    starts = np.concatenate([np.concatenate(layout.cable_b), np.concatenate(layout.cable_a)])
    # both directions of every cable of the layout
    expected = np.unique(starts.astype(np.int64) * layout.nodes + ends)
    for pairs, error in (
        (np.setdiff1d(expected, pair_key), "are not linked; expected a link"),
        (np.setdiff1d(pair_key, expected), "are linked; expected no link"),
    ):
        if len(pairs):
            a, b = (f"{'npu' if i < layout.npus else 'node'} {i}" for i in divmod(int(pairs[0]), layout.nodes))
            raise TopologyError(f"{a} and {b} {error} in {format_dimensions(layout.dimensions)}")

    mode = np.full(layout.digit.shape, NONE, np.int8)
    offset = np.full(layout.digit.shape, -1, np.int64)
    blocks: list[Int64] = []
    used = 0
    for d, dimension in enumerate(layout.dimensions):
        for nodes, mode_here, neighbours in _neighbours(layout, d, dimension):
            key = nodes[:, None] * layout.nodes + neighbours
            # a node is no neighbour of itself: a row of a fully connected dimension has a place for its own digit
            block = np.where(neighbours == nodes[:, None], -1, np.searchsorted(pair_key, key))
            mode[nodes, d] = mode_here
            # a node's sets in dimension d are block.shape[1] consecutive entries: two of a ring (ahead, back), n of a
            # full mesh, one of an NPU below a switch
            offset[nodes, d] = used + np.arange(len(nodes)) * block.shape[1]
            blocks.append(block.reshape(-1))
            used += block.size
    return DimensionRouting(
        sizes=np.array([d.size for d in layout.dimensions], np.int32),
        digit=layout.digit,
        mode=mode,
        offset=offset,
        sets=np.concatenate(blocks).astype(np.int32),
        set_ptr=np.append(first, len(order)).astype(np.int32),
        set_link=order.astype(np.int32),
    )


def _parse_dimension(text: object) -> Dimension:
    """Return the dimension that a text like "Ring(4)" gives; TopologyError for other forms or fewer than 2 members."""
    match = _DIMENSION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise TopologyError(f"{text!r} is no dimension; expected a form like Ring(4)")
    kind = _NICKNAMES.get(match[1].lower())
    if kind is None:
        raise TopologyError(f"dimension {text!r} is of no known kind; expected one of {', '.join(KINDS)}")
    if int(match[2]) < 2:
        raise TopologyError(f"dimension {text!r} has {int(match[2])} members; expected 2 or more")
    return Dimension(kind, int(match[2]))


def _neighbours(layout: Hierarchy, number: int, dimension: Dimension) -> list[tuple[Int64, int, Int64]]:
    """Return triples of the nodes that act in dimension `number`: nodes int64[n], mode, neighbours int64[n, sets]."""
    # dimension: that dimension of the layout.
    npu = np.arange(layout.npus)
    stride, n = math.prod(x.size for x in layout.dimensions[:number]), dimension.size
    own = layout.digit[: layout.npus, number].astype(np.int64)
    # the NPU of the same line with digit 0
    zero = npu - own * stride
    if dimension.kind == "Ring":
        both = (own[:, None] + np.array([1, -1])) % n
        return [(npu, RING, zero[:, None] + both * stride)]
    line = zero[:, None] + np.arange(n) * stride
    if dimension.kind == "FullyConnected":
        return [(npu, TABLE, line)]
    up, first = layout.cable_b[number], np.flatnonzero(own == 0)
    return [(npu, SINGLE, up[:, None]), (up[first], TABLE, line[first])]


# Packets of each link under DimensionRouting: one dimension after another, all pairs at once.
#
# On a ring, a pair's packets cover consecutive links; such runs are added up as differences at their two ends, so that
# the length of a path does not matter for the cost.


_MAX_PAIRS = 1 << 20  # per block, to bound memory


def dimension_loads(graph: Graph, routing: DimensionRouting, src: Int64, dst: Int64, packets: Float64) -> Float64:
    """Return float64[links]: packets of each link, shared equally among the links that `next_links` allows.

    Args:
        graph: The fabric (`Graph`).
        routing: Routing of the fabric by dimensions.
        src: int64[p], the sending NPU of each pair.
        dst: int64[p], the receiving NPU of each pair, another than `src`.
        packets: float64[p], packets of each pair.
    """
    packets_of_set = np.zeros(len(routing.set_ptr) - 1)
    for begin in range(0, len(src), _MAX_PAIRS):
        block = slice(begin, begin + _MAX_PAIRS)
        packets_of_set += _set_loads(graph, routing, src[block], dst[block], packets[block])
    sizes = np.diff(routing.set_ptr)
    # set_ptr is a CSR of links: set s has links set_link[set_ptr[s]:set_ptr[s + 1]], each with an equal part
    per_link = np.repeat(packets_of_set / sizes, sizes)
    return np.asarray(np.bincount(routing.set_link, per_link, minlength=graph.links), np.float64)


def _set_loads(graph: Graph, routing: DimensionRouting, src: Int64, dst: Int64, packets: Float64) -> Float64:
    """Return float64[sets]: packets of each port set, from NPUs src to dst, int64[p], with packets float64[p]."""
    packets_of_set = np.zeros(len(routing.set_ptr) - 1)
    # sizes (4, 2, 3): strides (1, 4, 8), as an NPU's number is digit 0 + 4 x digit 1 + 8 x digit 2
    stride = np.cumprod(np.append(1, routing.sizes[:-1]), dtype=np.int64)
    here = src.copy()
    for d in range(len(routing.sizes)):
        goal = routing.digit[dst, d].astype(np.int64)
        moves = np.flatnonzero(routing.digit[here, d] != goal)
        mode = routing.mode[0, d]  # the same for all NPUs
        if mode == RING:
            packets_of_set += _ring_loads(routing, d, int(stride[d]), here[moves], goal[moves], packets[moves])
        else:
            node = here[moves]
            if mode == SINGLE:
                up = routing.sets[routing.offset[node, d]]
                packets_of_set += np.bincount(up, packets[moves], minlength=len(packets_of_set))
                # the packets are at that switch now, from where one more link leads to the NPU with the goal's digit
                node = graph.link_dst[routing.set_link[routing.set_ptr[up]]]
            across = routing.sets[routing.offset[node, d] + goal[moves]]
            packets_of_set += np.bincount(across, packets[moves], minlength=len(packets_of_set))
        # all pairs are where their packets enter the next dimension
        here[moves] += (goal[moves] - routing.digit[here[moves], d]) * stride[d]
    return packets_of_set


def _ring_loads(
    routing: DimensionRouting, dimension: int, stride: int, here: Int64, goal: Int64, packets: Float64
) -> Float64:
    """Return float64[sets]: packets of each port set from moves in a Ring dimension, the shorter way."""
    # stride: distance of neighbours' numbers; here, goal, packets: [p], NPU, target digit and packets of each move.
    size = int(routing.sizes[dimension])
    npus = int(np.prod(routing.sizes, dtype=np.int64))
    digit = routing.digit[here, dimension].astype(np.int64)
    ahead = (goal - digit) % size
    # [p, 2]: number of links towards +1 and -1, by which the opposite node's packets are shared
    links = np.diff(routing.set_ptr)[routing.sets[routing.offset[here, dimension][:, None] + np.array([0, 1])]]
    up = np.where(2 * ahead == size, packets * links[:, 0] / links.sum(axis=1), np.where(2 * ahead < size, packets, 0))
    down = packets - up

    npu = np.arange(npus)
    # rings of the dimension: NPUs that differ in this digit only; line_of numbers them, [npus]
    line_of = npu // (stride * size) * stride + npu % stride
    digit_of = npu // stride % size
    line, lines = line_of[here], npus // size
    upwards = _runs(lines, size, line, digit, ahead, up)[line_of, digit_of]
    # towards -1 from digit a to b uses the sets of a, a - 1, .., b + 1: a run that begins at b + 1
    downwards = _runs(lines, size, line, (goal + 1) % size, (digit - goal) % size, down)[line_of, digit_of]
    offset = routing.offset[:npus, dimension]
    sets = np.concatenate([routing.sets[offset], routing.sets[offset + 1]])
    packets_of = np.bincount(sets, np.concatenate([upwards, downwards]), minlength=len(routing.set_ptr) - 1)
    return np.asarray(packets_of, np.float64)


def _runs(rings: int, ring_size: int, ring_of_run: Int64, begin: Int64, length: Int64, packets: Float64) -> Float64:
    """Return float64[rings, ring_size]: packets of runs of a length from `begin` on, which wrap around, per place."""
    # Example: a ring of 4, a run of 3 packets from place 3, 2 links long: +3 at 3, -3 at 5 of twice the ring; the
    # running sum is 0 0 0 3 3 0 0 0, and both halves added give 3 0 0 3: links 3 and 0.
    first = ring_of_run * 2 * ring_size + begin
    steps = np.bincount(first, packets, minlength=2 * rings * ring_size)
    steps -= np.bincount(first + length, packets, minlength=2 * rings * ring_size)
    twice = np.cumsum(steps.reshape(rings, 2 * ring_size), axis=1)
    return np.maximum(twice[:, :ring_size] + twice[:, ring_size:], 0)  # rounding must not leave negative values
