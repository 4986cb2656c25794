"""The Chakra schema: messages, attributes of nodes and the columns that take them, and construction of nodes.

There is no generated file and no protoc: the table below becomes a FileDescriptorProto in its own pool, so that
Chakra's Python package can be imported at the same time.

Source: mlcommons/chakra, schema/protobuf/et_def.proto.
"""

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from numpy.typing import DTypeLike

PACKAGE = "ChakraProtoMsg"

# fmt: off
VALUE_TYPES = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64",
    "fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)
# fmt: on


class NodeType(enum.IntEnum):
    """Kind of a trace node."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7


class CollectiveCommType(enum.IntEnum):
    """Kind of a collective, the value of the attribute comm_type."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


# message: fields in the order of their numbers, "name type", a star for repeated. AttributeProto's oneof follows below.
_MESSAGES = {
    "AttributeProto": "name string, doc_string string",
    "GlobalMetadata": "version string, attr AttributeProto*",
    "IOInfo": "values string, shapes string, types string",
    "Tensor": "tensor_id uint64, storage_id uint64, offset uint64, num_elem uint64, elem_bytes uint64, device string",
    "Node": "id uint64, name string, type NodeType, ctrl_deps uint64*, data_deps uint64*, start_time_micros uint64, "
    "duration_micros uint64, inputs IOInfo, outputs IOInfo, attr AttributeProto*",
    # Node for the table reader: the same wire format, with names and attributes left undecoded.
    "RawNode": "id uint64, name bytes, type int32, ctrl_deps uint64*, data_deps uint64*, start_time_micros uint64, "
    "duration_micros uint64, inputs IOInfo, outputs IOInfo, attr bytes*",
    # Node for et.reshape, which needs ids and parents only.
    "WireNode": "id uint64, name bytes, type int32, ctrl_deps uint64*, data_deps uint64*, start_time_micros uint64, "
    "duration_micros uint64, inputs bytes, outputs bytes, attr bytes*",
}
_ENUMS = (NodeType, CollectiveCommType)

_Field = descriptor_pb2.FieldDescriptorProto


def _add_field(
    message_descriptor: Message, name: str, number: int, value_type: str, *, repeated: bool = False
) -> Message:
    """Add a field to a protobuf message; its type is a scalar ("int64"), an enum or another message."""
    field = message_descriptor.field.add(name=name, number=number)
    field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    if value_type in VALUE_TYPES:
        field.type = getattr(_Field, f"TYPE_{value_type.upper()}")
    else:
        is_enum = any(value_type == e.__name__ for e in _ENUMS)
        field.type = _Field.TYPE_ENUM if is_enum else _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{value_type}"
    return field


def _file_descriptor() -> Message:
    """Return the protobuf description of Chakra's schema."""
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=PACKAGE, syntax="proto3")
    for members in _ENUMS:
        enum_type = file.enum_type.add(name=members.__name__)
        for member in members:
            enum_type.value.add(name=member.name, number=member.value)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, text in enumerate(fields.split(", "), start=1):
            field, kind = text.split(" ")
            _add_field(message, field, number, kind.rstrip("*"), repeated=kind.endswith("*"))
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
            for i, kind in enumerate(VALUE_TYPES):
                list_name = f"{kind.capitalize()}List"
                _add_field(file.message_type.add(name=list_name), "values", 1, kind, repeated=True)
                _add_field(message, f"{kind}_val", 3 + 2 * i, kind).oneof_index = 0
                _add_field(message, f"{kind}_list", 4 + 2 * i, list_name).oneof_index = 0
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file_descriptor())


def _message(name: str) -> type[Message]:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


AttributeProto, GlobalMetadata = _message("AttributeProto"), _message("GlobalMetadata")
IOInfo, Tensor = _message("IOInfo"), _message("Tensor")
Node, RawNode, WireNode = _message("Node"), _message("RawNode"), _message("WireNode")


# Names of node attributes, and conversion of their values from the types that writers use.
#
# Chakra leaves names and types to convention, and writers differ in the integer type. Every integer type is therefore
# accepted, and so is a floating-point number without a fraction, as in ASTRA-sim's reader. A string is an error.


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


# Construction of metadata and nodes, with the attribute types that ASTRA-sim's reader and Chakra's feeder expect.
#
# Times are in microseconds, sizes in bytes. Values that do not fit their type raise ValueError or TypeError.


SCHEMA_VERSION = "0.0.4"


class NodeLinks(TypedDict, total=False):
    """Further arguments of all functions that make nodes."""

    deps: Iterable[int]  # ids of data dependencies
    ctrl_deps: Iterable[int]  # ids of control dependencies
    attrs: Iterable[Message]  # further attributes, made by `attribute`


def attribute(name: str, kind: str, value: object) -> Message:
    """Return an AttributeProto. Raises ValueError: an unknown kind, or a value out of range; TypeError: another type.

    Args:
        name: The name of the attribute.
        kind: A type ("int64"), or a list of that type ("int64_list").
        value: The value of this type.
    """
    element = kind.removesuffix("_list")
    if element not in VALUE_TYPES:
        raise ValueError(f"attribute {name}: kind {kind!r}, expected one of {', '.join(VALUE_TYPES)} or its _list")
    message = AttributeProto(name=name)
    if kind == element:
        setattr(message, f"{kind}_val", value)
        return message
    values = getattr(message, kind)
    values.SetInParent()  # so that an empty list is there too
    values.values.extend(value)
    return message


def metadata(version: str = SCHEMA_VERSION, attrs: Iterable[Message] = ()) -> Message:
    """Return the GlobalMetadata message, the first one of a file.

    Args:
        version: The version of the schema.
        attrs: The attributes of the metadata.
    """
    return GlobalMetadata(version=version, attr=attrs)


def comp_node(
    node_id: int,
    name: str,
    *,
    duration_micros: int = 0,
    num_ops: int | None = None,
    tensor_size: int | None = None,
    is_cpu_op: bool = False,
    **links: Unpack[NodeLinks],
) -> Message:
    """Return a compute node with a duration or with work.

    Args:
        node_id: The id of the node.
        name: The name of the node.
        duration_micros: The duration in microseconds.
        num_ops: The number of floating-point operations; None = absent.
        tensor_size: The bytes that it reads and writes; None = absent.
        is_cpu_op: Whether the host runs the node.
        **links: Parents and further attributes of the node.
    """
    numbers = {"is_cpu_op": is_cpu_op, "num_ops": num_ops, "tensor_size": tensor_size}
    node = _node(node_id, name, NodeType.COMP_NODE, numbers, links)
    node.duration_micros = duration_micros
    return node


def mem_node(
    node_id: int, name: str, node_type: NodeType, tensor_size: int, *, tensor_loc: int = 0, **links: Unpack[NodeLinks]
) -> Message:
    """Return a memory node. Raises ValueError: another type of node.

    Args:
        node_id: The id of the node.
        name: The name of the node.
        node_type: NodeType.MEM_LOAD_NODE or NodeType.MEM_STORE_NODE.
        tensor_size: The size of the tensor in bytes.
        tensor_loc: The place of the tensor: 0 = local memory, others = remote memory.
        **links: Parents and further attributes of the node.
    """
    if node_type not in {NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE}:
        raise ValueError(f"node {node_id}: {node_type!r}, expected MEM_LOAD_NODE or MEM_STORE_NODE")
    return _node(node_id, name, node_type, {"tensor_size": tensor_size, "tensor_loc": tensor_loc}, links)


def coll_node(
    node_id: int,
    name: str,
    comm_type: CollectiveCommType,
    comm_size: int,
    *,
    pg_name: str = "",
    comm_priority: int | None = None,
    involved_dim: Iterable[bool] | None = None,
    in_split_size: Iterable[int] | None = None,
    out_split_size: Iterable[int] | None = None,
    **links: Unpack[NodeLinks],
) -> Message:
    """Return a collective.

    Args:
        node_id: The id of the node.
        name: The name of the node.
        comm_type: The kind of the collective.
        comm_size: The bytes per member.
        pg_name: The name of the group; "" = all NPUs.
        comm_priority: The priority of the collective; None = absent.
        involved_dim: Whether each dimension of the fabric takes part; None = absent, all do.
        in_split_size: The parts that go to each member of an uneven all-to-all, in bytes or in any unit that makes
            their sum comm_size; None = even.
        out_split_size: The parts that come from each member, in the same unit; None = even, or not given.
        **links: Parents and further attributes of the node.
    """
    values: dict[str, Any] = {"comm_type": comm_type, "comm_size": comm_size, "comm_priority": comm_priority}
    values |= {"pg_name": pg_name or None, "involved_dim": involved_dim}
    values |= {"in_split_size": in_split_size, "out_split_size": out_split_size}
    return _node(node_id, name, NodeType.COMM_COLL_NODE, values, links)


def send_node(
    node_id: int, name: str, comm_src: int, comm_dst: int, comm_size: int, comm_tag: int = 0, **links: Unpack[NodeLinks]
) -> Message:
    """Return a message from an NPU that runs this trace.

    Args:
        node_id: The id of the node.
        name: The name of the node.
        comm_src: The NPU that sends, which runs this trace.
        comm_dst: The NPU that receives.
        comm_size: The bytes of the message.
        comm_tag: The tag of the message.
        **links: Parents and further attributes of the node.
    """
    values = {"comm_size": comm_size, "comm_src": comm_src, "comm_dst": comm_dst, "comm_tag": comm_tag}
    return _node(node_id, name, NodeType.COMM_SEND_NODE, values, links)


def recv_node(
    node_id: int, name: str, comm_src: int, comm_dst: int, comm_size: int, comm_tag: int = 0, **links: Unpack[NodeLinks]
) -> Message:
    """Return the receipt of a message at an NPU that runs this trace.

    Args:
        node_id: The id of the node.
        name: The name of the node.
        comm_src: The NPU that sends.
        comm_dst: The NPU that receives, which runs this trace.
        comm_size: The bytes of the message.
        comm_tag: The tag of the message.
        **links: Parents and further attributes of the node.
    """
    values = {"comm_size": comm_size, "comm_src": comm_src, "comm_dst": comm_dst, "comm_tag": comm_tag}
    return _node(node_id, name, NodeType.COMM_RECV_NODE, values, links)


def group_node(node_id: int, name: str, pg_name: str, ranks: Iterable[int]) -> Message:
    """Return a METADATA node that defines a group.

    Args:
        node_id: The id of the node.
        name: The name of the node.
        pg_name: The name of the group.
        ranks: The NPUs of the group in member order.
    """
    return _node(node_id, name, NodeType.METADATA_NODE, {"pg_name": pg_name, "ranks": ranks}, {})


def _node(node_id: int, name: str, node_type: NodeType, values: dict[str, Any], links: NodeLinks) -> Message:
    """Return a node with the attributes in `values`, by name, that are not None, and with its parents in `links`."""
    deps, ctrl_deps = links.get("deps", ()), links.get("ctrl_deps", ())
    node = Node(id=node_id, name=name, type=node_type, data_deps=deps, ctrl_deps=ctrl_deps)
    for key, value in ({"is_cpu_op": False} | values).items():
        if value is not None:
            node.attr.append(attribute(key, KINDS[key], value))
    node.attr.extend(links.get("attrs", ()))
    return node
