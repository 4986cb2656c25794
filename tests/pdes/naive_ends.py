"""What passes at the ends of messages that go as packets (pdes/npu/endpoints.py), once more in plain Python."""

from types import SimpleNamespace

from tests.pdes import naive


class Simulator(naive.Simulator):
    """The naive simulator with endpoint delays, latencies of sends, reductions, and completion by acknowledgement."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.model = self.settings.fidelity
        self.later = {npu.number: [] for npu in self.npus}
        self.taken = {}

    # What an NPU does later: one list, by time

    def put_off(self, npu, time, action, *, sends=False):
        items = self.later[npu.number]
        items.append(SimpleNamespace(time=time, sends=sends, action=action))
        items.sort(key=lambda item: item.time)  # stable
        self.own(npu, time, self.agenda(npu) + 1, self.do_later)

    def do_later(self, npu):
        """All messages that are to be sent, or one other thing."""
        items = self.later[npu.number]
        if not items or items[0].time > self.now:
            return
        first = items.pop(0)
        first.action()
        while first.sends and items and items[0].sends and items[0].time <= self.now:
            items.pop(0).action()

    # Sending

    def post(self, npu, dst, group, connection, seq, lane, size, tell, shares=1):
        self.pair_to(npu, dst, group, connection)
        posted = self.now

        def post():
            begin = super(Simulator, self).post
            if self.model.acknowledged:
                begin(npu, dst, group, connection, seq, lane, size, None, shares)
                npu.pairs[dst, group, connection].messages[-1].told = tell
            else:
                begin(npu, dst, group, connection, seq, lane, size, tell, shares)
            npu.pairs[dst, group, connection].messages[-1].start = posted

        if self.model.send_latency_ps:
            self.put_off(npu, self.now + self.model.send_latency_ps, post, sends=True)
        else:
            post()

    def on_ack(self, npu, ack):
        before = ack.pair.messages
        super().on_ack(npu, ack)
        for message in before if self.model.acknowledged else ():
            if message not in ack.pair.messages:
                self.put_off(npu, self.now, message.told)

    # Receiving

    def start(self, npu, row):
        begins = row.kind == naive.COLLECTIVE and row.schedule >= 0 and row.has_turn
        if not begins or not self.endpoint or self.begins_itself(row):
            super().start(npu, row)
            return
        row.start = self.now
        self.own(npu, self.now + self.endpoint, self.agenda(npu), self.launch, row, self.now)

    def launch(self, npu, row, begun):
        super().start(npu, row)
        row.start = begun

    def act(self, npu, packet):
        time = self.endpoint + (self.back_at(npu, packet) if self.model.acknowledged else self.now)
        message, group = packet.message, packet.pair.group
        if self.model.reduction_psb and group != naive.P2P_GROUP:
            lane = self.taken.setdefault((npu.number, group, message.seq, message.lane), [0, 0])
            row = npu.collectives[group, message.seq]
            receives = [step for step in self.plan(row)[message.lane] if step.recv_peer >= 0]
            if receives[lane[0]].reduce:
                time += 3 * int(message.size * self.model.reduction_psb + 0.5)
            time = max(time, lane[1])
            lane[:] = lane[0] + 1, time
        if time == self.now:
            super().act(npu, packet)
        else:
            self.put_off(npu, time, lambda: super(Simulator, self).act(npu, packet))

    def back_at(self, npu, packet):
        """When the last acknowledgement is back, if it meets nobody after its own port."""
        port = self.route_from(npu, packet.src, packet.entropy)
        size, link = self.settings.ack_bytes, port.link
        end = max(self.now, link.busy_until) + sum(link.time_of(waiting.size) for waiting in port.acks)
        head = size
        while True:
            if self.cuts_through(link.dst):
                head = min(size, self.settings.header_bytes)
            seen, whole = end - link.time_of(size) + link.time_of(head) + link.delay, end + link.delay
            if link.dst == packet.src:
                return whole
            after = self.links[self.next_link(link.dst, packet.src, packet.entropy)]
            latency = int(self.graph.node_latency_ps[link.dst])
            end = max(seen, whole - after.time_of(size)) + latency + after.time_of(size)
            link, head = after, size
