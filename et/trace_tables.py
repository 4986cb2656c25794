"""TraceTables, the result of converters: the traces of several NPUs and their groups."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from et.table import TraceTable


@dataclasses.dataclass(frozen=True, eq=False)
class TraceTables:
    """Traces of some NPUs."""

    # trace of each NPU. A mapping may read or make a trace at each access, so access each once
    tables: Mapping[int, TraceTable]
    # members of communicators by the names that the traces use, the content of a group file
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()  # sentences on what was assumed and what was lost
    # assumptions and losses in values that JSON can hold
    report: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    nodes_each: int = 0  # number of nodes in every trace, where all traces have the same number; 0 = unknown


class TracesOnDisk(Mapping[int, TraceTable]):
    """Traces of files by NPU; each access reads the file, and nothing is kept."""

    def __init__(self, files: Mapping[int, Path], read: Callable[[Path], TraceTable]) -> None:
        self._files, self._read = files, read

    def __getitem__(self, npu: int) -> TraceTable:
        return self._read(self._files[npu])

    def __iter__(self) -> Iterator[int]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
