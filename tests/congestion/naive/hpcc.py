"""HPCC's Algorithm 1, line by line, on plain objects. Times in ps, sizes in bytes, rates in bytes per ps."""

from dataclasses import dataclass


@dataclass
class Link:
    """ack.L[i]: tx_bytes and ts are not wrapped; number tells links apart, rate is B."""

    number: object
    rate: float
    ts: int
    tx_bytes: int
    qlen: int


class Hpcc:
    def __init__(self, line_rate, rtt, eta=0.95, max_stage=5, flows=16, w_ai=None, least=0.0, fast_react=True):
        self.line_rate, self.rtt, self.eta, self.max_stage = line_rate, rtt, eta, max_stage
        self.w_init = line_rate * rtt
        self.w_ai = self.w_init * (1 - eta) / flows if w_ai is None else w_ai
        self.least, self.fast_react = least, fast_react
        self.wc = self.w = self.w_init
        self.u = 1.0
        self.inc_stage = 0
        self.last_update_seq = None
        self.links = None

    @property
    def rate(self):
        return min(self.line_rate, self.w / self.rtt)

    def measure_inflight(self, links):
        most, tau = 0.0, 0
        for new, old in zip(links, self.links, strict=True):
            duration = new.ts - old.ts
            tx_rate = (new.tx_bytes - old.tx_bytes) / duration
            u = min(new.qlen, old.qlen) / (new.rate * self.rtt) + tx_rate / new.rate
            if u > most:
                most, tau = u, duration
        part = min(tau, self.rtt) / self.rtt
        self.u = (1 - part) * self.u + part * most
        return self.u

    def compute_wind(self, u, update):
        if u >= self.eta or self.inc_stage >= self.max_stage:
            stage, w = 0, self.wc / (u / self.eta) + self.w_ai
        else:
            stage, w = self.inc_stage + 1, self.wc + self.w_ai
        w = min(max(w, self.least), self.w_init)
        if update:
            self.inc_stage, self.wc = stage, w
        return w

    def same_path(self, links):
        return [link.number for link in links] == [link.number for link in self.links]

    def new_ack(self, seq, snd_nxt, links):
        if self.links is None:
            self.last_update_seq = snd_nxt
        else:
            update = seq > self.last_update_seq
            if not update and not self.fast_react:
                return
            if self.same_path(links):
                self.w = self.compute_wind(self.measure_inflight(links), update)
                if update:
                    self.last_update_seq = snd_nxt
        self.links = links
