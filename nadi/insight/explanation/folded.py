"""Runs that keep the trace nodes of one NPU of each class: whose nodes stand for whose.

NPUs of a class do the same at the same times, row by row (nadi/simulation/closed_forms/advancing/likeness.py). So a
collective
with members of several classes is told by the nodes of one NPU of each, though that NPU's own group may be another,
alike; and a message from any NPU is told by the send of the one that stands for it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.insight.runs import Run
from workload import Program

Int64 = NDArray[np.int64]

LIKE = "like"


class Representatives(NamedTuple):
    """Who stands for whom.

    Attributes:
        like: int64[npus], the NPU whose nodes stand for those of each; its own number where all are kept.
        first: int64[npus], place of the first node of that NPU in nodes.parquet; -1 = it has none.
        group: int64[groups], equal for groups whose collectives are told by the same nodes.
    """

    like: Int64
    first: Int64
    group: Int64


def is_folded(run: Run) -> bool:
    """Whether the run keeps trace nodes of one NPU of each class only."""
    return LIKE in run.npus.column_names


def stand_ins(run: Run, program: Program, npu: Int64) -> Representatives:
    """Of a run; npu: int64[n], whose each row of nodes.parquet is."""
    groups = np.arange(len(program.group_ptr) - 1)
    like = np.arange(program.npus)
    if is_folded(run):
        like = np.asarray(run.npus[LIKE], np.int64)
        groups = _alike(program, like, groups)
    first = np.full(program.npus, -1)
    own, begin = np.unique(npu, return_index=True)
    first[own] = begin
    return Representatives(like, first[like], groups)


def _alike(program: Program, like: Int64, group: Int64) -> Int64:
    """int64[groups]: the least of the groups that stand for each other."""
    owner = np.repeat(np.arange(program.npus), np.diff(program.slot_ptr))
    slot = np.arange(len(owner)) - program.slot_ptr[owner]
    own = program.slot_group.astype(np.int64)
    pairs = np.unique(np.stack([own, own[program.slot_ptr[like[owner]] + slot]]), axis=1)
    told = np.unique(own[np.isin(owner, like)])  # those of NPUs whose nodes are kept
    one, two = pairs[:, np.isin(pairs[0], told)]
    while True:
        least = group.copy()
        np.minimum.at(least, one, group[two])
        np.minimum.at(least, two, least[one])
        if np.array_equal(least, group):
            return group
        group = least
