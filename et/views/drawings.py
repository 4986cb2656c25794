"""A picture as SVG, as DOT for Graphviz, or as GraphML, which networkx, Gephi and yEd read (graphml.graphdrawing.org).

SVG has nodes in layers, parents above children, ordered so that few arrows cross. A node's layer is the length of the
longest path to it. Within a layer each node moves to the mean place of its neighbours, in a few sweeps down and up
(Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures", 1981).
"""

import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

import jinja2

from nadi.et.views.picture import COLOURS, MESSAGE, THROUGH, Picture

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
