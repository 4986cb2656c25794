"""Energy in joules and cost in dollars of a plan's step, and of a whole training, from the table of `nadi energy`.

GPU times are those of the closed-form step. Bytes per link are derived from the traces, as in runs at closed forms.
"""

from typing import Any, NamedTuple

from nadi.energy.bill import NPU_TIMES, Bill, Usage, bill
from nadi.energy.table import OTHER, EnergyTable, choose
from nadi.studies.planner.step import StepTime

_S_PER_DAY = 86_400.0


class StepBill(NamedTuple):
    """Energy and cost of a step."""

    bill: Bill  # energy and cost of all GPUs, links, switches and the data centre
    tokens: float  # number of tokens that the step trains

    @property
    def usd_per_million_tokens(self) -> float:
        """Cost in dollars per million trained tokens."""
        return self.bill.usd / self.tokens * 1e6

    def document(self) -> dict[str, Any]:
        """Return the JSON fields of a plan's row."""
        return {
            "energy_J": self.bill.joules,
            "cost_usd": self.bill.usd,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "energy_parts_J": {
                **{part.name: part.joules for part in self.bill.parts},
                "data centre (PUE)": self.bill.overhead_J,
            },
        }


def step_bill(step: StepTime, gpu: str, gpus: int, tokens: float, table: EnergyTable) -> StepBill:
    """Return the energy and cost of a step.

    Args:
        step: Step time and energy use.
        gpu: Name of the GPU.
        gpus: Number of GPUs.
        tokens: Number of tokens that the step trains.
        table: Powers and prices.
    """
    times = dict(zip(NPU_TIMES, step.use.npu_ps.tolist(), strict=True))
    return StepBill(bill(Usage(gpu, gpus, step.step_ps, times, step.use.ports, 1, tokens), table), tokens)


def training(row: dict[str, Any], tokens: float) -> dict[str, float]:
    """Return time, energy and cost of a whole training without checkpoints and failures.

    Args:
        row: Row of a plan in the document.
        tokens: Number of tokens of the training.
    """
    steps = tokens / (row["tokens_per_s"] * row["step_s"])
    return {
        "tokens": tokens,
        "steps": steps,
        "days": steps * row["step_s"] / _S_PER_DAY,
        "energy_J": steps * row["energy_J"],
        "cost_usd": steps * row["cost_usd"],
    }


def power_assumptions(gpu: str, table: EnergyTable) -> list[str]:
    """Return a note if the table lacks the GPU and the power of another entry applies; else an empty list."""
    if choose(table, gpu).name != OTHER:
        return []
    return [f"the table has no GPU {gpu!r}: power and price are those of gpus.{OTHER}."]
