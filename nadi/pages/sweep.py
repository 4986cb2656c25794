"""The page of a sweep of `nadi collective`: bus bandwidth and time over size, and who wins where. Needs plotly."""

from itertools import pairwise
from typing import Any

from inputs import shown as as_shown
from nadi.analysis.node_times import bus_factor
from nadi.pages.series import Style, style
from nadi.reports.sweep import sweep_table, winners_table
from nadi.sweeps.microbench import listed
from nadi.sweeps.sweep import Sweep
from nadi.terminal.printing import in_page
from nadi.terminal.readable import size_text

_MOST_TICKS = 16
_PS_PER_US = 1e6
_B_PS_PER_GB_S = 1e3
"""Bytes per picosecond to gigabytes per second."""


def render(sweep: Sweep) -> str:
    """The page as HTML that stands alone; of a barrier, which has no sizes, without pictures."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nadi", "templates/collective"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    picture = figure(sweep).to_html(full_html=False, include_plotlyjs=True) if _has_sizes(sweep) else ""
    network = {key: value for key, value in sweep.network.model_dump(mode="json").items() if value not in (None, {})}
    return environment.get_template("page.html.j2").render(
        sweep=sweep,
        winners=winners_table(sweep),
        table=sweep_table(sweep),
        left_out=listed(sweep.left_out),
        picture=picture,
        network=network,
        colours={name: look.colour for name, look in styles(sweep).items()},
    )


def _plain(value: object) -> object:
    """Text of others without control characters and broken bytes; HTML of ours as it is."""
    return as_shown(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def figure(sweep: Sweep) -> Any:  # noqa: ANN401 - plotly has no types
    """Bus bandwidth, and below it time, over size as a plotly Figure; closed forms dashed, winners' bands behind."""
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    drawn = make_subplots(rows=2, cols=1, vertical_spacing=0.08, subplot_titles=("bus bandwidth", "time"))
    factor = bus_factor(sweep.kind, sweep.npus)
    for algorithm, look in styles(sweep).items():
        own = sorted((row for row in sweep.rows if row.algorithm == algorithm), key=lambda row: row.bytes)
        sizes = [row.bytes for row in own]
        closed = [row for row in own if row.closed_form_ps > 0]
        closed_GB_s = [row.bytes / row.closed_form_ps * _B_PS_PER_GB_S * factor for row in closed]  # noqa: N806 - bytes
        closed_us = [row.closed_form_ps / _PS_PER_US for row in closed]
        for place, measured, expected in (
            (1, [row.busbw_Bps / 1e9 for row in own], closed_GB_s),
            (2, [row.time_ps / _PS_PER_US for row in own], closed_us),
        ):
            shown = {"legendgroup": algorithm, "showlegend": place == 1}
            line = go.Scatter(
                x=sizes,
                y=measured,
                name=in_page(algorithm),
                mode="lines+markers",
                line={"color": look.colour, "dash": look.dash},
                marker={"symbol": f"circle{look.mark}"},
                **shown,
            )
            dashed = go.Scatter(
                x=[row.bytes for row in closed],
                y=expected,
                name=f"{in_page(algorithm)}, closed form",
                mode="lines",
                line={"color": look.colour, "dash": look.expected_dash},
                **shown,
            )
            drawn.add_trace(line, row=place, col=1)
            drawn.add_trace(dashed, row=place, col=1)
    for left, right, algorithm in band_edges(sweep):
        band = {"fillcolor": styles(sweep)[algorithm].colour, "opacity": 0.08, "line_width": 0, "layer": "below"}
        drawn.add_vrect(x0=left, x1=right, row="all", col=1, **band)
    sizes = sorted({row.bytes for row in sweep.rows if row.bytes > 0})
    sizes = sizes[:: -(-len(sizes) // _MOST_TICKS)]
    ticks = {"tickvals": sizes, "ticktext": [size_text(size) for size in sizes]}
    drawn.update_xaxes(type="log", title_text="size", **ticks, row=2, col=1)
    drawn.update_xaxes(type="log", **ticks, row=1, col=1)
    drawn.update_yaxes(title_text="GB/s", rangemode="tozero", row=1, col=1)
    drawn.update_yaxes(title_text="µs", type="log", row=2, col=1)
    drawn.update_layout(height=1000, plot_bgcolor="white", hovermode="x unified")
    return drawn


def band_edges(sweep: Sweep) -> list[tuple[float, float, str]]:
    """From where to where each winner's band is drawn: neighbours meet halfway between their sizes, on a log axis."""
    bands = sweep.winners()
    meet = [(before.to_bytes * after.from_bytes) ** 0.5 for before, after in pairwise(bands)]
    lefts, rights = [float(bands[0].from_bytes), *meet], [*meet, float(bands[-1].to_bytes)]
    return [(left, right, band.algorithm) for left, right, band in zip(lefts, rights, bands, strict=True)]


def styles(sweep: Sweep) -> dict[str, Style]:
    """How each algorithm looks, in the order of the rows."""
    names = dict.fromkeys(row.algorithm for row in sweep.rows)
    return {name: style(number) for number, name in enumerate(names)}


def _has_sizes(sweep: Sweep) -> bool:
    return any(row.bytes > 0 for row in sweep.rows)
