"""What the network did: links by tier, queues, pauses, completion times."""

from nadi.insight.analysis.network import read_run
from nadi.insight.analysis.network_findings import document
from nadi.insight.runs import Run
from nadi.reports.pages import network
from nadi.reports.pages.page import PageSection


def section(run: Run) -> PageSection:
    """The pictures of `nadi net DIR`; nothing where the model of the network knows of no links."""
    lead = "Which links were busy, where packets waited, what was paused, and how long messages took."
    if run.summary.get("network") == "closed-form":
        return PageSection("network", "Network", lead, [])
    found = read_run(run.folder)
    return PageSection("network", "Network", lead, network.parts(found, document(found)))
