"""The page of `nadi compare A B ...`: metrics, categories of time, collectives and links of several runs."""

from collections.abc import Callable, Sequence
from typing import Any

from nadi.insight.comparison.tables import by_load
from nadi.reports.pages.page import Heading, Page, PageSection, Paragraph, Part, Plot, Table
from nadi.reports.pages.report.step import COLOURS, WHY
from nadi.reports.pages.series import style
from nadi.reports.text import comparison as printed
from nadi.terminal.printing import in_page
from nadi.terminal.readable import buffer_text, time_text, time_unit
from nadi.terminal.tables import FittedTable

MAX_ROWS = 300
"""Number of collectives in the table."""
_MAX_BARS = 25
"""Number of groups of collectives in the chart."""
_MARGIN = {"t": 10, "b": 50, "l": 10, "r": 10}


def page(document: dict[str, Any]) -> Page:
    """Return the page of a document of nadi.insight.comparison.document."""
    runs = document["runs"]
    first = runs[0]["name"]
    names = " / ".join(run["name"] for run in runs)
    lead = f"{len(runs)} runs; {first} is the baseline. Click an underlined term for its explanation."
    overview: list[Part] = [Paragraph(note, is_warning=True) for note in document["notes"]]
    overview += [
        _table(printed.runs_table(document), _names(document)),
        _table(printed.figures_table(document), _names(document), _of_figures(document)),
    ]
    sections = [
        PageSection("figures", "Results", "The metrics of the runs, and their differences.", overview),
        PageSection("settings", "Settings", "Settings that differ between the runs.", _settings(document)),
        PageSection(
            "times",
            "Time by category",
            "Mean over all NPUs of a run; the categories add up to the run.",
            _times(document),
        ),
        PageSection(
            "collectives",
            "Collectives",
            "By group, kind and size, sorted by the change of the time.",
            _collectives(document),
        ),
        PageSection("links", "Links", "Utilisation of tiers and single links.", _links(document)),
    ]
    return Page(names, lead, sections)


def _settings(document: dict[str, Any]) -> list[Part]:
    table = printed.settings_table(document)
    return [_table(table, _names(document))] if table.rows else [Paragraph("All settings are the same.")]


def _of_figures(document: dict[str, Any]) -> str:
    meanings = (f"{printed.label(row['name'])}: {row['meaning']}" for row in document["figures"])
    return "; ".join(meanings) + "."


def _times(document: dict[str, Any]) -> list[Part]:
    from plotly import graph_objects as go

    rows, runs = document["times"]["rows"], document["runs"]
    unit = time_unit(run["finish_time_ps"] for run in runs)
    drawn = go.Figure()
    for row in rows:
        drawn.add_bar(
            y=[in_page(run["name"]) for run in runs],
            x=[time / unit.ps for time in row["time_ps"]],
            name=row["what"],
            orientation="h",
            marker_color=COLOURS.get(row["what"], COLOURS["communication"]),
            hovertemplate=f"%{{y}}: {row['what']} %{{x:,.4g}} {unit.name}<extra></extra>",
        )
    drawn.update_layout(barmode="stack", margin=_MARGIN, legend={"traceorder": "normal"})
    drawn.update_xaxes(title_text=unit.name)
    drawn.update_yaxes(autorange="reversed", type="category")
    moved = max(rows, key=lambda row: max(abs(change) for change in row["change_ps"]), default=None)
    description = f"The largest change is in {moved['what']}." if moved else "No time passed."
    note = " ".join(f"{row['what']}: {WHY[row['what']]}" for row in rows if row["what"] in WHY)
    plot = Plot(f"time of the runs by category ({unit.name})", drawn, description, 150 + 40 * len(runs))
    return [plot, _table(printed.times_table(document), _names(document), note)]


def _collectives(document: dict[str, Any]) -> list[Part]:
    rows = document["collectives"]
    if not rows:
        return []
    drawn = [row for row in rows if any(row["time_ps"])][:_MAX_BARS]
    labels = [in_page(_label(row)) for row in drawn]
    unit = time_unit(time for row in drawn for time in row["time_ps"] if time)
    plot = _bars(document, labels, lambda run: [(row["time_ps"][run] or 0) / unit.ps for row in drawn], unit.name)
    description = f"The {len(drawn):,} groups of collectives with the largest change, of {len(rows):,}."
    title = f"summed time of collectives ({unit.name})"
    names = _names(document)
    headings = [Heading("group", "Name in the traces; the groups of a family share it.", is_text=True)]
    headings += [Heading("kind", is_text=True), Heading("members"), Heading("size")]
    for name in names:
        headings += [
            Heading(f"{name}: count", f"Number of collectives in {name}; the columns to the right are of that run."),
            Heading("median"),
            Heading("waiting"),
            Heading("ratio"),
            Heading("change", f"Change of the summed time from {names[0]}."),
            Heading("algorithm", is_text=True),
        ]
    cells = [_collective_row(row, len(names)) for row in rows[:MAX_ROWS]]
    more = len(rows) - len(cells)
    note = f"and {more:,} more with smaller changes; --json has all" if more else ""
    parts: list[Part] = [
        _table(
            printed.groups_table(document), names, "Sums over all sizes, so that runs with other plans are comparable."
        )
    ]
    parts.append(Plot(title, plot, description, 160 + 18 * len(drawn) * len(names)))
    return [*parts, Table("collectives", headings, cells, note)]


def _collective_row(row: dict[str, Any], runs: int) -> list[str]:
    cells = [row["group"] or "all", row["kind"], f"{row['members']:,}", buffer_text(row["size_bytes"])]
    for run in range(runs):
        count, ratio = row["count"][run], row["ratio"][run]
        if count is None:
            cells += ["-"] * 6
            continue
        times = [time_text(row[name][run]) for name in ("median_ps", "wait_ps")]
        change = printed.change_text(row["change"][run])
        cells += [f"{count:,}", *times, "-" if ratio is None else f"{ratio:.3f}", change, row["algorithm"][run]]
    return cells


def _names(document: dict[str, Any]) -> list[str]:
    return [run["name"] for run in document["runs"]]


def _label(row: dict[str, Any]) -> str:
    return f"{row['group'] or 'all'} {row['kind']} {buffer_text(row['size_bytes'])}"


def _links(document: dict[str, Any]) -> list[Part]:
    tiers = by_load([row for row in document["tiers"] if any(row["tx_bytes"])])
    if not tiers:
        return []
    labels = [in_page(row["tier"]) for row in tiers]
    plot = _bars(document, labels, lambda run: [row["max_utilisation"][run] or 0 for row in tiers], "share of the run")
    plot.update_xaxes(tickformat=".0%")
    most = tiers[0]
    differ = len(set(most["max_utilisation"])) > 1
    description = (
        f"{most['tier']} has the largest change." if differ else "All tiers have equal utilisation in all runs."
    )
    parts: list[Part] = [
        Plot("busiest link by tier", plot, description, 160 + 20 * len(tiers) * len(document["runs"])),
        _table(printed.tiers_table(document), _names(document)),
    ]
    single = printed.links_table(document)
    matched = f"{document['links']['matched']:,} links have the same ends in all runs."
    return [*parts, _table(single, _names(document), matched)] if single.rows else [*parts, Paragraph(matched)]


def _bars(document: dict[str, Any], labels: list[str], values: Callable[[int], list[float]], axis: str) -> Any:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects as go

    drawn = go.Figure()
    for number, run in enumerate(document["runs"]):
        drawn.add_bar(
            y=labels, x=values(number), name=in_page(run["name"]), orientation="h", marker_color=style(number).colour
        )
    drawn.update_layout(barmode="group", margin=_MARGIN, legend={"traceorder": "normal"})
    drawn.update_xaxes(title_text=axis)
    drawn.update_yaxes(autorange="reversed", type="category")
    return drawn


def _table(table: FittedTable, names: Sequence[str], note: str = "") -> Table:
    """Return a table of the terminal as a table of a page; names: names of the runs, which are column headings."""
    why = {name: f"Value of {name}." for name in names} | {f"to {names[0]}": f"Change from {names[0]}."}
    headings = [
        Heading(column.heading, why.get(column.heading, ""), is_text=column.form != "number")
        for column in table.columns
    ]
    return Table(table.title, headings, table.rows, " ".join([note, *table.notes]).strip())
