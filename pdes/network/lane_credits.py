"""Credits of a link: what the sending end may still put into the receiving end's input buffer, per virtual lane.

A buffer of each virtual lane is at the end of every link. Its sender holds credits for it, in units (InfiniBand: 64
bytes; credit-based flow control of Ultra Ethernet: 32 bytes), and spends those of a packet when it begins to send it.
The receiver returns them in a control frame once the packet has left the buffer, so the buffer never overflows. Frames
take turns with packets on the link of the other direction, before all of these.

A lane sends while it has credits for a full packet, whatever the size of the packet that is next. While it has not, its
bit in `paused` of its port's row `Gate` is set, as if the other end had paused its class. The links inside an NVLink
domain have no credits.

A packet may go on in the next lane on its way, so that waits form no circle (`next_lane`; topologies/deadlock.py).
Packets that a fault loses on their way return their credits at once, and no frame is lost: the counters of both ends
are renewed before a link sends again (IBTA volume 1, 7.9.4: FCTBS corrects the receiver's count).
"""

import numpy as np

from nadi.pdes.core import packet, state
from nadi.pdes.core.jit import inline, outline

UNITS_SHIFT = 3  # of the units in word 2 of a frame; the lane is below them
MAX_UNITS = 1 << 20  # maximum of a buffer, so that word 2 of a frame names no queue pair


@inline
def lane_place(net, link, lane):
    """Return the row of `net.lane` of a virtual lane, or of a queue of control, of an outgoing link.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the port.
        lane: Number of the virtual lane; from `const.lanes` on, of a queue of control.
    """
    return link * net.const.queues + lane


@inline
def units_of(net, size_bytes):
    """Return the credits that a packet takes.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        size_bytes: Size of the packet on the wire in bytes.
    """
    return (size_bytes + net.const.credit_bytes - 1) // net.const.credit_bytes


@inline
def takes_credits(net, link, word1):
    """Return whether a packet takes credits on a link: data outside of NVLink domains.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link, or the one whose reverse carried the packet.
        word1: Word 1 of the packet (pdes/core/packet.py).
    """
    link_class = net.link_class[packet.class_of(net.tx[link].meta)]
    return packet.flags(word1) & packet.FLAG_ACK == 0 and link_class.special & state.INSIDE == 0


@inline
def raised(net, word1):
    """Return word 1 of a packet that goes on in the next virtual lane, if its own is not the last of its messages.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        word1: Word 1 of the packet (pdes/core/packet.py).
    """
    lane = packet.data_class(word1)
    return packet.with_class(word1, lane + (net.const.rising_lanes >> lane & 1))


@inline
def next_lane(net, link, word1, routed):
    """Return the virtual lane in which a packet leaves a switch: the next one if it came over a link that rises.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Own outgoing link whose reverse carried the packet.
        word1: Word 1 of the packet (pdes/core/packet.py).
        routed: Word 1 with the lane that a rule of detours has chosen; it has risen at most once.
    """
    rises = net.link_class[packet.class_of(net.tx[link].meta)].special & state.RISES != 0
    if rises and routed == word1:
        routed = raised(net, word1)
    return packet.data_class(routed)


@outline
def spend(net, link, word1, now_ps):
    """Take the credits of a packet that a port is about to send; the lane stops if few are left.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the port.
        word1: Word 1 of the packet (pdes/core/packet.py).
        now_ps: Current time in ps.
    """
    if takes_credits(net, link, word1):
        number = packet.data_class(word1)
        lane = net.lane[lane_place(net, link, number)]
        lane.free_units -= units_of(net, packet.wire_bytes(word1))
        if lane.free_units < net.const.full_units:
            net.gate[link].paused |= 1 << number
            lane.since_ps = now_ps


@outline
def grant(net, link, number, units, now_ps):
    """Add credits to a virtual lane of a port; the lane sends again if there are enough for a full packet.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the port.
        number: Number of the virtual lane.
        units: Credits that it gets.
        now_ps: Current time in ps.
    """
    lane, gate = net.lane[lane_place(net, link, number)], net.gate[link]
    lane.free_units += units
    if gate.paused & (1 << number) != 0 and lane.free_units >= net.const.full_units:
        gate.paused &= ~(1 << number)
        gate.paused_ps += now_ps - lane.since_ps


@outline
def refund(net, link, word1):
    """Give the credits of a packet that a fault has lost on a link back to its sender.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the sender.
        word1: Word 1 of the packet (pdes/core/packet.py).
    """
    if takes_credits(net, link, word1):
        number = packet.data_class(word1)
        # the packet was sent and lost at one time, so a lane that stopped for it was never without credits
        since_ps = net.lane[lane_place(net, link, number)].since_ps
        grant(net, link, number, units_of(net, packet.wire_bytes(word1)), since_ps)


@inline
def frame_of(number, units):
    """Return word 2 of a frame that returns credits.

    Args:
        number: Number of the virtual lane.
        units: Credits that return.
    """
    return units << UNITS_SHIFT | number


@outline
def on_frame(net, link, word2, now_ps):
    """Apply a frame that returns credits for an outgoing link.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link of the port that gets them.
        word2: Word 2 of the frame (`frame_of`).
        now_ps: Current time in ps.
    """
    grant(net, link, word2 & (packet.MAX_DATA_CLASSES - 1), word2 >> UNITS_SHIFT, now_ps)


@inline
def arrive(net, link, number, size_bytes):
    """Count a packet that has arrived in the input buffer of a virtual lane.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Own outgoing link whose reverse carried the packet.
        number: Number of the virtual lane.
        size_bytes: Size of the packet on the wire in bytes.
    """
    net.lane[lane_place(net, link, number)].held_units += units_of(net, size_bytes)


@outline
def leave(net, link, number, size_bytes):
    """Count a packet that leaves its input buffer; return the credits to return now, 0 for none.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Own outgoing link whose reverse carried the packet.
        number: Number of the virtual lane.
        size_bytes: Size of the packet on the wire in bytes.
    """
    # Few credits wait for more, but never behind an empty buffer, from which nothing more would leave.
    lane = net.lane[lane_place(net, link, number)]
    units = units_of(net, size_bytes)
    lane.held_units -= units
    lane.owed_units += units
    owed = lane.owed_units
    if owed < net.const.return_units and lane.held_units > 0:
        return np.int64(0)
    lane.owed_units = 0
    return np.int64(owed)


@inline
def frame_header(net):
    """Return word 1 of a frame that returns credits.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    return packet.header(packet.PAUSE_FRAME, 0, net.const.credit_frame_bytes, packet.FLAG_ACK)
