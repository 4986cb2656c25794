"""Hierarchies of dimensions (ring, fully connected, switch): their neighbours, and their `DimensionRouting`."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nadi.inputs.arrays import Int32, Int64
from nadi.inputs.limits import MAX_CABLES
from nadi.topologies.graph import NONE, RING, SINGLE, TABLE, DimensionRouting, Extent, TopologyError

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
