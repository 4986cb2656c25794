"""What links tell of their traffic: samples for the user, and telemetry that packets carry."""

from nadi.pdes.core.algorithms import CARRY_IN, PUT_OUT, SET_DOWN
from nadi.pdes.core.jit import hook, inline, load_unaligned, outline
from nadi.pdes.core.packet import CROSSING_WORDS, WORD_BYTES
from nadi.pdes.core.state import MAX_TELEMETRY_HOPS, NEED_SAMPLES, world_at

# Samples of links, if the user names an interval: bytes sent, and the longest queue at the port, in each interval.
#
# A link keeps its sums of the current interval. When it sends, or a packet waits, in a later one, the sums go to a
# log, which the host empties when it is nearly full. So intervals without traffic take no memory, and a sample depends
# on nothing but the packets of its link.

SENT, QUEUED = 0, 1  # kinds of entries of the log


@inline
def samples_short(net):
    """Return whether the log of samples may be too small for a node's batch; never true without samples.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
    """
    if net.ctl.free_samples < net.const.reserve_samples:
        net.ctl.need = NEED_SAMPLES
        return True
    return False


@inline
def keep(net, link, kind, interval, amount):
    """Append the sum of an interval of a link to the log.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link (row of `tx`).
        kind: SENT or QUEUED.
        interval: Number of the interval of samples.
        amount: Bytes sent, or maximum of the bytes that waited; 0 is not logged.
    """
    if amount > 0:
        # from the end backwards: the number of free entries is the place of the next, so no second counter is needed
        net.ctl.free_samples -= 1
        entry = net.sample_log[net.ctl.free_samples]
        entry.link = link
        entry.kind = kind
        entry.interval = interval
        entry.amount = amount


@inline
def add_sent(net, link, interval, size_bytes):
    """Add bytes to those that a link sends in an interval.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link (row of `tx`).
        interval: Number of the interval of samples.
        size_bytes: Number of bytes.
    """
    sample = net.sample[link]
    # the first packet of a later interval closes the one before; intervals without packets leave no entry
    if interval != sample.sent_interval:
        keep(net, link, SENT, sample.sent_interval, sample.sent_bytes)
        sample.sent_interval = interval
        sample.sent_bytes = 0
    sample.sent_bytes += size_bytes


@outline
def sample_sent(net, link, start_ps, busy_ps, size_bytes):
    """Count a packet that a link sends, divided where it is in two intervals.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link (row of `tx`).
        start_ps: Time in ps at which its first bit leaves.
        busy_ps: Time in ps at which its last bit has left.
        size_bytes: Size of the packet on the link in bytes.
    """
    width_ps = net.const.sample_ps
    interval = start_ps // width_ps
    end_ps = (interval + 1) * width_ps
    first_bytes = size_bytes
    if busy_ps > end_ps:
        # in proportion to time, rounded down; the rest goes to the next interval, so that sums are exact
        first_bytes = size_bytes * (end_ps - start_ps) // (busy_ps - start_ps)
    if first_bytes > 0:
        add_sent(net, link, interval, first_bytes)
    if size_bytes > first_bytes:  # the rest of a packet that takes longer than an interval counts in the second one
        add_sent(net, link, interval + 1, size_bytes - first_bytes)


@outline
def sample_queue(net, link, now_ps, waiting_bytes):
    """Note the bytes that wait at the port of a link when a packet joins them, or has left them.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        link: Outgoing link (row of `tx`).
        now_ps: Current time in ps.
        waiting_bytes: Bytes that wait.
    """
    interval = now_ps // net.const.sample_ps
    sample = net.sample[link]
    if interval != sample.queue_interval:
        keep(net, link, QUEUED, sample.queue_interval, sample.queue_bytes)
        sample.queue_interval = interval
        sample.queue_bytes = 0
    sample.queue_bytes = max(sample.queue_bytes, waiting_bytes)


# Packets that carry telemetry of their path: a row parallel to each record, which moves with the packet.
#
# Between two places the row is in `carried`. Only congestion controls that use telemetry (HPCC) pay for this.

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
