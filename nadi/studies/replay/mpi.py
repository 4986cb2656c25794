"""Nonblocking operations over MPI. Reductions use float32; everything else moves bytes."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from nadi.studies.replay.player import Buffers, Bytes
from nadi.studies.replay.steps import ReplayOperation


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
            "all-reduce": lambda: group.Iallreduce(_floats(sent), _floats(received)),
            "reduce": lambda: group.Ireduce(_floats(sent), _floats(received) if is_root else None, root=0),
            "reduce-scatter": lambda: group.Ireduce_scatter_block(_floats(sent), _floats(received)),
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


def _floats(array: Bytes) -> Any:  # noqa: ANN401 - mpi4py takes arrays
    return array.view(np.float32)
