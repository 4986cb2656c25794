"""The section on collectives: their speed by kind and size, against the closed form on an idle network."""

import numpy as np

from nadi.inputs.arrays import Int64
from nadi.inputs.arrow import numpy_column
from nadi.insight.node_times import CollectiveKey, slowest_collectives
from nadi.insight.runs import Run
from nadi.reports.pages.charts import figure, style
from nadi.reports.pages.page import PageSection, Part, Plot, from_terminal
from nadi.reports.text.run import collective_table
from nadi.terminal import in_page

MAX_ROWS = 40  # Number of rows in the table
MAX_POINTS = 3000  # Number of points in the chart


def section(run: Run) -> PageSection:
    """Return the section about collectives: a chart of bus bandwidth over size, and a table.

    Args:
        run: Finished run that the page shows.
    """
    found = slowest_collectives(run.collectives)
    table = collective_table(run.collectives, MAX_ROWS, with_waits=True)
    parts: list[Part] = [_plot(run, found), from_terminal(table)] if found else []
    lead = "Time of each collective against the same steps on an idle network."
    return PageSection("collectives", "Collectives", lead, parts)


def _plot(run: Run, rows_of_key: list[tuple[CollectiveKey, Int64]]) -> Plot:
    """Return a chart of bus bandwidth over size, with the closed forms."""
    bus = numpy_column(run.collectives["busbw_Bps"]) / 1e9
    ratio = numpy_column(run.collectives["ratio"], np.float64)
    closed_ps = numpy_column(run.collectives["closed_form_ps"], np.float64)
    drawn = figure("size (bytes)", "bus bandwidth (GB/s)")
    series = sorted({(key.group, key.kind) for key, _ in rows_of_key})
    for number, (name, kind) in enumerate(series):
        own = [(key.size_bytes, rows) for key, rows in rows_of_key if (key.group, key.kind) == (name, kind)]
        rows = np.concatenate([rows for _, rows in own])
        shown = rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_POINTS // len(series) + 1)).astype(np.int64)]
        look = style(number)
        drawn.add_scatter(
            x=numpy_column(run.collectives["bytes"])[shown],
            y=bus[shown],
            mode="markers",
            name=in_page(f"{name or 'all'} {kind}"),
            marker={"color": look.colour, "symbol": f"circle{look.mark}", "size": 8, "opacity": 0.7},
            customdata=np.stack([np.round(ratio[shown], 3)], axis=1),
            hovertemplate="%{x:.4s}B, %{y:,.4g} GB/s, %{customdata[0]} of closed form<extra>%{fullData.name}</extra>",
        )
        ideal = sorted(((size, rows) for size, rows in own if closed_ps[rows].mean() > 0), key=lambda each: each[0])
        drawn.add_scatter(
            x=[size for size, _ in ideal],
            y=[float(np.mean(bus[rows] * ratio[rows])) for _, rows in ideal],
            mode="markers",
            name=in_page(f"{name or 'all'} {kind}, closed form"),
            marker={"symbol": "line-ew-open", "size": 18, "color": look.colour, "line": {"width": 2}},
            showlegend=False,
        )
    drawn.update_xaxes(type="log", exponentformat="SI")
    drawn.update_yaxes(rangemode="tozero")
    slow = [rows for _, rows in rows_of_key if np.nanmean(ratio[rows]) > 1.05]
    description = "Points are collectives, dashed lines their closed forms on an idle network. In the table below, "
    description += f"{len(slow) or 'no'} {'row is' if len(slow) == 1 else 'rows are'} more than 5 % slower than that."
    return Plot("bus bandwidth over size", drawn, description)
