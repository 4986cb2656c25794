"""Swift's Algorithm 1 and the scaling of its target, on a plain object. Times in ps, windows in packets."""

from math import inf, sqrt


class Swift:
    ai, beta, max_mdf, retx_reset_threshold = 1.0, 0.8, 0.5, 5
    fs_min_cwnd, fs_max_cwnd, min_cwnd = 0.1, 100.0, 0.001
    hop_scale = 1.0

    def __init__(self, base_rtt, max_cwnd, initial=None, base_target=None, fs_range=None):
        self.base_rtt, self.max_cwnd = base_rtt, max_cwnd
        self.base_target = base_rtt if base_target is None else base_target
        self.fs_range = 5 * self.base_target if fs_range is None else fs_range
        self.cwnd = min(max_cwnd, initial or max_cwnd)
        self.rtts = []
        self.t_last_decrease = -inf
        self.retransmit_cnt = 0

    def target_delay(self):
        alpha = self.fs_range / (1 / sqrt(self.fs_min_cwnd) - 1 / sqrt(self.fs_max_cwnd))
        beta = -alpha / sqrt(self.fs_max_cwnd)
        flow = max(0, min(alpha / sqrt(self.cwnd) + beta, self.fs_range))
        return self.base_target + self.hop_scale * min([self.base_rtt, *self.rtts]) + flow

    @property
    def rtt(self):
        """Smoothed over all that were measured."""
        if not self.rtts:
            return self.base_rtt
        smoothed = float(self.rtts[0])
        for rtt in self.rtts[1:]:
            smoothed += (rtt - smoothed) / 8
        return smoothed

    @property
    def pacing_delay(self):
        return self.rtt / self.cwnd if self.cwnd < 1 else 0.0

    def _become(self, now, cwnd):
        cwnd = min(max(cwnd, self.min_cwnd), self.max_cwnd)
        if cwnd < self.cwnd:
            self.t_last_decrease = now
        self.cwnd = cwnd

    def on_ack(self, now, num_acked, delay):
        self.retransmit_cnt = 0
        if delay is None:
            return
        can_decrease = now - self.t_last_decrease >= self.rtt
        self.rtts.append(delay)
        target, cwnd = self.target_delay(), self.cwnd
        if delay < target:
            cwnd = cwnd + self.ai / cwnd * num_acked if cwnd >= 1 else cwnd + self.ai * num_acked
        elif can_decrease:
            cwnd = max(1 - self.beta * (delay - target) / delay, 1 - self.max_mdf) * cwnd
        self._become(now, cwnd)

    def on_timeout(self, now):
        self.retransmit_cnt += 1
        if self.retransmit_cnt >= self.retx_reset_threshold:
            self._become(now, self.min_cwnd)
        else:
            self._cut(now)

    def on_fast_recovery(self, now):
        self.retransmit_cnt = 0
        self._cut(now)

    def _cut(self, now):
        if now - self.t_last_decrease >= self.rtt:
            self._become(now, (1 - self.max_mdf) * self.cwnd)
