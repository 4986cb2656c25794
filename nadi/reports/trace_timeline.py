"""The timeline of Chakra traces: lanes of each NPU and arrows from sends to receives, with bounded size."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nadi.et import TraceTable, collective_name
from nadi.et.reshape import LANES, NO_LANE, Key, lanes_of
from nadi.et.statistics import (
    MAX_NODES,
    CommunicationMember,
    Rank,
    communications_of,
    earliest,
    has_durations,
    has_starts,
    some_of,
)
from nadi.inputs.arrays import Int64
from nadi.reports.perfetto import PerfettoTrace, Slice, Value, perfetto_trace, write_notes, write_npu

MAX_SLICES = 200_000  # Number of slices of all NPUs
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
    path: str | os.PathLike[str], ranks: Sequence[Rank], max_slices: int = MAX_SLICES
) -> TraceTimeline:
    """Write the timeline of some NPUs.

    If there are too many nodes, the timeline shows fewer NPUs (et.communications.some_of); if one NPU alone has too
    many, it shows the longest nodes, and one slice for the shorter nodes between them.

    Args:
        path: File to write.
        ranks: The NPUs with their traces.
        max_slices: Maximum number of slices of all NPUs.
    """
    picked = some_of(ranks, min(max_slices, MAX_NODES))
    communications = communications_of(picked)
    times = _times(picked, communications)
    arrows = _arrows(communications)
    ends_of_arrows: list[int] = []
    with perfetto_trace(path) as trace:
        counts = [
            _write_npu(trace, rank, number, times, arrows, max_slices // len(picked), ends_of_arrows)
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


def _write_npu(
    trace: PerfettoTrace,
    rank: Rank,
    rank_index: int,
    times: _NodeTimes,
    arrow_of_member: Mapping[CommunicationMember, int],
    max_slices: int,
    ends_of_arrows: list[int],
) -> tuple[int, int, int]:
    """Write lanes of an NPU; return numbers of slices, of merged nodes and of nodes left out; append arrows' ends."""
    table, begin_ns, end_ns = rank.table, times.begin_ns[rank_index], times.end_ns[rank_index]
    lane_of_node = lanes_of(table)
    has_time = (begin_ns >= 0) & (end_ns >= begin_ns)  # neither never nor beyond 2^63 ns
    without_time = int(np.count_nonzero((lane_of_node != NO_LANE) & ~has_time))

    def slice_of(row: int) -> Slice:
        arrow = arrow_of_member.get(CommunicationMember(rank_index, row))
        ends = () if arrow is None else (arrow,)
        ends_of_arrows.extend(ends)
        both = (ends, ()) if LANES[lane_of_node[row]] == "sends" else ((), ends)
        name = table.names[row] or f"node {table.node_id[row]}"
        return Slice(int(begin_ns[row]), int(end_ns[row]), name, _details(table, row), *both)

    rows = {name: np.flatnonzero(has_time & (lane_of_node == lane)) for lane, name in enumerate(LANES)}
    lanes = {name: own for name, own in rows.items() if len(own)}
    slices, merged, left_out = write_npu(trace, rank.npu, rank.npu, lanes, begin_ns, end_ns, slice_of, max_slices)
    return slices, merged, left_out + without_time


def _times(ranks: Sequence[Rank], communications: Mapping[Key, Sequence[CommunicationMember]]) -> _NodeTimes:
    """Return begin and end of each node of the ranks in ns: recorded, by dependencies, or in steps."""
    if has_starts(ranks):
        starts = [rank.table.start_time_micros for rank in ranks]
        first = min(int(start[start > 0].min()) for start in starts if np.any(start > 0))
        begin = [np.where(start > 0, start - first, -1) * _NS_PER_MICRO for start in starts]
        begin = [np.where(ns < 0, -1, ns) for ns in begin]
        end = [ns + rank.table.duration_micros * _NS_PER_MICRO for ns, rank in zip(begin, ranks, strict=True)]
        return _NodeTimes(begin, end, "recorded")
    is_timed = has_durations(ranks)
    schedule = earliest(ranks, communications, unit_micros=0 if is_timed else 1)
    begin = [np.where(start < 0, -1, start * _NS_PER_MICRO) for start in schedule.start_micros]
    end = [ns + took * _NS_PER_MICRO for ns, took in zip(begin, schedule.took_micros, strict=True)]
    return _NodeTimes(begin, end, "by dependencies" if is_timed else "steps")


def _arrows(communications: Mapping[Key, Sequence[CommunicationMember]]) -> dict[CommunicationMember, int]:
    """Return the number of the arrow at each send and receive whose counterpart is in the traces."""
    flows: dict[CommunicationMember, int] = {}
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
