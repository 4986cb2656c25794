"""Queue pairs that pacing holds back: a pairing heap of each port, the soonest on top (Fredman et al., 1986).

The heap's links stand in the queue pairs' own rows, so a port has room for any number. Equal times go by the number of
the queue pair, which is the order in which the NPU made them.
"""

import numpy as np

from pdes.core.jit import inline, outline
from pdes.core.state import CC_CHILD, CC_NEXT_SEND, CC_SIBLING, CC_WORDS, PORT_PACED, PORT_WORDS


@inline
def before(qps, a, b):
    """Whether queue pair a may send before b."""
    at = qps.cc[a * CC_WORDS + CC_NEXT_SEND]
    bt = qps.cc[b * CC_WORDS + CC_NEXT_SEND]
    return at < bt or (at == bt and a < b)


@inline
def join(qps, a, b):
    """One heap of two; its top."""
    top, under = a, b
    if before(qps, b, a):
        top, under = b, a
    qps.cc[under * CC_WORDS + CC_SIBLING] = qps.cc[top * CC_WORDS + CC_CHILD]
    qps.cc[top * CC_WORDS + CC_CHILD] = under
    return top


@inline
def hold_back(npus, qps, link, q):
    """Have a queue pair wait until CC_NEXT_SEND."""
    p = link * PORT_WORDS + PORT_PACED
    qps.cc[q * CC_WORDS + CC_CHILD] = -1
    qps.cc[q * CC_WORDS + CC_SIBLING] = -1
    if npus.port[p] < 0:
        npus.port[p] = q
    else:
        npus.port[p] = join(qps, npus.port[p], np.int64(q))


@outline
def take_soonest(npus, qps, link):
    """Take the queue pair that may send soonest out of the port's heap: its children join in pairs, then all."""
    p = link * PORT_WORDS + PORT_PACED
    q = npus.port[p]
    rest = qps.cc[q * CC_WORDS + CC_CHILD]
    pairs = np.int64(-1)
    while rest >= 0:
        first = rest
        second = qps.cc[first * CC_WORDS + CC_SIBLING]
        rest = np.int64(-1)
        top = first
        if second >= 0:
            rest = qps.cc[second * CC_WORDS + CC_SIBLING]
            top = join(qps, first, second)
        qps.cc[top * CC_WORDS + CC_SIBLING] = pairs
        pairs = top
    top = np.int64(-1)
    while pairs >= 0:
        following = qps.cc[pairs * CC_WORDS + CC_SIBLING]
        if top < 0:
            top = pairs
        else:
            top = join(qps, top, pairs)
        pairs = following
    if top >= 0:
        qps.cc[top * CC_WORDS + CC_SIBLING] = -1
    npus.port[p] = top
    return q
