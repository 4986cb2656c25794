"""From a question to ranked plans: what is settled first, every candidate's step, the best few by packets."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from inputs.units import GIB, PS_PER_S
from nadi.energy.table import EnergyTable, read_table
from nadi.errors import ConfigError
from nadi.insight.analysis.step_times import CATEGORIES
from nadi.launching.progress import NoProgress, Progress
from nadi.studies.planner.candidates import Candidate, PlanSpace, candidates
from nadi.studies.planner.confirm import PacketStepTime, confirm
from nadi.studies.planner.energy import assumed, step_bill, training
from nadi.studies.planner.ranking import PlanSearch, RankedPlan, ranked
from nadi.studies.planner.reserve import DEFAULT_RESERVE, MemoryReserve
from nadi.studies.planner.step import site
from topologies.clusters import Cluster
from workload.compute import IN_STEPS, ComputeTimes, find_gpu
from workload.generators.models import Model
from workload.generators.training import ParallelPlan, rules

SAME = ("model", "cluster", "gpus", "gpu", "framework", "reserve_bytes", "constraints", "energy_table")
"""Of shards that are merged."""


@dataclass(frozen=True)
class PlanRequest:
    """What somebody wants to know.

    Attributes:
        model: what is trained.
        cluster: on which.
        gpus: how many of it.
        base: What the user fixed in --plan: each field that was given is a constraint on every plan.
        framework: by which.
        gpu: in place of the cluster's; "" = that.
        fabric: parameters of the cluster's topology in place of its own.
        reserve: memory of each GPU that plans leave free.
        confirm: so many of the best are sent by packets.
        workers: processes.
        shard: this one of how many equal parts of the candidates, (0, 1) = all.
        energy_table: powers and prices that stand over the default ones; None = these alone.
        tokens: of a whole training, whose days, joules and dollars are told; 0 = none is asked for.
    """

    model: Model
    cluster: Cluster
    gpus: int
    base: ParallelPlan
    framework: rules.Framework = "megatron"
    gpu: str = ""
    fabric: dict[str, Any] = field(default_factory=dict)
    reserve: MemoryReserve = DEFAULT_RESERVE
    confirm: int = 3
    workers: int = 1
    shard: tuple[int, int] = (0, 1)
    energy_table: Path | None = None
    tokens: float = 0.0


class PlanRanking(NamedTuple):
    """The answer.

    Attributes:
        wish: the question.
        gpu: whose times were taken.
        memory_bytes: of one.
        reserve_bytes: of these, what plans leave free.
        table: powers and prices.
        rows: by the time of their step, the shortest first.
        confirmed: of the first rows, by packets.
        valid: plans that keep the rules.
        too_large: of these, those that do not fit.
    """

    wish: PlanRequest
    gpu: str
    memory_bytes: int
    reserve_bytes: int
    table: EnergyTable
    rows: list[RankedPlan]
    confirmed: list[PacketStepTime]
    valid: int
    too_large: int


def planned(wish: PlanRequest, progress: Progress | NoProgress) -> PlanRanking:
    """Look through all plans.

    Raises:
        ConfigError: no plan fits, the reserve leaves no memory, or the table of powers and prices is wrong.
        WorkloadError, TopologyError: model, cluster or plan are wrong.
    """
    table = read_table(wish.energy_table)
    gpu = find_gpu(wish.gpu or wish.cluster.gpu)
    memory_bytes = gpu.memory_bytes
    reserve_bytes = wish.reserve.bytes_of(memory_bytes, gpu.name)
    space = PlanSpace(wish.gpus, wish.cluster.gpus_per_host, memory_bytes - reserve_bytes, wish.base, wish.framework)
    all_valid = list(candidates(wish.model, space))
    fitting = [one for one in all_valid if one.fits]
    if not fitting:
        raise ConfigError(_none_fits(wish, all_valid, gpu.name, memory_bytes, reserve_bytes))
    number, count = wish.shard
    chosen = fitting[number::count]
    where = site(wish.cluster, wish.gpus, ComputeTimes(gpu, pace=IN_STEPS), wish.fabric)
    question = PlanSearch(where, wish.model, wish.framework, gpu.peak_of(wish.base.dtype) * wish.gpus)
    rows = []
    for done, row in enumerate(ranked(question, chosen, wish.workers), 1):
        rows.append(row)
        progress.begin(f"{done} of {len(chosen)} plans, the best so far {best_text(rows)}")
    rows.sort(key=lambda row: (row.step.step_ps, row.candidate.peak_bytes))
    confirmed = [
        confirm(wish.cluster, where, wish.model, row.candidate.plan, wish.framework, row.step, progress)
        for row in rows[: wish.confirm]
    ]
    too_large = len(all_valid) - len(fitting)
    return PlanRanking(wish, gpu.name, memory_bytes, reserve_bytes, table, rows, confirmed, len(all_valid), too_large)


def best_text(rows: Sequence[RankedPlan]) -> str:
    """The best plan so far, in a few words."""
    best = min(rows, key=lambda row: row.step.step_ps)
    return f"{axes_text(best.candidate.plan)} with {best.step.step_ps / PS_PER_S:.3g} s"


def axes_text(plan: ParallelPlan) -> str:
    """Only over what a plan spreads: "tp8 pp16 dp8 mb1"."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "vpp": plan.vpp, "ep": plan.ep, "dp": plan.dp}
    return " ".join([*(f"{axis}{size}" for axis, size in sizes.items() if size > 1), f"mb{plan.micro_batch}"])


def _none_fits(wish: PlanRequest, valid: Sequence[Candidate], gpu: str, memory_bytes: int, reserve_bytes: int) -> str:
    least = min(valid, key=lambda one: one.peak_bytes)
    less = f" less {reserve_bytes / GIB:.1f} in reserve" if reserve_bytes else ""
    return (
        f"{wish.model.name} on {wish.gpus} {gpu}: none of {len(valid)} valid plans fits; the smallest is "
        f"{least.plan} with {least.peak_bytes / GIB:.1f} GiB of {memory_bytes / GIB:.1f}{less}; "
        f"expected more GPUs, {'a smaller reserve, ' if least.peak_bytes <= memory_bytes else ''}or offload"
    )


def document(planned: PlanRanking) -> dict[str, Any]:
    """What --json prints, and what plan.json holds."""
    wish = planned.wish
    rows = [_row(row, planned, place) for place, row in enumerate(planned.rows)]
    return {
        "model": wish.model.name,
        "cluster": wish.cluster.name,
        "gpus": wish.gpus,
        "gpu": planned.gpu,
        "framework": wish.framework,
        "fidelity": "closed-form",
        "memory_bytes": planned.memory_bytes,
        "reserve_bytes": planned.reserve_bytes,
        "constraints": wish.base.constraints(),
        "valid": planned.valid,
        "too_large": planned.too_large,
        "energy_table": None if wish.energy_table is None else str(wish.energy_table),
        "notes": assumed(planned.gpu, planned.table),
        **({"training": training(rows[0], wish.tokens)} if wish.tokens else {}),
        "rows": rows,
        "why": why_first(rows),
    }


def _row(row: RankedPlan, planned: PlanRanking, place: int) -> dict[str, Any]:
    tokens = row.tokens_per_s * row.step.step_ps / PS_PER_S
    found: dict[str, Any] = {
        "plan": str(row.candidate.plan),
        "axes": axes_text(row.candidate.plan),
        "recompute": row.candidate.plan.recompute,
        "step_s": row.step.step_ps / PS_PER_S,
        "tokens_per_s": row.tokens_per_s,
        "mfu": row.mfu,
        "mfu_all_pairs": row.mfu_all_pairs,
        "memory_bytes": row.candidate.peak_bytes,
        "whole": row.step.is_whole,
        "shares": {name: row.step.of(name) for name in CATEGORIES},
        **step_bill(row.step, planned.gpu, planned.wish.gpus, tokens, planned.table).document(),
    }
    if place < len(planned.confirmed):
        confirmed = planned.confirmed[place]
        found |= {"packets_step_s": confirmed.step_ps / PS_PER_S, "packets_over_closed_form": confirmed.ratios}
    return found


def why_first(rows: Sequence[dict[str, Any]]) -> list[str]:
    """For the plans after the first: how much longer they take, and what of it is which kind of time."""
    lines = []
    for place, row in enumerate(rows[1:4], 2):
        more = {name: _seconds(row, name) - _seconds(rows[0], name) for name in CATEGORIES}
        largest = sorted(more.items(), key=lambda part: -abs(part[1]))[:3]
        said = ", ".join(f"{name} {s:+.2f} s" for name, s in largest if abs(s) > 0.001 * rows[0]["step_s"])
        over = row["step_s"] / rows[0]["step_s"] - 1
        lines.append(f"{place}. {row['axes']} takes {over:.1%} longer: {said or 'about the same'}")
    return lines


def _seconds(row: dict[str, Any], category: str) -> float:
    return float(row["shares"][category] * row["step_s"])


def merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One document of those of shards.

    Raises:
        ConfigError: they are of different questions.
    """
    about = [{key: one.get(key) for key in SAME} for one in documents]
    for number, one in enumerate(about[1:], 1):
        key = next((key for key in one if one[key] != about[0][key]), None)
        if key is not None:
            raise ConfigError(
                f"--merge: {key} is {about[0][key]!r} in the first and {one[key]!r} in number {number + 1}"
            )
    rows = sorted(
        (row for one in documents for row in one["rows"]), key=lambda row: (row["step_s"], row["memory_bytes"])
    )
    whole = {**documents[0], "rows": rows, "why": why_first(rows)}
    if "training" in whole:
        whole["training"] = training(rows[0], whole["training"]["tokens"])
    return whole
