"""A GOAL file, rank by rank: one pass finds the text of each rank, whose trace is made on demand.

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
from pathlib import Path
from typing import NamedTuple

import numpy as np

import inputs
from et.blocks import Block, TraceColumns
from et.builders import attribute
from et.dependencies import compress
from et.errors import TraceError
from et.order import order_of
from et.other_attributes import NANOS
from et.table import TraceTable
from inputs.limits import MAX_NPUS, TAGS

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
_EXPECTED = "calc, send, recv, requires or irequires of GOAL"


class _Operation(NamedTuple):
    """An operation of a line; peer and tag are -1 for calc."""

    what: str
    size: int
    peer: int
    tag: int
    label: str


class GoalFile:
    """A file, and where the text of each rank is in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with inputs.refusing(path, "a GOAL schedule", TraceError):
            self._content = inputs.mapped(path)
        head = _HEAD.match(self._content[:_MAX_HEAD_BYTES])
        if head is None or not 1 <= int(head[1]) <= MAX_NPUS:
            raise TraceError(f"{path}: no num_ranks from 1 to {MAX_NPUS}, expected it first")
        self.ranks = int(head[1])
        self._places: dict[int, tuple[int, int]] = {}  # of each rank's text, from its bracket to the next rank
        found = [(int(match[1]), *match.span()) for match in _RANK.finditer(self._content)]
        ends = [*(start for _, start, _ in found[1:]), len(self._content)]
        for (rank, _, begin), end in zip(found, ends, strict=False):
            if rank in self._places or rank >= self.ranks:
                problem = "occurs twice" if rank in self._places else f"is beyond num_ranks {self.ranks}"
                raise TraceError(f"{path}: rank {rank} {problem}, expected each of 0 to {self.ranks - 1} once")
            self._places[rank] = begin, end

    def table(self, rank: int) -> TraceTable:
        """Return the trace of a rank."""
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
    operations: list[_Operation] = []
    waits: list[tuple[str, str, str]] = []
    for line in re.split(r"[\n;]", text[:-1]):
        statement = line.strip()
        if not statement:
            continue
        if waiting := _WAITS.fullmatch(statement):
            waits.append((waiting["label"], waiting["how"], waiting["parent"]))
        else:
            operations.append(_operation(source, rank, num_ranks, statement))
    parents = _parents(source, operations, waits)
    pairs = np.array([(i, parent) for i, of_i in enumerate(parents) for parent in of_i], np.int64).reshape(-1, 2)
    order, waits_for = order_of(*compress(len(operations), pairs[:, 0], pairs[:, 1]))
    if len(order) < len(operations):
        label = next(op.label for op, count in zip(operations, waits_for, strict=True) if count)
        raise TraceError(f"{source}: {label} waits for itself, expected no cycle")
    return _built(file, rank, operations, parents, order.tolist())


def _operation(source: str, rank: int, num_ranks: int, statement: str) -> _Operation:
    """Return the operation in a statement of a rank; raise TraceError, which begins with `source`, if it is wrong."""
    found = _OPERATION.fullmatch(statement)
    if found is None:
        raise TraceError(f"{source}: found {statement[:60]!r}, expected {_EXPECTED}")
    what = found["what"]
    if (found["way"] or "") != {"calc": "", "send": "to", "recv": "from"}[what]:
        raise TraceError(f"{source}: found {statement[:60]!r}, expected send ... to, recv ... from, or calc")
    words = found["rest"].split()
    numbers = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    peer, tag = int(found["peer"] or -1), numbers.get("tag", 0)
    if what != "calc" and not (0 <= peer < num_ranks and peer != rank):
        kind = "any rank" if peer == -1 else f"rank {peer}"
        raise TraceError(f"{source}: {what} with {kind}, expected another of the {num_ranks} ranks, by its number")
    if what != "calc" and not 0 <= tag < 2**31:
        raise TraceError(f"{source}: tag {tag}, expected 0 to {2**31 - 1}")
    if tag >= TAGS:  # the engine's limit; both ends map the tag equally
        tag = TAGS // 2 + zlib.crc32(str(tag).encode()) % (TAGS // 2)
    return _Operation(what, int(found["size"]), peer, tag, found["label"] or "")


def _parents(source: str, operations: list[_Operation], waits: list[tuple[str, str, str]]) -> list[list[int]]:
    """Return the parents of each operation, from (label, "requires" or "irequires", parent's label) of each wait.

    `irequires X` waits for the parents of X, when X starts. TraceError begins with `source`.
    """
    place: dict[str, int] = {}
    for i, operation in enumerate(operations):
        if operation.label and place.setdefault(operation.label, i) != i:
            raise TraceError(f"{source}: label {operation.label} occurs twice, expected each once")
    parents: list[list[int]] = [[] for _ in operations]
    with_start: list[tuple[int, int]] = []
    for label, how, parent in waits:
        if label not in place or parent not in place:
            missing = label if label not in place else parent
            raise TraceError(f"{source}: {label} {how} {parent}: no label {missing}, expected one of the rank")
        if how == "requires":
            parents[place[label]].append(place[parent])
        else:
            with_start.append((place[label], place[parent]))
    for i, started in with_start:
        parents[i] += parents[started]
    return parents


def _built(
    path: Path, rank: int, operations: list[_Operation], parents: list[list[int]], order: list[int]
) -> TraceTable:
    """Return the trace of a rank: its operations in the given order, with the indices of each one's parents."""
    block, nanos = Block(), 0
    row: dict[int, int] = {}
    for i in order:
        operation = operations[i]
        after = [row[parent] for parent in parents[i]]
        name = operation.label or f"{operation.what}{i}"
        if operation.what == "calc":
            micros, nanos = divmod(nanos + operation.size, 1000)
            attrs = [attribute(NANOS, "uint64", operation.size)] if operation.size != micros * 1000 else []
            idle = operation.size == 0  # a joint of dependencies, not work of the accelerator
            row[i] = block.comp(name, duration_micros=micros, is_cpu_op=idle, after=after, attrs=attrs)
        elif operation.what == "send":
            row[i] = block.send(name, operation.size, peer=operation.peer, tag=operation.tag, after=after)
        else:
            row[i] = block.recv(name, operation.size, peer=operation.peer, tag=operation.tag, after=after)
    columns = TraceColumns(rank, f"{path}: rank {rank}")
    columns.stamp(block)
    return columns.table()
