"""Names of node attributes, and conversion of their values from the types that writers use.

Chakra leaves names and types to convention, and writers differ in the integer type. Every integer type is therefore
accepted, and so is a floating-point number without a fraction, as in ASTRA-sim's reader. A string is an error.
"""

from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import Message
from numpy.typing import DTypeLike

ALL_NPUS = ""  # name of the group of all NPUs; traces also write "0"

_MIN32, _MAX32, _MAX64 = -(2**31), 2**31 - 1, 2**63 - 1
_MAX_DIMENSIONS = 31  # bits of an int32 without its sign
_FLOATS = ("double_val", "float_val")
_NOT_NUMBERS = ("string_val", "bytes_val")


class AttributeColumn(NamedTuple):
    """A column of TraceTable for an integer attribute."""

    kind: str  # type in files that Nadi writes, as ASTRA-sim's reader and Chakra's feeder expect it
    dtype: DTypeLike  # NumPy type of the column
    absent: int  # value for nodes that lack the attribute
    minimum: int  # smallest value allowed
    maximum: int  # largest value allowed


INTEGERS = {
    "is_cpu_op": AttributeColumn("bool", np.bool_, 0, -_MAX64, _MAX64),
    "num_ops": AttributeColumn("int64", np.int64, -1, 0, _MAX64),
    "tensor_size": AttributeColumn("uint64", np.int64, -1, 0, _MAX64),
    "tensor_loc": AttributeColumn("int32", np.int8, 0, -128, 127),
    # Only collectives use comm_type, so et.columns checks its range after it knows the type of each node.
    "comm_type": AttributeColumn("int64", np.int64, -1, -_MAX64, _MAX64),
    "comm_size": AttributeColumn("int64", np.int64, -1, 0, _MAX64),
    "comm_src": AttributeColumn("int32", np.int32, -1, 0, _MAX32),
    "comm_dst": AttributeColumn("int32", np.int32, -1, 0, _MAX32),
    "comm_tag": AttributeColumn("int32", np.int32, -1, 0, _MAX32),
    "comm_priority": AttributeColumn("int32", np.int32, 0, _MIN32, _MAX32),
}
KINDS = {name: column.kind for name, column in INTEGERS.items()} | {
    "pg_name": "string",
    "operators": "string",
    "involved_dim": "bool_list",
    "in_split_size": "int64_list",
    "out_split_size": "int64_list",
    "ranks": "int32_list",
}  # types of all attributes that Nadi writes
# NumPy type and absent value of the columns of TraceTable with a number per node
COLUMNS: dict[str, tuple[DTypeLike, int]] = {
    "type": (np.int8, 0),
    "duration_micros": (np.int64, 0),
    **{name: (column.dtype, column.absent) for name, column in INTEGERS.items()},
    "comm_type": (np.int8, -1),
}


def integer(attribute: Message) -> int:
    """Return the value of an attribute of INTEGERS. Raises ValueError: it is no integer, or out of range.

    Args:
        attribute: The attribute, an AttributeProto.
    """
    kind, value = _value(attribute)
    if kind in _NOT_NUMBERS or kind.endswith("_list") or (kind in _FLOATS and not value.is_integer()):
        raise ValueError(f"attribute {attribute.name} is {_kind_and_value(kind, value)}, expected an integer")
    column = INTEGERS[attribute.name]
    if not column.minimum <= value <= column.maximum:
        expected = f"an integer from {column.minimum} to {column.maximum}"
        raise ValueError(f"attribute {attribute.name} is {int(value)}, expected {expected}")
    return int(value)


def group_name(attribute: Message) -> str:
    """Return the communicator name in a pg_name attribute; "0" becomes "" (all NPUs).

    Args:
        attribute: The attribute, an AttributeProto.
    """
    value = text(attribute)
    return ALL_NPUS if value == "0" else value


def text(attribute: Message) -> str:
    """Return the value of a string attribute, such as `operators`. Raises ValueError: the value is not a string.

    Args:
        attribute: The attribute, an AttributeProto.
    """
    kind, value = _value(attribute)
    if kind != "string_val":
        raise ValueError(f"attribute {attribute.name} is {_kind_and_value(kind, value)}, expected a string")
    return str(value)


def dimension_bits(attribute: Message) -> int:
    """Return involved_dim, up to 31 booleans or integers, as a bit set; [] gives -1 (all). Raises ValueError: others.

    Args:
        attribute: The attribute, an AttributeProto.
    """
    kind, value = _value(attribute)
    if not kind.endswith("_list") or kind in {"string_list", "bytes_list", "double_list", "float_list"}:
        raise ValueError(f"attribute {attribute.name} is {_kind_and_value(kind, value)}, expected a list of booleans")
    if len(value.values) > _MAX_DIMENSIONS:
        raise ValueError(f"attribute {attribute.name} has {len(value.values)} values, expected at most 31")
    # An empty list means all dimensions, which -1 has all bits of
    return sum(1 << d for d, is_involved in enumerate(value.values) if is_involved) if value.values else -1


def split_sizes(attribute: Message) -> tuple[int, ...]:
    """Return the numbers of in_split_size or out_split_size, one per member; () means that the collective is even.

    PyTorch writes them as text, "[3, 1]", and truncates long lists. Anything else, or a negative number, raises
    ValueError.

    Args:
        attribute: The attribute, an AttributeProto.
    """
    kind, value = _value(attribute)
    if kind == "string_val":
        numbers = value.strip()[1:-1].split(",") if value.strip()[1:-1].strip() else []
        if value.strip()[:1] + value.strip()[-1:] != "[]" or not all(n.strip().isdecimal() for n in numbers):
            found = _kind_and_value(kind, value)
            raise ValueError(f"attribute {attribute.name} is {found}, expected a list of integers from 0")
        sizes = tuple(map(int, numbers))
    else:
        sizes = integer_list(attribute)
    if sizes and not 0 <= min(sizes) <= max(sizes) <= _MAX64:
        wrong = min(sizes) if min(sizes) < 0 else max(sizes)
        raise ValueError(f"attribute {attribute.name} has {wrong}, expected integers from 0 to {_MAX64}")
    return sizes


def integer_list(attribute: Message) -> tuple[int, ...]:
    """Return the integers of a list attribute, such as `ranks` of a METADATA node. Raises ValueError: another kind.

    Args:
        attribute: The attribute, an AttributeProto.
    """
    kind, value = _value(attribute)
    if not kind.endswith("_list") or not all(isinstance(v, int) for v in value.values):
        raise ValueError(f"attribute {attribute.name} is {_kind_and_value(kind, value)}, expected a list of integers")
    return tuple(int(v) for v in value.values)


def _value(attribute: Message) -> tuple[str, Any]:
    """Return the kind of an attribute's value, such as "int64_val", and the value; raise ValueError without one."""
    kind = attribute.WhichOneof("value")
    if kind is None:
        raise ValueError(f"attribute {attribute.name} has no value, expected one")
    return kind, getattr(attribute, kind)


def _kind_and_value(kind: str, value: object) -> str:
    """Return an attribute's kind and value as one short line for a message."""
    text = kind if kind.endswith("_list") else f"{kind} {value!r}"
    return text if len(text) < 80 else f"{text[:80]}..."
