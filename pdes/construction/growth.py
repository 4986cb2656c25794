"""Growth of the pools: a full pool doubles its size, at a moment when no action is under way."""

from typing import Any

import numpy as np

from nadi.pdes.core import state as s
from nadi.pdes.core.hashing import FREE, rehash
from nadi.pdes.core.inputs import Int64
from nadi.pdes.core.memory import full, rows_of, zeros
from nadi.pdes.core.rows.messages import FIRST_EVENT, Event
from nadi.pdes.core.rows.nic import Receiver, Selective


def power_of_two(minimum: int) -> int:
    """Return the smallest power of two that is at least `minimum`, and at least 16."""
    return 1 << max(4, (int(minimum) - 1).bit_length())


def empty_map(minimum: int) -> tuple[Int64, Int64]:
    """Return keys and values of a map (pdes/core/hashing.py) with at least `minimum` places."""
    size = power_of_two(minimum)
    return full(size, FREE), zeros(size)


def _rehashed(keys: Int64, values: Int64, minimum: int) -> tuple[Int64, Int64]:
    """Return a larger map (pdes/core/hashing.py) with the same pairs, and at least `minimum` places."""
    new_keys, new_values = empty_map(max(len(keys), minimum))
    rehash(keys, values, new_keys, new_values)
    return new_keys, new_values


def _longer(array: Any, length: int) -> Any:
    """Return a copy of `array`, padded with zeros to `length` items."""
    grown = zeros(length, array.dtype)
    grown[: len(array)] = array
    return grown


def _with_rows(tables: Any, old_rows: int, new_rows: int, *names: str) -> Any:
    """Return a NamedTuple of a world whose named arrays have `new_rows` rows in place of `old_rows`."""
    # An array that has several words per row grows in proportion; one that the run does not use keeps its one row.
    arrays = {name: getattr(tables, name) for name in names}
    return tables._replace(**{name: _longer(data, len(data) // old_rows * new_rows) for name, data in arrays.items()})


def _with_free_rows(world: s.World, tables: Any, added_rows: int, counter: str, stack: str, *names: str) -> Any:
    """Return a NamedTuple of a world whose pool, the named arrays, has `added_rows` more rows, which are free."""
    # `stack` names the array that holds the numbers of free rows, `counter` the word of `ctl` that counts them.
    old, free = len(getattr(tables, stack)), int(world.net.ctl[counter])
    grown = _longer(getattr(tables, stack), old + added_rows)
    grown[free : free + added_rows] = np.arange(old + added_rows - 1, old - 1, -1)
    world.net.ctl[counter] = free + added_rows
    return _with_rows(tables, old, old + added_rows, *names)._replace(**{stack: grown})


def events_room(npus: int, messages: int, instances: int, lanes: int) -> int:
    """Return the maximum number of events of a message-level model, plus one.

    Args:
        npus: Number of NPUs.
        messages: Maximum number of messages under way.
        instances: Maximum number of active collectives.
        lanes: Maximum number of lanes of a collective.
    """
    # Each message has two, each NPU its lanes and its begin, each collective instance its launch, `lanes` and one more.
    return FIRST_EVENT + 2 * messages + (s.LANES + 1) * npus + (2 + lanes) * instances + 1


def _with_room_for_events(world: s.World) -> s.World:
    """Return the world with room for the events of all its messages and instances, if it has such events."""
    if world.net.hooks.act == 0 and world.net.hooks.settle == 0:
        return world
    const, old = world.net.const, world.messages
    room = events_room(int(const.npus), len(world.qps.msg_free), len(world.insts.inst_free), int(const.lane_stride) - 1)
    return _with_events(world, max(room, len(old.event)))


def _with_events(world: s.World, room: int) -> s.World:
    """At message level, return the world with room for `room` events."""
    old = world.messages
    used, rushing = int(old.queue.fresh), int(old.queue.rushing)
    event, rush = rows_of(Event, room), zeros(2 * room)
    event[:used], rush[: 2 * rushing] = old.event[:used], old.rush[: 2 * rushing]  # untouched pages take no memory
    return world._replace(messages=old._replace(event=event, rush=rush))


def _with_flows(world: s.World, old_pairs: int, new_pairs: int) -> s.World:
    """Return the world with flows for `new_pairs` queue pairs in place of `old_pairs`, if the run's model has flows."""
    if world.net.hooks.settle == 0:
        return world
    names = "flow", "stage", "finish_heap", "finish_place", "fresh", "reached_flow"
    return world._replace(flows=_with_rows(world.flows, old_pairs, new_pairs, *names))


def _with_receivers(world: s.World) -> s.World:
    """Return the world with twice the receiving queue pairs."""
    # Their rows are their own hash map, so every row gets a new place; arrays parallel to them move along.
    old = world.qps.rxqp
    keys, came_from = _rehashed(np.array(old.key), np.arange(len(old)), 2 * len(old))
    places = np.flatnonzero(keys != FREE)

    def moved(rows: Any, into: Any) -> Any:
        into[places] = rows[came_from[places]]
        return into

    grown = world.qps._replace(rxqp=moved(old, rows_of(Receiver, len(keys))))
    if world.net.hooks.selective_sender != 0:
        grown = grown._replace(sel_rx=moved(world.qps.sel_rx, rows_of(Selective, len(keys))))
    if world.net.const.reduces != 0:
        grown = grown._replace(begun=moved(world.qps.begun, zeros(len(keys))))
    world.npus.npu.last_receiver = -1
    return world._replace(qps=grown)


def grow(world: s.World) -> s.World:
    """Return the world with more room in the pool that was full (`ctl.need`)."""
    net, qps, const = world.net, world.qps, world.net.const
    match int(net.ctl.need):
        case s.NEED_BLOCKS:
            added = max(len(net.block_free) // 2, 4 * int(const.reserve_blocks))
            arrays = "record", "block_next", "telemetry", "ordered", "held_block"
            grown = _with_free_rows(world, net, added, "free_blocks", "block_free", *arrays)
            return world._replace(net=grown)
        case s.NEED_MSGS:
            added = len(qps.msg_free) + int(const.reserve_messages)
            grown = _with_free_rows(world, qps, added, "free_messages", "msg_free", "msg")
            return _with_room_for_events(world._replace(qps=grown))
        case s.NEED_QPS:
            # queue pairs have half as many rows as their map, so that searches stay short
            old = len(qps.qp_key) // 2
            key, val = _rehashed(qps.qp_key, qps.qp_val, 4 * max(old, int(const.reserve_queue_pairs)))
            grown = _with_rows(qps, old, len(key) // 2, "qp", "cc", "arrived", "resends", "sel_tx")
            return _with_flows(world._replace(qps=grown._replace(qp_key=key, qp_val=val)), old, len(key) // 2)
        case s.NEED_RXQPS:
            return _with_receivers(world)
        case s.NEED_INSTS:
            pools = "inst", "lane", "phase", "called", "asked", "taken"
            grown = _with_free_rows(
                world, world.insts, len(world.insts.inst_free), "free_instances", "inst_free", *pools
            )
            key, val = _rehashed(grown.inst_key, grown.inst_val, 2 * len(grown.inst_free))
            return _with_room_for_events(world._replace(insts=grown._replace(inst_key=key, inst_val=val)))
        case s.NEED_HOPS:
            hops = len(world.flows.hop)
            return world._replace(
                flows=_with_rows(
                    world.flows, hops, 2 * hops, "hop", "hop_use", "hop_total", "link_flow", "link_flow_hop"
                )
            )
        case s.NEED_EVENTS:
            return _with_events(world, 2 * len(world.messages.event))
    raise ValueError(net.ctl.need)
