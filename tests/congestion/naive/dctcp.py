"""DCTCP from the paper and RFC 8257, packet by packet."""

TIMEOUT = 1


class Dctcp:
    psb = 0.0

    def __init__(self, cap, **p):
        self.p = p
        self.cap = self.cwnd = self.ssthresh = float(cap)
        self.alpha = p["initial_alpha"]
        self.marks = []  # of the packets acknowledged in this window of data
        self.sent_packets = self.acked_packets = 0
        self.window_last = 0  # the window of data lasts until this packet is acknowledged
        self.reduced_until = None  # no second reduction, and no growth, until this packet is acknowledged

    @property
    def window(self):
        return int(self.cwnd)

    def bound(self):
        self.cwnd = max(1.0, min(self.cap, self.cwnd))

    def sent(self, _now, _size):
        self.sent_packets += 1

    def ack(self, _now, packets, mark, _rtt):
        self.marks += [mark] * packets
        self.acked_packets += packets
        if self.acked_packets - 1 >= self.window_last:
            if self.marks:
                g = self.p["g"]
                self.alpha = (1 - g) * self.alpha + g * (sum(self.marks) / len(self.marks))
            self.marks, self.window_last = [], self.sent_packets
        if self.reduced_until is not None and self.acked_packets - 1 >= self.reduced_until:
            self.reduced_until = None
        if mark:
            self.reduce(1 - self.alpha / 2)
        elif self.cwnd < self.ssthresh:
            self.cwnd = min(self.cwnd + packets, self.ssthresh)
        elif self.reduced_until is None:
            self.cwnd += self.p["increase_packets"] * packets / self.cwnd
        self.bound()

    def reduce(self, factor):
        if self.reduced_until is None:
            least = min(self.cwnd, self.p["min_window_packets"])
            self.cwnd = max(self.cwnd * factor, least)
            self.bound()
            self.ssthresh = self.cwnd
            self.reduced_until = self.sent_packets

    def loss(self, _now, kind):
        self.reduce(0.5)
        if kind == TIMEOUT:
            self.cwnd = 1.0

    def cnp(self, _now):
        pass
