"""The document of a ranking, which --json prints and plan.json holds, and the merge of several shards' documents.

GPU times in the energy and cost of a step are those of closed forms; bytes per link are derived from the traces, as in
runs at closed forms.
"""

from collections.abc import Sequence
from typing import Any

from nadi.energy import NPU_TIMES, OTHER_GPU, EnergyTable, Usage, bill, gpu_cost
from nadi.errors import ConfigError
from nadi.inputs.units import PS_PER_S
from nadi.pdes.fidelity import FASTEST
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.studies.planner.planning import PlanRanking
from nadi.studies.planner.ranking import RankedPlan
from nadi.studies.planner.search import axes_text
from nadi.studies.planner.step import StepTime

SHARD_KEYS = (
    *("model", "cluster", "gpus", "gpu", "framework", "reserve_bytes", "constraints", "energy_table", "wanted"),
)
"""Keys of the document that must be equal in all shards of a merge."""
S_PER_DAY, _S_PER_HOUR = 86_400.0, 3_600.0
_TRILLION = 1e12  # number of tokens to which GPU-hours and dollars refer


def document(ranking: PlanRanking) -> dict[str, Any]:
    """Return the answer that --json prints and plan.json holds.

    Args:
        ranking: The ranked plans with the request that they answer.
    """
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
        "wanted": max(request.top, request.confirm),
        "skipped": ranking.skipped,
        "left": ranking.left,
        "energy_table": None if request.energy_table is None else str(request.energy_table),
        "notes": power_assumptions(ranking.gpu, ranking.table),
        **({"training": training(rows[0], request.gpus, request.tokens)} if request.tokens else {}),
        "rows": rows,
        "why": explain_ranking(rows),
    }


def _row(ranked_plan: RankedPlan, ranking: PlanRanking, rank: int) -> dict[str, Any]:
    """Return a plan's row of the document; rank: from 0."""
    tokens, step_s, gpus = ranked_plan.bounded.tokens, ranked_plan.step.step_ps / PS_PER_S, ranking.request.gpus
    columns: dict[str, Any] = {
        "plan": str(ranked_plan.candidate.plan),
        "axes": axes_text(ranked_plan.candidate.plan),
        "recompute": ranked_plan.candidate.plan.recompute,
        "step_s": step_s,
        "bound_s": ranked_plan.bounded.bound_ps / PS_PER_S,
        "tokens": tokens,
        "tokens_per_s": tokens / step_s,
        "mfu": ranked_plan.mfu,
        "mfu_all_pairs": ranked_plan.mfu_all_pairs,
        "memory_bytes": ranked_plan.candidate.peak_bytes,
        "whole": ranked_plan.step.is_whole,
        "shares": {name: ranked_plan.step.of(name) for name in STEP_CATEGORIES},
        "gpu_hours_per_trillion_tokens": gpus * step_s / _S_PER_HOUR / tokens * _TRILLION,
        **step_costs(ranked_plan.step, ranking.gpu, gpus, tokens, ranking.table),
    }
    if rank < len(ranking.confirmed):
        columns |= ranking.confirmed[rank].document()
    return columns


def explain_ranking(plan_rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each of the three plans behind the first: how much longer it takes, and why.

    Times are for the tokens of the first plan's step.

    Args:
        plan_rows: The rows of the best plans, as --json prints them.
    """
    lines = []
    for place, row in enumerate(plan_rows[1:4], 2):
        # plans may have batches of different sizes: a step of 2M tokens counts half against one of 1M
        steps = plan_rows[0]["tokens"] / row["tokens"]
        difference_s = {name: steps * _seconds(row, name) - _seconds(plan_rows[0], name) for name in STEP_CATEGORIES}
        largest = sorted(difference_s.items(), key=lambda part: -abs(part[1]))[:3]
        parts = ", ".join(f"{name} {s:+.2f} s" for name, s in largest if abs(s) > 0.001 * plan_rows[0]["step_s"])
        excess = steps * row["step_s"] / plan_rows[0]["step_s"] - 1
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
        (row for shard in documents for row in shard["rows"]),
        key=lambda row: (row["step_s"] / row["tokens"], row["memory_bytes"], row["plan"]),
    )
    wanted = documents[0]["wanted"]
    limit = rows[:wanted][-1]["step_s"] / rows[:wanted][-1]["tokens"]
    # what one search over all plans would have kept (search.FoundPlans.best): each shard had a limit of its own, which
    # may be higher than that of all together
    kept = rows[:wanted] + [row for row in rows[wanted:] if row["bound_s"] / row["tokens"] <= limit]
    merged = {**documents[0], "rows": kept, "why": explain_ranking(kept)}
    merged["skipped"] = sum(shard["skipped"] for shard in documents) + len(rows) - len(kept)
    merged["left"] = sum(shard["left"] for shard in documents)
    if "training" in merged:
        merged["training"] = training(kept[0], merged["gpus"], merged["training"]["tokens"])
    return merged


def step_costs(step: StepTime, gpu_name: str, num_gpus: int, num_tokens: float, table: EnergyTable) -> dict[str, Any]:
    """Return the energy and cost of a step that trains `num_tokens` as JSON fields of a plan's row.

    Args:
        step: The step time with its parts.
        num_tokens: The number of tokens that one step trains.
        gpu_name: The name of the GPU in the energy table.
        num_gpus: The number of GPUs of the plan.
        table: Powers and prices of devices.
    """
    times = dict(zip(NPU_TIMES, step.use.npu_ps.tolist(), strict=True))
    costs = bill(Usage(gpu_name, num_gpus, step.step_ps, times, step.use.ports, 1, num_tokens), table)
    return {
        "energy_J": costs.joules,
        "cost_usd": costs.usd,
        "network_usd": costs.network_usd,
        "network_price_usd": costs.network_price_usd,
        "usd_per_million_tokens": costs.usd / num_tokens * 1e6,
        "usd_per_trillion_tokens": costs.usd / num_tokens * _TRILLION,
        "energy_parts_J": {part.name: part.joules for part in costs.parts} | {"data centre (PUE)": costs.overhead_J},
    }


def training(plan_row: dict[str, Any], num_gpus: int, num_tokens: float) -> dict[str, float]:
    """Return time, energy and cost of training that many tokens with a plan's row, without checkpoints and failures.

    Args:
        plan_row: A plan's row, as --json prints it.
        num_gpus: The number of GPUs of the plan.
        num_tokens: The number of tokens of the whole training.
    """
    steps = num_tokens / (plan_row["tokens_per_s"] * plan_row["step_s"])
    return {
        "tokens": num_tokens,
        "steps": steps,
        "days": steps * plan_row["step_s"] / S_PER_DAY,
        "gpu_hours": steps * plan_row["step_s"] / _S_PER_HOUR * num_gpus,
        "energy_J": steps * plan_row["energy_J"],
        "cost_usd": steps * plan_row["cost_usd"],
    }


def power_assumptions(gpu_name: str, table: EnergyTable) -> list[str]:
    """Return a note if the table lacks the GPU and the power of another entry applies; else an empty list.

    Args:
        gpu_name: The name of the GPU in the energy table.
        table: Powers and prices of devices.
    """
    if gpu_cost(table, gpu_name)[0] != OTHER_GPU:
        return []
    return [f"the table has no GPU {gpu_name!r}: power and price are those of gpus.{OTHER_GPU}."]
