"""Room in the pools: what is full grows to twice its size, at a moment when no action is under way."""

from typing import Any

import numpy as np

from pdes.core import state as s
from pdes.core.hashmap import FREE, rehash
from pdes.core.inputs import Int64
from pdes.core.memory import full, zeros
from pdes.core.rows.messages import Event
from pdes.core.rows.nic import Receiver, Selective


def _longer(array: Any, length: int) -> Any:
    """A copy with zeros behind."""
    grown = zeros(length, array.dtype)
    grown[: len(array)] = array
    return grown


def _grow_blocks(w: s.World) -> s.World:
    old = len(w.net.block_next)
    new = old + max(old // 2, 4 * int(w.net.const.reserve_blocks))
    free = int(w.net.ctl.free_blocks)
    block_free = _longer(w.net.block_free, new)
    block_free[free : free + new - old] = np.arange(new - 1, old - 1, -1)
    w.net.ctl.free_blocks = free + new - old
    grown = w.net._replace(
        record=_longer(w.net.record, new * s.BLOCK_RECORDS),
        block_next=_longer(w.net.block_next, new),
        block_free=block_free,
    )
    if w.net.hooks.telemetry != 0:
        grown = grown._replace(telemetry=_longer(w.net.telemetry, new * s.BLOCK_RECORDS))
    return w._replace(net=grown)


def _grow_free_list(w: s.World, counter: str, free_list: Int64, added: int) -> Int64:
    """The free list with the numbers of `added` new rows."""
    old = len(free_list)
    free = int(w.net.ctl[counter])
    grown = _longer(free_list, old + added)
    grown[free : free + added] = np.arange(old + added - 1, old - 1, -1)
    w.net.ctl[counter] = free + added
    return grown


def _grow_msgs(w: s.World) -> s.World:
    added = len(w.qps.msg_free) + int(w.net.const.reserve_messages)
    free = _grow_free_list(w, "free_messages", w.qps.msg_free, added)
    w = w._replace(qps=w.qps._replace(msg_free=free, msg=_longer(w.qps.msg, len(free))))
    return _with_room_for_events(w)


def _grow_insts(w: s.World) -> s.World:
    stride = int(w.net.const.lane_stride)
    old = len(w.insts.inst_free)
    free = _grow_free_list(w, "free_instances", w.insts.inst_free, old)
    key, val = _rehashed(w.insts.inst_key, w.insts.inst_val, 2 * len(free))
    grown = w.insts._replace(
        inst_free=free,
        inst=_longer(w.insts.inst, len(free)),
        lane=_longer(w.insts.lane, len(free) * stride),
        phase=_longer(w.insts.phase, len(free) * int(w.net.const.phase_stride)),
        called=_longer(w.insts.called, len(free) * (len(w.insts.called) // old)),
        asked=_longer(w.insts.asked, len(free) * (len(w.insts.asked) // old)),
        taken=_longer(w.insts.taken, len(free) * (len(w.insts.taken) // old)),
        inst_key=key,
        inst_val=val,
    )
    return _with_room_for_events(w._replace(insts=grown))


def events_room(npus: int, messages: int, instances: int, stride: int) -> int:
    """The most events of a message-level model, and one.

    Two of a message, the lanes and begin of NPUs, launches of instances, one for each of their lanes and one more.
    """
    return 2 * messages + (s.LANES + 1) * npus + (2 + stride) * instances + 1


def _with_room_for_events(w: s.World) -> s.World:
    """At message level, the world with room for the events of as many messages and instances as there can be."""
    if w.net.hooks.act == 0:
        return w
    stride = int(w.net.const.lane_stride) - 1
    npus, instances = int(w.net.const.npus), len(w.insts.inst_free)
    room = events_room(npus, len(w.qps.msg_free), instances, stride)
    old = w.messages
    used, rushing = int(old.queue.fresh), int(old.queue.rushing)
    event, rush = zeros(room, Event), zeros(room)
    event[:used], rush[:rushing] = old.event[:used], old.rush[:rushing]  # what is not touched takes no memory
    return w._replace(messages=old._replace(event=event, rush=rush))


def _rehashed(keys: Int64, values: Int64, least: int) -> tuple[Int64, Int64]:
    """The map with at least `least` places."""
    size = len(keys)
    while size < least:
        size *= 2
    new_keys, new_values = full(size, -1), zeros(size)
    rehash(keys, values, new_keys, new_values)
    return new_keys, new_values


def _grow_qps(w: s.World) -> s.World:
    least = max(2 * len(w.qps.qp_key), 4 * int(w.net.const.reserve_queue_pairs))
    key, val = _rehashed(w.qps.qp_key, w.qps.qp_val, least)
    grown = w.qps._replace(qp=_longer(w.qps.qp, len(key) // 2), qp_key=key, qp_val=val)
    if w.net.hooks.congestion_control != 0:
        cc = _longer(w.qps.cc, len(key) // 2)
        grown = grown._replace(cc=cc)
    if w.net.hooks.act != 0:
        grown = grown._replace(arrived=_longer(w.qps.arrived, len(key) // 2))
    if w.net.hooks.selective_sender != 0:
        grown = grown._replace(sel_tx=_longer(w.qps.sel_tx, len(key) // 2))
    return w._replace(qps=grown)


def empty_receivers(length: int) -> Any:
    """Receiving queue pairs, none in use."""
    rows = zeros(length, Receiver)
    rows.key = FREE
    return rows


def _grow_rxqps(w: s.World) -> s.World:
    """Rows are their own map: with a longer one all find new places, and what stands beside them goes with them."""
    old = w.qps.rxqp
    rxqp = empty_receivers(2 * len(old))
    keys, came_from = full(len(rxqp), FREE), zeros(len(rxqp))
    rehash(np.array(old.key), np.arange(len(old)), keys, came_from)
    places = np.flatnonzero(keys != FREE)

    def moved(rows: Any, into: Any) -> Any:
        into[places] = rows[came_from[places]]
        return into

    grown = w.qps._replace(rxqp=moved(old, rxqp))
    if w.net.hooks.selective_sender != 0:
        grown = grown._replace(sel_rx=moved(w.qps.sel_rx, zeros(len(rxqp), Selective)))
    if w.net.const.reduces != 0:
        grown = grown._replace(begun=moved(w.qps.begun, zeros(len(rxqp))))
    w.npus.npu.last_receiver = -1
    return w._replace(qps=grown)


_GROW = {
    s.NEED_BLOCKS: _grow_blocks,
    s.NEED_MSGS: _grow_msgs,
    s.NEED_QPS: _grow_qps,
    s.NEED_RXQPS: _grow_rxqps,
    s.NEED_INSTS: _grow_insts,
}


def grow(world: s.World) -> s.World:
    """The world with room in the pool that was short (`ctl.need`)."""
    return _GROW[int(world.net.ctl.need)](world)
