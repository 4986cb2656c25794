"""The one place that knows Numba: the decorators, and a cache that an edit anywhere in the kernel empties.

`kernel` compiles an entry point, `inline` a helper that is merged into its callers, `outline` one that is called:
what is done per packet is inline; what is done per message or trace row is not, since its state is passed by value
(some tens of nanoseconds) and compiling it once per caller costs seconds. All switch reference counting off
(`_nrt=False`): with it on, a NamedTuple of many arrays passed through calls costs twenty times the work it does, and
an allocation inside a kernel would go unnoticed; with it off an allocation is a compile error.

A cached kernel does not notice an edit in another file, so the cache folder is named by a hash of all kernel sources
and of the options that change code. `NADI_CACHE_DIR` moves it (a node-local folder on a cluster).
`NUMBA_DISABLE_JIT=1` runs the same source as plain Python.
"""

import hashlib
import os
import tempfile
from pathlib import Path

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler import Compiler
from numba.extending import intrinsic
from numba.np import arrayobj


class _PlainIndices(Compiler):
    """Numba's compiler, but an index is used as it stands.

    Kernels never use negative indices (tests/pdes/test_house_rules.py), so the code that would turn -1 into the last
    element is left out: 15 % of the speed. LLVM's vectorisers, which find nothing here, are off: a fifth of the
    compile time. Only what is compiled in here is affected.
    """

    def compile_extra(self, func):
        usual = arrayobj.fix_integer_index, numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE
        arrayobj.fix_integer_index, numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE = _plain_index, 0, 0
        try:
            return super().compile_extra(func)
        finally:
            arrayobj.fix_integer_index, numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE = usual


def _plain_index(context, builder, index_type, index, _size):
    """Stands in for numba.np.arrayobj.fix_integer_index."""
    return context.cast(builder, index, index_type, types.intp)


@intrinsic
def _count_trailing_zeros(_typing_context, _x):
    """The machine's instruction."""

    def codegen(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


@intrinsic
def _prefetch(_typing_context, array, _index):
    """The machine's instruction."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False, "pipeline_class": _PlainIndices}
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def source_hash() -> str:
    """Hash of every kernel source and of what else decides the machine code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    for name in ("NUMBA_BOUNDSCHECK", "NUMBA_OPT", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        digest.update(f"{name}={os.environ.get(name, '')}".encode())
    digest.update(numba.__version__.encode())
    return digest.hexdigest()[:16]


def cache_dir() -> Path:
    """Folder of compiled kernels for these sources."""
    base = os.environ.get("NADI_CACHE_DIR")
    if base is None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "nadi"
    folder = Path(base) / source_hash()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"nadi-{os.getuid()}" / source_hash()
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_warm() -> bool:
    """Whether the main kernel for these sources lies in the cache."""
    return any(cache_dir().rglob("*run_serial*.nbi"))


def jit_enabled() -> bool:
    """False under NUMBA_DISABLE_JIT=1."""
    return not numba.config.DISABLE_JIT


numba.config.CACHE_DIR = str(cache_dir())

kernel = numba.njit(cache=True, no_cfunc_wrapper=True, **_OPTIONS)
inline = numba.njit(forceinline=True, **_OPTIONS, **_INNER)
outline = numba.njit(**_OPTIONS, **_INNER)


def compile_for(compiled, *arguments):
    """Compile a kernel, or load it from the cache, for arguments like these."""
    if jit_enabled():
        compiled.compile(tuple(numba.typeof(a) for a in arguments))


if jit_enabled():

    @inline
    def trailing_zeros(x):
        """Number of the lowest bit that is set in x > 0."""
        return _count_trailing_zeros(x)

    @inline
    def prefetch(array, index):
        """Ask for the cache line of an item before it is needed."""
        _prefetch(array, index)

else:

    def trailing_zeros(x):
        """Number of the lowest bit that is set in x > 0."""
        return (int(x) & -int(x)).bit_length() - 1

    def prefetch(array, index):
        """Ask for the cache line of an item before it is needed."""
