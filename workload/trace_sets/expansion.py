"""Expansion of a trace set to the form of other tools: one file per NPU with its own peers, and a group file."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from nadi.et import NodeType, TraceTable, TraceTables, write_table
from nadi.et.files import GROUPS_NAME
from nadi.workload.errors import WorkloadError
from nadi.workload.trace_sets.files import check_prefix, link, staged_traces
from nadi.workload.trace_sets.trace_set import AS_WRITTEN, NO_GROUP, TraceSet, group_of_npu


def expand(traces: TraceSet, folder: str | os.PathLike[str], prefix: str = "trace") -> Path:
    """Write `<folder>/<prefix>.<npu>.et` for each NPU that is not idle, and `<folder>/groups.json` with families.

    The name of each group of each family is a number from 1 on, because other simulators read numbers. The result is
    `<folder>/<prefix>`, the value for `[workload] traces` of run files. Raises WorkloadError: the folder is not
    writable or holds other traces, or an NPU is in no group of a family that its trace names.

    Args:
        traces: The traces of all NPUs.
        folder: The folder of the files.
        prefix: The beginning of the files' names.
    """
    out = Path(folder)
    check_prefix(prefix)
    plain = _PlainTraces(traces)
    names = [f"{prefix}.{npu}.et" for npu in plain] + [GROUPS_NAME] * bool(plain.groups)
    with staged_traces(out, names, "these traces") as staging:
        written: dict[object, Path] = {}
        for npu in plain:
            file, key = staging / f"{prefix}.{npu}.et", plain.key(npu)
            if key in written:
                # Thousands of NPUs may do equal work: hard links keep one copy on disk
                link(written[key], file)
            else:
                write_table(file, plain[npu])
                written[key] = file
        if plain.groups:
            (staging / GROUPS_NAME).write_text(json.dumps(plain.groups) + "\n", encoding="utf-8")
    return out / prefix


def expanded_tables(traces: TraceSet) -> TraceTables:
    """Return the expanded traces without writing files; each trace is created on access.

    Args:
        traces: The traces of all NPUs.
    """
    plain = _PlainTraces(traces)
    return TraceTables(plain, plain.groups)


class _PlainTraces(Mapping[int, TraceTable]):
    """The trace of each NPU that is not idle, with its own peers and with numbers as names of groups."""

    def __init__(self, traces: TraceSet) -> None:
        """Number the groups of a trace set's families."""
        self._traces = traces
        number = 1
        self._first: dict[str, int] = {}
        self._of_npu = {name: group_of_npu(family, traces.npus) for name, family in traces.families.items()}
        self.groups: dict[str, tuple[int, ...]] = {}  # Members of all groups of the families, by their number as text
        for name, family in traces.families.items():
            self._first[name] = number
            self.groups.update({str(number + i): members for i, members in enumerate(family)})
            number += len(family)
        self._named = [[name for name in _used(table) if name in self._of_npu] for table in traces.traces]
        self._has_peers = [_has_peers(table) for table in traces.traces]

    def __iter__(self) -> Iterator[int]:
        yield from np.flatnonzero(self._traces.trace_of_npu >= 0).tolist()

    def __len__(self) -> int:
        return int(np.count_nonzero(self._traces.trace_of_npu >= 0))

    def __getitem__(self, npu: int) -> TraceTable:
        """Return the trace of an NPU."""
        trace, shift, numbers = self.key(npu)
        names = dict(zip(self._named[trace], numbers, strict=True))
        return _of_npu(self._traces.traces[trace], shift, names)

    def key(self, npu: int) -> tuple[int, int, tuple[str, ...]]:
        """Return trace, shift of peers, and group numbers of an NPU; NPUs with the same key have equal files.

        Args:
            npu: The number of the NPU.
        """
        trace = int(self._traces.trace_of_npu[npu])
        numbers = []
        for name in self._named[trace]:
            place = int(self._of_npu[name][npu])
            if place == NO_GROUP:
                path = self._traces.traces[trace].path
                raise WorkloadError(f'{path}: NPU {npu} runs it but is in no group of the family "{name}"')
            numbers.append(str(self._first[name] + place))
        example = int(self._traces.example_npu[trace])
        # Without peers the shift changes nothing; 0 lets such NPUs share a file
        shift = 0 if example == AS_WRITTEN or not self._has_peers[trace] else npu - example
        return trace, shift, tuple(numbers)


def _used(trace: TraceTable) -> list[str]:
    """Return the names of the groups of a trace's collectives and messages."""
    communicates = (NodeType.COMM_COLL_NODE, NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE)
    rows = np.unique(trace.group[np.isin(trace.type, communicates)])
    return [trace.group_names[row] for row in rows.tolist()]


def _has_peers(table: TraceTable) -> bool:
    return bool(np.any((table.type == NodeType.COMM_SEND_NODE) | (table.type == NodeType.COMM_RECV_NODE)))


def _of_npu(trace: TraceTable, shift: int, number_of_group: dict[str, str]) -> TraceTable:
    """Return the trace with `shift` added to its peers and with groups renamed."""
    is_message = (trace.type == NodeType.COMM_SEND_NODE) | (trace.type == NodeType.COMM_RECV_NODE)
    src, dst = (
        np.where(is_message & (column >= 0), column + np.int32(shift), column)
        for column in (trace.comm_src, trace.comm_dst)
    )
    group_names = tuple(number_of_group.get(name, name) for name in trace.group_names)
    return dataclasses.replace(trace, comm_src=src, comm_dst=dst, group_names=group_names)
