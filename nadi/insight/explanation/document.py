"""The explanation of a run as a document: the composition of its critical path, bounds, and what-ifs."""

from collections.abc import Callable
from typing import Any

from nadi.insight.explanation.bounds import PathBounds
from nadi.insight.explanation.contention import contention
from nadi.insight.explanation.path import PathPiece, critical_path, npus_of
from nadi.insight.explanation.run_events import RunEvents, happened, is_folded
from nadi.insight.explanation.what_if import FASTER, what_if
from nadi.insight.runs import Run

MAX_LONGEST = 20  # number of single pieces that the document lists


def explain(
    run: Run, factor: float = FASTER, report: Callable[[str], None] = lambda _text: None, job: str = ""
) -> dict[str, Any]:
    """Return the document that `nadi explain DIR --json` prints; times are ps.

    Args:
        run: The run, read from its folder (`Run`).
        factor: Speed-up of a part in each what-if.
        report: Receiver of a text on each stage.
        job: Name of the job whose end is explained, "" = the run's (`happened`).
    """
    report("reading the traces again")
    found = happened(run, job)
    finish_ps = int(found.finish_ps[found.counts].max(initial=0))
    report("following the critical path")
    pieces = critical_path(run, found)
    report("looking for messages that were in the way")
    shared = contention(run, found, [piece.node for piece in pieces])
    bounds = PathBounds(run, found, pieces, shared)
    npus = npus_of(found, pieces)
    longest = sorted(pieces, key=lambda piece: -piece.time_ps)[:MAX_LONGEST]
    report("computing the what-ifs")
    return {
        "finish_time_ps": finish_ps,
        "pieces": len(pieces),
        "changes_of_npu": max(0, len(npus) - 1),
        "npus": sorted(set(npus)),
        "stand_for_others": is_folded(run),
        "by_what": _by_what(pieces, bounds, finish_ps),
        "by_bound": _by_bound(pieces, bounds, finish_ps),
        "longest": [_piece(run, found, piece, bounds) for piece in sorted(longest, key=lambda piece: piece.start_ps)],
        "what_if": [answer._asdict() for answer in what_if(run, found, shared, factor)],
    }


def _by_what(pieces: list[PathPiece], bounds: PathBounds, run_ps: int) -> list[dict[str, Any]]:
    """Sum the pieces of each sort, sorted by time; communication has the bound of most of its time."""
    sorts: dict[tuple[str, str], list[PathPiece]] = {}
    for piece in pieces:
        sorts.setdefault((piece.what, piece.sort), []).append(piece)
    rows = []
    for (what, sort), own in sorts.items():
        time_ps = sum(piece.time_ps for piece in own)
        texts: dict[str, float] = {}
        for piece in own:
            bound = bounds.of(piece)
            if bound is not None:
                # time by bound; the one with most time is shown
                texts[bound.text] = texts.get(bound.text, 0.0) + piece.time_ps
        rows.append(
            {
                "what": what,
                "sort": sort,
                "count": len(own),
                "time_ps": time_ps,
                "share": time_ps / run_ps if run_ps else 0.0,
                "bound": max(texts, key=lambda text: texts[text]) if texts else "",
            }
        )
    return sorted(rows, key=lambda row: -row["time_ps"])


def _by_bound(pieces: list[PathPiece], bounds: PathBounds, run_ps: int) -> list[dict[str, Any]]:
    """Sum the time on the path by its bound: compute, a link, latency, queues, pauses."""
    times: dict[str, float] = {}
    for piece in pieces:
        bound = bounds.of(piece)
        key = bound.resource if bound else piece.what
        times[key] = times.get(key, 0.0) + piece.time_ps
    rows = [{"bound": key, "time_ps": time_ps, "share": time_ps / max(run_ps, 1)} for key, time_ps in times.items()]
    return sorted(rows, key=lambda row: -float(row["time_ps"]))


def _piece(run: Run, run_events: RunEvents, piece: PathPiece, bounds: PathBounds) -> dict[str, Any]:
    """Return a piece of the critical path in values that JSON can hold."""
    bound = bounds.of(piece)
    return {
        "what": piece.what,
        "name": run.nodes["name"][piece.node].as_py(),
        "npu": int(run_events.npu[piece.node]),
        "start_ps": piece.start_ps,
        "time_ps": piece.time_ps,
        "bound": bound.text if bound else "",
        "idle_ps": None if bound is None or bound.idle_ps != bound.idle_ps else bound.idle_ps,
    }
