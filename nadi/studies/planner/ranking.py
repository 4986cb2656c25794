"""Plans by the time of their step, several processes at once."""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from inputs.units import PS_PER_S
from nadi.studies.planner.candidates import Candidate
from nadi.studies.planner.step import StepTime, TargetMachine, step_time
from workload.generators.models import Model
from workload.generators.models.operations import training_flops
from workload.generators.training import rules


class RankedPlan(NamedTuple):
    """A plan and what it takes.

    Attributes:
        candidate: the plan and its memory.
        step: its time.
        tokens_per_s: of all GPUs.
        mfu: model FLOP/s over the peak of all GPUs, without what is worked out again; of attention's pairs of query and
            key those count that a causal mask leaves.
        mfu_all_pairs: the same, all pairs counted.
    """

    candidate: Candidate
    step: StepTime
    tokens_per_s: float
    mfu: float
    mfu_all_pairs: float


class PlanSearch(NamedTuple):
    """What all plans have in common.

    Attributes:
        site: where they run.
        model: what is trained.
        framework: by which.
        peak_flops: of all GPUs, in the plans' data type.
    """

    site: TargetMachine
    model: Model
    framework: rules.Framework
    peak_flops: float


def answered(question: PlanSearch, candidate: Candidate) -> RankedPlan:
    """A candidate with the time of its step.

    Raises:
        WorkloadError: it cannot be run.
    """
    plan = candidate.plan
    step = step_time(question.site, question.model, plan, question.framework)
    seconds = step.step_ps / PS_PER_S
    mfu, mfu_all_pairs = (
        training_flops(question.model, plan.global_batch, plan.sequence, causal=causal) / seconds / question.peak_flops
        for causal in (True, False)
    )
    return RankedPlan(candidate, step, plan.global_batch * plan.sequence / seconds, mfu, mfu_all_pairs)


def ranked(question: PlanSearch, found: Sequence[Candidate], workers: int) -> Iterator[RankedPlan]:
    """The plans as they are done, in any order.

    Plans of one tensor-parallel size follow each other on one process, which so knows what their collectives take.

    Args:
        question: what they have in common.
        found: those that fit.
        workers: processes.

    Raises:
        WorkloadError: a plan cannot be run.
    """
    if workers == 1 or len(found) < workers:
        for candidate in found:
            yield answered(question, candidate)
        return
    by_axes = sorted(found, key=lambda one: (one.plan.tp, one.plan.cp, one.plan.ep, one.plan.dp, one.plan.pp))
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, _remember, (question,)) as pool:
        yield from pool.map(_answer, by_axes, chunksize=max(1, len(found) // (8 * workers)))


_of_process: list[PlanSearch] = []


def _remember(question: PlanSearch) -> None:
    _of_process[:] = [question]


def _answer(candidate: Candidate) -> RankedPlan:
    return answered(_of_process[0], candidate)
