"""Runs at closed forms: costs of collectives, classes of equal NPUs, the run of one NPU per class, and results."""

import hashlib
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import pdes
import topologies
from nadi.launching.progress import NoProgress, Progress
from nadi.simulation.closed_forms.advancing.folded_program import FoldedProgram, lay_out, ranges
from nadi.simulation.closed_forms.advancing.likeness import Classes, TracePeers, classes_of, every_npu, pairs_of
from nadi.simulation.closed_forms.advancing.run import ClassTimes, compile_closed_form, digest_of, run_closed_form
from nadi.simulation.closed_forms.costs import ClosedFormCosts, CollectiveCosts
from pdes import COUNTERS, LINK_COLUMNS, FoldedRows
from topologies import Graph
from workload import CollectiveSettings, Program
from workload.collectives.schedules.packed import Schedules

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

MAX_ROWS = 1 << 22
"""Maximum number of trace nodes of all NPUs together for which results hold every node; larger programs keep the nodes
of one NPU per class."""
MAX_FLOWS = 1 << 22
"""Maximum number of messages of all NPUs together that results hold; larger programs keep no messages."""
_SEND = 3


def laid_out(
    graph: Graph, program: Program, costs: CollectiveCosts, *, slow: Sequence[pdes.NpuFault] = (), fold: bool = True
) -> FoldedProgram:
    """Return a program's classes of NPUs with the collectives and messages that need a time.

    `slow`: NPU faults: which NPUs compute slower, and when.
    `fold`: False = every NPU is a class of its own.
    """
    program = with_shared_traces(program)
    pairs = pairs_of(program)
    used = np.unique(program.slot_group)
    positions = costs.standing.keys([_members(program, group) for group in used.tolist()])
    number: dict[bytes, int] = {}
    groups = np.zeros(len(program.group_ptr) - 1, np.int64)
    groups[used] = [number.setdefault(position, len(number)) for position in positions]
    ways = costs.standing.of_pairs(pairs.npu, pairs.peer)
    paces = _paces(program.npus, slow)
    classes = classes_of(program, pairs, groups, ways, paces) if fold else every_npu(program, groups)
    return lay_out(program, classes, pairs, groups, ways, _ports(graph, pairs, ways))


def _paces(npus: int, slow: Sequence[pdes.NpuFault]) -> Int64:
    """Return int64[npus], equal numbers for NPUs with equal slowdowns at equal times."""
    paces = np.zeros(npus, np.int64)
    number: dict[tuple[tuple[int, int, float], ...], int] = {(): 0}
    for npu in {fault.npu for fault in slow}:
        own = tuple(sorted((fault.at_ps, fault.until_ps, fault.slowdown) for fault in slow if fault.npu == npu))
        paces[npu] = number.setdefault(own, len(number))
    return paces


def costed(folded: FoldedProgram, costs: CollectiveCosts, how: CollectiveSettings) -> ClosedFormCosts:
    """Return the closed forms of the collectives of a folded program."""
    keys = folded.collectives
    program = folded.program
    kinds = program.node_collective[program.trace_ptr[program.trace_of_npu[keys.npu]] + keys.row]
    return costs.of_collectives(program, how, keys, kinds)


def formulas(folded: FoldedProgram, forms: ClosedFormCosts, program: Program) -> frozenset[tuple[int, int]]:
    """Return the schedule of the program and the size of each collective whose time is not played.

    `folded`: Folded program, which may have fewer schedules than `program`.
    `forms`: Closed forms of its collectives.
    """
    keys = folded.collectives
    derived = np.flatnonzero(~forms.is_played)
    not_played = set(zip(keys.schedule[derived].tolist(), keys.bytes[derived].tolist(), strict=True))
    both = np.unique(program.node_schedule.astype(np.int64) << 32 | folded.program.node_schedule)
    pairs = [(pair >> 32, pair & 0xFFFFFFFF) for pair in both[both >= 0].tolist()]
    return frozenset((own, size) for own, shared in pairs for schedule, size in not_played if schedule == shared)


def run(
    graph: Graph,
    folded: FoldedProgram,
    collectives: ClosedFormCosts,
    costs: CollectiveCosts,
    settings: pdes.Settings,
    progress: Progress | NoProgress,
    *,
    max_rows: int | None = None,
) -> pdes.Results:
    """Run a folded program and return the same kind of results as the other fidelities.

    `max_rows`: Maximum number of trace nodes that results hold individually; None = MAX_ROWS.

    Raises:
        pdes.RunError: NPUs wait for ever, or simulated time is too long.
    """
    begun = time.perf_counter()
    compile_s = compile_closed_form()
    times = run_closed_form(
        folded,
        collectives.time_ps,
        costs.of_messages(folded.messages),
        concurrent=settings.concurrent_collectives,
        compute_slowdown=settings.compute_slowdown,
        endpoint_delay_ps=settings.fidelity.endpoint_delay_ps,
        slow=settings.faults.npus,
        progress=progress,
    )
    setup_s = time.perf_counter() - begun
    max_rows = MAX_ROWS if max_rows is None else max_rows
    return _results(graph, folded, times, settings, max_rows, setup_s=setup_s, compile_s=compile_s)


def _members(program: Program, group: int) -> Int32:
    return program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]]


def _ports(graph: Graph, pairs: TracePeers, ways: Int64) -> Int32:
    """Return int32[k], the NPU's port to each peer, numbered by first use on that NPU."""
    _, first, index = np.unique(ways, return_index=True, return_inverse=True)
    begin = np.searchsorted(np.sort(graph.link_src, kind="stable"), np.arange(graph.npus))
    by_source = np.argsort(graph.link_src, kind="stable")
    place = np.empty(graph.links, np.int64)
    place[by_source] = np.arange(graph.links)
    own = np.zeros(len(first), np.int64)
    for i, at in enumerate(first.tolist()):
        link = topologies.route(graph, int(pairs.npu[at]), int(pairs.peer[at]))[0]
        own[i] = place[link] - begin[pairs.npu[at]]
    physical = own[index.reshape(-1)]
    port = np.zeros(len(physical), np.int32)
    for npu in np.unique(pairs.npu).tolist():
        of_npu = slice(int(pairs.ptr[npu]), int(pairs.ptr[npu + 1]))
        known: dict[int, int] = {}
        port[of_npu] = [known.setdefault(link, len(known)) for link in physical[of_npu].tolist()]
    return port


def _results(
    graph: Graph,
    folded: FoldedProgram,
    times: ClassTimes,
    settings: pdes.Settings,
    max_rows: int,
    *,
    setup_s: float,
    compile_s: float,
) -> pdes.Results:
    classes = folded.classes
    rows_of_class = np.diff(times.row_ptr)
    total = int((rows_of_class * classes.size).sum())
    sends = int((np.diff(folded.send_ptr) * classes.size).sum())
    kept = np.arange(graph.npus) if total <= max_rows else classes.example.astype(np.int64)
    rows = np.zeros(graph.npus, np.int64)
    rows[kept] = rows_of_class[classes.class_of_npu[kept]]
    at = ranges(times.row_ptr[classes.class_of_npu[kept]], rows[kept])
    counters = dict.fromkeys([*COUNTERS, "packets"], 0)
    counters |= {"trace_nodes": total, "events": times.events, "flows": sends, "payload_bytes": _payload(folded)}
    return pdes.Results(
        finish_time_ps=times.finish_time_ps,
        digest=digest_of(times, classes),
        counters=counters,
        npu_node_ptr=np.concatenate([[0], np.cumsum(rows)]),
        node_start_ps=times.start_ps[at],
        node_finish_ps=times.finish_ps[at],
        flows=_flows(folded, times, record=settings.record_flows and sends <= MAX_FLOWS),
        links={name: np.zeros(graph.links, np.int64) for name in LINK_COLUMNS},
        wall_s=times.wall_s,
        setup_s=setup_s - compile_s,
        compile_s=compile_s,
        first_event_s=times.wall_s,
        folded=None if total <= max_rows else _folded(classes),
    )


def _folded(classes: Classes) -> FoldedRows:
    groups = np.arange(len(classes.class_of_group), dtype=np.int32)
    used = classes.class_of_group >= 0
    groups[used] = classes.group_example[classes.class_of_group[used]]
    return FoldedRows(classes.example[classes.class_of_npu], groups)


def _payload(folded: FoldedProgram) -> int:
    """Return the bytes of all messages between two NPUs."""
    of_send = folded.messages.bytes[folded.send_key]
    before = np.concatenate([[0], np.cumsum(of_send)])
    return int((np.diff(before[folded.send_ptr]) * folded.classes.size).sum())


def _flows(folded: FoldedProgram, times: ClassTimes, *, record: bool) -> dict[str, NDArray]:
    """Return the messages between two NPUs as columns of pdes.Results; empty columns unless they are recorded."""
    program, classes = folded.program, folded.classes
    counts = np.diff(folded.send_ptr)[classes.class_of_npu] if record else np.zeros(program.npus, np.int64)
    src = np.repeat(np.arange(program.npus), counts)
    of_class = classes.class_of_npu[src]
    at = ranges(folded.send_ptr[classes.class_of_npu], counts)
    is_send = np.flatnonzero(program.node_kind == _SEND)
    first = np.searchsorted(is_send, program.trace_ptr[:-1])
    node = is_send[first[program.trace_of_npu[src]] + at - folded.send_ptr[of_class]]
    row = node - program.trace_ptr[program.trace_of_npu[src]]
    start_ps = times.start_ps[times.row_ptr[of_class] + row] + program.node_duration_ps[node]
    dst = src + program.node_peer[node]
    order = np.lexsort((dst, src, start_ps))
    columns = {
        "src": src,
        "dst": dst,
        "group": np.full(len(src), -1, np.int64),
        "seq": program.node_seq[node].astype(np.int64),
        "lane": program.node_tag[node].astype(np.int64),
        "control": np.zeros(len(src), np.int8),
        "bytes": program.node_bytes[node],
        "start_ps": start_ps,
        "finish_ps": times.arrived_ps[at],
    }
    return {name: column[order] for name, column in columns.items()}


_OF_SCHEDULE = ("members", "chunks", "relative", "launch_ps", "regions", "aggregators", "uneven")
_OF_TRACE = (
    *("kind", "lane", "duration_ps", "bytes", "peer", "tag", "seq"),
    *("group", "schedule", "collective", "uneven", "channel", "priority", "deps"),
)


def with_shared_traces(program: Program) -> Program:
    """Return an equivalent program without duplicate schedules and traces."""
    number = _numbers([_contents(program.schedules, index) for index in range(len(program.schedules.members))])
    if len(np.unique(number)) == len(number):
        return program
    schedule = np.where(program.node_schedule >= 0, np.append(number, -1)[program.node_schedule], -1)
    shared = program._replace(node_schedule=schedule.astype(np.int32))
    trace = _numbers([_rows(shared, index) for index in range(len(program.trace_ptr) - 1)])
    return shared._replace(trace_of_npu=trace[program.trace_of_npu].astype(np.int32))


def _numbers(digests: list[bytes]) -> Int64:
    """Return int64[n], the index of the first occurrence of each digest."""
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(digest, at) for at, digest in enumerate(digests)], np.int64)


def _contents(s: Schedules, index: int) -> bytes:
    """Return a digest of the contents of a schedule."""
    digest = hashlib.blake2b(digest_size=16)
    for name in _OF_SCHEDULE:
        digest.update(getattr(s, name)[index].tobytes())
    plans = s.plan_of[s.plan_of_ptr[index] : s.plan_of_ptr[index + 1]]
    unlike, which = np.unique(plans, return_inverse=True)
    _add(digest, which)
    lane_columns = [getattr(s, name) for name in s._fields if name.startswith("lane_") and name != "lane_ptr"]
    for plan in unlike.tolist():
        lanes = slice(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1]))
        steps = slice(int(s.lane_ptr[lanes.start]), int(s.lane_ptr[lanes.stop]))
        _add(digest, np.diff(s.lane_ptr[lanes.start : lanes.stop + 1]))
        for column in lane_columns:
            _add(digest, column[lanes])
        _add(digest, s.steps[steps])
    _add_views(digest, s, index)
    return digest.digest()


def _add_views(digest: hashlib.blake2b, s: Schedules, index: int) -> None:
    """Add the views (lines of members) and the arrangements of pieces of a schedule to its digest."""
    views = slice(int(s.view_base[index]), int(np.append(s.view_base, len(s.view_size))[index + 1]))
    entries = slice(int(s.view_ptr[views.start]), int(s.view_ptr[views.stop]))
    for column in (s.view_size[views], s.view_parts[views]):
        _add(digest, column)
    for column in (s.view_member[entries], s.view_at[entries], s.view_part[entries]):
        _add(digest, column)
    arrangements = slice(
        int(s.arrangement_base[index]), int(np.append(s.arrangement_base, len(s.arrangement_ptr) - 1)[index + 1])
    )
    _add(digest, np.diff(s.arrangement_ptr[arrangements.start : arrangements.stop + 1]))
    _add(
        digest,
        s.arrangement_piece[int(s.arrangement_ptr[arrangements.start]) : int(s.arrangement_ptr[arrangements.stop])],
    )


def _rows(program: Program, index: int) -> bytes:
    """Return a digest of the contents of a trace."""
    digest = hashlib.blake2b(digest_size=16)
    rows = slice(int(program.trace_ptr[index]), int(program.trace_ptr[index + 1]))
    for name in _OF_TRACE:
        _add(digest, getattr(program, f"node_{name}")[rows])
    children = program.child_ptr[rows.start : rows.stop + 1]
    _add(digest, np.diff(children))
    _add(digest, program.child[int(children[0]) : int(children[-1])])
    return digest.digest()


def _add(digest: hashlib.blake2b, column: NDArray[np.generic]) -> None:
    digest.update(len(column).to_bytes(8, "little"))
    digest.update(np.ascontiguousarray(column).data)
