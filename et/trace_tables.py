"""TraceTables: what converters hand on, the traces of several NPUs and their groups."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from et.table import TraceTable


@dataclasses.dataclass(frozen=True, eq=False)
class TraceTables:
    """Traces of some NPUs, each its own.

    Attributes:
        tables: by NPU. A mapping may read or make a trace when it is asked for it, so ask for each once.
        groups: communicators by the names that the traces use; what a group file holds.
        notes: what was assumed and what was lost, a sentence each, for people.
        report: the same for machines, in values that JSON can hold.
        nodes_each: Number of nodes in every trace, where all traces have the same number; 0 = unknown.
    """

    tables: Mapping[int, TraceTable]
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    report: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    nodes_each: int = 0


class TracesOnDisk(Mapping[int, TraceTable]):
    """Traces of files by NPU, each read when it is asked for, and kept by nobody."""

    def __init__(self, files: Mapping[int, Path], read: Callable[[Path], TraceTable]) -> None:
        self._files, self._read = files, read

    def __getitem__(self, npu: int) -> TraceTable:
        return self._read(self._files[npu])

    def __iter__(self) -> Iterator[int]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
