"""Search of the n best plans, best lower bound first.

A plan whose bound exceeds the time of the n-th best plan cannot be among the n best, so it is not timed. Which plans
are timed may depend on the number of processes; the outcome does not: it has the n best plans, and those others whose
bound does not exceed the time of the n-th.
"""

import math
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence

from nadi.inputs.units import PS_PER_S
from nadi.launching.progress import NoProgress, Progress
from nadi.studies.planner.candidates import Candidate
from nadi.studies.planner.progress_file import ProgressFile
from nadi.studies.planner.ranking import BoundedPlan, PlanSearch, PlanWorkers, RankedPlan, ranked_plan
from nadi.studies.planner.step import StepTime
from nadi.workload.generators.training import ParallelPlan

_SHOWN = 3  # number of best plans that progress shows


class FoundPlans:
    """The candidates of a request, as far as their bounds and step times are known."""

    def __init__(self, candidates: Sequence[Candidate], wanted: int) -> None:
        """Begin without any; wanted: number n of best plans to find for certain."""
        self._candidates, self._wanted = candidates, wanted
        self._bounded: dict[str, BoundedPlan] = {}
        self._rows: dict[str, RankedPlan] = {}
        self._times: list[float] = []  # times per token of the rows in seconds, ascending

    def add_known(self, search: PlanSearch, bounds_ps: Mapping[str, float], steps: Mapping[str, StepTime]) -> None:
        """Add bounds in ps and step times, by plan, that an earlier search has found.

        Args:
            search: The machine, model and framework that all plans share.
            bounds_ps: Lower bounds of step times in picoseconds, by plan.
            steps: Step times by plan.
        """
        for candidate in self._candidates:
            plan = str(candidate.plan)
            if plan in bounds_ps:
                self.add_bound(BoundedPlan(candidate, bounds_ps[plan]))
            if plan in bounds_ps and plan in steps:
                self.add_row(ranked_plan(search, self._bounded[plan], steps[plan]))

    def add_bound(self, bounded: BoundedPlan) -> None:
        """Add a plan's bound.

        Args:
            bounded: A candidate with the lower bound of its step time.
        """
        self._bounded[str(bounded.candidate.plan)] = bounded

    def add_row(self, row: RankedPlan) -> None:
        """Add a plan's step time.

        Args:
            row: A candidate with its step time.
        """
        self._rows[str(row.candidate.plan)] = row
        insort(self._times, row.s_per_token)

    @property
    def limit(self) -> float:
        """Time per token of the n-th best plan so far in seconds, infinity if there are fewer."""
        return self._times[self._wanted - 1] if len(self._times) >= self._wanted else math.inf

    @property
    def without_bound(self) -> list[Candidate]:
        """Candidates whose bound is unknown."""
        return [candidate for candidate in self._candidates if str(candidate.plan) not in self._bounded]

    def open_plans(self) -> Iterator[BoundedPlan]:
        """Yield plans without a step time, best bound first, while they can be among the n best of the growing rows."""
        # A generator: workers ask for the next plan while step times arrive, so `limit` is read anew each time. Bounds
        # ascend, hence all plans behind the first that exceeds it can be left out, too.
        for plan, bounded in sorted(self._bounded.items(), key=lambda item: (item[1].s_per_token, item[0])):
            if bounded.s_per_token > self.limit:
                return
            if plan not in self._rows:
                yield bounded

    def best(self) -> list[RankedPlan]:
        """Return the n best plans, and those others that every search has to time, in ascending order of time."""
        kept = (row for row in self._rows.values() if row.bounded.s_per_token <= self.limit)
        return sorted(kept, key=lambda row: row.order)

    @property
    def left(self) -> int:
        """Number of plans that can still be among the best."""
        return len(self._candidates) - len(self._bounded) + sum(1 for _ in self.open_plans())

    def __str__(self) -> str:
        """Return what progress shows: numbers of plans, and the best so far."""
        best = "; ".join(plan_text(row) for row in self.best()[:_SHOWN])
        skipped = len(self._candidates) - len(self._rows) - self.left
        return f"{len(self._rows)} plans timed, {self.left} left, {skipped} skipped, best so far: {best}"


def find(
    found: FoundPlans, search: PlanSearch, num_processes: int, file: ProgressFile, progress: Progress | NoProgress
) -> None:
    """Find the bounds of all plans, then the step times of all plans that can be among the n best.

    Args:
        found: Bounds and step times that are known already, which the search completes.
        search: The machine, model and framework that all plans share.
        num_processes: The number of processes that evaluate plans.
        file: The file that keeps what the search finds.
        progress: The display of the search.
    """
    with PlanWorkers(search, num_processes) as workers:
        unknown = found.without_bound
        for done, bounded in enumerate(workers.bounds(unknown), 1):
            found.add_bound(bounded)
            file.add_bound(str(bounded.candidate.plan), bounded.bound_ps)
            progress.begin(f"lower bounds of {done} of {len(unknown)} plans")
        for bounded, step in workers.steps(found.open_plans()):
            found.add_row(ranked_plan(search, bounded, step))
            file.add_step(str(bounded.candidate.plan), step)
            progress.begin(str(found))


def plan_text(row: RankedPlan) -> str:
    """Return the axes and the step time of a plan, as progress shows them.

    Args:
        row: A candidate with its step time.
    """
    return f"{axes_text(row.candidate.plan)} with {row.step.step_ps / PS_PER_S:.3g} s"


def axes_text(plan: ParallelPlan) -> str:
    """Return the axes that a plan uses and its micro-batch, as "tp8 pp16 dp8 mb1"."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "vpp": plan.vpp, "ep": plan.ep, "dp": plan.dp}
    return " ".join([*(f"{axis}{size}" for axis, size in sizes.items() if size > 1), f"mb{plan.micro_batch}"])
