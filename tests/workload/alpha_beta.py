"""An idle network in plain Python: a message of b bytes takes latency + b / rate, every NPU sends and receives one
message at a time at that rate. Walks schedules as the interface page says, to check the closed forms against.

With `dimensions`, every NPU has a port of each, and lanes use that of their gate; with `tokens`, an NPU does one phase
at a time in each dimension, in the order in which they become ready.
"""

import heapq
from collections import Counter, defaultdict

from nadi.workload.collectives.plans.plan import NONE
from nadi.workload.collectives.schedules.sends import buffers, unpack


class Network:
    def __init__(self, schedules, index, size, latency=0.0, ps_per_byte=0.0, dimensions=None, *, tokens=False):
        """dimensions: (latency, ps per byte) of each gate, in place of those of all."""
        self.lanes = unpack(schedules, index)
        self.phase, self.gate = (of_lanes(schedules, index, column) for column in ("lane_phase", "lane_gate"))
        self.dimensions = {**dict(enumerate(dimensions or ())), -1: (latency, ps_per_byte)}
        self.has_ports, self.tokens = dimensions is not None, tokens
        self.waiting = defaultdict(list)
        self.buffers, self.size = buffers(schedules, index), size
        self.done = [[0] * len(own) for own in self.lanes]
        self.posted = [[False] * len(own) for own in self.lanes]
        self.followers = [self.followers_of(own) for own in self.lanes]
        self.inbox = [Counter() for _ in self.lanes]
        self.sender_free, self.receiver_free = defaultdict(float), defaultdict(float)
        self.events, self.count, self.now = [], 0, 0.0

    def followers_of(self, own):
        """Of each lane of a member those that a step of it may let go on."""
        if self.tokens:
            return [range(len(own))] * len(own)
        found = [set() for _ in own]
        for lane, steps in enumerate(own):
            for step in steps:
                if step.dep_lane != NONE:
                    found[step.dep_lane].add(lane)
        return found

    def finish_time(self):
        for member, own in enumerate(self.lanes):
            self.advance(member, range(len(own)))
        while self.events:
            self.now, _, what, member, *rest = heapq.heappop(self.events)
            getattr(self, what)(member, *rest)
        assert self.done == [[len(steps) for steps in own] for own in self.lanes]
        return max(self.now, *self.sender_free.values())

    def at(self, time, *event):
        self.count += 1
        heapq.heappush(self.events, (time, self.count, *event))

    def head_comes(self, member, lane, duration):
        port = self.port(member, lane)
        end = self.receiver_free[port] = max(self.now, self.receiver_free[port]) + duration
        self.at(end, "message_comes", member, lane)

    def message_comes(self, member, lane):
        self.inbox[member][lane] += 1
        self.advance(member, [lane])

    def advance(self, member, lanes):
        """Let these lanes go on, and those that follow; in each round one half step of each, by number."""
        while lanes:
            lanes, later = list(lanes), set()
            heapq.heapify(lanes)
            while lanes:
                lane = heapq.heappop(lanes)
                if not self.half_step(member, lane):
                    continue
                later.add(lane)
                for other in self.followers[member][lane]:
                    if other <= lane:
                        later.add(other)
                    elif other not in lanes:
                        heapq.heappush(lanes, other)
            lanes = later

    def half_step(self, member, lane):
        steps, done = self.lanes[member][lane], self.done[member]
        if done[lane] == len(steps):
            return False
        step = steps[done[lane]]
        if not self.posted[member][lane]:
            if step.dep_lane != NONE and done[step.dep_lane] <= step.dep_step:
                return False
            if self.tokens and not self.has_token(member, lane):
                return False
            self.posted[member][lane] = True
            if step.send_peer != NONE:
                self.post(member, lane, step, self.buffers[member][lane])
        if step.recv_peer != NONE:
            if not self.inbox[member][lane]:
                return False
            self.inbox[member][lane] -= 1
        done[lane] += 1
        self.posted[member][lane] = False
        self.end_phase(member, lane)
        return True

    def port(self, member, lane):
        return member, self.gate[member][lane] if self.has_ports else -1

    def has_token(self, member, lane):
        """Whether the phase of a lane is the first that waits for its gate; it stays so until it is done."""
        queue, phase = self.waiting[member, self.gate[member][lane]], self.phase[member][lane]
        if phase not in queue:
            queue.append(phase)
        return queue[0] == phase

    def end_phase(self, member, lane):
        phase = self.phase[member][lane]
        own = [i for i, other in enumerate(self.phase[member]) if other == phase]
        queue = self.waiting[member, self.gate[member][lane]]
        if phase in queue and all(self.done[member][i] == len(self.lanes[member][i]) for i in own):
            queue.remove(phase)

    def post(self, member, lane, step, buffer):
        wire, per = buffer.wire
        data = self.size * step.send_count / (buffer.parts * buffer.chunks)
        port = self.port(member, lane)
        latency, ps_per_byte = self.dimensions[port[1]]
        duration = data * wire / per * ps_per_byte
        start = max(self.now, self.sender_free[port])
        self.sender_free[port] = start + duration
        self.at(start + latency, "head_comes", step.send_peer, step.send_lane, duration)


def of_lanes(schedules, index, column):
    """A column of the lanes of each member."""
    found = []
    for member in range(int(schedules.members[index])):
        plan = schedules.plan_of[schedules.plan_of_ptr[index] + (0 if schedules.relative[index] else member)]
        rows = slice(int(schedules.plan_ptr[plan]), int(schedules.plan_ptr[plan + 1]))
        found.append(getattr(schedules, column)[rows].tolist())
    return found
