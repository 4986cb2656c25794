"""One queue pair of a tiny world under a congestion control, whose compiled hook is called by its address."""

import ctypes
from functools import cache

import numpy as np

from pdes import Settings, build_world
from pdes.core import state as s
from pdes.core.jit import jit_enabled
from pdes.nic.congestion import control
from topologies import build
from workload import collective_program

US = 1_000_000
ROW = 3
SEVERAL = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 8)


@cache
def simulation(name):
    graph, program = build("switch:npus=4,rate=100Gbps"), collective_program("barrier", 4, 0)
    return build_world(graph, program, Settings(control=control(name)))


class Sender:
    """Queue pair ROW; times are told in order."""

    def __init__(self, name, *, gbps=100.0, window=64, base_rtt=8 * US, **overrides):
        chosen = control(name, overrides)
        (self.lp,) = simulation(name).lps
        self.world = self.lp.world
        const, self.qps = self.world.net.const, self.world.qps
        self.hook = SEVERAL(int(const[s.CONST_CC_HOOK])) if jit_enabled() else chosen.update
        const[s.CONST_WINDOW], const[s.CONST_BASE_RTT] = window, base_rtt
        self.qps.par[:] = chosen.values
        self.qps.qp[:] = 0
        self.qps.cc[:] = -7
        self.cc = self.qps.cc[ROW * s.CC_WORDS :][: s.CC_WORDS]
        self.qp = self.qps.qp[ROW * s.QP_WORDS :][: s.QP_WORDS]
        self.cc[:] = 0
        self.cc.view(np.float64)[s.CC_LINE_PSB] = 8000 / gbps
        self.tell(s.CC_START, 0)

    def tell(self, event, now, a=0, b=0, c=-1):
        assert self.hook(self.lp.address, ROW, event, now, a, b, c, 0) == 0

    def sent(self, now, size=1000):
        seq = int(self.qp[s.QP_NEXT])
        self.qp[s.QP_NEXT] += 1
        self.qp[s.QP_SENT_MAX] = max(self.qp[s.QP_SENT_MAX], self.qp[s.QP_NEXT])
        self.tell(s.CC_SENT, now, size, seq)

    def ack(self, now, packets=1, mark=0, rtt=-1):
        self.qp[s.QP_UNA] += packets
        self.qp[s.QP_NEXT] = max(self.qp[s.QP_NEXT], self.qp[s.QP_UNA])
        self.tell(s.CC_ACK, now, packets, mark, rtt)

    def cnp(self, now):
        self.tell(s.CC_CNP, now)

    def loss(self, now, kind=s.LOSS_NAK):
        self.qp[s.QP_NEXT] = self.qp[s.QP_UNA]
        self.tell(s.CC_LOSS, now, kind)

    @property
    def outstanding(self):
        return int(self.qp[s.QP_SENT_MAX] - self.qp[s.QP_UNA])

    @property
    def window(self):
        return int(self.cc[s.CC_WINDOW])

    @property
    def psb(self):
        return float(self.cc.view(np.float64)[s.CC_PSB])

    @property
    def others_untouched(self):
        rows = self.qps.cc.reshape(-1, s.CC_WORDS)
        return bool((np.delete(rows, ROW, 0) == -7).all())
