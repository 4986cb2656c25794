"""The terminal table of ranked plans, built from the document that plan.json holds."""

from collections.abc import Callable
from functools import partial
from typing import Any

from nadi.inputs.units import GIB, PS_PER_S
from nadi.reports.text.energy import joules_text, usd_text
from nadi.studies.planner.answer import S_PER_DAY
from nadi.terminal import AnyColumn, FittedTable, in_unit, name_column, time_unit

_SHOWN = ("tp", "cp", "ep", "etp", "dp", "pp", "embedding", "world", "bubble")
"""Time categories other than computation; each has a column if a plan spends time in it."""
_MIN_SHARE = 0.0005  # minimum share of a step, 0 to 1, for a column: 0.05 % would print as 0.1 %


def plan_table(answer: dict[str, Any], max_plans: int) -> FittedTable:
    """Return the table of the first `max_plans` plans of an answer, the document of one request."""
    rows = answer["rows"][:max_plans]
    shown = [name for name in _SHOWN if any(row["shares"][name] > _MIN_SHARE for row in rows)]
    contended = {"packet step": "packets_step_s", "flow step": "flows_step_s"}
    unit = time_unit(row["step_s"] * PS_PER_S for row in rows)
    num_tokens = answer.get("training", {}).get("tokens", 0.0)

    def time(row: dict[str, Any], key: str) -> str:
        return f"{in_unit(row[key] * PS_PER_S, unit)} {unit.name}" if key in row else "-"

    def share(category: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: f"{row['shares'][category]:.1%}"

    title = f"{answer['model']} on {answer['gpus']} {answer['gpu']} of {answer['cluster']}"
    columns: list[tuple[AnyColumn, Callable[[dict[str, Any]], str]]] = [
        (name_column("plan"), lambda row: row["axes"]),
        (name_column("recompute", 5), lambda row: row["recompute"]),
        ("step time", lambda row: f"{'' if row['whole'] else '~'}{time(row, 'step_s')}"),
        *(((name, 1), partial(time, key=key)) for name, key in contended.items() if any(key in row for row in rows)),
        (("MFU", 1), lambda row: f"{row['mfu']:.1%}"),
        (("MFU all pairs", 4), lambda row: f"{row['mfu_all_pairs']:.1%}"),
        (("tokens/s", 3), lambda row: f"{row['tokens_per_s']:,.0f}"),
        (("memory GiB", 2), lambda row: f"{row['memory_bytes'] / GIB:.1f}"),
        (("energy", 2), lambda row: joules_text(row["energy_J"])),
        (("$/step", 3), lambda row: usd_text(row["cost_usd"])),
        (("GPU-h/10^12 tokens", 2), lambda row: f"{row['gpu_hours_per_trillion_tokens']:,.0f}"),
        (("$/10^12 tokens", 2), lambda row: usd_text(row["usd_per_trillion_tokens"])),
        *([(("days", 1), lambda row: f"{_days(row, num_tokens):,.4g}")] if num_tokens else []),
        *(((name, 4), share(name)) for name in ("compute", *shown)),
    ]
    table = FittedTable(title, "rank", *(column for column, _ in columns))
    for rank, row in enumerate(rows, 1):
        table.add_row(rank, *(text(row) for _, text in columns), bold=rank == 1)
    table.notes.append(
        f"{answer['valid']} valid plans, {answer['too_large']} do not fit in {_memory(answer)}; "
        "step times at closed forms, without contention; exposed communication by axis, mean over the GPUs"
    )
    if answer["skipped"]:
        table.notes.append(
            f"{answer['skipped']} plans skipped: computation, pipeline bubble and collectives of layers alone take "
            f"longer per token than each of the best {answer['wanted']} plans"
        )
    if answer["left"]:
        table.notes.append(f"the search was not finished: {answer['left']} plans are left, which may be better")
    table.notes.append("MFU counts the query-key pairs that a causal mask leaves; MFU all pairs counts all of them")
    if answer["constraints"]:
        table.notes.append(f"every plan has {answer['constraints']}, as in --plan")
    if not all(row["whole"] for row in rows):
        table.notes.append("~: extrapolated from two steps with fewer micro-batches")
    powers = f"{answer['energy_table']} over the default table" if answer["energy_table"] else "the default table"
    table.notes.append(f"energy and cost of a step: powers and prices of {powers}, link bytes derived from the traces")
    best = rows[0]
    if best["network_price_usd"]:
        table.notes.append(
            f"network of the first plan: {usd_text(best['network_price_usd'])} to buy, {usd_text(best['network_usd'])} "
            "per step, within $/step"
        )
    table.notes.extend(answer["notes"])
    if "training" in answer:
        table.notes.append(_training(answer["training"]))
    table.notes.extend(answer["why"])
    return table


def _days(row: dict[str, Any], num_tokens: float) -> float:
    """Return the days that a plan takes to train these tokens."""
    return num_tokens / float(row["tokens_per_s"]) / S_PER_DAY


def _memory(answer: dict[str, Any]) -> str:
    """Return the memory that plans of an answer may use, as text."""
    capacity, reserve = (answer[key] / GIB for key in ("memory_bytes", "reserve_bytes"))
    return f"{capacity:.1f} GiB minus {reserve:.1f} GiB in reserve" if reserve else f"{capacity:.1f} GiB"


def _training(totals: dict[str, float]) -> str:
    """Return the note about a whole training with the first plan."""
    return (
        f"{totals['tokens']:,.4g} tokens with the first plan: {totals['steps']:,.0f} steps, "
        f"{totals['days']:,.4g} days, {totals['gpu_hours']:,.4g} GPU-hours, "
        f"{joules_text(totals['energy_J'])}, {usd_text(totals['cost_usd'])}; "
        "without checkpoints and failures"
    )
