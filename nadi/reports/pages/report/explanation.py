"""The section on the critical path of the run."""

from nadi.errors import ConfigError
from nadi.insight.explanation.dag import CyclicError
from nadi.insight.explanation.document import explain
from nadi.insight.runs import Run
from nadi.reports.pages.page import Heading, PageSection, Paragraph, Part, Table
from nadi.simulation.schemas import NODES
from nadi.terminal.readable import in_unit, time_text, time_unit

MAX_ROWS = 15
MAX_NODES = 1 << 21
"""Number of trace nodes above which only `nadi explain` analyses the path, because a page is made in seconds."""
_CHANGE_WHY = "One component is faster, all others are unchanged; among links, the eight busiest tiers are evaluated."


def section(run: Run) -> PageSection:
    """Return the composition of the critical path, and the changes that would shorten the run."""
    title, lead = (
        "Why",
        "The critical path: consecutive pieces without gaps from begin to end of the run, across NPUs.",
    )
    return PageSection("why", title, lead, _parts(run))


def _parts(run: Run) -> list[Part]:
    if not run.has(NODES):
        return [Paragraph('The run kept no trace nodes ([output] nodes = "none"), so its critical path is not known.')]
    if len(run.nodes) > MAX_NODES:
        why = f"The critical path of a run of {len(run.nodes):,} trace nodes is not on this page"
        return [Paragraph(f"{why}: nadi explain {run.folder} shows it.")]
    try:
        found = explain(run)
    except (ValueError, CyclicError) as error:
        if not isinstance(error, CyclicError) and getattr(error, "exit_code", None) != ConfigError.exit_code:
            raise
        return [Paragraph(f"The run cannot be explained: {error}")]
    unit = time_unit(row["time_ps"] for row in found["by_what"])
    headings = [
        Heading("activity", "Activity of these pieces of the path.", is_text=True),
        Heading("operation", is_text=True),
        Heading("pieces"),
        Heading(f"time ({unit.name})", "Time on the path."),
        Heading("share", "Share of the run."),
        Heading("main bound", is_text=True),
    ]
    rows = [
        [
            row["what"],
            row["sort"],
            f"{row['count']:,}",
            in_unit(row["time_ps"], unit),
            f"{row['share']:.1%}",
            row["bound"],
        ]
        for row in found["by_what"][:MAX_ROWS]
    ]
    note = f"{found['pieces']:,} pieces on {len(found['npus']):,} NPUs."
    if found["stand_for_others"]:
        note += " Each of these represents all NPUs with the same nodes at the same times."
    if_headings = [Heading("change", _CHANGE_WHY, is_text=True), Heading("predicted time"), Heading("saving")]
    ifs = [[row["change"], time_text(row["finish_time_ps"]), f"{row['gain']:.2%}"] for row in found["what_if"]]
    return [
        Table("composition of the critical path", headings, rows, note),
        Table(
            "what if",
            if_headings,
            ifs,
            "Predictions neglect changes of overlap and of order: docs/explanation/explain.md.",
        ),
    ]
