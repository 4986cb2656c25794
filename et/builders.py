"""Construction of metadata and nodes, with the attribute types that ASTRA-sim's reader and Chakra's feeder expect.

Times are in microseconds, sizes in bytes. Values that do not fit their type raise ValueError or TypeError.
"""

from collections.abc import Iterable
from typing import Any, TypedDict, Unpack

from google.protobuf.message import Message

from nadi.et.attributes import KINDS
from nadi.et.schema import VALUE_TYPES, AttributeProto, CollectiveCommType, GlobalMetadata, Node, NodeType

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
