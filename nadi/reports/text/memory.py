"""Text of `nadi workload memory`."""

from collections.abc import Sequence
from typing import Any, get_args

from inputs.units import GIB
from nadi.errors import ConfigError
from nadi.terminal.tables import FittedTable, name_column
from workload.generators.memory.estimate import PARTS, StageMemory
from workload.generators.training.rules import Framework


def frameworks(name: str) -> Framework:
    """Return a training framework.

    Raises:
        ConfigError: The name is not that of a training framework.
    """
    known: list[Framework] = [each for each in get_args(Framework) if each != "inference"]
    if name not in known:
        raise ConfigError(f"--framework {name!r}: expected one of {', '.join(known)}")
    return known[known.index(name)]


def table(title: str, stages: Sequence[StageMemory]) -> FittedTable:
    """Return a table with a row per range of stages with equal memory."""
    found = FittedTable(title, name_column("stage"), *((part, 1) for part in PARTS), "total", "host")
    for first, last in _equal_stages(stages):
        stage = stages[first]
        numbers = str(first) if first == last else f"{first} to {last}"
        parts = (_gib(getattr(stage, part)) for part in PARTS)
        found.add_row(numbers, *parts, _gib(stage.total), _gib(stage.host) if stage.host else "")
    return found


def document(stages: Sequence[StageMemory], complaint: str) -> dict[str, Any]:
    """Return the memory in bytes as a JSON document."""
    rows = [{**stage._asdict(), "total": stage.total} for stage in stages]
    return {"fits": not complaint, "complaint": complaint, "stages": rows}


def _equal_stages(stages: Sequence[StageMemory]) -> list[tuple[int, int]]:
    """Return first and last stage of each range of stages with equal memory."""
    runs: list[tuple[int, int]] = []
    for number, stage in enumerate(stages):
        if runs and stages[runs[-1][0]][1:] == stage[1:]:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f}"
