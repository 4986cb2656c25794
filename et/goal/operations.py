"""Operations of a rank of a GOAL schedule, and the trace that they become."""

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf.message import Message

from nadi.et.blocks import Block, TraceColumns
from nadi.et.builders import attribute
from nadi.et.dependencies import compress
from nadi.et.errors import TraceError
from nadi.et.order import order_of
from nadi.et.other_attributes import CPU, NANOS, NIC
from nadi.et.table import TraceTable
from nadi.inputs.limits import TAGS


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
