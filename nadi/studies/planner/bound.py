"""Lower bound of the time of a step: its computation and the fill and drain of its pipeline, without communication.

An NPU computes one operator at a time, so a step takes at least as long as the computation of its busiest stage. A
stage cannot begin before the first micro-batch has passed all earlier stages, and after its last pass the gradients
still have to pass all of them. Collectives and messages take no time here, and overlap slows nothing down.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from et import TraceTable
from et.arrays import Int64
from nadi.studies.planner.step import shorter_plans
from workload import ComputeModel
from workload.generators.models import Model
from workload.generators.training import ParallelPlan
from workload.generators.training.ranks import stage_size
from workload.generators.training.rules import Framework
from workload.generators.training.stage import Stage
from workload.generators.training.stages import Chunk, chunks
from workload.node_kinds import COMPUTE, COMPUTE_LANE, RECV, SEND
from workload.program.durations import durations_ps
from workload.trace_sets.view import TraceView


class StageTimes(NamedTuple):
    """Computation of one NPU of a pipeline stage in picoseconds; see `_stage_times` for "pass"."""

    busy_ps: int  # time of all operators
    before_last_ps: int  # time of all operators before the last pass
    first_pass_ps: int  # time from the first receive to the first send
    last_pass_ps: int  # time of the last pass if it has been received before
    from_last_receive_ps: int  # time from the last receive to the end of the last pass


def bound_ps(compute: ComputeModel, model: Model, plan: ParallelPlan, framework: Framework) -> float:
    """Return the minimum step time of a settled plan in ps, whatever the network; `compute`: times of operators.

    As the step time itself, the bound of a step with many micro-batches is extrapolated from two shorter steps.
    """
    shorter = shorter_plans(plan)
    if shorter is None:
        return float(_stage_bounds_ps(compute, model, plan, framework).max())
    first, second, factor = shorter
    first_ps, second_ps = (_stage_bounds_ps(compute, model, short, framework) for short in (first, second))
    return float((second_ps + factor * (second_ps - first_ps)).max())


def _stage_bounds_ps(compute: ComputeModel, model: Model, plan: ParallelPlan, framework: Framework) -> Int64:
    """Return int64[2, stages]: minimum time of a step that each stage requires, with the last pass as one and apart."""
    times: dict[tuple[object, ...], StageTimes] = {}
    of_stage = []
    for stage, of_chunks in enumerate(chunks(model, plan)):
        key = _kind_of_stage(model, plan, stage, of_chunks)
        if key not in times:
            view = TraceView(Stage(model, plan, framework, stage * stage_size(plan)).table())
            times[key] = _stage_times(view, durations_ps(view, compute))
        of_stage.append(times[key])
    busy_ps = np.array([stage.busy_ps for stage in of_stage])
    if plan.pp == 1 or plan.is_mirrored:  # a mirrored pipeline begins at both ends
        return np.stack([busy_ps, busy_ps])
    first_ps, back_ps = ([getattr(stage, name) for stage in of_stage] for name in StageTimes._fields[2::2])
    fill_ps, drain_ps = (np.concatenate([[0], np.cumsum(column)[:-1]]) for column in (first_ps, back_ps))
    until_last_ps = np.array([stage.before_last_ps + stage.last_pass_ps for stage in of_stage])
    return np.stack([fill_ps + busy_ps, fill_ps + until_last_ps + drain_ps])


def _kind_of_stage(model: Model, plan: ParallelPlan, stage: int, of_chunks: Sequence[Chunk]) -> tuple[object, ...]:
    """Return a key that is equal for stages of the same computation; of_chunks: chunks of the stage."""
    if plan.imbalance:  # the layers differ
        return (stage,)
    ends = stage == 0, stage == plan.pp - 1
    kinds = ((chunk.is_first, chunk.is_last, *map(model.has_experts, chunk.layers)) for chunk in of_chunks)
    return (*ends, *kinds)


def _stage_times(view: TraceView, duration_ps: Int64) -> StageTimes:
    """Return the times of a stage; duration_ps: int64[n], time of each node.

    The first pass ends with the first send. The last pass begins with the last receive, and ends with the last send, or
    in the first stage, which sends its gradients nowhere, with the step. Within a pass, only operators that wait for
    each other count.
    """
    trace = view.table
    busy_ps = np.where((view.kind == COMPUTE) & (view.lane == COMPUTE_LANE), duration_ps, 0)
    sends, receives = np.flatnonzero(view.kind == SEND), np.flatnonzero(view.kind == RECV)
    if not len(sends) or not len(receives):
        return StageTimes(int(busy_ps.sum()), 0, 0, 0, 0)
    first, last = int(sends[0]), int(receives[-1])
    begin = int(receives[0]) if receives[0] < first else 0
    end = int(sends[-1]) if sends[-1] > last else len(trace) - 1
    return StageTimes(
        int(busy_ps[begin:].sum()),
        int(busy_ps[begin:last].sum()),
        _path_ps(trace, busy_ps, begin, first, from_first=begin > 0),
        _path_ps(trace, busy_ps, last, end, from_first=False),
        _path_ps(trace, busy_ps, last, end, from_first=True),
    )


def _path_ps(trace: TraceTable, busy_ps: Int64, begin: int, end: int, *, from_first: bool) -> int:
    """Return the longest time of computation on a path of dependencies to row `end` among rows from `begin` on.

    from_first: whether the path must begin with row `begin`; busy_ps: int64[n], time that each row computes.
    """
    pointers, parents = trace.dep_ptr[begin : end + 2].tolist(), trace.dep
    own_ps = busy_ps[begin : end + 1].tolist()
    path_ps: list[int | None] = []
    for row, time_ps in enumerate(own_ps):
        before = [path_ps[p - begin] for p in parents[pointers[row] : pointers[row + 1]].tolist() if p >= begin]
        known = [other for other in before if other is not None]
        if known or not from_first or row == 0:
            path_ps.append(time_ps + max(known, default=0))
        else:
            path_ps.append(None)
    return path_ps[-1] or 0
