"""A page of ranks against collectives, coloured by how far each member's bytes are from the mean. Needs plotly."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nadi.errors import OutputError
from nadi.pages.network import check_page
from nadi.terminal.printing import in_page

_COLOURS = "RdBu_r"


def write_page(path: Path, title: str, found: Mapping[str, Any]) -> None:
    """Write the heat maps of et.statistics.statistics into a file that stands alone.

    Raises:
        ConfigError: another ending than .html, or no plotly.
        OutputError: the file cannot be written.
    """
    check_page(path)
    try:
        figure(title, found).write_html(path, include_plotlyjs=True)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the page to") from None


def figure(title: str, found: Mapping[str, Any]) -> Any:  # noqa: ANN401 - plotly has no types
    """Two heat maps: by collective, and by kind."""
    from plotly.subplots import make_subplots

    by_collective, by_kind = found["sizes_by_collective"], found["bytes_by_rank"]
    left_out = by_collective["collectives_left_out"]
    rest = f", without {left_out:,} that differ less" if left_out else ""
    drawn = make_subplots(
        rows=2,
        cols=1,
        subplot_titles=(f"bytes of each member of a collective{rest}", "bytes of each rank by kind"),
        vertical_spacing=0.12,
    )
    labels = [_label(label) for label in by_collective["collectives"]]
    drawn.add_trace(_map(labels, by_collective, "coloraxis"), row=1, col=1)
    drawn.add_trace(_map([in_page(kind) for kind in by_kind["kinds"]], by_kind, "coloraxis"), row=2, col=1)
    drawn.update_xaxes(showticklabels=False, title_text="collectives in order", row=1, col=1)
    drawn.update_yaxes(title_text="NPU", type="category", autorange="reversed")
    bar = {"title": "from the mean", "tickformat": "+.0%"}
    drawn.update_layout(
        title=in_page(title), height=1100, coloraxis={"colorscale": _COLOURS, "cmid": 0, "colorbar": bar}
    )
    return drawn


def _map(columns: list[str], matrix: Mapping[str, Any], axis: str) -> Any:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    shown = [["-" if size is None else f"{size:,} B" for size in row] for row in matrix["bytes"]]
    return go.Heatmap(
        x=list(range(len(columns))) if len(set(columns)) < len(columns) else columns,
        y=[str(npu) for npu in matrix["ranks"]],
        z=matrix["deviation"],
        text=shown,
        customdata=[columns] * len(shown),
        coloraxis=axis,
        hovertemplate="NPU %{y}<br>%{customdata}<br>%{text}<br>%{z:+.2%} of the mean<extra></extra>",
    )


def _label(said: Mapping[str, Any]) -> str:
    group = said["group"] or "all NPUs"
    return in_page(f"{said['kind']} {said['number']} of {group}: {said['name']}")
