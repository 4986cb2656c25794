"""The section on collectives: their speed by kind and size, against the closed form on an idle network."""

from typing import NamedTuple

import numpy as np

from et.arrays import Float64, Int64
from nadi.insight.runs import Run
from nadi.reports.pages.charts import figure, style
from nadi.reports.pages.page import Heading, PageSection, Paragraph, Part, Plot, Table
from nadi.terminal.printing import in_page
from nadi.terminal.readable import buffer_text, in_unit, time_unit

MAX_ROWS = 40  # Number of rows in the table
MAX_POINTS = 3000  # Number of points in the chart
# Headings of the columns of texts and of numbers
_TEXTS = ("group", "kind", "algorithm")
_NUMBERS = ("size", "members", "count", "time ({unit})", "waited ({unit})", "closed form ({unit})", "ratio")


class AlikeCollectives(NamedTuple):
    """Collectives with the same group name, kind, size and members; `rows` of the table, the slowest first."""

    name: str
    kind: str
    bytes: int
    members: int
    rows: Int64


def section(run: Run) -> PageSection:
    """Return the section about collectives: a chart of bus bandwidth over size, and a table."""
    found = alike(run)
    parts: list[Part] = [_plot(run, found), _table(run, found)] if found else []
    if len(found) > MAX_ROWS:
        parts.append(Paragraph(f"{len(found) - MAX_ROWS:,} more rows with less time; all are in collectives.parquet."))
    lead = "Time of each collective against the same steps on an idle network."
    return PageSection("collectives", "Collectives", lead, parts)


def alike(run: Run) -> list[AlikeCollectives]:
    """Return the collectives by group name, kind, size and members, sorted by their summed time, the largest first."""
    table = run.collectives
    if not len(table):
        return []
    columns = [np.asarray(table["bytes"]), np.asarray(table["members"])]
    names, name = np.unique(np.array(table["group_name"].to_pylist(), object).astype(str), return_inverse=True)
    kinds, kind = np.unique(np.array(table["kind"].to_pylist(), object).astype(str), return_inverse=True)
    keys, index = np.unique(np.stack([name, kind, *columns], axis=1), axis=0, return_inverse=True)
    index = index.reshape(-1)
    total_ps = np.bincount(index, np.asarray(table["time_ps"], np.float64))
    rows = np.split(np.argsort(index, kind="stable"), np.cumsum(np.bincount(index))[:-1])
    return [
        AlikeCollectives(str(names[keys[of][0]]), str(kinds[keys[of][1]]), int(keys[of][2]), int(keys[of][3]), rows[of])
        for of in np.argsort(-total_ps, kind="stable").tolist()
    ]


def _plot(run: Run, rows_of_table: list[AlikeCollectives]) -> Plot:
    """Return a chart of bus bandwidth over size, with the closed forms."""
    bus = np.asarray(run.collectives["busbw_Bps"]) / 1e9
    ratio = np.asarray(run.collectives["ratio"], np.float64)
    drawn = figure("size (bytes)", "bus bandwidth (GB/s)")
    series = sorted({(each.name, each.kind) for each in rows_of_table})
    for number, (name, kind) in enumerate(series):
        own = [each for each in rows_of_table if (each.name, each.kind) == (name, kind)]
        rows = np.concatenate([each.rows for each in own])
        shown = rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_POINTS // len(series) + 1)).astype(np.int64)]
        look = style(number)
        drawn.add_scatter(
            x=np.asarray(run.collectives["bytes"])[shown],
            y=bus[shown],
            mode="markers",
            name=in_page(f"{name or 'all'} {kind}"),
            marker={"color": look.colour, "symbol": f"circle{look.mark}", "size": 8, "opacity": 0.7},
            customdata=np.stack([np.round(ratio[shown], 3)], axis=1),
            hovertemplate="%{x:.4s}B, %{y:,.4g} GB/s, %{customdata[0]} of closed form<extra>%{fullData.name}</extra>",
        )
        ideal = sorted((each for each in own if _closed_ps(run, each).mean() > 0), key=lambda each: each.bytes)
        expected = [float(np.mean(bus[each.rows] * ratio[each.rows])) for each in ideal]
        drawn.add_scatter(
            x=[each.bytes for each in ideal],
            y=expected,
            mode="markers",
            name=in_page(f"{name or 'all'} {kind}, closed form"),
            marker={"symbol": "line-ew-open", "size": 18, "color": look.colour, "line": {"width": 2}},
            showlegend=False,
        )
    drawn.update_xaxes(type="log", exponentformat="SI")
    drawn.update_yaxes(rangemode="tozero")
    slow = [each for each in rows_of_table if np.nanmean(ratio[each.rows]) > 1.05]
    description = "Points are collectives, dashed lines their closed forms on an idle network. In the table below, "
    description += f"{len(slow) or 'no'} {'row is' if len(slow) == 1 else 'rows are'} more than 5 % slower than that."
    return Plot("bus bandwidth over size", drawn, description)


def _table(run: Run, rows_of_table: list[AlikeCollectives]) -> Table:
    """Return the table of collectives, those with the largest summed time."""
    column = {name: np.asarray(run.collectives[name]) for name in ("time_ps", "start_ps", "ready_ps", "busbw_Bps")}
    algorithms, played = run.collectives["algorithm"].to_pylist(), np.asarray(run.collectives["closed_form_played"])
    shown = rows_of_table[:MAX_ROWS]
    unit = time_unit([float(column["time_ps"][each.rows].mean()) for each in shown])
    headings = [Heading(name, is_text=True) for name in _TEXTS]
    headings += [Heading(name.format(unit=unit.name)) for name in (*_NUMBERS, "busbw (GB/s)")]
    rows = []
    for each in shown:
        time_ps, closed_ps = float(column["time_ps"][each.rows].mean()), float(_closed_ps(run, each).mean())
        waited_ps = float((column["ready_ps"] - column["start_ps"])[each.rows].mean())
        about = "" if played[each.rows].all() else "~"
        names = each.name or "all", each.kind, algorithms[int(each.rows[0])]
        counts = buffer_text(each.bytes), f"{each.members:,}", f"{len(each.rows):,}"
        times = in_unit(time_ps, unit), in_unit(waited_ps, unit), f"{about}{in_unit(closed_ps, unit)}"
        ratio = f"{about}{time_ps / closed_ps:.3f}" if closed_ps > 0 else "-"
        bus_gbps = float(column["busbw_Bps"][each.rows].mean()) / 1e9
        rows.append([*names, *counts, *times, ratio, f"{bus_gbps:,.2f}"])
    return Table("collectives by summed time", headings, rows)


def _closed_ps(run: Run, each: AlikeCollectives) -> Float64:
    return np.asarray(run.collectives["closed_form_ps"], np.float64)[each.rows]
