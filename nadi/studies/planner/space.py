"""Candidate plans: every parallel plan that can train a model on a given number of GPUs, and a lower bound of its step.

What the user fixed in `--plan` is a constraint: every candidate has exactly those values. What the user left open is
enumerated: every way to factor the GPUs into tensor, context, pipeline and data parallelism, with every expert
parallelism, interleaving and micro-batch that the rules of the framework allow. Recomputation costs time, so the
planner takes the first that fits in memory, less a reserve, of those that the framework offers, the fastest first
(`recompute_options`).

An NPU computes one operator at a time, so a step takes at least as long as the computation of its busiest stage. It
also takes as long as the longest path of operators and collectives in the trace of an NPU that wait for each other. Of
the collectives, those of a layer count: of tensor, expert and context parallelism. Others, messages and the slowdown by
overlapping collectives take no time here. A stage cannot begin before the first micro-batch has passed all earlier
stages, and after its last pass the gradients still have to pass all of them.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64
from nadi.inputs.errors import InputError
from nadi.inputs.limits import MAX_BYTES
from nadi.inputs.units import format_bytes, parse_bytes_within, short
from nadi.studies.planner.quick_bound import layer_groups
from nadi.studies.planner.step import TargetMachine, deferring_rounds, on_target, with_micro_batches
from nadi.workload import WorkloadError
from nadi.workload.generators import training
from nadi.workload.generators.memory import peak_bytes
from nadi.workload.generators.models import Model
from nadi.workload.generators.training.rules import ANY_MACHINE, Framework
from nadi.workload.generators.training.stage import Stage
from nadi.workload.kinds import KIND_OF_COMM_TYPE, KINDS
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, COMPUTE_LANE, RECV, SEND
from nadi.workload.program import durations_ps
from nadi.workload.trace_sets import TraceView

_Value = TypeVar("_Value")

_FACTORS = ("tp", "cp", "pp", "dp")  # axes whose product is the number of GPUs
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_LONG_SEQUENCE = 16_384  # sequence length in tokens from which the planner tries context parallelism
_MIN_TOKENS_PER_GPU = 2_048  # minimum number of tokens of a sequence on each GPU of a context-parallel group
_MAX_CHUNKS = 8  # maximum number of model chunks per pipeline stage that the planner tries
_EMPTY_CHUNKS = 2  # number of chunks without layers: the first and the last of uneven stages hold the vocabulary alone


@dataclass(frozen=True)
class PlanSpace:
    """The space of plans that the planner searches."""

    gpus: int  # number of GPUs of each plan
    # maximum tensor parallelism unless the user fixed it, because tensor parallelism across hosts is slow
    gpus_per_host: int
    memory_bytes: int  # GPU memory in bytes that plans may use: capacity minus the reserve
    # user's constraints: each field that was given (`model_fields_set`) holds for every plan
    base: training.ParallelPlan
    framework: training.rules.Framework = "megatron"  # framework whose rules every plan must keep
    machine: training.rules.TrainingMachine = ANY_MACHINE  # what of the machine decides keys that the user left open


class Candidate(NamedTuple):
    """A plan that keeps the framework's rules and the user's constraints."""

    # settled plan; its recomputation is the fixed mode, else the lightest mode that fits, else full
    plan: training.ParallelPlan
    peak_bytes: int  # peak memory in bytes of the fullest GPU
    fits: bool  # whether the peak is within the memory of the space


def candidates(model: Model, space: PlanSpace) -> Iterator[Candidate]:
    """Yield every valid plan, also those that do not fit in memory; WorkloadError gives the reason if there is no plan.

    Args:
        model: The architecture of the model.
        space: The ranges of the plans' axes.
    """
    has_valid, complaint = False, ""
    for plan in _factorisations(model, space):
        open_plan = training.rules.settle(model, plan, space.framework)
        settled = training.rules.on_machine(model, open_plan, space.framework, space.machine)
        broken = training.rules.first_broken(model, settled, space.framework) or _dropped(space.base, settled)
        if not broken:
            has_valid = True
            yield _lightest(model, open_plan, space)
        complaint = complaint or f"of {settled}, {broken}"
    if not has_valid:
        why = _sizes_complaint(space) or complaint or "no sizes of the open axes fit the fixed ones"
        constraints = f" with --plan {fixed}" if (fixed := space.base.constraints()) else ""
        raise WorkloadError(f"{model.name} on {space.gpus} GPUs{constraints}: no plan is valid; {why}")


def _lightest(model: Model, plan: training.ParallelPlan, space: PlanSpace) -> Candidate:
    """Return the settled plan with the fixed recomputation, else with the lightest mode that fits in memory."""
    for recompute in _open_or_fixed(space.base, "recompute", training.recompute_options(model, space.framework)):
        # Keys of the machine may depend on the recomputation, which keys that the user fixed may exclude
        own = training.rules.on_machine(
            model, plan.model_copy(update={"recompute": recompute}), space.framework, space.machine
        )
        if training.rules.first_broken(model, own, space.framework):
            continue
        candidate = Candidate(own, peak := peak_bytes(model, own, space.framework), fits=peak <= space.memory_bytes)
        if candidate.fits:
            break
    return candidate


def _factorisations(model: Model, space: PlanSpace) -> Iterator[training.ParallelPlan]:
    """Yield a plan for every factorisation of the GPUs that has the values of the fixed axes; plans may break rules."""
    base, gpus = space.base, space.gpus
    sequence = base.sequence or model.sequence
    # each axis takes what the axes before leave: dp follows from the other three
    for tp in _open_or_fixed(base, "tp", _divisors(gpus, space.gpus_per_host)):
        for cp in _open_or_fixed(base, "cp", _context(sequence, gpus // tp)):
            for pp in _open_or_fixed(base, "pp", _divisors(gpus // (tp * cp), model.layers)):
                dp = gpus // (tp * cp * pp)
                if tp * cp * pp * dp != gpus or dp not in _open_or_fixed(base, "dp", (dp,)):
                    continue
                axes = {
                    "tp": tp,
                    "cp": cp,
                    "pp": pp,
                    "dp": dp,
                    **_unless_fixed(base, "sequence_parallel", tp > 1),
                    **_unless_fixed(base, "zero", 0 if space.framework == "fsdp" or dp * cp == 1 else 1),
                }
                for ep in _open_or_fixed(base, "ep", _expert(model, tp * cp * dp)):
                    for vpp in _open_or_fixed(base, "vpp", _interleaving(model.layers, pp)):
                        uneven = _unless_fixed(base, "uneven", model.layers % (pp * vpp) != 0)
                        for micro_batch in _open_or_fixed(base, "micro_batch", _MICRO_BATCHES):
                            chunked = {"ep": ep, "vpp": vpp, **uneven, "micro_batch": micro_batch}
                            yield base.model_copy(update={**axes, **chunked})


def _open_or_fixed(
    constraints: training.ParallelPlan, field_name: str, open_values: Sequence[_Value]
) -> Sequence[_Value]:
    """Return the fixed value of a field as the only option, else all open values."""
    return (getattr(constraints, field_name),) if field_name in constraints.model_fields_set else open_values


def _unless_fixed(constraints: training.ParallelPlan, field_name: str, value: object) -> dict[str, object]:
    """Return the planner's choice of a field, or nothing if the user fixed the field."""
    return {} if field_name in constraints.model_fields_set else {field_name: value}


def _dropped(constraints: training.ParallelPlan, plan: training.ParallelPlan) -> str:
    """Return a message for the first of the constraints that a settled plan does not keep; "" if it keeps all."""
    for field in training.ParallelPlan.model_fields:
        expected, actual = getattr(constraints, field), getattr(plan, field)
        if field in constraints.model_fields_set and not training.rules.is_open(field, expected) and actual != expected:
            return f"{field} would be {actual}, expected {expected} as in --plan"
    return ""


def _sizes_complaint(space: PlanSpace) -> str:
    """Return why the fixed axes cannot fill the GPUs; "" if they can."""
    fixed = {axis: getattr(space.base, axis) for axis in _FACTORS if axis in space.base.model_fields_set}
    product = math.prod(fixed.values())
    if len(fixed) == len(_FACTORS) and product != space.gpus:
        return f"{' * '.join(fixed)} is {product}, expected {space.gpus}"
    if space.gpus % product:
        return f"{' * '.join(fixed)} is {product}, expected a divisor of the {space.gpus} GPUs"
    return ""


def _divisors(number: int, maximum: int) -> list[int]:
    """Return the divisors of a number up to a maximum."""
    return [d for d in range(1, min(number, maximum) + 1) if number % d == 0]


def _context(sequence_tokens: int, num_gpus: int) -> list[int]:
    """Return the degrees of context parallelism to try on these GPUs: powers of two, for long sequences only."""
    if sequence_tokens < _LONG_SEQUENCE:
        return [1]
    return [
        cp for cp in (1, 2, 4, 8, 16, 32, 64) if num_gpus % cp == 0 and sequence_tokens // cp >= _MIN_TOKENS_PER_GPU
    ]


def _expert(model: Model, num_gpus: int) -> list[int]:
    """Return the degrees of expert parallelism to try: divisors of the number of experts and of a stage's GPUs."""
    if model.experts is None:
        return [1]
    return [ep for ep in _divisors(model.experts.count, num_gpus) if num_gpus % ep == 0]


def _interleaving(num_layers: int, num_stages: int) -> list[int]:
    """Return the numbers of model chunks per stage: up to eight, as long as each inner chunk has a layer."""
    maximum = 1 if num_stages == 1 else min(_MAX_CHUNKS, (num_layers + _EMPTY_CHUNKS) // num_stages)
    return list(range(1, max(1, maximum) + 1))


_BEFORE_FIRST = -1  # time of a row that does not wait for the first row of a pass


class StageTimes(NamedTuple):
    """Minimum times of one NPU of a pipeline stage in picoseconds; see `_stage_times` for "pass"."""

    whole_ps: int  # time from the first receive to the end of the step
    to_last_send_ps: int  # time from the first receive to the last send, with all receives in time
    first_pass_ps: int  # time from the first receive to the first send
    last_pass_ps: int  # time from the last receive to the end of the last pass


def bound_ps(machine: TargetMachine, model: Model, plan: training.ParallelPlan, framework: Framework) -> float:
    """Return the minimum step time of a settled plan in ps.

    As the step time itself, the bound of a step with many micro-batches is extrapolated from two shorter steps. They
    are shorter here, because a stage that never waits for others does the same for each micro-batch.

    Args:
        machine: The GPUs with their fabric and operator times.
        model: The architecture of the model.
        plan: The parallel plan, with all values settled.
        framework: The software whose overlap and schedules apply.
    """
    plan = on_target(machine, model, plan, framework)
    rounds = 1 + deferring_rounds(plan) + plan.is_mirrored
    short, longer = rounds * plan.pp, (rounds + 1) * plan.pp
    count = training.micro_batches(plan)
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
    plan: training.ParallelPlan,
    framework: Framework,
    generators: dict[tuple[object, ...], Stage],
) -> NDArray[np.int64]:
    """Return int64[2, stages]: the time that each stage requires, to its own end and to that of the first stage."""
    # generators: those of plans that differ in the global batch only, by kind of stage; new ones are added.
    times: dict[tuple[object, ...], StageTimes] = {}
    of_stage = []
    for stage, of_chunks in enumerate(training.chunks(model, plan)):
        key = _kind_of_stage(model, plan, stage, of_chunks)
        if key not in times:
            npu = stage * training.stage_size(plan)
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


def _kind_of_stage(
    model: Model, plan: training.ParallelPlan, stage: int, of_chunks: Sequence[training.Chunk]
) -> tuple[object, ...]:
    """Return a key that is equal for stages of the same computation; of_chunks: chunks of the stage."""
    if plan.imbalance:  # the layers differ
        return (stage,)
    ends = stage == 0, stage == plan.pp - 1
    kinds = (
        (chunk.is_first, chunk.is_last, *((model.has_experts(layer), model.window_of(layer)) for layer in chunk.layers))
        for chunk in of_chunks
    )
    return (*ends, *kinds)


def _collectives_ps(
    view: TraceView, machine: TargetMachine, plan: training.ParallelPlan, framework: Framework, npu: int
) -> Int64:
    """Return int64[n], time of each node that is a collective of a layer, 0 for others; npu: first NPU of its stage."""
    groups = layer_groups(plan)
    table, copied = view.table, training.copied_groups(framework, plan)
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


_SHARE = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%\s*")


class MemoryReserve(NamedTuple):
    """A reserve as a size or as a share of GPU memory; the other field is zero."""

    size_bytes: int = 0  # reserve of each GPU in bytes
    share: Fraction = Fraction(0)  # reserve as a share of each GPU's memory, 0 to 1

    @classmethod
    def parse(cls, text: str) -> "MemoryReserve":
        """Parse "4GiB" or "5%". Raises ConfigError if the text is neither a size nor a share below 100 %."""
        match = _SHARE.fullmatch(text)
        if match and (share := Fraction(match[1]) / 100) < 1:
            return cls(share=share)
        try:
            return cls(size_bytes=parse_bytes_within(text, MAX_BYTES))
        except InputError as error:
            raise ConfigError(
                f"--reserve: found {short(text)}; expected a size as 4GiB, or a share of a GPU's memory, as 5%"
            ) from error

    def bytes_of(self, memory_bytes: int, gpu: str) -> int:
        """Return the bytes reserved of a GPU's memory, rounded up; raise ConfigError if they leave none.

        Args:
            memory_bytes: The memory of the GPU in bytes.
            gpu: The name of the GPU, for errors.
        """
        reserve_bytes = self.size_bytes + math.ceil(self.share * memory_bytes)
        if reserve_bytes >= memory_bytes:
            raise ConfigError(
                f"--reserve: found {format_bytes(reserve_bytes)}; expected less than the {format_bytes(memory_bytes)} "
                f"that a GPU has ({gpu})"
            )
        return reserve_bytes


DEFAULT_RESERVE = MemoryReserve(share=Fraction(5, 100))
"""Default reserve, in addition to CUDA's context and NCCL's buffers, which `workload.generators.memory` counts.

CUDA offers 79.1 to 79.2 GiB of the 80 GiB of an H100, 1 % less (NVIDIA-NeMo/RL#2814). PyTorch's allocator lost 1.83 GiB
to fragmentation beside 75.3 GiB of a model that filled the memory, 2.4 %; that project then reserved 5 %
(vllm-project/compressed-tensors#587). The rest is for copies in the optimizer's step, which no estimate counts."""
