"""How long plans take on an idle network.

A message of b bytes takes a latency and b / rate, every member sends and receives one message at a time at that rate,
and nothing else limits.
"""

import heapq
from collections import Counter
from typing import NamedTuple

from workload.lanes import buffers, unpack
from workload.plans import NONE, Plans
from workload.schedules import pack

_PS_PER_S = 1e12


class _Event(NamedTuple):
    """A message begins to come in, or has come; turn: which of those at the same time goes first."""

    time_ps: float
    turn: int
    member: int
    lane: int
    duration_ps: float
    begins: bool


def idle_ps(plans: Plans, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Picoseconds until the last member has done and sent all.

    Args:
        plans: of all members, not relative.
        size_bytes: the whole buffer.
        latency_ps: of a message of no bytes.
        bytes_per_s: of each member, one way.
    """
    return _Network(plans, size_bytes, latency_ps, _PS_PER_S / bytes_per_s).play()


class _Network:
    def __init__(self, plans: Plans, size_bytes: int, latency_ps: float, ps_per_byte: float) -> None:
        packed = pack([plans])
        self.steps, self.buffers = unpack(packed, 0), buffers(packed, 0)
        self.before_send_ps = [[a.latency_ps for a in plans.attributes_of(m)] for m in range(plans.members)]
        self.size_bytes, self.latency_ps, self.ps_per_byte = size_bytes, latency_ps, ps_per_byte
        self.done = [[0] * len(own) for own in self.steps]
        self.posted = [[False] * len(own) for own in self.steps]
        self.came: Counter[tuple[int, int]] = Counter()
        self.sender_free_ps, self.receiver_free_ps = [0.0] * plans.members, [0.0] * plans.members
        self.events: list[_Event] = []
        self.count = 0

    def play(self) -> float:
        now_ps = 0.0
        for member in range(len(self.steps)):
            self._advance(now_ps, member)
        while self.events:
            now_ps, _, member, lane, duration_ps, begins = heapq.heappop(self.events)
            if begins:
                self.receiver_free_ps[member] = max(now_ps, self.receiver_free_ps[member]) + duration_ps
                self._at(self.receiver_free_ps[member], member, lane, 0.0, begins=False)
            else:
                self.came[member, lane] += 1
                self._advance(now_ps, member)
        return max(now_ps, *self.sender_free_ps)

    def _at(self, time_ps: float, member: int, lane: int, duration_ps: float, *, begins: bool) -> None:
        self.count += 1
        heapq.heappush(self.events, _Event(time_ps, self.count, member, lane, duration_ps, begins))

    def _advance(self, now_ps: float, member: int) -> None:
        lanes = range(len(self.steps[member]))
        while sum(self._half_step(now_ps, member, lane) for lane in lanes):
            pass

    def _half_step(self, now_ps: float, member: int, lane: int) -> bool:
        """Post what the lane's next step sends, or end the step; whether it could."""
        steps, done = self.steps[member][lane], self.done[member]
        if done[lane] == len(steps):
            return False
        step = steps[done[lane]]
        if not self.posted[member][lane]:
            if step.dep_lane != NONE and done[step.dep_lane] <= step.dep_step:
                return False
            self.posted[member][lane] = True
            if step.send_peer != NONE:
                size = self.buffers[member][lane].wire_bytes(step.send_chunk, step.send_count, self.size_bytes)
                begin_ps = max(now_ps + self.before_send_ps[member][lane], self.sender_free_ps[member])
                self.sender_free_ps[member] = begin_ps + size * self.ps_per_byte
                arrives_ps = begin_ps + self.latency_ps
                self._at(arrives_ps, step.send_peer, step.send_lane, size * self.ps_per_byte, begins=True)
            return True
        if step.recv_peer != NONE:
            if not self.came[member, lane]:
                return False
            self.came[member, lane] -= 1
        done[lane] += 1
        self.posted[member][lane] = False
        return True
