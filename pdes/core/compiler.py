"""The one place that knows Numba: options, records, primitives, and a cache of what it has compiled.

It is imported when something has to be compiled (`jit`), as it takes a quarter of a second. All switch reference
counting off (`_nrt=False`): with it on, an allocation inside a kernel would go unnoticed; with it off it is a compile
error. State is passed as records (`pdes.core.jit.reader`).
"""

import contextlib
import operator
import pickle
from pathlib import Path
from typing import get_type_hints

import numba
import numpy as np
from llvmlite import ir
from numba.core import caching, cgutils, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin, lower_getattr, lower_getattr_generic
from numba.core.registry import cpu_target
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import intrinsic, register_model
from numba.np import arrayobj
from numba.np.numpy_support import from_dtype

from pdes.core import kernel_cache
from pdes.core.jit import ENTRY_WORDS, cache_dir
from pdes.core.rows.row import dtype_of


class _NoEnvironment:
    """Takes the place of a code generator where only a function's environment would be set."""

    def set_env(self, _name, _environment):
        """Nothing to do."""


class _Ingredient(JITCodeLibrary):
    """Code of a function that is linked into others and never run by itself, so it is not made machine code."""

    codegen = _NoEnvironment()

    def get_pointer_to_function(self, _name):
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self):
        """It is optimised where it is used."""

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _PlainIndices(Compiler):
    """Numba's compiler, but an index is used as it stands, and what others link in is made machine code only there.

    Kernels never use negative indices (tests/pdes/test_house_rules.py), so the code that would turn -1 into the last
    element is left out: 15 % of the speed. LLVM's vectorisers, which find nothing here, are off: a fifth of the
    compile time. Only what is compiled in here is affected.
    """

    def compile_extra(self, func):
        usual = arrayobj.fix_integer_index, numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE
        arrayobj.fix_integer_index, numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE = _plain_index, 0, 0
        flags = self.state.flags
        if flags.no_cpython_wrapper and flags.no_cfunc_wrapper:
            self.state.library = _Ingredient(self.state.targetctx.codegen(), func.__qualname__)
        try:
            return super().compile_extra(func)
        finally:
            arrayobj.fix_integer_index, numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE = usual


def _plain_index(context, builder, index_type, index, _size):
    """Stands in for numba.np.arrayobj.fix_integer_index."""
    return context.cast(builder, index, index_type, types.intp)


# Records: NamedTuples of arrays as compiled code sees them, by the address of a directory of where the arrays lie.
#
# Numba would pass a NamedTuple of a hundred arrays by value, seven hundred words a call: tens of microseconds, and most
# of the time to compile. Here a record is one address, a field of it another, and an array's own address is loaded
# where an element is used. The loads are marked invariant, so that LLVM does them once: a directory changes only
# between two calls of a kernel. Plain Python sees the NamedTuple itself.


class ItemsType(types.Type):
    """An array, by the address of its entry."""

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(f"Items({dtype})")


class RecordType(types.Type):
    """A NamedTuple whose fields are arrays (Annotated with their dtype or kind of row), one row or such NamedTuples.

    It is the address of its first entry.

    Attributes:
        fields: by name, the entry where the field begins, from the record's first, and its type.
        entries: how many entries the record has.
    """

    def __init__(self, record):
        self.fields = {}
        self.entries = 0
        hints = get_type_hints(record, include_extras=True)
        for name in record._fields:
            hint = hints[name]
            if hasattr(hint, "__metadata__"):
                items = from_dtype(dtype_of(hint.__metadata__[0]))
                kind, entries = items if hint.__origin__ is np.record else ItemsType(items), 1
            else:
                kind = RecordType(hint)
                entries = kind.entries
            self.fields[name] = self.entries, kind
            self.entries += entries
        super().__init__(f"{record.__module__}.{record.__qualname__}")


@register_model(ItemsType)
@register_model(RecordType)
class _EntryModel(models.PrimitiveModel):
    """The address of an entry."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.IntType(64).as_pointer())


@infer_getattr
class _RecordAttributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, record, name):
        if name in record.fields:
            return record.fields[name][1]
        return None


@lower_getattr_generic(RecordType)
def _lower_field(context, builder, record, value, name):
    entry, kind = record.fields[name]
    place = builder.gep(value, [ir.Constant(ir.IntType(64), ENTRY_WORDS * entry)])
    if isinstance(kind, types.Record):
        return builder.inttoptr(_load_invariant(builder, place), context.get_value_type(kind))
    return place


@infer_getattr
class _ItemsAttributes(AttributeTemplate):
    key = ItemsType

    def resolve_shape(self, _items):
        return types.UniTuple(types.intp, 1)


def _load_invariant(builder, pointer):
    word = builder.load(pointer)
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


@lower_getattr(ItemsType, "shape")
def _lower_shape(context, builder, _kind, value):
    length = _load_invariant(builder, builder.gep(value, [ir.Constant(ir.IntType(64), 1)]))
    return context.make_tuple(builder, types.UniTuple(types.intp, 1), [length])


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args, _kws):
        items, index = args
        if isinstance(items, ItemsType) and isinstance(index, types.Integer):
            return signature(items.dtype, items, types.intp)
        return None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args, _kws):
        items, index, value = args
        if isinstance(items, ItemsType) and isinstance(index, types.Integer):
            if not self.context.can_convert(value, items.dtype):
                return None
            return signature(types.none, items, types.intp, items.dtype)
        return None


def item_pointer(context, builder, sig, args, checked=True):
    """LLVM pointer to the item of an array, a record's or NumPy's: `args` begin with the array and the index.

    NUMBA_BOUNDSCHECK=1 has a record's arrays checked too, unless the item is only asked for early.
    """
    kind = sig.args[0]
    if isinstance(kind, ItemsType):
        data_type = context.get_data_type(kind.dtype).as_pointer()
        data = builder.inttoptr(_load_invariant(builder, args[0]), data_type)
        if checked and numba.config.BOUNDSCHECK:
            length = _load_invariant(builder, builder.gep(args[0], [ir.Constant(ir.IntType(64), 1)]))
            with builder.if_then(builder.icmp_unsigned(">=", args[1], length), likely=False):
                context.call_conv.return_user_exc(builder, IndexError, (f"{kind}: index out of bounds",))
    else:
        data = context.make_array(kind)(context, builder, args[0]).data
    return builder.gep(data, [args[1]])


@lower_builtin(operator.getitem, ItemsType, types.Integer)
def _lower_getitem(context, builder, sig, args):
    return context.unpack_value(builder, sig.args[0].dtype, item_pointer(context, builder, sig, args))


@lower_builtin(operator.setitem, ItemsType, types.Integer, types.Any)
def _lower_setitem(context, builder, sig, args):
    context.pack_value(builder, sig.args[0].dtype, args[2], item_pointer(context, builder, sig, args))
    return context.get_dummy_value()


@intrinsic
def trailing_zeros(_typing_context, _x):
    """The machine's instruction."""

    def codegen(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


@intrinsic
def leading_zeros(_typing_context, _x):
    """The machine's instruction."""

    def codegen(_context, builder, _signature, args):
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


def _prefetch(builder, pointer):
    i32 = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [pointer, i32(0), i32(3), i32(1)])


@intrinsic
def prefetch(_typing_context, array, _index):
    """The machine's instruction."""

    def codegen(context, builder, signature, args):
        row = item_pointer(context, builder, signature, args, checked=False)
        _prefetch(builder, builder.bitcast(row, ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


CACHE_LINE = 64


@intrinsic
def prefetch_line(_typing_context, array, _index, _line):
    """The machine's instruction."""

    def codegen(context, builder, signature, args):
        row = item_pointer(context, builder, signature, args, checked=False)
        at = builder.add(
            builder.ptrtoint(row, ir.IntType(64)), builder.mul(args[2], ir.Constant(ir.IntType(64), CACHE_LINE))
        )
        _prefetch(builder, builder.inttoptr(at, ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@intrinsic
def clear_row(_typing_context, array, _index):
    """Zeros in place of a row."""

    def codegen(context, builder, signature, args):
        row = item_pointer(context, builder, signature, args)
        cgutils.memset(builder, row, context.get_constant(types.intp, signature.args[0].dtype.size), 0)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def copy_row(_typing_context, into, _at, rows, _index):
    """A copy of a row of another array of the same kind."""

    def codegen(context, builder, signature, args):
        target = item_pointer(context, builder, signature, args)
        source = item_pointer(context, builder, types.void(rows, types.int64), args[2:])
        cgutils.raw_memcpy(builder, target, source, context.get_constant(types.intp, 1), rows.dtype.size)
        return context.get_dummy_value()

    return types.void(into, types.int64, rows, types.int64), codegen


@intrinsic
def peek(_typing_context, _address):
    """The word at an address."""

    def codegen(_context, builder, _signature, args):
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), codegen


@intrinsic
def call_hook(_typing_context, _address, *arguments):
    """A call by address of a C function of some int64 that gives one."""
    count = len(arguments)

    def codegen(_context, builder, _signature, args):
        i64 = ir.IntType(64)
        function = builder.inttoptr(args[0], ir.FunctionType(i64, [i64] * count).as_pointer())
        return builder.call(function, cgutils.unpack_tuple(builder, args[1], count))

    return types.int64(types.int64, types.StarArgTuple((types.int64,) * count)), codegen


@intrinsic
def load_acquire(_typing_context, array, _index):
    """An atomic load: what others wrote before they released the word is seen after it."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(item_pointer(context, builder, signature, args), "acquire", 8)

    return types.int64(array, types.int64), codegen


@intrinsic
def store_release(_typing_context, array, _index, _value):
    """An atomic store, after all that was written before."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[2], item_pointer(context, builder, signature, args), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@intrinsic
def fetch_add(_typing_context, array, _index, _value):
    """An atomic addition that gives the value before."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("add", item_pointer(context, builder, signature, args), args[2], "acq_rel")

    return types.int64(array, types.int64, types.int64), codegen


@intrinsic
def yield_core(_typing_context):
    """POSIX sched_yield."""

    def codegen(_context, builder, _signature, _args):
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])

    return types.int32(), codegen


_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False, "pipeline_class": _PlainIndices}
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_DECORATORS = {
    "kernel": numba.njit(cache=True, no_cfunc_wrapper=True, **_OPTIONS),
    "inline": numba.njit(forceinline=True, **_OPTIONS, **_INNER),
    "outline": numba.njit(**_OPTIONS, **_INNER),
    "hook": numba.njit(cache=True, no_cpython_wrapper=True, **_OPTIONS),
}
numba.config.CACHE_DIR = str(cache_dir())


class _CheckedFiles(caching.IndexDataCacheFile):
    """Numba's files of one function, but sealed: a corrupt one is thrown away, and what cannot be kept is no failure.

    Data carry their key: of two processes that compile at once, one may have written the index and the other the data.
    """

    def __init__(self, files):
        self.__dict__.update(files.__dict__)
        self.code = None

    def load(self, key):
        found = super().load(key)
        if found is None or found[0] != key:
            return None
        self.code = _machine_code(found[1])
        return found[1]

    def save(self, key, data):
        self.code = _machine_code(data)
        try:
            super().save(key, (key, data))
        except OSError as error:
            kernel_cache.FAILURES.append(f"{error.filename or self._cache_path}: {error.strerror}")

    def _load_index(self):
        content = self._opened(self._index_path)
        stamp, overloads = (None, {}) if content is None else pickle.loads(content)  # noqa: S301 - ours: kernel_cache
        return overloads if stamp == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads):
        self._save(self._index_path, ((self._version, self._source_stamp), overloads))

    def _load_data(self, name):
        content = self._opened(self._data_path(name))
        return None if content is None else pickle.loads(content)  # noqa: S301 - ours: kernel_cache

    def _save_data(self, name, data):
        self._save(self._data_path(name), data)

    def _opened(self, path):
        try:
            data = Path(path).read_bytes()
        except OSError:
            return None
        content = kernel_cache.opened(data)
        if content is None:
            with contextlib.suppress(OSError):
                Path(path).unlink()
        return content

    def _save(self, path, value):
        with self._open_for_write(path) as file:
            file.write(kernel_cache.sealed(self._dump(value)))


def _machine_code(reduced):
    """The ELF object in what Numba keeps of a compiled function; None if it keeps something else."""
    _name, kind, data = reduced[0]
    return data[0] if kind == "object" else None


def dispatcher(function, how):
    """Numba's compiler of one function; how: "kernel", "inline", "outline" or "hook"; what it compiles is kept."""
    compiled = _DECORATORS[how](function)
    if how in {"kernel", "hook"}:
        compiled._cache._cache_file = _CheckedFiles(compiled._cache._cache_file)  # noqa: SLF001 - no other way in
    return compiled


def compiled_kernel(made, arguments):
    """Compile a kernel, or load it, for arguments like these: symbol, type of its result, and machine code or None."""
    signature_of = tuple(numba.typeof(a) for a in arguments)
    made.compile(signature_of)
    found = made.overloads[signature_of]
    return found.fndesc.llvm_func_name, str(found.signature.return_type), _code(made)


def compiled_hook(made):
    """Compile a hook, or load it: its address, symbol and machine code or None."""
    arguments = (types.int64,) * made.py_func.__code__.co_argcount
    made.compile(arguments)
    found = made.overloads[arguments]
    symbol = found.fndesc.llvm_cfunc_wrapper_name
    return found.library.get_pointer_to_function(symbol), symbol, _code(made)


def _code(made):
    return made._cache._cache_file.code  # noqa: SLF001 - it is ours


def type_of_primitive(name):
    """Numba's type of one of the intrinsics here."""
    return _type_of(globals()[name])


def type_of_reader(record):
    """Numba's type of a function from an address to a record."""
    kind = RecordType(record)

    @intrinsic
    def record_at(_typing_context, _address):
        def codegen(_context, builder, _signature, args):
            return builder.inttoptr(args[0], ir.IntType(64).as_pointer())

        return kind(types.int64), codegen

    return _type_of(record_at)


def type_of_seer(row):
    """Numba's type of a function from an array of rows to the same memory as rows of another kind."""
    kind = ItemsType(from_dtype(row.dtype))

    @intrinsic
    def seen(_typing_context, rows):
        if not isinstance(rows, ItemsType) or rows.dtype.size != kind.dtype.size:
            raise TypeError(f"{rows} as rows of {row.__name__}: expected rows as long as those")

        def codegen(_context, _builder, _signature, args):
            return args[0]

        return kind(rows), codegen

    return _type_of(seen)


def _type_of(primitive):
    context = cpu_target.typing_context
    context.refresh()
    return context.resolve_value_type(primitive)
