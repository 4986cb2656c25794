"""The engine's model once more, the slow way: objects, one heap of events, no windows, no packed words.

An event is (time, node, order, action). At one node and time, the own events of the node come first, by slot (ports,
lanes, timer), then what arrives. All that arrives at one node and time over several links, a tie, is put into the order
of the links and shuffled by the node's count of ties. Sequence numbers do not wrap; messages are found by looking for
them.
"""

import heapq
import itertools
import math
from collections import Counter, defaultdict, deque
from functools import cache, lru_cache
from types import SimpleNamespace

from nadi.topologies.graph import NVSWITCH
from nadi.workload.collectives.schedules.sends import buffers, unpack
from tests.workload.alpha_beta import of_lanes

NOOP, COMPUTE, MEMORY, SEND, RECV, COLLECTIVE = range(6)
RING, TABLE, SINGLE, NONE = range(4)
P2P_GROUP = 2**19 - 1
LANES = 4
MAX_BACKOFF = 6
TIE_PAUSE_PACKETS, MIN_TIE_PAUSE_PS = 16, 1_000_000
NAK, TIMEOUT, TRIMMED = range(3)
WORD = 2**32


def mix(x):
    x %= WORD
    x = (x ^ (x >> 16)) * 0x7FEB352D % WORD
    x = (x ^ (x >> 15)) * 0x5BD1E995 % WORD
    return x ^ (x >> 16)


def mix2(a, b):
    high = mix(a) ^ mix((a >> 32) + 0x165667B1)
    return mix(5 * high + mix(b) + 3 * mix((b >> 32) + 0x27D4EB2F))


known_mix2 = lru_cache(1 << 16)(mix2)


def mix3(a, b, c):
    return mix2(7 * known_mix2(a, b) + 0x3C6EF372, c)


class GaveUpError(Exception):
    """A queue pair has tried too often."""


class Link:
    def __init__(self, graph, number):
        self.number = number
        self.src, self.dst = int(graph.link_src[number]), int(graph.link_dst[number])
        self.ps_per_byte = 8e12 / int(graph.link_rate_bps[number])
        self.delay = int(graph.link_delay_ps[number])
        self.busy_until = 0
        self.tx_bytes = self.tx_packets = self.dropped = self.longest_wait = 0

    def time_of(self, size):
        return int(size * self.ps_per_byte + 0.5)


class Ties:
    """The ties of a node, or at a port, since its last pause without any."""

    def __init__(self, seed, pause):
        self.seed, self.pause, self.times = seed, pause, []

    def in_order(self, now, arrivals):
        """All that arrives now, each with the number of its link in front, in the order in which it acts."""
        remaining, order = sorted(arrivals, key=lambda arrival: arrival[0]), deque()
        if len(remaining) == 1:
            return remaining
        if self.times and now - self.times[-1] > self.pause:
            self.times = []
        self.times.append(now)
        drawn = mix2(self.seed, len(self.times))
        while len(remaining) > 1:  # Durstenfeld's shuffle: the last place goes to one of all, and so on
            which = drawn * len(remaining) // WORD
            remaining[which], remaining[-1] = remaining[-1], remaining[which]
            order.appendleft(remaining.pop())
            drawn = mix(drawn + 1)
        return [*remaining, *order]


class Packet(SimpleNamespace):
    """src, dst, size, seq, pair, entropy; control, is_ack, nak; last, message of data; since: it came to a port."""


class Message(SimpleNamespace):
    """size, seq, lane, start; begin, end: sequence numbers; tell: called when the last byte has first left."""


class Pair:
    """The sender's end of a queue pair."""

    def __init__(self, npu, dst, group, port, entropy):
        self.npu, self.dst, self.group, self.port, self.entropy = npu, dst, group, port, entropy
        self.messages = []
        self.next = self.unacknowledged = self.end = self.first_unsent = 0
        self.in_turn = False
        self.deadline = None
        self.retries = 0
        self.shares = 0


class Port:
    """An NPU's port: who wants to send."""

    def __init__(self, link, slot):
        self.link, self.slot = link, slot
        self.acks, self.transit, self.turns = deque(), deque(), deque()
        self.sending = False
        self.pair_sent_last = False
        self.tell = None


class Instance:
    def __init__(self):
        self.row = None
        self.arrived = {}
        self.sends_left = 0


class Row(SimpleNamespace):
    """A trace row of an NPU."""


class Npu:
    def __init__(self, number):
        self.number = number
        self.rows = []
        self.ready, self.touched = deque(), []
        self.ports = {}
        self.lane, self.waiting = [None] * LANES, [deque() for _ in range(LANES)]
        self.pairs, self.expected = {}, {}
        self.instances, self.receives, self.collectives = {}, {}, {}
        self.timer_at = math.inf


class Simulator:
    """Runs a program on a graph; subclasses may break a rule to show that the comparison notices."""

    new_link, new_pair = Link, Pair

    def __init__(self, graph, program, settings, window_packets, rto_ps):
        self.graph, self.program, self.settings = graph, program, settings
        self.window, self.rto = window_packets, rto_ps
        self.now, self.heap, self.serial = 0, [], itertools.count()
        self.links = [self.new_link(graph, number) for number in range(graph.links)]
        slowest_bps = min(int(rate) for rate in graph.link_rate_bps)
        full_bits = 8 * (settings.mtu_bytes + settings.header_bytes)
        self.tie_pause = max(MIN_TIE_PAUSE_PS, TIE_PAUSE_PACKETS * full_bits * 10**12 // slowest_bps)
        self.coming = {}  # (time, node): arrivals
        self.ties = [Ties(settings.seed, self.tie_pause) for _ in range(graph.nodes)]
        self.port_ties = [Ties(settings.seed, self.tie_pause) for _ in self.links]
        self.salt = [mix3(settings.seed, node, 0x5A17) for node in range(graph.nodes)]
        self.npus = [Npu(number) for number in range(graph.npus)]
        for link in self.links:
            if link.src < graph.npus:
                ports = self.npus[link.src].ports
                ports[link.number] = Port(link, len(ports))
        switches = [link for link in self.links if link.dst >= graph.npus and graph.node_kind[link.dst] != NVSWITCH]
        nics = Counter(link.src for link in switches)
        self.has_several_nics = hasattr(graph.routing, "home") and max(nics[npu] for npu in range(graph.npus)) > 1
        self.ways = {}
        self.flows, self.steps, self.buffers, self.blocking, self.connection, self.shares = [], {}, {}, {}, {}, {}
        self.endpoint, self.begins = settings.fidelity.endpoint_delay_ps, {}
        self.count = dict.fromkeys(
            ["data_packets", "ack_packets", "retransmitted_packets", "dropped_packets", "timeouts", "bytes_sent",
             "bytes_received", "bytes_dropped", "payload_bytes", "packet_hops"], 0
        )  # fmt: skip
        self.finish = 0
        for npu in self.npus[: program.npus]:
            self.load(npu)

    # What there is to do

    def load(self, npu):
        p = self.program
        trace = int(p.trace_of_npu[npu.number])
        begin, end = p.trace_ptr[trace : trace + 2].tolist()
        slot = int(p.slot_ptr[npu.number])
        for r in range(begin, end):
            row = Row(index=r - begin, kind=int(p.node_kind[r]), lane=int(p.node_lane[r]), start=-1, finish=-1)
            row.duration, row.size = int(p.node_duration_ps[r]), int(p.node_bytes[r])
            row.peer, row.tag, row.seq = npu.number + int(p.node_peer[r]), int(p.node_tag[r]), int(p.node_seq[r])
            row.connection, row.shares = 0, 1
            if p.node_channel[r] >= 0:
                row.connection = int(p.channels.connection[p.node_channel[r]])
                row.shares = float(p.channels.shares[p.node_channel[r]])
            row.parents = int(p.node_deps[r])
            row.children = p.child[p.child_ptr[r] : p.child_ptr[r + 1]].tolist()
            row.has_turn = row.waits_for_turn = row.has_arrived = row.is_posted = False
            if row.kind == RECV:
                npu.receives[row.peer, row.tag, row.seq] = row
            if row.kind == COLLECTIVE:
                at = slot + int(p.node_group[r])
                row.group, row.member = int(p.slot_group[at]), int(p.slot_member[at])
                row.schedule = int(p.node_schedule[r])
                row.has_turn = row.seq == 0 or self.settings.concurrent_collectives
                npu.collectives[row.group, row.seq] = row
            npu.rows.append(row)
        npu.ready.extend(row for row in npu.rows if row.parents == 0)

    def plan(self, row):
        """Lanes of absolute steps of the row's member."""
        if row.schedule not in self.steps:
            self.steps[row.schedule] = unpack(self.program.schedules, row.schedule)
            self.buffers[row.schedule] = buffers(self.program.schedules, row.schedule)
            self.blocking[row.schedule] = of_lanes(self.program.schedules, row.schedule, "lane_blocking")
            self.connection[row.schedule] = of_lanes(self.program.schedules, row.schedule, "lane_connection")
            self.shares[row.schedule] = of_lanes(self.program.schedules, row.schedule, "lane_shares")
            self.begins[row.schedule] = of_lanes(self.program.schedules, row.schedule, "lane_begins")
        return self.steps[row.schedule][row.member]

    def members(self, group):
        return self.program.group_member[self.program.group_ptr[group] : self.program.group_ptr[group + 1]].tolist()

    # Events

    def schedule(self, time, node, order, action, *args):
        heapq.heappush(self.heap, (time, node, order, next(self.serial), action, args))

    def own(self, npu, time, slot, action, *args):
        self.schedule(time, npu.number, (0, slot), action, npu, *args)

    def bring(self, time, link, packet):
        """A packet comes over a link; all that comes to its node at that time is known by then."""
        if (time, link.dst) not in self.coming:
            self.schedule(time, link.dst, (1,), self.meet, link.dst)
        self.coming.setdefault((time, link.dst), []).append((link.number, link, packet))

    def meet(self, node):
        """All that comes to a node now is there."""
        arrivals = self.in_order(node, self.coming.pop((self.now, node)))
        for place, (_, link, packet) in enumerate(arrivals):
            self.schedule(self.now, node, (2, place), self.arrive, node, link, packet)

    def in_order(self, node, arrivals):
        """Arrivals, each with the number of its link in front, in the order in which they act."""
        rule = self.rule_at(node).pick is not None and self.has_choice(node)
        if node < len(self.npus) or rule or self.settings.has_port_queues:
            return self.ties[node].in_order(self.now, arrivals)
        ports = defaultdict(list)  # the ports of the switch do not depend on each other
        for arrival in arrivals:
            ports[self.way(node, arrival[-1])].append(arrival)
        return [each for port, some in ports.items() for each in self.port_ties[port].in_order(self.now, some)]

    @cache  # noqa: B019 - a test's simulator lives as long as the test
    def rule_at(self, node):
        """The load balancing of a switch: that of its tier, or of all."""
        word = self.graph.node_name(node).rpartition(" ")[0] or self.graph.node_name(node)
        own = [tier.load_balancing for tier in self.settings.tiers if tier.word == word and tier.load_balancing]
        return (own or [self.settings.load_balancing])[0]

    @cache  # noqa: B019 - a test's simulator lives as long as the test
    def has_choice(self, node):
        """Whether a switch has several equal links to some NPU."""
        by_table = hasattr(self.graph.routing, "home")
        return not by_table or any(len(self.equal_links(node, dst, 0)) > 1 for dst in range(self.graph.npus))

    def run(self):
        for npu in self.npus:
            self.settle(npu)
        while self.heap:
            self.now, node, _, _, action, args = heapq.heappop(self.heap)
            action(*args)
            if node < len(self.npus):
                self.settle(self.npus[node])
        return self

    def settle(self, npu):
        """Everything that follows at this moment: rows start first, then the touched ports are tried."""
        while npu.ready or npu.touched:
            if npu.ready:
                self.start(npu, npu.ready.popleft())
            else:
                self.try_port(npu, npu.touched.pop())

    # Links and switches

    def transmit(self, link, packet, start, since):
        size, far = packet.size, link.dst
        link.busy_until = start + max(1, link.time_of(size))
        link.tx_bytes += size
        link.tx_packets += 1
        link.longest_wait = max(link.longest_wait, start - since)
        if self.cuts_through(far):
            acts = start + link.time_of(min(size, self.settings.header_bytes)) + link.delay
        else:
            acts = link.busy_until + link.delay
        self.bring(acts, link, packet)

    def cuts_through(self, node):
        return self.settings.cut_through and node >= len(self.npus)

    def arrive(self, node, link, packet):
        self.count["packet_hops"] += 1
        if node >= len(self.npus):
            self.forward(node, link, packet)
        elif packet.dst != node:
            self.pass_on(self.npus[node], packet)
        else:
            self.count["bytes_received"] += packet.size
            (self.on_ack if packet.is_ack else self.on_data)(self.npus[node], packet)

    def forward(self, node, came_over, packet):
        link = self.links[self.way(node, packet)]
        at = self.now + int(self.graph.node_latency_ps[node])
        start = max(at, link.busy_until)
        limit = 0 if self.graph.node_kind[node] == NVSWITCH else self.settings.queue_limit_bytes
        if limit and start - at + link.time_of(packet.size) > limit * link.ps_per_byte:
            self.drop(link, packet)
            return
        if self.cuts_through(node):
            head = min(packet.size, self.settings.header_bytes)
            last_byte_in = at + came_over.time_of(packet.size) - came_over.time_of(head)
            start = max(start, last_byte_in - link.time_of(packet.size))
        self.transmit(link, packet, start, at)

    def drop(self, link, packet):
        link.dropped += 1
        self.count["dropped_packets"] += 1
        self.count["bytes_dropped"] += packet.size

    # Routing: the rules of topologies/routing.py, with hashes for equal costs

    def one_of(self, links, node, entropy):
        if len(links) == 1:
            return links[0]
        if node < self.graph.npus and self.has_several_nics:
            return links[entropy % len(links)]
        return links[mix(self.salt[node] ^ (entropy * 0x9E3779B1)) * len(links) // WORD]

    def links_of(self, port_set):
        r = self.graph.routing
        return r.set_link[r.set_ptr[port_set] : r.set_ptr[port_set + 1]].tolist()

    def way(self, node, packet):
        """The link by which a packet leaves a switch."""
        return self.next_link(node, packet.dst, packet.entropy)

    def next_link(self, node, dst, entropy):
        to = node, dst, entropy
        if to not in self.ways:
            self.ways[to] = self.equal_links(node, dst, entropy)
        return self.one_of(self.ways[to], node, entropy)

    def by_rate(self, node, links):
        """Links of an NPU, NICs as often as their rates say: in common parts of all, if there are no more than 16."""
        graph = self.graph
        nics = [link for link in self.npus[node].ports if graph.node_kind[graph.link_dst[link]] != NVSWITCH]
        part = math.gcd(*(int(graph.link_rate_bps[link]) for link in nics))
        count = {link: int(graph.link_rate_bps[link]) // part for link in nics}
        total = sum(count.values())
        if total > 16:
            count = {link: max(1, round(parts * 16 / total)) for link, parts in count.items()}
            common = math.gcd(*count.values())
            count = {link: parts // common for link, parts in count.items()}
        mean = round(sum(count.values()) / len(count)) if count else 1
        return [link for link in links for _ in range(count.get(link, mean))]

    def equal_links(self, node, dst, entropy):
        r = self.graph.routing
        if not hasattr(r, "home"):
            return self.links_of(self.dimension_set(node, dst, entropy))
        if node < self.graph.npus:
            distance = {link: self.distance(self.links[link].dst, dst) for link in self.npus[node].ports}
            nearest = [link for link in sorted(distance) if distance[link] == min(distance.values())]
            return self.by_rate(node, nearest) if len(nearest) > 1 else nearest
        row, best, equals, chosen = int(r.row[node]), 127, 0, None
        for i, home in enumerate(r.home[dst].tolist()):
            hops = 127 if home < 0 else int(r.hops[row, home])
            if hops == 127 or hops > best:
                continue
            equals = equals + 1 if hops == best else 1
            replaces = mix(self.salt[node] ^ ((entropy + i) * 0x5BD1E995)) * equals // WORD == 0
            if hops < best or replaces:
                best, chosen = hops, int(r.attach_set[dst, i] if hops == 0 else r.next_set[row, home])
        return self.links_of(chosen)

    def distance(self, switch, dst):
        r = self.graph.routing
        return min(int(r.hops[r.row[switch], home]) for home in r.home[dst] if home >= 0)

    def dimension_set(self, node, dst, entropy):
        r = self.graph.routing
        own, wanted = r.digit[node].tolist(), r.digit[dst].tolist()
        d = next(d for d in range(len(own)) if own[d] != wanted[d])
        at = int(r.offset[node, d])
        if r.mode[node, d] == RING:
            ahead, behind = (wanted[d] - own[d]) % int(r.sizes[d]), (own[d] - wanted[d]) % int(r.sizes[d])
            backwards = behind < ahead or (behind == ahead and mix(self.salt[dst] ^ entropy) % 2 == 1)
            at += int(backwards)
        elif r.mode[node, d] == TABLE:
            at += wanted[d]
        return int(r.sets[at])

    # An NPU's ports

    def touch(self, npu, port):
        if port not in npu.touched:
            npu.touched.append(port)

    def route_from(self, npu, dst, entropy):
        return npu.ports[self.next_link(npu.number, dst, entropy)]

    def pass_on(self, npu, packet):
        port = self.route_from(npu, packet.dst, packet.entropy)
        packet.since = self.now
        limit = self.settings.queue_limit_bytes
        if packet.control:
            port.acks.append(packet)
        elif limit and sum(other.size for other in port.transit) + packet.size > limit:
            self.drop(port.link, packet)
        else:
            port.transit.append(packet)
        self.touch(npu, port)

    def try_port(self, npu, port):
        if port.sending:
            return
        packet = self.choose_packet(npu, port)
        if packet is not None:
            self.transmit(port.link, packet, self.now, packet.since)
            port.sending = True
            self.own(npu, port.link.busy_until, port.slot, self.port_idle, port)

    def choose_packet(self, npu, port):
        """Acknowledgements first, then transit and queue pairs by turns; queue pairs round robin."""
        if port.acks:
            return port.acks.popleft()
        pair = self.whose_turn(port)
        if self.transit_goes(port) and (port.pair_sent_last or pair is None):
            port.pair_sent_last = False
            return port.transit.popleft()
        if pair is None:
            return None
        port.pair_sent_last = True
        port.turns.remove(pair)
        packet = self.next_data(npu, port, pair)
        pair.in_turn = self.may_send(pair)
        if pair.in_turn:
            port.turns.append(pair)
        return packet

    def whose_turn(self, port):
        while port.turns and not self.may_send(port.turns[0]):
            port.turns.popleft().in_turn = False
        return port.turns[0] if port.turns else None

    def transit_goes(self, port):
        return len(port.transit) > 0

    def port_idle(self, npu, port):
        port.sending = False
        tell, port.tell = port.tell, None
        self.touch(npu, port)
        if tell is not None:
            tell()

    # Sending

    def may_send(self, pair):
        return pair.next < pair.end and pair.next - pair.unacknowledged < self.window

    def activate(self, npu, pair):
        if not pair.in_turn and self.may_send(pair):
            pair.in_turn = True
            pair.port.turns.append(pair)
            self.touch(npu, pair.port)

    def pair_to(self, npu, dst, group, connection):
        if (dst, group, connection) not in npu.pairs:
            src = npu.number + self.settings.seed
            if self.has_several_nics:  # the connections of two NPUs have consecutive numbers
                entropy = (mix3(src, dst, group) + connection) % 2**15
            else:
                entropy = mix3(src, dst, group + connection * 2**19) % 2**15
            port = self.route_from(npu, dst, entropy)
            npu.pairs[dst, group, connection] = self.new_pair(npu, dst, group, port, entropy)
        return npu.pairs[dst, group, connection]

    def post(self, npu, dst, group, connection, seq, lane, size, tell, shares=1):
        pair = self.pair_to(npu, dst, group, connection)
        pair.shares = pair.shares or shares
        packets = max(1, -(-size // self.settings.mtu_bytes))
        end = pair.end + packets
        message = Message(size=size, begin=pair.end, end=end, tell=tell, seq=seq, lane=lane, start=self.now)
        pair.messages.append(message)
        pair.end = message.end
        self.activate(npu, pair)

    def next_data(self, npu, port, pair):
        seq = pair.next
        pair.next += 1
        message = next(m for m in pair.messages if m.begin <= seq < m.end)
        last = seq == message.end - 1
        mtu = self.settings.mtu_bytes
        payload = message.size - (seq - message.begin) * mtu if last else mtu
        if seq < pair.first_unsent:
            self.count["retransmitted_packets"] += 1
        else:
            pair.first_unsent = seq + 1
            if last:
                port.tell = message.tell
        if seq == pair.unacknowledged:
            self.arm(npu, pair)
        size = payload + self.settings.header_bytes
        self.count["data_packets"] += 1
        self.count["bytes_sent"] += size
        return Packet(
            src=npu.number, dst=pair.dst, size=size, seq=seq, pair=pair, entropy=pair.entropy, control=False,
            is_ack=False, last=last, message=message, payload=payload, since=self.now,
        )  # fmt: skip

    # Receiving

    def on_data(self, npu, packet):
        state = npu.expected.setdefault(packet.pair, SimpleNamespace(seq=0, nak_sent=False))
        if packet.seq == state.seq:
            state.seq += 1
            state.nak_sent = False
            self.count["payload_bytes"] += packet.payload
            self.acknowledge(npu, packet, state.seq, nak=False)
            if packet.last:
                self.complete(npu, packet)
        elif packet.seq < state.seq:
            self.acknowledge(npu, packet, state.seq, nak=False)
        elif not state.nak_sent:
            state.nak_sent = True
            self.acknowledge(npu, packet, state.seq, nak=True)

    def acknowledge(self, npu, packet, expected, *, nak):
        size = self.settings.ack_bytes
        self.count["ack_packets"] += 1
        self.count["bytes_sent"] += size
        port = self.route_from(npu, packet.src, packet.entropy)
        ack = Packet(
            src=npu.number, dst=packet.src, size=size, seq=expected, pair=packet.pair, entropy=packet.entropy,
            control=True, is_ack=True, nak=nak, since=self.now,
        )  # fmt: skip
        port.acks.append(ack)
        self.touch(npu, port)
        return ack

    def complete(self, npu, packet):
        message, pair = packet.message, packet.pair
        group = -1 if pair.group == P2P_GROUP else pair.group
        self.flows.append(
            (packet.src, npu.number, group, message.seq, message.lane, message.size, message.start, self.now)
        )
        self.act(npu, packet)

    def act(self, npu, packet):
        """What the receiver does with a message, whose last packet this is."""
        message = packet.message
        group = -1 if packet.pair.group == P2P_GROUP else packet.pair.group
        if group < 0:
            row = npu.receives[packet.src, message.lane, message.seq]
            row.has_arrived = True
            if row.is_posted:
                self.finished(npu, row)
        else:
            instance = npu.instances.setdefault((group, message.seq), Instance())
            instance.arrived[message.lane] = instance.arrived.get(message.lane, 0) + 1
            self.advance(npu, instance)

    def on_ack(self, npu, ack):
        pair = ack.pair
        newly = max(0, ack.seq - pair.unacknowledged)
        if ack.seq > pair.unacknowledged:
            pair.unacknowledged = ack.seq
            pair.retries = 0
            pair.messages = [m for m in pair.messages if m.end > ack.seq]
            pair.next = max(pair.next, ack.seq)
            self.arm(npu, pair)
        self.learn(pair, ack, newly)
        if ack.nak and ack.seq == pair.unacknowledged:
            self.go_back(pair, NAK)
        self.activate(npu, pair)

    def learn(self, pair, ack, newly):
        """Where congestion control listens."""

    def go_back(self, pair, _reason):
        pair.next = pair.unacknowledged

    # The retransmission timer: one for all queue pairs of an NPU

    def arm(self, npu, pair):
        if self.rto > 0:
            pair.deadline = self.now + self.rto * 2 ** min(pair.retries, MAX_BACKOFF)
            self.set_timer(npu, pair.deadline)

    def set_timer(self, npu, time):
        if time < npu.timer_at:
            npu.timer_at = time
            self.own(npu, time, len(npu.ports) + LANES, self.on_timer)

    def on_timer(self, npu):
        if self.now != npu.timer_at:  # set to run out earlier since
            return
        npu.timer_at = math.inf
        outstanding = [pair for pair in npu.pairs.values() if pair.unacknowledged < pair.next]
        later = [pair.deadline for pair in outstanding if pair.deadline > self.now]
        for pair in reversed(outstanding):
            if pair.deadline <= self.now:
                self.count["timeouts"] += 1
                pair.retries += 1
                if pair.retries > self.settings.max_retries:
                    raise GaveUpError(f"npu {npu.number} to npu {pair.dst}: packet {pair.unacknowledged}")
                self.go_back(pair, TIMEOUT)
                self.activate(npu, pair)
        if later:
            self.set_timer(npu, min(later))

    # The trace

    def start(self, npu, row):
        if row.kind in {COMPUTE, MEMORY} and npu.lane[row.lane] is not None:
            npu.waiting[row.lane].append(row)
            return
        if row.kind == COLLECTIVE and not row.has_turn:
            row.waits_for_turn = True
            return
        row.start = self.now
        if row.kind in {COMPUTE, MEMORY}:
            self.occupy(npu, row)
        elif row.kind == SEND:
            if row.duration > 0:
                self.own(npu, self.now + row.duration, self.post_slot(npu, row), self.send, row)
            else:
                self.send(npu, row)
        elif row.kind == COLLECTIVE and row.schedule >= 0:
            instance = npu.instances.setdefault((row.group, row.seq), Instance())
            instance.row, instance.plan = row, self.plan(row)
            instance.done, instance.posted = [0] * len(instance.plan), [False] * len(instance.plan)
            instance.left = [0] * len(instance.plan)
            instance.ready_at = {}
            self.advance(npu, instance)
        elif row.kind == RECV and not row.has_arrived:
            row.is_posted = True
        else:
            self.finished(npu, row)

    def post_slot(self, npu, _row):
        return 2 * len(npu.ports) + LANES + 2

    def send(self, npu, row):
        tell, own = (lambda: self.finished(npu, row)), (row.connection, row.seq, row.tag, row.size)
        self.post(npu, row.peer, P2P_GROUP, *own, tell, row.shares)

    def occupy(self, npu, row):
        if row.duration > 0:
            npu.lane[row.lane] = row
            self.own(npu, self.now + row.duration, len(npu.ports) + row.lane, self.leave_lane, row)
        else:
            self.leave_lane(npu, row)

    def leave_lane(self, npu, row):
        npu.lane[row.lane] = None
        if npu.waiting[row.lane]:
            npu.ready.append(npu.waiting[row.lane].popleft())
        self.finished(npu, row)

    def finished(self, npu, row):
        row.finish = self.now
        self.finish = max(self.finish, self.now)
        if row.kind == COLLECTIVE and (row.group, row.seq + 1) in npu.collectives:
            following = npu.collectives[row.group, row.seq + 1]
            following.has_turn = True
            if following.waits_for_turn:
                following.waits_for_turn = False
                npu.ready.append(following)
        for index in row.children:
            child = npu.rows[index]
            child.parents -= 1
            if child.parents == 0:
                npu.ready.append(child)

    # Collectives

    def advance(self, npu, instance):
        if instance.row is None:
            return
        goes_on = True
        while goes_on:
            goes_on = False
            for lane in range(len(instance.plan)):
                while self.step(npu, instance, lane):
                    goes_on = True
        lanes_done = all(done == len(steps) for done, steps in zip(instance.done, instance.plan, strict=True))
        if lanes_done and instance.sends_left == 0:
            del npu.instances[instance.row.group, instance.row.seq]
            self.finished(npu, instance.row)

    def step(self, npu, instance, lane):
        """Do the lane's next step as far as it goes; True if it is done."""
        at = instance.done[lane]
        if at == len(instance.plan[lane]):
            return False
        step = instance.plan[lane][at]
        if not instance.posted[lane]:
            if step.dep_lane >= 0 and instance.done[step.dep_lane] <= step.dep_step:
                return False
            if self.is_delayed(npu, instance, lane, step):
                return False
            instance.posted[lane] = True
            if step.send_peer >= 0:
                self.post_step(npu, instance, lane, step)
        blocks = step.send_peer >= 0 and self.blocking[instance.row.schedule][instance.row.member][lane]
        if blocks and instance.left[lane] == 0:
            return False
        if step.recv_peer >= 0:
            if not instance.arrived.get(lane):
                return False
            instance.arrived[lane] -= 1
        instance.left[lane] -= 1 if blocks else 0
        instance.done[lane] += 1
        instance.posted[lane] = False
        return True

    def begins_itself(self, row):
        """Whether lanes wait for the endpoint's delay, and not the collective."""
        return len(self.plan(row)) > 0 and self.begins[row.schedule][row.member][0]

    def is_delayed(self, npu, instance, lane, step):
        """Whether the first send of a lane waits for the endpoint's delay."""
        row = instance.row
        begins = instance.done[lane] == 0 and self.begins[row.schedule][row.member][lane]
        if not self.endpoint or not begins or step.send_peer < 0:
            return False
        if lane not in instance.ready_at:
            instance.ready_at[lane] = self.now + self.endpoint
            self.own(npu, self.now + self.endpoint, self.agenda(npu), self.lane_is_ready, instance, lane)
        return instance.ready_at[lane] is not None

    def lane_is_ready(self, npu, instance, lane):
        instance.ready_at[lane] = None
        self.advance(npu, instance)

    def agenda(self, npu):
        """Slot of what collectives do later."""
        return 2 * len(npu.ports) + LANES + 1

    def post_step(self, npu, instance, lane, step):
        row = instance.row
        buffer = self.buffers[row.schedule][row.member][lane]
        size = buffer.wire_bytes(step.send_chunk, step.send_count, row.size)
        instance.sends_left += 1

        def sent():
            instance.sends_left -= 1
            instance.left[lane] += 1
            self.advance(npu, instance)

        dst = self.members(row.group)[step.send_peer]
        connection = self.connection[row.schedule][row.member][lane]
        shares = self.shares[row.schedule][row.member][lane]
        self.post(npu, dst, row.group, connection, row.seq, step.send_lane, size, sent, shares)

    # What came of it

    def unfinished(self):
        return [(npu.number, row.index) for npu in self.npus for row in npu.rows if row.finish < 0]
