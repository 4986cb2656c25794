"""A picture of a partition: nodes coloured by part, links between parts highlighted."""

from pathlib import Path

import numpy as np

from nadi import inputs
from nadi.errors import ConfigError, OutputError
from nadi.partition import Partition, TrafficWeights
from nadi.reports.pages import charts
from nadi.reports.pages.charts import Plotly
from nadi.reports.pages.page import Page, PageSection, Plot
from nadi.reports.pages.places import MAX_LINES, lay_out, mark_name, with_gaps
from nadi.terminal import in_page
from nadi.topologies import Graph

_FORMATS = (".html", ".png")
_FAINT_LINES = 1500  # number of lines above which lines are drawn fainter
_NPU, _SWITCH = "circle", "square"


def check_plot(path: Path) -> None:
    """Check before the work whether a plot can be written: as .html or .png.

    Args:
        path: File to write.
    """
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--plot {path}: found {path.suffix or 'no ending'!r}; expected a file .html or .png")


def write_plot(path: Path, graph: Graph, partition: Partition, weights: TrafficWeights) -> None:
    """Write a picture of a partition; an HTML file needs no other files.

    Args:
        path: File to write.
        graph: The fabric (`Graph`).
        partition: Division of the fabric to draw.
        weights: Expected work of nodes and links.
    """
    check_plot(path)
    drawn = figure(graph, partition, weights)
    try:
        if path.suffix.lower() == ".html":
            inputs.write_whole(path, _page(graph, partition, weights, drawn).html())
        else:
            inputs.write_whole(path, drawn.to_image(path.suffix[1:], width=1600, height=900))
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}; expected a file to write the plot to") from None
    except (ImportError, RuntimeError, ValueError) as error:  # whatever kaleido lacks
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"--plot {path}: {reason}; expected pip install kaleido and a browser, or .html") from None


def figure(graph: Graph, partition: Partition, weights: TrafficWeights) -> Plotly:
    """Return the picture of a partition.

    Args:
        graph: The fabric (`Graph`).
        partition: Division of the fabric to draw.
        weights: Expected work of nodes and links.
    """
    marks = lay_out(graph, partition.owner, weights.link)
    events = np.bincount(marks.of_node, weights.node, minlength=len(marks.part))
    drawn = charts.figure()
    for name, lines, colour, width in (
        ("link inside a part", marks.line[:, marks.cut_lines :], "150,150,150", 0.6),
        ("cut link", marks.line[:, : marks.cut_lines], "220,30,30", 1.2),
    ):
        x, y = (with_gaps(place[lines]) for place in (marks.x, marks.y))
        # many lines must be faint, or they cover everything
        strength = min(0.6, max(0.05, _FAINT_LINES / (lines.shape[1] + 1)))
        thin = {"color": f"rgba({colour},{strength:.2f})", "width": width}
        drawn.add_scattergl(x=x, y=y, mode="lines", line=thin, hoverinfo="skip", name=name)
    for part in range(partition.parts):
        own, look = np.flatnonzero(marks.part == part), charts.style(part)
        is_switch = marks.is_switch[own]
        symbols = np.where(is_switch, _SWITCH + look.mark, _NPU + look.mark)
        labels = (f"{mark_name(graph, marks, m)}, part {part}, {events[m]:,.0f} events" for m in own.tolist())
        drawn.add_scatter(
            x=marks.x[own],
            y=marks.y[own],
            mode="markers",
            name=f"part {part}",
            text=[in_page(label) for label in labels],
            hoverinfo="text",
            marker={"color": look.colour, "opacity": 1, "size": np.where(is_switch, 9, 6), "symbol": symbols},
        )
    left_out = ", the busiest links only" if marks.line.shape[1] == MAX_LINES else ""
    title = f"{_title(graph, partition)}, {_cut(graph, partition, weights)[1]:.1%} of the packets cross{left_out}"
    axis = {"visible": False}
    drawn.update_layout(title=in_page(title), xaxis=axis, yaxis=axis, plot_bgcolor="white", margin={"t": 100})
    return drawn


def _page(graph: Graph, partition: Partition, weights: TrafficWeights, picture: Plotly) -> Page:
    """Return the page with the picture of a partition."""
    links, share = _cut(graph, partition, weights)
    description = f"{links:,} of {graph.links:,} directions of cables are cut, which {share:.1%} of the packets cross."
    picture.update_layout(title=None, margin={"t": 10})
    lead = (
        "Each colour is a part, which one worker owns. Links between parts are red: packets on them cost an exchange."
    )
    plot = Plot("the fabric by part", picture, description, 720)
    section = PageSection("partition", "Parts", lead, [plot])
    return Page(_title(graph, partition), "A partition of the fabric.", [section])


def _title(graph: Graph, found: Partition) -> str:
    return f"{graph.name}: {found.parts} parts by {found.method}"


def _cut(graph: Graph, partition: Partition, weights: TrafficWeights) -> tuple[int, float]:
    """Return the number of links between parts, and the share of all packets that cross them."""
    cut = partition.owner[graph.link_src] != partition.owner[graph.link_dst]
    return int(cut.sum()), weights.link[cut].sum() / max(int(weights.link.sum()), 1)
