"""Results of a replay: a table of its operations, and traces with the measured times."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from nadi import et
from nadi.et import TraceTable
from nadi.inputs.units import NS_PER_S
from nadi.insight.node_times import bus_factor
from nadi.studies.replay.player import OperationTimes
from nadi.studies.replay.steps import ReplaySteps
from nadi.terminal import FittedTable, in_unit, name_column, size_text, time_text, time_unit

_NS_PER_MICRO = 1000
_PS_PER_NS = 1000


def with_times(steps: ReplaySteps, times: OperationTimes, begun_micros: int, *, sleeps: bool) -> TraceTable:
    """Return the trace of a rank with times of a replay in whole microseconds, at least 1, none for skipped nodes.

    Args:
        steps: The operations of the rank, with the rows of its trace.
        times: The measured begin and end of each operation.
        begun_micros: The time of the replay's begin in microseconds.
        sleeps: Whether compute and memory nodes slept for their duration.
    """
    start = begun_micros + times.start_ns // _NS_PER_MICRO
    took_micros = np.maximum(1, np.round(times.duration_ns / _NS_PER_MICRO).astype(np.int64))
    replayed = np.zeros(len(took_micros), np.bool_)
    replayed[list(steps.operations)] = True
    replayed |= sleeps & (steps.duration_ns > 0)
    return dataclasses.replace(
        steps.table,
        start_time_micros=np.where(replayed, start, 0),
        duration_micros=np.where(replayed, took_micros, 0),
    )


def write(prefix: Path, rank: int, trace: TraceTable) -> None:
    """Write the trace of a rank as `<prefix>.<rank>.et`."""
    et.write_table(f"{prefix}.{rank}.et", trace)


def rank_operations(steps: ReplaySteps, times: OperationTimes) -> list[tuple[Any, ...]]:
    """Return kind, bytes, members, key and nanoseconds of each operation; all ranks of a collective share its key.

    Args:
        steps: The operations of the rank, with the rows of its trace.
        times: The measured begin and end of each operation.
    """
    operations = []
    seen: dict[int, int] = {}
    for rows in steps.channel.values():
        for row in rows:
            operation = steps.operations[row]
            group = operation.group
            # members run the collectives of a group in one order, so that the n-th is the same collective on each
            number = seen[group] = seen.get(group, -1) + 1 if group >= 0 else -1
            key = (group, number) if group >= 0 else None
            members = len(operation.members) if group >= 0 else 2
            operations.append((operation.kind, operation.size_bytes, members, key, int(times.duration_ns[row])))
    return operations


def document(
    operations_of_rank: list[list[tuple[Any, ...]]], time_ns_of_rank: list[int], transport: str
) -> dict[str, Any]:
    """Return the JSON document of a replay over "mpi" or "gloo", from the result of `rank_operations` of each rank.

    Args:
        operations_of_rank: The result of `rank_operations` of each rank.
        time_ns_of_rank: The time of the whole replay in nanoseconds, for each rank.
        transport: "mpi" or "gloo".
    """
    times_by_operation: dict[Any, list[int]] = {}
    for operations in operations_of_rank:
        for kind, size, members, key, duration_ns in operations:
            # a message is an operation of its own: the number of entries so far has not been a key yet
            unique_key = key if key is not None else len(times_by_operation)
            times_by_operation.setdefault((kind, size, members, unique_key), []).append(duration_ns)
    times_by_size: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for (kind, size, members, _), durations_ns in times_by_operation.items():
        # The last rank to join determines the transfer time; what earlier ranks took in addition is waiting.
        transfer_ns, wait_ns = min(durations_ns), max(durations_ns) - min(durations_ns)
        times_by_size.setdefault((kind, size, members), []).append((transfer_ns, wait_ns))
    rows = []
    for (kind, size, members), times in sorted(times_by_size.items()):
        median_ns = max(float(np.median([transfer_ns for transfer_ns, _ in times])), 1.0)
        rows.append(
            {
                "kind": kind,
                "bytes": size,
                "members": members,
                "count": len(times),
                "transfer_ps": median_ns * _PS_PER_NS,
                "wait_ps": float(np.median([wait for _, wait in times])) * _PS_PER_NS,
                "busbw_Bps": size * bus_factor(kind, members) * NS_PER_S / median_ns,
            }
        )
    ranks = [{"rank": rank, "time_ps": durations_ns * _PS_PER_NS} for rank, durations_ns in enumerate(time_ns_of_rank)]
    return {"over": transport, "ranks": len(operations_of_rank), "operations": rows, "rank_rows": ranks}


def render(document: dict[str, Any]) -> FittedTable:
    """Return the table of a document from nadi.studies.replay.outcome."""
    rows = document["operations"]
    unit = time_unit([row["transfer_ps"] for row in rows])
    times = f"transfer ({unit.name})", (f"longest wait ({unit.name})", 1)
    title = f"replay over {document['over']}, {document['ranks']} ranks, median times"
    table = FittedTable(title, name_column("kind"), "size", "members", "count", *times, ("busbw (GB/s)", 2))
    for row in rows:
        times_each = (in_unit(row[key], unit) for key in ("transfer_ps", "wait_ps"))
        counts = size_text(row["bytes"]), row["members"], row["count"]
        table.add_row(row["kind"], *counts, *times_each, f"{row['busbw_Bps'] / 1e9:,.3f}")
    longest = max(row["time_ps"] for row in document["rank_rows"])
    table.notes.append(f"the slowest rank finished after {time_text(longest)}")
    return table
