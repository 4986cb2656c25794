"""Lower bound of the time of a step, from its pipeline stages one by one.

An NPU computes one operator at a time, so a step takes at least as long as the computation of its busiest stage. It
also takes as long as the longest path of operators and collectives in the trace of an NPU that wait for each other. Of
the collectives, those of a layer count: of tensor, expert and context parallelism. Others, messages and the slowdown by
overlapping collectives take no time here.

A stage cannot begin before the first micro-batch has passed all earlier stages, and after its last pass the gradients
still have to pass all of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int64
from nadi.studies.planner.step import TargetMachine, deferring_rounds, with_micro_batches
from nadi.workload.generators.models import Model
from nadi.workload.generators.training import Chunk, ParallelPlan, chunks, copied_groups, micro_batches, stage_size
from nadi.workload.generators.training.rules import Framework
from nadi.workload.generators.training.stage import Stage
from nadi.workload.kinds import KIND_OF_COMM_TYPE, KINDS
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, COMPUTE_LANE, RECV, SEND
from nadi.workload.program import durations_ps
from nadi.workload.trace_sets import TraceView

_BEFORE_FIRST = -1  # time of a row that does not wait for the first row of a pass


class StageTimes(NamedTuple):
    """Minimum times of one NPU of a pipeline stage in picoseconds; see `_stage_times` for "pass"."""

    whole_ps: int  # time from the first receive to the end of the step
    to_last_send_ps: int  # time from the first receive to the last send, with all receives in time
    first_pass_ps: int  # time from the first receive to the first send
    last_pass_ps: int  # time from the last receive to the end of the last pass


def bound_ps(machine: TargetMachine, model: Model, plan: ParallelPlan, framework: Framework) -> float:
    """Return the minimum step time of a settled plan in ps.

    As the step time itself, the bound of a step with many micro-batches is extrapolated from two shorter steps. They
    are shorter here, because a stage that never waits for others does the same for each micro-batch.

    Args:
        machine: The GPUs with their fabric and operator times.
        model: The architecture of the model.
        plan: The parallel plan, with all values settled.
        framework: The software whose overlap and schedules apply.
    """
    rounds = 1 + deferring_rounds(plan) + plan.is_mirrored
    short, longer = rounds * plan.pp, (rounds + 1) * plan.pp
    count = micro_batches(plan)
    stages: dict[tuple[object, ...], Stage] = {}
    if count <= longer:
        return float(_bounds_ps(machine, model, plan, framework, stages).max())
    first_ps, second_ps = (
        _bounds_ps(machine, model, with_micro_batches(plan, number), framework, stages) for number in (short, longer)
    )
    return float((second_ps + (count - longer) / (longer - short) * (second_ps - first_ps)).max())


def _bounds_ps(
    machine: TargetMachine,
    model: Model,
    plan: ParallelPlan,
    framework: Framework,
    generators: dict[tuple[object, ...], Stage],
) -> NDArray[np.int64]:
    """Return int64[2, stages]: the time that each stage requires, to its own end and to that of the first stage."""
    # generators: those of plans that differ in the global batch only, by kind of stage; new ones are added.
    times: dict[tuple[object, ...], StageTimes] = {}
    of_stage = []
    for stage, of_chunks in enumerate(chunks(model, plan)):
        key = _kind_of_stage(model, plan, stage, of_chunks)
        if key not in times:
            npu = stage * stage_size(plan)
            if key not in generators:
                generators[key] = Stage(model, plan, framework, npu)
            view = TraceView(generators[key].table(plan.global_batch))
            durations = durations_ps(view, machine.compute)
            busy_ps = np.where((view.kind == COMPUTE) & (view.lane == COMPUTE_LANE), durations, 0)
            times[key] = _stage_times(view, busy_ps, _collectives_ps(view, machine, plan, framework, npu))
        of_stage.append(times[key])
    whole_ps, to_last_send_ps, first_ps, last_ps = np.array(of_stage, np.int64).T
    if plan.pp == 1 or plan.is_mirrored:  # a mirrored pipeline begins at both ends
        return np.stack([whole_ps, whole_ps])
    # int64[stages], sums over the earlier stages, which a stage waits for first, and which follow it at the end
    fill_ps, drain_ps = (np.cumsum(column) - column for column in (first_ps, last_ps))
    return np.stack([fill_ps + whole_ps, fill_ps + to_last_send_ps + drain_ps])


def _kind_of_stage(model: Model, plan: ParallelPlan, stage: int, of_chunks: Sequence[Chunk]) -> tuple[object, ...]:
    """Return a key that is equal for stages of the same computation; of_chunks: chunks of the stage."""
    if plan.imbalance:  # the layers differ
        return (stage,)
    ends = stage == 0, stage == plan.pp - 1
    kinds = ((chunk.is_first, chunk.is_last, *map(model.has_experts, chunk.layers)) for chunk in of_chunks)
    return (*ends, *kinds)


def _collectives_ps(
    view: TraceView, machine: TargetMachine, plan: ParallelPlan, framework: Framework, npu: int
) -> Int64:
    """Return int64[n], time of each node that is a collective of a layer, 0 for others; npu: first NPU of its stage."""
    groups = {  # number of members and distance of their numbers
        "tp": (plan.tp, 1),
        "adapters": (plan.tp, 1),
        "cp": (plan.cp, plan.tp),
        "ep": (plan.ep, plan.etp),
        "etp": (plan.etp, 1),
    }
    table, copied = view.table, copied_groups(framework, plan)
    is_even = (view.kind == COLLECTIVE) & (table.in_split_size == 0) & (table.out_split_size == 0)
    time_ps = np.zeros(len(table), np.int64)
    rows = np.flatnonzero(is_even)
    # int64[3, collectives]: a step has thousands of collectives, but few different ones, and only these need a cost
    keys = np.stack([table.group[rows], table.comm_type[rows], table.comm_size[rows]]).astype(np.int64)
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    for number, (group, comm_type, comm_bytes) in enumerate(distinct.T.tolist()):
        name = table.group_names[group]
        if name not in groups or name in copied:
            continue
        count, distance = groups[name]
        kind = int(KIND_OF_COMM_TYPE[comm_type])
        factor = machine.collectives.buffer_factor(np.array([count]))[kind, 0]
        members = npu + distance * np.arange(count)
        form = machine.costs.of_group(machine.collectives, KINDS[kind], members, comm_bytes * int(factor))
        time_ps[rows[inverse.reshape(-1) == number]] = round(form.time_ps)
    return time_ps


def _stage_times(view: TraceView, busy_ps: Int64, collectives_ps: Int64) -> StageTimes:
    """Return the times of a stage; busy_ps, collectives_ps: int64[n], time of each operator and collective.

    The first pass ends with the first send. The last pass begins with the last receive, and ends with the last send, or
    in the first stage, which sends its gradients nowhere, with the step.
    """
    sends, receives = np.flatnonzero(view.kind == SEND), np.flatnonzero(view.kind == RECV)
    times_ps = busy_ps + collectives_ps
    if not len(sends) or not len(receives):
        whole_ps = max(_paths_ps(view, times_ps, 0, len(times_ps) - 1))
        # a stage without messages, as of a plan with one stage: nothing to fill or drain
        return StageTimes(max(int(busy_ps.sum()), whole_ps), 0, 0, 0)
    first, last = int(sends[0]), int(receives[-1])
    begin = int(receives[0]) if receives[0] < first else 0
    end = int(sends[-1]) if sends[-1] > last else len(times_ps) - 1
    paths_ps = _paths_ps(view, times_ps, begin, len(times_ps) - 1)
    last_pass_ps = _paths_ps(view, times_ps, last, end)[-1]
    return StageTimes(
        max(int(busy_ps[begin:].sum()), *paths_ps),
        max(int(busy_ps[begin:last].sum()) + last_pass_ps, paths_ps[end - begin]),
        _paths_ps(view, times_ps, begin, first, from_first=begin > 0)[-1],
        max(_paths_ps(view, times_ps, last, end, from_first=True)[-1], 0),
    )


def _paths_ps(view: TraceView, times_ps: Int64, begin: int, end: int, *, from_first: bool = False) -> list[int]:
    """Return the time of the longest path of rows that wait for each other to each row from `begin` to `end`.

    from_first: whether paths must begin with row `begin`; rows without such a path have _BEFORE_FIRST. times_ps:
    int64[n], time of each row.
    """
    pointers = (view.table.dep_ptr[begin : end + 2] - view.table.dep_ptr[begin]).tolist()
    parents = (
        view.table.dep[view.table.dep_ptr[begin] : view.table.dep_ptr[end + 1]].astype(np.int64) - begin
    ).tolist()
    otherwise = _BEFORE_FIRST if from_first else 0
    paths: list[int] = []
    for row, time_ps in enumerate(times_ps[begin : end + 1].tolist()):
        before = max([paths[p] for p in parents[pointers[row] : pointers[row + 1]] if p >= 0], default=otherwise)
        # row `begin` itself is where paths from it start
        if row == 0 and before < 0:
            before = 0
        paths.append(before + time_ps if before >= 0 else _BEFORE_FIRST)
    return paths
