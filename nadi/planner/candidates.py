"""All plans by which a model can be trained on a number of GPUs.

Every way to factor the GPUs into tensor, context, pipeline and data parallelism, with every expert parallelism,
interleaving and micro-batch that the rules of the framework allow. Of recomputation the least is taken that fits in
memory, since more only takes longer: none, then selective, then full.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from workload.memory import peak_bytes
from workload.models import Model
from workload.training import ParallelPlan, rules

RECOMPUTE = ("none", "selective", "full")
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_LONG_SEQUENCE = 16_384
"""From this many tokens on plans with context parallelism are looked at."""
_SHORTEST_PART = 2_048
"""Tokens of a sequence that each of a context-parallel group has at least."""


@dataclass(frozen=True)
class Space:
    """What is looked through.

    Attributes:
        gpus: of each plan.
        gpus_per_host: the most tensor parallelism: beyond a host its communication is slower by far.
        memory_bytes: of a GPU, without what plans leave free.
        base: what all plans have in common: sequence, global batch, data types, attention.
        framework: whose rules.
    """

    gpus: int
    gpus_per_host: int
    memory_bytes: int
    base: ParallelPlan
    framework: rules.Framework = "megatron"


class Candidate(NamedTuple):
    """A plan that keeps the rules.

    Attributes:
        plan: settled; its recomputation is the least that fits, or full.
        peak_bytes: of the fullest GPU.
        fits: whether that is at most what the space has of a GPU.
    """

    plan: ParallelPlan
    peak_bytes: int
    fits: bool


def candidates(model: Model, space: Space) -> Iterator[Candidate]:
    """Every valid plan of a space, also those that do not fit.

    Raises:
        WorkloadError: not one plan is valid; says which rule the plainest one breaks.
    """
    found = False
    for plan in _factorisations(model, space):
        settled = rules.settle(model, plan, space.framework)
        if not rules.first_broken(model, settled, space.framework):
            found = True
            yield _lightest(model, settled, space)
    if not found:
        rules.check(model, replace_fields(space.base, dp=space.gpus), space.framework)


def replace_fields(plan: ParallelPlan, **fields: object) -> ParallelPlan:
    """The plan with other values, checked."""
    return ParallelPlan(**{**plan.model_dump(), **fields})


def _lightest(model: Model, plan: ParallelPlan, space: Space) -> Candidate:
    """The plan with the least recomputation that fits."""
    for recompute in RECOMPUTE:
        tried = plan.model_copy(update={"recompute": recompute})
        peak = peak_bytes(model, tried, space.framework)
        if peak <= space.memory_bytes:
            return Candidate(tried, peak, fits=True)
    return Candidate(tried, peak, fits=False)


def _factorisations(model: Model, space: Space) -> Iterator[ParallelPlan]:
    """Plans of all factors of the GPUs, valid or not."""
    sequence = space.base.sequence or model.sequence
    for tp in _divisors(space.gpus, space.gpus_per_host):
        for cp in _context(sequence, space.gpus // tp):
            for pp in _divisors(space.gpus // (tp * cp), model.layers):
                dp = space.gpus // (tp * cp * pp)
                axes = {
                    "tp": tp,
                    "cp": cp,
                    "pp": pp,
                    "dp": dp,
                    "sequence_parallel": tp > 1,
                    "zero": 1 if dp * cp > 1 else 0,
                }
                for ep in _expert(model, tp * cp * dp):
                    for vpp in _interleaving(model.layers, pp):
                        for micro_batch in _MICRO_BATCHES:
                            yield replace_fields(space.base, **axes, ep=ep, vpp=vpp, micro_batch=micro_batch)


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def _context(sequence: int, gpus: int) -> list[int]:
    """Sizes of context parallelism: powers of two, on long sequences only."""
    if sequence < _LONG_SEQUENCE:
        return [1]
    return [cp for cp in (1, 2, 4, 8, 16, 32, 64) if gpus % cp == 0 and sequence // cp >= _SHORTEST_PART]


def _expert(model: Model, gpus: int) -> list[int]:
    """Sizes of expert parallelism: divisors of the experts among the GPUs of a stage."""
    if model.experts is None:
        return [1]
    return [ep for ep in _divisors(model.experts.count, gpus) if gpus % ep == 0]


def _interleaving(layers: int, pp: int) -> list[int]:
    """Model chunks of a stage: divisors of its layers, up to eight."""
    if pp == 1 or layers % pp:
        return [1]
    return _divisors(layers // pp, 8)
