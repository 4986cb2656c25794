"""Packets that carry telemetry of their path: a row parallel to each record, which moves with the packet.

Between two places the row is in `carried`. Only congestion controls that use telemetry (HPCC) pay for this.
"""

from nadi.pdes.core.fifo import CARRY_IN, PUT_OUT, SET_DOWN
from nadi.pdes.core.jit import hook, load_unaligned
from nadi.pdes.core.state import MAX_TELEMETRY_HOPS, world_at
from nadi.pdes.network.boundary import CROSSING_WORDS, WORD_BYTES

MET_WORDS = 2 * MAX_TELEMETRY_HOPS


@hook
def carry(world_address, operation, place):
    """Move the telemetry of a packet between the packet in hand and a place.

    Args:
        world_address: Address of the directory of the LP's `World`.
        operation: SET_DOWN and PUT_OUT write the place, CARRY_IN and TAKE_UP read it.
        place: A record; a place in the outbox (PUT_OUT); an address in a neighbour's outbox (CARRY_IN).
    """
    net = world_at(world_address).net
    carried = net.carried
    if operation == SET_DOWN:
        net.telemetry[place].hops = carried.hops
    elif operation == PUT_OUT:
        net.outbox[place + CROSSING_WORDS] = carried.hops
    elif operation == CARRY_IN:
        carried.hops = load_unaligned(place + WORD_BYTES * CROSSING_WORDS)
    else:
        carried.hops = net.telemetry[place].hops
    for i in range(MET_WORDS):
        if operation == SET_DOWN:
            net.telemetry[place].met[i] = carried.met[i]
        elif operation == PUT_OUT:
            net.outbox[place + CROSSING_WORDS + 1 + i] = carried.met[i]
        elif operation == CARRY_IN:
            carried.met[i] = load_unaligned(place + WORD_BYTES * (CROSSING_WORDS + 1 + i))
        else:
            carried.met[i] = net.telemetry[place].met[i]
    return 0
