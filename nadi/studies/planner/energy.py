"""Joules and dollars of a plan's step, by the table of `nadi energy`; and of a whole training of so many tokens.

Times of GPUs are those of the step at closed forms; what links sent is told from the traces, as in runs at closed
forms.
"""

from typing import Any, NamedTuple

from nadi.energy.bill import NPU_TIMES, Bill, Usage, bill
from nadi.energy.table import OTHER, EnergyTable, choose
from nadi.studies.planner.step import StepTime

_S_PER_DAY = 86_400.0


class StepBill(NamedTuple):
    """What a step costs.

    Attributes:
        bill: of all GPUs and what serves them.
        tokens: that the step trains.
    """

    bill: Bill
    tokens: float

    @property
    def usd_per_million_tokens(self) -> float:
        """Dollars."""
        return self.bill.usd / self.tokens * 1e6

    def document(self) -> dict[str, Any]:
        """For JSON."""
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
    """What a step costs by a table.

    Args:
        step: its time and what was used.
        gpu: name.
        gpus: how many.
        tokens: that it trains.
        table: of powers and prices.
    """
    times = dict(zip(NPU_TIMES, step.use.npu_ps.tolist(), strict=True))
    return StepBill(bill(Usage(gpu, gpus, step.step_ps, times, step.use.ports, 1, tokens), table), tokens)


def training(row: dict[str, Any], tokens: float) -> dict[str, float]:
    """A whole training: steps one after another, without checkpoints and failures.

    Args:
        row: of a plan's document.
        tokens: that are to be trained.
    """
    steps = tokens / (row["tokens_per_s"] * row["step_s"])
    return {
        "tokens": tokens,
        "steps": steps,
        "days": steps * row["step_s"] / _S_PER_DAY,
        "energy_J": steps * row["energy_J"],
        "cost_usd": steps * row["cost_usd"],
    }


def assumed(gpu: str, table: EnergyTable) -> list[str]:
    """What is to be said of the table's GPU: a sentence, or none."""
    if choose(table, gpu).name != OTHER:
        return []
    return [f"the table has no GPU {gpu!r}: power and price are those of gpus.{OTHER}."]
