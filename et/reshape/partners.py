"""Who takes part in the same communication: the members of a collective, the two ends of a message."""

from collections.abc import Hashable, Iterator

import numpy as np

from et.order import topological_order
from et.schema import NodeType
from et.table import TraceTable

Key = tuple[Hashable, ...]


def communications(table: TraceTable, npu: int) -> Iterator[tuple[int, Key]]:
    """Row and key of each node that takes part in a communication, in the order in which it does.

    Nodes of several NPUs that have the same key are partners: the how-manieth collective of a group, the how-manieth
    message with a tag from one NPU to another. The order on an NPU is a topological order, least row first, as in runs.

    Args:
        table: the trace.
        npu: whose it is; -1 = as its sends and receives say.

    Raises:
        TraceError: the dependencies have a cycle.
    """
    seen: dict[Key, int] = {}
    for row in topological_order(table).tolist():
        key = _key(table, npu, row)
        if key is not None:
            number = seen[key] = seen.get(key, -1) + 1
            yield row, (*key, number)


def what(key: Key) -> str:
    """A key in words, for messages."""
    if key[0] == "collective":
        group = f'group "{key[1]}"' if key[1] else "all NPUs"
        return f"collective {key[-1]} of {group}"
    return f"message {key[-1]} from NPU {key[1]} to NPU {key[2]} with tag {key[3]}"


def is_communication(table: TraceTable) -> np.ndarray:
    """bool[n]: sends, receives, and collectives with a kind (a call on the host without one is computation)."""
    is_message = (table.type == NodeType.COMM_SEND_NODE) | (table.type == NodeType.COMM_RECV_NODE)
    return is_message | ((table.type == NodeType.COMM_COLL_NODE) & (table.comm_type >= 0))


def _key(table: TraceTable, npu: int, row: int) -> Key | None:
    node_type = table.type[row]
    if node_type == NodeType.COMM_COLL_NODE and table.comm_type[row] >= 0:
        name = table.group_names[table.group[row]]
        return "collective", name, table.metadata_groups.get(name), int(table.involved_dim[row])
    tag = max(int(table.comm_tag[row]), 0)
    if node_type == NodeType.COMM_SEND_NODE:
        return "message", npu if npu >= 0 else int(table.comm_src[row]), int(table.comm_dst[row]), tag
    if node_type == NodeType.COMM_RECV_NODE:
        return "message", int(table.comm_src[row]), npu if npu >= 0 else int(table.comm_dst[row]), tag
    return None
