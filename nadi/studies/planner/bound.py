"""Lower bound of the time of a step: its computation and the fill and drain of its pipeline, without communication.

An NPU computes one operator at a time, so a step takes at least as long as the computation of its busiest stage. A
stage cannot begin before the first micro-batch has passed all earlier stages, and after its last pass the gradients
still have to pass all of them. Collectives and messages take no time here, and overlap slows nothing down.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from et import TraceTable
from et.arrays import Int64
from et.names import ComposedNames
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

_MICRO_BATCH = re.compile(r"/mb([0-9]++)/")


class StageTimes(NamedTuple):
    """Computation of one NPU of a pipeline stage in picoseconds; see `_stage_times` for "pass"."""

    busy_ps: int  # time of all operators
    before_last_ps: int  # time of all operators before the last pass
    first_pass_ps: int  # time from the first receive to the first send
    last_pass_ps: int  # time of the last pass if it has been received before
    from_last_receive_ps: int  # time from the last receive to the end of the last pass
    micro_batch_ps: int  # time of all operators of a micro-batch, of that with the least


def bound_ps(compute: ComputeModel, model: Model, plan: ParallelPlan, framework: Framework) -> float:
    """Return the minimum step time of a settled plan in ps, whatever the network; `compute`: times of operators.

    As for the step time itself, a step with many micro-batches is replaced by a shorter one. Each further micro-batch
    takes at least as long as that micro-batch of the shorter step which has the least to compute.
    """
    shorter = shorter_plans(plan)
    timed = shorter[0] if shorter else plan
    further = (plan.global_batch - timed.global_batch) // (plan.dp * plan.micro_batch)
    stages = _of_stages(compute, model, timed, framework)
    busy_ps = np.array([stage.busy_ps + further * stage.micro_batch_ps for stage in stages])
    if plan.pp == 1 or plan.is_mirrored:  # a mirrored pipeline begins at both ends
        return float(busy_ps.max())
    fill_ps = np.concatenate([[0], np.cumsum([stage.first_pass_ps for stage in stages])[:-1]])
    drain_ps = np.concatenate([[0], np.cumsum([stage.from_last_receive_ps for stage in stages])[:-1]])
    last_ps = [stage.before_last_ps + further * stage.micro_batch_ps + stage.last_pass_ps for stage in stages]
    return float(max((fill_ps + busy_ps).max(), (fill_ps + last_ps + drain_ps).max()))


def _of_stages(compute: ComputeModel, model: Model, plan: ParallelPlan, framework: Framework) -> list[StageTimes]:
    """Return the times of each stage of a step."""
    times: dict[tuple[object, ...], StageTimes] = {}
    of_stage = []
    for stage, of_chunks in enumerate(chunks(model, plan)):
        key = _kind_of_stage(model, plan, stage, of_chunks)
        if key not in times:
            view = TraceView(Stage(model, plan, framework, stage * stage_size(plan)).table())
            times[key] = _stage_times(view, durations_ps(view, compute))
        of_stage.append(times[key])
    return of_stage


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
    micro_batch_ps = _shortest_micro_batch_ps(trace, busy_ps)
    if not len(sends) or not len(receives):
        return StageTimes(int(busy_ps.sum()), 0, 0, 0, 0, micro_batch_ps)
    first, last = int(sends[0]), int(receives[-1])
    begin = int(receives[0]) if receives[0] < first else 0
    end = int(sends[-1]) if sends[-1] > last else len(trace) - 1
    return StageTimes(
        int(busy_ps[begin:].sum()),
        int(busy_ps[begin:last].sum()),
        _path_ps(trace, busy_ps, begin, first, from_first=begin > 0),
        _path_ps(trace, busy_ps, last, end, from_first=False),
        _path_ps(trace, busy_ps, last, end, from_first=True),
        micro_batch_ps,
    )


def _shortest_micro_batch_ps(trace: TraceTable, busy_ps: Int64) -> int:
    """Return the minimum over the micro-batches of the time that they compute; busy_ps: int64[n], time of each row."""
    names = trace.names
    assert isinstance(names, ComposedNames)  # noqa: S101 - the generator composes names
    of_head = np.bincount(names.head, busy_ps, len(names.heads))
    times: dict[str, float] = {}
    for head, time_ps in zip(names.heads, of_head.tolist(), strict=True):
        if match := _MICRO_BATCH.search(head):
            times[match[1]] = times.get(match[1], 0.0) + time_ps
    return int(min(times.values()))


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
