"""NSCC as section 3.6.13 of the Ultra Ethernet Specification has it, on a plain object; the average delay is htsim's.

Times in ps, sizes in bytes, rates in bytes per ps.
"""

REFERENCE_BDP = 100e9 / 8 * 12e-6


class Nscc:
    gamma, delay_alpha = 0.8, 0.0125

    def __init__(self, now, line_rate, network_rtt, mss, mtu, static_packets, target_rtts=1.0):
        self.line_rate, self.network_rtt, self.mtu, self.static = line_rate, network_rtt, mtu, static_packets * mtu
        self.target = target_rtts * network_rtt
        a, b = line_rate * network_rtt / REFERENCE_BDP, self.target / 12e6
        self.alpha = 4 * mss * a * b / self.target
        self.fi, self.eta, self.fi_scale = 5 * mss * a, 0.15 * mss * a, 0.25 * a
        self.base_rtt = network_rtt
        self.cwnd = self.maxwnd
        self.avg_delay = 0.0
        self.inc_bytes = self.received = self.achieved = 0
        self.ignored = self.to_ignore = 0
        self.qa_end, self.trigger_qa = None, False
        self.fi_count, self.increase = 0, False
        self.last_dec = self.last_adjust = now

    @property
    def maxwnd(self):
        return min(1.5 * self.base_rtt * self.line_rate, self.static)

    def bound(self):
        self.cwnd = max(min(self.cwnd, self.maxwnd), self.mtu)

    def average(self, delay, mark):
        if delay > self.target and not mark:
            delay = self.base_rtt / 4
        self.avg_delay += self.delay_alpha * (delay - self.avg_delay)

    def on_ack(self, now, newly, mark, rtt, in_flight):
        self.achieved += newly
        self.received += newly
        self.ignored += newly
        if rtt is None:
            return
        self.base_rtt = min(self.base_rtt, rtt)
        delay = rtt - self.base_rtt
        self.average(delay, mark)
        if self.quick_adapt(now, mark, delay, in_flight, loss=False):
            return
        if mark and delay >= self.target:
            self.multiplicative_decrease(now)
        elif not mark and delay >= self.target:
            self.inc_bytes += self.fi * newly
        elif not mark:
            self.proportional_increase(newly, delay)
        self.bound()
        if self.received > 8 * self.mtu or now - self.last_adjust >= self.network_rtt:
            self.cwnd += self.inc_bytes / self.cwnd
            if now - self.last_adjust >= self.network_rtt:
                self.cwnd += self.eta
                self.last_adjust = now
            self.inc_bytes = self.received = 0
        self.bound()

    def quick_adapt(self, now, mark, delay, in_flight, *, loss):
        acted = False
        if mark and self.ignored < self.to_ignore:
            acted = True
        elif self.qa_end is None or now >= self.qa_end:
            bad = loss or self.trigger_qa or delay > 4 * self.target
            if self.qa_end is not None and bad and self.achieved < self.maxwnd / 8:
                self.cwnd = max(self.achieved, self.mtu)
                self.to_ignore, self.ignored = in_flight, 0
                self.trigger_qa, acted = False, True
            self.achieved = 0
            self.qa_end = now + self.base_rtt + int(self.target)
        if acted:
            self.inc_bytes = self.received = 0
        return acted

    def proportional_increase(self, newly, delay):
        if delay < 1_000_000:
            self.fi_count += newly
            if self.increase or self.fi_count > self.cwnd:
                self.cwnd += newly * self.fi_scale
                self.increase = True
        else:
            self.fi_count, self.increase = 0, False
        if not self.increase:
            self.inc_bytes += self.alpha * newly * (self.target - delay)

    def multiplicative_decrease(self, now):
        self.fi_count, self.increase = 0, False
        if self.avg_delay > self.target and now - self.last_dec > self.base_rtt:
            self.cwnd *= max(1 - self.gamma * (self.avg_delay - self.target) / self.avg_delay, 0.5)
            self.last_dec = now

    def on_trimmed(self, now, in_flight, rtt=None):
        self.base_rtt = self.base_rtt if rtt is None else min(self.base_rtt, rtt)
        self.ignored += self.mtu
        self.average(self.network_rtt, mark=True)
        self.trigger_qa = True
        if not self.quick_adapt(now, True, 0, max(0, in_flight - self.mtu), loss=True):
            self.cwnd -= self.mtu
            self.bound()

    def on_inferred_loss(self, packets):
        for _ in range(packets):
            self.cwnd = max(self.cwnd - self.mtu, self.mtu)
            self.ignored += self.mtu
        self.bound()
