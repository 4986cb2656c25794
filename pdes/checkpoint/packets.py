"""Packets under way between worlds at a snapshot point: taken from outboxes, and put on the links that they cross."""

import numpy as np

from nadi.pdes.checkpoint.queues import make_blocks
from nadi.pdes.construction.layout import Part
from nadi.pdes.construction.simulation import LogicalProcess
from nadi.pdes.core.fifo import CARRY_IN, SET_DOWN, carry
from nadi.pdes.core.inputs import Int64
from nadi.pdes.core.jit import kernel, load_unaligned
from nadi.pdes.core.packet import end_of
from nadi.pdes.core.state import world_at
from nadi.pdes.network.boundary import CROSSING_WORDS, HEADER_WORDS, WORD_BYTES
from nadi.pdes.network.link import wait_turn

LINK = CROSSING_WORDS - 1  # word of a packet between worlds that names its link


def sent_packets(lp: LogicalProcess) -> Int64:
    """Return int64[packets, words]: what an LP has sent to others in the last window.

    The word LINK is the link's number in the fabric.

    Args:
        lp: The logical process.
    """
    net, part = lp.world.net, lp.part
    found = [np.zeros((0, part.crossing_words), np.int64)]
    list_of_link = end_of(net.tx.meta[: len(part.links)]) - len(part.nodes)
    for number in range(part.lists):
        half = int(net.out_at[2 * number + int(net.ctl.parity)])
        count, at = int(net.outbox[half]), half + HEADER_WORDS
        packets = net.outbox[at : at + count * part.crossing_words].reshape(count, part.crossing_words).copy()
        own = np.flatnonzero(list_of_link == number)
        # packets name the link by `far`, which is not in the order of links
        own = own[np.argsort(net.far[own])]
        packets[:, LINK] = part.links[own[np.searchsorted(net.far[own], packets[:, LINK])]]
        found.append(packets)
    return np.concatenate(found)


def put_on_links(lp: LogicalProcess, packets: Int64) -> None:
    """Let packets wait on the LP's links.

    Args:
        lp: The logical process.
        packets: int64[n, words], packets in the order of their arrivals; the word LINK is a row of `tx`.
    """
    make_blocks(lp, len(packets))  # at worst each is on a link of its own
    packets = np.ascontiguousarray(packets)
    wait_on_links(lp.address, packets.ctypes.data, len(packets))


@kernel
def wait_on_links(world_address, packets_address, count):
    """Let packets wait on their links.

    Args:
        world_address: Address of the directory of the LP's `World`.
        packets_address: Address of the packets in the format of pdes/network/boundary.py, with rows of `tx` as links.
        count: Number of packets.
    """
    net = world_at(world_address).net
    for i in range(count):
        p = packets_address + WORD_BYTES * i * net.const.crossing_words
        carry(net, CARRY_IN, p)
        link = load_unaligned(p + WORD_BYTES * LINK)
        words = load_unaligned(p + 8), load_unaligned(p + 16), load_unaligned(p + 24)
        at = wait_turn(net, link, net.tx[link].meta, load_unaligned(p), words[0], words[1], words[2])
        carry(net, SET_DOWN, at)


def coming_in(part: Part, packets: Int64) -> Int64:
    """Return the packets of `sent_packets` over links to this part, with rows of its `tx`, in order of arrival."""
    links = np.concatenate([*part.links_in, np.zeros(0, np.int64)]).astype(np.int64)  # rows behind its own links
    if not len(links):
        return packets[:0]
    order = np.argsort(links)
    place = np.minimum(np.searchsorted(links[order], packets[:, LINK]), len(links) - 1)
    is_own = links[order][place] == packets[:, LINK]
    found = packets[is_own]
    found[:, LINK] = len(part.links) + order[place[is_own]]
    return found[np.argsort(found[:, 0], kind="stable")]
