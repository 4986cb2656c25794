"""The page of `nadi compare A B ...`: metrics, categories of time, collectives and links of several runs."""

from typing import Any

from nadi.insight.comparison import by_load
from nadi.reports.pages.charts import Plotly, bars, style
from nadi.reports.pages.page import (
    Heading,
    Page,
    PageSection,
    Paragraph,
    Part,
    Plot,
    Table,
    explanations,
    from_terminal,
)
from nadi.reports.pages.report.step import COLOURS
from nadi.reports.text import comparison as printed
from nadi.terminal import FittedTable, buffer_text, time_text, time_unit

MAX_ROWS = 300  # Number of collectives in the table
_MAX_BARS = 25  # Number of groups of collectives in the chart


def page(document: dict[str, Any]) -> Page:
    """Return the page of a document of nadi.insight.comparison."""
    names = _names(document)
    lead = f"{len(names)} runs; {names[0]} is the baseline. Click an underlined term for its explanation."
    overview: list[Part] = [Paragraph(note, is_warning=True) for note in document["notes"]]
    meanings = (f"{printed.label(row['name'])}: {row['meaning']}" for row in document["figures"])
    overview.append(_table(document, printed.runs_table(document)))
    overview.append(_table(document, printed.figures_table(document), "; ".join(meanings) + "."))
    more = [table for table in (printed.jobs_table(document), printed.losses_table(document)) if table.rows]
    overview += [_table(document, table) for table in more]
    settings = printed.settings_table(document)
    difference = _table(document, settings) if settings.rows else Paragraph("All settings are the same.")
    of_times = "Mean over all NPUs of a run; the categories add up to the run."
    of_collectives = "By group, kind and size, sorted by the change of the time."
    sections = [
        PageSection("figures", "Results", "The metrics of the runs, and their differences.", overview),
        PageSection("settings", "Settings", "Settings that differ between the runs.", [difference]),
        PageSection("times", "Time by category", of_times, _times(document)),
        PageSection("collectives", "Collectives", of_collectives, _collectives(document)),
        PageSection("links", "Links", "Utilisation of tiers and single links.", _links(document)),
    ]
    return Page(" / ".join(names), lead, sections)


def _times(document: dict[str, Any]) -> list[Part]:
    """Return chart and table of the time by category, none if the runs have no categories."""
    rows, names = document["times"]["rows"], _names(document)
    if not rows:
        return []
    unit = time_unit(run["finish_time_ps"] for run in document["runs"])
    times = {row["what"]: [time / unit.ps for time in row["time_ps"]] for row in rows}
    drawn = bars(names, times, [COLOURS.get(name, COLOURS["communication"]) for name in times], unit.name)
    moved = max(rows, key=lambda row: max(abs(change) for change in row["change_ps"]))
    description = f"The largest change is in {moved['what']}."
    known = explanations()
    note = " ".join(f"{name}: {known[name]}" for name in times if name in known)
    plot = Plot(f"time of the runs by category ({unit.name})", drawn, description, 150 + 40 * len(names))
    return [plot, _table(document, printed.times_table(document), note)]


def _collectives(document: dict[str, Any]) -> list[Part]:
    """Return a chart and tables of collectives, none if there are none."""
    rows, names = document["collectives"], _names(document)
    if not rows:
        return []
    drawn = [row for row in rows if any(row["time_ps"])][:_MAX_BARS]
    labels = [f"{row['group'] or 'all'} {row['kind']} {buffer_text(row['size_bytes'])}" for row in drawn]
    unit = time_unit(time for row in drawn for time in row["time_ps"] if time)
    times = [[(row["time_ps"][run] or 0) / unit.ps for row in drawn] for run in range(len(names))]
    description = f"The {len(drawn):,} groups of collectives with the largest change, of {len(rows):,}."
    title, height = f"summed time of collectives ({unit.name})", 160 + 18 * len(drawn) * len(names)
    note = "Sums over all sizes, so that runs with other plans are comparable."
    return [
        _table(document, printed.groups_table(document), note),
        Plot(title, _bars(document, labels, times, unit.name), description, height),
        _collectives_table(document),
    ]


def _collectives_table(document: dict[str, Any]) -> Table:
    """Return the table of collectives by group, kind and size, with six columns per run."""
    rows, names = document["collectives"], _names(document)
    headings = [Heading("group", "Name in the traces; the groups of a family share it.", is_text=True)]
    headings += [Heading("kind", is_text=True), Heading("members"), Heading("size")]
    for name in names:
        headings += [
            Heading(f"{name}: count", f"Number of collectives in {name}; the columns to the right are of that run."),
            *(Heading("median"), Heading("waiting"), Heading("ratio")),
            Heading("change", f"Change of the summed time from {names[0]}."),
            Heading("algorithm", is_text=True),
        ]
    cells = [_collective_cells(row, len(names)) for row in rows[:MAX_ROWS]]
    more = len(rows) - len(cells)
    note = f"and {more:,} more with smaller changes; --json has all" if more else ""
    return Table("collectives", headings, cells, note)


def _collective_cells(collective: dict[str, Any], num_runs: int) -> list[str]:
    """Return the cells of a row of the table of collectives."""
    cells = [
        collective["group"] or "all",
        collective["kind"],
        f"{collective['members']:,}",
        buffer_text(collective["size_bytes"]),
    ]
    for run in range(num_runs):
        count, ratio = collective["count"][run], collective["ratio"][run]
        if count is None:
            cells += ["-"] * 6
            continue
        times = [time_text(collective[name][run]) for name in ("median_ps", "wait_ps")]
        change = printed.change_text(collective["change"][run])
        cells += [f"{count:,}", *times, "-" if ratio is None else f"{ratio:.3f}", change, collective["algorithm"][run]]
    return cells


def _links(document: dict[str, Any]) -> list[Part]:
    """Return a chart of tiers, and tables of tiers and links."""
    tiers = by_load([row for row in document["tiers"] if any(row["tx_bytes"])])
    if not tiers:
        return []
    busy = [[row["max_utilisation"][run] or 0 for row in tiers] for run in range(len(document["runs"]))]
    plot = _bars(document, [row["tier"] for row in tiers], busy, "share of the run")
    plot.update_xaxes(tickformat=".0%")
    description = "All tiers have equal utilisation in all runs."
    if len(set(tiers[0]["max_utilisation"])) > 1:
        description = f"{tiers[0]['tier']} has the largest change."
    parts: list[Part] = [
        Plot("busiest link by tier", plot, description, 160 + 20 * len(tiers) * len(document["runs"])),
        _table(document, printed.tiers_table(document)),
    ]
    links = printed.links_table(document)
    matched = f"{document['links']['matched']:,} links have the same ends in all runs."
    return [*parts, _table(document, links, matched) if links.rows else Paragraph(matched)]


def _bars(document: dict[str, Any], labels: list[str], values: list[list[float]], unit: str) -> Plotly:
    """Return bars with a series per run beside each other; values: values by run and label."""
    names = _names(document)
    colours = [style(number).colour for number in range(len(names))]
    return bars(labels, dict(zip(names, values, strict=True)), colours, unit, "group")


def _table(document: dict[str, Any], table: FittedTable, note: str = "") -> Table:
    """Return a table of the terminal as a table of a page; names of runs are column headings."""
    first, *_ = names = _names(document)
    return from_terminal(
        table, note, {name: f"Value of {name}." for name in names} | {f"to {first}": f"Change from {first}."}
    )


def _names(document: dict[str, Any]) -> list[str]:
    return [run["name"] for run in document["runs"]]
