"""The timeline of Chakra traces: lanes of each NPU and arrows from sends to receives, with bounded size."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from et import TraceTable, collective_name
from et.reshape.partners import LANES, NO_LANE, Key, lanes_of
from et.statistics.paths import MAX_NODES, earliest
from et.statistics.ranks import CommunicationMember, Rank, communications_of, some_of
from et.statistics.timing import has_starts
from nadi.reports.timelines.lanes import Slice, write_lane
from nadi.reports.timelines.perfetto import PerfettoTrace, Value, perfetto_trace

Int64 = NDArray[np.int64]

MAX_SLICES = 200_000
"""Number of slices of all NPUs."""
_NS_PER_MICRO = 1000


class TraceTimeline(NamedTuple):
    """Contents and omissions of a timeline.

    Attributes:
        npus: Number of NPUs with lanes.
        npus_left_out: Number of NPUs without lanes.
        which: Description of the NPUs that are shown, if some are not.
        slices: Number of slices, including slices of several nodes.
        aggregated: Number of nodes that are merged into slices of several nodes.
        left_out: Number of nodes that are not shown: they have no start, or too many overlap.
        flows: Number of arrows from sends to receives, between nodes with slices of their own.
        times: "recorded"; "by dependencies" if the traces have durations only; "steps" if they have no times.
    """

    npus: int
    npus_left_out: int
    which: str
    slices: int
    aggregated: int
    left_out: int
    flows: int
    times: str

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


class _Times(NamedTuple):
    """begin_ns, end_ns: int64 for each rank's rows, -1 = never; how: see TraceTimeline.times."""

    begin_ns: list[Int64]
    end_ns: list[Int64]
    how: str


def write_timeline(path: str | os.PathLike[str], ranks: Sequence[Rank], max_slices: int = MAX_SLICES) -> TraceTimeline:
    """Write the timeline of some NPUs.

    If there are too many nodes, the timeline shows fewer NPUs (et.statistics.ranks.some_of); if one NPU alone has too
    many,
    it shows the longest nodes, and one slice for the shorter nodes between them.

    Args:
        path: Path of the file to write.
        ranks: NPUs and their traces.
        max_slices: Number of slices of all NPUs.

    Raises:
        TraceError: The dependencies have a cycle.
        OutputError: The file cannot be written.
    """
    picked = some_of(ranks, min(max_slices, MAX_NODES))
    found = communications_of(picked)
    times = _times(picked, found)
    flows = _flows(found)
    slices = aggregated = left_out = 0
    seen: list[int] = []
    with perfetto_trace(path) as trace:
        for number, rank in enumerate(picked):
            own = _LaneWriter(trace, rank, number, times, flows, max_slices // len(picked))
            own.write()
            slices += own.slices
            aggregated += own.aggregated
            left_out += own.left_out
            seen += own.flows_seen
        whole = len(seen) - len(set(seen))
        shares = len({id(rank.table) for rank in ranks}) < len(ranks)
        which = "one of each distinct trace" if shares else "evenly spaced"
        shown = TraceTimeline(
            len(picked), len(ranks) - len(picked), which, slices, aggregated, left_out, whole, times.how
        )
        _write_notes(trace, shown)
    return shown


class _LaneWriter:
    """Writer of the lanes of one NPU."""

    def __init__(
        self,
        trace: PerfettoTrace,
        rank: Rank,
        number: int,
        times: _Times,
        flows: Mapping[CommunicationMember, int],
        most: int,
    ) -> None:
        self._trace, self._rank, self._number, self._flows, self._most = trace, rank, number, flows, most
        self._begin, self._end = times.begin_ns[number], times.end_ns[number]
        self._lanes = lanes_of(rank.table)
        self.slices = self.aggregated = self.left_out = 0
        self.flows_seen: list[int] = []

    def write(self) -> None:
        table = self._rank.table
        process = self._trace.process(f"NPU {self._rank.npu}", self._rank.npu + 1, self._rank.npu)
        has_time = (self._begin >= 0) & (self._end >= self._begin)  # neither never nor beyond 2^63 ns
        there = (self._lanes != NO_LANE) & has_time
        self.left_out = int(np.count_nonzero((self._lanes != NO_LANE) & ~has_time))
        alone = np.zeros(len(table), np.bool_)
        longest = np.argsort(-(self._end - self._begin)[there], kind="stable")[: self._most]
        alone[np.flatnonzero(there)[longest]] = True
        for lane, name in enumerate(LANES):
            rows = np.flatnonzero(there & (self._lanes == lane))
            if len(rows):
                rows = rows[np.lexsort((-self._end[rows], self._begin[rows]))]
                made = self._slices(rows.tolist(), alone)
                self.slices += len(made)
                self.left_out += write_lane(self._trace, name, process, made, lane)

    def _slices(self, rows: Sequence[int], alone: NDArray[np.bool_]) -> list[Slice]:
        made: list[Slice] = []
        together: list[int] = []
        for row in rows:
            if alone[row]:
                made += self._merged_slice(together)
                together = []
                made.append(self._slice(row))
            else:
                together.append(row)
        return [*made, *self._merged_slice(together)]

    def _slice(self, row: int) -> Slice:
        table = self._rank.table
        flow = self._flows.get(CommunicationMember(self._number, row))
        ends = () if flow is None else (flow,)
        self.flows_seen += ends
        is_send = self._lanes[row] == LANES.index("sends")
        name = table.names[row] or f"node {table.node_id[row]}"
        details = _details(table, row)
        begin, end = int(self._begin[row]), int(self._end[row])
        return Slice(begin, end, name, details, ends if is_send else (), () if is_send else ends)

    def _merged_slice(self, rows: Sequence[int]) -> list[Slice]:
        """Return one slice for the nodes between longer ones."""
        if not rows:
            return []
        self.aggregated += len(rows)
        begin, end = int(self._begin[rows].min()), int(self._end[rows].max())
        busy = int((self._end[rows] - self._begin[rows]).sum())
        details: dict[str, Value] = {"nodes": len(rows), "together_ns": busy}
        return [Slice(begin, end, f"{len(rows):,} short nodes", details)]


def _times(ranks: Sequence[Rank], found: Mapping[Key, Sequence[CommunicationMember]]) -> _Times:
    if has_starts(ranks):
        starts = [rank.table.start_time_micros for rank in ranks]
        first = min(int(start[start > 0].min()) for start in starts if np.any(start > 0))
        begin = [np.where(start > 0, start - first, -1) * _NS_PER_MICRO for start in starts]
        begin = [np.where(ns < 0, -1, ns) for ns in begin]
        end = [ns + rank.table.duration_micros * _NS_PER_MICRO for ns, rank in zip(begin, ranks, strict=True)]
        return _Times(begin, end, "recorded")
    has_durations = any(bool(np.any(rank.table.duration_micros > 0)) for rank in ranks)
    schedule = earliest(ranks, found, unit_micros=0 if has_durations else 1)
    begin = [np.where(start < 0, -1, start * _NS_PER_MICRO) for start in schedule.start_micros]
    end = [ns + took * _NS_PER_MICRO for ns, took in zip(begin, schedule.took_micros, strict=True)]
    return _Times(begin, end, "by dependencies" if has_durations else "steps")


def _flows(found: Mapping[Key, Sequence[CommunicationMember]]) -> dict[CommunicationMember, int]:
    """Return the number of the arrow at each send and receive whose counterpart is in the traces."""
    flows: dict[CommunicationMember, int] = {}
    for key, members in found.items():
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


def _write_notes(trace: PerfettoTrace, shown: TraceTimeline) -> None:
    """Write the notes on a track of their own, which the UI shows first."""
    notes = shown.notes()
    if notes:
        track = trace.track("notes on this timeline")
        for note in notes:
            trace.instant(track, 0, note)
