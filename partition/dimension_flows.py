"""Packets of each link under DimensionRouting: one dimension after another, all pairs at once.

On a ring, a pair's packets cover consecutive links; such runs are added up as differences at their two ends, so that
the length of a path does not matter for the cost.
"""

import numpy as np

from nadi.inputs.arrays import Float64, Int64
from nadi.topologies import RING, SINGLE, DimensionRouting, Graph

_MAX_PAIRS = 1 << 20  # per block, to bound memory


def dimension_loads(graph: Graph, routing: DimensionRouting, src: Int64, dst: Int64, packets: Float64) -> Float64:
    """Return float64[links]: packets of each link, shared equally among the links that `next_links` allows.

    Args:
        graph: The fabric (`Graph`).
        routing: Routing of the fabric by dimensions.
        src: int64[p], the sending NPU of each pair.
        dst: int64[p], the receiving NPU of each pair, another than `src`.
        packets: float64[p], packets of each pair.
    """
    packets_of_set = np.zeros(len(routing.set_ptr) - 1)
    for begin in range(0, len(src), _MAX_PAIRS):
        block = slice(begin, begin + _MAX_PAIRS)
        packets_of_set += _set_loads(graph, routing, src[block], dst[block], packets[block])
    sizes = np.diff(routing.set_ptr)
    # set_ptr is a CSR of links: set s has links set_link[set_ptr[s]:set_ptr[s + 1]], each with an equal part
    per_link = np.repeat(packets_of_set / sizes, sizes)
    return np.asarray(np.bincount(routing.set_link, per_link, minlength=graph.links), np.float64)


def _set_loads(graph: Graph, routing: DimensionRouting, src: Int64, dst: Int64, packets: Float64) -> Float64:
    """Return float64[sets]: packets of each port set, from NPUs src to dst, int64[p], with packets float64[p]."""
    packets_of_set = np.zeros(len(routing.set_ptr) - 1)
    # sizes (4, 2, 3): strides (1, 4, 8), as an NPU's number is digit 0 + 4 x digit 1 + 8 x digit 2
    stride = np.cumprod(np.append(1, routing.sizes[:-1]), dtype=np.int64)
    here = src.copy()
    for d in range(len(routing.sizes)):
        goal = routing.digit[dst, d].astype(np.int64)
        moves = np.flatnonzero(routing.digit[here, d] != goal)
        mode = routing.mode[0, d]  # the same for all NPUs
        if mode == RING:
            packets_of_set += _ring_loads(routing, d, int(stride[d]), here[moves], goal[moves], packets[moves])
        else:
            node = here[moves]
            if mode == SINGLE:
                up = routing.sets[routing.offset[node, d]]
                packets_of_set += np.bincount(up, packets[moves], minlength=len(packets_of_set))
                # the packets are at that switch now, from where one more link leads to the NPU with the goal's digit
                node = graph.link_dst[routing.set_link[routing.set_ptr[up]]]
            across = routing.sets[routing.offset[node, d] + goal[moves]]
            packets_of_set += np.bincount(across, packets[moves], minlength=len(packets_of_set))
        # all pairs are where their packets enter the next dimension
        here[moves] += (goal[moves] - routing.digit[here[moves], d]) * stride[d]
    return packets_of_set


def _ring_loads(
    routing: DimensionRouting, dimension: int, stride: int, here: Int64, goal: Int64, packets: Float64
) -> Float64:
    """Return float64[sets]: packets of each port set from moves in a Ring dimension, the shorter way."""
    # stride: distance of neighbours' numbers; here, goal, packets: [p], NPU, target digit and packets of each move.
    size = int(routing.sizes[dimension])
    npus = int(np.prod(routing.sizes, dtype=np.int64))
    digit = routing.digit[here, dimension].astype(np.int64)
    ahead = (goal - digit) % size
    # [p, 2]: number of links towards +1 and -1, by which the opposite node's packets are shared
    links = np.diff(routing.set_ptr)[routing.sets[routing.offset[here, dimension][:, None] + np.array([0, 1])]]
    up = np.where(2 * ahead == size, packets * links[:, 0] / links.sum(axis=1), np.where(2 * ahead < size, packets, 0))
    down = packets - up

    npu = np.arange(npus)
    # rings of the dimension: NPUs that differ in this digit only; line_of numbers them, [npus]
    line_of = npu // (stride * size) * stride + npu % stride
    digit_of = npu // stride % size
    line, lines = line_of[here], npus // size
    upwards = _runs(lines, size, line, digit, ahead, up)[line_of, digit_of]
    # towards -1 from digit a to b uses the sets of a, a - 1, .., b + 1: a run that begins at b + 1
    downwards = _runs(lines, size, line, (goal + 1) % size, (digit - goal) % size, down)[line_of, digit_of]
    offset = routing.offset[:npus, dimension]
    sets = np.concatenate([routing.sets[offset], routing.sets[offset + 1]])
    packets_of = np.bincount(sets, np.concatenate([upwards, downwards]), minlength=len(routing.set_ptr) - 1)
    return np.asarray(packets_of, np.float64)


def _runs(rings: int, ring_size: int, ring_of_run: Int64, begin: Int64, length: Int64, packets: Float64) -> Float64:
    """Return float64[rings, ring_size]: packets of runs of a length from `begin` on, which wrap around, per place."""
    # Example: a ring of 4, a run of 3 packets from place 3, 2 links long: +3 at 3, -3 at 5 of twice the ring; the
    # running sum is 0 0 0 3 3 0 0 0, and both halves added give 3 0 0 3: links 3 and 0.
    first = ring_of_run * 2 * ring_size + begin
    steps = np.bincount(first, packets, minlength=2 * rings * ring_size)
    steps -= np.bincount(first + length, packets, minlength=2 * rings * ring_size)
    twice = np.cumsum(steps.reshape(rings, 2 * ring_size), axis=1)
    return np.maximum(twice[:, :ring_size] + twice[:, ring_size:], 0)  # rounding must not leave negative values
