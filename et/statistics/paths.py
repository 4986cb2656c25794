"""Earliest start of each node, over all ranks together, and the critical path across them.

A node starts when all its parents are done. A collective starts when all its members have arrived, and takes the
shortest of their durations, because the rest of the others' is waiting. A message arrives after its duration, counted
from the start of its send. Lanes are ignored: two kernels without a dependency may run at once.
"""

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nadi.et.order import children
from nadi.et.reshape.partners import LANES, NO_LANE, Key, lanes_of
from nadi.et.schema import NodeType
from nadi.et.statistics.ranks import CommunicationMember, Rank
from nadi.inputs.arrays import Int64

MAX_NODES = 2_000_000
MAX_STEPS = 20
_NONE = (-1, -1)
Communications = Mapping[Key, Sequence[CommunicationMember]]  # members by key, from communications_of


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

    def __init__(self, ranks: Sequence[Rank], found: Communications, unit_micros: int) -> None:
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
        self._members: dict[tuple[int, int], Sequence[CommunicationMember]] = {}
        self._absent: dict[int, int] = {}  # number of members that are not ready, by id of the list of members
        self._sends: dict[int, CommunicationMember] = {}  # sends that have begun, by id of the list of members
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
            self._sends[id(members)] = CommunicationMember(rank, row)
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

    def _receive(self, ends: Sequence[CommunicationMember]) -> None:
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


def earliest(ranks: Sequence[Rank], found: Communications, unit_micros: int = 0) -> EarliestTimes:
    """Return the earliest start and end of each node.

    Args:
        ranks: The traces of some NPUs.
        found: The members of each communication, from `communications_of` for the same ranks.
        unit_micros: The time in microseconds of nodes without a duration, METADATA nodes excepted.
    """
    return _Walk(ranks, found, unit_micros).run()


def critical_path(ranks: Sequence[Rank], communication_members: Communications) -> dict[str, Any]:
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
    lanes = {id(rank.table): lanes_of(rank.table) for rank in ranks}
    by_lane: dict[str, int] = {}
    by_rank: dict[int, int] = {}
    path: list[tuple[int, int, int, int, str]] = []
    at = last[1:] if last[0] >= 0 else _NONE
    while at != _NONE:
        rank, row = at
        took = int(schedule.took_micros[rank][row])
        lane = int(lanes[id(ranks[rank].table)][row])
        name = LANES[lane] if lane != NO_LANE else "metadata"
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


def _durations(rank: Rank, idle_micros: int) -> list[int]:
    """Return the duration of each row in microseconds; `idle_micros` for rows without one."""
    table = rank.table
    is_idle = (table.duration_micros == 0) & (table.type != NodeType.METADATA_NODE)
    return np.where(is_idle, idle_micros, table.duration_micros).tolist()
