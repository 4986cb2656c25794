"""Entry points to single helpers of the engine, so that tests can call them compiled."""

import numpy as np

from nadi.pdes.core.algorithms import FREE, after, find, heap_pop, heap_push, mix, mix2, mix3, push, remove, take_block
from nadi.pdes.core.jit import kernel, reader
from nadi.pdes.core.state import Flows, MessageModels
from nadi.pdes.messages.events import add_event, take_event
from nadi.pdes.messages.paths import set_capacity
from nadi.pdes.messages.rates import enter, leave, solve
from nadi.pdes.network.batch import draw_of, order_ties, sort_batch
from nadi.pdes.network.link import link_send

messages_at = reader(MessageModels)
flows_at = reader(Flows)


@kernel
def hash1(a):
    return mix(a)


@kernel
def hash2(a, b):
    return mix2(a, b)


@kernel
def hash3(a, b, c):
    return mix3(a, b, c)


@kernel
def map_put(keys, values, key, value):
    """Sets the value; True if the key is new."""
    at = find(keys, key)
    new = keys[at] == FREE
    keys[at] = key
    values[at] = value
    return new


@kernel
def map_get(keys, values, key):
    at = find(keys, key)
    return np.int64(-1) if keys[at] == FREE else np.int64(values[at])


@kernel
def map_remove(keys, values, key):
    remove(keys, values, key)


@kernel
def heap_add(heap, base, size, time, slot):
    heap_push(heap, base, size, time, slot)


@kernel
def heap_take(heap, base, size):
    heap_pop(heap, base, size)


@kernel
def event_add(ctl, address, time, kind, key, item):
    add_event(ctl, messages_at(address), time, kind, key, item)


@kernel
def event_take(ctl, address):
    return take_event(ctl, messages_at(address))


@kernel
def queue_begin(net):
    return take_block(net)


@kernel
def queue_add(net, tail, time, w1, w2, w3):
    return push(net, tail, time, w1, w2, w3)


@kernel
def queue_after(net, head):
    return after(net, head)


@kernel
def order_batch(net, inbox, node, batch, begin, end):
    net.ctl.batch = batch
    sort_batch(inbox, batch, begin, end)
    order_ties(net, inbox, node, begin)


@kernel
def draw_tie(net, node, now):
    return draw_of(net, net.counts[node], now)


@kernel
def inject(net, link, start, w1):
    link_send(net, link, start, start, w1, 0, 0)


@kernel
def flow_enter(address, f, now):
    enter(flows_at(address), f, now)
    return 0


@kernel
def flow_leave(address, f):
    leave(flows_at(address), f)
    return 0


@kernel
def flow_capacity(address, link, capacity):
    set_capacity(flows_at(address), link, capacity)
    return 0


@kernel
def flow_solve(address, now):
    solve(flows_at(address), now)
    return 0
