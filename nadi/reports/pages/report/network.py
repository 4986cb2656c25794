"""The section on the network: links by tier, queues, pauses, completion times."""

from nadi.insight.analysis.network import document, read_run
from nadi.insight.runs import Run
from nadi.reports.pages import network
from nadi.reports.pages.page import PageSection


def section(run: Run) -> PageSection:
    """Return the charts of `nadi net DIR`; no parts if the network model has no links."""
    lead = "Utilisation of links, queues, pauses, and completion times of messages."
    if run.summary.get("network") == "closed-form":
        return PageSection("network", "Network", lead, [])
    found = read_run(run.folder)
    return PageSection("network", "Network", lead, network.parts(found, document(found)))
