"""Queue pairs that are paced, by congestion control or to a share of the line rate: which may send, and when."""

from typing import Any

import numpy as np

from nadi.pdes.core import Program
from nadi.pdes.core.jit import hook, inline
from nadi.pdes.core.packet import FLAG_LAST, P2P, SHARE_UNITS, data_class
from nadi.pdes.core.state import CC_SENT, CC_START, world_at
from nadi.pdes.network.link import full_packet_bytes, on_link_bytes, serialisation_ps
from nadi.pdes.nic.congestion import Control
from nadi.pdes.nic.control import update_control
from nadi.pdes.nic.port import leave_turns, may_send, set_pace, someone_waits, take_soonest, take_turns
from nadi.pdes.nic.several_ports import paused_classes, port_busy_ps, port_psb


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
    return np.int64(following <= now_ps + serialisation_ps(size_bytes, port_psb(net, world.npus, link)))


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
    busy = port_busy_ps(net, npus, link)
    if busy > now_ps:
        return np.int64(someone_waits(net, npus, qps, node, link, busy)) - 1
    if net.hooks.congestion_control != 0:
        soonest = np.int64(port.paced)
        # equal times are joined in the order of queue pairs, so that the rotation does not depend on how events were
        # ordered
        while soonest >= 0 and qps.cc[soonest].next_send_ps <= now_ps:
            take_turns(npus, qps, link, take_soonest(npus, qps, link))
            soonest = np.int64(port.paced)
    paused = paused_classes(net, npus, link) if net.hooks.shared_switches != 0 else 0
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


# Queue pairs limited to a share of their port's line rate.
#
# The mover of a queue pair has moved b bytes of payload after b * CC_PSB ps, where CC_PSB is the time per byte in full
# packets. A packet may leave once its own bytes are moved, which begins when the message is posted or the previous
# packet may leave. If the previous packet had to wait, for the port for example, the mover gains at most the time
# which that packet takes on the wire. So a message leaves at the earliest when all its bytes have passed at the share.
# Queue pairs at line rate (CC_PSB = 0) never wait. Under a congestion control, the share is the line rate that the
# control assumes and must observe.
#
# Messages between two NPUs may use connections of their own, which are limited like those of collectives (Channels in
# workload.program.program). Or all messages to other hosts are limited to one share (Settings.p2p_share). Then an NPU
# has one mover for all, which moves a packet of each queue pair in rotation: all of them together leave at the
# earliest when their bytes have passed at the share. (Under a congestion control each queue pair observes the share by
# itself.)


@inline
def moving_ps(net, qps, pair):
    """Return the time in ps to move the payload of the packet that a queue pair sends next, at its share.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
    """
    qp = qps.qp[pair]
    message = np.int64(qp.current_message)
    # nothing is posted: `begin_message` moves the next message when it comes
    if message < 0:
        return np.int64(0)
    size = net.const.mtu_bytes
    # the last packet of a message has the rest of its bytes
    if qp.next_seq + 1 == qp.current_end:
        msg = qps.msg[message]
        size = msg.payload_bytes - (msg.end_seq - 1 - msg.begin_seq) * size
    return serialisation_ps(size, qps.cc[pair].pace_ps_per_byte)


@hook
def begin(world_address, pair, event, _now, shares, _b, _c):
    """Start a rate-limited queue pair in place of a congestion control: with a static window, at a share of its rate.

    Args:
        world_address: Address of the directory of the LP's `World`.
        pair: Row of the queue pair in `qps.qp`.
        event: CC_START; other events change nothing.
        _now: Not used here.
        shares: SHARE_UNITS divided by the share.
        _b: Not used here.
        _c: Not used here.
    """
    world = world_at(world_address)
    if event == CC_START:
        cc = world.qps.cc[pair]
        cc.window_packets = world.net.const.window_packets
        # alone at the line rate, a queue pair needs no pace
        # The mover moves payload, and the share is one of the link's rate with headers: a full packet of 4096 + 82
        # bytes takes 4178 times the line's time per byte, which is 4178 / 4096 of that per byte of payload.
        if shares > SHARE_UNITS:
            cc.pace_ps_per_byte = cc.line_ps_per_byte * full_packet_bytes(world.net) / world.net.const.mtu_bytes
    return 0


@inline
def moved_ps(world, pair):
    """Return when (ps) the mover has moved, or will have moved, the last packet before those of a queue pair.

    Args:
        world: State of the LP (`World`).
        pair: Row of the queue pair in `qps.qp`.
    """
    qp = world.qps.qp[pair]
    # point-to-point messages of the NPU share one mover, whose time is the NPU's, not the queue pair's
    if qp.connection == P2P:
        return np.int64(world.npus.npu[qp.npu].rate_limited_ps)
    return np.int64(world.qps.cc[pair].next_send_ps)


@inline
def move(world, pair, until_ps):
    """Set the time from which the next packet of a queue pair may be sent.

    Args:
        world: State of the LP (`World`).
        pair: Row of the queue pair in `qps.qp`.
        until_ps: The time in ps.
    """
    world.qps.cc[pair].next_send_ps = until_ps
    qp = world.qps.qp[pair]
    if qp.connection == P2P:
        world.npus.npu[qp.npu].rate_limited_ps = until_ps


@hook
def begin_message(world_address, pair, now_ps):
    """Start moving a message that was posted to a queue pair with nothing else to send.

    Args:
        world_address: Address of the directory of the LP's `World`.
        pair: Row of the queue pair in `qps.qp`.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    if world.net.const.window_fixed == 0 or world.qps.qp[pair].shares > SHARE_UNITS:
        # a connection of its own has been idle, so its mover begins now; the mover of the NPU may still move others
        begins = max(now_ps, moved_ps(world, pair)) if world.qps.qp[pair].connection == P2P else now_ps
        move(world, pair, begins + moving_ps(world.net, world.qps, pair))
    return 0


@hook
def limit_rate(world_address, link, pair, now_ps, _seq, size_bytes, _flag):
    """Pace a queue pair after a packet, in place of `pace`; return 1 if it may send at once.

    Args:
        world_address: Address of the directory of the LP's `World`.
        link: Outgoing link of the NPU.
        pair: Row of the queue pair in `qps.qp`.
        now_ps: Current time in ps.
        _seq: Not used here.
        size_bytes: Size of the packet in bytes on a link without flits.
        _flag: Not used here.
    """
    world = world_at(world_address)
    if world.qps.qp[pair].shares <= SHARE_UNITS:
        return np.int64(1)
    word1 = world.qps.qp[pair].w1
    on_wire = serialisation_ps(on_link_bytes(world.net, link, word1, size_bytes), port_psb(world.net, world.npus, link))
    # The mover works ahead by at most one packet: it has moved while the packet waited for the port, but not further
    # than the packet's own time on the wire. Else a message that waited for 1 ms could send 1 ms of data at line rate
    # afterwards.
    begins = max(moved_ps(world, pair), now_ps - on_wire)
    # not before now, so that the gains of several packets do not add up
    following = max(now_ps, begins + moving_ps(world.net, world.qps, pair))
    move(world, pair, following)
    return np.int64(following <= now_ps + on_wire)


RATE_LIMITED = Control("none", begin, frozenset(), ())  # replacement of NO_CONTROL in runs with shares


def has_shares(program: Program, settings: Any) -> bool:
    """Return whether lanes of a program, or point-to-point messages, are limited to a share of the line rate.

    Args:
        program: Work of all NPUs (`Program`).
        settings: Settings of the run (pdes.construction.settings.Settings, which belongs to a higher layer).
    """
    shares = max(program.schedules.lane_shares.max(initial=1), program.channels.shares.max(initial=1))
    return bool(settings.p2p_share < 1 or shares > 1)


def control_of(settings: Any, *, rate_limited: bool) -> Control:
    """Return the congestion control of a run.

    Args:
        settings: Settings of the run.
        rate_limited: Whether lanes or messages are limited to shares of the line rate.
    """
    # A congestion control enforces the shares itself (pdes.nic.pacing.pace), and message-level models need no other.
    chosen: Control = settings.congestion_control
    return RATE_LIMITED if rate_limited and not settings.fidelity.hooks.act and not chosen.update else chosen
