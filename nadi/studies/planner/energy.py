"""Energy in joules and cost in dollars of a plan's step, and of a whole training, from the table of `nadi energy`.

GPU times are those of the closed-form step. Bytes per link are derived from the traces, as in runs at closed forms.
"""

from typing import Any

from nadi.energy.bill import NPU_TIMES, Usage, bill
from nadi.energy.table import OTHER, EnergyTable, choose
from nadi.studies.planner.step import StepTime

_S_PER_DAY = 86_400.0


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
