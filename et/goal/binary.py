"""A binary GOAL file, as txt2bin of LogGOPSim and ATLAHS makes it: ranks with operations and their successors.

Behind the magic number (u64) come the ranks (u32), the highest cpu and nic (u8 each) and, for each rank, the begin and
end of its part (u64, counted from behind the magic number). A part has the numbers of operations and of roots (u32),
the roots (u32 each), the operations (39 bytes each) and the indices of successors (u32 each) that operations point to.
A run of LogGOPSim with `--save-mem` spoils only the magic number and the counts of parents, which nothing here reads.

Source: ATLAHS, sim/LogGOPSim/Parser.hpp.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.et.goal.operations import GoalOperation, checked, table_of
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int64
from nadi.inputs.limits import MAX_NPUS

_MAGIC, _SPOILT = 4223, 2342
_NONE = 2**32 - 1  # peer of a receive from any rank
_LARGEST = 10**18  # nanoseconds or bytes, as in the text
_WHATS = {1: "send", 2: "recv", 3: "calc"}
_OPERATION = np.dtype(
    [
        *(("parents", "<u4"), ("what", "u1"), ("peer", "<u4"), ("size", "<u8"), ("tag", "<u4"), ("cpu", "u1")),
        *(("nic", "u1"), ("ends", "<u4"), ("ends_at", "<u4"), ("starts", "<u4"), ("starts_at", "<u4")),
    ]
)


class BinaryGoalFile:
    """A binary GOAL file, from which the traces of ranks are made on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with inputs.refusing(path, "a GOAL schedule", TraceError):
            self._content = inputs.mapped(path)
        size = len(self._content)
        magic = self._numbers("<u8", 0, 1)
        self.ranks = int(self._numbers("<u4", 8, 1)[0]) if size >= 14 else 0
        if magic[0] not in {_MAGIC, _SPOILT} or not 1 <= self.ranks <= MAX_NPUS:
            raise TraceError(f"{path}: {self.ranks} ranks, expected 1 to {MAX_NPUS} behind the magic number {_MAGIC}")
        if size < 14 + 16 * self.ranks:
            raise TraceError(f"{path}: {size} bytes, expected the places of {self.ranks} ranks first")
        # The first byte of each rank's part, and the byte behind its last
        self._places = self._numbers("<u8", 14, 2 * self.ranks).reshape(-1, 2)

    def table(self, rank: int) -> TraceTable:
        """Return the trace of a rank.

        Args:
            rank: A rank of the file, from 0.
        """
        source = f"{self.path}: rank {rank}"
        # Places count from behind the magic number, which takes 8 bytes
        begin, end = (8 + int(place) for place in self._places[rank])
        # A part has at least its two numbers of 4 bytes
        if not 14 + 16 * self.ranks <= begin <= end - 8 < len(self._content) - 7:
            raise TraceError(f"{source}: bytes {begin} to {end}, expected a part of the file's {len(self._content)}")
        count, roots = self._numbers("<u4", begin, 2).tolist()
        # Roots are the operations without parents, which the table finds itself
        begin += 8 + 4 * roots
        successors_at = begin + _OPERATION.itemsize * count
        if successors_at > end:
            raise TraceError(f"{source}: {count} operations and {roots} roots, more than its bytes can have")
        rows = self._numbers(_OPERATION, begin, count)
        successors = self._numbers("<u4", successors_at, (end - successors_at) // 4).astype(np.int64)
        operations = [_operation(source, row, rank, self.ranks) for row in rows.tolist()]
        ends, starts = (_pairs(source, rows, key, successors) for key in ("ends", "starts"))
        return table_of(self.path, rank, operations, ends, starts)

    def _numbers(self, kind: str | np.dtype[np.void], offset: int, count: int) -> NDArray[np.void]:
        found: NDArray[np.void] = np.frombuffer(self._content, kind, count, offset)
        return found


def _operation(source: str, row: tuple[int, ...], rank: int, ranks: int) -> GoalOperation:
    """Return the operation of a row; raise TraceError, which begins with `source`, if it is wrong."""
    _, kind, peer, size, tag, cpu, nic, *_ = row
    if kind not in _WHATS:
        raise TraceError(f"{source}: operation of type {kind}, expected 1 (send), 2 (recv) or 3 (calc)")
    if size >= _LARGEST:
        raise TraceError(f"{source}: {_WHATS[kind]} of {size}, expected less than 10^18")
    if kind == 3:
        return GoalOperation(_WHATS[kind], size, cpu=cpu, nic=nic)
    found = GoalOperation(_WHATS[kind], size, -1 if peer == _NONE else peer, tag, cpu, nic)
    return checked(source, found, rank, ranks)


def _pairs(source: str, rows: NDArray[np.void], key: str, successors: Int64) -> list[tuple[int, int]]:
    """Return (successor, operation) of the operations with successors at their end ("ends") or start ("starts")."""
    counts, at = rows[key].astype(np.int64), rows[f"{key}_at"].astype(np.int64)
    parents = np.repeat(np.arange(len(rows)), counts) if counts.sum() <= len(successors) else np.zeros(0, np.int64)
    # Each operation's successors are consecutive: their places are its first place + 0, 1, ...
    # For counts 2, 1 that begin at 5 and 0: arange gives 0 1 2, the repeated offsets are 5 5 -2, and the places 5 6 0.
    where = np.repeat(at - np.cumsum(counts) + counts, counts) + np.arange(len(parents)) if len(parents) else parents
    if len(parents) != counts.sum() or (where >= len(successors)).any() or (successors[where] >= len(rows)).any():
        raise TraceError(f"{source}: a successor that is none of its {len(rows)} operations, expected their indices")
    return list(zip(successors[where].tolist(), parents.tolist(), strict=True))
