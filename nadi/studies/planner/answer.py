"""The document of a ranking, which --json prints and plan.json holds, its schema, and the merge of several shards.

GPU times in the energy and cost of a step are those of closed forms; bytes per link are derived from the traces, as in
runs at closed forms.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from nadi.energy import NPU_TIMES, OTHER_GPU, EnergyTable, Usage, bill, gpu_cost
from nadi.errors import ConfigError
from nadi.inputs.documents import DocumentError, read_document
from nadi.inputs.units import PS_PER_S
from nadi.pdes.fidelity import FASTEST
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.studies.planner.planning import PlanRanking
from nadi.studies.planner.search import RankedPlan, axes_text
from nadi.studies.planner.step import StepTime
from nadi.validation import ErrorBarDocument, Question, error_bars, step_question

SHARD_KEYS = (
    *("model", "cluster", "gpus", "gpu", "framework", "reserve_bytes", "constraints", "energy_table", "wanted"),
)
"""Keys of the document that must be equal in all shards of a merge."""
S_PER_DAY, _S_PER_HOUR = 86_400.0, 3_600.0
_TRILLION = 1e12  # number of tokens to which GPU-hours and dollars refer


def answer_document(ranking: PlanRanking) -> dict[str, Any]:
    """Return the answer that --json prints and plan.json holds.

    Args:
        ranking: The ranked plans with the request that they answer.
    """
    request = ranking.request
    rows = [_plan_row(row, ranking, place) for place, row in enumerate(ranking.rows)]
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
        **({"training": training_costs(rows[0], request.gpus, request.tokens)} if request.tokens else {}),
        "rows": rows,
        "why": explain_ranking(rows),
        "error_bars": [bar.document() for bar in error_bars(_questions(ranking))],
    }


def _questions(ranking: PlanRanking) -> Iterator[Question]:
    """Yield what each plan answers, the best one first."""
    request = ranking.request
    for row in ranking.rows:
        step_s = row.step.step_ps / PS_PER_S
        yield step_question(request.model, row.candidate.plan, request.framework, ranking.gpu, step_s)


def _plan_row(ranked_plan: RankedPlan, ranking: PlanRanking, rank: int) -> dict[str, Any]:
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
    bars = {bar["class_name"]: bar for shard in documents for bar in shard["error_bars"]}
    merged["error_bars"] = list(bars.values())
    merged["left"] = sum(shard["left"] for shard in documents)
    if "training" in merged:
        merged["training"] = training_costs(kept[0], merged["gpus"], merged["training"]["tokens"])
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


def training_costs(plan_row: dict[str, Any], num_gpus: int, num_tokens: float) -> dict[str, float]:
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


_MAX_BYTES = 1 << 62
_MAX_COUNT = 1 << 40
_MAX_AMOUNT = 1e30  # far above any time in seconds, energy in joules, rate or price that a plan can have
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

_Amount = Annotated[float, Field(ge=0, le=_MAX_AMOUNT)]
_Positive = Annotated[float, Field(gt=0, le=_MAX_AMOUNT)]
_Bytes = Annotated[int, Field(ge=0, le=_MAX_BYTES)]
_Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]


def _complete(share_of_category: dict[str, float]) -> dict[str, float]:
    """Return the shares after checking that every time category has one."""
    missing = [name for name in STEP_CATEGORIES if name not in share_of_category]
    if missing:
        raise ValueError(f"lacks {missing[0]}")
    return share_of_category


@with_config(_STRICT)
class PlanRow(TypedDict):
    """One plan of the table: times in seconds, energy in joules, shares of the step time from 0 to 1."""

    plan: str
    axes: str
    recompute: str
    step_s: _Positive
    bound_s: _Positive
    tokens: Annotated[int, Field(gt=0, le=_MAX_COUNT)]
    tokens_per_s: _Positive
    mfu: _Amount
    mfu_all_pairs: _Amount
    memory_bytes: _Bytes
    whole: bool
    shares: Annotated[dict[str, _Amount], AfterValidator(_complete)]
    energy_J: _Amount
    cost_usd: _Amount
    network_usd: _Amount
    network_price_usd: _Amount
    usd_per_million_tokens: _Amount
    gpu_hours_per_trillion_tokens: _Amount
    usd_per_trillion_tokens: _Amount
    energy_parts_J: dict[str, _Amount]
    packets_step_s: NotRequired[_Positive]
    packets_over_closed_form: NotRequired[dict[str, float]]
    flows_step_s: NotRequired[_Positive]


@with_config(_STRICT)
class TrainingTotals(TypedDict):
    """Time, energy and cost of a whole training with the first plan."""

    tokens: _Positive
    steps: _Amount
    days: _Amount
    gpu_hours: _Amount
    energy_J: _Amount
    cost_usd: _Amount


@with_config(_STRICT)
class PlanAnswer(TypedDict):
    """The ranked plans of one request."""

    model: str
    cluster: str
    gpus: _Count
    gpu: str
    framework: str
    fidelity: str
    memory_bytes: _Bytes
    reserve_bytes: _Bytes
    constraints: str
    valid: _Count
    too_large: _Count
    wanted: Annotated[int, Field(gt=0, le=_MAX_COUNT)]
    skipped: _Count
    left: _Count
    energy_table: str | None
    notes: list[str]
    training: NotRequired[TrainingTotals]
    rows: Annotated[list[PlanRow], Field(min_length=1)]
    why: list[str]
    error_bars: list[ErrorBarDocument]


@with_config(_STRICT)
class PlanFile(TypedDict):
    """The whole document: one answer, or one for each value of `--sweep`."""

    answers: Annotated[dict[str, PlanAnswer], Field(min_length=1)]


SCHEMA = TypeAdapter(PlanFile)


def read_answers(folders: Sequence[Path], file_name: str) -> list[dict[str, Any]]:
    """Return the answers in files of this name in folders of `nadi plan --out`; a wrong file is a ConfigError.

    Args:
        folders: The folders that `nadi plan --out` wrote.
        file_name: The name of the file in each folder.
    """
    answers: list[dict[str, Any]] = []
    for folder in folders:
        path = folder / file_name
        try:
            answers.extend(read_document(path, SCHEMA)["answers"].values())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}; expected results of nadi plan") from error
        except DocumentError as error:
            raise ConfigError(f"{path}: {error}; expected results of this version's nadi plan") from error
    return answers
