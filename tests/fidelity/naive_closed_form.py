"""Closed forms once more, the slow way: every NPU an object, one heap, lists of rows.

At one moment, of each NPU: sends that have left, lanes, messages that are in, collectives that are done; alike ones by
row. After each of these all rows that are ready start.
"""

import heapq
from types import SimpleNamespace

NOOP, COMPUTE, MEMORY, SEND, RECV, COLLECTIVE = range(6)
LANES = 4
LEFT, LANE, ARRIVED, TOGETHER, POSTED = 0, 1, 1 + LANES, 2 + LANES, 3 + LANES


class Simulator:
    """collective(schedule, group, bytes) and message(src, dst, bytes) -> (hold, left, total) give picoseconds."""

    def __init__(self, program, collective, message, port, *, concurrent=False):
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
                start=-1, finish=-1, is_in=False, waits_for_turn=False,
            )
            for i in range(first, end)
        ]  # fmt: skip
        ready = [row for row in rows if row.left == 0]
        return SimpleNamespace(
            number=number, rows=rows, ready=ready, busy=[None] * LANES, queue=[[] for _ in range(LANES)], done={}
        )

    def run(self):
        for npu in self.npus:
            self.settle(npu)
        while self.heap:
            self.now, number, what, row_number = heapq.heappop(self.heap)
            npu = self.npus[number]
            self.happens(npu, what, npu.rows[row_number])
            self.settle(npu)
        return self

    def settle(self, npu):
        while npu.ready:
            self.start(npu, npu.ready.pop(0))

    def later(self, time, npu, what, row):
        heapq.heappush(self.heap, (time, npu.number, what, row.number))

    def happens(self, npu, what, row):
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
            if row.duration == 0:
                self.free(npu, row.lane)
                self.finish(npu, row)
                return
            npu.busy[row.lane] = row
            self.later(self.now + row.duration, npu, LANE + row.lane, row)
        elif row.kind == COLLECTIVE:
            if self.serial and npu.done.get(row.group, 0) != row.seq:
                row.waits_for_turn = True
                return
            row.start = self.now
            if row.schedule < 0:
                self.finish(npu, row)
            else:
                self.join(npu, row)
        else:
            row.start = self.now
            if row.kind == SEND and row.duration > 0:
                self.later(self.now + row.duration, npu, POSTED, row)
            elif row.kind == SEND:
                self.send(npu, row)
            elif row.kind == NOOP or row.is_in:
                self.finish(npu, row)

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
