"""A naive model of docs/explanation/fabric.md, on top of the plain model's reference (tests/pdes/naive.py).

A departure is an event of its own, every counter is kept at once, and after each step all counters of the switch are
counted again from what lies in its queues. Where the page leaves room, the choice stands at its place as `Choice:`.
"""

import math
from collections import Counter, deque
from types import SimpleNamespace

from tests.fabric.naive_disciplines import DISCIPLINES
from tests.pdes import naive as plain

PAUSE_BYTES = 84
CLASSES = tuple(range(8))
NAK, TIMEOUT, TRIMMED = plain.NAK, plain.TIMEOUT, plain.TRIMMED  # the numbers of pdes.core.state.LOSS_*
ECN_SALT = 0xECE
ECN_RATE_BPS = 25e9
TRIMMED_A_TURN = 10
SLACK_PACKETS = 8
COUNTED = 1024


class Frame(plain.Packet):
    """A pause or resume: cls, is_pause, size."""


class Link(plain.Link):
    """With what its sending port may not send now: paused by class."""

    def __init__(self, graph, number):
        super().__init__(graph, number)
        self.rate_bps = int(graph.link_rate_bps[number])
        self.paused, self.paused_since = [False] * 8, [0] * 8
        self.paused_ps = 0
        self.most_waiting = 0
        self.ecn_marked = self.trimmed = self.pauses = self.resumes = 0
        self.headroom_dropped = 0
        self.draws = self.last_draw = 0  # of marks

    def obey(self, frame, now):
        assert self.paused[frame.cls] != frame.is_pause, f"link {self.number}: no alternation of pause and resume"
        self.paused[frame.cls] = frame.is_pause
        if frame.is_pause:
            self.paused_since[frame.cls] = now
        else:
            self.paused_ps += now - self.paused_since[frame.cls]


class Pair(plain.Pair):
    """The sender's end of a queue pair, with its congestion control."""

    def __init__(self, npu, dst, group, port, entropy):
        super().__init__(npu, dst, group, port, entropy)
        self.cls = 0
        self.control = None
        self.window, self.ps_per_byte = 0, 0.0
        self.next_send = 0
        self.last_seq, self.last_sent = -1, 0
        self.arrived, self.lost = set(), set()  # selective repeat: sequence numbers from the first unacknowledged on
        self.highest, self.looked_at = 0, 0
        self.resends = Counter()  # by sequence number: times that the first unacknowledged packet was trimmed


class Ingress:
    """What came over one link into a switch and is still there, by class."""

    def __init__(self, link, headroom):
        self.link, self.headroom = link, headroom
        self.shared, self.extra = [0] * 8, [0] * 8  # ib, hb
        self.paused = [False] * 8


class Egress:
    def __init__(self, link, rules, full_packet):
        self.link, self.discipline = link, DISCIPLINES[rules.discipline.name](rules, full_packet)
        self.frames, self.control, self.data = deque(), deque(), [deque() for _ in CLASSES]
        self.headers, self.headers_sent = deque(), 0  # trimmed packets; those sent while data waited, since the last
        self.waiting = [0] * 8  # qb
        self.is_sending = False

    def choose(self):
        """Class whose packet goes now, where one that has waited may."""
        sizes = [[packet.size for packet, _, _ in queue] for queue in self.data]
        return self.discipline.choose([bool(self.data[c]) and not self.link.paused[c] for c in CLASSES], sizes)


def headroom_of(graph, link, back, z_max):
    """Bytes that may still come over `link` after a pause is asked for; `back` is its other direction."""
    here, there = int(graph.node_latency_ps[link.dst]), int(graph.node_latency_ps[link.src])
    delay = int(graph.link_delay_ps[link.number]) + here + int(graph.link_delay_ps[back.number]) + there
    return math.ceil(delay / link.ps_per_byte) + 3 * z_max + PAUSE_BYTES


class Switch:
    def __init__(self, sim, node):
        self.sim, self.node, self.rules = sim, node, sim.settings.switch
        self.alpha1024 = round(1024 * self.rules.pfc_alpha)
        self.out = {link.number: Egress(link, self.rules, sim.full_packet) for link in sim.links if link.src == node}
        self.into = {}
        for link in sim.links:
            if link.dst == node:
                room = self.rules.pfc_headroom_bytes or headroom_of(
                    sim.graph, link, sim.links[link.number ^ 1], sim.full_packet
                )
                self.into[link.number] = Ingress(link, room if self.rules.pfc else 0)
        lossless = sum(self.pauses(c) for c in sim.classes)
        self.shared_bytes = self.rules.buffer_bytes - lossless * sum(i.headroom for i in self.into.values())
        if self.shared_bytes <= 0:
            raise ValueError(f"node {node}: no bytes are left to share")
        self.used = 0  # S
        self.max_used = 0  # of S; one that goes at once counts too
        self.max_headroom = 0  # of what lies in the headroom of one ingress port and class

    def pauses(self, cls):
        """Whether a class is lossless."""
        return self.rules.pfc and (not self.rules.pfc_classes or cls in self.rules.pfc_classes)

    def threshold(self):
        return (max(0, self.shared_bytes - self.used) * self.alpha1024) >> 10

    # Arrivals

    def take(self, packet, came_over, link):
        egress = self.out[link.number]
        if packet.control or self.admit(packet, self.into[came_over.number], egress):
            if packet.control:
                queue = egress.control if packet.is_ack else egress.headers
                queue.append((packet, self.sim.now))
                self.serve(egress)
                return
            egress.data[packet.cls].append((packet, self.into[came_over.number], self.sim.now))
            egress.waiting[packet.cls] += packet.size
            if not egress.is_sending and not egress.link.paused[packet.cls]:
                self.leave(egress, packet.cls)
            else:
                egress.link.most_waiting = max(egress.link.most_waiting, sum(egress.waiting))
        self.check()

    def admit(self, packet, ingress, egress):
        """True if the packet goes on, in the buffer or as control."""
        size, cls = packet.size, packet.cls
        if self.pauses(cls):
            if ingress.shared[cls] + size > self.threshold() or self.used + size > self.shared_bytes:
                return self.admit_to_headroom(packet, ingress, egress)
            ingress.shared[cls] += size
        elif egress.waiting[cls] + size > self.threshold() or self.used + size > self.shared_bytes:
            if not self.rules.trimming:
                self.sim.drop(egress.link, packet)
                return False
            self.trim(packet, egress)
            return True
        self.used += size
        self.max_used = max(self.max_used, self.used)
        return True

    def admit_to_headroom(self, packet, ingress, egress):
        """One that is dropped asks for no pause."""
        size, cls = packet.size, packet.cls
        if ingress.extra[cls] + size > ingress.headroom:
            ingress.link.headroom_dropped += 1
            self.sim.count["headroom_dropped"] += 1
            self.sim.drop(egress.link, packet)
            return False
        ingress.extra[cls] += size
        self.max_headroom = max(self.max_headroom, ingress.extra[cls])
        if not ingress.paused[cls]:
            self.send_frame(ingress, cls, is_pause=True)
        return True

    def trim(self, packet, egress):
        cut = packet.size - self.sim.settings.header_bytes
        packet.size -= cut
        packet.control = packet.trimmed = True
        egress.link.trimmed += 1
        self.sim.count["trimmed_packets"] += 1
        self.sim.count["bytes_dropped"] += cut

    def send_frame(self, ingress, cls, *, is_pause):
        ingress.paused[cls] = is_pause
        back = self.out[ingress.link.number ^ 1]
        back.link.pauses += is_pause
        back.link.resumes += not is_pause
        self.sim.count["pause_frames" if is_pause else "resume_frames"] += 1
        back.frames.append((Frame(size=PAUSE_BYTES, cls=cls, is_pause=is_pause, control=True), self.sim.now))
        self.serve(back)

    # Departures

    def serve(self, egress):
        """Send the next packet if the port is idle and one may go."""
        if egress.is_sending:
            return
        if egress.frames or egress.control:
            self.begin(egress, *(egress.frames or egress.control).popleft())
            return
        may_go = any(egress.data[c] and not egress.link.paused[c] for c in CLASSES)
        if egress.headers and (not may_go or egress.headers_sent < TRIMMED_A_TURN):
            egress.headers_sent += may_go
            self.begin(egress, *egress.headers.popleft())
        elif may_go:
            egress.headers_sent = 0
            self.leave(egress, egress.choose())

    def begin(self, egress, packet, since):
        egress.is_sending = True
        self.sim.transmit(egress.link, packet, self.sim.now, since)
        self.sim.schedule(egress.link.busy_until, self.node, (0, egress.link.number), self.falls_idle, egress)

    def falls_idle(self, egress):
        egress.is_sending = False
        self.serve(egress)
        self.check()

    def leave(self, egress, cls):
        packet, ingress, since = egress.data[cls].popleft()
        egress.waiting[cls] -= packet.size
        of_headroom = min(ingress.extra[cls], packet.size)
        ingress.extra[cls] -= of_headroom
        if self.pauses(cls):
            ingress.shared[cls] -= packet.size - of_headroom
        self.used -= packet.size - of_headroom
        if self.rules.ecn and self.marks(egress.link, cls, egress.waiting[cls]):
            packet.marked = True
            egress.link.ecn_marked += 1
            self.sim.count["marked_packets"] += 1
        if "telemetry" in self.sim.signals:
            packet.telemetry.append((self.sim.now, egress.link.tx_bytes, sum(egress.waiting), egress.link.ps_per_byte))
        self.begin(egress, packet, since)
        if ingress.paused[cls] and ingress.extra[cls] == 0:
            own = ingress.shared[cls]
            if own == 0 or own + self.rules.pfc_resume_offset_bytes <= self.threshold():
                self.send_frame(ingress, cls, is_pause=False)

    def marks(self, link, cls, waiting):
        of_all = self.rules.ecn_kmin_bytes, self.rules.ecn_kmax_bytes, self.rules.ecn_pmax
        *ends, pmax = {number: own for number, *own in self.rules.ecn_by_class}.get(cls, of_all)
        low, high = (int(k * link.rate_bps / ECN_RATE_BPS) for k in ends)
        if waiting == 0:
            return False
        if waiting >= high:
            return True
        if waiting <= low:
            return False
        bound = int(float(int(4294967296 * pmax) * (waiting - low)) / (high - low))
        port = sorted(self.out).index(link.number)
        if self.sim.now - link.last_draw > self.sim.tie_pause:
            link.draws = 0
        link.last_draw = self.sim.now
        link.draws += 1
        return plain.mix3(self.sim.settings.seed + ECN_SALT, port, link.draws) < bound

    # Invariants

    def check(self):
        """Count everything again."""
        lies = {(number, c): 0 for number in self.into for c in CLASSES}
        for egress in self.out.values():
            for c in CLASSES:
                waiting = 0
                for packet, ingress, _ in egress.data[c]:
                    waiting += packet.size
                    lies[ingress.link.number, c] += packet.size
                assert egress.waiting[c] == waiting
        assert self.used >= 0
        lossy = sum(size for (_, c), size in lies.items() if not self.pauses(c))
        for (number, c), size in lies.items():
            if not self.pauses(c):
                continue
            ingress = self.into[number]
            assert ingress.shared[c] >= 0
            assert 0 <= ingress.extra[c] <= ingress.headroom
            assert ingress.shared[c] + ingress.extra[c] == size
            assert ingress.paused[c] or ingress.extra[c] == 0
        assert self.used == lossy + sum(sum(ingress.shared) for ingress in self.into.values())
        assert self.used <= self.shared_bytes

    def check_end(self):
        self.check()
        assert self.used == 0
        for ingress in self.into.values():
            assert not any(ingress.shared + ingress.extra + ingress.paused)
        for egress in self.out.values():
            assert not egress.control
            assert not egress.headers
            assert not egress.frames
            assert not egress.is_sending
            assert not any(egress.waiting)


class Simulator(plain.Simulator):
    """Runs a program on a graph whose switches are as settings.switch says (None: output-queued).

    control: makes the congestion control of a queue pair, None = the static window. It has the methods

        start(now, line)                        line: ps per byte of its port
        sent(now, size, seq)                    wire bytes; the packet begins to leave
        ack(now, newly, echo, rtt, telemetry)   packets; 1 if it echoes a mark; ps or -1; for each switch
                                                (ps, bytes sent before, bytes left in both queues, ps per byte)
        cnp(now)
        loss(now, reason)                       NAK, TIMEOUT or TRIMMED

    and each returns (window in packets, ps per wire byte or 0).
    """

    new_link, new_pair = Link, Pair

    def __init__(self, graph, program, settings, window_packets, rto_ps, control=None):
        super().__init__(graph, program, settings, window_packets, rto_ps)
        self.control = control
        self.signals = settings.congestion_control.signals
        self.full_packet = settings.mtu_bytes + settings.header_bytes
        of_groups = settings.group_classes if settings.group_classes is not None else [0]
        self.classes = {settings.p2p_class, *map(int, of_groups)}
        self.last_notified = {}
        self.forwarded, self.turns, self.last_choice = None, Counter(), {}
        self.switches = {}
        self.count |= dict.fromkeys(
            ["marked_packets", "pause_frames", "resume_frames", "trimmed_packets", "congestion_notifications",
             "headroom_dropped"], 0
        )  # fmt: skip
        for npu in self.npus:
            npu.done = deque()
            for port in npu.ports.values():
                port.held = []
        if settings.switch is not None:
            if settings.cut_through:
                raise ValueError("a switch that shares its buffer does not cut through")  # Choice
            for link in self.links:
                if link.dst >= graph.npus:
                    link.delay += int(graph.node_latency_ps[link.dst])
            self.switches = {node: Switch(self, node) for node in range(graph.npus, graph.nodes)}

    def run(self):
        super().run()
        for switch in self.switches.values():
            switch.check_end()
        assert not any(paused for link in self.links for paused in link.paused)
        return self

    # The network

    def arrive(self, node, link, packet):
        if not isinstance(packet, Frame):
            super().arrive(node, link, packet)
            return
        self.count["packet_hops"] += 1
        back = self.links[link.number ^ 1]
        back.obey(packet, self.now)
        if node in self.switches:
            self.switches[node].serve(self.switches[node].out[back.number])
            self.switches[node].check()
        elif not packet.is_pause:
            self.touch(self.npus[node], self.npus[node].ports[back.number])

    def forward(self, node, came_over, packet):
        self.forwarded = packet
        if node not in self.switches:
            super().forward(node, came_over, packet)
        else:
            link = self.links[self.way(node, packet)]
            self.switches[node].take(packet, came_over, link)
        self.forwarded = None

    def one_of(self, links, node, entropy):
        """Adaptive routing in place of ECMP, at switches."""
        packet = self.forwarded
        if packet is None or len(links) == 1 or self.rule_at(node).name != "adaptive":
            return super().one_of(links, node, entropy)
        if self.now - self.last_choice.get(node, 0) > self.tie_pause:  # the switch counts all destinations anew
            self.turns = Counter({key: count for key, count in self.turns.items() if key[0] != node})
        self.last_choice[node] = self.now
        sent = self.turns[node, packet.dst % COUNTED, packet.control]
        self.turns[node, packet.dst % COUNTED, packet.control] += 1
        shift = plain.mix3(self.salt[node] + packet.control, packet.dst, sent // len(links)) * len(links) // plain.WORD
        in_turn = [links[(sent + shift + i) % len(links)] for i in range(len(links))]
        work = {number: self.work_left(node, self.links[number]) for number in links}
        slack = SLACK_PACKETS * self.full_packet
        return next(n for n in in_turn if work[n] <= min(work.values()) + int(slack * self.links[n].ps_per_byte))

    def work_left(self, node, link):
        """Time that a port needs for what it has: the rest of the packet on the wire and the data that waits."""
        if node not in self.switches:
            return max(0, link.busy_until - self.now - int(self.graph.node_latency_ps[node]))
        waiting = sum(self.switches[node].out[link.number].waiting)
        return max(0, link.busy_until - self.now) + int(waiting * link.ps_per_byte)

    # NICs

    def transit_goes(self, port):
        """Transit of both classes is one queue, so a paused class holds up what is behind it."""
        return len(port.transit) > 0 and not port.link.paused[port.transit[0].cls]

    def choose_packet(self, npu, port):
        """At an idle port. Where no control waits, those that are due again join the turns first."""
        if port.acks:
            return super().choose_packet(npu, port)
        due = sorted((p for p in port.held if p.next_send <= self.now), key=lambda p: (p.next_send, p.number))
        port.held = [pair for pair in port.held if pair not in due]
        port.turns.extend(due)
        self.whose_turn(port)
        self.sender = None
        packet = super().choose_packet(npu, port)
        pair = self.sender
        if pair is not None and pair.in_turn and pair.next_send > self.now + port.link.time_of(packet.size):
            port.turns.remove(pair)
            self.hold(npu, pair)
        return packet

    def whose_turn(self, port):
        """Those of a paused class who are passed over go to the end, those who may not send go out."""
        passed_over = []
        found = None
        while port.turns and found is None:
            pair = port.turns.popleft()
            if not self.may_send(pair):
                pair.in_turn = False
            elif port.link.paused[pair.cls]:
                passed_over.append(pair)
            else:
                found = pair
                port.turns.appendleft(pair)
        port.turns.extend(passed_over)
        return found

    def may_send(self, pair):
        return bool(pair.lost) or (pair.next < pair.end and pair.next - pair.unacknowledged < pair.window)

    def hold(self, npu, pair):
        """Until CC_NEXT_SEND, out of the turns."""
        pair.in_turn = True
        pair.port.held.append(pair)
        self.own(npu, pair.next_send, len(npu.ports) + plain.LANES + 1 + pair.port.slot, self.is_due, pair)

    def is_due(self, npu, pair):
        self.touch(npu, pair.port)

    def activate(self, npu, pair):
        if pair.window == 0:  # new
            pair.number = len(npu.pairs)
            of_groups = self.settings.group_classes
            in_group = 0 if of_groups is None or pair.group >= len(of_groups) else int(of_groups[pair.group])
            pair.cls = self.settings.p2p_class if pair.group == plain.P2P_GROUP else in_group
            pair.window = self.window
            if self.control is not None:
                pair.control = self.control()
                self.adopt(pair, pair.control.start(self.now, pair.port.link.ps_per_byte))
        if not pair.in_turn and self.may_send(pair) and pair.next_send > self.now:
            self.hold(npu, pair)
        else:
            super().activate(npu, pair)

    def adopt(self, pair, ruled):
        pair.window, pair.ps_per_byte = ruled
        assert pair.window >= 1
        assert pair.ps_per_byte >= 0

    def next_data(self, npu, port, pair):
        """The next departure is reckoned with the pace as it is after `sent`."""
        self.sender = pair
        if pair.lost:
            following, pair.next = pair.next, min(pair.lost)
            pair.lost.remove(pair.next)
            packet = super().next_data(npu, port, pair)
            pair.next = following
        else:
            packet = super().next_data(npu, port, pair)
        packet.cls, packet.marked, packet.trimmed = pair.cls, False, False
        packet.sent, packet.telemetry = self.now, []
        if packet.last:
            pair.last_seq, pair.last_sent = packet.seq, self.now
        if pair.control is not None:
            self.adopt(pair, pair.control.sent(self.now, packet.size, packet.seq))
            pair.next_send = int(self.now + packet.size * pair.ps_per_byte + 0.5)
        return packet

    # Receiving

    def settle(self, npu):
        """Rows start first, then of what is complete one message after another is told of, then ports are tried."""
        while npu.ready or npu.done or npu.touched:
            if npu.ready:
                self.start(npu, npu.ready.popleft())
            elif npu.done:
                self.complete(npu, npu.done.popleft())
            else:
                self.try_port(npu, npu.touched.pop())

    def on_data(self, npu, packet):
        if packet.marked and "cnp" in self.signals:
            self.notify(npu, packet)
        if self.settings.selective_repeat:
            self.on_selective(npu, packet)
        elif packet.trimmed:
            self.on_trimmed(npu, packet)
        else:
            super().on_data(npu, packet)

    def on_selective(self, npu, packet):
        """Selective repeat: what comes out of order is kept, and messages complete in their order."""
        state = npu.expected.setdefault(packet.pair, SimpleNamespace(seq=0, here=set(), last=[]))
        if not packet.trimmed and packet.seq >= state.seq and packet.seq not in state.here:
            state.here.add(packet.seq)
            self.count["payload_bytes"] += packet.payload
            state.last += [packet] * packet.last
            while state.seq in state.here:
                state.here.remove(state.seq)
                state.seq += 1
        state.last.sort(key=lambda kept: kept.seq)
        while state.last and state.last[0].seq < state.seq:
            npu.done.append(state.last.pop(0))
        self.acknowledge(npu, packet, state.seq, nak=packet.trimmed)

    def notify(self, npu, packet):
        last = self.last_notified.get((npu.number, packet.pair))
        if last is not None and self.now - last < self.settings.cnp_interval_ps:
            return
        self.last_notified[npu.number, packet.pair] = self.now
        self.count["congestion_notifications"] += 1
        if self.settings.cnp_delay_ps == 0:
            self.send_notification(npu, packet)
        else:
            # Choice: behind the NPU's agenda
            due = self.now + self.settings.cnp_delay_ps
            self.own(npu, due, self.agenda(npu) + 1, self.send_notification, packet)

    def send_notification(self, npu, packet):
        size = self.settings.ack_bytes
        self.count["bytes_sent"] += size
        port = self.route_from(npu, packet.src, packet.entropy)
        port.acks.append(
            plain.Packet(
                src=npu.number, dst=packet.src, size=size, pair=packet.pair, entropy=packet.entropy, control=True,
                is_ack=True, is_cnp=True, trimmed=False, since=self.now,
            )
        )  # fmt: skip
        self.touch(npu, port)

    def on_trimmed(self, npu, packet):
        """It asks for what is missing as a packet out of sequence does; when it is itself the one, each time."""
        state = npu.expected.setdefault(packet.pair, SimpleNamespace(seq=0, nak_sent=False))
        if packet.seq < state.seq:
            self.acknowledge(npu, packet, state.seq, nak=False)
        elif packet.seq == state.seq or not state.nak_sent:
            state.nak_sent = True
            self.acknowledge(npu, packet, state.seq, nak=True)

    def acknowledge(self, npu, packet, expected, *, nak):
        """With notifications no acknowledgement echoes; without them each does, of the packet it answers."""
        ack = super().acknowledge(npu, packet, expected, nak=nak)
        ack.is_cnp, ack.trimmed = False, packet.trimmed
        ack.echo = int(packet.marked and "cnp" not in self.signals)
        ack.answers, ack.ends_message, ack.sent = packet.seq, packet.last, packet.sent
        ack.telemetry = packet.telemetry
        return ack

    def on_ack(self, npu, ack):
        if not ack.is_cnp:
            super().on_ack(npu, ack)
        elif ack.pair.control is not None:
            self.adopt(ack.pair, ack.pair.control.cnp(self.now))

    def learn(self, pair, ack, newly):
        """Every acknowledgement is told, one that acknowledges nothing new too, before it counts as a loss."""
        pair.arrived = {seq for seq in pair.arrived if seq >= pair.unacknowledged}
        pair.lost = {seq for seq in pair.lost if seq >= pair.unacknowledged}
        self.trimmed_nak = ack.trimmed
        if pair.control is not None:
            rtt = self.round_trip(pair, ack, newly) if "rtt" in self.signals else -1
            self.adopt(pair, pair.control.ack(self.now, newly, ack.echo, rtt, ack.telemetry))
        if self.settings.selective_repeat:
            self.hear_of(pair, ack)

    def round_trip(self, pair, ack, newly):
        """Acknowledgements echo when their packet was sent, but of one that ends a message or was trimmed.

        Of packets that end messages the newest is known; who goes back by packets knows only which one was the last
        that is acknowledged now.
        """
        if not ack.ends_message and not ack.trimmed:
            return self.now - ack.sent
        answered = ack.answers if self.settings.selective_repeat else ack.seq - 1
        if ack.nak or answered != pair.last_seq or (newly == 0 and not self.settings.selective_repeat):
            return -1
        return self.now - pair.last_sent

    def hear_of(self, pair, ack):
        """Selective repeat: the acknowledgement names a packet, which has come or was trimmed."""
        seq = ack.answers
        if not pair.unacknowledged <= seq < pair.first_unsent:
            return
        lost = set()
        if ack.nak:
            lost = {seq}
        else:
            pair.arrived.add(seq)
            pair.lost.discard(seq)
            pair.highest = max(pair.highest, seq)
            begin = max(pair.looked_at, pair.unacknowledged)
            end = pair.highest - self.settings.reorder_packets + 1 if self.settings.reorder_packets else begin
            lost = set(range(begin, end))
            pair.looked_at = max(begin, end)
        lost -= pair.arrived | pair.lost
        pair.lost |= lost
        if ack.nak and pair.unacknowledged in lost:
            self.count_resend(pair)
        if lost and pair.control is not None:
            self.adopt(pair, pair.control.loss(self.now, TRIMMED if ack.nak else NAK))

    def go_back(self, pair, reason):
        """A loss is told only where the queue pair goes back by it."""
        goes = pair.next > pair.unacknowledged
        if not self.settings.selective_repeat:
            if goes and reason == NAK and self.trimmed_nak:
                self.count_resend(pair)
            super().go_back(pair, reason)
        elif reason == TIMEOUT:
            pair.lost = set(range(pair.unacknowledged, pair.next)) - pair.arrived
            pair.looked_at = pair.next
            self.arm(pair.npu, pair)
        else:
            return
        if goes and pair.control is not None:
            told = TRIMMED if reason == NAK and self.trimmed_nak else reason
            self.adopt(pair, pair.control.loss(self.now, told))

    def count_resend(self, pair):
        """A packet may be trimmed for ever: then the run ends."""
        pair.resends[pair.unacknowledged] += 1
        if pair.resends[pair.unacknowledged] > self.settings.max_resends:
            raise plain.GaveUpError(f"npu {pair.npu.number} to npu {pair.dst}: packet {pair.unacknowledged}")


def measures(sim):
    """What a run comes to, for comparisons: finish times of rows, columns by link, columns by switch, totals."""
    links = {
        "tx_bytes": [link.tx_bytes for link in sim.links],
        "tx_packets": [link.tx_packets for link in sim.links],
        "dropped_packets": [link.dropped for link in sim.links],
        "headroom_dropped": [link.headroom_dropped for link in sim.links],
        "buffered_bytes": [link.most_waiting for link in sim.links],
        "max_queue_bytes": [int(link.longest_wait / link.ps_per_byte) for link in sim.links],
        "marked_packets": [link.ecn_marked for link in sim.links],
        "pause_frames": [link.pauses for link in sim.links],
        "paused_ps": [link.paused_ps for link in sim.links],
        "trimmed_packets": [link.trimmed for link in sim.links],
    }
    switches = {
        "max_shared_bytes": [switch.max_used for switch in sim.switches.values()],
        "max_headroom_bytes": [switch.max_headroom for switch in sim.switches.values()],
    }
    rows = [row.finish for npu in sim.npus for row in npu.rows]
    return SimpleNamespace(finish=sim.finish, rows=rows, links=links, switches=switches, count=dict(sim.count))
