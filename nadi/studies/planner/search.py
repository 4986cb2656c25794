"""Search of the n best plans, best lower bound first, by several processes.

A plan whose bound exceeds the time of the n-th best plan cannot be among the n best, so it is not timed. Every plan has
a quick bound first. The plan with the lowest bound comes next: if its bound is quick, a precise one replaces it, else
the plan is timed. Which plans are timed may depend on the number of processes; the outcome does not: it has the n best
plans, and those others whose precise bound does not exceed the time of the n-th.

A file keeps the bounds and step times of an unfinished search, with which the same request continues. It is in the
folder of results, is replaced as a whole, and disappears when the search ends. Its entries are by request, so that a
changed request, cluster, GPU or version of Nadi finds none.
"""

import hashlib
import json
import math
import multiprocessing
import signal
import time
from bisect import bisect, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from nadi.energy import NPU_TIMES, PORTS, PortUse
from nadi.errors import OutputError
from nadi.inputs import write_whole
from nadi.inputs.documents import DocumentError, read_document
from nadi.inputs.units import PS_PER_S
from nadi.launching.progress import NoProgress, Progress
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.studies.planner.quick_bound import QuickBounds
from nadi.studies.planner.space import Candidate, bound_ps
from nadi.studies.planner.step import EnergyUse, StepTime, TargetMachine, step_time
from nadi.workload.generators.models import Model, training_flops
from nadi.workload.generators.training import ParallelPlan, rules

_SHOWN_PLANS = 3  # number of best plans that progress shows


class BoundedPlan(NamedTuple):
    """A candidate with the minimum time of its step."""

    candidate: Candidate  # plan and its peak memory
    bound_ps: float  # minimum step time in ps
    is_quick: bool = False  # whether the bound is that of QuickBounds, which a precise one may exceed

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


def with_bound(search: PlanSearch, bounded: BoundedPlan) -> BoundedPlan:
    """Return a candidate with the precise lower bound of its step time.

    Args:
        search: The machine, model and framework that all plans share.
        bounded: A candidate with its quick lower bound.
    """
    precise_ps = bound_ps(search.machine, search.model, bounded.candidate.plan, search.framework)
    return BoundedPlan(bounded.candidate, max(bounded.bound_ps, precise_ps))


def evaluate(search: PlanSearch, bounded: BoundedPlan) -> StepTime:
    """Return the step time of a candidate, at least its bound; raise WorkloadError if it cannot be run.

    Only a step that is extrapolated from two short ones could fall below its bound.

    Args:
        search: The machine, model and framework that all plans share.
        bounded: A candidate with the lower bound of its step time.
    """
    return step_time(search.machine, search.model, bounded.candidate.plan, search.framework).at_least(bounded.bound_ps)


def improve(search: PlanSearch, bounded: BoundedPlan) -> BoundedPlan | StepTime:
    """Return a candidate with its precise bound, or its step time if it has one.

    Args:
        search: The machine, model and framework that all plans share.
        bounded: A candidate with the lower bound of its step time.
    """
    return with_bound(search, bounded) if bounded.is_quick else evaluate(search, bounded)


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

    def results(
        self, next_plan: Callable[[], BoundedPlan | None]
    ) -> Iterator[tuple[BoundedPlan, BoundedPlan | StepTime]]:
        """Yield plans as they complete, with a precise bound or, if they had one, with their step time.

        Args:
            next_plan: A function that returns the plan with which an idle process goes on; None = there is none now.
        """
        if self._pool is None:
            while (bounded := next_plan()) is not None:
                yield bounded, improve(self._search, bounded)
            return
        under_way: dict[Future[BoundedPlan | StepTime], BoundedPlan] = {}
        while True:
            # a plan is taken only when a process is idle: plans that finish meanwhile may lower the limit of the search
            while len(under_way) < self._processes and (bounded := next_plan()) is not None:
                under_way[self._pool.submit(_improve, bounded)] = bounded
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


def _improve(bounded: BoundedPlan) -> BoundedPlan | StepTime:
    return improve(_search_of_process[0], bounded)


FILE = "plan.search.json"
_SAVE_EVERY_S = 5.0  # minimum seconds between two writes
_MAX_AMOUNT = 1e30  # far above any time in ps and any number of bytes that a step can have

_Amount = Annotated[float, Field(ge=0, le=_MAX_AMOUNT, allow_inf_nan=False)]
_Times = Annotated[float, Field(ge=-_MAX_AMOUNT, le=_MAX_AMOUNT, allow_inf_nan=False)]
_Port = tuple[_Amount, _Amount, _Amount, Annotated[int, Field(ge=0, le=1 << 40)]]


@with_config(ConfigDict(extra="forbid"))
class _Step(TypedDict):
    """A step time; the columns are those of StepTime and EnergyUse."""

    step_ps: Annotated[float, Field(gt=0, le=_MAX_AMOUNT, allow_inf_nan=False)]
    share_ps: Annotated[list[_Times], Field(min_length=len(STEP_CATEGORIES), max_length=len(STEP_CATEGORIES))]
    npu_ps: Annotated[list[_Times], Field(min_length=len(NPU_TIMES), max_length=len(NPU_TIMES))]
    ports: dict[str, _Port]
    is_whole: bool


@with_config(ConfigDict(extra="forbid"))
class _Search(TypedDict):
    """What is known of one request, by the text of plans."""

    bounds_ps: dict[str, _Amount]
    steps: dict[str, _Step]


_SCHEMA = TypeAdapter(dict[str, _Search])


class ProgressFile:
    """Results of unfinished searches in a folder, or in memory only."""

    def __init__(self, folder: Path | None) -> None:
        """Read the file of the folder, None = keep nothing; OutputError if it is not one of Nadi."""
        self._path = folder / FILE if folder else None
        self._earlier: dict[str, Any] = {}
        self._searches: dict[str, Any] = {}
        self._saved_s = time.monotonic()
        if self._path is not None and self._path.exists():
            try:
                self._earlier = read_document(self._path, _SCHEMA)
            except OSError as error:
                raise OutputError(f"{self._path}: {error.strerror or error}; expected a search of nadi plan") from None
            except DocumentError as error:
                expected = "expected a search of nadi plan, or none; remove the file to begin anew"
                raise OutputError(f"{self._path}: {error}; {expected}") from None

    def search(self, request: str) -> tuple[Mapping[str, float], Mapping[str, StepTime]]:
        """Return the known bounds in ps and step times by plan; request: text on which all of them depend."""
        key = hashlib.sha256(request.encode()).hexdigest()
        # only requests of this call are saved again: entries of older versions disappear with the first save
        found = self._searches[key] = self._earlier.get(key, {"bounds_ps": {}, "steps": {}})
        self._current = found
        return found["bounds_ps"], {plan: _step_of_entry(step) for plan, step in found["steps"].items()}

    def tell(self, progress: Progress | NoProgress, plans: int) -> None:
        """Print whether the current search continues an earlier one, or that the file is of other requests.

        Args:
            progress: The display that prints the line.
            plans: The number of candidates of the search.
        """
        if self._current["bounds_ps"]:
            timed = len(self._current["steps"])
            progress.say(f"{self._path}: the search continues, with {timed} of {plans} plans timed")
        elif self._earlier and not self._earlier.keys() & self._searches.keys():
            progress.say(f"{self._path}: of another request or version; the search begins anew")

    def add_bound(self, plan: str, bound_ps: float) -> None:
        """Add the precise bound of a plan of the current search.

        Args:
            plan: The axes of the plan as text.
            bound_ps: The precise lower bound of the step time in picoseconds.
        """
        self._current["bounds_ps"][plan] = bound_ps
        self._save_if_due()

    def add_step(self, plan: str, step: StepTime) -> None:
        """Add a step time of the current search.

        Args:
            plan: The axes of the plan as text.
            step: The step time with its parts.
        """
        self._current["steps"][plan] = {
            "step_ps": float(step.step_ps),
            "share_ps": step.share_ps.tolist(),
            "npu_ps": step.use.npu_ps.tolist(),
            "ports": step.use.ports,
            "is_whole": step.is_whole,
        }
        self._save_if_due()

    def save(self) -> None:
        """Write the file, and the folder if it does not exist yet; OutputError if it cannot be written."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(self._searches))
        except OSError as error:
            raise OutputError(f"{self._path}: {error.strerror or error}; the search is not saved") from error
        self._saved_s = time.monotonic()

    def remove(self) -> None:
        """Remove the file at the end of the search."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _save_if_due(self) -> None:
        if time.monotonic() - self._saved_s >= _SAVE_EVERY_S:
            self.save()


def _step_of_entry(entry: Mapping[str, Any]) -> StepTime:
    """Return a step time of the file."""
    ports = {name: PortUse(*port) for name, port in entry["ports"].items() if name in PORTS}
    use = EnergyUse(np.array(entry["npu_ps"]), ports)
    return StepTime(entry["step_ps"], np.array(entry["share_ps"]), use, entry["is_whole"])


class FoundPlans:
    """The candidates of a request, as far as their bounds and step times are known."""

    def __init__(self, candidates: Sequence[Candidate], wanted: int) -> None:
        """Begin without any; wanted: number n of best plans to find for certain."""
        self._candidates, self._wanted = candidates, wanted
        self._bounded: dict[str, BoundedPlan] = {}
        self._waiting: list[tuple[float, str]] = []  # bounds per token in seconds of plans to bound or time, ascending
        self._under_way: set[str] = set()  # plans that `next_plan` has returned and that are not added again
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
                self._waiting.remove((self._bounded[plan].s_per_token, plan))
                self.add_row(ranked_plan(search, self._bounded[plan], steps[plan]))

    def add_bound(self, bounded: BoundedPlan) -> None:
        """Add a plan's bound.

        Args:
            bounded: A candidate with the lower bound of its step time.
        """
        plan = str(bounded.candidate.plan)
        self._bounded[plan] = bounded
        self._under_way.discard(plan)
        insort(self._waiting, (bounded.s_per_token, plan))

    def add_row(self, row: RankedPlan) -> None:
        """Add a plan's step time.

        Args:
            row: A candidate with its step time.
        """
        self._rows[str(row.candidate.plan)] = row
        self._under_way.discard(str(row.candidate.plan))
        insort(self._times, row.s_per_token)

    @property
    def limit(self) -> float:
        """Time per token of the n-th best plan so far in seconds, infinity if there are fewer."""
        return self._times[self._wanted - 1] if len(self._times) >= self._wanted else math.inf

    @property
    def without_bound(self) -> list[Candidate]:
        """Candidates whose bound is unknown."""
        return [candidate for candidate in self._candidates if str(candidate.plan) not in self._bounded]

    def next_plan(self) -> BoundedPlan | None:
        """Return the plan with the lowest bound, to bound precisely or to time; None if it cannot be among the best."""
        if not self._waiting or self._waiting[0][0] > self.limit:
            return None
        _, plan = self._waiting.pop(0)
        self._under_way.add(plan)
        return self._bounded[plan]

    def best(self) -> list[RankedPlan]:
        """Return the n best plans, and those others that every search has to time, in ascending order of time."""
        kept = (row for row in self._rows.values() if row.bounded.s_per_token <= self.limit)
        return sorted(kept, key=lambda row: row.order)

    @property
    def left(self) -> int:
        """Number of plans that can still be among the best."""
        under_way = sum(self._bounded[plan].s_per_token <= self.limit for plan in self._under_way)
        waiting = bisect(self._waiting, self.limit, key=lambda item: item[0])
        return len(self._candidates) - len(self._bounded) + under_way + waiting

    def __str__(self) -> str:
        """Return what progress shows: numbers of plans, and the best so far."""
        best = "; ".join(plan_text(row) for row in self.best()[:_SHOWN_PLANS])
        skipped = len(self._candidates) - len(self._rows) - self.left
        return f"{len(self._rows)} plans timed, {self.left} left, {skipped} skipped, best so far: {best}"


def best_plans(
    found: FoundPlans, search: PlanSearch, num_processes: int, file: ProgressFile, progress: Progress | NoProgress
) -> None:
    """Find the bounds and the step times of all plans that can be among the n best.

    Args:
        found: Bounds and step times that are known already, which the search completes.
        search: The machine, model and framework that all plans share.
        num_processes: The number of processes that evaluate plans.
        file: The file that keeps what the search finds.
        progress: The display of the search.
    """
    quick = QuickBounds(search.machine, search.model, search.framework)
    for candidate in found.without_bound:
        found.add_bound(BoundedPlan(candidate, quick.bound_ps(candidate.plan), is_quick=True))
    with PlanWorkers(search, num_processes) as workers:
        for bounded, result in workers.results(found.next_plan):
            plan = str(bounded.candidate.plan)
            if isinstance(result, StepTime):
                found.add_row(ranked_plan(search, bounded, result))
                file.add_step(plan, result)
            else:
                found.add_bound(result)
                file.add_bound(plan, result.bound_ps)
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
