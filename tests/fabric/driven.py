"""Queue pairs that are driven at a share of their port's rate, on the queue pairs of tests/fabric/naive.py.

The payload of a packet takes shares times as long to be moved as the line would need for it in full packets. That
begins when its message is posted or the packet before may leave, and before that leaves by no more than what it takes.
Messages between two NPUs over their first connection, with p2p_share, are moved by one mover of the sender, one packet
after another.
"""

from collections import defaultdict

from tests.fabric import naive
from tests.pdes.naive import P2P_GROUP


class Driven(naive.Simulator):
    posting = False

    def __init__(self, *args):
        super().__init__(*args)
        self.mover_free = defaultdict(int)

    def post(self, npu, dst, group, *args):
        self.posting = True
        self.by_mover = group == P2P_GROUP and args[0] == 0
        if self.by_mover:
            args = (*args[:5], 1 / self.settings.p2p_share)
        super().post(npu, dst, group, *args)
        self.posting = False

    def activate(self, npu, pair):
        if not hasattr(pair, "by_mover"):
            pair.by_mover = self.by_mover
        if self.posting and pair.next == pair.messages[-1].begin:
            self.move(npu, pair, max(self.now, self.mover_free[npu.number] if self.has_mover(pair) else 0))
        super().activate(npu, pair)

    def has_mover(self, pair):
        return pair.by_mover and pair.shares > 1

    def move(self, npu, pair, begins):
        pair.next_send = max(self.now, begins + self.moving_ps(pair))
        if self.has_mover(pair):
            self.mover_free[npu.number] = pair.next_send

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
        moved = self.mover_free[npu.number] if self.has_mover(pair) else pair.next_send
        self.move(npu, pair, max(moved, self.now - on_wire))
        return packet
