"""Packets that carry what they meet on their way: a row beside each record, moved whenever the packet is.

Between two places the row is in hand (`carried`). Congestion controls that want telemetry (HPCC) pay for this, others
do not.
"""

from pdes.core.fifo import CARRY_IN, PUT_OUT, SET_DOWN
from pdes.core.jit import hook, peek
from pdes.core.state import TELEMETRY_WORDS
from pdes.core.world import world_at
from pdes.network.boundary import CROSSING_WORDS, WORD_BYTES


@hook
def carry(address, what, at, _a, _b, _c, _d, _e):
    """Move what the packet in hand has met. at: a record, a place in the outbox, or an address in a neighbour's."""
    net = world_at(address).net
    for i in range(TELEMETRY_WORDS):
        if what == SET_DOWN:
            net.telemetry[at + i] = net.carried[i]
        elif what == PUT_OUT:
            net.outbox[at + CROSSING_WORDS + i] = net.carried[i]
        elif what == CARRY_IN:
            net.carried[i] = peek(at + WORD_BYTES * (CROSSING_WORDS + i))
        else:
            net.carried[i] = net.telemetry[at + i]
    return 0
