"""Records and machine instructions for kernels; `decorators` has their equivalents in plain Python."""

import operator
import time
from typing import get_type_hints

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin, lower_getattr, lower_getattr_generic
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import intrinsic, register_model
from numba.np.numpy_support import from_dtype

from nadi.compiling import ENTRY_WORDS

# Records: NamedTuples of arrays in compiled code, represented by the address of a directory of the arrays' locations.
#
# Numba would pass a NamedTuple of a hundred arrays by value, seven hundred words per call, which takes tens of
# microseconds and most of the compile time. Here a record is one address, a field another, and an array's own address
# is loaded where an element is used. The loads are marked invariant, so that LLVM executes them once: a directory
# changes only between two calls of a kernel. Plain Python uses the NamedTuple itself.


class ItemsType(types.Type):
    """An array, represented by the address of its entry."""

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(f"Items({dtype})")


class RecordType(types.Type):
    """A NamedTuple whose fields are arrays (Annotated with their dtype or kind of row), a row or NamedTuples.

    It is represented by the address of its first entry.
    """

    def __init__(self, record):
        self.fields = {}  # by name: index of the field's first entry in the record, and the field's type
        self.entries = 0  # number of entries of the record
        # include_extras: the dtype of an array is in its Annotated
        hints = get_type_hints(record, include_extras=True)
        for name in record._fields:
            hint = hints[name]
            if hasattr(hint, "__metadata__"):
                # a row alone is a field by itself, an array an entry with address and length
                items = from_dtype(np.dtype(hint.__metadata__[0]))
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
    """The data model of an entry's address."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.IntType(64).as_pointer())


@infer_getattr
class _RecordAttributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, record, name):
        """Return Numba's type of field `name` of a record type; None if it has no such field."""
        if name in record.fields:
            return record.fields[name][1]
        return None


@lower_getattr_generic(RecordType)
def _lower_field(context, builder, record, record_address, name):
    """Emit a read of field `name` of the record at an address: its row, or the address of its array or record."""
    entry, kind = record.fields[name]
    # ENTRY_WORDS x entry: entries have two words, address and length
    place = builder.gep(record_address, [ir.Constant(ir.IntType(64), ENTRY_WORDS * entry)])
    if isinstance(kind, types.Record):
        return builder.inttoptr(_load_invariant(builder, place), context.get_value_type(kind))
    return place


@infer_getattr
class _ItemsAttributes(AttributeTemplate):
    key = ItemsType

    def resolve_shape(self, _items):
        """Return the type of `items.shape`: one size.

        Args:
            _items: The type of `items`, which makes no difference.
        """
        return types.UniTuple(types.intp, 1)


def _load_invariant(builder, pointer):
    """Load a word that LLVM may assume never changes."""
    word = builder.load(pointer)
    # an empty metadata node: LLVM then keeps the word in a register across stores that it cannot tell apart from it
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


@lower_getattr(ItemsType, "shape")
def _lower_shape(context, builder, _kind, value):
    # the second word of an entry
    # GEP counts in words of the entry, as its pointer type is i64
    length = _load_invariant(builder, builder.gep(value, [ir.Constant(ir.IntType(64), 1)]))
    return context.make_tuple(builder, types.UniTuple(types.intp, 1), [length])


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args, _kws):
        """Return the signature of `items[index]`, types in `args`; None unless `items` is an ItemsType.

        Args:
            args: The types of `items`, the index and, in an assignment, the value.
            _kws: Keyword arguments, which an index never has.
        """
        items, index = args
        if isinstance(items, ItemsType) and isinstance(index, types.Integer):
            return signature(items.dtype, items, types.intp)
        return None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args, _kws):
        """Return the signature of `items[index] = value`, types in `args`; None unless `items` is an ItemsType.

        Args:
            args: The types of `items`, the index and, in an assignment, the value.
            _kws: Keyword arguments, which an index never has.
        """
        items, index, value = args
        if isinstance(items, ItemsType) and isinstance(index, types.Integer):
            if not self.context.can_convert(value, items.dtype):
                return None
            return signature(types.none, items, types.intp, items.dtype)
        return None


def item_pointer(context, builder, sig, args, checked=True):
    """Return the LLVM pointer to an item of a record's or NumPy's array; `args` begin with the array and the index.

    `context`, `builder` and `sig` (the types of `args`) are Numba's. NUMBA_BOUNDSCHECK=1 also checks the index in a
    record's array if `checked`.
    """
    kind = sig.args[0]
    if isinstance(kind, ItemsType):
        data_type = context.get_data_type(kind.dtype).as_pointer()
        data = builder.inttoptr(_load_invariant(builder, args[0]), data_type)
        if checked and numba.config.BOUNDSCHECK:
            length = _load_invariant(builder, builder.gep(args[0], [ir.Constant(ir.IntType(64), 1)]))
            # unsigned: a negative index is a very large one, so one comparison checks both bounds
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
    """Return the number of trailing zero bits of an int64, with the machine's instruction.

    Args:
        _x: The int64 to examine, which is not 0.
    """

    def codegen(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


@intrinsic
def leading_zeros(_typing_context, _x):
    """Return the number of leading zero bits of an int64, with the machine's instruction.

    Args:
        _x: The int64 to examine, which is not 0.
    """

    def codegen(_context, builder, _signature, args):
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


CACHE_LINE = 64  # bytes of a cache line on x86-64 and most Arm processors


@intrinsic
def prefetch(_typing_context, array, _index, _line):
    """Prefetch cache line `_line` (counted from the item's start) of item `_index` of an array.

    Args:
        array: The type of the array.
        _index: The number of the item.
        _line: The number of the cache line, counted from the start of the item.
    """

    def codegen(context, builder, signature, args):
        i32, i64, pointer = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
        # checked=False: a prefetch beyond the array does nothing, so its index need not be in range
        row = builder.ptrtoint(item_pointer(context, builder, signature, args, checked=False), i64)
        line = builder.inttoptr(builder.add(row, builder.mul(args[2], i64(CACHE_LINE))), pointer)
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # arguments of llvm.prefetch: address, 0 = for reading, 3 = keep in all caches, 1 = data
        builder.call(function, [line, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@intrinsic
def clear_row(_typing_context, array, _index):
    """Set all bytes of row `_index` of an array to zero.

    Args:
        array: The type of the array of rows.
        _index: The number of the row.
    """

    def codegen(context, builder, signature, args):
        row = item_pointer(context, builder, signature, args)
        cgutils.memset(builder, row, context.get_constant(types.intp, signature.args[0].dtype.size), 0)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def copy_row(_typing_context, into, _at, rows, _index):
    """Copy row `_index` of `rows` to row `_at` of `into`, an array of the same kind.

    Args:
        into: The type of the array that gets the row.
        _at: The number of the row to overwrite.
        rows: The type of the array that has the row.
        _index: The number of the row to copy.
    """

    def codegen(context, builder, signature, args):
        target = item_pointer(context, builder, signature, args)
        # item_pointer takes the array and the index first
        source = item_pointer(context, builder, types.void(rows, types.int64), args[2:])
        cgutils.raw_memcpy(builder, target, source, context.get_constant(types.intp, 1), rows.dtype.size)
        return context.get_dummy_value()

    return types.void(into, types.int64, rows, types.int64), codegen


@intrinsic
def load_unaligned(_typing_context, _address):
    """Return the int64 at an address that need not be a multiple of eight.

    Args:
        _address: The address of the first byte.
    """

    def codegen(_context, builder, _signature, args):
        # align=1: LLVM would otherwise assume a multiple of 8 and may use instructions that need it
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)

    return types.int64(types.int64), codegen


@intrinsic
def store_unaligned(_typing_context, _address, _value):
    """Store an int64 at an address that need not be a multiple of eight.

    Args:
        _address: The address of the first byte.
        _value: The int64 to store.
    """

    def codegen(context, builder, _signature, args):
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def call_hook(_typing_context, _address, *arguments):
    """Call the C function at an address with int64 arguments, and return its int64 result.

    Args:
        _address: The address of the C function.
        arguments: The types of the arguments, all int64.
    """
    count = len(arguments)

    def codegen(_context, builder, _signature, args):
        i64 = ir.IntType(64)
        # the type is made for this call: all hooks take int64 and return int64
        function = builder.inttoptr(args[0], ir.FunctionType(i64, [i64] * count).as_pointer())
        return builder.call(function, cgutils.unpack_tuple(builder, args[1], count))

    return types.int64(types.int64, types.StarArgTuple((types.int64,) * count)), codegen


@intrinsic
def load_acquire(_typing_context, array, _index):
    """Load int64 `_index` of an array atomically; later reads see what the thread that released it wrote before.

    Args:
        array: The type of the array of int64.
        _index: The number of the item.
    """

    def codegen(context, builder, signature, args):
        # on x86-64 a plain load, on Arm ldar; it keeps later reads behind it, in the compiler as well as in the
        # processor
        return builder.load_atomic(item_pointer(context, builder, signature, args), "acquire", 8)

    return types.int64(array, types.int64), codegen


@intrinsic
def store_release(_typing_context, array, _index, _value):
    """Store a value as int64 `_index` of an array atomically, after all earlier writes of this thread.

    Args:
        array: The type of the array of int64.
        _index: The number of the item.
        _value: The int64 to store.
    """

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[2], item_pointer(context, builder, signature, args), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@intrinsic
def fetch_add(_typing_context, array, _index, _value):
    """Add a value to int64 `_index` of an array atomically, and return the previous value.

    Args:
        array: The type of the array of int64.
        _index: The number of the item.
        _value: The int64 to add.
    """

    def codegen(context, builder, signature, args):
        # acq_rel: who gets the lower number has also seen what was written before it was taken
        return builder.atomic_rmw("add", item_pointer(context, builder, signature, args), args[2], "acq_rel")

    return types.int64(array, types.int64, types.int64), codegen


@intrinsic
def yield_core(_typing_context):
    """Call POSIX sched_yield, which lets another thread use the core; return its status."""

    def codegen(_context, builder, _signature, _args):
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])

    return types.int32(), codegen


NS_PER_S = 1_000_000_000


@intrinsic
def clock_ns(_typing_context):
    """Return the monotonic clock in nanoseconds, from POSIX clock_gettime, which takes about 20 ns."""

    def codegen(_context, builder, _signature, _args):
        i32, i64 = ir.IntType(32), ir.IntType(64)
        # struct timespec: seconds, and nanoseconds
        timespec = cgutils.alloca_once(builder, i64, size=2)
        kind = ir.FunctionType(i32, [i32, i64.as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(function, [i32(time.CLOCK_MONOTONIC), timespec])
        seconds, nanoseconds = builder.load(timespec), builder.load(builder.gep(timespec, [i64(1)]))
        return builder.add(builder.mul(seconds, i64(NS_PER_S)), nanoseconds)

    return types.int64(), codegen
