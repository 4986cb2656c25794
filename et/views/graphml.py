"""A picture in GraphML, which networkx, Gephi and yEd read (graphml.graphdrawing.org)."""

import re
from collections.abc import Iterator
from xml.sax.saxutils import escape

from et.views.picture import Picture

_NODE = (
    ("npu", "long"),
    ("id", "string"),
    ("name", "string"),
    ("kind", "string"),
    ("detail", "string"),
    ("layer", "long"),
)
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
