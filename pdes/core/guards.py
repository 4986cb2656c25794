"""Guard bytes around every array that kernels write, which reveal any write past an end.

`pdes.core.memory` and `pdes.workers.mailbox` take arrays from larger pieces of memory and let `between_guards` put
guards around each. `pdes.core.jit.Directory`, which gives arrays to kernels, calls `damage` for each of them at the
end of a run and before an array is replaced by a longer one. The guard on either side is at least as long as one item,
so that a write to the row before the first or behind the last one hits it.

The last two words of the guard before an array hold the length of a guard and of the array, in bytes.
"""

import ctypes
import struct
from functools import lru_cache
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

_BYTE = b"\xa5"  # every byte of a guard, apart from the two lengths
# bits that are inverted in stored lengths, so that a small number written over one is an impossible length
_MASK = int.from_bytes(_BYTE * 7, "big")
_LENGTHS = struct.Struct("=qq")  # the two lengths

_memory_of: dict[int, "ref[NDArray[np.uint8]]"] = {}
"""Memory that contains a guarded array, by the array's address, while that memory exists."""
_arrays_in: dict[int, tuple["ref[NDArray[np.uint8]]", list[int]]] = {}
"""Memory with guarded arrays, and their addresses, by the memory's `id`."""


def between_guards(memory: NDArray[np.uint8], size_bytes: int, guard_bytes: int) -> NDArray[np.uint8]:
    """Write guards into memory, and return the bytes between them.

    Args:
        memory: Bytes that are used for nothing else, enough for both guards.
        size_bytes: Number of bytes between the guards; the guards of an empty array are never checked.
        guard_bytes: Size in bytes of the guard before, at least 16.
    """
    # Both guards have guard_bytes; what is left of the memory behind the second one is not checked. Nor are the guards
    # of an empty array, since NumPy does not define its address, by which they are found.
    view, end = memory.data, guard_bytes + size_bytes
    view[:guard_bytes] = _guard_before(guard_bytes, size_bytes)
    view[end : end + guard_bytes] = _guard(guard_bytes)
    owner = memory.base if isinstance(memory.base, np.ndarray) else memory
    address = address_of(memory) + guard_bytes
    _memory_of[address], addresses = _arrays_in.get(id(owner)) or _new_memory(owner)
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
            if _memory_of.get(address) is gone:
                del _memory_of[address]

    # two threads may take arrays from new memory at the same time: both get the entry of the first
    return _arrays_in.setdefault(number, (ref(owner, forget), []))


@lru_cache(maxsize=1024)  # few sizes make up most arrays
def _guard_before(guard_bytes: int, size_bytes: int) -> bytes:
    """Return the guard before an array of a size, with both lengths."""
    return _guard(guard_bytes - _LENGTHS.size) + _LENGTHS.pack(guard_bytes ^ _MASK, size_bytes ^ _MASK)


@lru_cache(maxsize=1024)
def _guard(length_bytes: int) -> bytes:
    """Return a guard without lengths."""
    return _BYTE * length_bytes


def damage(address: int) -> str:
    """Return a description of overwritten guards of the array at an address; "" without damage or without guards."""
    memory = _memory_at(address)
    if memory is None:
        return ""
    header = address - _LENGTHS.size
    guard_word, size_word = _LENGTHS.unpack(ctypes.string_at(header, _LENGTHS.size))
    guard_bytes, size_bytes = guard_word ^ _MASK, size_word ^ _MASK
    first, end = address_of(memory), address + size_bytes
    # lengths that cannot be right were overwritten themselves, so nothing else of the guard can be located
    is_possible = (
        _LENGTHS.size <= guard_bytes <= address - first
        and size_bytes >= 0
        and end + guard_bytes <= first + memory.nbytes
    )
    before_bytes = guard_bytes - _LENGTHS.size
    if not is_possible or ctypes.string_at(address - guard_bytes, before_bytes) != _guard(before_bytes):
        return "before its beginning"
    behind = ctypes.string_at(end, guard_bytes)
    if behind == _guard(guard_bytes):
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
    found = _memory_of.get(address)
    return None if found is None else found()


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
