"""Machine instructions for kernels; `decorators` has their equivalents in plain Python."""

import time

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from nadi.compiling.records import item_pointer


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
