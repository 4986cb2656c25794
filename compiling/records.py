"""Records: NamedTuples of arrays in compiled code, represented by the address of a directory of the arrays' locations.

Numba would pass a NamedTuple of a hundred arrays by value, seven hundred words per call, which takes tens of
microseconds and most of the compile time. Here a record is one address, a field another, and an array's own address is
loaded where an element is used. The loads are marked invariant, so that LLVM executes them once: a directory changes
only between two calls of a kernel. Plain Python uses the NamedTuple itself.
"""

import operator
from typing import get_type_hints

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin, lower_getattr, lower_getattr_generic
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import register_model
from numba.np.numpy_support import from_dtype

from nadi.compiling import ENTRY_WORDS


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
