"""One queue pair of a tiny world, told by hand what happens to it. Run as a script, it prints what 400 events leave."""

import ctypes
import random
import sys
from functools import cache

from nadi.pdes import Settings, build_world
from nadi.pdes.core import state as s
from nadi.pdes.core.jit import call_hook, jit_enabled
from nadi.pdes.core.memory import rows_of
from nadi.pdes.core.rows.network import LinkClass
from nadi.pdes.nic import congestion
from nadi.topologies import build
from tests.congestion.rows import bare, own_rows
from tests.pdes.cases import Traces
from tests.plain_python import plain_python

Q = 3
LINE_PSB = 20.0
"""ps per byte at 400 Gb/s."""
BASE_RTT = 8_000_000
PACKET = 4096 + 82


@cache
def logical_process(name, overrides, window):
    """One that keeps two classes of links. Pairs share it: each test has one at a time."""
    traces = Traces(2)
    traces.message(0, 1, 1000)
    chosen = Settings(window_bytes=window * 4096, congestion_control=congestion.control(name, dict(overrides)))
    (lp,) = build_world(build("switch:npus=2,rate=400Gbps"), traces.program(), chosen).lps
    lp.world = lp.world._replace(net=lp.world.net._replace(link_class=rows_of(LinkClass, 2)))
    return lp


class Pair:
    """Queue pair Q under the control `name`. Its link classes: 0 as the line, 1 of half its rate.

    Attributes:
        una, next, sent_max: its sequence numbers, set by the caller before it tells of an event.
    """

    def __init__(self, name, overrides=None, *, window=200, base_rtt=BASE_RTT, line_psb=LINE_PSB):
        self.lp = logical_process(name, tuple((overrides or {}).items()), window)
        self.world = self.lp.world
        self.world.net.const.base_rtt_ps = base_rtt
        self.world.net.link_class.ps_per_byte = line_psb, 2 * line_psb
        self.words = bare(self.world.qps.cc)[Q]
        self.words[:] = 0
        self.row = own_rows(self.world.qps.cc, name)[Q]
        self.row.line_ps_per_byte = line_psb
        self.una = self.next = self.sent_max = 0

    def tell(self, event, now, a=0, b=0, c=0):
        qp = self.world.qps.qp[Q]
        qp.una, qp.next_seq, qp.sent_max = self.una, self.next, self.sent_max
        hook = int(self.world.net.hooks.congestion_control)
        arguments = (self.lp.address, Q, event, now, a, b, c)
        if jit_enabled():
            ctypes.CFUNCTYPE(*[ctypes.c_int64] * 8)(hook)(*arguments)
        else:
            call_hook(hook, *arguments)

    def carry(self, hops):
        """Telemetry of the acknowledgement that is told next: (ps, class, bytes sent, bytes queued) of each hop."""
        carried = self.world.net.carried
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


def both_ways(name):
    """The stories of this script, compiled and as plain Python."""
    return repr(stories(name)), plain_python("-m", "tests.congestion.harness_b", name)


def story(name, seed):
    """The words of the row after 400 events."""
    rng = random.Random(seed)  # noqa: S311
    pair = Pair(name)
    now = 1000
    pair.tell(s.CC_START, now)
    hops = [[0, 0, 0, 0], [0, 1, 1 << 33, 0], [0, 0, 0, 0]]
    for _ in range(400):
        step = rng.choice([90_000, 700_000, 9_000_000])
        now += rng.randrange(1, step)
        pair.sent_max = pair.next = max(pair.next, pair.una + rng.randrange(1, 60))
        for hop in hops:
            hop[0] = now - 1000
            hop[2] += rng.randrange(1, step // 40 + 2)
            hop[3] = rng.choice([0, rng.randrange(400_000)])
        pair.carry(hops[: rng.choice([3, 3, 3, 3, 2])])
        what = rng.randrange(12)
        if what == 0:
            pair.tell(s.CC_LOSS, now, rng.randrange(3))
        elif what == 1:
            pair.tell(s.CC_CNP, now)
        else:
            acked = rng.randrange(1, pair.next - pair.una + 1)
            pair.una += acked
            rtt = rng.choice([BASE_RTT // 2, BASE_RTT, 2 * BASE_RTT, 9 * BASE_RTT, -1])
            pair.tell(s.CC_ACK, now, acked, rng.randrange(2), rtt + rng.randrange(BASE_RTT) if rtt > 0 else rtt)
    return [int(word) for word in pair.words]


def stories(name):
    return [story(name, seed) for seed in range(4)]


if __name__ == "__main__":
    sys.stdout.write(repr(stories(sys.argv[1])))
