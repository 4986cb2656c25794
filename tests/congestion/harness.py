"""One queue pair of a tiny world under a congestion control, whose compiled hook is called by its address."""

import ctypes
from functools import cache

import numpy as np

from nadi.pdes import Settings, build_world
from nadi.pdes.core import state as s
from nadi.pdes.core.jit import jit_enabled
from nadi.pdes.nic.congestion import control
from nadi.topologies import build
from nadi.workload import collective_program
from tests.congestion.rows import bare, own_rows

US = 1_000_000
ROW = 3
SEVERAL = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 7)


@cache
def simulation(name):
    graph, program = build("switch:npus=4,rate=100Gbps"), collective_program("barrier", 4, 0)
    return build_world(graph, program, Settings(congestion_control=control(name)))


class Sender:
    """Queue pair ROW; times are told in order."""

    def __init__(self, name, *, gbps=100.0, window=64, base_rtt=8 * US, **overrides):
        chosen = control(name, overrides)
        (self.lp,) = simulation(name).lps
        self.world = self.lp.world
        net, self.qps = self.world.net, self.world.qps
        self.hook = SEVERAL(int(net.hooks.congestion_control)) if jit_enabled() else chosen.update
        net.const.window_packets, net.const.base_rtt_ps = window, base_rtt
        self.qps.par.view(np.float64)[: len(chosen.values)] = chosen.values
        self.qps.qp[:] = 0
        self.words = bare(self.qps.cc)
        self.words[:] = -7
        self.words[ROW] = 0
        self.cc = own_rows(self.qps.cc, name)[ROW]
        self.qp = self.qps.qp[ROW]
        self.cc.line_ps_per_byte = 8000 / gbps
        self.tell(s.CC_START, 0)

    def tell(self, event, now, a=0, b=0, c=-1):
        assert self.hook(self.lp.address, ROW, event, now, a, b, c) == 0

    def sent(self, now, size=1000):
        seq = int(self.qp.next_seq)
        self.qp.next_seq += 1
        self.qp.sent_max = max(self.qp.sent_max, self.qp.next_seq)
        self.tell(s.CC_SENT, now, size, seq)

    def ack(self, now, packets=1, mark=0, rtt=-1):
        self.qp.una += packets
        self.qp.next_seq = max(self.qp.next_seq, self.qp.una)
        self.tell(s.CC_ACK, now, packets, mark, rtt)

    def cnp(self, now):
        self.tell(s.CC_CNP, now)

    def loss(self, now, kind=s.LOSS_NAK):
        self.qp.next_seq = self.qp.una
        self.tell(s.CC_LOSS, now, kind)

    @property
    def outstanding(self):
        return int(self.qp.sent_max - self.qp.una)

    @property
    def window(self):
        return int(self.cc.window_packets)

    @property
    def psb(self):
        return float(self.cc.pace_ps_per_byte)

    @property
    def others_untouched(self):
        return bool((np.delete(self.words, ROW, 0) == -7).all())
