"""Timelines in Perfetto's format, with bounded size: of a simulated run, and of Chakra traces.

That of a run has lanes of some NPUs, arrows of messages, and load and queues of links over time. That of traces has
lanes of each NPU, and arrows from sends to receives.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from nadi.errors import ConfigError
from nadi.et import TraceTable, collective_name, statistics
from nadi.et.reshape import LANES, NO_LANE, Key, lanes_of
from nadi.inputs.arrays import Int64, arrow_numbers, numpy_column
from nadi.insight.explanation import axis_of, senders_of
from nadi.insight.link_load import link_load
from nadi.insight.runs import Run
from nadi.reports.perfetto import PerfettoTrace, Slice, Value, perfetto_trace, write_notes, write_npu
from nadi.simulation.schemas import FLOWS, LINKS

MAX_NPUS = 64  # Number of NPUs that are shown by default
MAX_SLICES = 200_000  # Number of slices of all NPUs
MAX_LINKS = 16  # Number of links with a load counter
MAX_QUEUES = 16  # Number of ports with a queue counter
STRETCHES = 1000  # Number of intervals that load counters divide the run into
_PS_PER_NS = 1000
_LANES = ("compute", "memory", "cpu", "remote")


class RunTimeline(NamedTuple):
    """Contents and omissions of a timeline."""

    npus: int  # Number of NPUs with lanes
    npus_left_out: int  # Number of NPUs without lanes
    slices: int  # Number of slices
    aggregated: int  # Number of short nodes that are merged into slices of several nodes
    flows: int  # Number of arrows from sends to receives
    counters: int  # Number of links with a counter of load or queue
    left_out: int  # Number of nodes that are not shown because too many overlap

    def notes(self) -> list[str]:
        """Return sentences about what is left out."""
        notes = []
        if self.npus_left_out:
            npus = self.npus + self.npus_left_out
            notes.append(f"{self.npus:,} of {npus:,} NPUs, evenly spaced (--npus names others)")
        if self.aggregated:
            notes.append(f"{self.aggregated:,} short nodes are merged with their neighbours")
        if self.left_out:
            notes.append(f"{self.left_out:,} nodes are left out: too many overlap")
        return notes


def write_run_timeline(
    path: str | os.PathLike[str], run: Run, npus: Sequence[int] = (), max_slices: int = MAX_SLICES
) -> RunTimeline:
    """Write the timeline of a run that keeps its trace nodes; the limits on slices and counters bound its size.

    Args:
        path: File to write.
        run: The run, read from its folder (`Run`).
        npus: Numbers of the NPUs to show; () = at most MAX_NPUS, evenly spaced.
        max_slices: Maximum number of slices of all NPUs.
    """
    known = np.unique(numpy_column(run.nodes["npu"], np.int64))
    missing = sorted(set(npus) - set(known.tolist()))
    if missing:
        raise ConfigError(
            f"{run.folder}: NPU {missing[0]} has no trace nodes; expected some of {len(known):,} that have"
        )
    if not len(known):
        raise ConfigError(f"{run.folder}: no trace nodes; expected a run with some")
    # first and last included; few NPUs may be chosen twice
    spaced = known[np.unique(np.linspace(0, len(known) - 1, MAX_NPUS).astype(int))]
    chosen = np.array(sorted(set(npus))) if npus else spaced
    arrows = _arrows_of_run(run, chosen)
    with perfetto_trace(path) as trace:
        counts = [
            _write_npu_of_run(trace, run, npu, position, arrows, max_slices // len(chosen))
            for position, npu in enumerate(chosen.tolist())
        ]
        slices, aggregated, left_out = map(sum, zip(*counts, strict=True))
        counters = _loads(trace, run) + _queues(trace, run)
        shown = RunTimeline(
            len(chosen), len(known) - len(chosen), slices, aggregated, len(arrows) // 2, counters, left_out
        )
        write_notes(trace, shown.notes())
    return shown


def _write_npu_of_run(
    trace: PerfettoTrace, run: Run, npu: int, position: int, arrow_of_row: dict[tuple[int, int], int], max_slices: int
) -> tuple[int, int, int]:
    """Write the lanes of an NPU; return the number of slices, of merged nodes, and of nodes left out."""
    nodes = run.nodes.take(arrow_numbers(np.flatnonzero(numpy_column(run.nodes["npu"]) == npu)))
    columns = {name: nodes[name].to_pylist() for name in ("row", "name", "kind", "lane", "bytes", "group")}
    begin_ns, end_ns = (numpy_column(nodes[name], np.int64) // _PS_PER_NS for name in ("start_ps", "finish_ps"))
    took_ps = numpy_column(nodes["finish_ps"], np.int64) - numpy_column(nodes["start_ps"], np.int64)
    lane_of_node = np.array(list(map(_lane, columns["kind"], columns["lane"], columns["name"])), object)
    names = sorted(set(lane_of_node) - {""}, key=_order)

    def slice_of(row: int) -> Slice:
        details: dict[str, Value] = {"row": columns["row"][row], "took_ps": int(took_ps[row])}
        if columns["bytes"][row]:
            details["bytes"] = columns["bytes"][row]
        if columns["group"][row] is not None:
            details["group"] = columns["group"][row]
        arrow = arrow_of_row.get((npu, columns["row"][row]))
        ends = () if arrow is None else (arrow,)
        both = (ends, ()) if columns["kind"][row] == "send" else ((), ends)
        return Slice(int(begin_ns[row]), int(end_ns[row]), columns["name"][row], details, *both)

    lanes = {name: np.flatnonzero(lane_of_node == name) for name in names}
    return write_npu(trace, npu, position, lanes, begin_ns, end_ns, slice_of, max_slices)


def _lane(kind: str, engine_lane: str | None, name: str) -> str:
    """Return the lane of a node; "" for a node that is not shown because it takes no time."""
    if kind in {"compute", "memory"}:
        return engine_lane or kind
    if kind == "noop":
        return ""
    axis = axis_of(name)
    what = {"send": "sends", "recv": "receives"}.get(kind, "collectives")
    return f"{axis} {what}" if axis else what


def _order(lane: str) -> tuple[int, str]:
    return (_LANES.index(lane), lane) if lane in _LANES else (len(_LANES), lane)


def _arrows_of_run(run: Run, npus: Int64) -> dict[tuple[int, int], int]:
    """Return the number of the arrow at each send and receive whose NPUs are both shown, by NPU and row."""
    kinds = set(pc.unique(run.nodes["kind"]).to_pylist())
    if not {"send", "recv"} <= kinds:
        return {}
    npu, row = (numpy_column(run.nodes[name], np.int64) for name in ("npu", "row"))
    try:
        sender = senders_of(run)
    except ValueError as error:
        if getattr(error, "exit_code", None) != ConfigError.exit_code:
            raise
        return {}
    recvs = np.flatnonzero(sender >= 0)
    both = recvs[np.isin(npu[recvs], npus) & np.isin(npu[sender[recvs]], npus)]
    arrows: dict[tuple[int, int], int] = {}
    for number, recv in enumerate(both.tolist(), 1):
        send = int(sender[recv])
        arrows[int(npu[recv]), int(row[recv])] = arrows[int(npu[send]), int(row[send])] = number
    return arrows


def _loads(trace: PerfettoTrace, run: Run) -> int:
    """Write counters of the busiest links, estimated from the times of messages."""
    if not (run.network.has_links and run.has(LINKS) and run.has(FLOWS) and len(run.flows)):
        return 0
    try:
        load = link_load(run, MAX_LINKS, STRETCHES)
    except ValueError as error:
        if getattr(error, "exit_code", None) != ConfigError.exit_code:
            raise
        return 0
    parent = trace.track("links: load, estimated from the times of messages")
    for rank, (link, share) in enumerate(zip(load.link.tolist(), load.share, strict=True)):
        track = trace.counter(_link(run, link), "%", parent, rank)
        _count(trace, track, load.edges_ps[:-1], np.round(share * 100, 2))
    return len(load.link)


def _queues(trace: PerfettoTrace, run: Run) -> int:
    """Write counters of the fullest shared buffers."""
    if run.queues is None or not len(run.queues):
        return 0
    link, time_ps, depth = (numpy_column(run.queues[name], np.int64) for name in ("link", "time_ps", "bytes"))
    fullest = np.zeros(int(link.max()) + 1, np.int64)
    np.maximum.at(fullest, link, depth)
    chosen = np.argsort(-fullest, kind="stable")[:MAX_QUEUES]
    chosen = chosen[fullest[chosen] > 0]
    parent = trace.track("queues: maximum bytes at the port")
    for rank, port in enumerate(chosen.tolist()):
        here = np.flatnonzero(link == port)
        here = here[np.argsort(time_ps[here], kind="stable")]
        _count(trace, trace.counter(_link(run, port), "B", parent, rank), time_ps[here], depth[here])
    return len(chosen)


def _count(
    trace: PerfettoTrace, counter_track: int, time_ps: NDArray[np.floating | np.integer], values: NDArray
) -> None:
    """Write a counter's values where they change."""
    last = None
    for time, value in zip(time_ps.tolist(), values.tolist(), strict=True):
        if value != last:
            trace.count(counter_track, int(time) // _PS_PER_NS, value)
            last = value


def _link(run: Run, link: int) -> str:
    return f"{run.links['src'][link].as_py()} → {run.links['dst'][link].as_py()}"


_NS_PER_MICRO = 1000


class TraceTimeline(NamedTuple):
    """Contents and omissions of a timeline."""

    npus: int  # Number of NPUs with lanes
    npus_left_out: int  # Number of NPUs without lanes
    which: str  # Description of the NPUs that are shown, if some are not
    slices: int  # Number of slices, including slices of several nodes
    aggregated: int  # Number of nodes that are merged into slices of several nodes
    left_out: int  # Number of nodes that are not shown: they have no start, or too many overlap
    flows: int  # Number of arrows from sends to receives, between nodes with slices of their own
    times: str  # "recorded"; "by dependencies" if the traces have durations only; "steps" if they have no times

    def notes(self) -> list[str]:
        """Return sentences about what is left out and what the times mean."""
        found = []
        if self.npus_left_out:
            found.append(f"{self.npus:,} of {self.npus + self.npus_left_out:,} NPUs, {self.which}")
        if self.aggregated:
            found.append(f"{self.aggregated:,} short nodes are merged with their neighbours")
        if self.left_out:
            found.append(f"{self.left_out:,} nodes are left out: they have no start, or too many overlap")
        if self.times == "by dependencies":
            found.append("no starts are recorded: nodes start as soon as their dependencies allow, whatever their lane")
        if self.times == "steps":
            found.append("no times are recorded: each node takes 1 us as soon as its dependencies allow")
        return found


class _NodeTimes(NamedTuple):
    """Times of the nodes of each rank."""

    begin_ns: list[Int64]  # int64[nodes] per rank, begin of each node; -1 = never
    end_ns: list[Int64]  # int64[nodes] per rank, end of each node
    how: str  # see TraceTimeline.times


def write_trace_timeline(
    path: str | os.PathLike[str], ranks: Sequence[statistics.Rank], max_slices: int = MAX_SLICES
) -> TraceTimeline:
    """Write the timeline of some NPUs.

    If there are too many nodes, the timeline shows fewer NPUs (et.communications.some_of); if one NPU alone has too
    many, it shows the longest nodes, and one slice for the shorter nodes between them.

    Args:
        path: File to write.
        ranks: The NPUs with their traces.
        max_slices: Maximum number of slices of all NPUs.
    """
    picked = statistics.some_of(ranks, min(max_slices, statistics.MAX_NODES))
    communications = statistics.communications_of(picked)
    times = _times(picked, communications)
    arrows = _arrows_of_traces(communications)
    ends_of_arrows: list[int] = []
    with perfetto_trace(path) as trace:
        counts = [
            _write_npu_of_traces(trace, rank, number, times, arrows, max_slices // len(picked), ends_of_arrows)
            for number, rank in enumerate(picked)
        ]
        slices, aggregated, left_out = map(sum, zip(*counts, strict=True))
        whole = len(ends_of_arrows) - len(set(ends_of_arrows))
        shares = len({id(rank.table) for rank in ranks}) < len(ranks)
        which = "one of each distinct trace" if shares else "evenly spaced"
        omitted = len(ranks) - len(picked)
        shown = TraceTimeline(len(picked), omitted, which, slices, aggregated, left_out, whole, times.how)
        write_notes(trace, shown.notes())
    return shown


def _write_npu_of_traces(
    trace: PerfettoTrace,
    rank: statistics.Rank,
    rank_index: int,
    times: _NodeTimes,
    arrow_of_member: Mapping[statistics.CommunicationMember, int],
    max_slices: int,
    ends_of_arrows: list[int],
) -> tuple[int, int, int]:
    """Write lanes of an NPU; return numbers of slices, of merged nodes and of nodes left out; append arrows' ends."""
    table, begin_ns, end_ns = rank.table, times.begin_ns[rank_index], times.end_ns[rank_index]
    lane_of_node = lanes_of(table)
    has_time = (begin_ns >= 0) & (end_ns >= begin_ns)  # neither never nor beyond 2^63 ns
    without_time = int(np.count_nonzero((lane_of_node != NO_LANE) & ~has_time))

    def slice_of(row: int) -> Slice:
        arrow = arrow_of_member.get(statistics.CommunicationMember(rank_index, row))
        ends = () if arrow is None else (arrow,)
        ends_of_arrows.extend(ends)
        both = (ends, ()) if LANES[lane_of_node[row]] == "sends" else ((), ends)
        name = table.names[row] or f"node {table.node_id[row]}"
        return Slice(int(begin_ns[row]), int(end_ns[row]), name, _details(table, row), *both)

    rows = {name: np.flatnonzero(has_time & (lane_of_node == lane)) for lane, name in enumerate(LANES)}
    lanes = {name: own for name, own in rows.items() if len(own)}
    slices, merged, left_out = write_npu(trace, rank.npu, rank.npu, lanes, begin_ns, end_ns, slice_of, max_slices)
    return slices, merged, left_out + without_time


def _times(
    ranks: Sequence[statistics.Rank], communications: Mapping[Key, Sequence[statistics.CommunicationMember]]
) -> _NodeTimes:
    """Return begin and end of each node of the ranks in ns: recorded, by dependencies, or in steps."""
    if statistics.has_starts(ranks):
        starts = [rank.table.start_time_micros for rank in ranks]
        first = min(int(start[start > 0].min()) for start in starts if np.any(start > 0))
        begin = [np.where(start > 0, start - first, -1) * _NS_PER_MICRO for start in starts]
        begin = [np.where(ns < 0, -1, ns) for ns in begin]
        end = [ns + rank.table.duration_micros * _NS_PER_MICRO for ns, rank in zip(begin, ranks, strict=True)]
        return _NodeTimes(begin, end, "recorded")
    is_timed = statistics.has_durations(ranks)
    schedule = statistics.earliest(ranks, communications, unit_micros=0 if is_timed else 1)
    begin = [np.where(start < 0, -1, start * _NS_PER_MICRO) for start in schedule.start_micros]
    end = [ns + took * _NS_PER_MICRO for ns, took in zip(begin, schedule.took_micros, strict=True)]
    return _NodeTimes(begin, end, "by dependencies" if is_timed else "steps")


def _arrows_of_traces(
    communications: Mapping[Key, Sequence[statistics.CommunicationMember]],
) -> dict[statistics.CommunicationMember, int]:
    """Return the number of the arrow at each send and receive whose counterpart is in the traces."""
    flows: dict[statistics.CommunicationMember, int] = {}
    for key, members in communications.items():
        if key[0] == "message" and len(members) == 2:
            number = len(flows) // 2 + 1
            flows.update(dict.fromkeys(members, number))
    return flows


def _details(table: TraceTable, row: int) -> dict[str, Value]:
    """Return the values that a click on a node shows."""
    details: dict[str, Value] = {"id": str(table.node_id[row])}
    for name in ("comm_size", "comm_src", "comm_dst", "comm_tag", "num_ops", "tensor_size"):
        value = int(getattr(table, name)[row])
        if value >= 0:
            details[name] = value
    if table.comm_type[row] >= 0:
        details["kind"] = collective_name(int(table.comm_type[row]))
        details["group"] = table.group_names[table.group[row]] or "all NPUs"
    if table.operators[row]:
        details["operators"] = table.operator_lists[table.operators[row]]
    return details
