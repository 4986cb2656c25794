"""NICs of several ports, one in each plane of the fabric, over all of which a queue pair sends its packets.

With `[network] nic_ports = "all"` all ports of an NPU to ordinary switches are one NIC. Its queue pairs and
acknowledgements take turns at the first of these ports, at the rate of all together, and each packet leaves by the port
that its entropy names. Beside the packet on the wire, a port stores what the NIC reads ahead, READ_AHEAD_PS at the rate
of all its ports; a packet for a port with more waits, and so do the packets behind it. Consecutive turns of an entropy
rule take each port once. But several queue pairs, and acknowledgements, which take the ports by which their data came,
have no common order: without a store each would wait for a packet on the wire of its port, and keep the others idle.
"""

import numpy as np

from nadi.pdes.core.jit import call_hook, hook, inline
from nadi.pdes.core.packet import destination, wire_bytes
from nadi.pdes.core.state import world_at
from nadi.pdes.network.lane_credits import spend
from nadi.pdes.network.link import link_psb, link_send, serialisation_ps
from nadi.pdes.network.routing import npu_route

# How much a NIC stores for a port is not published. To be busy, it reads as many bytes of its GPU's memory ahead as
# pass in the time of a read over PCIe, which takes about 1 us (Neugebauer et al., "Understanding PCIe performance for
# end host networking", SIGCOMM 2018). These belong to no port: one whose turns come close together may have all.
READ_AHEAD_PS = 1_000_000


@inline
def first_port(net, npus, link):
    """Return the port at which the queue pairs of the NIC of a port take turns; the port itself, if NICs have one port.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        link: Outgoing link of the port.
    """
    return np.int64(npus.nic[link].first) if net.hooks.nic_send != 0 else np.int64(link)


@inline
def is_nic(net, npus, link):
    """Return whether a port is the first of a NIC of several.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        link: Outgoing link of the port.
    """
    return net.hooks.nic_send != 0 and npus.nic[link].ports > 1


@inline
def port_busy_ps(net, npus, link):
    """Return the time in ps from which a port, or the NIC whose first port it is, may begin another packet.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        link: Outgoing link of the port.
    """
    if is_nic(net, npus, link):
        return npus.nic[link].busy_ps
    return net.tx[link].busy_ps


@inline
def port_psb(net, npus, link):
    """Return the picoseconds per byte of a port, or of all ports of the NIC whose first port it is.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        link: Outgoing link of the port.
    """
    if is_nic(net, npus, link):
        return npus.nic[link].ps_per_byte
    return link_psb(net, link)


@inline
def paused_classes(net, npus, link):
    """Return the data classes, as a bit set, that a pause of the port, or of any port of its NIC, holds back.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        link: Outgoing link of the port.
    """
    paused = net.gate[link].paused
    if net.hooks.nic_send != 0:
        # each port has its turn, so one that is paused stops all
        for other in range(link + 1, link + npus.nic[link].ports):
            paused |= net.gate[other].paused
    return paused


@inline
def send_from_port(net, node, link, asked_ps, now_ps, word1, word2, word3):
    """Send a packet from a port that is idle, or from its NIC; return until when (ps) it is busy.

    net: links of the LP; node: number of the NPU in the LP; link: outgoing link of the port; asked_ps: time in ps at
    which the packet came to the port; now_ps: current time in ps; word1, word2, word3: words of the packet
    (pdes/core/packet.py).
    """
    if net.hooks.nic_send != 0:
        return call_hook(net.hooks.nic_send, net.const.address, node, link, asked_ps, now_ps, word1, word2, word3)
    link_send(net, link, asked_ps, now_ps, word1, word2, word3)
    return net.tx[link].busy_ps


@hook
def nic_send(world_address, node, link, asked_ps, now_ps, word1, word2, word3):
    """Send a packet by the port of the NIC that its entropy names, or for its credits; return until when it is busy.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        link: The port, or the first of the NIC.
        asked_ps: Time in ps at which the packet came to the NIC.
        now_ps: Current time in ps.
        word1: Word 1 of the packet (pdes/core/packet.py).
        word2: Word 2 of the packet.
        word3: Word 3 of the packet, the tag of its message.
    """
    world = world_at(world_address)
    net = world.net
    has_several = is_nic(net, world.npus, link)
    out = npu_route(net, node, destination(word1), word2) if has_several else np.int64(link)
    if net.const.queues != 0:
        spend(net, out, word1, now_ps)
    link_send(net, out, asked_ps, max(now_ps, net.tx[out].busy_ps), word1, word2, word3)
    if not has_several:
        return np.int64(net.tx[out].busy_ps)
    nic = world.npus.nic[link]
    stored_ps = np.int64(READ_AHEAD_PS * link_psb(net, out) / nic.ps_per_byte)
    turn_ps = max(1, serialisation_ps(wire_bytes(word1), nic.ps_per_byte))
    nic.busy_ps = max(now_ps + turn_ps, net.tx[out].busy_ps - stored_ps)
    return np.int64(nic.busy_ps)
