"""Why the run took as long as it did, on the page of a run."""

from nadi.errors import ConfigError
from nadi.insight.explanation.dag import CyclicError
from nadi.insight.explanation.document import explain
from nadi.insight.runs import Run
from nadi.reports.pages.page import Heading, PageSection, Paragraph, Part, Table
from nadi.simulation.schemas import NODES
from nadi.terminal.readable import in_unit, time_text, time_unit

MOST_ROWS = 15
MOST_NODES = 1 << 21
"""Of runs with more `nadi explain` tells it: a page is made in seconds."""
_CHANGE_WHY = "One thing is faster, all else is as it was; of links the eight busiest tiers are asked about."


def section(run: Run) -> PageSection:
    """The critical path by what it is made of, and what would make the run shorter."""
    title, lead = (
        "Why",
        "The critical path: pieces that follow each other without a gap from begin to end, across NPUs.",
    )
    return PageSection("why", title, lead, _parts(run))


def _parts(run: Run) -> list[Part]:
    if not run.has(NODES):
        return [Paragraph('The run kept no trace nodes ([output] nodes = "none"), so that no path is known.')]
    if len(run.nodes) > MOST_NODES:
        why = f"The critical path of a run of {len(run.nodes):,} trace nodes is not on this page"
        return [Paragraph(f"{why}: nadi explain {run.folder} tells it.")]
    try:
        found = explain(run)
    except (ValueError, CyclicError) as error:
        if not isinstance(error, CyclicError) and getattr(error, "exit_code", None) != ConfigError.exit_code:
            raise
        return [Paragraph(f"The run cannot be explained: {error}")]
    unit = time_unit(row["time_ps"] for row in found["by_what"])
    headings = [
        Heading("what", "What happens in these pieces of the path.", is_text=True),
        Heading("sort", is_text=True),
        Heading("pieces"),
        Heading(f"time ({unit.name})", "On the path."),
        Heading("share", "Of the run."),
        Heading("most of it bound by", is_text=True),
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
        for row in found["by_what"][:MOST_ROWS]
    ]
    note = f"{found['pieces']:,} pieces on {len(found['npus']):,} NPUs."
    if found["stand_for_others"]:
        note += " Each of these stands for all NPUs that do the same at the same times."
    if_headings = [Heading("change", _CHANGE_WHY, is_text=True), Heading("the run would take"), Heading("saves")]
    ifs = [[row["change"], time_text(row["finish_time_ps"]), f"{row['gain']:.2%}"] for row in found["what_if"]]
    return [
        Table("what the critical path is made of", headings, rows, note),
        Table("what if", if_headings, ifs, "Overlap and order stay as they are: docs/explanation/explain.md."),
    ]
