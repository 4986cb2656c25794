"""Object code of compiled kernels: stored in the cache folder, linked by LLVM, and called as C functions.

Numba compiles a kernel to an ELF object with a C function for it. A cache file consists of the name of that function, a
line feed, and the object. Unlike in Numba's own cache, nothing is pickled. Numba itself, which takes 0.15 s to import,
is imported only for objects that call functions of its runtime, as one with `math.ldexp` does.
"""

import ctypes
import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding as llvm

from nadi.compiling.kernel_cache import CODE_SUFFIX, KernelFolder, code_name

_INT64 = np.dtype(np.int64)
_NAME_OF_NUMBA = re.compile(rb"\0_?numba_")  # in the table of an object's names, each of which ends with a zero


def keep(folder: KernelFolder, function: Callable[..., Any], parameters: str, symbol: str, code: bytes) -> None:
    """Write a compiled function to the cache: `symbol`, its name in C, and `code`, the bytes of its ELF object.

    Args:
        folder: The folder of compiled kernels.
        function: The Python function.
        parameters: A letter for the type of each parameter, as for `c_function`.
        symbol: The name of the compiled function in C.
        code: The bytes of its ELF object.
    """
    folder.write(_file_name(function, parameters), symbol.encode() + b"\n" + code)


def load(folder: KernelFolder, function: Callable[..., Any], parameters: str) -> int | None:
    """Link a function of the cache, with types as c_function takes them; return its address, None if it is absent.

    Args:
        folder: The folder of compiled kernels.
        function: The Python function.
        parameters: A letter for the type of each parameter, as for `c_function`.
    """
    content = folder.read(_file_name(function, parameters))
    if content is None:
        return None
    # the name ends at the first line feed, which no C name has
    symbol, _, code = content.partition(b"\n")
    if _NAME_OF_NUMBA.search(code):
        _register_runtime()
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    # 0: the object does not have the function
    return engine.get_function_address(symbol.decode()) or None


def c_function(address: int, parameters: str) -> Callable[..., int]:
    """Return a Python function that calls a kernel's C function with integers and int64 arrays.

    The entry of an array holds its address and its length, as in the directory of a record (`compiling.primitives`).
    The function returns the kernel's result, or 0 for kernels without result.

    Args:
        address: The address of the compiled function.
        parameters: A letter for each parameter: "i" for an int64, "a" for the entry of an array.
    """
    types = [ctypes.c_int64 if parameter == "i" else ctypes.c_void_p for parameter in parameters]
    # ctypes releases the interpreter's lock during the call, so that threads run kernels side by side
    kernel = ctypes.CFUNCTYPE(ctypes.c_int64, *types)(address)

    def call(*arguments: Any) -> int:
        """Call the machine code, and return its result.

        Args:
            *arguments: int64 values, and arrays of them.
        """
        return int(kernel(*(_entry(each) if isinstance(each, np.ndarray) else int(each) for each in arguments)))

    return call


def _entry(array: np.ndarray) -> Any:
    """Return the entry of an int64 array in a record, for C: the array's address and its length."""
    if array.dtype != _INT64 or array.ndim != 1 or not array.flags.carray:
        raise TypeError(f"{array.dtype} array of shape {array.shape}: expected a contiguous, writable row of int64")
    # the same two words as in a directory (ENTRY_WORDS), so that kernels read both alike
    return (ctypes.c_int64 * 2)(array.ctypes.data, len(array))


def _file_name(function: Callable[..., Any], parameters: str) -> str:
    return f"{code_name(function)}-{parameters}-{_processor()}{CODE_SUFFIX}"


@functools.cache
def _processor() -> str:
    """Return a hash of this processor, for which Numba compiles."""
    # host features, too: a cluster's nodes may share the cache, and code with AVX-512 would crash on those without
    text = f"{llvm.get_default_triple()} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _register_runtime() -> None:
    """Have Numba tell LLVM the addresses of its runtime's functions."""
    from numba.core.registry import cpu_target  # noqa: PLC0415 - see above

    _ = cpu_target.target_context  # is made when it is first asked for, and registers them


@functools.cache
def _engine() -> Any:
    """Return LLVM's linker."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
