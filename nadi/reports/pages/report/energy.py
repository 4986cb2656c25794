"""The section on energy and cost: joules and dollars of the run, by part."""

from typing import Any

from nadi.insight.runs import Run, energy_of
from nadi.reports.pages.charts import bars
from nadi.reports.pages.page import Fact, Facts, Listing, PageSection, Paragraph, Part, Plot, from_terminal
from nadi.reports.text import energy as printed

_WHY = {
    "energy": "Energy of the machines and of the data centre's overhead during the run.",
    "mean power": "Energy over the time of the run.",
    "cost": "GPU hours at their rent; for owned GPUs, their price over their working life, plus electricity.",
    "electricity": "Cost of the energy; for rented GPUs, part of the rent.",
    "network": "Purchase price of the ports that the run is charged for, spread over their working life.",
    "per step": "Energy and cost of one optimizer step.",
    "per million tokens": "Energy and cost of a million training tokens.",
}


def section(run: Run) -> PageSection | None:
    """Return the section about energy and cost: facts, a chart and a table. None if the NPUs only send messages.

    Args:
        run: Finished run that the page shows.
    """
    if run.has_only_messages:
        return None
    document = energy_of(run).document()
    lead = "Powers and prices come from a small table that you can replace: docs/explanation/energy.md."
    parts: list[Part] = [Facts([Fact(name, value, _WHY[name]) for name, value in printed.summary(document)])]
    rows = document["parts"]
    energies = {"static": [row["static_J"] for row in rows], "for bits": [row["per_bit_J"] for row in rows]}
    drawn = bars([row["part"] for row in rows], energies, ("#3d8fd1", "#ea7200"), "J")
    largest, total = max(rows, key=lambda row: float(row["J"])), printed.joules_text(document["energy_J"])
    description = f"{largest['part']} has the largest share, {largest['share']:.1%} of {total}."
    parts += [
        Plot("energy by part (J)", drawn, description, 140 + 24 * len(rows)),
        from_terminal(printed.parts_table(document)),
    ]
    parts += [from_terminal(printed.jobs_table(document))] if document.get("jobs") else []
    parts += [Paragraph(note) for note in printed.notes(document)]
    used = "\n".join(_lines(document["table"]))
    return PageSection("energy", "Energy and cost", lead, [*parts, Listing("powers and prices", used)])


def _lines(tree: dict[str, Any], path: str = "") -> list[str]:
    """Return a line per value of the table, with its source if it has one."""
    sources = tree.get("sources", {})
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict) and key != "sources":
            lines += _lines(value | {"sources": sources}, f"{path}{key}.")
        elif key != "sources":
            source = sources.get(f"{path}{key}")
            lines.append(f"{path}{key} = {value}" + (f"  # {source}" if source else ""))
    return lines
