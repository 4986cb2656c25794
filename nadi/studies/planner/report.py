"""The table of ranked plans, from the document that plan.json holds."""

from typing import Any

from inputs.units import GIB, PS_PER_S
from nadi.reports.text.energy import joules_text, usd_text
from nadi.terminal.readable import in_unit, time_unit
from nadi.terminal.tables import FittedTable, TableColumn

_SHOWN = ("tp", "cp", "ep", "etp", "dp", "pp", "embedding", "world", "bubble")
"""Kinds of time that are no computation, where any plan has them."""
_LEAST_SHARE = 0.0005


def plan_table(found: dict[str, Any], top: int) -> FittedTable:
    """The first plans of a document."""
    rows = found["rows"][:top]
    shown = [name for name in _SHOWN if any(row["shares"][name] > _LEAST_SHARE for row in rows)]
    confirmed = any("packets_step_s" in row for row in rows)
    table = FittedTable(
        f"{found['model']} on {found['gpus']} {found['gpu']} of {found['cluster']}",
        "",
        TableColumn("plan", form="name"),
        TableColumn("recompute", 5, form="name"),
        "step",
        *([TableColumn("by packets", 1)] if confirmed else []),
        TableColumn("MFU", 1),
        TableColumn("all pairs", 4),
        TableColumn("tokens/s", 3),
        TableColumn("GiB", 2),
        TableColumn("energy", 2),
        TableColumn("$/step", 3),
        TableColumn("$/1M tokens", 2),
        TableColumn("compute", 4),
        *(TableColumn(name, 4) for name in shown),
    )
    unit = time_unit(row["step_s"] * PS_PER_S for row in rows)
    for place, row in enumerate(rows):
        packets = f"{in_unit(row['packets_step_s'] * PS_PER_S, unit)} {unit.name}" if "packets_step_s" in row else "-"
        table.add_row(
            str(place + 1),
            row["axes"],
            row["recompute"],
            f"{'' if row['whole'] else '~'}{in_unit(row['step_s'] * PS_PER_S, unit)} {unit.name}",
            *([packets] if confirmed else []),
            f"{row['mfu']:.1%}",
            f"{row['mfu_all_pairs']:.1%}",
            f"{row['tokens_per_s']:,.0f}",
            f"{row['memory_bytes'] / GIB:.1f}",
            joules_text(row["energy_J"]),
            usd_text(row["cost_usd"]),
            usd_text(row["usd_per_million_tokens"]),
            f"{row['shares']['compute']:.1%}",
            *(f"{row['shares'][name]:.1%}" for name in shown),
            bold=place == 0,
        )
    table.notes.append(
        f"{found['valid']} valid plans, {found['too_large']} do not fit in {_memory(found)}; "
        "steps at closed forms, without contention; exposed communication by axis, mean over the GPUs"
    )
    table.notes.append("MFU counts the pairs of query and key that a causal mask leaves; all pairs: with all of them")
    if found["constraints"]:
        table.notes.append(f"every plan has {found['constraints']}, as --plan says")
    if not all(row["whole"] for row in rows):
        table.notes.append("~: on the line through two steps of fewer micro-batches")
    powers = f"{found['energy_table']} over the default table" if found["energy_table"] else "the default table"
    table.notes.append(
        f"energy and dollars of a step: powers and prices of {powers}, bytes of links told from the traces"
    )
    table.notes.extend(found["notes"])
    if "training" in found:
        table.notes.append(_training(found["training"]))
    table.notes.extend(found["why"])
    return table


def _memory(found: dict[str, Any]) -> str:
    """What a GPU has for plans."""
    whole, reserve = (found[key] / GIB for key in ("memory_bytes", "reserve_bytes"))
    return f"{whole:.1f} GiB less {reserve:.1f} GiB in reserve" if reserve else f"{whole:.1f} GiB"


def _training(whole: dict[str, float]) -> str:
    """Of all tokens, by the first plan."""
    return (
        f"{whole['tokens']:,.4g} tokens with the first plan: {whole['steps']:,.0f} steps, {whole['days']:,.4g} days, "
        f"{joules_text(whole['energy_J'])}, {usd_text(whole['cost_usd'])}; without checkpoints and failures"
    )
