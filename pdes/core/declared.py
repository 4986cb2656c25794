"""What the arrays of a world declare in `pdes.core.state`, by names such as "net.tx".

Code that walks over a world follows these declarations: checkpoints, moving to other LPs, growth of pools, and moving
forward in time. So an array, or a word of a row, is declared in one place.
"""

import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints

from nadi.pdes.core import state as s
from nadi.pdes.core.memory import never_used, rows_of, zeros
from nadi.pdes.core.rows.row import ALONE, BUILT, EMPTY, OWN_WAY, REMADE, Each, Row, RowsOf, WordKind


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
