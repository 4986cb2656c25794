"""The nodes that take part in the same communication: the members of a collective, the two ends of a message."""

from collections.abc import Hashable, Iterator

import numpy as np

from nadi.et.order import topological_order
from nadi.et.schema import NodeType
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int8

Key = tuple[Hashable, ...]
LANES = ("host", "compute", "memory", "collectives", "sends", "receives")  # of an NPU in a timeline
HOST_LANE, COMPUTE_LANE, MEMORY_LANE, COLLECTIVE_LANE, SEND_LANE, RECEIVE_LANE = range(len(LANES))
COMMUNICATION_LANES = (COLLECTIVE_LANE, SEND_LANE, RECEIVE_LANE)
NO_LANE = -1


def communications(table: TraceTable, npu: int) -> Iterator[tuple[int, Key]]:
    """Yield row and key of each node that takes part in a communication, in order of execution.

    Nodes of several NPUs with the same key are partners: the n-th collective of a group, or the n-th message with a tag
    from one NPU to another. The order on an NPU is a topological order, smallest row first, as in runs.

    Args:
        table: The trace of one NPU.
        npu: The NPU that runs the trace; -1 = the NPU in the trace's sends and receives.
    """
    seen: dict[Key, int] = {}
    for row in topological_order(table).tolist():
        key = _key(table, npu, row)
        if key is not None:
            # Partners match by order: the third send with a tag is received by the third receive with it
            number = seen[key] = seen.get(key, -1) + 1
            yield row, (*key, number)


def communication_text(key: Key) -> str:
    """Describe a communication in words, for messages to the user.

    Args:
        key: The key of the communication, from `communications`.
    """
    if key[0] == "collective":
        group = f'group "{key[1]}"' if key[1] else "all NPUs"
        return f"collective {key[-1]} of {group}"
    return f"message {key[-1]} from NPU {key[1]} to NPU {key[2]} with tag {key[3]}"


def lanes_of(table: TraceTable) -> Int8:
    """Return int8[n], the row of LANES for each node, NO_LANE = -1 for METADATA.

    Args:
        table: The trace of one NPU.
    """
    # A table by type, so that one look-up serves all rows
    lane_of_type = np.full(max(NodeType) + 1, NO_LANE, np.int8)
    lane_of_type[NodeType.COMP_NODE] = COMPUTE_LANE
    lane_of_type[[NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE]] = MEMORY_LANE
    lane_of_type[NodeType.COMM_COLL_NODE] = COLLECTIVE_LANE
    lane_of_type[NodeType.COMM_SEND_NODE] = SEND_LANE
    lane_of_type[NodeType.COMM_RECV_NODE] = RECEIVE_LANE
    lanes = lane_of_type[table.type]
    lanes[(lanes == COMPUTE_LANE) & table.is_cpu_op] = HOST_LANE
    lanes[(lanes == COLLECTIVE_LANE) & (table.comm_type < 0)] = HOST_LANE  # a call on the host
    return lanes


def _key(table: TraceTable, npu: int, row: int) -> Key | None:
    """Return the kind, ends and tag of a row's communication without its number; None for other nodes."""
    node_type = table.type[row]
    if node_type == NodeType.COMM_COLL_NODE and table.comm_type[row] >= 0:
        name = table.group_names[table.group[row]]
        return "collective", name, table.metadata_groups.get(name), int(table.involved_dim[row])
    # A message without a tag has tag 0
    tag = max(int(table.comm_tag[row]), 0)
    if node_type == NodeType.COMM_SEND_NODE:
        return "message", npu if npu >= 0 else int(table.comm_src[row]), int(table.comm_dst[row]), tag
    if node_type == NodeType.COMM_RECV_NODE:
        return "message", int(table.comm_src[row]), npu if npu >= 0 else int(table.comm_dst[row]), tag
    return None
