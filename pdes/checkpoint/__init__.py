"""Checkpoints: the state of a run, saved where all workers have stopped before the same window, and restored.

This module has what a checkpoint holds: the contract with its owner, the arrays of a world, and Python objects as JSON.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import count, takewhile
from typing import Any, NamedTuple, cast

import numpy as np

from nadi.pdes.construction.layout import LogicalProcess
from nadi.pdes.construction.schedule import TABLES
from nadi.pdes.core import Rows, state as s
from nadi.pdes.core.declared import saved_arrays, with_arrays
from nadi.pdes.core.jit import zeros
from nadi.pdes.core.packet import WORD_BYTES
from nadi.pdes.outcomes import Results
from nadi.pdes.reuse import Collective, Episode, EpisodeRecord, Member, Messages, Records
from nadi.pdes.reuse.open_episodes import DomainState, OpenEpisode, Running
from nadi.pdes.reuse.replay import Replay
from nadi.pdes.workers import NO_SNAPSHOT


class SavedState(NamedTuple):
    """A part of a checkpoint: values of JSON, and flat arrays of numbers by name."""

    values: dict[str, Any]
    arrays: Mapping[str, np.ndarray]


class Checkpoints(ABC):
    """The checkpoints of a run; every process of the run has one."""

    interval_s: float = 0.0  # wall time between two checkpoints, 0 = only on request
    request: int = NO_SNAPSHOT  # pdes.workers: a signal handler of this process sets it
    resumed: SavedState | None = None  # the run's part of the checkpoint from which it continues, None = it begins
    # receives the results so far after each checkpoint, on the processes that get the results; None = nobody does
    publish: Callable[[Results], None] | None = None

    @abstractmethod
    def listen(self) -> None:
        """Let signals to this process set `request`, from the main thread."""

    @abstractmethod
    def write(self, name: str, state: SavedState) -> None:
        """Write a part of the next checkpoint; OSError: the part is not written.

        Args:
            name: Name of the part.
            state: Values and arrays of the part.
        """

    @abstractmethod
    def commit(self, state: SavedState) -> None:
        """Complete the checkpoint, once all processes have written their parts; one process calls this.

        state: the run's part. OSError: there is no new checkpoint, and the one before is the newest.
        """

    @abstractmethod
    def discard(self, reason: str) -> None:
        """Drop the parts of a checkpoint that could not be written; one process calls this.

        Args:
            reason: Why the checkpoint is incomplete, as text for the user.
        """

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether the checkpoint from which the run continues has a part.

        Args:
            name: Name of the part.
        """

    @abstractmethod
    def read(self, name: str) -> SavedState:
        """Return a part of the checkpoint from which the run continues; raises if it is damaged.

        Args:
            name: Name of the part.
        """


# The arrays of a world in a checkpoint: all that a run changes, as they are.


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


def changes_until(world: s.World, time_ps: int) -> tuple[int, int]:
    """Return the number of changes of the schedule up to a time, and the time in ps of the next, INF without one.

    Args:
        world: State of the LP (`World`).
        time_ps: The time in ps.
    """
    const, change = world.net.const, world.schedule.change
    once, again = np.split(change.begin_ps, [int(const.first_repeated)])
    made = int((once <= time_ps).sum())
    if len(once) == made and len(again):
        turns = (time_ps - again) // int(const.circuits_period_ps) + 1
        made += int(np.maximum(turns, 0).sum())
        following = again + np.maximum(turns, 0) * int(const.circuits_period_ps)
        return made, int(following.min())
    return made, int(change.begin_ps[made]) if made < len(change) else s.INF


def load_routes(world: s.World) -> None:
    """Load the routing tables that are in force after the changes of the schedule that were made.

    Args:
        world: State of the LP (`World`).
    """
    schedule, epochs = world.schedule, int(world.net.const.epochs)
    made, rows, first = int(world.net.ctl.fault_at), len(schedule.change), int(world.net.const.first_repeated)
    order = np.arange(min(made, rows))
    if made > rows:
        # those that repeat, ending with the last one that was made
        order = np.roll(np.arange(first, rows), -(made - first))
    done: Rows = schedule.change[order]
    numbers = done.value[done.kind == s.CHANGE_ROUTES]
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


# Nested values as values of JSON beside numbered arrays: for the state that the engine holds in Python objects.


def numbered_arrays(arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays by their numbers, in the names that `array_list` finds."""
    return {f"#{number}": array for number, array in enumerate(arrays)}


def array_list(state: SavedState) -> list[np.ndarray]:
    """Return the arrays of a state that `numbered_arrays` has named."""
    names = takewhile(state.arrays.__contains__, (f"#{number}" for number in count()))
    return [state.arrays[name] for name in names]


def packed(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value as JSON; arrays: list to which its arrays are added, which their numbers then name.

    Values: None, an integer, an array, a NamedTuple, or a list, tuple or dictionary of values.
    """
    if value is None or isinstance(value, int | np.integer):
        return None if value is None else int(value)
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, dict):
        return {"pairs": [[packed(key, arrays), packed(each, arrays)] for key, each in value.items()]}
    kind = type(value).__name__ if hasattr(value, "_fields") else "list" if isinstance(value, list) else "tuple"
    return {kind: [packed(each, arrays) for each in value]}


def unpacked(document: Any, arrays: Sequence[np.ndarray], kinds: Sequence[type]) -> Any:
    """Return the value of a document of `packed`.

    Args:
        document: The value as JSON; arrays are named by their index in `arrays`.
        arrays: Arrays to which the document refers.
        kinds: Classes of NamedTuples that may be in the value.
    """
    if not isinstance(document, dict):
        return document
    ((kind, content),) = document.items()
    if kind == "array":
        return arrays[content].copy()
    if kind == "pairs":
        return {unpacked(key, arrays, kinds): unpacked(each, arrays, kinds) for key, each in content}
    values = [unpacked(each, arrays, kinds) for each in content]
    if kind == "list":
        return values
    return tuple(values) if kind == "tuple" else next(each for each in kinds if each.__name__ == kind)(*values)


# What exact reuse (pdes/reuse) holds in Python, as values of a checkpoint: records, and NVLink domains of an LP.

KINDS = (Episode, Collective, Member, EpisodeRecord, Messages)
COUNTS = (
    "simulated",
    "replayed",
    "disturbed",
    "simulated_hops",
    "replayed_hops",
    "replayed_messages",
    "repeated_periods",
    "repeated_hops",
    "near_periods",
    "near_ps",
    "near_error_ps",
)
TIMES = ("begin_ps", "busy_until_ps")  # of OpenEpisode
RUNNING = [each.name for each in fields(Running) if each.name != "group"]


def records_packed(records: Records, arrays: list[np.ndarray]) -> Any:
    """Return the records of a process and its counts as JSON, with their arrays in `arrays` (`packed`)."""
    counts = {name: getattr(records, name) for name in COUNTS}
    return {"counts": counts, "records": packed(dict(records.kept()), arrays)}


def load_records(records: Records, document: Any, arrays: Sequence[np.ndarray], *, counts: bool, kept: bool) -> None:
    """Add to the records of a process those of a saved one, if `kept`, and its counts, if `counts`.

    Args:
        records: Records of memoised collectives of this process, which the function changes.
        document: The saved value as JSON; arrays are named by their index in `arrays`.
        arrays: Saved arrays to which the document refers.
        counts: Whether to add the saved counts.
        kept: Whether to add the saved records.
    """
    if kept:
        records.keep(unpacked(document["records"], arrays, KINDS).items())
    for name in COUNTS if counts else ():
        setattr(records, name, getattr(records, name) + document["counts"][name])


def domains_packed(lp: LogicalProcess, arrays: list[np.ndarray]) -> Any:
    """Return the collectives under way in an LP's domains as JSON and `arrays`; None without replayed domains.

    Args:
        lp: The logical process.
        arrays: List to which the function appends the arrays of the document.
    """
    replay = cast("Replay | None", lp.replay)
    return None if replay is None else [_domain_packed(state, arrays) for state in replay.domains]


def _domain_packed(state: DomainState, arrays: list[np.ndarray]) -> Any:
    def collectives(several: Iterable[Running]) -> Any:
        return [[one.group.number, *(packed(getattr(one, name), arrays) for name in RUNNING)] for one in several]

    return [
        {
            "running": collectives(episode.running),
            "partial": collectives(episode.partial),
            "record": packed(episode.record, arrays),
            **{name: int(getattr(episode, name)) for name in TIMES},
        }
        for episode in state.episodes
    ]


def load_domains(lp: LogicalProcess, document: Any, arrays: Sequence[np.ndarray]) -> None:
    """Restore the collectives under way in an LP's domains.

    Args:
        lp: The logical process.
        document: The saved value as JSON; arrays are named by their index in `arrays`.
        arrays: Saved arrays to which the document refers.
    """
    replay = cast("Replay | None", lp.replay)
    if replay is None or document is None:
        return
    for state, saved in zip(replay.domains, document, strict=True):
        load_domain(state, saved, arrays)


def load_domain(state: DomainState, saved: Any, arrays: Sequence[np.ndarray]) -> None:
    """Restore the collectives under way in a domain.

    Args:
        state: State of the domain, which the function changes.
        saved: Collectives under way in the domain as JSON.
        arrays: Saved arrays to which the document refers.
    """
    groups = {group.number: group for group in state.groups}
    state.episodes = []
    for one in saved:
        running, partial = (
            [
                Running(groups[number], *(unpacked(each, arrays, KINDS) for each in values))
                for number, *values in one[name]
            ]
            for name in ("running", "partial")
        )
        record = unpacked(one["record"], arrays, KINDS)
        state.episodes.append(OpenEpisode(running, partial, one["begin_ps"], one["busy_until_ps"], record))
