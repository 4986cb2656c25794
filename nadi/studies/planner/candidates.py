"""Candidate plans: every parallel plan that can train a model on a given number of GPUs.

What the user fixed in `--plan` is a constraint: every candidate has exactly those values. What the user left open is
enumerated: every way to factor the GPUs into tensor, context, pipeline and data parallelism, with every expert
parallelism, interleaving and micro-batch that the rules of the framework allow. Recomputation costs time, so the
planner takes the lightest mode that fits in memory: none, then selective, then full.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from nadi.workload import WorkloadError
from nadi.workload.generators.memory import peak_bytes
from nadi.workload.generators.models import Model
from nadi.workload.generators.training import ParallelPlan, rules

_Value = TypeVar("_Value")

RECOMPUTE = ("none", "selective", "full")
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
    base: ParallelPlan  # user's constraints: each field that was given (`model_fields_set`) holds for every plan
    framework: rules.Framework = "megatron"  # framework whose rules every plan must keep


class Candidate(NamedTuple):
    """A plan that keeps the framework's rules and the user's constraints."""

    plan: ParallelPlan  # settled plan; its recomputation is the fixed mode, else the lightest mode that fits, else full
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
        settled = rules.settle(model, plan, space.framework)
        broken = rules.first_broken(model, settled, space.framework) or _dropped(space.base, settled)
        if not broken:
            has_valid = True
            yield _lightest(model, settled, space)
        complaint = complaint or f"of {settled}, {broken}"
    if not has_valid:
        why = _sizes_complaint(space) or complaint or "no sizes of the open axes fit the fixed ones"
        raise WorkloadError(f"{model.name} on {space.gpus} GPUs{_with_constraints(space)}: no plan is valid; {why}")


def _with_constraints(space: PlanSpace) -> str:
    """Return the constraints as they are appended to a message; "" without any."""
    constraints = space.base.constraints()
    return f" with --plan {constraints}" if constraints else ""


def _lightest(model: Model, plan: ParallelPlan, space: PlanSpace) -> Candidate:
    """Return the settled plan with the fixed recomputation, else with the lightest mode that fits in memory."""
    for recompute in _open_or_fixed(space.base, "recompute", RECOMPUTE):
        candidate = plan.model_copy(update={"recompute": recompute})
        peak = peak_bytes(model, candidate, space.framework)
        if peak <= space.memory_bytes:
            return Candidate(candidate, peak, fits=True)
    return Candidate(candidate, peak, fits=False)


def _factorisations(model: Model, space: PlanSpace) -> Iterator[ParallelPlan]:
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


def _open_or_fixed(constraints: ParallelPlan, field_name: str, open_values: Sequence[_Value]) -> Sequence[_Value]:
    """Return the fixed value of a field as the only option, else all open values."""
    return (getattr(constraints, field_name),) if field_name in constraints.model_fields_set else open_values


def _unless_fixed(constraints: ParallelPlan, field_name: str, value: object) -> dict[str, object]:
    """Return the planner's choice of a field, or nothing if the user fixed the field."""
    return {} if field_name in constraints.model_fields_set else {field_name: value}


def _dropped(constraints: ParallelPlan, plan: ParallelPlan) -> str:
    """Return a message for the first of the constraints that a settled plan does not keep; "" if it keeps all."""
    for field in ParallelPlan.model_fields:
        expected, actual = getattr(constraints, field), getattr(plan, field)
        if field in constraints.model_fields_set and not rules.is_open(field, expected) and actual != expected:
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
