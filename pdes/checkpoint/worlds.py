"""The arrays of a world in a checkpoint: all that a run changes, as they are."""

from collections.abc import Iterator
from typing import Any, get_type_hints

import numpy as np

from nadi.pdes.construction.schedule import TABLES
from nadi.pdes.core import state as s
from nadi.pdes.core.inputs import Rows
from nadi.pdes.core.memory import zeros
from nadi.pdes.network.boundary import WORD_BYTES


def saved_fields(record: Any) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a NamedTuple of a world that a checkpoint holds, and whether each is a NamedTuple itself.

    Args:
        record: Class of the NamedTuple.
    """
    hints = get_type_hints(record, include_extras=True)
    fields = []
    for name in hints:
        marks = getattr(hints[name], "__metadata__", None)
        # a field without marks is a NamedTuple itself
        if hints[name] not in s.NOT_SAVED and (marks is None or s.BUILT not in marks[1:]):
            fields.append((name, marks is None))
    return tuple(fields)


def flat(array: Any) -> Any:
    """Return an array, or a row in its array, as plain numbers in the same memory."""
    array = np.asarray(array.base if isinstance(array, np.record) else array).view(np.ndarray).reshape(-1)
    return (
        array if array.dtype.names is None else array.view(np.int64 if array.itemsize % WORD_BYTES == 0 else np.int32)
    )


def arrays_of(record: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the array or row of each saved field of a NamedTuple of a world.

    Args:
        record: The NamedTuple: a world or a part of it.
        prefix: Beginning of each name: names of the NamedTuples around this one, each with a dot.
    """
    for name, is_nested in saved_fields(type(record)):
        value = getattr(record, name)
        if is_nested:
            yield from arrays_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def saved_arrays(world: s.World) -> dict[str, np.ndarray]:
    """Return the arrays of a world that a checkpoint holds by their names, "net.inbox", as plain numbers.

    Those of rows have two dimensions, int64[rows, words].
    """
    return {name: in_rows(flat(array), array.dtype) for name, array in arrays_of(world, "")}


def in_rows(numbers: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return plain numbers of rows of a class, `kind`, as int64[rows, words]; others as they are."""
    return (
        numbers.reshape(-1, kind.itemsize // WORD_BYTES) if kind.names and numbers.itemsize == WORD_BYTES else numbers
    )


def with_arrays(world: Any, arrays: dict[str, np.ndarray], prefix: str = "") -> Any:
    """Return a world that was just built with the arrays of `saved_arrays`; rows are set in place.

    Args:
        world: The world, or a part of it.
        arrays: Saved arrays by name.
        prefix: Beginning of each name: names of the NamedTuples around this one, each with a dot.
    """
    replaced = {}
    for name, is_nested in saved_fields(type(world)):
        value = getattr(world, name)
        if is_nested:
            replaced[name] = with_arrays(value, arrays, f"{prefix}{name}.")
            continue
        saved, numbers = arrays[prefix + name], flat(value)
        if not isinstance(value, np.record) and len(saved) != len(numbers):
            # a pool that has grown: saved arrays are flat words, others rows
            items = len(saved) * saved.itemsize // value.itemsize
            value = zeros(items, np.asarray(value).view(np.ndarray).dtype)
            numbers, replaced[name] = flat(value), value
        numbers[:] = saved
    return world._replace(**replaced)


def as_world(template: Any, arrays: dict[str, np.ndarray], prefix: str = "") -> Any:
    """Return a NamedTuple as `template` with the arrays of `saved_arrays`, of another world, in memory of their own.

    Args:
        template: NamedTuple that has the types of the arrays: a world, or a part of it.
        arrays: Saved arrays by name.
        prefix: Beginning of each name: names of the NamedTuples around this one, each with a dot.
    """
    replaced: dict[str, Any] = {}
    for name, is_nested in saved_fields(type(template)):
        value = getattr(template, name)
        if is_nested:
            replaced[name] = as_world(value, arrays, f"{prefix}{name}.")
            continue
        is_row = isinstance(value, np.record)
        kind = np.asarray(value.base if is_row else value).view(np.ndarray).dtype
        array = arrays[prefix + name].view(kind)
        rows = array.view(np.recarray) if kind.names else array
        # a single row is saved as an array of one
        replaced[name] = rows[0] if is_row else rows
    return template._replace(**replaced)


def load_routes(world: s.World) -> None:
    """Load the routing tables that are in force after the changes of the schedule that were made.

    Args:
        world: State of the LP (`World`).
    """
    schedule, epochs = world.schedule, int(world.net.const.epochs)
    made: Rows = schedule.change[: int(world.net.ctl.fault_at)]
    numbers = made.value[made.kind == s.CHANGE_ROUTES]
    if epochs == 1 or not len(numbers):
        return
    epoch = int(numbers[-1])
    nodes = len(world.routes.node)
    world.routes.node[:] = schedule.table_node[epoch * nodes : (epoch + 1) * nodes]
    for tables, names in TABLES.items():
        # the arrays of Routes one after another, each for all epochs
        at, every = 0, getattr(schedule, tables)
        for name in names:
            own = getattr(world.routes, name)
            own[:] = every[at + epoch * len(own) : at + (epoch + 1) * len(own)]
            at += epochs * len(own)
