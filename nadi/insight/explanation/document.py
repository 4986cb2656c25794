"""The explanation of a run as a document: the composition of its critical path, bounds, and what-ifs.

A what-if predicts the time with faster GPUs, faster links of a tier, or a faster kind of communication. The events of
the run are evaluated again with other weights: an accelerator node takes 1/factor of its time; a collective or a
message changes as its closed form does from the present to the faster fabric or, if it is contended, as its bottleneck
does (nadi/insight/explanation/contention.py). The order of the nodes on a lane is unchanged, and so are the gaps that
no dependency explains.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Float64, Int64, numpy_column
from nadi.insight.explanation import run_events as events
from nadi.insight.explanation.contention import Contention, contention
from nadi.insight.explanation.critical_path import PathBounds, PathPiece, axis_of, critical_path, npus_of_path
from nadi.insight.explanation.run_events import RunEvents, events_of_run, has_kept_rows
from nadi.insight.network import tiers
from nadi.insight.runs import Run
from nadi.pdes import Settings
from nadi.simulation.closed_forms import CollectiveCosts, CollectiveKeys, ideal_ps
from nadi.simulation.schemas import COMMUNICATION_AXES, LINKS
from nadi.topologies import Graph
from nadi.workload import KINDS
from nadi.workload.node_kinds import COMPUTE, CPU_LANE, SEND

FASTER = 1.1  # default factor by which each what-if speeds up its subject
MAX_TIERS = 8  # number of tiers with a what-if, the busiest ones: each evaluates all closed forms again


class ChangeEffect(NamedTuple):
    """The effect of a change."""

    change: str  # description of the change
    key: str  # "gpu", "tier NAME" or "collectives NAME"
    finish_time_ps: float  # predicted time of the run in picoseconds
    gain: float  # share of the run's time that the change saves


def what_if(
    run: Run, run_events: events.RunEvents, contention: Contention, factor: float = FASTER
) -> list[ChangeEffect]:
    """Return the effects of GPUs, tiers of links and kinds of communication `factor` times as fast, best first.

    Args:
        run: The run, read from its folder (`Run`).
        run_events: Events of the run: begins and ends of its trace nodes (`RunEvents`).
        contention: Contended pieces of the run.
        factor: Speed-up of a part.
    """
    weight = run_events.dag.edges.weight
    whole_ps = float(run_events.dag.times(weight)[run_events.last()])
    answers = []
    for change, key, changed in _changes(run, run_events, contention, factor):
        # a longest-path problem on the same graph, with other weights
        finish_ps = run_events.end_ps(run_events.dag.times(changed))
        answers.append(ChangeEffect(change, key, finish_ps, (whole_ps - finish_ps) / whole_ps if whole_ps else 0.0))
    return sorted(answers, key=lambda answer: -answer.gain)


def _changes(
    run: Run, run_events: events.RunEvents, contention: Contention, factor: float
) -> Iterator[tuple[str, str, Float64]]:
    """Yield the description, the key and the weights of the edges, float64[E], of each change by `factor`."""
    faster = f"{factor - 1:.0%} faster"
    weight, kind, of_node = run_events.dag.edges.weight, run_events.kind, run_events.of_node
    # a faster GPU does not speed up the host
    on_gpu = (run_events.node_kind == COMPUTE) & (run_events.lane != CPU_LANE)
    if on_gpu.any():
        is_computation = (kind == events.DURATION) & on_gpu[of_node]
        yield f"GPUs {faster}", "gpu", np.where(is_computation, weight / factor, weight)
    sort, words = _sorts(run, run_events)
    sort_of_edge = np.where(_is_communication(run_events), sort[of_node], -1)
    for number in sorted(np.unique(sort[sort >= 0]).tolist(), key=words.__getitem__):
        of_this_kind = sort_of_edge == number
        weights = np.where(of_this_kind, weight / factor, weight)
        yield f"{words[number]} {faster}", f"collectives {words[number]}", weights
    yield from _of_tiers(run, run_events, contention, factor)


def _is_communication(run_events: events.RunEvents) -> NDArray[np.bool_]:
    """Return bool[E]: whether the edge is the time of a collective, of a message, or of a send."""
    own = (run_events.kind == events.DURATION) & ((run_events.collective >= 0) | (run_events.node_kind == SEND))[
        run_events.of_node
    ]
    return (run_events.kind == events.DONE) | (run_events.kind == events.MESSAGE) | own


def _sorts(run: Run, run_events: events.RunEvents) -> tuple[Int64, list[str]]:
    """Return int64[n], index of the axis or kind of each collective, send and receive in the list; else -1."""
    words = [*(f"{axis} communication" for axis in COMMUNICATION_AXES), *KINDS, "messages"]
    name = events.node_names(run).unify_dictionaries().combine_chunks()
    # once per distinct name, of which there are few
    words_of_axes = [axis_of(word) for word in name.dictionary.to_pylist()]
    axes = np.array([COMMUNICATION_AXES.index(word) if word else -1 for word in words_of_axes], np.int64)
    axis = axes[numpy_column(name.indices)] if len(axes) else np.full(len(run_events.npu), -1)
    kind = run_events.program.node_collective[run_events.at].astype(np.int64)
    without_axis = np.where(kind >= 0, len(COMMUNICATION_AXES) + kind, len(words) - 1)
    speaks = (run_events.collective >= 0) | (run_events.sender >= 0) | (run_events.node_kind == SEND)
    return np.where(speaks, np.where(axis >= 0, axis, without_axis), -1), words


def _of_tiers(
    run: Run, run_events: events.RunEvents, contention: Contention, factor: float
) -> Iterator[tuple[str, str, Float64]]:
    """Yield the changes of `_changes` that make the links of a tier faster, for the tiers with the busiest links."""
    if not run.has(LINKS) or not len(run.links) or not _is_communication(run_events).any():
        return
    graph = run.graph
    settings = run.reader.fitted_settings()
    words = {"src": run.links["src"].to_pylist(), "dst": run.links["dst"].to_pylist()}
    of_link = np.array([" and ".join(sorted(tier.split(" → "))) for tier in tiers(words)])
    now = _Times(run, run_events, graph, settings)
    names, first, tier = np.unique(of_link, return_index=True, return_inverse=True)
    busiest = np.zeros(len(names))
    np.maximum.at(busiest, tier.reshape(-1), numpy_column(run.links["utilisation"], np.float64))
    for name in names[np.lexsort((first, -busiest))[:MAX_TIERS]].tolist():
        rate_bps = np.where(of_link == name, np.round(graph.link_rate_bps * factor), graph.link_rate_bps)
        faster = dataclasses.replace(graph, link_rate_bps=rate_bps.astype(np.int64))
        then = _Times(run, run_events, faster, settings, before=(now.costs, of_link == name))
        ratio, rate_factor = now.ratio(then), np.where(of_link == name, factor, 1.0)
        # contended pieces change as their bottlenecks, all others as their closed forms
        pieces = zip(contention.kinds, contention.node, strict=True)
        contended = [kind.faster(rate_factor, float(ratio[node])) for kind, node in pieces]
        ratio = np.where(contention.of_node >= 0, np.array([*contended, 1.0])[contention.of_node], ratio)
        if (ratio < 1).any():
            weight = run_events.dag.edges.weight
            shorter = np.where(_is_communication(run_events), weight * ratio[run_events.of_node], weight)
            yield f"links between {name} {factor - 1:.0%} faster", f"tier {name}", shorter


class _Times:
    """Closed forms, float64[n] time_ps, of each node's collective or message on a fabric; NaN = not known."""

    def __init__(
        self,
        run: Run,
        found: events.RunEvents,
        graph: Graph,
        settings: Settings,
        before: tuple[CollectiveCosts, NDArray[np.bool_]] | None = None,
    ) -> None:
        """Compute the times; before: costs on a fabric that differs in the rates of these links, bool[links], only."""
        program = found.program
        self.costs = events.closed_forms_on(graph, settings, before)
        self.time_ps = np.full(len(found.npu), np.nan)
        first = found.first
        if len(first):
            group, schedule, size = events.of_collectives(found, first)
            kinds = program.node_collective[found.at[first]]
            columns = np.stack([group, schedule, size, kinds])
            # one closed form for equal collectives
            _, keys, index = np.unique(columns, axis=1, return_index=True, return_inverse=True)
            index, kinds = index.reshape(-1), kinds[keys]
            group, schedule, size = group[keys], schedule[keys], size[keys]
            asked = CollectiveKeys(group, schedule, size, found.npu[first[keys]], found.row[first[keys]])
            costs = self.costs.of_collectives(program, run.work.collectives, asked, kinds)
            own = found.collective >= 0
            self.time_ps[own] = costs.time_ps.astype(np.float64)[index][found.collective[own]]
        ends = np.flatnonzero((found.node_kind == SEND) | (found.sender >= 0))
        if len(ends):
            npu = found.npu[ends]
            peer = program.peers(npu, program.node_peer[found.at[ends]])
            is_send = found.node_kind[ends] == SEND
            flows = {"src": np.where(is_send, npu, peer), "dst": np.where(is_send, peer, npu)}
            flows |= {"group": np.full(len(ends), -1), "bytes": events.bytes_of_messages(found, ends)}
            sends = np.where(is_send, ends, found.sender[ends])
            alone = ideal_ps(graph, settings, flows, events.shares_of_messages(found, sends))
            # NaN where no time is known: such edges keep their weights
            self.time_ps[ends] = np.where(alone > 0, alone, np.nan)

    def ratio(self, then: "_Times") -> Float64:
        """Return float64[n]: the time in `then` over the time here; 1 where either is not known."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = then.time_ps / self.time_ps
        return np.where(np.isfinite(found), found, 1.0)


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
    found = events_of_run(run, job)
    finish_ps = int(found.finish_ps[found.counts].max(initial=0))
    report("following the critical path")
    pieces = critical_path(run, found)
    report("looking for messages that were in the way")
    shared = contention(run, found, [piece.node for piece in pieces])
    bounds = PathBounds(run, found, pieces, shared)
    npus = npus_of_path(found, pieces)
    longest = sorted(pieces, key=lambda piece: -piece.time_ps)[:MAX_LONGEST]
    report("computing the what-ifs")
    return {
        "finish_time_ps": finish_ps,
        "pieces": len(pieces),
        "changes_of_npu": max(0, len(npus) - 1),
        "npus": sorted(set(npus)),
        "stand_for_others": has_kept_rows(run),
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
    is_known = bound is not None and not math.isnan(bound.idle_ps)
    return {
        "what": piece.what,
        "name": run.nodes["name"][piece.node].as_py(),
        "npu": int(run_events.npu[piece.node]),
        "start_ps": piece.start_ps,
        "time_ps": piece.time_ps,
        "bound": bound.text if bound else "",
        "idle_ps": bound.idle_ps if bound is not None and is_known else None,  # JSON has no NaN
    }
