"""Bounded parts of traces as graphs to look at, as DOT, GraphML or SVG."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

import jinja2
import numpy as np

from nadi.et.communications import LANES, NO_LANE, Rank, communications_of, lanes_of
from nadi.et.errors import TraceError
from nadi.et.order import bridge, children, topological_order
from nadi.et.reader import collective_name
from nadi.et.reshape.parts import matching
from nadi.et.schema import NodeType
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Mask

DEPENDS, THROUGH, MESSAGE = "depends", "through", "message"
COLOURS = {
    "host": "#d9d9d9",
    "compute": "#b3de69",
    "memory": "#fdb462",
    "collectives": "#80b1d3",
    "sends": "#fb8072",
    "receives": "#fccde5",
    "metadata": "#ffffff",
}


class PictureNode(NamedTuple):
    """A node in a picture."""

    npu: int  # NPU that runs the node
    id: int  # id of the node in its trace
    name: str  # name of the node
    kind: str  # a lane of et.communications.LANES, or "metadata"
    detail: str  # operation, amounts and duration in a few words; may be empty
    layer: int  # length of the longest path to the node in the picture, from 0


class Edge(NamedTuple):
    """An arrow between two nodes of a picture, by their places."""

    parent: int  # place of the node where the arrow begins
    child: int  # place of the node where it ends
    kind: str  # "depends"; "through" for a path through hidden nodes; "message", from a send to its receive


class Picture(NamedTuple):
    """Content of a picture."""

    nodes: tuple[PictureNode, ...]  # nodes NPU by NPU, parents before children
    edges: tuple[Edge, ...]  # arrows between the nodes
    left_out: int  # number of nodes of the traces that are hidden
    cut: int  # number of dependencies between shown and hidden nodes that are not bridged

    def notes(self) -> list[str]:
        """Return sentences on what the picture leaves out."""
        found = []
        if self.left_out:
            found.append(f"{self.left_out:,} nodes are not shown")
        if self.cut:
            found.append(f"{self.cut:,} dependencies lead to nodes that are not shown")
        if any(edge.kind == THROUGH for edge in self.edges):
            found.append("a dashed arrow leads through nodes that are not shown")
        return found


class NodeFilter(NamedTuple):
    """The nodes that a picture is to show: those that meet all given conditions."""

    names: tuple[str, ...] | None = None  # shell patterns, one of which the name must match; None = all
    ids: tuple[tuple[int, int], ...] | None = None  # ranges (first, last) of node ids; None = all
    around: int | None = None  # id of a node, to show all nodes at most `hops` dependencies away; None = all
    hops: int = 2  # maximum number of dependencies between `around` and a shown node


def picture(ranks: Sequence[Rank], node_filter: NodeFilter, max_nodes: int) -> Picture:
    """Return a picture of the first nodes of each NPU, in the order of their dependencies.

    Args:
        ranks: The traces of some NPUs.
        node_filter: The conditions that shown nodes meet.
        max_nodes: The maximum number of selected nodes of all NPUs together; joints of `bridge` are shown in addition.
    """
    shown: list[PictureNode] = []
    edges: list[Edge] = []
    place: dict[tuple[int, int], int] = {}
    total = cut = 0
    parents: list[list[int]] = []
    masks = [_selected(rank.table, node_filter) for rank in ranks]
    if not any(mask.any() for mask in masks):
        raise TraceError(f"{ranks[0].table.path}: no node matches the selection, expected one or more")
    # how many nodes each trace may show; nodes that small traces do not need are shared by the others
    counts = [int(mask.sum()) for mask in masks]
    shares = [0] * len(counts)
    left = max_nodes
    for rest, number in enumerate(sorted(range(len(counts)), key=lambda i: counts[i])):
        shares[number] = min(counts[number], left // (len(counts) - rest))
        left -= shares[number]
    for number, (rank, mask, share) in enumerate(zip(ranks, masks, shares, strict=True)):
        total += len(rank.table)
        rows, found, lost = _part(rank.table, mask, share)
        cut += lost
        kinds = lanes_of(rank.table)
        for row in rows:
            place[number, row] = len(shown)
            parents.append([])
            shown.append(_node(rank, row, int(kinds[row])))
        for parent, child, kind in found:
            edges.append(Edge(place[number, parent], place[number, child], kind))
    edges += _messages(ranks, place) if len(ranks) > 1 else []
    for edge in edges:
        parents[edge.child].append(edge.parent)
    layers = _layers(parents)
    nodes = tuple(node._replace(layer=layer) for node, layer in zip(shown, layers, strict=True))
    return Picture(nodes, tuple(edges), total - len(nodes), cut)


def _selected(table: TraceTable, node_filter: NodeFilter) -> Mask:
    """Return bool[n], the nodes that a filter selects."""
    mask = matching(table, node_filter.ids, node_filter.names)
    if node_filter.around is not None:
        rows = np.flatnonzero(table.node_id == np.uint64(node_filter.around)).tolist()
        near = np.zeros(len(table), np.bool_)
        child_ptr, child = children(table)
        for _ in range(node_filter.hops + 1):
            near[rows] = True
            following = [table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]] for row in rows]
            following += [child[child_ptr[row] : child_ptr[row + 1]] for row in rows]
            # The neighbours of the last nodes in both directions; the empty array is for nodes without any
            found = np.unique(np.concatenate([np.zeros(0, np.int32), *following]))
            rows = found[~near[found]].tolist()
        mask &= near
    return mask


def _part(table: TraceTable, is_selected: Mask, max_rows: int) -> tuple[list[int], list[tuple[int, int, str]], int]:
    """Return up to `max_rows` selected rows, the arrows between them, and the number of cut dependencies."""
    order = topological_order(table).tolist()
    keep = np.zeros(len(table), np.bool_)
    keep[[row for row in order if is_selected[row]][:max_rows]] = True
    bridged = bridge(table, keep)
    shown = {row for row, stays in enumerate(keep.tolist()) if stays} | set(np.flatnonzero(bridged.joints).tolist())
    edges, reached = [], 0
    for row in order:
        if row not in shown:
            continue
        direct = set(table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]].tolist())
        reached += len(direct & shown)
        parents = sorted(bridged.parents[row] & shown)
        edges += [(parent, row, DEPENDS if parent in direct else THROUGH) for parent in parents]
    child_ptr, _ = children(table)
    rows = [row for row in order if row in shown]
    # A dependency between two shown nodes is counted at both ends, one that is cut at one
    touching = int(np.diff(table.dep_ptr)[rows].sum() + np.diff(child_ptr)[rows].sum())
    through = sum(kind == THROUGH for _, _, kind in edges)
    return rows, edges, 0 if through else touching - 2 * reached


def _messages(ranks: Sequence[Rank], node_of_row: dict[tuple[int, int], int]) -> list[Edge]:
    """Return arrows from sends to their receives."""
    edges = []
    for key, members in communications_of(ranks).items():
        if key[0] == "message" and len(members) == 2 and all(member in node_of_row for member in members):
            first, second = members
            if ranks[first.rank].table.type[first.row] != NodeType.COMM_SEND_NODE:
                first, second = second, first
            edges.append(Edge(node_of_row[first], node_of_row[second], MESSAGE))
    return edges


def _layers(parents_of_node: Sequence[Sequence[int]]) -> list[int]:
    """Return the length of the longest path to each node; nodes on a cycle stay in the layer reached so far."""
    waits = [len(own) for own in parents_of_node]
    children_of: list[list[int]] = [[] for _ in parents_of_node]
    for node, own in enumerate(parents_of_node):
        for parent in own:
            children_of[parent].append(node)
    layers = [0] * len(parents_of_node)
    ready = [node for node, left in enumerate(waits) if left == 0]
    while ready:
        node = ready.pop()
        for child in children_of[node]:
            layers[child] = max(layers[child], layers[node] + 1)
            waits[child] -= 1
            if waits[child] == 0:
                ready.append(child)
    return layers


def _node(rank: Rank, row: int, lane: int) -> PictureNode:
    """Return the node of a row with its details in words, in layer 0."""
    table = rank.table
    kind = LANES[lane] if lane != NO_LANE else "metadata"
    details = []
    if table.comm_type[row] >= 0:
        details.append(collective_name(int(table.comm_type[row])))
    for name, unit in (("comm_size", "B"), ("num_ops", "FLOP"), ("tensor_size", "B")):
        value = int(getattr(table, name)[row])
        if value >= 0:
            details.append(f"{_amount(value)}{unit}")
    if table.duration_micros[row]:
        details.append(f"{int(table.duration_micros[row]):,} us")
    return PictureNode(rank.npu, int(table.node_id[row]), table.names[row], kind, ", ".join(details), 0)


def _amount(value: int) -> str:
    """Return a number with three digits and the prefix of its unit."""
    for prefix, size in (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value} "


# A picture as SVG, as DOT for Graphviz, or as GraphML, which networkx, Gephi and yEd read (graphml.graphdrawing.org).
#
# SVG has nodes in layers, parents above children, ordered so that few arrows cross. A node's layer is the length of the
# longest path to it. Within a layer each node moves to the mean place of its neighbours, in a few sweeps down and up
# (Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures", 1981).


_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 210, 40, 24, 46, 20  # of a node, between nodes, around all; pixels
_SWEEPS = 8
_MAX_CHARACTERS = 28  # of a line of text within a node
_DASHES = {THROUGH: "6 4", MESSAGE: "2 3"}
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def drawn(picture: Picture, form: str) -> Iterator[str]:
    """Yield the text of a picture in a file format.

    Args:
        picture: The nodes and arrows to draw.
        form: The format: "svg", "dot" or "graphml".
    """
    environment = jinja2.Environment(  # noqa: S701 - the templates escape names themselves
        loader=jinja2.PackageLoader("nadi.et.views"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"content": _content, "quoted": _quoted}
    corners = places(picture)
    bottom = max(y for _, y in corners) + _HEIGHT + _MARGIN
    size = {"node_width": _WIDTH, "node_height": _HEIGHT, "margin": _MARGIN, "characters": _MAX_CHARACTERS}
    size |= {"width": max(x for x, _ in corners) + _WIDTH + _MARGIN, "bottom": bottom}
    size |= {"height": bottom + 16 * len(picture.notes()) + _MARGIN}
    yield from environment.get_template(f"picture.{form}.j2").generate(
        picture=picture,
        npus=list(dict.fromkeys(node.npu for node in picture.nodes)),
        corners=corners,
        colours=COLOURS,
        dashes=_DASHES,
        curve=_curve,
        end_of=_end_of,
        **size,
    )


def _curve(parent: tuple[int, int], child: tuple[int, int]) -> str:
    """Return the path in SVG from below the middle of the parent's box to above that of the child's."""
    x, y, to_x, to_y = parent[0] + _WIDTH // 2, parent[1] + _HEIGHT, child[0] + _WIDTH // 2, child[1]
    # The longer an arrow, the wider its bend
    bend = max(_DOWN // 2, (to_y - y) // 3)
    return f"M{x} {y} C{x} {y + bend} {to_x} {to_y - bend} {to_x} {to_y}"


def places(picture: Picture) -> list[tuple[int, int]]:
    """Return the upper left corner of each node in pixels.

    Args:
        picture: The nodes and arrows to draw.
    """
    layers = _ordered(picture)
    widest = max(len(layer) for layer in layers)
    found = [(0, 0)] * len(picture.nodes)
    for depth, layer in enumerate(layers):
        # Layers are centred
        left = _MARGIN + (widest - len(layer)) * (_WIDTH + _ACROSS) // 2
        for i, node in enumerate(layer):
            found[node] = (left + i * (_WIDTH + _ACROSS), _MARGIN + depth * (_HEIGHT + _DOWN))
    return found


def _ordered(picture: Picture) -> list[list[int]]:
    """Return the nodes of each layer, from the left, so that few arrows cross."""
    layers: list[list[int]] = [[] for _ in range(max(node.layer for node in picture.nodes) + 1)]
    for place, node in enumerate(picture.nodes):
        layers[node.layer].append(place)
    above: list[list[int]] = [[] for _ in picture.nodes]
    below: list[list[int]] = [[] for _ in picture.nodes]
    for edge in picture.edges:
        above[edge.child].append(edge.parent)
        below[edge.parent].append(edge.child)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        # Places relative to the width of the layer, so that layers of different widths compare
        at = {node: i / len(layer) for layer in layers for i, node in enumerate(layer)}
        for layer in layers if down else layers[::-1]:
            layer.sort(key=lambda node: _mean(above[node] if down else below[node], at, at[node]))
            at.update({node: i / len(layer) for i, node in enumerate(layer)})
    return layers


def _mean(neighbours: Sequence[int], at: dict[int, float], own: float) -> float:
    return sum(at[node] for node in neighbours) / len(neighbours) if neighbours else own


def _end_of(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"...{text[3 - longest :]}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\0", "")
    return f'"{escaped}"'


def _content(text: str) -> str:
    """Return the text for use between tags of XML."""
    return escape(_FORBIDDEN.sub("\ufffd", text))
