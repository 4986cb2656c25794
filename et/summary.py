"""Summary of a trace, as `nadi trace show` prints it."""

import os
from typing import Any

import numpy as np

from nadi.et.order import depth
from nadi.et.reader import read_trace
from nadi.et.schema import CollectiveCommType, NodeType
from nadi.et.table import TraceTable

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
