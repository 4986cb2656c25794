"""Queue pairs that are driven at a share of their port's line rate.

What drives a queue pair has moved b bytes of payload after b * CC_PSB ps: CC_PSB is of a byte in full packets. A packet
may leave once its own bytes are moved, which begins when the message is posted or the packet before may leave. Where
that one had to wait, as for the port, so much is made up for as it then takes on the wire, and no more.
So a message has left no sooner than all its bytes take at the share. Queue pairs at line rate (CC_PSB = 0) never wait.
Under a congestion control the share is the line rate that it knows, and is held to.

Messages between two NPUs may go by connections of their own, which are driven like those of collectives (Channels in
workload.program.program). Or all messages to other hosts are driven at one share (Settings.p2p_share). One mover moves
those of an NPU, a packet of each queue pair by turns: all of them together have left no sooner than their bytes take at
the share. (Under a congestion control each queue pair is held to it by itself.)
"""

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from pdes.core.inputs import Program
from pdes.core.jit import hook, inline
from pdes.core.packet import P2P, SHARE_UNITS
from pdes.core.state import CC_START
from pdes.core.world import world_at
from pdes.network.link import full_packet_bytes, link_psb, on_link_bytes, serialisation_ps
from pdes.nic.congestion import Control


@inline
def moving_ps(net, qps, q):
    """What the payload of the packet that is sent next takes to be moved."""
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
    """Stands for a congestion control (pdes/nic/congestion): the static window, and the rate of the share."""
    w = world_at(address)
    if event == CC_START:
        cc = w.qps.cc[q]
        cc.window_packets = w.net.const.window_packets
        if shares > SHARE_UNITS:
            cc.pace_ps_per_byte = cc.line_ps_per_byte * full_packet_bytes(w.net) / w.net.const.mtu_bytes
    return 0


@inline
def moved_ps(w, q):
    """When the last packet that was to be moved before those of a queue pair has been, or will have been."""
    qp = w.qps.qp[q]
    if qp.connection == P2P:
        return np.int64(w.npus.npu[qp.npu].driven_ps)
    return np.int64(w.qps.cc[q].next_send_ps)


@inline
def move(w, q, until):
    """The next packet of a queue pair may be sent then."""
    w.qps.cc[q].next_send_ps = until
    qp = w.qps.qp[q]
    if qp.connection == P2P:
        w.npus.npu[qp.npu].driven_ps = until


@hook
def begin_message(address, q, now):
    """A message was posted to a queue pair that has nothing else to send."""
    w = world_at(address)
    if w.net.const.window_fixed == 0 or w.qps.qp[q].shares > SHARE_UNITS:
        begins = max(now, moved_ps(w, q)) if w.qps.qp[q].connection == P2P else now
        move(w, q, begins + moving_ps(w.net, w.qps, q))
    return 0


@hook
def drive(address, link, q, now, _seq, size, _flag):
    """In place of pdes.nic.allowed.pace: a packet leaves; when may the next? 1 if once the port falls idle."""
    w = world_at(address)
    if w.qps.qp[q].shares <= SHARE_UNITS:
        return np.int64(1)
    w1 = w.qps.qp[q].w1
    on_wire = serialisation_ps(on_link_bytes(w.net, link, w1, size), link_psb(w.net, link))
    begins = max(moved_ps(w, q), now - on_wire)
    following = max(now, begins + moving_ps(w.net, w.qps, q))
    move(w, q, following)
    return np.int64(following <= now + on_wire)


DRIVEN = Control("none", begin, frozenset(), ())
"""What NO_CONTROL becomes where a program has shares."""


Settings = TypeVar("Settings", bound=Any)
"""pdes.build.settings.Settings, which stands above."""


def has_shares(program: Program, settings: Any) -> bool:
    """Whether some lane of a program, or some of its messages between two NPUs, are driven at a share of the line rate.

    settings: pdes.build.settings.Settings, which stands above.
    """
    shares = max(program.schedules.lane_shares.max(initial=1), program.channels.shares.max(initial=1))
    return bool(settings.p2p_share < 1 or shares > 1)


def with_driven(settings: Settings, *, driven: bool) -> Settings:
    """Settings under which queue pairs are driven, if they are to be.

    A congestion control holds them to their shares (pdes.nic.allowed.pace), and message-level models need no other.
    """
    if not driven or settings.fidelity.act or settings.congestion_control.update:
        return settings
    return replace(settings, congestion_control=DRIVEN)
