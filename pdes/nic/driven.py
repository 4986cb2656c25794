"""Queue pairs driven at a share of their port's line rate.

The mover of a queue pair has moved b bytes of payload after b * CC_PSB ps, where CC_PSB is the time per byte in full
packets. A packet may leave once its own bytes are moved, which begins when the message is posted or the previous packet
may leave. If the previous packet had to wait, for the port for example, the mover gains at most the time which that
packet takes on the wire.
So a message leaves at the earliest when all its bytes have passed at the share. Queue pairs at line rate (CC_PSB = 0)
never wait. Under a congestion control, the share is the line rate that the control assumes and must observe.

Messages between two NPUs may use connections of their own, which are driven like those of collectives (Channels in
workload.program.program). Or all messages to other hosts are driven at one share (Settings.p2p_share). Then an NPU has
one mover for all, which moves a packet of each queue pair in rotation: all of them together leave at the earliest when
their bytes have passed at the share. (Under a congestion control each queue pair observes the share by itself.)
"""

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from pdes.core.inputs import Program
from pdes.core.jit import hook, inline
from pdes.core.packet import P2P, SHARE_UNITS
from pdes.core.state import CC_START, world_at
from pdes.network.link import full_packet_bytes, link_psb, on_link_bytes, serialisation_ps
from pdes.nic.congestion import Control


@inline
def moving_ps(net, qps, q):
    """Return the time to move the payload of the packet that is sent next."""
    qp = qps.qp[q]
    message = np.int64(qp.current_message)
    if message < 0:
        return np.int64(0)
    size = net.const.mtu_bytes
    if qp.next_seq + 1 == qp.current_end:
        msg = qps.msg[message]
        size = msg.payload_bytes - (msg.end_seq - 1 - msg.begin_seq) * size
    return serialisation_ps(size, qps.cc[q].pace_ps_per_byte)


@hook
def begin(address, q, event, _now, shares, _b, _c):
    """Start a driven queue pair, in place of a congestion control: the static window, and the rate of the share."""
    w = world_at(address)
    if event == CC_START:
        cc = w.qps.cc[q]
        cc.window_packets = w.net.const.window_packets
        if shares > SHARE_UNITS:
            cc.pace_ps_per_byte = cc.line_ps_per_byte * full_packet_bytes(w.net) / w.net.const.mtu_bytes
    return 0


@inline
def moved_ps(w, q):
    """Return when the mover has moved, or will have moved, the last packet before those of a queue pair."""
    qp = w.qps.qp[q]
    if qp.connection == P2P:
        return np.int64(w.npus.npu[qp.npu].driven_ps)
    return np.int64(w.qps.cc[q].next_send_ps)


@inline
def move(w, q, until):
    """Set the time from which the next packet of a queue pair may be sent."""
    w.qps.cc[q].next_send_ps = until
    qp = w.qps.qp[q]
    if qp.connection == P2P:
        w.npus.npu[qp.npu].driven_ps = until


@hook
def begin_message(address, q, now):
    """Start moving a message that was posted to a queue pair with nothing else to send."""
    w = world_at(address)
    if w.net.const.window_fixed == 0 or w.qps.qp[q].shares > SHARE_UNITS:
        begins = max(now, moved_ps(w, q)) if w.qps.qp[q].connection == P2P else now
        move(w, q, begins + moving_ps(w.net, w.qps, q))
    return 0


@hook
def drive(address, link, q, now, _seq, size, _flag):
    """Pace a queue pair after a packet, in place of pdes.nic.allowed.pace; return 1 if that may send at once."""
    w = world_at(address)
    if w.qps.qp[q].shares <= SHARE_UNITS:
        return np.int64(1)
    w1 = w.qps.qp[q].w1
    on_wire = serialisation_ps(on_link_bytes(w.net, link, w1, size), link_psb(w.net, link))
    begins = max(moved_ps(w, q), now - on_wire)
    following = max(now, begins + moving_ps(w.net, w.qps, q))
    move(w, q, following)
    return np.int64(following <= now + on_wire)


DRIVEN = Control("none", begin, frozenset(), ())  # replacement of NO_CONTROL in runs with shares


Settings = TypeVar("Settings", bound=Any)  # pdes.build.settings.Settings, which belongs to a higher layer


def has_shares(program: Program, settings: Any) -> bool:
    """Return whether lanes of a program, or point-to-point messages, are driven at a share of the line rate.

    settings: pdes.build.settings.Settings, which belongs to a higher layer.
    """
    shares = max(program.schedules.lane_shares.max(initial=1), program.channels.shares.max(initial=1))
    return bool(settings.p2p_share < 1 or shares > 1)


def with_driven(settings: Settings, *, driven: bool) -> Settings:
    """Return settings under which queue pairs are driven, if `driven`.

    A congestion control enforces the shares itself (pdes.nic.allowed.pace), and message-level models need no other.
    """
    if not driven or settings.fidelity.is_message_level or settings.congestion_control.update:
        return settings
    return replace(settings, congestion_control=DRIVEN)
