"""Step times of candidate plans, computed by several processes at once."""

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
    """A plan with its step time and throughput."""

    candidate: Candidate  # plan and its peak memory
    step: StepTime  # step time at closed forms
    tokens_per_s: float  # throughput of all GPUs together in tokens per second
    # model FLOP/s over the peak of all GPUs, without recomputation; attention counts the query-key pairs that a causal
    # mask leaves
    mfu: float
    mfu_all_pairs: float  # same ratio with all query-key pairs counted


class PlanSearch(NamedTuple):
    """Inputs that all candidates of a search share."""

    machine: TargetMachine  # fabric, operator times and collective costs
    model: Model  # model to train
    framework: rules.Framework  # training framework of all candidates
    peak_flops: float  # peak FLOP/s of all GPUs together in the plans' data type


def evaluate(search: PlanSearch, candidate: Candidate) -> RankedPlan:
    """Return a candidate with its step time and throughput; raise WorkloadError if it cannot be run."""
    plan = candidate.plan
    step = step_time(search.machine, search.model, plan, search.framework)
    seconds = step.step_ps / PS_PER_S
    mfu, mfu_all_pairs = (
        training_flops(search.model, plan.global_batch, plan.sequence, causal=causal, lora=plan.lora)
        / seconds
        / search.peak_flops
        for causal in (True, False)
    )
    return RankedPlan(candidate, step, plan.global_batch * plan.sequence / seconds, mfu, mfu_all_pairs)


def ranked(search: PlanSearch, candidates: Sequence[Candidate], num_processes: int) -> Iterator[RankedPlan]:
    """Yield the plans with their step times in order of completion.

    Each process gets consecutive plans of the same tensor parallelism, because these share cached costs of collectives.
    """
    if num_processes == 1 or len(candidates) < num_processes:
        for candidate in candidates:
            yield evaluate(search, candidate)
        return
    by_axes = sorted(
        candidates, key=lambda each: (each.plan.tp, each.plan.cp, each.plan.ep, each.plan.dp, each.plan.pp)
    )
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(num_processes, context, _set_search, (search,)) as pool:
        yield from pool.map(_evaluate, by_axes, chunksize=max(1, len(candidates) // (8 * num_processes)))


_search_of_process: list[PlanSearch] = []


def _set_search(search: PlanSearch) -> None:
    _search_of_process[:] = [search]


def _evaluate(candidate: Candidate) -> RankedPlan:
    return evaluate(_search_of_process[0], candidate)
