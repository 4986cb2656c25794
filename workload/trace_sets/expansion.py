"""A trace set as other tools know traces: one file for each NPU, its own peers, groups by numbers and a group file."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np

from et import NodeType, TraceTable, write_table
from workload.errors import WorkloadError
from workload.trace_sets.folder import check_prefix, link, staged_traces
from workload.trace_sets.trace_set import NO_GROUP, TraceSet, group_of_npu
from workload.trace_sets.view import AS_WRITTEN

GROUPS_NAME = "groups.json"


def expand(traces: TraceSet, folder: str | os.PathLike[str], prefix: str = "trace") -> Path:
    """Write `<folder>/<prefix>.<npu>.et` for each NPU that is not idle, with families `<folder>/groups.json` too.

    Each group of each family gets a number from 1 on, as a name: numbers are what other simulators read.

    Returns:
        `<folder>/<prefix>`, as run files name it.

    Raises:
        WorkloadError: the folder cannot be written, or holds other traces; an NPU is in no group of a family that its
            trace names.
    """
    out = Path(folder)
    check_prefix(prefix)
    users = np.flatnonzero(traces.trace_of_npu >= 0).tolist()
    number = 1
    first, of_npu, groups = {}, {}, {}
    for name, family in traces.families.items():
        first[name], of_npu[name] = number, group_of_npu(family, traces.npus)
        groups.update({str(number + i): members for i, members in enumerate(family)})
        number += len(family)
    names = [f"{prefix}.{npu}.et" for npu in users] + [GROUPS_NAME] * bool(groups)
    with staged_traces(out, names, "these traces") as staging:
        for trace, table in enumerate(traces.traces):
            own = np.flatnonzero(traces.trace_of_npu == trace).tolist()
            named = [name for name in _used(table) if name in of_npu]
            written: dict[object, Path] = {}
            for npu in own:
                place = {name: int(of_npu[name][npu]) for name in named}
                if NO_GROUP in place.values():
                    name = next(name for name, at in place.items() if at == NO_GROUP)
                    raise WorkloadError(f'{table.path}: NPU {npu} runs it but is in no group of the family "{name}"')
                new_names = {name: str(first[name] + at) for name, at in place.items()}
                example = int(traces.example_npu[trace])
                shift = 0 if example == AS_WRITTEN or not _has_peers(table) else npu - example
                file = staging / f"{prefix}.{npu}.et"
                alike = (shift, *new_names.values())
                if alike in written:
                    link(written[alike], file)
                else:
                    write_table(file, _of_npu(table, shift, new_names))
                    written[alike] = file
        if groups:
            (staging / GROUPS_NAME).write_text(json.dumps(groups) + "\n", encoding="utf-8")
    return out / prefix


def _used(table: TraceTable) -> list[str]:
    """Names of the groups of its collectives."""
    rows = np.unique(table.group[table.type == NodeType.COMM_COLL_NODE])
    return [table.group_names[row] for row in rows.tolist()]


def _has_peers(table: TraceTable) -> bool:
    return bool(np.any((table.type == NodeType.COMM_SEND_NODE) | (table.type == NodeType.COMM_RECV_NODE)))


def _of_npu(table: TraceTable, shift: int, names: dict[str, str]) -> TraceTable:
    """The trace with its peers so much away and other names of some groups."""
    is_message = (table.type == NodeType.COMM_SEND_NODE) | (table.type == NodeType.COMM_RECV_NODE)
    src, dst = (
        np.where(is_message & (column >= 0), column + np.int32(shift), column)
        for column in (table.comm_src, table.comm_dst)
    )
    group_names = tuple(names.get(name, name) for name in table.group_names)
    return dataclasses.replace(table, comm_src=src, comm_dst=dst, group_names=group_names)
