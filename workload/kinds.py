"""The kinds of collectives, and which of them a comm_type of a trace means."""

import numpy as np

from et import CollectiveCommType
from workload.errors import WorkloadError

KINDS = (
    "all-reduce",
    "reduce",
    "all-gather",
    "gather",
    "scatter",
    "broadcast",
    "all-to-all",
    "reduce-scatter",
    "barrier",
)
ALL_GATHER, GATHER, ALL_TO_ALL, REDUCE_SCATTER, BARRIER = (
    KINDS.index(name) for name in ("all-gather", "gather", "all-to-all", "reduce-scatter", "barrier")
)

# KINDS stand in the order of CollectiveCommType, but for the variant of reduce-scatter
KIND_OF_COMM_TYPE = np.arange(len(CollectiveCommType), dtype=np.int8)
KIND_OF_COMM_TYPE[CollectiveCommType.REDUCE_SCATTER_BLOCK] = REDUCE_SCATTER
KIND_OF_COMM_TYPE[CollectiveCommType.BARRIER] = BARRIER


def kind_index(kind: str) -> int:
    """Row of `kind` in KINDS.

    Raises:
        WorkloadError: there is no such kind.
    """
    if kind not in KINDS:
        raise WorkloadError(f"collective {kind!r}: expected one of {', '.join(KINDS)}")
    return KINDS.index(kind)
