"""What `nadi workload memory` shows."""

from collections.abc import Sequence
from typing import Any, get_args

from inputs.units import GIB
from nadi.errors import ConfigError
from nadi.terminal.tables import FittedTable, TableColumn
from workload.generators.memory.estimate import PARTS, StageMemory
from workload.generators.training.rules import Framework


def frameworks(name: str) -> Framework:
    """A framework that trains.

    Raises:
        ConfigError: another name.
    """
    known = [each for each in get_args(Framework) if each != "inference"]
    if name not in known:
        raise ConfigError(f"--framework {name!r}: expected one of {', '.join(known)}")
    found: Framework = name  # type: ignore[assignment]
    return found


def table(title: str, stages: Sequence[StageMemory]) -> FittedTable:
    """One line for each run of stages that need the same."""
    found = FittedTable(
        title, TableColumn("stage", form="name"), *(TableColumn(part, 1) for part in PARTS), "total", "host"
    )
    for first, last in _alike(stages):
        stage = stages[first]
        found.add_row(
            str(first) if first == last else f"{first} to {last}",
            *(_gib(getattr(stage, part)) for part in PARTS),
            _gib(stage.total),
            _gib(stage.host) if stage.host else "",
        )
    return found


def document(stages: Sequence[StageMemory], complaint: str) -> dict[str, Any]:
    """As JSON, in bytes."""
    rows = [{**stage._asdict(), "total": stage.total} for stage in stages]
    return {"fits": not complaint, "complaint": complaint, "stages": rows}


def _alike(stages: Sequence[StageMemory]) -> list[tuple[int, int]]:
    """First and last of runs of stages whose needs are equal."""
    runs: list[tuple[int, int]] = []
    for number, stage in enumerate(stages):
        if runs and stages[runs[-1][0]][1:] == stage[1:]:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f}"
