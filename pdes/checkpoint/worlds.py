"""The arrays of a world in a checkpoint: all that a run changes, as they are."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nadi.pdes.construction.schedule import TABLES
from nadi.pdes.core import state as s
from nadi.pdes.core.declared import saved_arrays, with_arrays
from nadi.pdes.core.inputs import Rows
from nadi.pdes.core.memory import zeros
from nadi.pdes.network.boundary import WORD_BYTES


def flat(array: Any) -> Any:
    """Return an array, or a row in its array, as plain numbers in the same memory."""
    array = np.asarray(array.base if isinstance(array, np.record) else array).view(np.ndarray).reshape(-1)
    return (
        array if array.dtype.names is None else array.view(np.int64 if array.itemsize % WORD_BYTES == 0 else np.int32)
    )


def saved_words(world: s.World) -> dict[str, np.ndarray]:
    """Return the arrays of a world that a checkpoint holds by their names, "net.inbox", as plain numbers.

    Those of rows have two dimensions, int64[rows, words].
    """
    arrays = {each.name: each.of(world) for each in saved_arrays()}
    return {name: in_rows(flat(array), array.dtype) for name, array in arrays.items()}


def in_rows(numbers: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Return plain numbers of rows of a class, `kind`, as int64[rows, words]; others as they are."""
    return (
        numbers.reshape(-1, kind.itemsize // WORD_BYTES) if kind.names and numbers.itemsize == WORD_BYTES else numbers
    )


def with_saved(world: s.World, arrays: Mapping[str, np.ndarray]) -> s.World:
    """Return a world that was just built with the arrays of `saved_words`; rows are set in place.

    Args:
        world: World that was just built (`World`).
        arrays: Saved arrays by name.
    """
    replaced = {}
    for each in saved_arrays():
        value = each.of(world)
        saved, numbers = arrays[each.name], flat(value)
        if not isinstance(value, np.record) and len(saved) != len(numbers):
            # a pool that has grown: saved arrays are flat words, others rows
            value = zeros(len(saved) * saved.itemsize // value.itemsize, np.asarray(value).view(np.ndarray).dtype)
            numbers, replaced[each.name] = flat(value), value
        numbers[:] = saved
    grown: s.World = with_arrays(world, replaced)
    return grown


def as_world(template: s.World, arrays: Mapping[str, np.ndarray]) -> s.World:
    """Return a world as `template` with the arrays of `saved_words`, of another world, in memory of their own.

    Args:
        template: World that has the types of the arrays.
        arrays: Saved arrays by name.
    """
    replaced = {}
    for each in saved_arrays():
        value = each.of(template)
        is_row = isinstance(value, np.record)
        kind = np.asarray(value.base if is_row else value).view(np.ndarray).dtype
        array = arrays[each.name].view(kind)
        rows = array.view(np.recarray) if kind.names else array
        # a single row is saved as an array of one
        replaced[each.name] = rows[0] if is_row else rows
    world: s.World = with_arrays(template, replaced)
    return world


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
