"""The planner's main path: settle the request, time every candidate's step, check the best with contention.

GPU times in the energy and cost of a step are those of closed forms; bytes per link are derived from the traces, as in
runs at closed forms.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from inputs.units import GIB, PS_PER_S
from nadi.configuration.bounds import MAX_GPUS
from nadi.energy.bill import NPU_TIMES, Usage, bill
from nadi.energy.table import OTHER, EnergyTable, choose, read_table
from nadi.errors import ConfigError
from nadi.insight.analysis.step_times import CATEGORIES
from nadi.launching.progress import NoProgress, Progress
from nadi.studies.planner.candidates import Candidate, PlanSpace, candidates
from nadi.studies.planner.confirm import PacketStepTime, confirm
from nadi.studies.planner.flow_step import FlowStepTime, flow_step_time
from nadi.studies.planner.ranking import PlanSearch, RankedPlan, ranked
from nadi.studies.planner.reserve import DEFAULT_RESERVE, MemoryReserve
from nadi.studies.planner.step import StepTime, TargetMachine, target_machine
from pdes.fidelity import FASTEST, FLUID, REFERENCE
from topologies import clusters
from topologies.clusters import Cluster
from workload.compute import IN_STEPS, ComputeTimes, find_gpu
from workload.generators import models
from workload.generators.models import Model
from workload.generators.training import ParallelPlan, parallel_plan, rules

SHARD_KEYS = ("model", "cluster", "gpus", "gpu", "framework", "reserve_bytes", "constraints", "energy_table")
"""Keys of the document that must be equal in all shards of a merge."""
_S_PER_DAY = 86_400.0


@dataclass(frozen=True)
class PlanRequest:
    """A request to search parallel plans for one model on one cluster."""

    model: Model  # model to train
    cluster: Cluster  # cluster to train on
    gpus: int  # number of GPUs of each plan
    base: ParallelPlan  # user's constraints of --plan: each field that was given holds for every plan
    framework: rules.Framework = "megatron"  # training framework whose rules plans keep
    gpu: str = ""  # name of the GPU in place of the cluster's; "" = the cluster's
    fabric: dict[str, Any] = field(default_factory=dict)  # parameters that override those of the cluster's topology
    reserve: MemoryReserve = DEFAULT_RESERVE  # memory of each GPU that plans must leave free
    confirm: int = 3  # number of the best plans to check with contention
    confirm_by: str = REFERENCE  # model of the network that checks them: REFERENCE or FLUID of pdes.fidelity
    workers: int = 1  # number of worker processes
    shard: tuple[int, int] = (0, 1)  # index and number of shards of the candidates; (0, 1) = all candidates
    energy_table: Path | None = None  # path of powers and prices that override the defaults; None = defaults only
    # number of tokens of a whole training, for its days, energy and cost; 0 = do not report a training
    tokens: float = 0.0


class PlanRanking(NamedTuple):
    """The ranked plans of a request."""

    request: PlanRequest  # request that was answered
    gpu: str  # name of the GPU whose operator times the steps use
    memory_bytes: int  # memory capacity of one GPU in bytes
    reserve_bytes: int  # GPU memory in bytes that every plan leaves unused
    table: EnergyTable  # powers and prices
    # plans in ascending order of step time; those that flows have timed first, in ascending order of that time
    rows: list[RankedPlan]
    confirmed: list[PacketStepTime] | list[FlowStepTime]  # step times with contention of the first rows
    valid: int  # number of plans that keep the rules and the constraints
    too_large: int  # number of valid plans that do not fit in memory


def rank_plans(request: PlanRequest, progress: Progress | NoProgress) -> PlanRanking:
    """Search all plans of a request and rank them by step time; ConfigError if none fits in memory."""
    table = read_table(request.energy_table)
    gpu = find_gpu(request.gpu or request.cluster.gpu)
    memory_bytes = gpu.memory_bytes
    reserve_bytes = request.reserve.bytes_of(memory_bytes, gpu.name)
    plan_bytes = memory_bytes - reserve_bytes
    space = PlanSpace(request.gpus, request.cluster.gpus_per_host, plan_bytes, request.base, request.framework)
    valid = list(candidates(request.model, space))
    fitting = [candidate for candidate in valid if candidate.fits]
    if not fitting:
        raise ConfigError(_none_fits(request, valid, gpu.name, memory_bytes, reserve_bytes))
    number, count = request.shard
    chosen = fitting[number::count]
    machine = target_machine(request.cluster, request.gpus, ComputeTimes(gpu, pace=IN_STEPS), request.fabric)
    search = PlanSearch(machine, request.model, request.framework, gpu.peak_of(request.base.dtype) * request.gpus)
    rows = []
    for done, row in enumerate(ranked(search, chosen, request.workers), 1):
        rows.append(row)
        progress.begin(f"{done} of {len(chosen)} plans, best so far: {best_text(rows)}")
    rows.sort(key=lambda row: (row.step.step_ps, row.candidate.peak_bytes))
    rows, confirmed = _confirmed(request, machine, rows, progress)
    too_large = len(valid) - len(fitting)
    return PlanRanking(request, gpu.name, memory_bytes, reserve_bytes, table, rows, confirmed, len(valid), too_large)


def _confirmed(
    request: PlanRequest, machine: TargetMachine, rows: list[RankedPlan], progress: Progress | NoProgress
) -> tuple[list[RankedPlan], list[PacketStepTime] | list[FlowStepTime]]:
    """Return the ranked plans, and the step times with contention of the first of them."""
    checked = rows[: request.confirm]
    of_all = request.cluster, machine, request.model
    if request.confirm_by != FLUID:
        return rows, [confirm(*of_all, row.candidate.plan, request.framework, row.step, progress) for row in checked]
    timed = []
    for done, row in enumerate(checked, 1):
        progress.begin(f"{done} of {len(checked)} plans by flows: {axes_text(row.candidate.plan)}")
        timed.append((flow_step_time(*of_all, row.candidate.plan, request.framework), row))
    timed.sort(key=lambda pair: pair[0].step_ps)
    return [*(row for _, row in timed), *rows[request.confirm :]], [step for step, _ in timed]


def best_text(rows: Sequence[RankedPlan]) -> str:
    """Return the axes and the step time of the best plan, as progress shows them."""
    best = min(rows, key=lambda row: row.step.step_ps)
    return f"{axes_text(best.candidate.plan)} with {best.step.step_ps / PS_PER_S:.3g} s"


def axes_text(plan: ParallelPlan) -> str:
    """Return the axes that a plan uses and its micro-batch, as "tp8 pp16 dp8 mb1"."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "vpp": plan.vpp, "ep": plan.ep, "dp": plan.dp}
    return " ".join([*(f"{axis}{size}" for axis, size in sizes.items() if size > 1), f"mb{plan.micro_batch}"])


def _none_fits(
    request: PlanRequest, candidates: Sequence[Candidate], gpu_name: str, memory_bytes: int, reserve_bytes: int
) -> str:
    """Return the message for a request with no plan that fits, of all valid plans; sizes are those of one GPU."""
    smallest = min(candidates, key=lambda candidate: candidate.peak_bytes)
    less = f" less {reserve_bytes / GIB:.1f} in reserve" if reserve_bytes else ""
    return (
        f"{request.model.name} on {request.gpus} {gpu_name}: none of {len(candidates)} valid plans fits; the smallest "
        f"is {smallest.plan} with {smallest.peak_bytes / GIB:.1f} GiB of {memory_bytes / GIB:.1f}{less}; "
        f"expected more GPUs, {'a smaller reserve, ' if smallest.peak_bytes <= memory_bytes else ''}or offload"
    )


def document(ranking: PlanRanking) -> dict[str, Any]:
    """Return the answer that --json prints and plan.json holds."""
    request = ranking.request
    rows = [_row(row, ranking, place) for place, row in enumerate(ranking.rows)]
    return {
        "model": request.model.name,
        "cluster": request.cluster.name,
        "gpus": request.gpus,
        "gpu": ranking.gpu,
        "framework": request.framework,
        "fidelity": FASTEST,
        "memory_bytes": ranking.memory_bytes,
        "reserve_bytes": ranking.reserve_bytes,
        "constraints": request.base.constraints(),
        "valid": ranking.valid,
        "too_large": ranking.too_large,
        "energy_table": None if request.energy_table is None else str(request.energy_table),
        "notes": power_assumptions(ranking.gpu, ranking.table),
        **({"training": training(rows[0], request.tokens)} if request.tokens else {}),
        "rows": rows,
        "why": explain_ranking(rows),
    }


def _row(ranked_plan: RankedPlan, ranking: PlanRanking, rank: int) -> dict[str, Any]:
    """Return a plan's row of the document; rank: from 0."""
    tokens = ranked_plan.tokens_per_s * ranked_plan.step.step_ps / PS_PER_S
    columns: dict[str, Any] = {
        "plan": str(ranked_plan.candidate.plan),
        "axes": axes_text(ranked_plan.candidate.plan),
        "recompute": ranked_plan.candidate.plan.recompute,
        "step_s": ranked_plan.step.step_ps / PS_PER_S,
        "tokens_per_s": ranked_plan.tokens_per_s,
        "mfu": ranked_plan.mfu,
        "mfu_all_pairs": ranked_plan.mfu_all_pairs,
        "memory_bytes": ranked_plan.candidate.peak_bytes,
        "whole": ranked_plan.step.is_whole,
        "shares": {name: ranked_plan.step.of(name) for name in CATEGORIES},
        **step_costs(ranked_plan.step, ranking.gpu, ranking.request.gpus, tokens, ranking.table),
    }
    if rank < len(ranking.confirmed):
        columns |= ranking.confirmed[rank].document()
    return columns


def explain_ranking(plan_rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each of the three plans behind the first: how much longer it takes, and why."""
    lines = []
    for place, row in enumerate(plan_rows[1:4], 2):
        difference_s = {name: _seconds(row, name) - _seconds(plan_rows[0], name) for name in CATEGORIES}
        largest = sorted(difference_s.items(), key=lambda part: -abs(part[1]))[:3]
        parts = ", ".join(f"{name} {s:+.2f} s" for name, s in largest if abs(s) > 0.001 * plan_rows[0]["step_s"])
        excess = row["step_s"] / plan_rows[0]["step_s"] - 1
        lines.append(f"{place}. {row['axes']} takes {excess:.1%} longer: {parts or 'about the same'}")
    return lines


def _seconds(plan_row: dict[str, Any], category: str) -> float:
    """Return the seconds that a plan's step spends in a category."""
    return float(plan_row["shares"][category] * plan_row["step_s"])


def merge_shards(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the documents of all shards of one request; raise ConfigError if they are of different requests."""
    first, *others = ({key: shard.get(key) for key in SHARD_KEYS} for shard in documents)
    for number, other in enumerate(others, 2):
        key = next((key for key in other if other[key] != first[key]), None)
        if key is not None:
            raise ConfigError(f"--merge: {key} is {first[key]!r} in the first and {other[key]!r} in number {number}")
    rows = sorted(
        (row for shard in documents for row in shard["rows"]), key=lambda row: (row["step_s"], row["memory_bytes"])
    )
    merged = {**documents[0], "rows": rows, "why": explain_ranking(rows)}
    if "training" in merged:
        merged["training"] = training(rows[0], merged["training"]["tokens"])
    return merged


def step_costs(step: StepTime, gpu_name: str, num_gpus: int, num_tokens: float, table: EnergyTable) -> dict[str, Any]:
    """Return the energy and cost of a step that trains `num_tokens` as JSON fields of a plan's row."""
    times = dict(zip(NPU_TIMES, step.use.npu_ps.tolist(), strict=True))
    costs = bill(Usage(gpu_name, num_gpus, step.step_ps, times, step.use.ports, 1, num_tokens), table)
    return {
        "energy_J": costs.joules,
        "cost_usd": costs.usd,
        "usd_per_million_tokens": costs.usd / num_tokens * 1e6,
        "energy_parts_J": {part.name: part.joules for part in costs.parts} | {"data centre (PUE)": costs.overhead_J},
    }


def training(plan_row: dict[str, Any], num_tokens: float) -> dict[str, float]:
    """Return time, energy and cost of training that many tokens with a plan's row, without checkpoints and failures."""
    steps = num_tokens / (plan_row["tokens_per_s"] * plan_row["step_s"])
    return {
        "tokens": num_tokens,
        "steps": steps,
        "days": steps * plan_row["step_s"] / _S_PER_DAY,
        "energy_J": steps * plan_row["energy_J"],
        "cost_usd": steps * plan_row["cost_usd"],
    }


def power_assumptions(gpu_name: str, table: EnergyTable) -> list[str]:
    """Return a note if the table lacks the GPU and the power of another entry applies; else an empty list."""
    if choose(table, gpu_name)[0] != OTHER:
        return []
    return [f"the table has no GPU {gpu_name!r}: power and price are those of gpus.{OTHER}."]


def plan_request(model: str, cluster: str, num_gpus: int, plan_option: str, framework: str, gpu: str) -> PlanRequest:
    """Return the request of named model, cluster, framework and `gpu` ("" = the cluster's) with values of --plan."""
    if framework not in get_args(rules.Framework) or framework == "inference":
        raise ConfigError(f"--framework {framework}: expected megatron, deepspeed or fsdp")
    known: rules.Framework = framework  # type: ignore[assignment]
    return PlanRequest(models.find(model), clusters.find(cluster), num_gpus, parallel_plan(plan_option), known, gpu)


def sweep_requests(request: PlanRequest, sweep_option: str) -> dict[str, PlanRequest]:
    """Return a request for each value of KEY=VALUE,VALUE by name, or one by model name; ConfigError if it is wrong."""
    if not sweep_option:
        return {request.model.name: request}
    key, _, text = (part.strip() for part in sweep_option.partition("="))
    values = [value.strip() for value in text.split(",")]
    if not key or not all(values):
        raise ConfigError(f"--sweep {sweep_option!r}: expected KEY=VALUE,VALUE,... as rate=200Gbps,400Gbps")
    return {f"{key}={value}": _with(request, key, value) for value in values}


def _with(request: PlanRequest, key: str, value: str) -> PlanRequest:
    """Return the request with one key changed: gpus, gpu, or a parameter of the cluster's topology."""
    if key == "gpus":
        if not value.isdecimal() or len(value) > 9 or int(value) > MAX_GPUS:
            raise ConfigError(f"--sweep gpus: found {value!r}; expected whole numbers up to {MAX_GPUS}")
        return replace(request, gpus=int(value))
    if key == "gpu":
        return replace(request, gpu=value)
    return replace(request, fabric={**request.fabric, key: value})
