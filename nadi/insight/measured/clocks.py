"""Estimation of the clock offsets of ranks from their common collectives.

All members of an all-reduce, all-gather, reduce-scatter, all-to-all or barrier end at about the same moment, because no
member can end before the last one has begun. A rank's clock is ahead by the difference of its measured finish from that
of the others, minus the simulated difference. The estimate minimises absolute deviations over all collectives
(iteratively reweighted least squares), so that single delays do not distort it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.units import PS_PER_US
from nadi.insight.measured.timed_nodes import TimedNodes
from nadi.workload.collectives import UNEVEN

SYNCHRONISING = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", UNEVEN, "barrier")
_ROUNDS = 12  # number of reweighted solutions
_MIN_RESIDUAL_MICROS = 0.01  # residual below which weights do not grow further, which keeps them finite
_TOLERANCE = 1e-13  # relative tolerance of the solver (scipy.sparse.linalg.lsqr)


class RankClocks(NamedTuple):
    """Clock offsets of the ranks."""

    # float64[npus], time that a rank's clock is ahead of its reference rank's; NaN for a rank that shares no collective
    # with another rank
    offset_micros: NDArray[np.float64]
    # int64[npus], lowest rank that is connected to each rank by common collectives; -1 = none
    reference: NDArray[np.int64]
    # float64[observations], differences of finishes that the offsets do not explain
    residual_micros: NDArray[np.float64]


def estimate_clocks(nodes: TimedNodes) -> RankClocks:
    """Estimate the clock offsets of all ranks whose traces have start times, from synchronising collectives.

    Args:
        nodes: Nodes with measured and simulated times.
    """
    npus = len(nodes.has_start)
    # rows of synchronising collectives with two or more timed members
    kinds = np.asarray(nodes.collectives["kind"], dtype=str)
    is_timed = (nodes.collective >= 0) & nodes.has_start[nodes.npu]
    is_timed[is_timed] = np.isin(kinds, SYNCHRONISING)[nodes.collective[is_timed]]
    rows = np.flatnonzero(is_timed)
    counts = np.bincount(nodes.collective[rows], minlength=len(kinds))
    # one member alone says nothing about two clocks
    rows = rows[counts[nodes.collective[rows]] > 1]
    offset, reference = np.full(npus, np.nan), np.full(npus, -1, np.int64)
    if not len(rows):
        return RankClocks(offset, reference, np.zeros(0))
    npu = nodes.npu[rows]
    finish = nodes.measured_start_ps[rows] + nodes.measured_ps[rows]
    simulated = nodes.simulated_start_ps[rows] + nodes.simulated_ps[rows]
    _, instance = np.unique(nodes.collective[rows], return_inverse=True)
    # members of a synchronising collective end together, so differences come from clocks
    difference = (finish - simulated) / PS_PER_US
    solved, first, residual = _solved(npu, instance, difference, npus)
    met = np.unique(npu)
    reference[met] = first[met]
    base = nodes.base_micros[met] - nodes.base_micros[reference[met]]
    offset[met] = base + solved[met] - solved[reference[met]]
    return RankClocks(offset, reference, residual)


def _solved(
    rank_of_row: NDArray[np.int64],
    collective_of_row: NDArray[np.int64],
    difference_micros: NDArray[np.float64],
    num_npus: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Solve difference = offset of the rank + time of the collective; return offsets, references and residuals."""
    from scipy import sparse
    from scipy.sparse import csgraph
    from scipy.sparse.linalg import lsqr

    count, columns = len(rank_of_row), num_npus + int(collective_of_row.max()) + 1
    row = np.arange(count)
    ones = np.ones(2 * count)
    places = np.concatenate([row, row]), np.concatenate([rank_of_row, num_npus + collective_of_row])
    matrix = sparse.csr_matrix((ones, places), (count, columns))
    edges = sparse.coo_matrix((np.ones(count), (rank_of_row, num_npus + collective_of_row)), (columns, columns))
    # ranks that share no collectives, even indirectly, cannot be compared
    _, component = csgraph.connected_components(edges, directed=False)
    first = np.full(int(component.max()) + 1, num_npus, np.int64)
    np.minimum.at(first, component[rank_of_row], rank_of_row)
    weight, solved = np.ones(count), np.zeros(columns)
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        left = difference_micros - matrix @ solved
        found = lsqr(sparse.diags(root) @ matrix, root * left, atol=_TOLERANCE, btol=_TOLERANCE)
        solved = solved + found[0]
        # reweighted least squares towards the smallest sum of absolute errors: outliers count less
        weight = 1 / np.maximum(np.abs(difference_micros - matrix @ solved), _MIN_RESIDUAL_MICROS)
    return solved[:num_npus], first[component[:num_npus]], difference_micros - matrix @ solved
