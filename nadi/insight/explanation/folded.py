"""Representatives in runs that keep the trace nodes of one NPU per class.

NPUs of a class have the same nodes at the same times (nadi/simulation/closed_forms/advancing/likeness.py). The nodes of
one NPU per class therefore describe a collective with members of several classes, although that NPU's own group may be
another, equivalent one; and the send of a representative describes the messages of every NPU of its class.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.insight.runs import Run
from workload import Program

Int64 = NDArray[np.int64]

LIKE = "like"


class Representatives(NamedTuple):
    """Representatives of NPUs and groups."""

    like: Int64  # int64[npus], NPU whose nodes represent those of each NPU; its own number where all nodes are kept
    first: Int64  # int64[npus], row of the representative's first node in nodes.parquet; -1 = no node
    group: Int64  # int64[groups], equal for groups whose collectives have the same representative nodes


def is_folded(run: Run) -> bool:
    """Return whether the run keeps the trace nodes of one NPU per class only."""
    return LIKE in run.npus.column_names


def representatives(run: Run, program: Program, npu: Int64) -> Representatives:
    """Return the representatives of a run; npu: int64[n], NPU of each row of nodes.parquet."""
    groups = np.arange(len(program.group_ptr) - 1)
    like = np.arange(program.npus)
    if is_folded(run):
        like = np.asarray(run.npus[LIKE], np.int64)
        groups = _equivalent_groups(program, like, groups)
    first = np.full(program.npus, -1)
    own, begin = np.unique(npu, return_index=True)
    first[own] = begin
    return Representatives(like, first[like], groups)


def _equivalent_groups(program: Program, like: Int64, group: Int64) -> Int64:
    """Return int64[groups]: the lowest of the groups that are equivalent to each group."""
    owner = np.repeat(np.arange(program.npus), np.diff(program.slot_ptr))
    slot = np.arange(len(owner)) - program.slot_ptr[owner]
    own = program.slot_group.astype(np.int64)
    pairs = np.unique(np.stack([own, own[program.slot_ptr[like[owner]] + slot]]), axis=1)
    kept = np.unique(own[np.isin(owner, like)])  # groups of NPUs whose nodes are kept
    left, right = pairs[:, np.isin(pairs[0], kept)]
    # Propagate the lowest number of each connected component until nothing changes.
    while True:
        lowest = group.copy()
        np.minimum.at(lowest, left, group[right])
        np.minimum.at(lowest, right, lowest[left])
        if np.array_equal(lowest, group):
            return group
        group = lowest
