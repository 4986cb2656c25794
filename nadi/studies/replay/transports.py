"""Operations over torch.distributed with gloo, and over MPI. Reductions use float32; everything else moves bytes."""

import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from itertools import accumulate
from typing import Any

import numpy as np

from nadi.errors import ConfigError
from nadi.launching.ranks import RankGather
from nadi.studies.replay.player import Buffers, Bytes, ReplayOperation

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
