"""Joules and dollars of the run, by part."""

from typing import Any

from nadi.insight.runs import Run
from nadi.insight.runs.energy import energy_of
from nadi.reports.pages.page import Fact, Facts, Heading, Listing, PageSection, Paragraph, Part, Plot, Table
from nadi.reports.text import energy as printed

_WHY = {
    "energy": "Of machines and the data centre around them, for the time of the run.",
    "mean power": "Energy over the time of the run.",
    "cost": "GPUs' hours at their rent, or their price over the hours in which they work with electricity.",
    "electricity": "Energy at its price; in the rent where GPUs are rented.",
    "of a step": "Of one optimizer step.",
    "of a million tokens": "Of all that the run trained.",
}
_COLOURS = {"static_J": "#3d8fd1", "per_bit_J": "#ea7200"}


def section(run: Run) -> PageSection:
    """Facts, bars and a table."""
    document = energy_of(run).document()
    lead = "Powers and prices come from a small table that you can replace: docs/explanation/energy.md."
    parts: list[Part] = [Facts([Fact(name, value, _WHY[name]) for name, value in printed.summary(document)])]
    parts += [_plot(document), _table(document)]
    parts += [Paragraph(note) for note in printed.notes(document)]
    used = "\n".join(_lines(document["table"]))
    return PageSection("energy", "Energy and cost", lead, [*parts, Listing("powers and prices that were used", used)])


def _plot(document: dict[str, Any]) -> Plot:
    from plotly import graph_objects as go

    drawn, rows = go.Figure(), document["parts"]
    for key, name in (("static_J", "static"), ("per_bit_J", "for bits")):
        drawn.add_bar(
            y=[row["part"] for row in rows],
            x=[row[key] for row in rows],
            name=name,
            orientation="h",
            marker_color=_COLOURS[key],
            hovertemplate=f"%{{y}}: {name} %{{x:,.4g}} J<extra></extra>",
        )
    drawn.update_layout(barmode="stack", margin={"t": 10, "b": 50, "l": 10, "r": 10}, legend={"traceorder": "normal"})
    drawn.update_xaxes(title_text="J")
    drawn.update_yaxes(autorange="reversed", type="category")
    most = max(rows, key=lambda row: float(row["J"]))
    says = f"{most['part']} takes most, {most['share']:.1%} of {printed.joules_text(document['energy_J'])}."
    return Plot("energy by part (J)", drawn, says, 140 + 24 * len(rows))


def _table(document: dict[str, Any]) -> Table:
    table = printed.parts_table(document)
    headings = [Heading(column.heading, is_text=column.form != "number") for column in table.columns]
    return Table("the same in figures", headings, table.rows)


def _lines(tree: dict[str, Any], path: str = "") -> list[str]:
    """A line for each value, those with a source with it."""
    sources = tree.get("sources", {})
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict) and key != "sources":
            lines += _lines(value | {"sources": sources}, f"{path}{key}.")
        elif key != "sources":
            source = sources.get(f"{path}{key}")
            lines.append(f"{path}{key} = {value}" + (f"  # {source}" if source else ""))
    return lines
