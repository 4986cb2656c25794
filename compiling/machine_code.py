"""Kernels that were compiled before, as machine code that is loaded without Numba.

Numba takes half a second to start, most of what a small run takes. It is needed to compile only: what it made for a
kernel is an ELF object that calls nothing of Numba's. So the object is kept behind a line of JSON, and LLVM alone links
it in; Numba's own cache, which pickles, is not used. It is the same code, so a run gives the same answer. Whatever does
not fit (another processor, arguments of other types, symbols that nobody here has) is left to Numba, which compiles it
in each process.

A kernel is a function `status(result*, error*, arguments...)` there, an array seven arguments (numba.core.callconv
and numba.core.datamodel). That is Numba's own affair, so it counts for the versions KNOWN only, whose sources were
looked at; with any other one Numba does all. The hash that names the folder has Numba's version in it.
"""

import ctypes
import functools
import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any

import numpy as np
from llvmlite import binding as llvm

from compiling.kernel_cache import CODE_SUFFIX, KernelFolder, code_name
from compiling.kernel_sources import are_hashed

KNOWN = ((0, 61), (0, 68))
"""First and last version of Numba that calls kernels so."""
INTEGER, HOOK = "i", "hook"
_INTEGER_ARRAY = np.dtype(np.int64)
_OK, _NONE = 0, -2
"""Statuses of a function that has returned something, or nothing."""
_ELF_64_LITTLE = b"\x7fELF\x02\x01"
_SYMBOL_TABLE = 2
_SECTION, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
_NOT_CALLED = (
    "numba_adapt_ndarray",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_runtime_build_excinfo_struct",
    "numba_unpickle",
)
"""What Numba's wrappers call to take arguments from Python, or to raise: that of kernels is not used, hooks raise
nothing."""


class FailedKernelError(RuntimeError):
    """A kernel has ended as only one with a defect does."""


def kinds(arguments: Iterable[object]) -> str | None:
    """Types of arguments in one word, "ia" for an integer and an array of int64; None if there are others."""
    found = [_kind(argument) for argument in arguments]
    return None if None in found else "".join(str(one) for one in found)


def _kind(argument: object) -> str | None:
    if type(argument) in (int, np.int64):
        return INTEGER
    if type(argument) is np.ndarray and argument.dtype == _INTEGER_ARRAY and argument.ndim == 1:
        return "a" if argument.flags.c_contiguous and argument.flags.writeable and argument.flags.aligned else None
    return None


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether code of a function may be kept: its folder's name stands for some sources only."""
    return are_hashed(function.__module__) and not os.environ.get("NUMBA_BOUNDSCHECK") and is_known()


@functools.cache
def is_known() -> bool:
    """Whether the Numba that is installed calls kernels as `_entry` does."""
    found = re.match(r"(\d+)\.(\d+)", metadata.version("numba"))
    return found is not None and KNOWN[0] <= (int(found[1]), int(found[2])) <= KNOWN[1]


def keep(
    folder: KernelFolder, function: Callable[..., Any], kind: str, symbol: str, gives: str, code: bytes | None
) -> None:
    """Keep machine code that Numba has made.

    Args:
        folder: Folder of compiled kernels.
        function: The Python function.
        kind: HOOK, or `kinds` of the function's arguments.
        symbol: Name of the function in the code.
        gives: Type of the function's result, "int64" or "none".
        code: Bytes of an ELF object; None where the code cannot be used by another process.
    """
    needs = None if code is None else _undefined(code)
    if code is not None and needs is not None and gives in {"int64", "none"}:
        about = {"symbol": symbol, "gives": gives, "needs": needs}
        folder.write(_file_name(function, kind), json.dumps(about).encode() + b"\n" + code)


def load(folder: KernelFolder, function: Callable[..., Any], kind: str) -> Any:
    """What `keep` kept: of a hook its address, of a kernel what calls it; None if there is nothing."""
    content = folder.read(_file_name(function, kind))
    if content is None:
        return None
    line, _, code = content.partition(b"\n")
    try:
        about = json.loads(line)
        symbol, needs, gives = about["symbol"], about["needs"], about["gives"]
    except (ValueError, KeyError, TypeError):
        return None
    address = _linked(code, symbol, needs) if code.startswith(_ELF_64_LITTLE) else None
    if address is None or kind == HOOK:
        return address
    return _entry(address, kind, function, has_result=gives != "none")


def _file_name(function: Callable[..., Any], kind: str) -> str:
    return f"{code_name(function)}-{kind}-{_machine()}{CODE_SUFFIX}"


@functools.cache
def _machine() -> str:
    """The processor that code is for, in one word."""
    features = llvm.get_host_cpu_features().flatten()
    text = f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {features}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@functools.cache
def _engine() -> Any:
    """LLVM's linker."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name in _NOT_CALLED:
        if llvm.address_of_symbol(name) is None:
            llvm.add_symbol(name, ctypes.cast(_nothing, ctypes.c_void_p).value)
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _nothing(_state: object) -> None:
    """Stands for what is never called."""


def _linked(code: bytes, symbol: str, needs: Sequence[str]) -> int | None:
    """Address of a function once its code is in memory; None where something that it calls is not."""
    engine = _engine()
    if any(llvm.address_of_symbol(name) is None for name in needs):
        return None
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine.get_function_address(symbol) or None


def _entry(address: int, kind: str, function: Callable[..., Any], *, has_result: bool) -> Callable[..., int | None]:
    """A Python function that calls machine code."""
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    types: dict[str, list[Any]] = {INTEGER: [word], "a": [pointer, pointer, word, word, pointer, word, word]}
    called = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, *(t for one in kind for t in types[one]))(address)

    def call(*arguments: Any) -> int | None:
        result, error = word(), pointer()
        flat = []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                length = len(argument)
                flat += [None, None, length, 8, argument.ctypes.data, length, 8]
            else:
                flat.append(int(argument))
        status = called(ctypes.byref(result), ctypes.byref(error), *flat)
        if status not in {_OK, _NONE}:
            raise FailedKernelError(f"{function.__module__}.{function.__qualname__} ended with status {status}")
        return result.value if has_result else None

    return call


def _undefined(code: bytes) -> list[str] | None:
    """Symbols that an ELF object takes from elsewhere; None where it is no such object."""
    if not code.startswith(_ELF_64_LITTLE):
        return None
    (sections,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    rows = [_SECTION.unpack_from(code, sections + i * size) for i in range(count)]
    names = set()
    for _, kind, _, _, offset, length, link, *_ in rows:
        if kind == _SYMBOL_TABLE:
            texts = rows[link][4]
            for name, _, _, section, _, _ in _SYMBOL.iter_unpack(code[offset : offset + length]):
                if section == 0 and name:
                    names.add(code[texts + name : code.index(b"\0", texts + name)].decode())
    return sorted(names)
