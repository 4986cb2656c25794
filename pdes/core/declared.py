"""What the arrays of a world declare in `pdes.core.state`, by names such as "net.tx", and the growth of pools."""

import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from nadi.pdes.core import Int64, state as s
from nadi.pdes.core.algorithms import FREE, rehash
from nadi.pdes.core.jit import full, never_used, rows_of, zeros
from nadi.pdes.core.rows import ALONE, BUILT, EMPTY, OWN_WAY, REMADE, Each, Row, RowsOf, WordKind
from nadi.pdes.core.rows.messages import FIRST_EVENT, Event

# Code that walks over a world follows these declarations: checkpoints, moving to other LPs, growth of pools, and
# moving forward in time. So an array, or a word of a row, is declared in one place.


def array_of(world: s.World, name: str) -> Any:
    """Return an array of a world.

    Args:
        world: State of an LP (`World`).
        name: Name of the array, such as "net.tx".
    """
    return operator.attrgetter(name)(world)


class DeclaredArray(NamedTuple):
    """The declaration of an array of a world, or of its one row."""

    name: str  # "net.tx"
    kind: Any  # class of its rows, or NumPy's type of plain numbers
    table: RowsOf | None = None  # what it has rows of
    word: WordKind | None = None  # of plain numbers: to what they refer, where walks over worlds need it
    each: int | str = 1  # items per row of the table, or the word of `Constants` with their number
    marks: frozenset[str] = frozenset()

    def of(self, world: s.World) -> Any:
        """Return the array of a world.

        Args:
            world: State of an LP (`World`).
        """
        return array_of(world, self.name)

    @property
    def by(self) -> str:
        """What the array is by in a checkpoint, as a phrase of the data dictionary."""
        special = [mark for mark in (EMPTY, ALONE, REMADE) if mark in self.marks]
        return special[0] if special or self.table is None else self.table.value

    def is_shared(self, world: s.World) -> bool:
        """Return whether all worlds share the array, which nobody may write: the run does not use its part.

        Args:
            world: State of an LP (`World`).
        """
        part: Any = getattr(world, self.name.partition(".")[0])
        kind: Any = type(part)
        return bool(part is never_used(kind))

    def items(self, length: int) -> Any:
        """Return a new array of items with initial words.

        Args:
            length: Number of items.
        """
        return rows_of(self.kind, length) if issubclass(self.kind, Row) else zeros(length, self.kind)


def _declared(record: Any, prefix: str, marks: frozenset[str]) -> Iterator[DeclaredArray]:
    for name, hint in get_type_hints(record, include_extras=True).items():
        if not hasattr(hint, "__metadata__"):  # a NamedTuple itself
            more = {ALONE} if hint in s.NOT_MOVED else {BUILT} if hint in s.NOT_SAVED else set()
            yield from _declared(hint, f"{prefix}{name}.", marks | more)
            continue
        kind, *others = hint.__metadata__
        found: dict[str, Any] = {"marks": marks | {each for each in others if isinstance(each, str)}}
        for each in others:
            if isinstance(each, Each):
                found["each"] = each.items
            elif not isinstance(each, str):
                found["table" if isinstance(each, RowsOf) else "word"] = each
        yield DeclaredArray(prefix + name, kind, **found)


@functools.cache
def saved_arrays() -> tuple[DeclaredArray, ...]:
    """Return the arrays of a world that a checkpoint holds: all that a run changes."""
    return tuple(each for each in _declared(s.World, "", frozenset()) if BUILT not in each.marks)


@functools.cache
def arrays_by(table: RowsOf) -> tuple[DeclaredArray, ...]:
    """Return the arrays that have rows of a table, with all that grow with it.

    Args:
        table: Table whose rows the arrays have, such as RowsOf.LINK.
    """
    return tuple(each for each in saved_arrays() if each.table is table)


@functools.cache
def rows_by(table: RowsOf) -> tuple[DeclaredArray, ...]:
    """Return the arrays whose rows mean the same in any LP, but for the numbers that they name.

    Args:
        table: Table whose rows the arrays have, such as RowsOf.LINK.
    """
    return tuple(each for each in arrays_by(table) if not each.marks & {OWN_WAY, REMADE, EMPTY, ALONE})


def with_arrays(record: Any, arrays: Mapping[str, Any]) -> Any:
    """Return a world, or a part of it, with other arrays.

    Args:
        record: World (`World`) or NamedTuple within it.
        arrays: The arrays that it is to have in place of its own, by names such as "net.tx".
    """
    parts: dict[str, dict[str, Any]] = {}
    replaced = {}
    for name, array in arrays.items():
        part, _, rest = name.partition(".")
        if rest:
            parts.setdefault(part, {})[rest] = array
        else:
            replaced[part] = array
    replaced |= {part: with_arrays(getattr(record, part), inner) for part, inner in parts.items()}
    return record._replace(**replaced)


# Queues and marks of ports by stretch of time, whose width doubles when a run gets longer.

WATCHED = {"depth": np.maximum, "marks": np.add}  # arrays of `Net`, and how two stretches are joined


def widen(columns: Any, factor: int, join: np.ufunc) -> None:
    """Join stretches of time, in place; those behind the joined ones are 0.

    Args:
        columns: int32[links, stretches], what was watched in each.
        factor: Number of stretches that become one, a power of two.
        join: How the values of two become one, of WATCHED.
    """
    half = columns.shape[1] // 2
    while factor > 1:
        columns[:, :half] = join(columns[:, 0 : 2 * half : 2], columns[:, 1 : 2 * half : 2])
        columns[:, half:] = 0
        factor //= 2


# Growth of the pools: a full pool doubles its size, at a moment when no action is under way.


def power_of_two(minimum: int) -> int:
    """Return the smallest power of two that is at least `minimum`, and at least 16."""
    return 1 << max(4, (int(minimum) - 1).bit_length())


def empty_map(minimum: int) -> tuple[Int64, Int64]:
    """Return keys and values of a map (pdes/core/algorithms.py) with at least `minimum` places."""
    size = power_of_two(minimum)
    return full(size, FREE), zeros(size)


class Pool(NamedTuple):
    """A pool of rows that grows: all arrays with rows of its table."""

    table: RowsOf
    rows: str  # array with an item per row; of a pool with a counter, the stack of free rows
    counter: str = ""  # word of `ctl` that counts the free rows
    keys: str = ""  # keys of the map (pdes/core/algorithms.py) that finds rows
    values: str = ""  # values of that map


POOLS = {
    s.NEED_BLOCKS: Pool(RowsOf.BLOCK, "net.block_free", "free_blocks"),
    s.NEED_MSGS: Pool(RowsOf.MESSAGE, "qps.msg_free", "free_messages"),
    s.NEED_QPS: Pool(RowsOf.PAIR, "qps.qp", "", "qps.qp_key", "qps.qp_val"),
    s.NEED_RXQPS: Pool(RowsOf.RECEIVER, "qps.rxqp"),
    s.NEED_INSTS: Pool(RowsOf.INSTANCE, "insts.inst_free", "free_instances", "insts.inst_key", "insts.inst_val"),
    s.NEED_HOPS: Pool(RowsOf.HOP, "flows.hop"),
    s.NEED_EVENTS: Pool(RowsOf.EVENT, "messages.event"),
}
"""The pools by what `ctl.need` says when they are full."""


def _rehashed(keys: Int64, values: Int64, minimum: int) -> tuple[Int64, Int64]:
    """Return a larger map (pdes/core/algorithms.py) with the same pairs, and at least `minimum` places."""
    new_keys, new_values = empty_map(max(len(keys), minimum))
    rehash(keys, values, new_keys, new_values)
    return new_keys, new_values


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
    used, same_time_size = int(old.queue.fresh), int(old.queue.same_time_size)
    event, same_time = rows_of(Event, room), zeros(2 * room)
    # untouched pages take no memory
    event[:used] = old.event[:used]
    same_time[: 2 * same_time_size] = old.same_time[: 2 * same_time_size]
    return world._replace(messages=old._replace(event=event, same_time=same_time))


def _with_receivers(world: s.World) -> s.World:
    """Return the world with twice the receiving queue pairs."""
    # Their rows are their own hash map, so every row gets a new place; arrays parallel to them move along.
    old = world.qps.rxqp
    keys, came_from = _rehashed(np.array(old.key), np.arange(len(old)), 2 * len(old))
    places = np.flatnonzero(keys != FREE)
    grown = {}
    for each in arrays_by(RowsOf.RECEIVER):
        rows = each.of(world)
        # one that the run does not use keeps its one row
        if len(rows) == len(old):
            grown[each.name] = each.items(len(keys))
            grown[each.name][places] = rows[came_from[places]]
    world.npus.npu.last_receiver = -1
    grown_world: s.World = with_arrays(world, grown)
    return grown_world


def _rows_wanted(world: s.World, pool: Pool, rows: int) -> int:
    """Return the number of rows that a full pool of `rows` rows gets."""
    const = world.net.const
    match pool.table:
        case RowsOf.BLOCK:
            return rows + max(rows // 2, 4 * int(const.reserve_blocks))
        case RowsOf.MESSAGE:
            return 2 * rows + int(const.reserve_messages)
        case RowsOf.PAIR:
            # queue pairs have half as many rows as their map, so that searches stay short
            return power_of_two(4 * max(rows, int(const.reserve_queue_pairs))) // 2
    return 2 * rows


def grow(world: s.World) -> s.World:
    """Return the world with more room in the pool that was full (`ctl.need`)."""
    ctl, pool = world.net.ctl, POOLS[int(world.net.ctl.need)]
    if pool.table is RowsOf.RECEIVER:
        return _with_receivers(world)
    old = len(array_of(world, pool.rows))
    new = _rows_wanted(world, pool, old)
    if pool.table is RowsOf.EVENT:
        return _with_events(world, new)
    arrays: dict[str, Any] = {}
    for each in arrays_by(pool.table):
        # an array that has several items per row grows in proportion; one that the run does not use keeps its one item
        rows = each.of(world)
        if len(rows) >= old and each.name not in {pool.keys, pool.values}:
            arrays[each.name] = each.items(len(rows) // old * new)
            arrays[each.name][: len(rows)] = rows
    if pool.counter:
        free = int(ctl[pool.counter])
        arrays[pool.rows][free : free + new - old] = np.arange(new - 1, old - 1, -1)
        ctl[pool.counter] = free + new - old
    if pool.keys:
        arrays[pool.keys], arrays[pool.values] = _rehashed(
            array_of(world, pool.keys), array_of(world, pool.values), 2 * new
        )
    grown: s.World = with_arrays(world, arrays)
    return _with_room_for_events(grown) if pool.table in {RowsOf.MESSAGE, RowsOf.INSTANCE} else grown
