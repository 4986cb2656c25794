"""Ports with queue pairs that are paced, or paused by the other end: which may send, and when the next may."""

import numpy as np

from nadi.pdes.core.jit import hook
from nadi.pdes.core.packet import FLAG_LAST, SHARE_UNITS, data_class
from nadi.pdes.core.state import CC_SENT, world_at
from nadi.pdes.network.link import link_psb, serialisation_ps
from nadi.pdes.nic.control import update_control
from nadi.pdes.nic.pacing import take_soonest
from nadi.pdes.nic.port import leave_turns, may_send, set_pace, someone_waits, take_turns


@hook
def pace(world_address, link, pair, now_ps, seq, size_bytes, flag_bits):
    """Let congestion control handle and pace a packet that a queue pair sends; return 1 if that may send at once.

    Args:
        world_address: Address of the directory of the LP's `World`.
        link: Outgoing link of the NPU.
        pair: Row of the queue pair in `qps.qp`.
        now_ps: Current time in ps.
        seq: Sequence number of the packet.
        size_bytes: Size of the packet on the wire in bytes.
        flag_bits: Flags of the packet (FLAG_*).
    """
    # At its pace, which is at most the queue pair's share of the line rate, the next packet may leave when this one's
    # bytes have passed; "at once" is when the port falls idle.
    world = world_at(world_address)
    net, cc = world.net, world.qps.cc[pair]
    if flag_bits & FLAG_LAST != 0:
        cc.last_seq = seq
        cc.last_sent_ps = now_ps
    # switches on the way append to an empty list; acknowledgements carry what the data packet met (HPCC, section 3.1)
    if net.hooks.telemetry != 0:
        net.carried.hops = 0
    update_control(net, world.qps, pair, CC_SENT, now_ps, size_bytes, seq, 0)
    psb = cc.pace_ps_per_byte
    if world.qps.qp[pair].shares > SHARE_UNITS:
        psb = max(psb, cc.line_ps_per_byte)
    # from the begin of this packet, not its end: at pace p, packets of b bytes begin every b p ps, whatever the port's
    # rate
    following = now_ps + serialisation_ps(size_bytes, psb)
    cc.next_send_ps = following
    return np.int64(following <= now_ps + serialisation_ps(size_bytes, link_psb(net, link)))


@hook
def first_allowed(world_address, node, link, now_ps):
    """Return the queue pair that sends first at a link's port, with pacing, small windows and pauses; -1 = none.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        link: Outgoing link of the NPU.
        now_ps: Current time in ps.
    """
    # Queue pairs whose pacing time is over join behind all that take turns. While the port is busy: 0 if a queue pair
    # may want it next.
    world = world_at(world_address)
    net, npus, qps = world.net, world.npus, world.qps
    port = npus.port[link]
    busy = net.tx[link].busy_ps
    if busy > now_ps:
        return np.int64(someone_waits(net, npus, qps, node, link, busy)) - 1
    if net.hooks.congestion_control != 0:
        soonest = np.int64(port.paced)
        # equal times are joined in the order of queue pairs, so that the rotation does not depend on how events were
        # ordered
        while soonest >= 0 and qps.cc[soonest].next_send_ps <= now_ps:
            take_turns(npus, qps, link, take_soonest(npus, qps, link))
            soonest = np.int64(port.paced)
    paused = net.gate[link].paused if net.hooks.shared_switches != 0 else 0
    chosen = np.int64(-1)
    skipped = np.int64(-1)
    last = np.int64(port.ring)
    # One round at most: `skipped` is the first queue pair whose class is paused, and meeting it again ends the search.
    # Those that may send nothing any more leave the list on the way: their window has shrunk, or they went back and
    # then all was acknowledged.
    while last >= 0 and chosen < 0:
        pair = np.int64(qps.qp[last].ring_next)
        qp = qps.qp[pair]
        if not may_send(net, qps, pair):
            leave_turns(npus, qps, link, pair)
            last = np.int64(port.ring)
        elif paused == 0 or paused & (1 << data_class(qp.w1)) == 0:
            chosen = pair
        elif pair == skipped:
            last = np.int64(-1)
        else:
            if skipped < 0:
                skipped = pair
            port.ring = pair
            last = pair
    if chosen < 0 and net.hooks.congestion_control != 0 and port.paced >= 0:
        soonest = port.paced
        set_pace(net, npus, node, link, qps.cc[soonest].next_send_ps)
    return chosen
