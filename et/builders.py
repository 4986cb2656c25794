"""Construction of metadata and nodes, with the attribute types that ASTRA-sim's reader and Chakra's feeder expect.

Times are in microseconds, sizes in bytes. `deps` are ids of data dependencies, `ctrl_deps` of control dependencies;
`attrs` are further attributes, made by `attribute`. Values that do not fit their type raise ValueError or TypeError.
"""

from collections.abc import Iterable

from google.protobuf.message import Message

from et.schema import VALUE_TYPES, AttributeProto, CollectiveCommType, GlobalMetadata, Node, NodeType

SCHEMA_VERSION = "0.0.4"


def attribute(name: str, kind: str, value: object) -> Message:
    """Return an AttributeProto; `kind` is a type ("int64") or a list of that type ("int64_list").

    Raises:
        ValueError: The kind is unknown, or the value is out of its range.
        TypeError: The value has another type.
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
    """Return the GlobalMetadata message, the first one of a file."""
    return GlobalMetadata(version=version, attr=attrs)


def comp_node(
    node_id: int,
    name: str,
    *,
    duration_micros: int = 0,
    num_ops: int | None = None,
    tensor_size: int | None = None,
    is_cpu_op: bool = False,
    deps: Iterable[int] = (),
    ctrl_deps: Iterable[int] = (),
    attrs: Iterable[Message] = (),
) -> Message:
    """Return a compute node with a duration, or with num_ops (floating-point operations) and tensor_size (bytes)."""
    node = _node(node_id, name, NodeType.COMP_NODE, deps, ctrl_deps, is_cpu_op=is_cpu_op)
    node.duration_micros = duration_micros
    _set(node, "num_ops", "int64", num_ops)
    _set(node, "tensor_size", "uint64", tensor_size)
    node.attr.extend(attrs)
    return node


def mem_node(
    node_id: int,
    name: str,
    node_type: NodeType,
    tensor_size: int,
    *,
    tensor_loc: int = 0,
    deps: Iterable[int] = (),
    ctrl_deps: Iterable[int] = (),
    attrs: Iterable[Message] = (),
) -> Message:
    """Return a memory node; node_type is NodeType.MEM_LOAD_NODE or MEM_STORE_NODE.

    Raises:
        ValueError: node_type is something else.
    """
    if node_type not in {NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE}:
        raise ValueError(f"node {node_id}: {node_type!r}, expected MEM_LOAD_NODE or MEM_STORE_NODE")
    node = _node(node_id, name, node_type, deps, ctrl_deps)
    _set(node, "tensor_size", "uint64", tensor_size)
    _set(node, "tensor_loc", "int32", tensor_loc)
    node.attr.extend(attrs)
    return node


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
    deps: Iterable[int] = (),
    ctrl_deps: Iterable[int] = (),
    attrs: Iterable[Message] = (),
) -> Message:
    """Return a collective of comm_size bytes per member in the group pg_name ("" means all NPUs).

    in_split_size makes an all-to-all uneven. It has one number per member, in bytes or in any unit that makes their sum
    comm_size; out_split_size gives the received parts in the same way.
    """
    node = _node(node_id, name, NodeType.COMM_COLL_NODE, deps, ctrl_deps)
    _set(node, "comm_type", "int64", comm_type)
    _set(node, "comm_size", "int64", comm_size)
    _set(node, "comm_priority", "int32", comm_priority)
    _set(node, "pg_name", "string", pg_name or None)
    _set(node, "involved_dim", "bool_list", involved_dim)
    _set(node, "in_split_size", "int64_list", in_split_size)
    _set(node, "out_split_size", "int64_list", out_split_size)
    node.attr.extend(attrs)
    return node


def send_node(
    node_id: int,
    name: str,
    comm_src: int,
    comm_dst: int,
    comm_size: int,
    comm_tag: int = 0,
    *,
    deps: Iterable[int] = (),
    ctrl_deps: Iterable[int] = (),
    attrs: Iterable[Message] = (),
) -> Message:
    """Return a message of comm_size bytes from NPU comm_src, which runs this trace, to comm_dst."""
    node = _node(node_id, name, NodeType.COMM_SEND_NODE, deps, ctrl_deps)
    return _peers(node, comm_src, comm_dst, comm_size, comm_tag, attrs)


def recv_node(
    node_id: int,
    name: str,
    comm_src: int,
    comm_dst: int,
    comm_size: int,
    comm_tag: int = 0,
    *,
    deps: Iterable[int] = (),
    ctrl_deps: Iterable[int] = (),
    attrs: Iterable[Message] = (),
) -> Message:
    """Return the receipt of a message of comm_size bytes from NPU comm_src at comm_dst, which runs this trace."""
    node = _node(node_id, name, NodeType.COMM_RECV_NODE, deps, ctrl_deps)
    return _peers(node, comm_src, comm_dst, comm_size, comm_tag, attrs)


def group_node(node_id: int, name: str, pg_name: str, ranks: Iterable[int]) -> Message:
    """Return a METADATA node that defines the group pg_name as the NPUs of `ranks`."""
    node = _node(node_id, name, NodeType.METADATA_NODE, (), ())
    _set(node, "pg_name", "string", pg_name)
    _set(node, "ranks", "int32_list", ranks)
    return node


def _node(
    node_id: int,
    name: str,
    node_type: NodeType,
    deps: Iterable[int],
    ctrl_deps: Iterable[int],
    *,
    is_cpu_op: bool = False,
) -> Message:
    node = Node(id=node_id, name=name, type=node_type, data_deps=deps, ctrl_deps=ctrl_deps)
    _set(node, "is_cpu_op", "bool", is_cpu_op)
    return node


def _peers(
    node: Message, comm_src: int, comm_dst: int, comm_size: int, comm_tag: int, attrs: Iterable[Message]
) -> Message:
    _set(node, "comm_size", "int64", comm_size)
    _set(node, "comm_src", "int32", comm_src)
    _set(node, "comm_dst", "int32", comm_dst)
    _set(node, "comm_tag", "int32", comm_tag)
    node.attr.extend(attrs)
    return node


def _set(node: Message, name: str, kind: str, value: object) -> None:
    if value is not None:
        node.attr.append(attribute(name, kind, value))
