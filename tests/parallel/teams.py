"""Teams of MPI ranks, and the results of all of them."""

from dataclasses import replace

import numpy as np

TEAM_RANKS = {"shared": 0, "sent": 1, "python": 1, "pairs": 2, "pairs-python": 2}
"""Ranks of a team; "python": which calls MPI, as where compiled code cannot."""


def whole(world, own):
    """Results with the rows of all ranks' NPUs, on rank 0."""
    parts = world.gather((own.npu_node_ptr, own.node_start_ps, own.node_finish_ps))
    if parts is None:
        return None
    counts = np.array([np.diff(ptr) for ptr, _, _ in parts])
    if ((counts > 0).sum(axis=0) > 1).any():
        raise AssertionError("two ranks have rows of one NPU")

    def joined(column):
        rank_of = counts.argmax(axis=0).tolist()
        of_npu = [parts[rank][column][slice(*parts[rank][0][npu : npu + 2])] for npu, rank in enumerate(rank_of)]
        return np.concatenate(of_npu)

    ptr = np.concatenate([[0], np.cumsum(counts.max(axis=0))])
    return replace(own, npu_node_ptr=ptr, node_start_ps=joined(1), node_finish_ps=joined(2))
