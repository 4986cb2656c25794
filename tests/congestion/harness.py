"""One queue pair of a tiny world under a congestion control, told by hand what happens to it.

Run as a script, it prints what 400 events leave.
"""

import ctypes
import importlib
import random
import sys
from functools import cache

import numpy as np
import pytest

from nadi.pdes import Settings, build_world
from nadi.pdes.core import state as s
from nadi.pdes.core.jit import call_hook, jit_enabled, rows_of
from nadi.pdes.core.rows.network import LinkClass
from nadi.pdes.nic.congestion import control, parameters
from nadi.topologies import build
from tests.pdes.cases import Traces

US = 1_000_000
Q = 3
"""Row of the queue pair."""
LINE_PSB = 20.0
"""ps per byte at 400 Gb/s."""
BASE_RTT = 8 * US
PACKET = 4096 + 82
UNTOUCHED = -7


def near(x):
    return pytest.approx(x, rel=1e-12, abs=0)


def defaults(name):
    return {own: parameter.default for own, parameter in parameters(name).items()}


@cache
def logical_process(name):
    """One that keeps two classes of links. Pairs share it: each test has one at a time."""
    traces = Traces(2)
    traces.message(0, 1, 1000)
    graph = build("switch:npus=2,rate=400Gbps")
    (lp,) = build_world(graph, traces.program(), Settings(congestion_control=control(name))).lps
    lp.world = lp.world._replace(net=lp.world.net._replace(link_class=rows_of(LinkClass, 2)))
    return lp


class Pair:
    """Queue pair Q under the control `name`. Its link classes: 0 as the line, 1 of half its rate.

    Attributes:
        row: Words of the control.
        una, next, sent_max: Sequence numbers, set by the caller before it tells of an event.
    """

    def __init__(self, name, overrides=None, *, window=200, base_rtt=BASE_RTT, line_psb=LINE_PSB):
        self.lp = logical_process(name)
        net, qps = self.lp.world.net, self.lp.world.qps
        net.const.window_packets, net.const.base_rtt_ps = window, base_rtt
        net.link_class.ps_per_byte = line_psb, 2 * line_psb
        values = control(name, overrides or {}).values
        qps.par.view(np.float64)[: len(values)] = values
        rows = qps.cc.view(np.ndarray)
        self.words = rows.view(np.int64).reshape(len(rows), -1)
        self.words[:] = UNTOUCHED
        self.words[Q] = 0
        kind = getattr(importlib.import_module(f"nadi.pdes.nic.congestion.{name}"), f"{name.capitalize()}State")
        self.row = rows.view(kind.dtype).view(np.recarray)[Q]
        self.row.line_ps_per_byte = line_psb
        self.una = self.next = self.sent_max = 0

    def tell(self, event, now, a=0, b=0, c=-1):
        qp = self.lp.world.qps.qp[Q]
        qp.una, qp.next_seq, qp.sent_max = self.una, self.next, self.sent_max
        hook = int(self.lp.world.net.hooks.congestion_control)
        arguments = (self.lp.address, Q, event, now, a, b, c)
        if jit_enabled():
            ctypes.CFUNCTYPE(*[ctypes.c_int64] * 8)(hook)(*arguments)
        else:
            call_hook(hook, *arguments)

    def carry(self, hops):
        """Telemetry of the acknowledgement that is told next: (ps, class, bytes sent, bytes queued) of each hop."""
        carried = self.lp.world.net.carried
        carried.hops = len(hops)
        carried.met[:] = 0
        for i, (time, kind, sent, queue) in enumerate(hops):
            carried.met[2 * i] = time & ((1 << s.TELEMETRY_CLASS_SHIFT) - 1) | kind << s.TELEMETRY_CLASS_SHIFT
            carried.met[2 * i + 1] = sent & ((1 << s.TELEMETRY_QUEUE_SHIFT) - 1) | queue << s.TELEMETRY_QUEUE_SHIFT

    @property
    def window(self):
        return int(self.row.window_packets)

    @property
    def psb(self):
        return float(self.row.pace_ps_per_byte)

    @property
    def others_untouched(self):
        return bool((np.delete(self.words, Q, 0) == UNTOUCHED).all())


class Sender(Pair):
    """A pair that begins at time 0, and keeps its sequence numbers itself; times are told in order."""

    def __init__(self, name, *, gbps=100.0, window=64, base_rtt=BASE_RTT, **overrides):
        super().__init__(name, overrides, window=window, base_rtt=base_rtt, line_psb=8000 / gbps)
        self.tell(s.CC_START, 0)

    def sent(self, now, size=1000):
        self.next += 1
        self.sent_max = max(self.sent_max, self.next)
        self.tell(s.CC_SENT, now, size, self.next - 1)

    def ack(self, now, packets=1, mark=0, rtt=-1):
        self.una += packets
        self.next = max(self.next, self.una)
        self.tell(s.CC_ACK, now, packets, mark, rtt)

    def cnp(self, now):
        self.tell(s.CC_CNP, now)

    def loss(self, now, kind=s.LOSS_NAK):
        self.next = self.una
        self.tell(s.CC_LOSS, now, kind)

    @property
    def outstanding(self):
        return self.sent_max - self.una

    def gbps(self, line=np.inf):
        """Return the rate, or that of the line where packets are not paced."""
        return 8000 / self.psb if self.psb else line


def story(name, seed):
    rng = random.Random(seed)  # noqa: S311
    pair = Pair(name, {"byte_counter_bytes": 3000} if name == "dcqcn" else {})
    now = 1000
    pair.tell(s.CC_START, now)
    hops = [[0, 0, 0, 0], [0, 1, 1 << 33, 0], [0, 0, 0, 0]]
    for _ in range(400):
        step = rng.choice([90_000, 700_000, 9_000_000, 10**10])
        now += rng.randrange(1, step)
        pair.sent_max = pair.next = max(pair.next, pair.una + rng.randrange(1, 60))
        for hop in hops:
            hop[0] = now - 1000
            hop[2] += rng.randrange(1, step // 40 + 2)
            hop[3] = rng.choice([0, rng.randrange(400_000)])
        pair.carry(hops[: rng.choice([3, 3, 3, 3, 2])])
        what = rng.randrange(14)
        if what == 0:
            pair.tell(s.CC_LOSS, now, rng.randrange(3))
        elif what == 1:
            pair.tell(s.CC_CNP, now)
        elif what in {2, 3}:
            pair.tell(s.CC_SENT, now, rng.randrange(82, 9000), pair.next)
        else:
            acked = rng.randrange(1, pair.next - pair.una + 1)
            pair.una += acked
            rtt = rng.choice([BASE_RTT // 2, BASE_RTT, 2 * BASE_RTT, 9 * BASE_RTT, -1])
            pair.tell(s.CC_ACK, now, acked, rng.randrange(2), rtt + rng.randrange(BASE_RTT) if rtt > 0 else rtt)
    return [int(word) for word in pair.words[Q]]


def bursts(name, seed, *, rests=True, **overrides):
    """Return pace and window after each event of bursts of traffic; rests: the pair is told when all is quiet."""
    rng = random.Random(seed)  # noqa: S311
    pair, found = Pair(name, overrides), []
    now, sent_bytes = 1000, 0
    pair.tell(s.CC_START, now)
    for _ in range(100):
        now += rng.randrange(rng.choice([US, 100 * US, 100 * US, 5000 * US, 10**6 * US]))
        if rests:
            pair.tell(s.CC_REST, now)
        now, begin = now + rng.randrange(1000, rng.choice([2000, 100 * US, 100 * US, 10**6 * US])), now
        busy, is_congested = rng.choice([0.1, 1.0]), rng.random() < 0.4
        for left in reversed(range(rng.randrange(1, 20))):
            elapsed = rng.randrange(700, rng.choice([US, 20 * US]))
            now += elapsed
            sent_bytes += int(busy * elapsed / LINE_PSB)
            pair.next = pair.sent_max = pair.next + rng.randrange(1, 60)
            pair.tell(s.CC_SENT, now, rng.randrange(82, 9000), pair.next)
            found.append((pair.psb, pair.window))
            if is_congested and rng.random() < 0.3:
                pair.tell(*rng.choice([(s.CC_CNP, now), (s.CC_LOSS, now, s.LOSS_NAK)]))
                found.append((pair.psb, pair.window))
            pair.carry([(now - 700, 0, sent_bytes, rng.choice([0, 400_000]) * is_congested)])
            acked = rng.randrange(1, pair.next - pair.una + 1) if left else pair.next - pair.una
            pair.una += acked
            pair.tell(s.CC_ACK, now, acked, int(is_congested), rng.randrange(1, now - begin))
            found.append((pair.psb, pair.window))
    return found


def stories(name):
    return repr([story(name, seed) for seed in range(4)] + bursts(name, 4))


if __name__ == "__main__":
    sys.stdout.write(stories(sys.argv[1]))
