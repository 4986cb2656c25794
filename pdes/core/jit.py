"""How the engine's kernels are written, and the memory that they work on.

Kernels have the decorators of `compiling.decorators`. They see records of the engine's state through a directory of
where its arrays lie. The arrays' memory has cache lines, large pages, and guard bytes that reveal writes past an end.
"""

import ctypes
import functools
import mmap
import re
import resource
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints
from weakref import ref

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

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
from nadi.pdes.core import MemoryDamageError, Record, Rows
from nadi.pdes.core.rows import Row

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


# The memory of arrays that kernels write: cache lines, large pages, and guard bytes that reveal writes past an end.

# Guard bytes around every array that kernels write, which reveal any write past an end.
#
# `zeros` and `pdes.workers` take arrays from larger pieces of memory and let `between_guards` put
# guards around each. `pdes.core.jit.Directory`, which gives arrays to kernels, calls `damage` for each of them at the
# end of a run and before an array is replaced by a longer one. The guard on either side is at least as long as one
# item, so that a write to the row before the first or behind the last one hits it.

_BYTE = b"\xa5"  # every byte of a guard

_guarded: dict[int, tuple["ref[NDArray[np.uint8]]", int, int]] = {}
"""Memory that has a guarded array, bytes of each guard and of the array, by its address, while that memory exists."""
_arrays_in: dict[int, tuple["ref[NDArray[np.uint8]]", list[int]]] = {}
"""Memory with guarded arrays, and their addresses, by the memory's `id`."""


def between_guards(
    memory: NDArray[np.uint8], size_bytes: int, guard_bytes: int, address: int | None = None
) -> NDArray[np.uint8]:
    """Write guards into memory, and return the bytes between them.

    Args:
        memory: Bytes that are used for nothing else, enough for both guards.
        size_bytes: Number of bytes between the guards; the guards of an empty array are never checked.
        guard_bytes: Size in bytes of each guard.
        address: Address of the memory; None = it is asked for.
    """
    # Both guards have guard_bytes; what is left of the memory behind the second one is not checked. Nor are the guards
    # of an empty array, since NumPy does not define its address, by which they are found.
    view, end = memory.data, guard_bytes + size_bytes
    view[:guard_bytes] = view[end : end + guard_bytes] = _guard(guard_bytes)
    owner = memory.base if isinstance(memory.base, np.ndarray) else memory
    address = (address_of(memory) if address is None else address) + guard_bytes
    memory_of, addresses = _arrays_in.get(id(owner)) or _new_memory(owner)
    _guarded[address] = memory_of, guard_bytes, size_bytes
    addresses.append(address)
    return memory[guard_bytes:end]


def _new_memory(owner: NDArray[np.uint8]) -> tuple["ref[NDArray[np.uint8]]", list[int]]:
    """Return the entry in `_arrays_in` of memory that has no guarded arrays yet; it goes with the memory."""
    number = id(owner)

    def forget(gone: "ref[NDArray[np.uint8]]") -> None:
        """Drop the arrays of memory that is gone.

        Args:
            gone: Reference to the memory.
        """
        for address in _arrays_in.pop(number)[1]:
            # the operating system may have given the address to other memory since
            if address in _guarded and _guarded[address][0] is gone:
                del _guarded[address]

    # two threads may take arrays from new memory at the same time: both get the entry of the first
    return _arrays_in.setdefault(number, (ref(owner, forget), []))


@lru_cache(maxsize=1024)  # rows have few lengths
def _guard(length_bytes: int) -> bytes:
    """Return a guard of a length in bytes."""
    return _BYTE * length_bytes


def damage(address: int) -> str:
    """Return a description of overwritten guards of the array at an address; "" without damage or without guards."""
    if _memory_at(address) is None:
        return ""
    _, guard_bytes, size_bytes = _guarded[address]
    guard = _guard(guard_bytes)
    if ctypes.string_at(address - guard_bytes, guard_bytes) != guard:
        return "before its beginning"
    behind = ctypes.string_at(address + size_bytes, guard_bytes)
    if behind == guard:
        return ""
    return f"{guard_bytes - len(behind.lstrip(_BYTE))} bytes behind its end ({size_bytes} bytes long)"


def has_guards(array: NDArray[Any], address: int) -> bool:
    """Return whether an array that begins at an address has guards."""
    # The operating system may give an array without guards the address of one whose shared memory has been unmapped, so
    # an entry only counts for arrays of the same memory.
    memory = _memory_at(address)
    return memory is not None and _root(memory) is _root(array)


def _memory_at(address: int) -> NDArray[np.uint8] | None:
    """Return the memory that contains the guarded array at an address; None if there is no such array."""
    found = _guarded.get(address)
    return None if found is None else found[0]()


def _root(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def address_of(array: NDArray[Any]) -> int:
    """Return the address of the first byte of an array."""
    if array.size and array.flags.writeable:  # `array.ctypes.data` takes four times as long, and runs have many arrays
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return int(array.ctypes.data)


# Arrays that begin on a cache line, so that a row of eight words occupies one line, and the memory in use.
#
# Arrays are packed into large areas of 2 MiB pages: with small pages, a window would touch more pages than the TLB of
# a core holds. Guards separate the arrays.

CACHE_LINE = 64  # bytes of a cache line
HUGE_PAGE = 2 << 20  # bytes of a large page on x86-64 and AArch64 Linux
AREA = 16 * HUGE_PAGE  # bytes of an area for small arrays; from a quarter of it on, an array has an area of its own


def _area(size_bytes: int) -> NDArray[np.uint8]:
    """Return uint8[size_bytes], zeroed, that begin on a large page."""
    # one large page more than asked for, since mmap aligns to small pages; untouched pages take no memory
    memory = mmap.mmap(-1, size_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # a hint: where transparent large pages are off, small ones are used, and only speed differs
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    skip = -raw.ctypes.data % HUGE_PAGE
    return raw[skip : skip + size_bytes]


_taking = threading.Lock()  # lock around `_Small`: pools of several threads may grow at the same time


class _Small:
    """The area from which small arrays are taken, one after another, its address, and the bytes taken so far."""

    area, address, taken_bytes = np.zeros(0, np.uint8), 0, 0


def zeros(length: int, dtype: DTypeLike = np.int64) -> Any:
    """Return a zeroed array of `length` items (at least one) whose first byte is on a cache line.

    Args:
        length: Number of items; an array of 0 gets one.
        dtype: Type of the items.
    """
    kind = np.dtype(dtype)
    # a guard is as long as an item, in whole lines: a write to row -1 or row n then hits it, however long rows are
    size, guard = max(1, int(length)) * kind.itemsize, _whole_lines(kind.itemsize)
    room = _whole_lines(size) + 2 * guard
    # a large array has memory of its own, so that little of an area is left unused
    if room >= AREA // 4:
        memory, address = _area(room), None
    else:
        with _taking:
            if _Small.taken_bytes + room > len(_Small.area):
                _Small.area, _Small.taken_bytes = _area(AREA), 0
                _Small.address = address_of(_Small.area)
            begin = _Small.taken_bytes
            _Small.taken_bytes = end = begin + room
            memory, address = _Small.area[begin:end], _Small.address + begin
    array = between_guards(memory, size, guard, address).view(kind)
    return array.view(np.recarray) if kind.names else array


def _whole_lines(size_bytes: int) -> int:
    return -(-size_bytes // CACHE_LINE) * CACHE_LINE


def rows_of(kind: type[Row], length: int, **columns: ArrayLike) -> Rows:
    """Return an array of rows with initial words.

    Args:
        kind: Class of the rows.
        length: Number of rows; an array of 0 gets one.
        **columns: Initial values of words that differ from the declared ones, by name of the word.
    """
    rows = zeros(length, kind.dtype)
    for name, begins in _beginnings(kind):  # type: ignore[arg-type] # rows have no hash, their classes do
        rows[name] = begins
    for name, column in columns.items():
        rows[name][:length] = column
    return rows


@functools.cache
def _beginnings(kind: type[Row]) -> tuple[tuple[str, int], ...]:
    """Return names and initial values of the words of a row that do not begin as 0."""
    return tuple((name, declared.begins) for name, declared in kind.declared.items() if declared.begins)


def row_of(kind: type[Row], **words: ArrayLike) -> Record:
    """Return one row with initial words.

    Args:
        kind: Class of the row.
        **words: Initial values of words that differ from the declared ones, by name.
    """
    return rows_of(kind, 1, **words)[0]


def words_of(row: Record) -> NDArray[np.int64]:
    """Return the words of a row of `row_of` as int64[words], in the row's own memory."""
    # `row` is a scalar view of a one-row array: its base is that array
    words: NDArray[np.int64] = np.asarray(row.base).view(np.int64)
    return words


def unused(record: Any, /, **used: Any) -> Any:
    """Return a NamedTuple class (pdes/core/state.py) filled with one-item arrays, for features that are not used.

    Args:
        record: Class of the NamedTuple.
        **used: Fields that are used, by name.
    """

    def single_item(declared: Any) -> Any:
        """Return a zeroed item or array of one, as a field of `kind` is annotated.

        Args:
            declared: Annotation of the field.
        """
        if not hasattr(declared, "__metadata__"):
            return unused(declared)  # a record within the record
        kind = declared.__metadata__[0]
        items = rows_of(kind, 1) if issubclass(kind, Row) else zeros(1, kind)
        return items[0] if declared.__origin__ is np.record else items

    rest = {name: single_item(declared) for name, declared in record.__annotations__.items() if name not in used}
    return record(**used, **rest)


@functools.cache
def never_used(record: Any) -> Any:
    """Return the `unused` record that all worlds of this process share: nobody writes to it.

    Args:
        record: Class of the NamedTuple.
    """
    return unused(record)


def full(length: int, value: int, dtype: type[np.generic] = np.int64) -> Any:
    """Return an array of `length` items (at least one) on a cache line, each set to `value`.

    Args:
        length: Number of items; an array of 0 gets one.
        value: Value of all items.
        dtype: Type of the items.
    """
    array = zeros(length, dtype)
    array[:] = value
    return array


def aligned(values: ArrayLike, dtype: DTypeLike | None = None) -> Any:
    """Return a flat copy of `values` that begins on a cache line, of type `dtype` (None: that of `values`)."""
    values = np.asarray(values, dtype).reshape(-1)
    array = zeros(len(values), values.dtype)
    array[: len(values)] = values
    return array


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count the process that started this one
        match = re.search(r"VmHWM:\s*(\d+)", status.read_text())
        if match:
            return int(match[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes, but bytes on macOS
