"""The document that `nadi net` shows of a run: for JSON, the terminal and the page."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.insight.analysis.network import (
    MAX_PAUSES,
    NetRun,
    PauseBranch,
    Pauses,
    Table,
    causes,
    completion,
    find_pauses,
    most,
    root_links,
    spread,
    victims,
)

MAX_LINKS = 10
MAX_TREES = 5
MAX_VICTIMS = 20  # numbers of links per ranking, of trees and of delayed messages in the document
COLUMNS = {
    "utilisation": "busiest links",
    "marked_packets": "links with most marked packets",
    "paused_ps": "links paused longest",
    "dropped_packets": "links with most dropped packets",
    "trimmed_packets": "links with most trimmed packets",
}
"""Columns of links.parquet that rank links, and the headings of these rankings."""


def document(run: NetRun) -> dict[str, Any]:
    """Return links, completion times, spreading pauses and delayed messages as a JSON document."""
    return {
        "topology": run.summary.get("topology"),
        "finish_time_ps": run.summary.get("finish_time_ps"),
        "links": {column: most(run.links, column, MAX_LINKS) for column in COLUMNS},
        "messages": completion(run.flows) if run.flows else None,
        **_pauses(run),
    }


def _pauses(run: NetRun) -> dict[str, Any]:
    """Return the trees of pauses and the delayed messages, or the reason why there are no such rows."""
    if run.pauses is None:
        paused = run.links.get("paused_ps")
        why = "no pauses.parquet" if paused is not None and paused.any() else "nothing was paused"
        return {"pauses": 0, "trees": [], "victims": None, "why_no_victims": why}
    pauses = find_pauses(run.pauses, int(run.summary.get("finish_time_ps", 0)))
    found = len(pauses.link)
    pauses = Pauses(*(column[:MAX_PAUSES] for column in pauses))
    roots = spread(pauses, causes(pauses, run.links), run.links)
    congested = root_links(roots, run.links)
    return {
        "pauses": found,
        "pauses_looked_at": len(pauses.link),
        "roots": len(roots),
        "trees": [_tree(root, run.links) for root in roots[:MAX_TREES]],
        "congested_links": [run.links["name"][link] for link in congested.tolist()],
        **_victims(run, pauses, congested),
    }


def _tree(root: PauseBranch, links: Table) -> dict[str, Any]:
    """Return a tree, with the congested ports of its root."""
    congested = [links["name"][link] for link in root_links([root], links).tolist()]
    return {"links": root.size(), "whole_paused_ps": root.whole_ps(), "congested": congested, **root.as_dict()}


def _victims(run: NetRun, pauses: Pauses, congested: NDArray[np.int64]) -> dict[str, Any]:
    why = run.why_no_graph if run.graph is None else "no flows.parquet" if run.flows is None else ""
    if run.graph is None or run.flows is None:
        return {"victims": None, "why_no_victims": why}
    found = victims(run.graph, run.flows, pauses, congested)
    rows = [
        {
            "src": int(run.flows["src"][victim.row]),
            "dst": int(run.flows["dst"][victim.row]),
            "bytes": int(run.flows["bytes"][victim.row]),
            "start_ps": int(run.flows["start_ps"][victim.row]),
            "slowdown": None if math.isnan(victim.slowdown) else victim.slowdown,
            "paused_ps": victim.paused_ps,
            "link": run.links["name"][victim.link],
            "sure": victim.is_sure,
        }
        for victim in found[:MAX_VICTIMS]
    ]
    return {"victims_found": len(found), "victims": rows}
