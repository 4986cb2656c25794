"""Queue pairs that are driven at a share of their port's rate, on the queue pairs of tests/fabric/naive.py.

The payload of a packet takes shares times as long to be moved as the line would need for it in full packets. That
begins when its message is posted or the packet before may leave, and before that leaves by no more than what it takes.
"""

from tests.fabric import naive


class Driven(naive.Simulator):
    posting = False

    def post(self, *args):
        self.posting = True
        super().post(*args)
        self.posting = False

    def activate(self, npu, pair):
        if self.posting and pair.next == pair.messages[-1].begin:
            pair.next_send = self.now + self.moving_ps(pair)
        super().activate(npu, pair)

    def moving_ps(self, pair):
        """What the payload that is sent next takes."""
        if pair.shares == 1 or pair.next == pair.end:
            return 0
        mtu, message = self.settings.mtu_bytes, next(m for m in pair.messages if m.begin <= pair.next < m.end)
        payload = min(mtu, message.size - (pair.next - message.begin) * mtu)
        line = pair.port.link.ps_per_byte * pair.shares
        return int(payload * (line * self.full_packet / mtu) + 0.5)

    def next_data(self, npu, port, pair):
        packet = super().next_data(npu, port, pair)
        on_wire = int(packet.size * port.link.ps_per_byte + 0.5)
        pair.next_send = max(self.now, max(pair.next_send, self.now - on_wire) + self.moving_ps(pair))
        return packet
