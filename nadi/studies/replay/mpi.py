"""Nonblocking operations over MPI. Reductions use float32; everything else moves bytes."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from nadi.studies.replay.buffers import Buffers, Bytes
from nadi.studies.replay.steps import ReplayOperation

_WORD_BYTES = 4


class Mpi:
    """The MPI implementation of nadi.studies.replay.player.Transport."""

    def __init__(self, communicator: Any, groups: Mapping[int, tuple[int, ...]]) -> None:  # noqa: ANN401 - mpi4py
        """Create the communicators of the groups; all ranks call it with the same groups.

        Args:
            communicator: MPI communicator of all ranks.
            groups: Members of each group by number.
        """
        self._world = communicator.Dup()
        self._rank = communicator.Get_rank()
        self._buffers = Buffers()
        all_ranks = self._world.Get_group()
        self._of_group = {
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
                [array, (list(sizes), [0, *accumulate(sizes)][:-1])]
                for array, sizes in ((sent, operation.send_bytes), (received, operation.recv_bytes))
            ]
            return group.Ialltoallv(*ends), (sent, received)
        return getattr(self, f"_{operation.kind.replace('-', '_')}")(group, operation)

    def is_done(self, started: tuple[Any, tuple[Bytes, ...]]) -> bool:
        """Return whether an operation is complete; if so, release its buffers."""
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

    def _pair(self, send: int, receive: int) -> tuple[Bytes, Bytes]:
        """Return a send and a receive buffer of the given sizes in bytes."""
        return self._buffers.take(send), self._buffers.take(receive)

    def _all_reduce(self, group: Any, operation: ReplayOperation) -> Any:  # noqa: ANN401 - mpi4py
        ends = self._pair(_words(operation.size_bytes), _words(operation.size_bytes))
        return group.Iallreduce(_floats(ends[0]), _floats(ends[1])), ends

    def _reduce(self, group: Any, operation: ReplayOperation) -> Any:  # noqa: ANN401 - mpi4py
        ends = self._pair(_words(operation.size_bytes), _words(operation.size_bytes))
        return group.Ireduce(_floats(ends[0]), _floats(ends[1]) if operation.own == 0 else None, root=0), ends

    def _all_gather(self, group: Any, operation: ReplayOperation) -> Any:  # noqa: ANN401 - mpi4py
        ends = self._pair(operation.part_bytes, operation.part_bytes * len(operation.members))
        return group.Iallgather(*ends), ends

    def _gather(self, group: Any, operation: ReplayOperation) -> Any:  # noqa: ANN401 - mpi4py
        ends = self._pair(operation.part_bytes, operation.part_bytes * len(operation.members))
        return group.Igather(ends[0], ends[1] if operation.own == 0 else None, root=0), ends

    def _scatter(self, group: Any, operation: ReplayOperation) -> Any:  # noqa: ANN401 - mpi4py
        ends = self._pair(operation.part_bytes * len(operation.members), operation.part_bytes)
        return group.Iscatter(ends[0] if operation.own == 0 else None, ends[1], root=0), ends

    def _broadcast(self, group: Any, operation: ReplayOperation) -> Any:  # noqa: ANN401 - mpi4py
        own = self._buffers.take(operation.size_bytes)
        return group.Ibcast(own, root=0), (own,)

    def _all_to_all(self, group: Any, operation: ReplayOperation) -> Any:  # noqa: ANN401 - mpi4py
        size_bytes = operation.part_bytes * len(operation.members)
        ends = self._pair(size_bytes, size_bytes)
        return group.Ialltoall(*ends), ends

    def _reduce_scatter(self, group: Any, operation: ReplayOperation) -> Any:  # noqa: ANN401 - mpi4py
        part = _words(operation.part_bytes)
        ends = self._pair(part * len(operation.members), part)
        return group.Ireduce_scatter_block(_floats(ends[0]), _floats(ends[1])), ends

    def _barrier(self, group: Any, operation: ReplayOperation) -> Any:  # noqa: ANN401, ARG002 - as the others
        return group.Ibarrier(), ()


def _words(size_bytes: int) -> int:
    """Round a number of bytes up to whole words."""
    return -(-size_bytes // _WORD_BYTES) * _WORD_BYTES


def _floats(array: Bytes) -> Any:  # noqa: ANN401 - mpi4py takes arrays
    return array.view(np.float32)
