"""Guard bytes around every array that kernels write, which reveal any write past an end.

`pdes.core.memory` and `pdes.workers.mailbox` take arrays from larger pieces of memory and let `between_guards` put
guards around each. `pdes.core.jit.Directory`, which gives arrays to kernels, calls `damage_of` for each of them at the
end of a run and before an array is replaced by a longer one. The guard on either side is at least as long as one item,
so that a write to the row before the first or behind the last one hits it.

The last two words of the guard before an array hold the length of a guard and of the array, in bytes.
"""

import ctypes
import struct
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

_BYTE = b"\xa5"  # every byte of a guard, apart from the two lengths
# bits that are inverted in stored lengths, so that a small number written over one is an impossible length
_MASK = int.from_bytes(_BYTE * 7, "big")
_LENGTHS = struct.Struct("=qq")  # the two lengths

# address of a guarded array -> the memory that contains it, while that exists
_memory_of: WeakValueDictionary[int, NDArray[np.uint8]] = WeakValueDictionary()


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
    lengths = _LENGTHS.pack(guard_bytes ^ _MASK, size_bytes ^ _MASK)
    view[:guard_bytes] = _BYTE * (guard_bytes - _LENGTHS.size) + lengths
    view[end : end + guard_bytes] = _BYTE * guard_bytes
    owner = memory.base if isinstance(memory.base, np.ndarray) else memory
    _memory_of[address_of(memory) + guard_bytes] = owner
    return memory[guard_bytes:end]


def damage(address: int) -> str:
    """Return a description of overwritten guards of the array at an address; "" without damage or without guards."""
    memory = _memory_of.get(address)
    if memory is None:
        return ""
    view, begin = memory.view(np.uint8).data, address - address_of(memory)
    # the lengths were written inverted: a 0 that a kernel writes over one reads as an impossible length
    header = begin - _LENGTHS.size
    guard_bytes, size_bytes = (word ^ _MASK for word in _LENGTHS.unpack_from(view, header))
    end = begin + size_bytes
    # lengths that cannot be right were overwritten themselves, so nothing else of the guard can be located
    is_possible = _LENGTHS.size <= guard_bytes <= begin and size_bytes >= 0 and end + guard_bytes <= len(view)
    if not is_possible or _overwritten(view[begin - guard_bytes : header]) is not None:
        return "before its beginning"
    behind = _overwritten(view[end : end + guard_bytes])
    return "" if behind is None else f"{behind} bytes behind its end ({size_bytes} bytes long)"


def damage_of(array: NDArray[Any], address: int) -> str:
    """Return a description of overwritten guards of an array at an address; "" without damage or without guards."""
    # The operating system may give an array without guards the address of one whose shared memory has been unmapped, so
    # an entry only counts for arrays of the same memory.
    memory = _memory_of.get(address)
    return "" if memory is None or _root(memory) is not _root(array) else damage(address)


def _root(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _overwritten(guard: memoryview) -> int | None:
    """Return the offset in bytes of the first overwritten byte of a guard; None if it is intact."""
    rest = guard.tobytes().lstrip(_BYTE)
    return len(guard) - len(rest) if rest else None


def address_of(array: NDArray[Any]) -> int:
    """Return the address of the first byte of an array."""
    if array.size and array.flags.writeable:  # `array.ctypes.data` takes four times as long, and runs have many arrays
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return int(array.ctypes.data)
