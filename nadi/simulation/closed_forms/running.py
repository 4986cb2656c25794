"""Runs at closed forms: costs of collectives, classes of equal NPUs, the run of one NPU per class, and results.

Such a run sends nothing over links. The bytes that ports would send follow from traces and schedules, which contain
the bytes per pair of NPUs: they are spread evenly over all equal-cost paths, with a header per packet and an
acknowledgement back. Nothing is lost, retransmitted or paused.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import partition, pdes, topologies
from nadi.energy import PortUse, port_uses
from nadi.inputs.arrays import Int32, Int64
from nadi.launching.progress import NoProgress, Progress
from nadi.pdes import COUNTERS, LINK_COLUMNS, KeptRows, Settings
from nadi.pdes.wire import NVSWITCH_KIND, acknowledgement_bytes, wire_bytes
from nadi.simulation.assembly import engine_inputs
from nadi.simulation.closed_forms.advancing import equivalence
from nadi.simulation.closed_forms.advancing.equivalence import ClassProgram
from nadi.simulation.closed_forms.advancing.run import ClassTimes, compile_closed_form, digests_of, run_closed_form
from nadi.simulation.closed_forms.costs import ClosedFormCosts, CollectiveCosts
from nadi.topologies import Graph
from nadi.workload import CollectiveSettings, Program
from nadi.workload.collectives.schedules import Schedules
from nadi.workload.node_kinds import SEND
from nadi.workload.program.traffic import sample

# maximum number of trace nodes of all NPUs for which results hold every node; others hold those of one NPU per class
MAX_ROWS = 1 << 22
MAX_FLOWS = 1 << 22  # maximum number of messages of all NPUs together that results hold; larger programs keep none
_OF_SCHEDULE = ("members", "chunks", "relative", "launch_ps", "regions", "aggregators", "uneven")
_OF_TRACE = (
    *("kind", "lane", "duration_ps", "bytes", "peer", "tag", "seq"),
    *("group", "schedule", "collective", "uneven", "channel", "parts", "priority", "deps"),
)
_MAX_PAIRS = 1 << 17  # maximum number of pairs of NPUs; of more, a weighted sample represents the others
_MAX_ROUTED_PAIRS = 1 << 14  # maximum number of pairs whose bytes are spread over links


def laid_out(
    graph: Graph,
    program: Program,
    fabric_costs: CollectiveCosts,
    *,
    slow_npus: Sequence[pdes.NpuFault] = (),
    job_slowdowns: Sequence[float] = (),
) -> ClassProgram:
    """Return a program's classes of NPUs with the collectives and messages that need a time.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        fabric_costs: Times of collectives on the fabric.
        slow_npus: Slow NPUs of the run.
        job_slowdowns: Slowdowns of computation during collectives, by job (`pdes.Settings`).
    """
    program = _with_shared_traces(program)
    pairs = equivalence.pairs_of(program)
    used = np.unique(program.slot_group)
    members = np.split(program.group_member, program.group_ptr[1:-1])
    groups = np.zeros(len(members), np.int64)
    # groups that no NPU uses keep 0, which nothing reads
    groups[used] = fabric_costs.positions.numbers([members[group] for group in used.tolist()])
    ways = fabric_costs.positions.of_pairs(pairs.npu, pairs.peer)
    paces = _paces(program.npus, slow_npus)
    if program.jobs is not None:
        slowdowns = np.array([*(job_slowdowns or np.ones(len(program.jobs.names))), 1.0])[program.jobs.of_npus()]
        # NPUs are alike only if they also begin together and slow down alike
        columns = np.stack([paces, program.begins_ps, slowdowns])
        paces = np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)
    classes = equivalence.classes_of(program, pairs, groups, ways, paces)
    return equivalence.lay_out(program, classes, pairs, groups, ways, _ports(graph, pairs, ways))


def _paces(num_npus: int, npu_faults: Sequence[pdes.NpuFault]) -> Int64:
    """Return int64[num_npus], equal numbers for NPUs with equal slowdowns at equal times."""
    paces = np.zeros(num_npus, np.int64)
    number: dict[tuple[tuple[int, int, float], ...], int] = {(): 0}
    for npu in {fault.npu for fault in npu_faults}:
        own = tuple(sorted((fault.at_ps, fault.until_ps, fault.slowdown) for fault in npu_faults if fault.npu == npu))
        paces[npu] = number.setdefault(own, len(number))
    return paces


def costed(by_class: ClassProgram, costs: CollectiveCosts, collective_settings: CollectiveSettings) -> ClosedFormCosts:
    """Return the times at closed forms of the collectives of a program by classes.

    Args:
        by_class: The Program laid out by classes of NPUs.
        costs: Times of collectives on the fabric.
        collective_settings: Algorithms of collectives that the user has chosen.
    """
    keys, program = by_class.collectives, by_class.program
    kinds = program.node_collective[program.trace_ptr[program.trace_of_npu[keys.npu]] + keys.row]
    return costs.of_collectives(program, collective_settings, keys, kinds)


def formulas(by_class: ClassProgram, closed_forms: ClosedFormCosts, program: Program) -> frozenset[tuple[int, int]]:
    """Return (schedule number in `program`, bytes) of collectives whose time a formula gives.

    Args:
        by_class: The Program laid out by classes of NPUs.
        closed_forms: Times of the collectives of the program by classes.
        program: The program of all NPUs.
    """
    keys = by_class.collectives
    derived = np.flatnonzero(~closed_forms.is_simulated)
    not_played = set(zip(keys.schedule[derived].tolist(), keys.bytes[derived].tolist(), strict=True))
    # pairs of schedule numbers before and after; -1 of rows without a schedule makes a pair negative
    both = np.unique(program.node_schedule.astype(np.int64) << 32 | by_class.program.node_schedule)
    pairs = [(pair >> 32, pair & 0xFFFFFFFF) for pair in both[both >= 0].tolist()]
    return frozenset((own, size) for own, shared in pairs for schedule, size in not_played if schedule == shared)


def run(
    graph: Graph,
    by_class: ClassProgram,
    collective_costs: ClosedFormCosts,
    costs: CollectiveCosts,
    settings: pdes.Settings,
    progress: Progress | NoProgress,
    *,
    max_rows: int | None = None,
) -> pdes.Results:
    """Run a program by classes, with times of its collectives, and return the same kind of results as other fidelities.

    `costs`: Costs on the fabric, for messages.
    `progress`: Receiver of snapshots.
    `max_rows`: Maximum number of trace nodes that results hold individually; None = MAX_ROWS.

    Args:
        graph: The fabric (`Graph`).
        by_class: The Program laid out by classes of NPUs.
        collective_costs: Times of the collectives of the program by classes.
        costs: Times on the fabric, for messages.
        settings: The engine's settings of the run (`pdes.Settings`).
        progress: Receiver of snapshots.
        max_rows: Maximum number of trace nodes that results hold individually; None = MAX_ROWS.
    """
    begun = time.perf_counter()
    compile_s = compile_closed_form()
    times = run_closed_form(
        by_class, collective_costs.time_ps, costs.of_messages(by_class.messages), settings, progress
    )
    setup_s = time.perf_counter() - begun - compile_s
    classes, program = by_class.classes, by_class.program
    rows_of_class = np.diff(times.row_ptr)
    total = int((rows_of_class * classes.size).sum())
    keeps_all = total <= (MAX_ROWS if max_rows is None else max_rows)
    kept = np.arange(graph.npus) if keeps_all else classes.example.astype(np.int64)
    rows = np.zeros(graph.npus, np.int64)
    # int64[npus], rows of each NPU in the results: 0 for those that the example of their class represents
    rows[kept] = rows_of_class[classes.class_of_npu[kept]]
    kept_rows = equivalence.ranges(times.row_ptr[classes.class_of_npu[kept]], rows[kept])
    groups = np.arange(len(classes.class_of_group), dtype=np.int32)
    used = classes.class_of_group >= 0
    groups[used] = classes.group_example[classes.class_of_group[used]]
    sends = int((np.diff(by_class.send_ptr) * classes.size).sum())
    # sums up to each send, so that a class's bytes are the difference of two of them
    bytes_before = np.concatenate([[0], np.cumsum(by_class.messages.bytes[by_class.send_key])])
    payload_bytes = int((np.diff(bytes_before[by_class.send_ptr]) * classes.size).sum())
    counters = dict.fromkeys([*COUNTERS, "packets"], 0)
    counters |= {"trace_nodes": total, "events": times.events, "flows": sends, "payload_bytes": payload_bytes}
    return pdes.Results(
        finish_time_ps=times.finish_time_ps,
        **digests_of(times, program, classes),
        counters=counters,
        npu_node_ptr=np.concatenate([[0], np.cumsum(rows)]),
        node_start_ps=times.start_ps[kept_rows],
        node_finish_ps=times.finish_ps[kept_rows],
        flows=_flows(by_class, times, record=settings.record_flows and sends <= MAX_FLOWS),
        links={name: np.zeros(graph.links, np.int64) for name in LINK_COLUMNS},
        wall_s=times.wall_s,
        setup_s=setup_s,
        compile_s=compile_s,
        first_event_s=times.wall_s,
        kept_rows=None if keeps_all else KeptRows(classes.example[classes.class_of_npu], groups),
    )


def _ports(graph: Graph, pairs: equivalence.TracePeers, path_numbers: Int64) -> Int32:
    """Return int64[k], the NPU's port to each peer by first use; path_numbers: int64[k], equal for equal paths."""
    _, first, index = np.unique(path_numbers, return_index=True, return_inverse=True)
    by_source = np.argsort(graph.link_src, kind="stable")
    begin = np.searchsorted(graph.link_src[by_source], np.arange(graph.npus))
    place = np.empty(graph.links, np.int64)
    place[by_source] = np.arange(graph.links)
    place_on_npu = np.zeros(len(first), np.int64)
    for i, (npu, peer) in enumerate(zip(pairs.npu[first].tolist(), pairs.peer[first].tolist(), strict=True)):
        # equal paths begin at the same port of their NPU, so one route is enough
        place_on_npu[i] = place[topologies.route(graph, npu, peer)[0]] - begin[npu]
    physical = place_on_npu[index.reshape(-1)]
    port = np.zeros(len(physical), np.int32)
    for npu in np.unique(pairs.npu).tolist():
        of_npu = slice(int(pairs.ptr[npu]), int(pairs.ptr[npu + 1]))
        known: dict[int, int] = {}
        # numbered by first use, so that NPUs alike have equal numbers on different ports
        port[of_npu] = [known.setdefault(link, len(known)) for link in physical[of_npu].tolist()]
    return port


def _flows(by_class: ClassProgram, times: ClassTimes, *, record: bool) -> dict[str, NDArray]:
    """Return the messages between two NPUs as columns of pdes.Results; empty columns unless `record`."""
    program, classes = by_class.program, by_class.classes
    counts = np.diff(by_class.send_ptr)[classes.class_of_npu] if record else np.zeros(program.npus, np.int64)
    src = np.repeat(np.arange(program.npus), counts)
    of_class = classes.class_of_npu[src]
    at = equivalence.ranges(by_class.send_ptr[classes.class_of_npu], counts)
    is_send = np.flatnonzero(program.node_kind == SEND)
    # index of each trace's first send among all
    first = np.searchsorted(is_send, program.trace_ptr[:-1])
    # `at` counts the sends of all classes; less the first of its class it counts those of a trace
    node = is_send[first[program.trace_of_npu[src]] + at - by_class.send_ptr[of_class]]
    row = node - program.trace_ptr[program.trace_of_npu[src]]
    start_ps = times.start_ps[times.row_ptr[of_class] + row] + program.node_duration_ps[node]
    dst = program.peers(src, program.node_peer[node])
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


def _with_shared_traces(program: Program) -> Program:
    """Return an equivalent program without duplicate schedules, and without traces that differ only in their numbers.

    Algorithms that depend on a group's position get one schedule per shape, although members on the first GPUs of their
    hosts do the same as members on the second GPUs. Otherwise, NPUs with such schedules would be of different classes.
    """
    schedules = range(len(program.schedules.members))
    number = _first_equal(_digest(_schedule_columns(program.schedules, index)) for index in schedules)
    # no two schedules are equal, so no traces become equal
    if len(np.unique(number)) == len(number):
        return program
    schedule = np.where(program.node_schedule >= 0, np.append(number, -1)[program.node_schedule], -1)
    shared = program._replace(node_schedule=schedule.astype(np.int32))
    trace = _first_equal(_digest(_trace_columns(shared, index)) for index in range(len(program.trace_ptr) - 1))
    return shared._replace(trace_of_npu=trace[program.trace_of_npu].astype(np.int32))


def _first_equal(digests: Iterable[bytes]) -> Int64:
    """Return int64[n], the index of the first occurrence of each digest."""
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(digest, index) for index, digest in enumerate(digests)], np.int64)


def _digest(columns: Iterable[NDArray[np.generic]]) -> bytes:
    """Return a digest of the lengths and contents of columns, 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        digest.update(len(column).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(column).data)
    return digest.digest()


def _schedule_columns(schedules: Schedules, index: int) -> Iterator[NDArray[np.generic]]:
    """Yield the numbers of the schedule at `index`: its own, its plans, views (lines of members) and arrangements."""
    for name in _OF_SCHEDULE:
        yield getattr(schedules, name)[index : index + 1]
    entries = slice(int(schedules.plan_of_ptr[index]), int(schedules.plan_of_ptr[index + 1]))
    # numbers of plans within the schedule, as those in the whole table differ
    plans, plan_of_member = np.unique(schedules.plan_of[entries], return_inverse=True)
    yield plan_of_member
    yield from schedules.lists(index)
    lane_columns = [
        getattr(schedules, name) for name in schedules._fields if name.startswith("lane_") and name != "lane_ptr"
    ]
    for plan in plans.tolist():
        lanes = slice(int(schedules.plan_ptr[plan]), int(schedules.plan_ptr[plan + 1]))
        yield np.diff(schedules.lane_ptr[lanes.start : lanes.stop + 1])
        yield from (column[lanes] for column in lane_columns)
        yield schedules.steps[int(schedules.lane_ptr[lanes.start]) : int(schedules.lane_ptr[lanes.stop])]
    views = slice(
        int(schedules.view_base[index]), int(np.append(schedules.view_base, len(schedules.view_size))[index + 1])
    )
    entries = slice(int(schedules.view_ptr[views.start]), int(schedules.view_ptr[views.stop]))
    yield from (schedules.view_size[views], schedules.view_parts[views])
    yield from (schedules.view_member[entries], schedules.view_at[entries], schedules.view_part[entries])
    last = int(np.append(schedules.arrangement_base, len(schedules.arrangement_ptr) - 1)[index + 1])
    arrangement_ptr = schedules.arrangement_ptr[int(schedules.arrangement_base[index]) : last + 1]
    yield from (
        # lengths instead of offsets, which depend on what stands before
        np.diff(arrangement_ptr),
        schedules.arrangement_piece[int(arrangement_ptr[0]) : int(arrangement_ptr[-1])],
    )


def _trace_columns(program: Program, index: int) -> Iterator[NDArray[np.generic]]:
    """Yield the numbers of the trace at `index` of the program: those of its rows, and the children of each row."""
    rows = slice(int(program.trace_ptr[index]), int(program.trace_ptr[index + 1]))
    yield from (getattr(program, f"node_{name}")[rows] for name in _OF_TRACE)
    child_ptr = program.child_ptr[rows.start : rows.stop + 1]
    yield from (np.diff(child_ptr), program.child[int(child_ptr[0]) : int(child_ptr[-1])])


class SentByPorts(NamedTuple):
    """Bytes that ports would send."""

    ports: dict[str, PortUse]  # use of the ports by kind of port, see nadi.energy.PORTS
    unused: int  # number of switches that serve no NPU and send nothing, whose ports `ports` omits


def sent_by_ports(graph: Graph, program: Program, settings: Settings) -> SentByPorts:
    """Return the bytes that the ports of a fabric would send, by kind of port.

    An acknowledgement counts on the path of its packet, because on the way back it passes the same number of ports of
    each kind.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: Settings of the run.
    """
    fabric, running, _ = engine_inputs(graph, program)
    pairs = sample(running, _MAX_PAIRS)
    messages = np.maximum(pairs.messages, 1)
    packets = messages * np.maximum(-(-pairs.bytes // (messages * settings.mtu_bytes)), 1)
    framed = _shares_nvswitch(fabric, pairs.src, pairs.dst) & settings.nvlink_framing
    packet_bytes = wire_bytes(pairs.bytes // packets, framed, settings) + acknowledgement_bytes(framed, settings)
    sent_bytes = pairs.weight * (packets * packet_bytes + pairs.bytes % packets)
    order = np.flatnonzero(pairs.src != pairs.dst)
    order = order[np.argsort(~framed[order], kind="stable")]  # a sample then represents the pairs on NVSwitches
    src, dst, sent_bytes = pairs.src[order], pairs.dst[order], sent_bytes[order]
    if len(src) > _MAX_ROUTED_PAIRS:  # systematic sampling gives each chosen pair an equal number of bytes
        ends = np.cumsum(sent_bytes)
        step = float(ends[-1]) / _MAX_ROUTED_PAIRS
        chosen = np.minimum(np.searchsorted(ends, (np.arange(_MAX_ROUTED_PAIRS) + 0.5) * step), len(ends) - 1)
        src, dst, sent_bytes = src[chosen], dst[chosen], np.full(_MAX_ROUTED_PAIRS, step)
    link_bytes = partition.link_loads(fabric, src, dst, sent_bytes)[: graph.links]
    is_npu, is_nvswitch = np.arange(graph.nodes) < graph.npus, graph.node_kind == NVSWITCH_KIND
    return SentByPorts(*port_uses(graph.link_src, graph.link_dst, is_npu, is_nvswitch, graph.link_rate_bps, link_bytes))


def _shares_nvswitch(graph: Graph, src: Int64, dst: Int64) -> NDArray[np.bool_]:
    """Return bool[p], True if one NVSwitch connects both NPUs of a pair."""
    return graph.routing.meets_at(src, dst, graph.node_kind == NVSWITCH_KIND)
