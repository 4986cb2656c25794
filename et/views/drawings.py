"""A picture as SVG, as DOT for Graphviz, or as GraphML, which networkx, Gephi and yEd read (graphml.graphdrawing.org).

SVG has nodes in layers, parents above children, ordered so that few arrows cross. A node's layer is the length of the
longest path to it. Within a layer each node moves to the mean place of its neighbours, in a few sweeps down and up
(Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures", 1981).
"""

import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from et.views.picture import COLOURS, DEPENDS, MESSAGE, THROUGH, Picture

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 210, 40, 24, 46, 20  # of a node, between nodes, around all; pixels
_SWEEPS = 8
_MAX_CHARACTERS = 28  # of a line of text within a node
_STYLES = {THROUGH: ' stroke-dasharray="6 4"', MESSAGE: ' stroke="#b03060" stroke-dasharray="2 3"'}
_FONT = 'font-family="sans-serif" font-size="11"'
_DOT_STYLES = {"through": ' [style="dashed"]', "message": ' [style="dotted" color="#b03060" constraint="false"]'}
_NODE = (
    ("npu", "long"),
    ("id", "string"),
    ("name", "string"),
    ("kind", "string"),
    ("detail", "string"),
    ("layer", "long"),
)
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(picture: Picture) -> Iterator[str]:
    """Yield the lines of a .svg file."""
    corners = places(picture)
    notes = picture.notes()
    several = len({node.npu for node in picture.nodes}) > 1
    width = max(x for x, _ in corners) + _WIDTH + _MARGIN
    bottom = max(y for _, y in corners) + _HEIGHT + _MARGIN
    height = bottom + 16 * len(notes) + _MARGIN
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    arrow = '<path d="M0 0 L8 4 L0 8 z" fill="#555"/>'
    size = 'viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    yield f'<defs><marker id="arrow" {size}>{arrow}</marker></defs>'
    yield f'<rect width="{width}" height="{height}" fill="white"/>'
    for edge in picture.edges:
        (x, y), (to_x, to_y) = corners[edge.parent], corners[edge.child]
        x, to_x, y = x + _WIDTH // 2, to_x + _WIDTH // 2, y + _HEIGHT
        bend = max(_DOWN // 2, (to_y - y) // 3)
        curve = f"M{x} {y} C{x} {y + bend} {to_x} {to_y - bend} {to_x} {to_y}"
        style = _STYLES.get(edge.kind, "")
        colour = "" if edge.kind == MESSAGE else ' stroke="#555"'
        yield f'<path d="{curve}" fill="none"{colour}{style} marker-end="url(#arrow)"/>'
    for node, (x, y) in zip(picture.nodes, corners, strict=True):
        title = f"NPU {node.npu}, node {node.id}: {node.name}" + (f"\n{node.detail}" if node.detail else "")
        yield f"<g><title>{content(title)}</title>"
        box = f'x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"'
        yield f'<rect {box} fill="{COLOURS[node.kind]}" stroke="#555"/>'
        head = f"{node.npu}: " if several else ""
        name = head + _end_of(node.name, _MAX_CHARACTERS - len(head))
        detail = node.detail if len(node.detail) <= _MAX_CHARACTERS else f"{node.detail[: _MAX_CHARACTERS - 3]}..."
        yield f'<text x="{x + 6}" y="{y + 16}" {_FONT}>{content(name)}</text>'
        yield f'<text x="{x + 6}" y="{y + 31}" {_FONT} fill="#333">{content(detail)}</text></g>'
    for i, note in enumerate(notes):
        yield f'<text x="{_MARGIN}" y="{bottom + 16 * (i + 1)}" {_FONT}>{content(note)}</text>'
    yield "</svg>"


def places(picture: Picture) -> list[tuple[int, int]]:
    """Return the upper left corner of each node in pixels."""
    layers = _ordered(picture)
    widest = max(len(layer) for layer in layers)
    found = [(0, 0)] * len(picture.nodes)
    for depth, layer in enumerate(layers):
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
        at = {node: i / len(layer) for layer in layers for i, node in enumerate(layer)}
        for layer in layers if down else layers[::-1]:
            layer.sort(key=lambda node: _mean(above[node] if down else below[node], at, at[node]))
            at.update({node: i / len(layer) for i, node in enumerate(layer)})
    return layers


def _mean(neighbours: Sequence[int], at: dict[int, float], own: float) -> float:
    return sum(at[node] for node in neighbours) / len(neighbours) if neighbours else own


def _end_of(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"...{text[3 - longest :]}"


def dot(picture: Picture) -> Iterator[str]:
    """Yield the lines of a .dot file, with a cluster per NPU if there are several."""
    yield "digraph trace {"
    notes = "; ".join(picture.notes())
    yield f"  graph [rankdir=TB label={_quoted(notes)}]"
    yield '  node [shape=box style="filled,rounded" fontname="sans-serif" fontsize=10]'
    npus = list(dict.fromkeys(node.npu for node in picture.nodes))
    for npu in npus:
        if len(npus) > 1:
            yield f"  subgraph cluster_{npu} {{ label={_quoted(f'NPU {npu}')}"
        for place, node in enumerate(picture.nodes):
            if node.npu == npu:
                label = f"{node.id}: {node.name}" + (f"\n{node.detail}" if node.detail else "")
                yield f"  n{place} [label={_quoted(label)} fillcolor={_quoted(COLOURS[node.kind])}]"
        if len(npus) > 1:
            yield "  }"
    for edge in picture.edges:
        yield f"  n{edge.parent} -> n{edge.child}{'' if edge.kind == DEPENDS else _DOT_STYLES[edge.kind]}"
    yield "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\0", "")
    return f'"{escaped}"'


def graphml(picture: Picture) -> Iterator[str]:
    """Yield the lines of a .graphml file."""
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    for name, kind in _NODE:
        yield f'<key id="{name}" for="node" attr.name="{name}" attr.type="{kind}"/>'
    yield '<key id="edge" for="edge" attr.name="kind" attr.type="string"/>'
    yield '<key id="notes" for="graph" attr.name="notes" attr.type="string"/>'
    yield '<graph edgedefault="directed">'
    yield f'<data key="notes">{content("; ".join(picture.notes()))}</data>'
    for place, node in enumerate(picture.nodes):
        fields = "".join(f'<data key="{name}">{content(str(getattr(node, name)))}</data>' for name, _ in _NODE)
        yield f'<node id="n{place}">{fields}</node>'
    for edge in picture.edges:
        yield f'<edge source="n{edge.parent}" target="n{edge.child}"><data key="edge">{edge.kind}</data></edge>'
    yield "</graph></graphml>"


def content(text: str) -> str:
    """Return the text for use between tags."""
    return escape(_FORBIDDEN.sub("\ufffd", text))
