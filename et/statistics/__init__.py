"""Statistics over the traces of all NPUs: mixes, sizes by rank, arrivals, overlap, the critical path.

`Rank` is the trace of one NPU; `statistics` returns all statistics as values that JSON can hold.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nadi.et.communications import CommunicationMember, Rank, communications_of, some_of
from nadi.et.statistics.sizes import bytes_by_rank, collective_mix, operator_mix, sizes_by_collective
from nadi.et.statistics.timing import (
    MAX_NODES,
    arrivals,
    critical_path,
    earliest,
    has_durations,
    has_starts,
    overlap,
    percentile,
    values_needed,
)
from nadi.et.table import waited_micros


def statistics(ranks: Sequence[Rank], max_nodes: int = MAX_NODES) -> dict[str, Any]:
    """Return statistics over the traces of some NPUs.

    Mixes and sums by rank cover all traces. What needs a visit to each node (collectives, arrivals, the critical path)
    covers the ranks that et.communications.some_of chooses; "looked_at" is their number.

    Args:
        ranks: The traces of some NPUs.
        max_nodes: The number of nodes to visit one by one.
    """
    nodes = sum(len(rank.table) for rank in ranks)
    looked_at = some_of(ranks, max_nodes)
    found = communications_of(looked_at)
    # Each distinct trace once
    tables = {id(rank.table): rank.table for rank in ranks}
    is_timed = has_durations(ranks)
    return {
        "ranks": len(ranks),
        "traces": len(tables),
        "nodes": nodes,
        "looked_at": len(looked_at),
        "times": "start and duration" if has_starts(ranks) else "duration" if is_timed else "none",
        "operators": operator_mix(ranks),
        "collectives": collective_mix(ranks),
        "bytes_by_rank": bytes_by_rank(ranks),
        "sizes_by_collective": sizes_by_collective(looked_at, found),
        "arrivals": arrivals(looked_at, found),
        "overlap": overlap(looked_at),
        "critical_path": critical_path(looked_at, found) if is_timed else None,
    }
