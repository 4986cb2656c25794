"""Replay of a trace's communication on real hardware over MPI, or over torch.distributed with gloo.

`steps_of` derives the operations of each rank, and `replay` executes and times them on each rank. Processes of a replay
over gloo on this machine are started here, and the results of a replay are made here.
"""

import dataclasses
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nadi import et
from nadi.errors import OutputError
from nadi.et import TraceTable
from nadi.inputs.units import NS_PER_S
from nadi.insight.node_times import bus_factor
from nadi.launching.installation import nadi_command
from nadi.launching.ranks import RankGather
from nadi.studies.replay.player import OperationTimes, ReplaySteps, play, read_traces, steps_of
from nadi.studies.replay.transports import Gloo, Mpi, connect, torchrun_rank
from nadi.terminal import FittedTable, in_unit, name_column, size_text, time_text, time_unit
from nadi.workload import Program, TraceSet

STORE = "NADI_REPLAY_STORE"  # environment variable with the URL of the file through which local ranks connect
_POLL_S = 0.05  # interval in seconds between checks whether a rank has failed
_NS_PER_MICRO = 1000


class ReplayRequest(NamedTuple):
    """Settings of a replay."""

    over: str  # transport, "mpi" or "gloo"
    sleeps: bool  # whether compute and memory nodes sleep for their duration
    out: Path | None  # prefix of the traces with measured times; None = do not write traces


def replay(request: ReplayRequest, traces: TraceSet, program: Program, ranks: RankGather) -> dict[str, Any]:
    """Replay this rank's trace with all other ranks, which also call it; return the document, or raise OutputError.

    Args:
        request: The options of the command.
        traces: The traces of all ranks.
        program: The messages and collectives of all ranks.
        ranks: This rank and the means to exchange values with the others.
    """
    steps = steps_of(ranks.rank, traces, program)
    is_mpi = request.over == "mpi"
    transport = Mpi(ranks.communicator, steps.groups) if is_mpi else Gloo(ranks.rank, steps.groups)
    # a barrier: without it, the first collective would count the start of slower ranks as waiting
    ranks.exchange(None)
    start_micros = time.time_ns() // _NS_PER_MICRO
    times = play(steps, transport, sleeps=request.sleeps)
    took_ns = int((times.start_ns + times.duration_ns).max(initial=0))
    parts = ranks.exchange((rank_operations(steps, times), took_ns))
    failure = ""
    if request.out:
        try:
            measured = with_times(steps, times, start_micros, sleeps=request.sleeps)
            write_replayed(request.out, ranks.rank, measured)
        except OSError as error:
            failure = f"{request.out}.{ranks.rank}.et: {error.strerror or error}; the trace is not written"
    # all ranks learn of a failed write and leave together; one that raised before would let the others wait in close()
    failures = [each for each in ranks.exchange(failure) if each]
    transport.close()
    if failures:
        raise OutputError(failures[0])
    return replay_document([operations for operations, _ in parts], [each for _, each in parts], request.over)


def run_local_ranks(num_ranks: int, arguments: Sequence[str]) -> int:
    """Run `nadi trace replay` on local ranks, a process each, until one fails; return its exit code, else 0.

    Args:
        num_ranks: The number of processes to start.
        arguments: The arguments of `nadi trace replay`.
    """
    with tempfile.TemporaryDirectory(prefix="nadi-replay-") as folder:
        store = {STORE: f"file://{folder}/store", "WORLD_SIZE": str(num_ranks)}
        command = nadi_command(["trace", "replay", *arguments])
        processes = [
            subprocess.Popen(command, env=os.environ | store | {"RANK": str(rank)})  # noqa: S603 - this project's own command
            for rank in range(num_ranks)
        ]
        try:
            while True:
                codes = [process.poll() for process in processes]
                failed = next((code for code in codes if code), 0)
                # peers of a rank that has failed would wait for it until the timeout of gloo
                if failed or None not in codes:
                    return failed
                time.sleep(_POLL_S)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.terminate()
                process.wait()


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


def write_replayed(prefix: Path, rank: int, trace: TraceTable) -> None:
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


def replay_document(
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


def replay_table(document: dict[str, Any]) -> FittedTable:
    """Return the table of `replay_document`."""
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
