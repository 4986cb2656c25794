"""Decorators of kernels, and machine instructions for them: the door to what compiles kernels.

`kernel` compiles an entry point, `inline` a helper that is merged into its callers, `outline` one that is called,
`hook` one of integers that is called by its address (`call_hook`), so that only what a run uses is compiled:
what is done per packet is inline; what is done per message or trace row is not, so that each caller does not carry a
copy of it.

Numba is imported when the first kernel is compiled, since commands start faster without it: a decorator gives
an object that stands for the function, and asks `compiling.compiler` for Numba's dispatcher when Numba asks for the
object's type. Kernels that were compiled before are loaded from the cache (`compiling.machine_code`).

The cache folder is named by a hash of all kernel sources and of the options that change code
(`compiling.kernel_cache`). `NADI_CACHE_DIR` moves it (a node-local folder on a cluster). What is loaded from it is
run, so a folder that others can write to is not used (`compiling.kernel_cache`).
`NUMBA_DISABLE_JIT=1` runs the same source as plain Python.
"""

import ctypes
import functools
import importlib
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from nadi.compiling import kernel_cache

Function = TypeVar("Function", bound=Callable[..., Any])


def jit_enabled() -> bool:
    """Return False under NUMBA_DISABLE_JIT=1."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") in {"", "0"}


def _module(name: str) -> Any:
    """Return a module of `compiling` that imports LLVM or Numba, once something has to be loaded or compiled."""
    return importlib.import_module(f"nadi.compiling.{name}")


class _Deferred:
    """A function of kernels that is loaded from the cache or compiled by Numba when it is needed."""

    # A kernel whose code is kept is called as a C function of int64 values and arrays of them; any other one is called
    # by Numba's dispatcher, which takes all types.

    def __init__(self, function: Callable[..., Any], how: str) -> None:
        """Wrap a Python function; how: "kernel", "hook" = called by address, "inline" = merged, "outline"."""
        functools.update_wrapper(self, function)
        self.py_func = function
        self._how = how
        self._addresses: dict[str, int] = {}
        self._ready: dict[str, Callable[..., int]] = {}

    @property
    def is_hook(self) -> bool:
        """Whether the function was decorated as a hook."""
        return self._how == "hook"

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Numba's compiler of the function."""
        use = self._how
        if use in {"kernel", "hook"}:
            use = "c" if use == "hook" or self._is_kept else "python"
        return _module("compiler").dispatcher(self.py_func, use)

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of Numba's dispatcher, for Numba itself; special names are not passed on."""
        # an answer would import Numba, and libraries ask any object for such names
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dispatcher, name)

    def __reduce__(self) -> str:
        return self.__qualname__

    def __call__(self, *arguments: Any) -> Any:
        """Run a kernel; or, as plain Python and for arrays too, a function that is merged into kernels."""
        return (self.py_func if self._how == "inline" else self.ready(arguments))(*arguments)

    @functools.cached_property
    def _is_kept(self) -> bool:
        """Whether the cache may have the function's code."""
        return kernel_cache.is_kept(self.py_func)

    def ready(self, arguments: tuple[Any, ...]) -> Any:
        """Return the callable that runs the kernel with arguments of these types, loaded or compiled at first use."""
        if not self._is_kept:
            return self.dispatcher
        parameters = "".join("a" if isinstance(each, np.ndarray) else "i" for each in arguments)
        if parameters not in self._ready:
            self._ready[parameters] = _module("machine_code").c_function(self._address(parameters), parameters)
        return self._ready[parameters]

    def address(self) -> int:
        """Return the address by which `call_hook` finds a hook."""
        return self._address("i" * self.py_func.__code__.co_argcount)

    def _address(self, parameter_letters: str) -> int:
        """Return the address of the C function, loaded or compiled; a letter per parameter: a = array, i = int64."""
        if parameter_letters not in self._addresses:
            # a kernel that is not kept is compiled in each process
            folder = kernel_cache.settled_folder() if self._is_kept else None
            address = None if folder is None else _module("machine_code").load(folder, self.py_func, parameter_letters)
            if address is None:
                # code without an object: it contains addresses of this process and cannot be stored
                address, symbol, code = _module("compiler").compiled_c_function(self.dispatcher, parameter_letters)
                if folder is not None and code is not None:
                    _module("machine_code").keep(folder, self.py_func, parameter_letters, symbol, code)
            self._addresses[parameter_letters] = address
        return self._addresses[parameter_letters]


class Intrinsic:
    """A function of kernels whose code `compiling.compiler` emits; maker: the function there that returns its type."""

    def __init__(self, maker: str, subject: Any) -> None:
        self._maker, self._subject = maker, subject

    @functools.cached_property
    def _numba_type_(self) -> Any:
        return getattr(_module("compiler"), self._maker)(self._subject)


def _decorator(use: str) -> Callable[[Function], Function]:
    """Return the decorator of functions that are compiled for one use: "kernel", "inline", "outline" or "hook"."""

    def decorate(function: Function) -> Function:
        return cast("Function", _Deferred(function, use)) if jit_enabled() else function

    return decorate


kernel = _decorator("kernel")  # an entry point of compiled code
inline = _decorator("inline")  # merged into the kernels that call it
outline = _decorator("outline")  # compiled, and called by kernels
hook = _decorator("hook")  # of integers, called by kernels at its address


def primitive(function: Function) -> Function:
    """Replace a function by a machine instruction in kernels, by its name in `compiling.primitives`."""
    return cast("Function", Intrinsic("type_of_primitive", function.__name__)) if jit_enabled() else function


def compile_for(kernel_function: Callable[..., Any], *arguments: Any) -> None:
    """Compile a kernel, or load it from the cache, for arguments of the types of `arguments`.

    Args:
        kernel_function: Function with a decorator of this module.
        *arguments: Values, or examples of them, whose types the compiled code takes.
    """
    if isinstance(kernel_function, _Deferred):
        kernel_function.ready(arguments)


_HOOKS_BY_ADDRESS: dict = {}


def hook_address(function: Callable[..., Any]) -> int:
    """Return the address by which `call_hook` calls the hook `function`, compiled or loaded from the cache."""
    if isinstance(function, _Deferred) and function.is_hook:
        return function.address()
    if jit_enabled():
        raise TypeError(f"{function.__qualname__} lacks the decorator @hook")
    _HOOKS_BY_ADDRESS[id(function)] = function
    return id(function)


@primitive
def call_hook(hook, *arguments):
    """Call the hook at the address `hook` with integer arguments, and return its result."""
    return _HOOKS_BY_ADDRESS[int(hook)](*arguments)


@primitive
def load_unaligned(address):
    """Return the int64 word at an arbitrary address."""
    return ctypes.c_int64.from_address(int(address)).value


@primitive
def store_unaligned(address, value):
    """Write the int64 word at an arbitrary address.

    Args:
        address: Address in bytes.
        value: Word to write.
    """
    ctypes.c_int64.from_address(int(address)).value = int(value)


@primitive
def load_acquire(array, index):
    """Return word `index` of an int64 array, which another worker writes with `store_release`."""
    return array[index]


@primitive
def store_release(array, index, value):
    """Write word `index` of an int64 array so that a worker that sees it also sees everything written before.

    Args:
        array: int64 array that several workers read.
        index: Index of the word.
        value: Word to write.
    """
    array[index] = value


@primitive
def fetch_add(array, index, value):
    """Add to word `index` of an array atomically; return its old value (not atomic in plain Python: one worker)."""
    array[index] += value
    return array[index] - value


@primitive
def yield_core():
    """Yield the core to another thread."""
    time.sleep(0)


@primitive
def clock_ns():
    """Return a monotonic clock in nanoseconds."""
    return time.monotonic_ns()


@primitive
def trailing_zeros(x):
    """Return the number of the lowest set bit of x > 0."""
    return (int(x) & -int(x)).bit_length() - 1


@primitive
def leading_zeros(x):
    """Return the number of leading zeros of the 64-bit word x > 0."""
    return 64 - int(x).bit_length()


@primitive
def prefetch(array, index, line):
    """Prefetch the cache line with number `line` of an item.

    Args:
        array: Array of items.
        index: Index of the item.
        line: Number of the cache line within the item.
    """


@primitive
def clear_row(array, index):
    """Set all words of a row to 0.

    Args:
        array: Array of rows.
        index: Number of the row.
    """
    array[index] = np.zeros((), array.dtype)


@primitive
def copy_row(into, at, rows, index):
    """Copy a row from another array of the same kind.

    Args:
        into: Array that is written.
        at: Number of the row there.
        rows: Array of the same kind that is read.
        index: Number of the row in `rows`.
    """
    into[at] = rows[index]
