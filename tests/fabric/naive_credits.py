"""A naive model of links with credits (docs/explanation/fabric.md), on top of that of shared buffers (naive.py).

A departure is an event of its own, credits are counted at both ends of each link, and after each step a switch counts
again what lies in its input buffers.
"""

import math
from collections import deque

from tests.fabric import naive

LANES = 8
WEIGHT_BYTES = 64


class Link(naive.Link):
    """With the credits of its sending port, by lane; a lane without enough for a full packet is `paused`."""

    def __init__(self, graph, number):
        super().__init__(graph, number)
        self.paused, self.paused_since = [False] * LANES, [0] * LANES
        self.free, self.full = [], 0

    def change(self, lane, units, now):
        self.free[lane] += units
        is_paused = self.free[lane] < self.full
        if self.paused[lane] and not is_paused:
            self.paused_ps += now - self.paused_since[lane]
        if is_paused and units < 0:
            self.paused_since[lane] = now
        self.paused[lane] = is_paused

    def obey(self, frame, now):
        self.change(frame.cls, frame.units, now)


class Arbiter:
    """Lanes in two tables; in each a lane sends its weight in bytes, then the next that can."""

    def __init__(self, rules):
        self.weights = [WEIGHT_BYTES * w for w in rules.lane_weights or [1] * rules.virtual_lanes]
        self.first_high, self.limit = rules.virtual_lanes - rules.high_lanes, rules.high_limit_bytes
        self.turns = {False: [0, 0], True: [0, 0]}  # by whether the table is the high one: lane and bytes left
        self.high_bytes = 0  # since low priority sent, or had nothing

    def tables(self, ready):
        return [c for c in ready if c >= self.first_high], [c for c in ready if c < self.first_high]

    def choose(self, ready):
        high, low = self.tables(ready)
        is_high = bool(high) and (not low or self.high_bytes == 0 or self.high_bytes < self.limit)
        lane, left = self.turns[is_high]
        candidates = high if is_high else low
        if left == 0 or lane not in candidates:
            begin = lane if left == 0 else lane + 1
            lane = min(candidates, key=lambda c: (c - begin) % LANES)
            self.turns[is_high] = [lane, self.weights[lane]]
        return lane

    def count(self, lane, size, ready):
        is_high = lane >= self.first_high
        left = self.turns[is_high][1] - size
        self.turns[is_high] = [lane, left] if left > 0 else [(lane + 1) % LANES, 0]
        self.high_bytes = self.high_bytes + size if is_high and self.tables(ready)[1] else 0


class Egress:
    def __init__(self, link, rules):
        self.link, self.arbiter = link, Arbiter(rules)
        self.frames, self.control, self.data = deque(), deque(), [deque() for _ in range(LANES)]
        self.is_sending = False

    def ready(self):
        return [c for c in range(LANES) if self.data[c] and not self.link.paused[c]]

    @property
    def waiting(self):
        return [sum(packet.size for packet, _, _, _ in queue) for queue in self.data]


class Input:
    """The input buffer of a link at a switch, by lane, in units: what is in it, and what left and is not returned."""

    def __init__(self, link, room):
        self.link, self.room = link, room
        self.held, self.owed = [0] * LANES, [0] * LANES


class Switch:
    max_used = max_headroom = 0  # of shared buffers

    def __init__(self, sim, node):
        self.sim, self.node = sim, node
        self.out = {link.number: Egress(link, sim.rules) for link in sim.links if link.src == node}
        self.into = {link.number: Input(link, link.free[0]) for link in sim.links if link.dst == node}

    def take(self, packet, came_over, link):
        egress = self.out[link.number]
        if packet.control:
            egress.control.append((packet, self.sim.now))
            self.serve(egress)
            return
        arrived, came_in = self.into[came_over.number], packet.cls
        arrived.held[came_in] += self.sim.units(packet)
        packet.cls = self.sim.lane_after(came_over, came_in)
        egress.data[packet.cls].append((packet, arrived, came_in, self.sim.now))
        if egress.is_sending or egress.link.paused[packet.cls]:
            egress.link.most_waiting = max(egress.link.most_waiting, sum(egress.waiting))
        else:
            self.leave(egress, packet.cls)
        self.check()

    def serve(self, egress):
        if egress.is_sending:
            return
        if egress.frames or egress.control:
            self.begin(egress, *(egress.frames or egress.control).popleft())
        elif egress.ready():
            lane = egress.arbiter.choose(egress.ready())
            size = egress.data[lane][0][0].size
            self.leave(egress, lane, counted=size)

    def begin(self, egress, packet, since):
        egress.is_sending = True
        self.sim.transmit(egress.link, packet, self.sim.now, since)
        self.sim.schedule(egress.link.busy_until, self.node, (0, egress.link.number), self.falls_idle, egress)

    def falls_idle(self, egress):
        egress.is_sending = False
        self.serve(egress)
        self.check()

    def leave(self, egress, lane, counted=0):
        packet, arrived, came_in, since = egress.data[lane].popleft()
        if counted:
            egress.arbiter.count(lane, counted, egress.ready())
        self.begin(egress, packet, since)
        units = self.sim.units(packet)
        arrived.held[came_in] -= units
        arrived.owed[came_in] += units
        owed_bytes = arrived.owed[came_in] * self.sim.rules.credit_unit_bytes
        if arrived.held[came_in] == 0 or owed_bytes >= self.sim.least_returned:
            back = self.out[arrived.link.number ^ 1]
            back.frames.append((self.sim.frame(back.link, came_in, arrived.owed[came_in]), self.sim.now))
            arrived.owed[came_in] = 0
            self.serve(back)

    def check(self):
        lies = {(number, c): 0 for number in self.into for c in range(LANES)}
        for egress in self.out.values():
            for c in range(LANES):
                for packet, arrived, came_in, _ in egress.data[c]:
                    lies[arrived.link.number, came_in] += self.sim.units(packet)
        for (number, c), units in lies.items():
            arrived = self.into[number]
            assert arrived.held[c] == units
            assert arrived.held[c] + arrived.owed[c] <= arrived.room

    def check_end(self):
        self.check()
        for arrived in self.into.values():
            assert not any(arrived.held + arrived.owed)
        for egress in self.out.values():
            assert not egress.control
            assert not egress.frames
            assert not egress.is_sending


class Simulator(naive.Simulator):
    """Runs a program on a graph whose links have credits as settings.credits says."""

    new_link = Link

    def __init__(self, graph, program, settings, window_packets, rto_ps, control=None):
        super().__init__(graph, program, settings, window_packets, rto_ps, control)
        self.rules = settings.credits
        unit = self.rules.credit_unit_bytes
        self.least_returned = self.rules.credit_return_bytes // unit * unit
        for link in self.links:
            if link.dst >= graph.npus:
                link.delay += int(graph.node_latency_ps[link.dst])
        for link in self.links:
            room = self.rules.lane_buffer_bytes or self.automatic_bytes(link)
            link.free, link.full = [room // unit] * LANES, math.ceil(self.full_packet / unit)
        self.switches = {node: Switch(self, node) for node in range(graph.npus, graph.nodes)}

    def automatic_bytes(self, link):
        round_trip = link.delay + self.links[link.number ^ 1].delay
        need = math.ceil(round_trip / link.ps_per_byte) + 3 * self.full_packet + self.rules.credit_frame_bytes
        return max(need, 51_200)

    def run(self):
        super().run()
        for link in self.links:
            room = self.rules.lane_buffer_bytes or self.automatic_bytes(link)
            assert link.free == [room // self.rules.credit_unit_bytes] * LANES
        return self

    def lane_after(self, link, lane):
        """The next lane after a link between groups, or down to NPUs, unless it is the last of its messages."""
        groups = [int(self.graph.group[end]) for end in (link.src, link.dst)]
        has_npus = [
            any(other.src == end and other.dst < len(self.npus) for other in self.links) for end in (link.src, link.dst)
        ]
        rises = min(groups) >= 0 and (groups[0] != groups[1] or has_npus == [False, True])
        is_last = lane in {self.settings.p2p_class - 1, self.rules.virtual_lanes - 1}
        return lane + (rises and not is_last)

    def units(self, packet):
        return math.ceil(packet.size / self.rules.credit_unit_bytes)

    def frame(self, link, lane, units):
        link.pauses += 1
        self.count["pause_frames"] += 1
        size = self.rules.credit_frame_bytes
        return naive.Frame(size=size, cls=lane, units=units, is_pause=False, control=True, since=self.now)

    def transmit(self, link, packet, start, since):
        if not packet.control:
            link.change(packet.cls, -self.units(packet), self.now)
            assert link.free[packet.cls] >= 0
        super().transmit(link, packet, start, since)

    def arrive(self, node, link, packet):
        if not packet.control and node < len(self.npus):
            port = self.npus[node].ports[link.number ^ 1]
            port.acks.append(self.frame(port.link, packet.cls, self.units(packet)))
            self.touch(self.npus[node], port)
        super().arrive(node, link, packet)
