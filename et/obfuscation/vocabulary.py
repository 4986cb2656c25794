"""Vocabulary of a set of traces: ids, names of groups, tags, and the start of the first node."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from et.attributes import ALL_NPUS
from et.table import TraceTable


@dataclass
class Vocabulary:
    """Values that the traces of a set use; it grows trace by trace, and keeps nothing else of them."""

    ids: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))  # uint64[], ids of nodes, ascending
    groups: set[str] = field(default_factory=set)  # names of groups except that of all NPUs
    tags: set[int] = field(default_factory=set)  # tags of messages
    first_start_micros: int = 0  # smallest start time that is not 0; 0 = no node has one

    def add(self, table: TraceTable) -> None:
        """Add the values that a trace uses."""
        if len(table) != len(self.ids) or np.any(self.ids != table.node_id):
            self.ids = np.union1d(self.ids, table.node_id)
        self.groups |= (set(table.group_names) | set(table.metadata_groups)) - {ALL_NPUS}
        self.tags |= set(np.unique(table.comm_tag[table.comm_tag >= 0]).tolist())
        starts = table.start_time_micros[table.start_time_micros > 0]
        if len(starts):
            first = int(starts.min())
            self.first_start_micros = min(first, self.first_start_micros or first)
