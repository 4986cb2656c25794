"""A picture of a partition: nodes coloured by part, links between parts highlighted. Needs plotly, an extra."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

import inputs
from nadi.errors import ConfigError, OutputError
from nadi.reports.pages.page import Page, PageSection, Plot
from nadi.reports.pages.places import MAX_LINES, Marks, lay_out, mark_name, with_gaps
from nadi.reports.pages.series import style
from nadi.terminal.printing import in_page
from partition import Partition, TrafficWeights
from topologies import Graph

_FORMATS = (".html", ".png")
_FAINT_LINES = 1500  # number of lines above which lines are drawn fainter
_NPU, _SWITCH = "circle", "square"


def check_plot(path: Path) -> None:
    """Check before the work whether a plot can be written.

    Raises:
        ConfigError: The file name ends neither in .html nor in .png, or plotly is not installed.
    """
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--plot {path}: found {path.suffix or 'no ending'!r}; expected a file .html or .png")
    if importlib.util.find_spec("plotly") is None:
        raise ConfigError(f"--plot {path}: plotly is not installed; expected pip install 'nadi[plot]'")


def write_plot(path: Path, graph: Graph, found: Partition, weights: TrafficWeights) -> None:
    """Write a picture of a partition; an HTML file needs no other files.

    Raises:
        ConfigError: See `check_plot`; or a PNG is requested without kaleido and a browser.
        OutputError: The file cannot be written.
    """
    check_plot(path)
    drawn = figure(graph, found, weights)
    try:
        if path.suffix.lower() == ".html":
            inputs.write_whole(path, _page(graph, found, weights, drawn).html())
        else:
            inputs.write_whole(path, drawn.to_image(path.suffix[1:], width=1600, height=900))
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the plot to") from None
    except (ImportError, RuntimeError, ValueError) as error:  # whatever kaleido lacks
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"--plot {path}: {reason}; expected pip install kaleido and a browser, or .html") from None


def figure(graph: Graph, found: Partition, weights: TrafficWeights) -> Any:  # noqa: ANN401 - plotly has no types
    """Return the picture as a plotly Figure."""
    from plotly import graph_objects as go

    marks = lay_out(graph, found.owner, weights.link)
    events = np.bincount(marks.of_node, weights.node, minlength=len(marks.part))
    drawn = go.Figure()
    for name, lines, colour, width in (
        ("link inside a part", marks.line[:, marks.cut_lines :], "150,150,150", 0.6),
        ("cut link", marks.line[:, : marks.cut_lines], "220,30,30", 1.2),
    ):
        x, y = (with_gaps(place[lines]) for place in (marks.x, marks.y))
        strength = min(0.6, max(0.05, _FAINT_LINES / (lines.shape[1] + 1)))
        thin = {"color": f"rgba({colour},{strength:.2f})", "width": width}
        drawn.add_trace(go.Scattergl(x=x, y=y, mode="lines", line=thin, hoverinfo="skip", name=name))
    for part in range(found.parts):
        here, look = np.flatnonzero(marks.part == part), style(part)
        drawn.add_trace(
            go.Scatter(
                x=marks.x[here],
                y=marks.y[here],
                mode="markers",
                name=f"part {part}",
                text=[
                    in_page(f"{mark_name(graph, marks, m)}, part {part}, {events[m]:,.0f} events")
                    for m in here.tolist()
                ],
                hoverinfo="text",
                marker={
                    "color": look.colour,
                    "opacity": 1,
                    "size": np.where(marks.is_switch[here], 9, 6),
                    "symbol": np.where(marks.is_switch[here], _SWITCH + look.mark, _NPU + look.mark),
                },
            )
        )
    axis = {"visible": False}
    title = in_page(_title(graph, found, weights, marks))
    drawn.update_layout(title=title, xaxis=axis, yaxis=axis, plot_bgcolor="white")
    return drawn


def _page(graph: Graph, found: Partition, weights: TrafficWeights, drawn: Any) -> Page:  # noqa: ANN401 - plotly has no types
    """Return the page with the picture."""
    cut = found.owner[graph.link_src] != found.owner[graph.link_dst]
    share = weights.link[cut].sum() / max(int(weights.link.sum()), 1)
    description = (
        f"{int(cut.sum()):,} of {graph.links:,} directions of cables are cut, which {share:.1%} of the packets cross."
    )
    drawn.update_layout(title=None, margin={"t": 10, "b": 10, "l": 10, "r": 10})
    lead = (
        "Each colour is a part, which one worker owns. Links between parts are red: packets on them cost an exchange."
    )
    picture = Plot("the fabric by part", drawn, description, 720)
    title = f"{graph.name}: {found.parts} parts by {found.method}"
    return Page(title, "A partition of the fabric.", [PageSection("partition", "Parts", lead, [picture])])


def _title(graph: Graph, found: Partition, weights: TrafficWeights, marks: Marks) -> str:
    cut = found.owner[graph.link_src] != found.owner[graph.link_dst]
    share = weights.link[cut].sum() / max(int(weights.link.sum()), 1)
    left_out = ", the busiest links only" if marks.line.shape[1] == MAX_LINES else ""
    return f"{graph.name}: {found.parts} parts by {found.method}, {share:.1%} of the packets cross{left_out}"
