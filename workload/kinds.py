"""The kinds of collectives, and their mapping from a trace's comm_type."""

import numpy as np

from nadi.et import CollectiveCommType
from nadi.workload.errors import WorkloadError

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

# KINDS has the order of CollectiveCommType, except for the second variant of reduce-scatter.
KIND_OF_COMM_TYPE = np.arange(len(CollectiveCommType), dtype=np.int8)
KIND_OF_COMM_TYPE[CollectiveCommType.REDUCE_SCATTER_BLOCK] = REDUCE_SCATTER
KIND_OF_COMM_TYPE[CollectiveCommType.BARRIER] = BARRIER


def kind_index(kind: str) -> int:
    """Return the index of a kind of collective in KINDS. Raises WorkloadError: the kind is unknown.

    Args:
        kind: The name of the kind.
    """
    if kind not in KINDS:
        raise WorkloadError(f"collective {kind!r}: expected one of {', '.join(KINDS)}")
    return KINDS.index(kind)
