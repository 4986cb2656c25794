"""Text of `nadi workload memory`."""

from collections.abc import Sequence
from typing import Any, get_args

from inputs.units import GIB
from nadi.errors import ConfigError
from nadi.terminal.tables import FittedTable, TableColumn
from workload.generators.memory.estimate import PARTS, StageMemory
from workload.generators.training.rules import Framework


def frameworks(name: str) -> Framework:
    """Return a training framework.

    Raises:
        ConfigError: The name is not that of a training framework.
    """
    known = [each for each in get_args(Framework) if each != "inference"]
    if name not in known:
        raise ConfigError(f"--framework {name!r}: expected one of {', '.join(known)}")
    found: Framework = name  # type: ignore[assignment]
    return found


def table(title: str, stages: Sequence[StageMemory]) -> FittedTable:
    """Return a table with a row per range of stages with equal memory."""
    found = FittedTable(
        title, TableColumn("stage", form="name"), *(TableColumn(part, 1) for part in PARTS), "total", "host"
    )
    for first, last in _equal_stages(stages):
        stage = stages[first]
        found.add_row(
            str(first) if first == last else f"{first} to {last}",
            *(_gib(getattr(stage, part)) for part in PARTS),
            _gib(stage.total),
            _gib(stage.host) if stage.host else "",
        )
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
