"""Replay of a trace's communication on real hardware over MPI, or over torch.distributed with gloo.

`steps_of` derives the operations of each rank, and `replay` executes and times them on each rank. Reductions use
float32; everything else moves bytes. Processes of a replay over gloo on this machine are started here, and the results
of a replay are made here.
"""

import dataclasses
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nadi import et
from nadi.errors import ConfigError, OutputError
from nadi.et import TraceTable
from nadi.inputs.units import NS_PER_S
from nadi.insight.node_times import bus_factor
from nadi.launching.installation import nadi_command
from nadi.launching.ranks import RankGather
from nadi.studies.replay.player import (
    Buffers,
    Bytes,
    OperationTimes,
    ReplayOperation,
    ReplaySteps,
    play,
    read_traces,
    steps_of,
)
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


_TIMEOUT_S = 300  # seconds that a rank waits for its peers before the replay fails


def connect(init_method: str, rank: int, num_ranks: int) -> RankGather:
    """Join the process group through an init method such as "env://" or "file:///path", and return its collectives.

    Args:
        init_method: The address at which ranks find each other.
        rank: The number of this rank.
        num_ranks: The number of ranks.
    """
    try:
        from torch import distributed
    except ImportError:
        raise ConfigError("--over gloo: PyTorch is not installed; expected pip install torch") from None
    timeout = timedelta(seconds=_TIMEOUT_S)
    distributed.init_process_group("gloo", init_method=init_method, rank=rank, world_size=num_ranks, timeout=timeout)

    def exchange(value: Any) -> list[Any]:  # noqa: ANN401 - whatever can be pickled
        values: list[Any] = [None] * num_ranks
        distributed.all_gather_object(values, value)
        return values

    def gather(value: Any) -> list[Any] | None:  # noqa: ANN401 - whatever can be pickled
        values = exchange(value)
        return values if rank == 0 else None

    return RankGather(exchange, gather, rank, num_ranks)


class Gloo:
    """The gloo implementation of nadi.studies.replay.player.Transport."""

    def __init__(self, rank: int, groups: Mapping[int, tuple[int, ...]]) -> None:
        """Create the process groups of `groups`, members by number; all ranks call it with the same groups."""
        from torch import distributed

        self._dist = distributed
        self._rank = rank
        self._buffers = Buffers()
        # torch.distributed requires all ranks to create all groups, in the same order, members or not
        self._of_group = {
            number: distributed.new_group(sorted(members), use_local_synchronization=False)
            for number, members in sorted(groups.items())
            if len(members) > 1
        }
        # the names differ between versions of PyTorch: take the first that this one has
        names = ("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor")
        self._all_gather_call, self._reduce_scatter_call = (
            next(getattr(distributed, name) for name in choice if hasattr(distributed, name)) for choice in names
        )

    def begin(self, operation: ReplayOperation) -> tuple[Any, tuple[Bytes, ...]]:
        """Start an operation; return its handle and its buffers."""
        if operation.kind in {"send", "recv"}:
            own = self._buffers.take(operation.size_bytes)
            call = self._dist.isend if operation.kind == "send" else self._dist.irecv
            return _Waited(call(_tensor(own), operation.members[0], tag=operation.tag)), (own,)
        group = self._of_group[operation.group]
        if operation.send_bytes:
            sent, received = (self._buffers.take(sum(b)) for b in (operation.send_bytes, operation.recv_bytes))
            # PyTorch sorts the ranks of a group.
            order = sorted(range(len(operation.members)), key=operation.members.__getitem__)
            sizes = [[part[i] for i in order] for part in (operation.recv_bytes, operation.send_bytes)]
            call = self._dist.all_to_all_single
            return call(_tensor(received), _tensor(sent), *sizes, group=group, async_op=True), (sent, received)
        return self._begin_even(group, operation)

    def _begin_even(self, process_group: Any, operation: ReplayOperation) -> tuple[Any, tuple[Bytes, ...]]:  # noqa: ANN401 - torch's
        """Start a collective of equal parts; all-reduce and reduce work in place, and only a root has all parts."""
        dist, root, is_root = self._dist, operation.members[0], operation.own == 0
        send_bytes, recv_bytes = operation.buffer_bytes()
        # only the root's buffer holds all parts: the other ranks need no memory for them
        if operation.kind == "scatter" and not is_root:
            send_bytes = 0
        if operation.kind in {"all-reduce", "reduce"} or (operation.kind == "gather" and not is_root):
            recv_bytes = 0
        sent, received = self._buffers.take(send_bytes), self._buffers.take(recv_bytes)
        options = {"group": process_group, "async_op": True}

        def parts(whole: Bytes) -> list[Any] | None:
            """Return the tensors of all members' parts on the root, else None."""
            return [_tensor(part) for part in np.split(whole, len(operation.members))] if is_root else None

        calls = {
            "all-reduce": lambda: dist.all_reduce(_torch_floats(sent), **options),
            "reduce": lambda: dist.reduce(_torch_floats(sent), dst=root, **options),
            "reduce-scatter": lambda: _Waited(
                self._reduce_scatter_call(_torch_floats(received), _torch_floats(sent), **options)
            ),
            "all-gather": lambda: self._all_gather_call(_tensor(received), _tensor(sent), **options),
            "gather": lambda: dist.gather(_tensor(sent), parts(received), root, **options),
            "scatter": lambda: dist.scatter(_tensor(received), parts(sent), root, **options),
            "all-to-all": lambda: dist.all_to_all_single(_tensor(received), _tensor(sent), **options),
            "broadcast": lambda: dist.broadcast(_tensor(sent), root, **options),
            "barrier": lambda: dist.barrier(**options),
        }
        return calls[operation.kind](), (sent, received)

    def is_done(self, started: tuple[Any, tuple[Bytes, ...]]) -> bool:
        """Return whether what `begin` returned is complete, and release its buffers; RuntimeError if a peer ended.

        Args:
            started: The work and the buffers that `begin` returned.
        """
        work, buffers = started
        if not work.is_completed():
            return False
        # returns at once, as the work is complete, but raises the error of a peer that has ended
        work.wait()
        self._buffers.give(*buffers)
        return True

    def close(self) -> None:
        """Wait for all ranks and leave the process group."""
        self._dist.barrier()
        self._dist.destroy_process_group()


def torchrun_rank(environ: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Return rank and size from torchrun's environment, None outside it; raise ConfigError if they are no numbers.

    Args:
        environ: The environment variables of this process.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    try:
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    except ValueError:
        raise ConfigError("RANK and WORLD_SIZE: not numbers; expected the values that torchrun sets") from None
    return rank, size


class _Waited:
    """A gloo operation without completion test; a thread waits for it."""

    def __init__(self, work: Any) -> None:  # noqa: ANN401 - torch's
        self._work = work
        self._failure: RuntimeError | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def is_completed(self) -> bool:
        """Return whether the operation is complete."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait for the operation, and raise the error if it failed."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _wait(self) -> None:
        """Wait for the operation, and keep the error if it fails."""
        try:
            self._work.wait()
        except RuntimeError as error:
            self._failure = error


def _tensor(array: Bytes) -> Any:  # noqa: ANN401 - torch's
    """Return a torch tensor of bytes on the memory of an array."""
    import torch

    return torch.from_numpy(array)


def _torch_floats(array: Bytes) -> Any:  # noqa: ANN401 - torch's
    """Return a torch tensor of float32 on the memory of an array."""
    import torch

    return torch.from_numpy(array).view(torch.float32)


class Mpi:
    """The MPI implementation of nadi.studies.replay.player.Transport."""

    def __init__(self, communicator: Any, groups: Mapping[int, tuple[int, ...]]) -> None:  # noqa: ANN401 - mpi4py
        """Create communicators of the groups, members by number; all ranks of an MPI communicator call it alike."""
        # duplicates, so that nothing here can match messages of the caller, and messages of traces match no collective
        self._world = communicator.Dup()
        self._rank = communicator.Get_rank()
        self._buffers = Buffers()
        all_ranks = self._world.Get_group()
        self._of_group = {
            # only members call MPI_Comm_create_group; the tag `number` keeps creations of overlapping groups apart
            number: self._world.Create_group(all_ranks.Incl(list(members)), number)
            for number, members in sorted(groups.items())
            if self._rank in members and len(members) > 1
        }
        self._messages = communicator.Dup()

    def begin(self, operation: ReplayOperation) -> tuple[Any, tuple[Bytes, ...]]:
        """Start an operation; return its request and its buffers."""
        if operation.kind in {"send", "recv"}:
            own = self._buffers.take(operation.size_bytes)
            call = self._messages.Isend if operation.kind == "send" else self._messages.Irecv
            return call(own, operation.members[0], operation.tag), (own,)
        group = self._of_group[operation.group]
        if operation.send_bytes:
            sent, received = (self._buffers.take(sum(b)) for b in (operation.send_bytes, operation.recv_bytes))
            ends = [
                # sizes and displacements of the blocks in bytes: sizes 3, 0, 5 begin at 0, 3, 3
                [array, (list(sizes), [0, *accumulate(sizes)][:-1])]
                for array, sizes in ((sent, operation.send_bytes), (received, operation.recv_bytes))
            ]
            return group.Ialltoallv(*ends), (sent, received)
        sent, received = (self._buffers.take(size_bytes) for size_bytes in operation.buffer_bytes())
        is_root = operation.own == 0
        calls = {
            "all-reduce": lambda: group.Iallreduce(_mpi_floats(sent), _mpi_floats(received)),
            "reduce": lambda: group.Ireduce(_mpi_floats(sent), _mpi_floats(received) if is_root else None, root=0),
            "reduce-scatter": lambda: group.Ireduce_scatter_block(_mpi_floats(sent), _mpi_floats(received)),
            "all-gather": lambda: group.Iallgather(sent, received),
            "gather": lambda: group.Igather(sent, received if is_root else None, root=0),
            "scatter": lambda: group.Iscatter(sent if is_root else None, received, root=0),
            "all-to-all": lambda: group.Ialltoall(sent, received),
            "broadcast": lambda: group.Ibcast(sent, root=0),
            "barrier": group.Ibarrier,
        }
        return calls[operation.kind](), (sent, received)

    def is_done(self, started: tuple[Any, tuple[Bytes, ...]]) -> bool:
        """Return whether an operation, given by the result of `begin`, is complete; if so, release its buffers.

        Args:
            started: The requests and the buffers that `begin` returned.
        """
        request, buffers = started
        if not request.Test():
            return False
        self._buffers.give(*buffers)
        return True

    def close(self) -> None:
        """Wait for all ranks and free the communicators."""
        self._world.Barrier()
        for communicator in (*self._of_group.values(), self._messages, self._world):
            communicator.Free()


def _mpi_floats(array: Bytes) -> Any:  # noqa: ANN401 - mpi4py takes arrays
    return array.view(np.float32)
