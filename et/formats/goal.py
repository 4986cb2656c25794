"""GOAL schedules, text or binary, with a rank per NPU, made of computations and messages.

`et.goal` reads them. A rank is written with its collectives as messages, because GOAL has none.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.et.goal import BinaryGoalFile, GoalFile
from nadi.et.order import occurrence, topological_order
from nadi.et.schema import CollectiveCommType, NodeType
from nadi.et.table import CPU, NANOS, NIC, LazyTraces, TraceTable, TraceTables, other_numbers
from nadi.inputs.limits import TAGS

TITLE = "a GOAL schedule of LogGOPSim and ATLAHS (text or binary)"
OPTIONS = {
    "tflops": "TFLOP/s of computations that have num_ops and no duration, for writing",
    "memory_gbps": "GB/s of memory accesses that have no duration, for writing",
}
_NOTES = (
    "Times are nanoseconds in the file and microseconds in traces; duration_nanos keeps times with fractions of one.",
    "All computations of a rank share the NPU's compute lane; the file's cpu and nic are kept as attributes.",
    "Tags from 2^24 on are mapped to smaller ones, equally at both ends.",
    "An operation with irequires waits for the parents of the named one, so that it starts no earlier.",
)


def recognises(path: Path) -> bool:
    """Return whether the path is a GOAL schedule, gzipped or not.

    Args:
        path: The path of a file or folder.
    """
    return _kind(path) in {"goal", "goal-binary"}


def read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables:  # noqa: ARG001 - none for reading
    """Return the ranks of one file, each read on demand.

    Args:
        paths: The files or folders that the user gives.
        options: The values of the format's options by name.
    """
    if len(paths) != 1:
        raise TraceError(f"{paths[1]}: a second file, expected one GOAL schedule")
    file = BinaryGoalFile(paths[0]) if _kind(paths[0]) == "goal-binary" else GoalFile(paths[0])
    return TraceTables(LazyTraces(range(file.ranks), file.table), notes=_NOTES)


def names(traces: TraceTables, prefix: str) -> list[str]:  # noqa: ARG001 - one file for all
    """Return the name of the only file.

    Args:
        traces: The traces by NPU, with their groups.
        prefix: The beginning of the files' names.
    """
    return [f"{prefix}.goal"]


def write(traces: TraceTables, folder: Path, prefix: str, options: Mapping[str, str]) -> None:
    """Write all ranks, also without traces, to PREFIX.goal in a folder.

    Args:
        traces: The traces by NPU, with their groups.
        folder: The folder of the files.
        prefix: The beginning of the files' names.
        options: The values of options by name: rates of work without a duration.
    """
    rates = [_rate(name, options.get(name, "0")) for name in OPTIONS]
    ranks = max(traces.tables, default=-1) + 1
    own = set(traces.tables)
    with (folder / f"{prefix}.goal").open("w", encoding="utf-8") as file:
        file.write(f"num_ranks {ranks}\n\n")
        for rank in range(ranks):
            if rank in own:
                file.writelines(RankWriter(traces.tables[rank], rank, ranks, traces.groups, *rates).lines())
            else:
                file.write(f"rank {rank} {{\n}}\n")


def _kind(path: Path) -> str:
    """Return the key of the kind of a file, whether it is gzipped or not."""
    kind = inputs.kind_of(path)
    return kind.key.removeprefix("gzip:") if kind else ""


def _rate(option: str, text: str) -> float:
    """Return the value of an option as a number from 0; raise TraceError if it is not."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise TraceError(f"--to goal: {option} is {text[:40]!r}, expected a number from 0")
    return found


# Expansion of collectives into messages for GOAL, which has no collectives: rings, trees and direct messages.
#
# The messages of one member are a list of rounds; its sends in a round wait for its receives of the round before.

Kind = CollectiveCommType
Splits = tuple[Sequence[int], Sequence[int]]  # bytes to each member, and from each


class ExpansionRound(NamedTuple):
    """Simultaneous sends and receives of a member, as (member, bytes)."""

    sends: list[tuple[int, int]]  # (receiver, bytes) of each message that the member sends
    receives: list[tuple[int, int]]  # (sender, bytes) of each message that the member receives


def rounds(
    kind: Kind, member: int, group_size: int, size_bytes: int, split_bytes: Splits | None
) -> list[ExpansionRound]:
    """Return the messages that one member of a group sends and receives in a collective, as rounds.

    Args:
        kind: The kind of collective.
        member: The member's place in its group, from 0.
        group_size: The number of members.
        size_bytes: The attribute comm_size of the collective; for all-gather and gather, one member's contribution.
        split_bytes: The bytes to each member and from each member, for an uneven all-to-all; None = equal shares.
    """
    if group_size == 1:
        return []
    if kind == Kind.ALL_TO_ALL:
        # Without split sizes, each share is as equal as whole bytes allow
        out, into = split_bytes or (
            [_share(size_bytes, group_size, j) for j in range(group_size)],
            [_share(size_bytes, group_size, member)] * group_size,
        )
        # Each member begins with its neighbour, so that members do not all send to the same one
        peers = [(member + k) % group_size for k in range(1, group_size)]
        return [ExpansionRound([(p, out[p]) for p in peers], [(p, into[p]) for p in reversed(peers)])]
    found: list[ExpansionRound] = _OF_KIND[kind](member, group_size, size_bytes)
    return found


def _share(size: int, n: int, part: int) -> int:
    """Return the bytes of one of n parts."""
    return (part + 1) * size // n - part * size // n


def _ring_step(me: int, n: int, sent: int, received: int) -> ExpansionRound:
    return ExpansionRound([((me + 1) % n, sent)], [((me - 1) % n, received)])


def _reduce_scatter(me: int, n: int, size: int) -> list[ExpansionRound]:
    return [_ring_step(me, n, _share(size, n, (me - k) % n), _share(size, n, (me - k - 1) % n)) for k in range(n - 1)]


def _all_reduce(me: int, n: int, size: int) -> list[ExpansionRound]:
    # After n-1 steps of the reduce-scatter member `me` has the sum of share me + 1, so the way back begins with it
    back = [_ring_step(me, n, _share(size, n, (me + 1 - k) % n), _share(size, n, (me - k) % n)) for k in range(n - 1)]
    return _reduce_scatter(me, n, size) + back


def _all_gather(me: int, n: int, size: int) -> list[ExpansionRound]:
    # The size of an all-gather in Chakra traces is one member's contribution, which each step passes on
    return [_ring_step(me, n, size, size) for _ in range(n - 1)]


def _broadcast(member: int, group_size: int, size_bytes: int) -> list[ExpansionRound]:
    """Return a binomial tree from member 0: in round k each member that has the data sends it 2^k members up."""
    found, reach = [], 1
    # The first `reach` members have the data
    while reach < group_size:
        # Of 6 members: 0 sends to 1, then 0 and 1 to 2 and 3, then 0 and 1 to 4 and 5
        if member < reach and member + reach < group_size:
            found.append(ExpansionRound([(member + reach, size_bytes)], []))
        elif reach <= member < 2 * reach:
            found.append(ExpansionRound([], [(member - reach, size_bytes)]))
        reach *= 2
    return found


def _reduce(me: int, n: int, size: int) -> list[ExpansionRound]:
    """Return the broadcast in reverse."""
    return [ExpansionRound(round_.receives, round_.sends) for round_ in reversed(_broadcast(me, n, size))]


def _gather(me: int, n: int, size: int) -> list[ExpansionRound]:
    return [ExpansionRound([(0, size)], []) if me else ExpansionRound([], [(j, size) for j in range(1, n)])]


def _scatter(member: int, group_size: int, size_bytes: int) -> list[ExpansionRound]:
    """Return one round, where member 0 sends every other member its share of the bytes."""
    if member:
        return [ExpansionRound([], [(0, _share(size_bytes, group_size, member))])]
    return [ExpansionRound([(j, _share(size_bytes, group_size, j)) for j in range(1, group_size)], [])]


def _barrier(member: int, group_size: int, size_bytes: int) -> list[ExpansionRound]:  # noqa: ARG001 - a barrier has no size
    """Return a dissemination barrier, with one byte per round."""
    found, reach = [], 1
    while reach < group_size:
        found.append(ExpansionRound([((member + reach) % group_size, 1)], [((member - reach) % group_size, 1)]))
        reach *= 2
    return found


_OF_KIND: dict[Kind, Callable[[int, int, int], list[ExpansionRound]]] = {
    Kind.ALL_REDUCE: _all_reduce,
    Kind.REDUCE: _reduce,
    Kind.ALL_GATHER: _all_gather,
    Kind.GATHER: _gather,
    Kind.SCATTER: _scatter,
    Kind.BROADCAST: _broadcast,
    Kind.REDUCE_SCATTER: _reduce_scatter,
    Kind.REDUCE_SCATTER_BLOCK: _reduce_scatter,
    Kind.BARRIER: _barrier,
}


_CPU, _HOST, _MEMORY = 0, 1, 2  # GOAL's cpu numbers for the accelerator, the host and memory, which work in parallel
_FIRST_TAG = TAGS // 2
_MEMORY_TYPES = (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE)


class RankWriter:
    """Writer of the lines of one rank, from the trace of an NPU. The rates matter only for nodes without a duration."""

    def __init__(
        self,
        table: TraceTable,
        rank: int,
        ranks: int,
        groups: Mapping[str, Sequence[int]],
        tflops: float,
        memory_gbps: float,
    ) -> None:
        self._table, self._rank, self._ranks, self._groups = table, rank, ranks, groups
        self._tflops, self._memory_gbps = tflops, memory_gbps
        # Attributes of traces that were read from GOAL, by row
        self._nanos, self._cpus, self._nics = (
            other_numbers(table, key, np.arange(len(table))) for key in (NANOS, CPU, NIC)
        )

    def lines(self) -> Iterator[str]:
        """Yield the lines of the rank, including the brackets."""
        table = self._table
        order = topological_order(table)
        is_collective = (table.type[order] == NodeType.COMM_COLL_NODE) & (table.comm_type[order] >= 0)
        # Members of a group issue its collectives in the same order, so that equal numbers meet
        seq = dict(zip(order.tolist(), occurrence(table.group[order], is_collective).tolist(), strict=True))
        ptr, dep = table.dep_ptr, table.dep
        yield f"rank {self._rank} {{\n"
        for row in order.tolist():
            parents = [f"l{parent}" for parent in dep[ptr[row] : ptr[row + 1]].tolist()]
            if table.type[row] == NodeType.COMM_COLL_NODE and table.comm_type[row] >= 0:
                yield from self._collective(row, seq[row], parents)
            else:
                yield f"l{row}: {self._operation(row)}\n"
                yield from (f"l{row} requires {parent}\n" for parent in parents)
        yield "}\n"

    def _operation(self, row: int) -> str:
        """Return the GOAL operation for a node that is no collective."""
        table = self._table
        if table.type[row] in {NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE}:
            is_send = table.type[row] == NodeType.COMM_SEND_NODE
            peer, size = int((table.comm_dst if is_send else table.comm_src)[row]), int(table.comm_size[row])
            if not 0 <= peer < self._ranks or size < 0:
                raise self._error(row, f"peer {peer} and {size} B, expected an NPU below {self._ranks} and a size")
            what = f"send {size}b to" if is_send else f"recv {size}b from"
            places = "".join(f" {key} {n[row]}" for key, n in ((CPU, self._cpus), (NIC, self._nics)) if row in n)
            return f"{what} {peer} tag {max(int(table.comm_tag[row]), 0)}{places}"
        cpu = self._cpus.get(row)
        if cpu is None:
            cpu = _MEMORY if table.type[row] in _MEMORY_TYPES else _HOST if table.is_cpu_op[row] else _CPU
        nanos = self._time(row)
        return f"calc {nanos} cpu {cpu}" if nanos else "calc 0"

    def _time(self, row: int) -> int:
        """Return the duration of a node in nanoseconds."""
        table = self._table
        if row in self._nanos:
            return self._nanos[row]
        if table.duration_micros[row] or table.type[row] == NodeType.METADATA_NODE:
            return int(table.duration_micros[row]) * 1000
        num_ops, size = int(table.num_ops[row]), int(table.tensor_size[row])
        # Work without a duration takes time only at a known rate
        if (num_ops > 0 and not self._tflops) or (num_ops <= 0 < size and not self._memory_gbps):
            option = "tflops" if num_ops > 0 else "memory_gbps"
            raise self._error(row, f"no duration, expected one, or --to goal:{option}=N")
        by_memory = max(size, 0) / self._memory_gbps if self._memory_gbps else 0.0
        return round(max(max(num_ops, 0) / (self._tflops * 1000) if self._tflops else 0.0, by_memory))

    def _collective(self, row: int, collective_index: int, parents: list[str]) -> Iterator[str]:
        """Yield the lines of a collective: rounds of messages, and a computation of no time that waits for all of them.

        `collective_index` counts the group's collectives; its first messages wait for the labels `parents`.
        """
        table = self._table
        name = table.group_names[table.group[row]]
        members = self._members(row, name)
        kind, size = CollectiveCommType(table.comm_type[row]), int(table.comm_size[row])
        if size < 0 and kind != CollectiveCommType.BARRIER:
            raise self._error(row, "no comm_size, expected one")
        splits = self._splits(row, len(members)) if kind == CollectiveCommType.ALL_TO_ALL else None
        # The same for all members, and likely another one for each collective
        tag = _FIRST_TAG + zlib.crc32(f"{name} {members} {collective_index}".encode()) % (TAGS - _FIRST_TAG)
        before, labels = parents, list(parents)
        for k, round_ in enumerate(rounds(kind, members.index(self._rank), len(members), max(size, 0), splits)):
            received = []
            for way, ends in (("send", round_.sends), ("recv", round_.receives)):
                for j, (member, size_bytes) in enumerate(ends):
                    # Unique in the rank: row of the collective, direction (s or r), round, and number in the round
                    label = f"l{row}{way[0]}{k}x{j}"
                    direction = "to" if way == "send" else "from"
                    yield f"{label}: {way} {size_bytes}b {direction} {members[member]} tag {tag}\n"
                    yield from (f"{label} requires {parent}\n" for parent in before)
                    labels.append(label)
                    received += [label] * (way == "recv")
            # A round without a receive does not delay the next one's sends
            before = received or before
        yield f"l{row}: calc 0\n"
        yield from (f"l{row} requires {label}\n" for label in labels)

    def _members(self, row: int, group_name: str) -> tuple[int, ...]:
        """Return the NPUs of the group of a collective at a row; raise TraceError unless this rank is one of them."""
        members = self._groups.get(group_name) or self._table.metadata_groups.get(group_name)
        if group_name and members is None and group_name not in self._table.metadata_groups:
            raise self._error(row, f'group "{group_name}" is unknown, expected it in a group file')
        found = tuple(members or range(self._ranks))
        if self._rank not in found or max(found) >= self._ranks:
            raise self._error(
                row, f'group "{group_name}" has {len(found)} members, expected NPU {self._rank} among them'
            )
        return found

    def _splits(self, row: int, group_size: int) -> tuple[list[int], list[int]] | None:
        """Return the bytes to each member and from each; None if the all-to-all is even."""
        table = self._table
        out, into = (table.split_sizes[c[row]] for c in (table.in_split_size, table.out_split_size))
        if not out:
            return None
        unit = sum(out)
        if len(out) != group_size or len(into) != group_size:
            raise self._error(row, f"{len(out)} and {len(into)} split sizes, expected {group_size} of both")
        size = int(table.comm_size[row])
        return [size * o // unit if unit else 0 for o in out], [size * i // unit if unit else 0 for i in into]

    def _error(self, row: int, text: str) -> TraceError:
        return TraceError(f"{self._table.path}: node {self._table.node_id[row]}: {text}")
