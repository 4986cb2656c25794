"""DCQCN from the paper: every expiration of a timer is an event of its own."""

import heapq


class Dcqcn:
    def __init__(self, line, window, **p):
        self.p = p
        self.line = self.rc = self.rt = line
        self.window = window
        self.alpha = 1.0
        self.T = self.BC = self.bytes = 0
        self.limited = self.held = False
        self.next_cut = 0
        self.queue, self.version = [], {"alpha": 0, "cut": 0, "increase": 0}

    @property
    def psb(self):
        return 0.0 if self.rc >= self.line else 8e12 / self.rc

    def arm(self, kind, at):
        """(Re)start a timer; what it was set to before is void."""
        self.version[kind] += 1
        heapq.heappush(self.queue, (at, ("alpha", "cut", "increase").index(kind), kind, self.version[kind]))

    def run_until(self, now):
        while self.queue and self.queue[0][0] <= now:
            at, _, kind, version = heapq.heappop(self.queue)
            if version == self.version[kind]:
                getattr(self, f"{kind}_timer")(at)

    def alpha_timer(self, at):
        self.alpha = (1 - self.p["g"]) * self.alpha
        self.arm("alpha", at + self.p["alpha_update_interval_ps"])

    def cut_timer(self, at):
        if self.held:
            self.cut_rate(at)

    def increase_timer(self, at):
        self.rate_increase()
        self.T += 1
        self.arm("increase", at + self.p["rp_timer_ps"])

    def rate_increase(self):
        times = self.p["fast_recovery_times"]
        stages = [self.T] * (self.p["rp_timer_ps"] > 0) + [self.BC] * (self.p["byte_counter_bytes"] > 0)
        if max(stages) < times:
            pass  # fast recovery
        elif min(stages) > times:
            self.rt += self.p["fixed_rate_hai_bps"] or self.p["rate_hai_bps"] * self.line / 25e9
        else:
            self.rt += self.p["fixed_rate_ai_bps"] or self.p["rate_ai_bps"] * self.line / 25e9
        self.rt = min(self.rt, self.line)
        self.rc = (self.rt + self.rc) / 2

    def cut_rate(self, at):
        if self.p["clamp_target_rate"] or self.T or self.BC:
            self.rt = self.rc
        self.rc = max(self.rc * (1 - self.alpha / 2), min(self.line, self.p["min_rate_bps"]))
        self.T = self.BC = self.bytes = 0
        self.limited, self.held = True, False
        self.next_cut = at + self.p["rate_decrease_interval_ps"]
        if self.p["rp_timer_ps"]:
            self.arm("increase", at + self.p["rp_timer_ps"])

    def cnp(self, now):
        self.run_until(now)
        if not self.limited or now >= self.next_cut:
            self.cut_rate(now)
        elif not self.held:
            self.held = True
            self.arm("cut", self.next_cut)
        self.alpha = (1 - self.p["g"]) * self.alpha + self.p["g"]
        if self.p["alpha_update_interval_ps"]:
            self.arm("alpha", now + self.p["alpha_update_interval_ps"])

    def sent(self, now, size):
        self.run_until(now)
        if self.limited and self.p["byte_counter_bytes"]:
            self.bytes += size
            while self.bytes >= self.p["byte_counter_bytes"]:
                self.bytes -= self.p["byte_counter_bytes"]
                self.rate_increase()
                self.BC += 1

    def ack(self, now, *_):
        self.run_until(now)

    loss = ack
