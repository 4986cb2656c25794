"""What the network did: links by tier, queues, pauses, completion times."""

from nadi.insight.analysis.network import read_run
from nadi.insight.analysis.network_findings import document
from nadi.insight.runs import Run
from nadi.reports.pages import network
from nadi.reports.pages.page import Section


def section(run: Run) -> Section:
    """The pictures of `nadi net DIR`; nothing where the model of the network knows of no links."""
    lead = "Which links were busy, where packets waited, what was paused, and how long messages took."
    if run.summary.get("network") == "closed-form":
        return Section("network", "Network", lead, [])
    found = read_run(run.folder)
    return Section("network", "Network", lead, network.parts(found, document(found)))
