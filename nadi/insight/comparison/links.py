"""Comparison of the links of runs: by tier, and one by one where all fabrics have them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.insight.analysis.network import tiers as tiers_of
from nadi.insight.comparison.changes import size
from nadi.insight.runs import Run
from nadi.simulation.schemas import LINKS

_SUMS = ("tx_bytes", "dropped_packets", "marked_packets", "pause_frames", "paused_ps")
_OF_LINK = ("rate_bps", "tx_bytes", "utilisation", "max_queue_bytes", "dropped_packets", "paused_ps")
Link = tuple[str, str, int]  # names of the source and the destination, and the index among parallel links between them


def knows_links(run: Run) -> bool:
    """Return whether the run's network model has links that carried packets or messages."""
    return run.has(LINKS) and len(run.links) > 0 and run.summary.get("network") != "closed-form"


def tiers(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row per tier ("npu → leaf") that any run has; lists have a value per run, None where it is missing."""
    found = [_by_tier(run) if knows_links(run) else {} for run in runs]
    rows = []
    for tier in dict.fromkeys(tier for each in found for tier in each):
        of_run = [each.get(tier) for each in found]
        names = ("links", "rate_bps", "mean_utilisation", "max_utilisation", "max_queue_bytes", *_SUMS)
        rows.append({"tier": tier} | {name: [each and each[name] for each in of_run] for name in names})
    return rows


def links(runs: Sequence[Run], max_rows: int) -> dict[str, Any]:
    """Return the links that all runs have, sorted by the change of their utilisation.

    Args:
        runs: Runs to compare; the first is the baseline.
        max_rows: Number of links that the result lists at most.

    Returns:
        `matched`: number of links that all runs have; `of`: number of links per run; `rows`: the links that differ;
        `left_out`: number of differing links beyond `max_rows`.
    """
    if not all(map(knows_links, runs)):
        return {
            "matched": 0,
            "of": [len(run.links) if knows_links(run) else 0 for run in runs],
            "rows": [],
            "left_out": 0,
        }
    places = [_places(run) for run in runs]
    common = [link for link in places[0] if all(link in each for each in places)]
    at = [np.array([each[link] for link in common], np.int64) for each in places]
    columns = {
        name: np.array([np.asarray(run.links[name], np.float64)[rows] for run, rows in zip(runs, at, strict=True)])
        for name in _OF_LINK
    }
    differs = np.zeros(len(common), np.bool_)
    for values in columns.values():
        differs |= (values != values[:1]).any(axis=0)
    busy = columns["utilisation"]
    order = np.argsort(-np.abs(busy - busy[:1]).max(axis=0), kind="stable") if common else np.zeros(0, np.int64)
    order = order[differs[order]]
    rows = [
        {"link": _name(common[row])} | {name: of[:, row].tolist() for name, of in columns.items()}
        for row in order[:max_rows]
    ]
    counts = [len(run.links) for run in runs]
    return {"matched": len(common), "of": counts, "rows": rows, "left_out": max(len(order) - max_rows, 0)}


def by_load(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tiers sorted by the change of their highest utilisation."""
    return sorted(rows, key=lambda row: -size(row["max_utilisation"]))


def _by_tier(run: Run) -> dict[str, dict[str, Any]]:
    table = run.links
    tier = np.array(tiers_of({name: table[name].to_pylist() for name in ("src", "dst")}))
    values = {name: np.asarray(table[name], np.float64) for name in {*_SUMS, *_OF_LINK}}
    return {name: _of_tier(values, np.flatnonzero(tier == name)) for name in dict.fromkeys(tier.tolist())}


def _of_tier(values: dict[str, NDArray[np.float64]], here: NDArray[np.int64]) -> dict[str, Any]:
    busy = values["utilisation"][here]
    return {
        "links": len(here),
        "rate_bps": float(values["rate_bps"][here].mean()),
        "mean_utilisation": float(busy.mean()),
        "max_utilisation": float(busy.max()),
        "max_queue_bytes": float(values["max_queue_bytes"][here].max()),
        **{name: float(values[name][here].sum()) for name in _SUMS},
    }


def _places(run: Run) -> dict[Link, int]:
    """Return the row of each link."""
    seen: Counter[tuple[str, str]] = Counter()
    found = {}
    ends = zip(run.links["src"].to_pylist(), run.links["dst"].to_pylist(), strict=True)
    for row, (src, dst) in enumerate(ends):
        found[src, dst, seen[src, dst]] = row
        seen[src, dst] += 1
    return found


def _name(link: Link) -> str:
    src, dst, number = link
    return f"{src} → {dst}" + (f" #{number}" if number else "")
