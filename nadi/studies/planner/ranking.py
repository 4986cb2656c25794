"""Lower bounds and step times of candidate plans, computed by several processes at once."""

import itertools
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import NamedTuple, Self

from nadi.inputs.units import PS_PER_S
from nadi.studies.planner.bound import bound_ps
from nadi.studies.planner.candidates import Candidate
from nadi.studies.planner.step import StepTime, TargetMachine, step_time
from nadi.workload.generators.models import Model, training_flops
from nadi.workload.generators.training import rules


class BoundedPlan(NamedTuple):
    """A candidate with the minimum time of its step."""

    candidate: Candidate  # plan and its peak memory
    bound_ps: float  # minimum step time in ps

    @property
    def tokens(self) -> int:
        """Number of tokens of a step."""
        return self.candidate.plan.global_batch * self.candidate.plan.sequence

    @property
    def s_per_token(self) -> float:
        """Minimum time of the step per token in seconds."""
        return self.bound_ps / PS_PER_S / self.tokens


class RankedPlan(NamedTuple):
    """A plan with its step time and throughput."""

    bounded: BoundedPlan  # plan, its peak memory, and the lower bound of its step time
    step: StepTime  # step time at closed forms
    # model FLOP/s over the peak of all GPUs, without recomputation; attention counts the query-key pairs that a causal
    # mask leaves
    mfu: float
    mfu_all_pairs: float  # same ratio with all query-key pairs counted

    @property
    def candidate(self) -> Candidate:
        """Plan and its peak memory."""
        return self.bounded.candidate

    @property
    def s_per_token(self) -> float:
        """Time of the step per token in seconds, the order of plans."""
        return self.step.step_ps / PS_PER_S / self.bounded.tokens

    @property
    def order(self) -> tuple[float, int, str]:
        """Sort key of plans; no two plans have the same."""
        return self.s_per_token, self.candidate.peak_bytes, str(self.candidate.plan)


class PlanSearch(NamedTuple):
    """Inputs that all candidates of a search share."""

    machine: TargetMachine  # fabric, operator times and collective costs
    model: Model  # model to train
    framework: rules.Framework  # training framework of all candidates
    peak_flops: float  # peak FLOP/s of all GPUs together in the plans' data type


def with_bound(search: PlanSearch, candidate: Candidate) -> BoundedPlan:
    """Return a candidate with the lower bound of its step time.

    Args:
        search: The machine, model and framework that all plans share.
        candidate: A valid plan with its memory.
    """
    return BoundedPlan(candidate, bound_ps(search.machine, search.model, candidate.plan, search.framework))


def evaluate(search: PlanSearch, bounded: BoundedPlan) -> StepTime:
    """Return the step time of a candidate, at least its bound; raise WorkloadError if it cannot be run.

    Only a step that is extrapolated from two short ones could fall below its bound.

    Args:
        search: The machine, model and framework that all plans share.
        bounded: A candidate with the lower bound of its step time.
    """
    return step_time(search.machine, search.model, bounded.candidate.plan, search.framework).at_least(bounded.bound_ps)


def ranked_plan(search: PlanSearch, bounded: BoundedPlan, step: StepTime) -> RankedPlan:
    """Return a candidate with its step time and utilisation.

    Args:
        search: The machine, model and framework that all plans share.
        bounded: A candidate with the lower bound of its step time.
        step: The step time of the candidate.
    """
    plan = bounded.candidate.plan
    mfu, mfu_all_pairs = (
        training_flops(search.model, plan.global_batch, plan.sequence, causal=causal, lora=plan.lora)
        / (step.step_ps / PS_PER_S)
        / search.peak_flops
        for causal in (True, False)
    )
    return RankedPlan(bounded, step, mfu, mfu_all_pairs)


class PlanWorkers:
    """Processes that share a search; with one, this process does the work."""

    def __init__(self, search: PlanSearch, num_processes: int) -> None:
        """Start no process yet; the pool starts them with the first work."""
        self._search, self._processes = search, num_processes
        self._pool = None
        if num_processes > 1:
            # `fork` hands the fabric and the cost models to the workers without pickling them
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(num_processes, context, _set_search, (search,))

    def __enter__(self) -> Self:
        """Return the processes."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes after their current plans."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def bounds(self, candidates: Sequence[Candidate]) -> Iterator[BoundedPlan]:
        """Yield the candidates with their bounds, in the same order."""
        if self._pool is None:
            for candidate in candidates:
                yield with_bound(self._search, candidate)
            return
        # eight chunks per process: few enough to save messages between processes, enough to even out slow candidates
        chunk = max(1, len(candidates) // (8 * self._processes))
        yield from self._pool.map(_with_bound, candidates, chunksize=chunk)

    def steps(self, ordered: Iterator[BoundedPlan]) -> Iterator[tuple[BoundedPlan, StepTime]]:
        """Yield candidates with their step times as they complete; `ordered` is asked for a plan when one may begin."""
        if self._pool is None:
            for bounded in ordered:
                yield bounded, evaluate(self._search, bounded)
            return
        under_way: dict[Future[StepTime], BoundedPlan] = {}
        while True:
            # a plan is taken only when a process is idle: plans that finish meanwhile may lower the limit of the search
            for bounded in itertools.islice(ordered, self._processes - len(under_way)):
                under_way[self._pool.submit(_evaluate, bounded)] = bounded
            if not under_way:
                return
            for done in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield under_way.pop(done), done.result()


_search_of_process: list[PlanSearch] = []


def _set_search(search: PlanSearch) -> None:
    """Prepare a process. Ctrl-C reaches all processes of a terminal, but only the first decides what ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _search_of_process[:] = [search]


def _with_bound(candidate: Candidate) -> BoundedPlan:
    return with_bound(_search_of_process[0], candidate)


def _evaluate(bounded: BoundedPlan) -> StepTime:
    return evaluate(_search_of_process[0], bounded)
