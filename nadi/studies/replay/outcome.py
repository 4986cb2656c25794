"""What a replay took: a table of its operations, and its traces with the times that were measured."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

import et
from et import TraceTable
from inputs.units import NS_PER_S
from nadi.insight.analysis.node_times import bus_factor
from nadi.studies.replay.player import OperationTimes
from nadi.studies.replay.steps import ReplaySteps

_NS_PER_MICRO = 1000
_PS_PER_NS = 1000


def with_times(steps: ReplaySteps, times: OperationTimes, begun_micros: int, *, sleeps: bool) -> TraceTable:
    """The trace of a rank with the times of its replay, in whole microseconds and at least one of what was done.

    What was skipped has no times: compute and memory nodes unless they slept.
    """
    start = begun_micros + times.start_ns // _NS_PER_MICRO
    took = np.maximum(1, np.round(times.duration_ns / _NS_PER_MICRO).astype(np.int64))
    replayed = np.zeros(len(took), np.bool_)
    replayed[list(steps.operations)] = True
    replayed |= sleeps & (steps.duration_ns > 0)
    return dataclasses.replace(
        steps.table,
        start_time_micros=np.where(replayed, start, 0),
        duration_micros=np.where(replayed, took, 0),
    )


def write(path: Path, rank: int, table: TraceTable) -> None:
    """Write `<path>.<rank>.et`."""
    et.write_table(f"{path}.{rank}.et", table)


def part(steps: ReplaySteps, times: OperationTimes) -> list[tuple[Any, ...]]:
    """Of each operation of a rank: kind, bytes, members, which one it is among all ranks, and nanoseconds."""
    found = []
    seen: dict[int, int] = {}
    for rows in steps.channel.values():
        for row in rows:
            operation = steps.operations[row]
            group = operation.group
            number = seen[group] = seen.get(group, -1) + 1 if group >= 0 else -1
            key = (group, number) if group >= 0 else None
            members = len(operation.members) if group >= 0 else 2
            found.append((operation.kind, operation.size_bytes, members, key, int(times.duration_ns[row])))
    return found


def document(parts: list[list[tuple[Any, ...]]], times_ns: list[int], over: str) -> dict[str, Any]:
    """What all ranks took, in values that JSON can hold.

    Args:
        parts: of all ranks.
        times_ns: how long the replay of each rank took.
        over: the transport.
    """
    joint: dict[Any, list[int]] = {}
    for own in parts:
        for kind, size, members, key, took in own:
            joint.setdefault((kind, size, members, key if key is not None else len(joint)), []).append(took)
    of_size: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for (kind, size, members, _), took in joint.items():
        of_size.setdefault((kind, size, members), []).append((min(took), max(took) - min(took)))
    rows = []
    for (kind, size, members), found in sorted(of_size.items()):
        transfer = max(float(np.median([least for least, _ in found])), 1.0)
        rows.append(
            {
                "kind": kind,
                "bytes": size,
                "members": members,
                "count": len(found),
                "transfer_ps": transfer * _PS_PER_NS,
                "wait_ps": float(np.median([wait for _, wait in found])) * _PS_PER_NS,
                "busbw_Bps": size * bus_factor(kind, members) * NS_PER_S / transfer,
            }
        )
    ranks = [{"rank": rank, "time_ps": took * _PS_PER_NS} for rank, took in enumerate(times_ns)]
    return {"over": over, "ranks": len(parts), "operations": rows, "rank_rows": ranks}
