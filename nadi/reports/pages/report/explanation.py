"""The section on the critical path of the run."""

from nadi.errors import ConfigError
from nadi.insight.explanation import CyclicError, explain
from nadi.insight.runs import Run
from nadi.reports.pages.page import PageSection, Paragraph, Part, from_terminal
from nadi.reports.text.explanation import path_table, what_if_table
from nadi.simulation.schemas import NODES

MAX_ROWS = 15
# Number of trace nodes above which only `nadi explain` analyses the path, because a page is made in seconds
MAX_NODES = 1 << 21
_PATH_WHY = {"activity": "Activity of these pieces of the path.", "share": "Share of the run."}
_CHANGE_WHY = "One component is faster, all others are unchanged; among links, the eight busiest tiers are evaluated."
_PREDICTION = "Predictions neglect changes of overlap and of order: docs/explanation/explain.md."


def section(run: Run) -> PageSection:
    """Return the section about the critical path: its composition, and the changes that would shorten the run."""
    lead = "The critical path: consecutive pieces without gaps from begin to end of the run, across NPUs."
    return PageSection("why", "Why", lead, _parts(run))


def _parts(run: Run) -> list[Part]:
    """Return tables of the critical path and of what-ifs, or the reason why there are none."""
    if not run.has(NODES):
        return [Paragraph('The run kept no trace nodes ([output] nodes = "none"), so its critical path is not known.')]
    if len(run.nodes) > MAX_NODES:
        reason = f"The critical path of a run of {len(run.nodes):,} trace nodes is not on this page"
        return [Paragraph(f"{reason}: nadi explain {run.folder} shows it.")]
    try:
        document = explain(run)
    except (ValueError, CyclicError) as error:
        if not isinstance(error, CyclicError) and getattr(error, "exit_code", None) != ConfigError.exit_code:
            raise
        return [Paragraph(f"The run cannot be explained: {error}")]
    note = f"{document['pieces']:,} pieces on {len(document['npus']):,} NPUs."
    if document["stand_for_others"]:
        note += " Each of these represents all NPUs with the same nodes at the same times."
    return [
        from_terminal(path_table(document, MAX_ROWS), note, _PATH_WHY),
        from_terminal(what_if_table(document), _PREDICTION, {"change": _CHANGE_WHY}),
    ]
