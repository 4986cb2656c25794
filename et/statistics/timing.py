"""Recorded times (arrivals, overlap, idle time), and earliest times with the critical path across NPUs."""

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nadi.et import communications
from nadi.et.order import children
from nadi.et.reader import collective_name
from nadi.et.schema import NodeType
from nadi.et.table import waited_micros
from nadi.inputs.arrays import Int64

# Percentiles of samples, and how many values they need.


def values_needed(percent: float) -> int:
    """Return how many values a percentile needs: 1 / (1 - percent / 100), so that one of them lies above it.

    With fewer values it would be their maximum by another name. A median or maximum needs one value.

    Args:
        percent: The percentile, 50 for the median.
    """
    return round(100 / (100 - percent)) if 50 < percent < 100 else 1


def percentile(values: ArrayLike, percent: float) -> float | None:
    """Return the smallest value with `percent` % of all at or below it; None if there are too few values.

    Args:
        values: The sample, in any order.
        percent: The percentile, 50 for the median.
    """
    found = np.asarray(values)
    if found.size < values_needed(percent):
        return None
    share = round(percent / 100, 12)  # 99.9 / 100 is above 0.999, and would give the maximum of 1,000 values
    return np.quantile(found, share, method="inverted_cdf").item()  # type: ignore[no-any-return]


MAX_SLOWEST = 10
_WORK = (communications.COMPUTE_LANE, communications.MEMORY_LANE)


def has_starts(ranks: Sequence[communications.Rank]) -> bool:
    """Return whether any node has a recorded start.

    Args:
        ranks: The traces of some NPUs.
    """
    return any(bool(np.any(rank.table.start_time_micros > 0)) for rank in ranks)


def has_durations(ranks: Sequence[communications.Rank]) -> bool:
    """Return whether nodes have durations: those of accelerators, as generated traces have times of hosts only.

    Args:
        ranks: The traces of some NPUs.
    """
    tables = {id(rank.table): rank.table for rank in ranks}.values()
    others = [table.duration_micros[~table.is_cpu_op] for table in tables]
    durations = others if any(map(len, others)) else [table.duration_micros for table in tables]
    return any(bool(np.any(micros > 0)) for micros in durations)


def arrivals(
    ranks: Sequence[communications.Rank],
    communication_members: Mapping[communications.Key, Sequence[communications.CommunicationMember]],
) -> dict[str, Any] | None:
    """Return transfer and waiting of collectives that have two or more members with durations.

    The last member does not wait: the shortest duration is the transfer, and the rest of the others' is waiting. That
    needs no common clock. Arrival skew, the time between the first start and the last one, does. Waiting that a
    converter has removed from durations counts (WAIT_MICROS).

    Returns:
        "clock": whether starts are recorded; "kinds": sums and quantiles in microseconds by kind and group; "ranks":
        "waiting_micros" and number of "late" arrivals of each rank; "most_waiting": the collectives with the longest
        waiting. None without durations.

    Args:
        ranks: The traces of some NPUs.
        communication_members: The members of each communication, from `communications_of` for the same ranks.
    """
    kinds: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    waiting = np.zeros(len(ranks), np.int64)
    late = np.zeros(len(ranks), np.int64)
    clocks = has_starts(ranks)
    tables = {id(rank.table): rank.table for rank in ranks}
    waited = {number: waited_micros(table) for number, table in tables.items()}
    for key, members in communication_members.items():
        if key[0] != "collective" or len(members) < 2:
            continue
        took = np.array([ranks[m.rank].table.duration_micros[m.row] for m in members], np.int64)
        if took.min() <= 0:
            continue
        waits = np.array([waited[id(ranks[m.rank].table)][m.row] for m in members], np.int64)
        # As recorded, before the converter removed waiting
        took += waits
        starts = np.array([ranks[m.rank].table.start_time_micros[m.row] for m in members], np.int64) - waits
        first = members[0]
        table = ranks[first.rank].table
        own = np.array([m.rank for m in members])
        # A rank is in a collective once, so that no index repeats
        waiting[own] += took - took.min()
        # Without clocks, the member that took least time arrived last
        last = int(np.argmax(starts)) if clocks else int(np.argmin(took))
        late[own[last]] += 1
        collective = {
            "name": table.names[first.row],
            "group": key[1],
            "number": key[-1],
            "members": len(members),
            "bytes": int(table.comm_size[first.row]),
            "transfer_micros": int(took.min()),
            "waiting_micros": int((took - took.min()).sum()),
            "skew_micros": int(starts.max() - starts.min()) if clocks else None,
            "last_npu": ranks[own[last]].npu,
        }
        kinds.setdefault((collective_name(int(table.comm_type[first.row])), key[1]), []).append(collective)
    if not kinds:
        return None
    every = [collective | {"kind": kind} for (kind, _), collectives in kinds.items() for collective in collectives]
    worst = sorted(every, key=lambda collective: -collective["waiting_micros"])[:MAX_SLOWEST]
    return {
        "clock": clocks,
        "kinds": [{"kind": kind, "group": group} | _summary(members) for (kind, group), members in kinds.items()],
        "ranks": [
            {"npu": rank.npu, "waiting_micros": int(w), "late": int(count)}
            for rank, w, count in zip(ranks, waiting, late, strict=True)
        ],
        "most_waiting": worst,
    }


def overlap(ranks: Sequence[communications.Rank]) -> list[dict[str, Any]] | None:
    """Return how long each rank computes, communicates, does both and does neither, from first start to last end.

    Compute is that of the accelerator with its memory. The span covers all nodes, including the host's and the waiting
    that a converter has removed (WAIT_MICROS): the same as measured spans of `nadi compare --measured`, if the run has
    all nodes. The result is None if no start is recorded.

    Args:
        ranks: The traces of some NPUs.
    """
    if not has_starts(ranks):
        return None
    rows = []
    for rank in ranks:
        table, lanes = rank.table, communications.lanes_of(rank.table)
        is_timed = (table.duration_micros > 0) & (table.start_time_micros > 0)
        begin, end = table.start_time_micros, table.start_time_micros + table.duration_micros
        compute = _union(begin[is_timed & np.isin(lanes, _WORK)], end[is_timed & np.isin(lanes, _WORK)])
        is_network = is_timed & np.isin(lanes, communications.COMMUNICATION_LANES)
        network = _union(begin[is_network], end[is_network])
        # Time in which the rank computes, communicates or does both
        both = _union(np.concatenate([compute[0], network[0]]), np.concatenate([compute[1], network[1]]))
        computes, sends, busy = (int((union[1] - union[0]).sum()) for union in (compute, network, both))
        waited = waited_micros(table)
        # Without the converter, nodes would have begun earlier by what they waited
        span = int(end[is_timed].max() - (begin - waited)[is_timed].min()) if is_timed.any() else 0
        rows.append(
            {
                "npu": rank.npu,
                "span_micros": span,
                "compute_micros": computes,
                "communication_micros": sends,
                # Times when both run are in `computes` and in `sends`, but only once in `busy`
                "overlap_micros": computes + sends - busy,
                "exposed_micros": busy - computes,
                "idle_micros": span - busy,
            }
        )
    return rows


def _summary(collectives: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return sums and quantiles over collectives of a kind and group, with the times that `arrivals` describes."""
    transfer = np.array([collective["transfer_micros"] for collective in collectives])
    waits = np.array([collective["waiting_micros"] for collective in collectives])
    found: dict[str, Any] = {
        "count": len(collectives),
        "transfer_micros": int(transfer.sum()),
        "median_transfer_micros": float(np.median(transfer)),
        "waiting_micros": int(waits.sum()),
    }
    skews = [collective["skew_micros"] for collective in collectives if collective["skew_micros"] is not None]
    if skews:
        found |= {
            "median_skew_micros": float(np.median(skews)),
            "p95_skew_micros": percentile(skews, 95),
            "greatest_skew_micros": int(max(skews)),
        }
    return found


def _union(begin: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Return begins and ends of disjoint intervals that cover the same times."""
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    # Sorted by begin, an interval begins a new union if it is after every earlier end
    begin, end = begin[order], np.maximum.accumulate(end[order])
    # For 0-5, 2-4, 4-9 and 12-13 the running ends are 5 5 9 13: 12 is after 9, so the union is 0-9 and 12-13
    is_new = np.concatenate([[True], begin[1:] > end[:-1]])
    last = np.concatenate([np.flatnonzero(is_new)[1:] - 1, [len(begin) - 1]])
    return begin[is_new], end[last]


# Earliest start of each node, over all ranks together, and the critical path across them.
#
# A node starts when all its parents are done. A collective starts when all its members have arrived, and takes the
# shortest of their durations, because the rest of the others' is waiting. A message arrives after its duration, counted
# from the start of its send. Lanes are ignored: two kernels without a dependency may run at once.


MAX_NODES = 2_000_000
MAX_STEPS = 20
_NONE = (-1, -1)
Communications = Mapping[
    communications.Key, Sequence[communications.CommunicationMember]
]  # members by key, from communications_of


@dataclasses.dataclass(eq=False)
class EarliestTimes:
    """Earliest start and end of nodes."""

    # int64[n] per rank, times of its rows; -1 = never, because a partner is missing
    start_micros: list[Int64]
    end_micros: list[Int64]
    took_micros: list[Int64]  # int64[n] per rank, duration of each row without waiting
    before: list[list[tuple[int, int]]]  # parent (rank, row) that ends last, of each rank's row; (-1, -1) = none


class _Walk:
    """Traversal of the rows of all ranks in an order that lets all run; `rank` is an index, times are in us."""

    def __init__(self, ranks: Sequence[communications.Rank], found: Communications, unit_micros: int) -> None:
        self._ranks = ranks
        sizes = [len(rank.table) for rank in ranks]
        self.start = [[-1] * n for n in sizes]  # earliest start of each rank's rows
        self.end = [[-1] * n for n in sizes]  # earliest end
        self.took = [_durations(rank, unit_micros) for rank in ranks]  # duration
        self.before = [[_NONE] * n for n in sizes]  # the row that determines the start
        self._ready = [[0] * n for n in sizes]  # when the parents that have ended so far allow a start
        self._waits = [np.diff(rank.table.dep_ptr).tolist() for rank in ranks]  # number of parents that have not ended
        of_table = {id(rank.table): rank.table for rank in ranks}
        children_of_table = {key: tuple(a.tolist() for a in children(table)) for key, table in of_table.items()}
        self._children = [children_of_table[id(rank.table)] for rank in ranks]
        # members of the communication of (rank, row)
        self._members: dict[tuple[int, int], Sequence[communications.CommunicationMember]] = {}
        self._absent: dict[int, int] = {}  # number of members that are not ready, by id of the list of members
        self._sends: dict[
            int, communications.CommunicationMember
        ] = {}  # sends that have begun, by id of the list of members
        self._queue: deque[tuple[int, int]] = deque()  # rows that have ended and whose children have not been visited
        for members in found.values():
            self._absent[id(members)] = len(members)
            # The rest of longer durations is waiting for other members
            shortest = min(self.took[m.rank][m.row] for m in members)
            for member in members:
                self._members[member] = members
                self.took[member.rank][member.row] = shortest

    def run(self) -> EarliestTimes:
        """Traverse the rows of all ranks, and return when each can end at the earliest."""
        for rank, waits in enumerate(self._waits):
            for row, left in enumerate(waits):
                if left == 0:
                    self._arrive(rank, row)
        while self._queue:
            rank, row = self._queue.popleft()
            child_ptr, child = self._children[rank]
            end, waits, ready = self.end[rank][row], self._waits[rank], self._ready[rank]
            for other in child[child_ptr[row] : child_ptr[row + 1]]:
                # The parent that ends last decides, of equal ones the one that is visited last
                if end >= ready[other]:
                    ready[other] = end
                    self.before[rank][other] = (rank, row)
                waits[other] -= 1
                if waits[other] == 0:
                    self._arrive(rank, other)
        columns = (self.start, self.end, self.took)
        starts, ends, durations = ([np.array(own, np.int64) for own in column] for column in columns)
        return EarliestTimes(starts, ends, durations, self.before)

    def _arrive(self, rank: int, row: int) -> None:
        """Handle a row whose parents are all done."""
        members = self._members.get((rank, row))
        if members is None:
            self._do(rank, row, self._ready[rank][row])
            return
        is_message = self._ranks[rank].table.type[row] != NodeType.COMM_COLL_NODE
        if is_message and self._ranks[rank].table.type[row] == NodeType.COMM_SEND_NODE:
            self._do(rank, row, self._ready[rank][row])
            self._sends[id(members)] = communications.CommunicationMember(rank, row)
        self._absent[id(members)] -= 1
        if self._absent[id(members)]:
            return
        if is_message:
            self._receive(members)
            return
        # All members begin when the last one is ready, and what delayed that one delayed them
        last = max(members, key=lambda m: self._ready[m.rank][m.row])
        for member in members:
            self.before[member.rank][member.row] = self.before[last.rank][last.row]
            self._do(member.rank, member.row, self._ready[last.rank][last.row])

    def _receive(self, ends: Sequence[communications.CommunicationMember]) -> None:
        """Handle a message when both ends are ready, or the only end in the traces."""
        send = self._sends.get(id(ends))
        for member in ends:
            if member == send:
                continue
            begin = self._ready[member.rank][member.row]
            if send is not None and self.start[send.rank][send.row] > begin:
                begin = self.start[send.rank][send.row]
                self.before[member.rank][member.row] = self.before[send.rank][send.row]
            self._do(member.rank, member.row, begin)

    def _do(self, rank: int, row: int, begin_micros: int) -> None:
        """Let a row begin at a time."""
        self.start[rank][row] = begin_micros
        self.end[rank][row] = begin_micros + self.took[rank][row]
        self._queue.append((rank, row))


def earliest(ranks: Sequence[communications.Rank], found: Communications, unit_micros: int = 0) -> EarliestTimes:
    """Return the earliest start and end of each node.

    Args:
        ranks: The traces of some NPUs.
        found: The members of each communication, from `communications_of` for the same ranks.
        unit_micros: The time in microseconds of nodes without a duration, METADATA nodes excepted.
    """
    return _Walk(ranks, found, unit_micros).run()


def critical_path(ranks: Sequence[communications.Rank], communication_members: Communications) -> dict[str, Any]:
    """Return the longest path through the nodes of all ranks, by recorded durations.

    The result has "micros", the length of the path; "by_lane" and "by_rank", the parts of this time; "nodes", the
    number of nodes on the path; "steps", the longest of these nodes, in order; and "unfinished", the number of nodes
    that never start because a partner is missing.

    Args:
        ranks: The traces of some NPUs.
        communication_members: The members of each communication, from `communications_of` for the same ranks.
    """
    schedule = earliest(ranks, communication_members)
    last = max(
        ((int(end.max()), rank, int(end.argmax())) for rank, end in enumerate(schedule.end_micros) if len(end)),
        key=lambda found: (found[0], -found[1]),
        default=(0, -1, -1),
    )
    lanes = {id(rank.table): communications.lanes_of(rank.table) for rank in ranks}
    by_lane: dict[str, int] = {}
    by_rank: dict[int, int] = {}
    path: list[tuple[int, int, int, int, str]] = []
    at = last[1:] if last[0] >= 0 else _NONE
    while at != _NONE:
        rank, row = at
        took = int(schedule.took_micros[rank][row])
        lane = int(lanes[id(ranks[rank].table)][row])
        name = communications.LANES[lane] if lane != communications.NO_LANE else "metadata"
        by_lane[name] = by_lane.get(name, 0) + took
        by_rank[ranks[rank].npu] = by_rank.get(ranks[rank].npu, 0) + took
        path.append((took, len(path), rank, row, name))
        at = schedule.before[rank][row]
    # The path runs from its end to its start: the longest steps, then in the order of execution
    timed = [step for step in path if step[0]]
    longest = sorted(sorted(timed, key=lambda step: (-step[0], step[1]))[:MAX_STEPS], key=lambda step: -step[1])
    return {
        "micros": max(last[0], 0),
        "nodes": len(path),
        "by_lane": dict(sorted(by_lane.items(), key=lambda item: -item[1])),
        "by_rank": dict(sorted(by_rank.items(), key=lambda item: -item[1])),
        "steps": [
            {
                "npu": ranks[rank].npu,
                "id": int(ranks[rank].table.node_id[row]),
                "name": ranks[rank].table.names[row],
                "lane": lane,
                "start_micros": int(schedule.start_micros[rank][row]),
                "micros": took,
            }
            for took, _, rank, row, lane in longest
        ],
        "unfinished": sum(int(np.count_nonzero(end < 0)) for end in schedule.end_micros),
    }


def _durations(rank: communications.Rank, idle_micros: int) -> list[int]:
    """Return the duration of each row in microseconds; `idle_micros` for rows without one."""
    table = rank.table
    is_idle = (table.duration_micros == 0) & (table.type != NodeType.METADATA_NODE)
    return np.where(is_idle, idle_micros, table.duration_micros).tolist()
