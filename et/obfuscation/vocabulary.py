"""What the traces of a set use: ids, names of groups, tags, and when the first node starts."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from et.attributes import ALL_NPUS
from et.table import TraceTable


@dataclass
class Vocabulary:
    """Grows by one trace after another, of which nothing else is held.

    Attributes:
        ids: uint64[], ids of nodes, ascending.
        groups: names of groups but that of all NPUs.
        tags: of messages.
        first_start_micros: the least start time that is not 0; 0 = none.
    """

    ids: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    groups: set[str] = field(default_factory=set)
    tags: set[int] = field(default_factory=set)
    first_start_micros: int = 0

    def add(self, table: TraceTable) -> None:
        """Take in what a trace uses."""
        if len(table) != len(self.ids) or np.any(self.ids != table.node_id):
            self.ids = np.union1d(self.ids, table.node_id)
        self.groups |= (set(table.group_names) | set(table.metadata_groups)) - {ALL_NPUS}
        self.tags |= set(np.unique(table.comm_tag[table.comm_tag >= 0]).tolist())
        starts = table.start_time_micros[table.start_time_micros > 0]
        if len(starts):
            first = int(starts.min())
            self.first_start_micros = min(first, self.first_start_micros or first)
