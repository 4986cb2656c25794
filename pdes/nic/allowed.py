"""A port whose queue pairs are paced, or paused by the other end: who may send, and when again."""

import numpy as np

from pdes.core.jit import hook, inline
from pdes.core.packet import FLAG_LAST, data_class
from pdes.core.state import (
    CC_LAST_SENT,
    CC_LAST_SEQ,
    CC_NEXT_SEND,
    CC_PSB,
    CC_SENT,
    CC_WORDS,
    CONST_CC_HOOK,
    CONST_SWITCH_HOOK,
    CONST_TELEMETRY,
    GATE_PAUSED,
    GATE_WORDS,
    PORT_PACED,
    PORT_RING,
    PORT_WORDS,
    QP_RING_NEXT,
    QP_W1,
    QP_WORDS,
    TELEMETRY_HOPS,
    TX_BUSY,
    TX_WORDS,
)
from pdes.core.world import world_at
from pdes.network.link import link_psb, serialisation_ps
from pdes.nic.control import tell
from pdes.nic.pacing import take_soonest
from pdes.nic.port import leave_turns, may_send, set_pace, someone_waits, take_turns


@inline
def tell_sent(net, qps, q, now, seq, size, flag):
    """Tell the congestion control of a packet that leaves."""
    row = q * CC_WORDS
    if flag & FLAG_LAST != 0:
        qps.cc[row + CC_LAST_SEQ] = seq
        qps.cc[row + CC_LAST_SENT] = now
    if net.const[CONST_TELEMETRY] != 0:
        net.carried[TELEMETRY_HOPS] = 0
    tell(net, q, CC_SENT, now, size, seq, 0)


@inline
def send_next_after(net, qps, link, q, now, size, psb):
    """The next packet may leave as many bytes later as this one has; 1 if that is once the port falls idle."""
    following = now + serialisation_ps(size, psb)
    qps.cc[q * CC_WORDS + CC_NEXT_SEND] = following
    return np.int64(following <= now + serialisation_ps(size, link_psb(net, link)))


@hook
def pace(address, link, q, now, seq, size, flag, _a):
    """Tell the congestion control of a packet that leaves, and when the next may; 1 if once the port falls idle."""
    w = world_at(address)
    tell_sent(w.net, w.qps, q, now, seq, size, flag)
    return send_next_after(w.net, w.qps, link, q, now, size, w.qps.ccf[q * CC_WORDS + CC_PSB])


@hook
def first_allowed(address, node, link, now, _a, _b, _c, _d):
    """Like `first_to_send` where pacing, windows that shrink and pauses of a class hold queue pairs back.

    Those that pacing lets go again come behind all that take turns. While the port is busy: 0 if one may want it next.
    """
    w = world_at(address)
    net, npus, qps = w.net, w.npus, w.qps
    p = link * PORT_WORDS
    busy = net.tx[link * TX_WORDS + TX_BUSY]
    if busy > now:
        return np.int64(someone_waits(net, npus, qps, node, link, busy)) - 1
    if net.const[CONST_CC_HOOK] != 0:
        soonest = npus.port[p + PORT_PACED]
        while soonest >= 0 and qps.cc[soonest * CC_WORDS + CC_NEXT_SEND] <= now:
            take_turns(npus, qps, link, take_soonest(npus, qps, link))
            soonest = npus.port[p + PORT_PACED]
    paused = np.int64(0)
    if net.const[CONST_SWITCH_HOOK] != 0:
        paused = net.gate[link * GATE_WORDS + GATE_PAUSED]
    found = np.int64(-1)
    skipped = np.int64(-1)
    last = npus.port[p + PORT_RING]
    while last >= 0 and found < 0:
        q = qps.qp[last * QP_WORDS + QP_RING_NEXT]
        row = q * QP_WORDS
        if not may_send(net, qps, q):
            leave_turns(npus, qps, link, q)
            last = npus.port[p + PORT_RING]
        elif paused & (1 << data_class(qps.qp[row + QP_W1])) == 0:
            found = q
        elif q == skipped:
            last = np.int64(-1)
        else:
            if skipped < 0:
                skipped = q
            npus.port[p + PORT_RING] = q
            last = q
    if found < 0 and net.const[CONST_CC_HOOK] != 0 and npus.port[p + PORT_PACED] >= 0:
        soonest = npus.port[p + PORT_PACED]
        set_pace(net, npus, node, link, qps.cc[soonest * CC_WORDS + CC_NEXT_SEND])
    return found
