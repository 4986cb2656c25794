"""Reading of GOAL schedules, text or binary: one pass finds the part of each rank, whose trace is made on demand.

    num_ranks 2
    rank 0 {
    l1: calc 1500 cpu 0
    l2: send 65536b to 1 tag 7 cpu 0 nic 0
    l2 requires l1
    }

Source: ATLAHS, sim/LogGOPSim/txt2bin.re; Hoefler, Siebert and Lumsdaine, GOAL (ICPP 2009).
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from nadi import inputs
from nadi.et.blocks import Block, TraceColumns
from nadi.et.columns import compress
from nadi.et.errors import TraceError
from nadi.et.order import order_of
from nadi.et.schema import attribute
from nadi.et.table import CPU, NANOS, NIC, TraceTable
from nadi.inputs.arrays import Int64
from nadi.inputs.limits import MAX_NPUS, TAGS

# Operations of a rank of a GOAL schedule, and the trace that they become.


class GoalOperation(NamedTuple):
    """An operation; peer and tag are -1 and 0 for calc."""

    what: str  # "calc", "send" or "recv"
    size: int  # nanoseconds or bytes
    peer: int = -1  # rank at the other end of a message; -1 = any rank, which no trace can have
    tag: int = 0  # tag of a message
    cpu: int = 0  # number of the processor that executes the operation
    nic: int = 0  # number of the network interface
    label: str = ""  # name in the file; "" = none


def checked(source: str, operation: GoalOperation, rank: int, ranks: int) -> GoalOperation:
    """Return an operation with a tag that the engine accepts; raise TraceError if the operation is wrong.

    Args:
        source: The beginning of the error message, which names the file and the rank.
        operation: The operation as the file has it.
        rank: The rank that executes the operation.
        ranks: The number of ranks of the schedule.
    """
    what, peer, tag = operation.what, operation.peer, operation.tag
    if what != "calc" and not (0 <= peer < ranks and peer != rank):
        kind = "any rank" if peer == -1 else f"rank {peer}"
        raise TraceError(f"{source}: {what} with {kind}, expected another of the {ranks} ranks, by its number")
    if what != "calc" and not 0 <= tag < 2**31:
        raise TraceError(f"{source}: tag {tag}, expected 0 to {2**31 - 1}")
    if min(operation.cpu, operation.nic) < 0:
        raise TraceError(f"{source}: cpu {operation.cpu} and nic {operation.nic}, expected numbers from 0")
    if tag >= TAGS:  # the engine's limit; both ends map the tag equally
        tag = TAGS // 2 + zlib.crc32(str(tag).encode()) % (TAGS // 2)
    return operation._replace(tag=tag)


def table_of(
    path: Path,
    rank: int,
    operations: Sequence[GoalOperation],
    waits: Iterable[tuple[int, int]],
    waits_for_starts: Iterable[tuple[int, int]],
) -> TraceTable:
    """Return the trace of a rank, made from its operations and the waits among them.

    An operation that waits for the start of another waits for the parents of that one.

    Args:
        path: The GOAL file, for the table's path and for errors.
        rank: The rank, which becomes the NPU of the trace.
        operations: The operations in the order of the file.
        waits: Pairs (index of an operation, index of an operation that must have ended before it begins).
        waits_for_starts: The same pairs for operations that must have begun before it begins.
    """
    parents: list[list[int]] = [[] for _ in operations]
    starts: list[list[int]] = [[] for _ in operations]
    for lists, pairs in ((parents, waits), (starts, waits_for_starts)):
        for i, other in pairs:
            lists[i].append(other)
    # the operation that must have begun may itself wait for the start of another: its parents come first
    for i in _ordered(path, rank, operations, starts):
        parents[i] += [parent for started in starts[i] for parent in parents[started]]
    return _built(path, rank, operations, parents, _ordered(path, rank, operations, parents))


def _ordered(path: Path, rank: int, operations: Sequence[GoalOperation], others: Sequence[Sequence[int]]) -> list[int]:
    """Return the operations in an order in which the others that each one waits for come before it."""
    # a list of pairs may be empty, which NumPy would make an array of one dimension
    pairs = np.array([(i, other) for i, of_i in enumerate(others) for other in of_i], np.int64).reshape(-1, 2)
    order, waits_for = order_of(*compress(len(operations), pairs[:, 0], pairs[:, 1]))
    if len(order) < len(operations):
        name = next(_name(operations, i) for i, count in enumerate(waits_for) if count)
        raise TraceError(f"{path}: rank {rank}: {name} waits for itself, expected no cycle")
    return order.tolist()


def _name(operations: Sequence[GoalOperation], i: int) -> str:
    return operations[i].label or f"{operations[i].what}{i}"


def _built(
    path: Path, rank: int, operations: Sequence[GoalOperation], parents: list[list[int]], order: list[int]
) -> TraceTable:
    """Return the trace of a rank: its operations in the given order, with the indices of each one's parents."""
    block, nanos = Block(), 0
    row: dict[int, int] = {}
    for i in order:
        operation = operations[i]
        after = [row[parent] for parent in parents[i]]
        name, attrs = _name(operations, i), _places(operation)
        if operation.what == "calc":
            # Traces have microseconds; the rest is carried over, so that sums of durations stay exact
            micros, nanos = divmod(nanos + operation.size, 1000)
            if operation.size != micros * 1000:
                attrs.append(attribute(NANOS, "uint64", operation.size))
            idle = operation.size == 0  # a joint of dependencies, not work of the accelerator
            row[i] = block.comp(name, duration_micros=micros, is_cpu_op=idle, after=after, attrs=attrs)
        else:
            add = block.send if operation.what == "send" else block.recv
            row[i] = add(name, operation.size, peer=operation.peer, tag=operation.tag, after=after, attrs=attrs)
    columns = TraceColumns(rank, f"{path}: rank {rank}")
    columns.stamp(block)
    return columns.table()


def _places(operation: GoalOperation) -> list[Message]:
    """Return the attributes for the cpu and nic of an operation; none for 0, GOAL's default."""
    return [attribute(key, "uint64", n) for key, n in ((CPU, operation.cpu), (NIC, operation.nic)) if n]


_MAX_HEAD_BYTES = 1 << 16  # of the text up to num_ranks
_COMMENT = re.compile(r"//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z)")
"""A comment; one without an end takes the rest of the text, so that matching takes linear time."""
_HEAD = re.compile(rb"\A(?:\s++|//[^\n]*+\n|/\*(?:[^*]++|\*(?!/))*+\*/)*+num_ranks\s+(\d{1,9})\b")
_RANK = re.compile(rb"^[ \t]*rank[ \t]+(\d{1,9})\s*\{", re.MULTILINE)
_NAME = r"[A-Za-z_]\w*"
_OPERATION = re.compile(
    rf"(?:(?P<label>{_NAME})\s*:\s*)?(?P<what>calc|send|recv)\s+(?P<size>\d{{1,18}})(?:b)?"
    r"(?:\s+(?P<way>to|from)\s+(?P<peer>-?\d{1,9}))?(?P<rest>(?:\s+(?:tag|cpu|nic)\s+-?\d{1,18})*)"
)
_WAITS = re.compile(rf"(?P<label>{_NAME})\s+(?P<how>i?requires)\s+(?P<parent>{_NAME})")
_Pairs = list[tuple[int, int]]
_EXPECTED = "calc, send, recv, requires or irequires of GOAL"


class GoalFile:
    """A GOAL file as text, and the position of each rank's text in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with inputs.refusing(path, "a GOAL schedule", TraceError):
            self._content = inputs.mapped(path)
        head = _HEAD.match(self._content[:_MAX_HEAD_BYTES])
        if head is None or not 1 <= int(head[1]) <= MAX_NPUS:
            raise TraceError(f"{path}: no num_ranks from 1 to {MAX_NPUS}, expected it first")
        self.ranks = int(head[1])
        self._places: dict[int, tuple[int, int]] = {}  # of each rank's text, from its bracket to the next rank
        # One pass finds the ranks; their text is parsed only on demand
        found = [(int(match[1]), *match.span()) for match in _RANK.finditer(self._content)]
        # A rank's text ends where the next rank begins, so that the last bracket need not be searched for
        ends = [*(start for _, start, _ in found[1:]), len(self._content)]
        for (rank, _, begin), end in zip(found, ends, strict=False):
            if rank in self._places or rank >= self.ranks:
                problem = "occurs twice" if rank in self._places else f"is beyond num_ranks {self.ranks}"
                raise TraceError(f"{path}: rank {rank} {problem}, expected each of 0 to {self.ranks - 1} once")
            self._places[rank] = begin, end

    def table(self, rank: int) -> TraceTable:
        """Return the trace of a rank.

        Args:
            rank: A rank of the schedule, from 0; one without a part in the file has an empty trace.
        """
        if rank not in self._places:
            return TraceColumns(rank, f"{self.path}").table()
        begin, end = self._places[rank]
        try:
            return _table(self.path, rank, self.ranks, self._content[begin:end].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.path}: rank {rank}: {error.reason}, expected UTF-8") from error


def _table(file: Path, rank: int, num_ranks: int, text: str) -> TraceTable:
    """Return the trace of a rank from its text in the file, which begins after the opening bracket."""
    source = f"{file}: rank {rank}"
    text = _COMMENT.sub(" ", text).strip()
    if not text.endswith("}"):
        raise TraceError(f"{source}: ends without a bracket, expected }} after its lines")
    operations: list[GoalOperation] = []
    waits: list[tuple[str, str, str]] = []
    for line in re.split(r"[\n;]", text[:-1]):
        statement = line.strip()
        if not statement:
            continue
        if waiting := _WAITS.fullmatch(statement):
            waits.append((waiting["label"], waiting["how"], waiting["parent"]))
        else:
            operations.append(_operation(source, rank, num_ranks, statement))
    return table_of(file, rank, operations, *_waits(source, operations, waits))


def _operation(source: str, rank: int, num_ranks: int, statement: str) -> GoalOperation:
    """Return the operation in a statement of a rank; raise TraceError, which begins with `source`, if it is wrong."""
    found = _OPERATION.fullmatch(statement)
    if found is None:
        raise TraceError(f"{source}: found {statement[:60]!r}, expected {_EXPECTED}")
    what = found["what"]
    # "send ... from" would match the pattern, too
    if (found["way"] or "") != {"calc": "", "send": "to", "recv": "from"}[what]:
        raise TraceError(f"{source}: found {statement[:60]!r}, expected send ... to, recv ... from, or calc")
    words = found["rest"].split()
    numbers = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    places = numbers.get("tag", 0), numbers.get("cpu", 0), numbers.get("nic", 0)
    operation = GoalOperation(what, int(found["size"]), int(found["peer"] or -1), *places, found["label"] or "")
    return checked(source, operation, rank, num_ranks)


def _waits(source: str, operations: list[GoalOperation], waits: list[tuple[str, str, str]]) -> tuple[_Pairs, _Pairs]:
    """Return the pairs of `requires` and of `irequires`, from (label, which of them, parent's label) of each wait.

    TraceError begins with `source`.
    """
    place: dict[str, int] = {}
    for i, operation in enumerate(operations):
        if operation.label and place.setdefault(operation.label, i) != i:
            raise TraceError(f"{source}: label {operation.label} occurs twice, expected each once")
    pairs: dict[str, _Pairs] = {"requires": [], "irequires": []}
    for label, how, parent in waits:
        if label not in place or parent not in place:
            missing = label if label not in place else parent
            raise TraceError(f"{source}: {label} {how} {parent}: no label {missing}, expected one of the rank")
        pairs[how].append((place[label], place[parent]))
    return pairs["requires"], pairs["irequires"]


# A binary GOAL file, as txt2bin of LogGOPSim and ATLAHS makes it: ranks with operations and their successors.
#
# Behind the magic number (u64) come the ranks (u32), the highest cpu and nic (u8 each) and, for each rank, the begin
# and end of its part (u64, counted from behind the magic number). A part has the numbers of operations and of roots
# (u32), the roots (u32 each), the operations (39 bytes each) and the indices of successors (u32 each) that operations
# point to. A run of LogGOPSim with `--save-mem` spoils only the magic number and the counts of parents, which nothing
# here reads.
#
# Source: ATLAHS, sim/LogGOPSim/Parser.hpp.


_MAGIC, _SPOILT = 4223, 2342
_NONE = 2**32 - 1  # peer of a receive from any rank
_LARGEST = 10**18  # nanoseconds or bytes, as in the text
_WHATS = {1: "send", 2: "recv", 3: "calc"}
_RECORD = np.dtype(
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
        successors_at = begin + _RECORD.itemsize * count
        if successors_at > end:
            raise TraceError(f"{source}: {count} operations and {roots} roots, more than its bytes can have")
        rows = self._numbers(_RECORD, begin, count)
        successors = self._numbers("<u4", successors_at, (end - successors_at) // 4).astype(np.int64)
        operations = [_operation_of_record(source, row, rank, self.ranks) for row in rows.tolist()]
        ends, starts = (_pairs(source, rows, key, successors) for key in ("ends", "starts"))
        return table_of(self.path, rank, operations, ends, starts)

    def _numbers(self, kind: str | np.dtype[np.void], offset: int, count: int) -> NDArray[np.void]:
        found: NDArray[np.void] = np.frombuffer(self._content, kind, count, offset)
        return found


def _operation_of_record(source: str, row: tuple[int, ...], rank: int, ranks: int) -> GoalOperation:
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
