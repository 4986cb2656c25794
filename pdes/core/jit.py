"""How the engine's kernels are written: the decorators of `compiling.decorators`, and records of the engine's state."""

import functools
from collections.abc import Iterator
from typing import Any, get_type_hints

import numpy as np

from nadi.compiling import ENTRY_WORDS
from nadi.compiling.decorators import (
    Intrinsic,
    call_hook,
    clear_row,
    clock_ns,
    compile_for,
    copy_row,
    fetch_add,
    hook,
    hook_address,
    inline,
    jit_enabled,
    kernel,
    leading_zeros,
    load_acquire,
    load_unaligned,
    outline,
    prefetch,
    store_release,
    store_unaligned,
    trailing_zeros,
    yield_core,
)
from nadi.pdes.core.errors import MemoryDamageError
from nadi.pdes.core.memory import address_of, damage, has_guards
from nadi.pdes.core.rows.row import Row

# Records: NamedTuples of arrays as compiled code sees them, by the address of a directory of where the arrays lie
# (`compiling.primitives`). Plain Python sees the NamedTuple itself.


@functools.cache
def _dtypes(kind: Any) -> tuple[np.dtype[Any] | None, ...]:
    """Return the declared dtype of each field of a NamedTuple; None for a field that is a NamedTuple itself."""
    hints = get_type_hints(kind, include_extras=True)
    declared = [getattr(hints[name], "__metadata__", None) for name in kind._fields]
    return tuple(None if kinds is None else np.dtype(kinds[0]) for kinds in declared)


def _fields(record: Any) -> Iterator[tuple[str, np.dtype[Any], Any]]:
    """Yield name, declared dtype and value of all fields of a nested NamedTuple in order: arrays or single rows."""
    for name, dtype, field in zip(record._fields, _dtypes(record.__class__), record, strict=True):
        if dtype is None:
            yield from _fields(field)
        else:
            yield name, dtype, field


class Directory:
    """The addresses of a NamedTuple's arrays, so that a kernel takes one address in place of a hundred arrays."""

    def __init__(self, record: Any, owner: str = "") -> None:
        """Lay the directory out for the arrays of a NamedTuple; `owner` names their owner in errors."""
        self._owner = owner or type(record).__name__
        self._known: list[Any] = [None for _ in _fields(record)]
        self._addresses, self._has_guards = [0] * len(self._known), [False] * len(self._known)
        self._entries = np.zeros((len(self._known), ENTRY_WORDS), np.int64)
        self.update(record)

    @property
    def address(self) -> int:
        """The address that `reader` kernels take."""
        return self._entries.ctypes.data

    def update(self, record: Any) -> None:
        """Replace the arrays by those of another NamedTuple of that type, after a check of the old arrays' guards.

        Args:
            record: NamedTuple of arrays.
        """
        for i, (name, dtype, field) in enumerate(_fields(record)):
            if field is self._known[i]:
                continue  # like most fields, when a pool has grown
            self._check(i, name)
            array: Any = field.base if isinstance(field, np.record) else field
            if isinstance(array, np.recarray):
                array = array.view(np.ndarray)  # attribute access is faster than on a recarray
            # a kernel would read another type's bits as its own: there is no check behind this one
            if array.dtype != dtype or not array.flags.c_contiguous:
                raise TypeError(f"{name}: found {array.dtype}, expected a contiguous array of {dtype}")
            self._addresses[i] = address_of(array)
            self._has_guards[i] = has_guards(array, self._addresses[i])
            self._entries[i] = self._addresses[i], len(array)
            self._known[i] = field
        self._record = record
        if not jit_enabled():
            # plain Python has no pointers: the address is only the key of the record
            _BY_ADDRESS[self.address] = record

    def check_guards(self) -> None:
        """Raise MemoryDamageError, which names the array, if a kernel wrote past an end of any array."""
        for i, (name, _, _) in enumerate(_fields(self._record)):
            self._check(i, name)

    def _check(self, field_number: int, name: str) -> None:
        """Raise MemoryDamageError if a kernel wrote past an end of array number `field_number`, called `name`."""
        found = self._has_guards[field_number] and damage(self._addresses[field_number])
        if found:
            raise MemoryDamageError(
                f"{self._owner}: memory of array {name} was overwritten {found}; this is a defect of the engine"
            )


_BY_ADDRESS: dict[int, tuple] = {}


def reader(record: type) -> Any:
    """Return a kernel function from the address of a Directory to its record of this NamedTuple class."""
    return Intrinsic("type_of_reader", record) if jit_enabled() else lambda address: _BY_ADDRESS[int(address)]


def seen_as(row: type[Row]) -> Any:
    """Return a kernel function that views an array of rows as rows of the kind `row`, which has the same length."""
    if jit_enabled():
        return Intrinsic("type_of_row_view", row)
    return lambda rows: rows.view(np.ndarray).view(row.dtype).view(np.recarray)
