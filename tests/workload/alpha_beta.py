"""An idle network in plain Python: a message of b bytes takes latency + b / rate, every NPU sends and receives one
message at a time at that rate. Walks schedules as the interface page says, to check the closed forms against.
"""

import heapq
from collections import Counter, defaultdict

from workload.lanes import buffers, unpack
from workload.plans import NONE


class Network:
    def __init__(self, schedules, index, size, latency, ps_per_byte):
        self.lanes = unpack(schedules, index)
        self.buffers, self.size = buffers(schedules, index), size
        self.latency, self.ps_per_byte = latency, ps_per_byte
        self.done = [[0] * len(own) for own in self.lanes]
        self.posted = [[False] * len(own) for own in self.lanes]
        self.inbox = [Counter() for _ in self.lanes]
        self.sender_free, self.receiver_free = defaultdict(float), defaultdict(float)
        self.events, self.count, self.now = [], 0, 0.0

    def finish_time(self):
        for member in range(len(self.lanes)):
            self.advance(member)
        while self.events:
            self.now, _, what, member, *rest = heapq.heappop(self.events)
            getattr(self, what)(member, *rest)
        assert self.done == [[len(steps) for steps in own] for own in self.lanes]
        return max(self.now, *self.sender_free.values())

    def at(self, time, *event):
        self.count += 1
        heapq.heappush(self.events, (time, self.count, *event))

    def head_comes(self, member, lane, duration):
        end = self.receiver_free[member] = max(self.now, self.receiver_free[member]) + duration
        self.at(end, "message_comes", member, lane)

    def message_comes(self, member, lane):
        self.inbox[member][lane] += 1
        self.advance(member)

    def advance(self, member):
        lanes = range(len(self.lanes[member]))
        while sum(self.half_step(member, lane) for lane in lanes):
            pass

    def half_step(self, member, lane):
        steps, done = self.lanes[member][lane], self.done[member]
        if done[lane] == len(steps):
            return False
        step = steps[done[lane]]
        if not self.posted[member][lane]:
            if step.dep_lane != NONE and done[step.dep_lane] <= step.dep_step:
                return False
            self.posted[member][lane] = True
            if step.send_peer != NONE:
                self.post(member, step, self.buffers[member][lane])
        if step.recv_peer != NONE:
            if not self.inbox[member][lane]:
                return False
            self.inbox[member][lane] -= 1
        done[lane] += 1
        self.posted[member][lane] = False
        return True

    def post(self, member, step, buffer):
        wire, per = buffer.wire
        data = self.size * step.send_count / (buffer.parts * buffer.chunks)
        duration = data * wire / per * self.ps_per_byte
        start = max(self.now, self.sender_free[member])
        self.sender_free[member] = start + duration
        self.at(start + self.latency, "head_comes", step.send_peer, step.send_lane, duration)
