"""Queue pairs that pacing holds back: a pairing heap per port, the earliest on top (Fredman et al., 1986).

The heap's links are in the queue pairs' own rows, so a port has room for any number. Equal times are ordered by the
number of the queue pair, which is the order of creation in the NPU.
"""

import numpy as np

from nadi.pdes.core.jit import inline, outline


@inline
def before(qps, pair, other):
    """Return whether a queue pair may send before another.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        pair: Row of the queue pair in `qps.qp`.
        other: Row of another queue pair.
    """
    at = qps.cc[pair].next_send_ps
    bt = qps.cc[other].next_send_ps
    return at < bt or (at == bt and pair < other)


@inline
def join(qps, heap, other):
    """Merge two pairing heaps, given by the queue pairs at their tops, and return the new top.

    Args:
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        heap: Queue pair at the top of one heap.
        other: Queue pair at the top of the other heap.
    """
    # A pairing heap: each node's children are a list linked by `sibling`, the newest first. To join is to make one top
    # a child of the other, in constant time; only taking the earliest, in O(log n) amortised, orders anything.
    top, under = (other, heap) if before(qps, other, heap) else (heap, other)
    qps.cc[under].sibling = qps.cc[top].child
    qps.cc[top].child = under
    return top


@inline
def hold_back(npus, qps, link, pair):
    """Add a queue pair to the port's heap of those that wait until their next_send_ps.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        link: Outgoing link of the port.
        pair: Row of the queue pair in `qps.qp`.
    """
    cc = qps.cc[pair]
    port = npus.port[link]
    # a queue pair is in this heap or in the port's rotation, never in both: `active` says which
    cc.child = cc.sibling = -1
    port.paced = pair if port.paced < 0 else join(qps, np.int64(port.paced), np.int64(pair))


@outline
def take_soonest(npus, qps, link):
    """Remove the queue pair that may send first from the port's heap, and return it: merge its children in pairs.

    Args:
        npus: NPUs of the LP with their ports and own events (`Npus`).
        qps: Queue pairs, messages and flow records of the LP (`Qps`).
        link: Outgoing link of the port.
    """
    pair = np.int64(npus.port[link].paced)
    rest = qps.cc[pair].child
    pairs = np.int64(-1)
    # two passes over the children of a pairing heap: merge pairs, then the results, the last pair first
    while rest >= 0:
        first = rest
        second = qps.cc[first].sibling
        rest = np.int64(-1)
        top = first
        if second >= 0:
            rest = qps.cc[second].sibling
            top = join(qps, first, second)
        qps.cc[top].sibling = pairs
        pairs = top
    top = np.int64(-1)
    while pairs >= 0:
        following = qps.cc[pairs].sibling
        top = pairs if top < 0 else join(qps, top, pairs)
        pairs = following
    if top >= 0:
        qps.cc[top].sibling = -1
    npus.port[link].paced = top
    return pair
