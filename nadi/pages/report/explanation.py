"""Why the run took as long as it did, on the page of a run."""

from nadi.errors import ConfigError
from nadi.explanation.dag import CyclicError
from nadi.explanation.document import explain
from nadi.pages.page import Heading, Part, Section, Table, Words
from nadi.runs import Run
from nadi.schemas import NODES
from nadi.terminal.readable import in_unit, time_text, time_unit

MOST_ROWS = 15
MOST_NODES = 1_000_000
MOST_MESSAGES = 1_000_000
"""Of runs with more than either `nadi explain` tells it: a page is made in seconds."""


def section(run: Run) -> Section:
    """The critical path by what it is made of, and what would make the run shorter."""
    title, lead = (
        "Why",
        "The critical path: pieces that follow each other without a gap from begin to end, across NPUs.",
    )
    return Section("why", title, lead, _parts(run))


def _parts(run: Run) -> list[Part]:
    if not run.has(NODES) or run.summary.get("flows", 0) > MOST_MESSAGES or len(run.nodes) > MOST_NODES:
        why = "This run is large, or kept no trace nodes, so that the critical path is not on this page."
        return [Words(f"{why} nadi explain {run.folder} tells it where there are nodes.")]
    try:
        found = explain(run)
    except (ValueError, CyclicError) as error:
        if not isinstance(error, CyclicError) and getattr(error, "exit_code", None) != ConfigError.exit_code:
            raise
        return [Words(f"The run cannot be explained: {error}")]
    unit = time_unit(row["time_ps"] for row in found["by_what"])
    headings = [
        Heading("what", "What happens in these pieces of the path.", is_text=True),
        Heading("sort", "Pieces that are alike.", is_text=True),
        Heading("pieces"),
        Heading(f"time ({unit.name})", "On the path."),
        Heading("share", "Of the run."),
        Heading(
            "most of it bound by", "What kept the communication from being shorter: docs/explain.md.", is_text=True
        ),
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
    if_headings = [
        Heading("change", is_text=True),
        Heading("the run would take", "Told from dependencies and closed forms, not simulated again."),
        Heading("saves", "Of the run."),
    ]
    ifs = [[row["change"], time_text(row["finish_time_ps"]), f"{row['gain']:.2%}"] for row in found["what_if"]]
    return [
        Table("what the critical path is made of", headings, rows, note),
        Table("what if", if_headings, ifs, "Changes of overlap and of order are not told: docs/explain.md."),
    ]
