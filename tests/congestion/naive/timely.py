"""TIMELY: algorithm 1 of the paper, with all round-trip times kept."""


class Timely:
    def __init__(self, line, window, base_rtt, **p):
        self.p = p
        self.line = self.rate = line
        self.window = window
        self.delta = p["fixed_delta_bps"] or p["delta_bps"] * line / 25e9
        self.min_rtt = p["min_rtt_ps"] or base_rtt
        self.rtts, self.gradients = [], []
        self.next_event = 0  # packet whose acknowledgement is the next completion event
        self.sent_packets = self.acked_packets = 0

    @property
    def psb(self):
        return 0.0 if self.rate >= self.line else 8e12 / self.rate

    def sent(self, _now, _size):
        self.sent_packets += 1

    def ack(self, _now, packets, _mark, rtt):
        self.acked_packets += packets
        if rtt > 0 and self.acked_packets - 1 >= self.next_event:
            self.next_event = self.sent_packets
            self.completion(rtt)

    def gradient(self):
        """The exponential average over all differences, the newest last."""
        smooth = 0.0
        for before, after in zip(self.rtts, self.rtts[1:], strict=False):
            smooth = (1 - self.p["alpha"]) * smooth + self.p["alpha"] * (after - before)
        return smooth / self.min_rtt

    def hai(self):
        last = self.gradients[-int(self.p["hai_events"]) :]
        return len(last) == self.p["hai_events"] and all(gradient < 0 for gradient in last)

    def completion(self, rtt):
        self.rtts.append(rtt)
        self.gradients.append(self.gradient())
        beta, gradient = self.p["beta"], self.gradients[-1]
        if rtt < self.p["t_low_ps"]:
            self.rate += self.delta
        elif rtt > self.p["t_high_ps"]:
            self.rate *= 1 - beta * (1 - self.p["t_high_ps"] / rtt)
        elif gradient <= 0:
            if self.hai():
                self.rate += self.p["fixed_hai_bps"] or self.p["hai_factor"] * self.delta
            else:
                self.rate += self.delta
        else:
            self.rate *= 1 - beta * gradient
        self.rate = min(max(self.rate, self.p["min_rate_bps"]), self.line)

    def cnp(self, _now):
        pass

    def loss(self, _now, _kind):
        pass
