"""The Chakra messages (package ChakraProtoMsg, proto3, unchanged since May 2024), made at import from one table.

There is no generated file and no protoc: the table below becomes a FileDescriptorProto in its own pool, so that
Chakra's Python package can be imported at the same time.

Source: mlcommons/chakra, schema/protobuf/et_def.proto.
"""

import enum

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

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
