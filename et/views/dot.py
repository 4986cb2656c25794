"""A picture in DOT, the language of Graphviz."""

from collections.abc import Iterator

from et.views.picture import COLOURS, DEPENDS, Picture

_STYLES = {"through": ' [style="dashed"]', "message": ' [style="dotted" color="#b03060" constraint="false"]'}


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
        yield f"  n{edge.parent} -> n{edge.child}{'' if edge.kind == DEPENDS else _STYLES[edge.kind]}"
    yield "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\0", "")
    return f'"{escaped}"'
