"""Closed forms once more, the slow way: every NPU an object, one heap, lists of rows.

At one moment, of each NPU: sends that have left, lanes, messages that are in, collectives that begin to run, those that
are done; alike ones by row. After each of these all rows that are ready start.
"""

import heapq
from fractions import Fraction
from math import ceil, floor
from types import SimpleNamespace

NOOP, COMPUTE, MEMORY, SEND, RECV, COLLECTIVE = range(6)
LANES = 4
COMPUTE_LANE = 1
LEFT, LANE, ARRIVED, RUNS, TOGETHER, POSTED = 0, 1, 1 + LANES, 2 + LANES, 3 + LANES, 4 + LANES


class Simulator:
    """collective(schedule, group, bytes) and message(src, dst, bytes) -> (hold, left, total) give picoseconds.

    slowdown: of what is on the compute lane while a collective of that lane runs, a Fraction; launch(schedule) is the
    time before its first step. slow: (npu, from ps, to ps, factor) of computation that begins in that time.
    """

    def __init__(
        self, program, collective, message, port, *, concurrent=False, slowdown=Fraction(1), launch=None, slow=()
    ):
        self.slowdown, self.launch, self.slow = slowdown, launch or (lambda _: 0), slow
        self.program, self.collective, self.message, self.port = program, collective, message, port
        self.serial = not concurrent
        self.heap, self.arrivals, self.port_free, self.now = [], {}, {}, 0
        self.npus = [self.npu(n) for n in range(program.npus)]

    def npu(self, number):
        p = self.program
        first, end = (int(p.trace_ptr[p.trace_of_npu[number] + i]) for i in (0, 1))
        groups = p.slot_group[p.slot_ptr[number] : p.slot_ptr[number + 1]].tolist()
        rows = [
            SimpleNamespace(
                number=i - first, kind=int(p.node_kind[i]), lane=int(p.node_lane[i]),
                duration=int(p.node_duration_ps[i]), size=int(p.node_bytes[i]), peer=number + int(p.node_peer[i]),
                channel=int(p.node_channel[i]), tag=int(p.node_tag[i]), seq=int(p.node_seq[i]),
                schedule=int(p.node_schedule[i]),
                group=groups[p.node_group[i]] if p.node_kind[i] == COLLECTIVE else -1,
                left=int(p.node_deps[i]), children=p.child[p.child_ptr[i] : p.child_ptr[i + 1]].tolist(),
                start=-1, finish=-1, is_in=False, waits_for_turn=False, version=0,
            )
            for i in range(first, end)
        ]  # fmt: skip
        ready = [row for row in rows if row.left == 0]
        return SimpleNamespace(
            number=number, rows=rows, ready=ready, busy=[None] * LANES, queue=[[] for _ in range(LANES)], done={},
            running=0, left=Fraction(0), since=0,
        )  # fmt: skip

    def run(self):
        for npu in self.npus:
            self.settle(npu)
        while self.heap:
            self.now, number, what, row_number, version = heapq.heappop(self.heap)
            npu = self.npus[number]
            row = npu.rows[row_number]
            if what == LANE + COMPUTE_LANE and version != row.version:
                continue
            self.happens(npu, what, row)
            self.settle(npu)
        return self

    def settle(self, npu):
        while npu.ready:
            self.start(npu, npu.ready.pop(0))

    def later(self, time, npu, what, row):
        heapq.heappush(self.heap, (time, npu.number, what, row.number, row.version))

    def pace(self, npu):
        return self.slowdown if npu.running else Fraction(1)

    def runs(self, npu, by):
        row = npu.busy[COMPUTE_LANE]
        if row is None:
            npu.running += by
            return
        npu.left -= (self.now - npu.since) / self.pace(npu)
        npu.since = self.now
        npu.running += by
        row.version += 1
        self.later(self.now + ceil(npu.left * self.pace(npu)), npu, LANE + COMPUTE_LANE, row)

    def takes(self, npu, row):
        duration = row.duration
        if row.kind == COMPUTE:
            for number, begin, end, factor in self.slow:
                if number == npu.number and begin <= self.now < end:
                    duration = floor(duration * Fraction(round(1024 * factor), 1024))
        if row.lane != COMPUTE_LANE:
            return duration
        npu.left, npu.since = Fraction(duration), self.now
        return ceil(duration * self.pace(npu))

    def happens(self, npu, what, row):
        if what == RUNS:
            self.runs(npu, 1)
            return
        if what == TOGETHER and row.lane == COMPUTE_LANE:
            self.runs(npu, -1)
        if what == ARRIVED:
            row.is_in = True
            if row.start >= 0:
                self.finish(npu, row)
            return
        if what == POSTED:
            self.send(npu, row)
            return
        if LANE <= what < ARRIVED:
            lane = what - LANE
            npu.busy[lane] = None
            self.free(npu, lane)
        self.finish(npu, row)

    def free(self, npu, lane):
        if npu.queue[lane]:
            npu.ready.append(npu.queue[lane].pop(0))

    def start(self, npu, row):
        if row.kind in (COMPUTE, MEMORY):
            if npu.busy[row.lane] is not None:
                npu.queue[row.lane].append(row)
                return
            row.start = self.now
            duration = self.takes(npu, row)
            if duration == 0:
                self.free(npu, row.lane)
                self.finish(npu, row)
                return
            npu.busy[row.lane] = row
            self.later(self.now + duration, npu, LANE + row.lane, row)
        elif row.kind == COLLECTIVE:
            self.start_collective(npu, row)
        else:
            row.start = self.now
            if row.kind == SEND and row.duration > 0:
                self.later(self.now + row.duration, npu, POSTED, row)
            elif row.kind == SEND:
                self.send(npu, row)
            elif row.kind == NOOP or row.is_in:
                self.finish(npu, row)

    def start_collective(self, npu, row):
        if self.serial and npu.done.get(row.group, 0) != row.seq:
            row.waits_for_turn = True
            return
        row.start = self.now
        if row.schedule < 0:
            self.finish(npu, row)
            return
        launch = self.launch(row.schedule)
        if row.lane == COMPUTE_LANE and launch:
            self.later(self.now + launch, npu, RUNS, row)
        elif row.lane == COMPUTE_LANE:
            self.runs(npu, 1)
        self.join(npu, row)

    def join(self, npu, row):
        here = self.arrivals.setdefault((row.group, row.seq), [])
        here.append((npu, row))
        p = self.program
        if len(here) == p.group_ptr[row.group + 1] - p.group_ptr[row.group]:
            for member, its_row in here:
                self.later(self.now + self.collective(row.schedule, row.group, row.size), member, TOGETHER, its_row)

    def send(self, npu, row):
        hold, left, total = self.message(npu.number, row.peer, row.size)
        port = npu.number, self.port(npu.number, row.peer)
        free = self.port_free.get(port, 0)
        begin = max(self.now, free)
        self.port_free[port] = begin + hold
        line = npu.number, row.peer, "line", row.channel
        if row.channel >= 0:  # it waits for its own connection only, but its last byte leaves after all before it
            ready = max(self.now, self.port_free.get(line, 0))
            begin = max(ready, free + hold - left)
            self.port_free[line] = begin + left
            self.port_free[port] = max(ready, free) + hold
        peer = self.npus[row.peer]
        (receive,) = (
            other for other in peer.rows
            if other.kind == RECV and (other.peer, other.tag, other.seq) == (npu.number, row.tag, row.seq)
        )  # fmt: skip
        self.later(begin + left, npu, LEFT, row)
        self.later(begin + total, peer, ARRIVED, receive)

    def finish(self, npu, row):
        row.finish = self.now
        if row.kind == COLLECTIVE and self.serial:
            npu.done[row.group] = npu.done.get(row.group, 0) + 1
            npu.ready += [
                r for r in npu.rows if r.waits_for_turn and (r.group, r.seq) == (row.group, npu.done[row.group])
            ]
        for child in row.children:
            npu.rows[child].left -= 1
            if npu.rows[child].left == 0:
                npu.ready.append(npu.rows[child])
