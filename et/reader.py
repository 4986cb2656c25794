"""Reading of a trace file, as messages or as a TraceTable, and its summary."""

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from nadi.et.columns import Columns
from nadi.et.decoder import decoded
from nadi.et.errors import StrictTraceError, TraceError
from nadi.et.framing import iter_messages
from nadi.et.order import dependency_cycle, depth
from nadi.et.schema import CollectiveCommType, GlobalMetadata, Node, NodeType
from nadi.et.table import TraceTable

Path = str | os.PathLike[str]

_NODE_TYPE_FIELD = 3
_VERSION_ATTRIBUTE = "schema"


def read_messages(path: Path) -> tuple[Message, list[Message]]:
    """Read a trace file as protobuf messages (GlobalMetadata, [Node, ...]) without checking the nodes.

    Args:
        path: The path of the file.
    """
    messages = iter_messages(path)
    metadata = metadata_of(path, messages)
    return metadata, [_parse(path, offset, Node, message) for offset, message in messages]


def read_trace(path: Path, *, strict: bool = True, keep_others: bool = False) -> TraceTable:
    """Read a trace file, gzipped or not, as a table.

    Traces of real PyTorch runs need strict=False. Dependencies on nodes that the file lacks are then dropped and
    counted in TraceTable.dangling. If control dependencies close a cycle and data dependencies do not, all control
    dependencies are dropped and counted in TraceTable.dropped_control: Chakra's converter puts the whole order into
    data_deps and leaves in ctrl_deps the parents of calls, with the ids from before it renumbered the nodes; Chakra's
    own feeder resolves data_deps only.

    Args:
        path: The path of the file.
        strict: Whether dependencies on missing nodes, and control dependencies that close cycles, are errors; else they
            are dropped.
        keep_others: Whether attributes that no column takes are kept, as bytes, for writing the table again.
    """
    found = decoded(path, keep_others=keep_others)
    if found is None:
        return _table(path, iter_messages(path), strict=strict, keep_others=keep_others)
    message, columns = found
    return _checked(path, metadata_of(path, iter([(0, message)])), columns, strict=strict)


def table_of(
    metadata: Message,
    nodes: Iterable[Message],
    path: Path = "<memory>",
    *,
    strict: bool = True,
    keep_others: bool = False,
) -> TraceTable:
    """Return the table that read_trace would read from a file of these messages.

    Args:
        metadata: The first message, a GlobalMetadata.
        nodes: The nodes in file order.
        path: The name of the source, for errors.
        strict: Whether dependencies on missing nodes, and control dependencies that close cycles, are errors; else they
            are dropped.
        keep_others: Whether attributes that no column takes are kept, as bytes.
    """
    messages = (message.SerializeToString() for message in (metadata, *nodes))
    return _table(path, enumerate(messages), strict=strict, keep_others=keep_others)


def _table(path: Path, messages: Iterator[tuple[int, bytes]], *, strict: bool, keep_others: bool) -> TraceTable:
    """Return the table of the messages with their byte offsets, metadata first; parameters as in `read_trace`."""
    metadata = metadata_of(path, messages)
    columns = Columns(path, keep_others=keep_others)
    for offset, message in messages:
        if not message:  # refused at once, because a file of zeros has millions
            raise TraceError(f"{path}: node 0: node type 0, expected 1 to 7")
        columns.add(offset, message)
    return _checked(path, metadata, columns, strict=strict)


def _checked(path: Path, metadata: Message, columns: Columns, *, strict: bool) -> TraceTable:
    """Return the table of all nodes after the checks that concern all of them."""
    table = columns.table(_version(metadata), strict=strict)
    cycle = dependency_cycle(table)
    if not cycle:
        return table
    # Control dependencies may close the cycle: try without them
    without = columns.table(_version(metadata), strict=False, with_control=False)
    data_cycle = dependency_cycle(without)
    problem = f"{path}: dependency cycle {data_cycle if data_cycle and not strict else cycle}, expected no cycle"
    if data_cycle:
        raise TraceError(problem)
    if strict:
        raise StrictTraceError(problem, "drops control dependencies, which close it")
    dangling_control = table.dangling - without.dangling
    return dataclasses.replace(without, dangling_control=dangling_control, control_cycle=cycle)


def _version(global_metadata: Message) -> str:
    """Return the version of the schema, which Chakra's converter of PyTorch traces writes as an attribute."""
    versions = (attribute.string_val for attribute in global_metadata.attr if attribute.name == _VERSION_ATTRIBUTE)
    return global_metadata.version or next(versions, "")


def metadata_of(path: Path, messages: Iterator[tuple[int, bytes]]) -> Message:
    """Return the first message of a file. Raises TraceError: it is a Node, as metadata has no node type.

    Args:
        path: The path of the file.
        messages: The offset and bytes of each message, from the first one on.
    """
    offset, message = next(messages)
    metadata = _parse(path, offset, GlobalMetadata, message)
    if any(field.field_number == _NODE_TYPE_FIELD for field in UnknownFieldSet(metadata)):
        raise TraceError(f"{path}: byte {offset}: found a Node, expected a GlobalMetadata first")
    return metadata


def _parse(path: Path, offset: int, message_class: type[Message], message: bytes) -> Message:
    """Return a message of a class from its bytes; TraceError names the path and the byte offset."""
    try:
        return message_class.FromString(message)
    except DecodeError as error:
        expected = message_class.DESCRIPTOR.name
        raise TraceError(f"{path}: byte {offset}: corrupt message ({error}), expected a {expected}") from error


# Summary of a trace, as `nadi trace show` prints it.


_FIRST_NODES = 10


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Summarise a trace file in values that JSON can hold.

    Dependencies that a strict reader refuses are counted: "dangling_dependencies" on nodes that the file lacks, data
    and control, and "dropped_control_dependencies" where they close "control_cycle" (otherwise ""). Sizes are in bytes;
    "missing_sizes" counts nodes without comm_size, which add nothing to "bytes". "depth" is the number of nodes on the
    longest path of dependencies.

    Args:
        path: The path of the file.
    """
    table = read_trace(path, strict=False)
    is_compute = table.type == NodeType.COMP_NODE
    types, counts = np.unique(table.type, return_counts=True)
    rows = np.flatnonzero(table.type == NodeType.COMM_COLL_NODE)
    # The collectives by kind and group
    keys = np.unique(np.stack([table.comm_type[rows], table.group[rows]], axis=1), axis=0)
    found = []
    for kind, group in keys.tolist():
        sizes = table.comm_size[rows[(table.comm_type[rows] == kind) & (table.group[rows] == group)]]
        found.append({"kind": collective_name(kind), "group": table.group_names[group], **_bytes(sizes)})
    return {
        "path": table.path,
        "version": table.version,
        "nodes": len(table),
        "node_types": {NodeType(t).name: int(count) for t, count in zip(types, counts, strict=True)},
        "cpu_ops": int(np.count_nonzero(table.is_cpu_op)),
        "dependencies": len(table.dep),
        "dangling_dependencies": table.dangling + table.dangling_control,
        "dropped_control_dependencies": table.dropped_control,
        "control_cycle": table.control_cycle,
        "roots": int(np.count_nonzero(np.diff(table.dep_ptr) == 0)),
        "depth": depth(table),
        "compute_micros": _sum(table.duration_micros[is_compute]),
        "num_ops": _sum(table.num_ops),
        "tensor_bytes": _sum(table.tensor_size),
        "collectives": found,
        "sends": _bytes(table.comm_size[table.type == NodeType.COMM_SEND_NODE]),
        "receives": _bytes(table.comm_size[table.type == NodeType.COMM_RECV_NODE]),
        "metadata_groups": {name: list(npus) for name, npus in table.metadata_groups.items()},
        "first_nodes": [_node(table, row) for row in range(min(_FIRST_NODES, len(table)))],
    }


def collective_name(comm_type: int) -> str:
    """Return the name of a CollectiveCommType on the command line, such as "all-reduce"; "unnamed" for -1.

    Args:
        comm_type: A CollectiveCommType, or -1 for a call of the host without one.
    """
    return "unnamed" if comm_type < 0 else CollectiveCommType(comm_type).name.lower().replace("_", "-")


def _sum(values: np.ndarray) -> int:
    """Return the exact sum of the values that are present (not -1)."""
    return sum(values[values >= 0].tolist())


def _bytes(sizes: np.ndarray) -> dict[str, int]:
    return {"count": len(sizes), "bytes": _sum(sizes), "missing_sizes": int(np.count_nonzero(sizes < 0))}


def _node(table: TraceTable, row: int) -> dict[str, Any]:
    """Return a node in values that JSON can hold."""
    parents = table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]]
    return {
        "id": int(table.node_id[row]),
        "name": table.names[row],
        "type": NodeType(table.type[row]).name,
        "duration_micros": int(table.duration_micros[row]),
        "parents": table.node_id[parents].tolist(),
    }
