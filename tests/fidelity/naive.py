"""Message-level networks once more, the slow way: objects and one heap, on the NPUs of tests/pdes/naive.py.

An event is (time, order, action). At one moment: the NPUs' own lanes, last bytes that have left, first steps of
collectives, messages that are acted on, messages that come in, messages that want a link; alike ones by NPU, or by
sender and how-manieth of the sender.
"""

import heapq
from types import SimpleNamespace

from tests.pdes import naive

OWN, LEFT, LAUNCH, TAKE, ARRIVE, WANT = range(6)


class Message(SimpleNamespace):
    """src, number (how many its sender had posted before), dst, group, connection, shares, seq, lane, size, start,
    tell, entropy."""


class Simulator(naive.Simulator):
    """Runs a program on a graph; what a message does when it wants a link is for subclasses."""

    def __init__(self, graph, program, settings):
        super().__init__(graph, program, settings, 0, 0)
        model = settings.fidelity
        self.reduction, self.resolution = model.reduction_psb, model.resolution_ps
        self.posted = [0] * graph.npus
        self.taken = {}

    def schedule(self, time, node, order, action, *args):
        heapq.heappush(self.heap, (time, order, next(self.serial), node, action, args))

    def own(self, npu, time, slot, action, *args):
        self.schedule(time, npu.number, (OWN, npu.number, slot), action, npu, *args)

    def of(self, message, time, what, action, node=None):
        node = message.src if node is None else node
        self.schedule(time, node, (what, *self.rank(message)), action, message)

    def rank(self, message):
        return message.src, message.number

    def run(self):
        for npu in self.npus:
            self.settle(npu)
        while self.heap:
            self.now, _, _, node, action, args = heapq.heappop(self.heap)
            action(*args)
            self.settle(self.npus[node])
        return self

    def cut(self, time):
        return time // self.resolution * self.resolution

    def time_on(self, link, size, latency=0):
        return self.cut(link.time_of(size) + latency)

    # Posting, and what a receiver does

    def start(self, npu, row):
        begins = row.kind == naive.COLLECTIVE and row.schedule >= 0 and row.has_turn
        if not begins or not self.endpoint or self.begins_itself(row):
            super().start(npu, row)
            return
        row.start = self.now
        order = (LAUNCH, npu.number, row.group, row.seq)
        self.schedule(self.now + self.endpoint, npu.number, order, self.launch, npu, row, self.now)

    def post_slot(self, _npu, row):
        return 2**32 + row.index

    def launch(self, npu, row, begun):
        super().start(npu, row)
        row.start = begun

    def post(self, npu, dst, group, connection, seq, lane, size, tell, shares=1):
        entropy = naive.mix3(npu.number + self.settings.seed, dst, group + connection * 2**19) % 2**15
        number = self.posted[npu.number]
        self.posted[npu.number] += 1
        self.count["data_packets"] += 1
        self.count["bytes_sent"] += size
        message = Message(
            src=npu.number, number=number, dst=dst, group=group, seq=seq, lane=lane, size=size, start=self.now,
            tell=tell, entropy=entropy, connection=connection, shares=shares,
        )  # fmt: skip
        self.of(message, self.now, WANT, lambda m: self.go_on(m, m.src))

    def left(self, message, time):
        self.of(message, time, LEFT, lambda m: m.tell())

    def arrives(self, message, time):
        self.of(message, time, ARRIVE, self.arrived, message.dst)

    def arrived(self, message):
        self.count["bytes_received"] += message.size
        self.count["payload_bytes"] += message.size
        time = self.now + self.endpoint
        if self.reduction and message.group != naive.P2P_GROUP:
            lane = self.taken.setdefault((message.dst, message.group, message.seq, message.lane), [0, 0])
            row = self.npus[message.dst].collectives[message.group, message.seq]
            receives = [step for step in self.plan(row)[message.lane] if step.recv_peer >= 0]
            if receives[lane[0]].reduce:
                time += 3 * self.cut(int(message.size * self.reduction + 0.5))
            time = max(time, lane[1])
            lane[:] = lane[0] + 1, time
        if time == self.now:
            self.take(message)
        else:
            self.of(message, time, TAKE, self.take, message.dst)

    def take(self, message):
        pair = SimpleNamespace(group=message.group)
        self.complete(self.npus[message.dst], SimpleNamespace(src=message.src, message=message, pair=pair))

    def cross(self, link, message, waited):
        link.tx_bytes += message.size
        link.tx_packets += 1
        link.longest_wait = max(link.longest_wait, waited)
        self.count["packet_hops"] += 1


class Unaware(Simulator):
    """All latencies and the slowest link; messages between two NPUs of one group arrive in order."""

    def __init__(self, *args):
        super().__init__(*args)
        self.latest = {}

    def go_on(self, message, node):
        path = []
        while node != message.dst:
            path.append(self.links[self.next_link(node, message.dst, message.entropy)])
            node = path[-1].dst
        for link in path:
            self.cross(link, message, 0)
        latency = sum(link.delay for link in path)
        latency += sum(int(self.graph.node_latency_ps[link.src]) for link in path[1:])
        first, *others = [link.ps_per_byte for link in path]
        slowest = max(first * message.shares, *others, 0)
        arrival = self.now + self.cut(int(message.size * slowest + 0.5) + latency)
        connection = message.src, message.dst, message.group, message.connection
        arrival = max(arrival, self.latest.get(connection, 0))
        self.latest[connection] = arrival
        self.left(message, self.now + self.cut(int(message.size * slowest + 0.5)))
        self.arrives(message, arrival)


class Aware(Simulator):
    """Stored and forwarded over one link after another; a link has a queue, first come first served.

    One message of a connection with a share follows the other.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.driven_until = {}

    def go_on(self, message, node):
        link = self.links[self.next_link(node, message.dst, message.entropy)]
        begin = max(self.now, link.busy_until)
        self.cross(link, message, begin - self.now)
        link.busy_until = begin + self.time_on(link, message.size)
        left, at = link.busy_until, begin + self.time_on(link, message.size, link.delay)
        if node == message.src and message.shares > 1:
            connection = message.src, message.dst, message.group, message.connection
            begin = max(begin, self.driven_until.get(connection, 0))
            takes = int(message.size * link.ps_per_byte * message.shares + 0.5)
            left, at = begin + self.cut(takes), begin + self.cut(takes + link.delay)
            self.driven_until[connection] = left
        if node == message.src:
            self.left(message, left)
        if link.dst == message.dst:
            self.arrives(message, at)
        else:
            ready = at + int(self.graph.node_latency_ps[link.dst])
            self.of(message, ready, WANT, lambda m: self.go_on(m, link.dst))


MODELS = {"congestion_unaware": Unaware, "congestion_aware": Aware}


def by_hand(graph, program, settings):
    return MODELS[settings.fidelity.hooks.name](graph, program, settings).run()
