"""Operations of one rank, settled as for a simulation, and the walk of its trace.

Each node starts when its parents are done, as in a simulation, and nodes run concurrently. Communication is
nonblocking; the operations of a group, or with a peer and tag, start in the order of the trace, and the player polls
them for completion. Compute and memory nodes take no time, or sleep for the duration in the trace, one at a time per
lane.
"""

import dataclasses
import heapq
import time
from collections import deque
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nadi import workload
from nadi.errors import ConfigError
from nadi.et import TraceTable, read_groups
from nadi.inputs.arrays import Int64
from nadi.simulation.assembly.resource_checks import available_bytes
from nadi.workload import KINDS, CollectiveSettings, Program, TraceSet
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, MEMORY, SEND

_MEMORY_SHARE = 0.5  # share of the available memory, 0 to 1, that the buffers of one operation on all ranks may use
_BUFFERS = 2  # buffers of an operation: one to send and one to receive
_PS_PER_NS = 1000
_WORD_BYTES = 4


class ReplayOperation(NamedTuple):
    """One communication operation of a rank."""

    kind: str  # one of workload.KINDS, "send" or "recv"
    size_bytes: int  # size in bytes of the message or the whole buffer
    group: int  # number of the group; -1 for a message
    members: tuple[int, ...]  # ranks of the group in member order; the peer alone for a message
    own: int = 0  # index of this rank among the members
    tag: int = 0  # tag of a message
    send_bytes: tuple[int, ...] = ()  # bytes to each member in an uneven all-to-all; else ()
    recv_bytes: tuple[int, ...] = ()  # bytes from each member in an uneven all-to-all; else ()

    def buffer_bytes(self) -> tuple[int, int]:
        """Return the sizes of the send and the receive buffer of an even collective in bytes, padded to equal parts."""
        members = len(self.members)
        part = -(-self.size_bytes // members)
        sizes = {
            "all-reduce": (_whole_words(self.size_bytes), _whole_words(self.size_bytes)),
            "reduce": (_whole_words(self.size_bytes), _whole_words(self.size_bytes)),
            "reduce-scatter": (_whole_words(part) * members, _whole_words(part)),
            "all-gather": (part, part * members),
            "gather": (part, part * members),
            "scatter": (part * members, part),
            "all-to-all": (part * members, part * members),
            "broadcast": (self.size_bytes, 0),
            "barrier": (0, 0),
        }
        return sizes[self.kind]


def _whole_words(size_bytes: int) -> int:
    """Return a number of bytes rounded up to words of float32, which reductions sum."""
    return -(-size_bytes // _WORD_BYTES) * _WORD_BYTES


@dataclasses.dataclass(frozen=True, eq=False)
class ReplaySteps:
    """The n nodes of a rank's trace."""

    table: TraceTable  # trace with the peers of this rank
    kind: NDArray[np.int8]  # int8[n], node kind, NOOP to COLLECTIVE
    lane: NDArray[np.int8]  # int8[n], lane of compute and memory nodes
    duration_ns: Int64  # int64[n], duration of compute and memory nodes in nanoseconds
    parents: Int64  # int64[n], number of parents
    child_ptr: Int64  # int64[n + 1], row pointers into `child`
    child: Int64  # int64[], rows that wait for each row
    # operation of each communication row, without collectives of a single member
    operations: dict[int, ReplayOperation]
    channel: dict[int, tuple[int, ...]]  # rows that must start in this order, by group or by peer and tag
    groups: dict[int, tuple[int, ...]]  # members of every group by number, the same on all ranks


def read_traces(
    path: Path,
    num_ranks: int,
    groups_file: Path | None,
    *,
    strict: bool,
    all_gather_size: Literal["contribution", "total"],
) -> tuple[TraceSet, Program]:
    """Read the traces of all ranks and check them against each other, as before a simulation.

    An operation that needs more memory than there is for it is a ConfigError.

    Args:
        path: A trace file, or the prefix or folder of a trace set.
        num_ranks: The number of ranks of the replay.
        groups_file: The file of the groups; None if the set has its own.
        strict: Whether a dependency on a missing node is an error; False drops it.
        all_gather_size: The meaning of an all-gather's size: one member's "contribution", or the "total".
    """
    traces = workload.load_set(path, num_ranks, strict=strict)
    program = workload.build_program(
        traces.traces,
        traces.trace_of_npu,
        num_ranks,
        read_groups(groups_file) if groups_file else {},
        settings=CollectiveSettings(all_gather_size=all_gather_size),
        example_npu=traces.example_npu,
        families=traces.families,
    )
    largest_bytes = int(program.node_bytes.max(initial=0))
    free_bytes = available_bytes()
    max_bytes = largest_bytes if free_bytes is None else int(free_bytes * _MEMORY_SHARE / num_ranks / _BUFFERS)
    if largest_bytes > max_bytes:
        raise ConfigError(
            f"{path}: an operation of {largest_bytes:,} bytes, expected at most {max_bytes:,} "
            f"with {num_ranks} ranks on this machine"
        )
    return traces, program


def steps_of(rank: int, traces: TraceSet, program: Program) -> ReplaySteps:
    """Return the operations and dependencies of a rank; raise ConfigError if it has no trace.

    Args:
        traces: The traces of all ranks.
        program: The messages and collectives of all ranks.
        rank: The number of the rank.
    """
    trace = int(program.trace_of_npu[rank])
    if trace < 0:
        raise ConfigError(f"rank {rank} has no trace; expected one for each rank, or fewer ranks")
    begin, end = int(program.trace_ptr[trace]), int(program.trace_ptr[trace + 1])
    kind = program.node_kind[begin:end]
    child_ptr = program.child_ptr[begin : end + 1] - program.child_ptr[begin]
    first_child = int(program.child_ptr[begin])
    operations: dict[int, ReplayOperation] = {}
    order: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for row in np.flatnonzero(kind >= SEND).tolist():
        node = begin + row
        if kind[row] == COLLECTIVE:
            if program.node_schedule[node] < 0:
                continue
            operation = _collective(rank, node, row, traces, program)
            # keys of groups have one number and those of messages three: they never meet
            key: tuple[int, ...] = (operation.group,)
        else:
            peer, tag = rank + int(program.node_peer[node]), int(program.node_tag[node])
            is_send = kind[row] == SEND
            operation = ReplayOperation(
                "send" if is_send else "recv", int(program.node_bytes[node]), -1, (peer,), tag=tag
            )
            key = (peer, tag, int(is_send))
        operations[row] = operation
        order.setdefault(key, []).append((int(program.node_seq[node]), row))
    # libraries match the k-th call of a group, or the k-th message of a peer and tag, on both sides: the order within a
    # channel is the program's numbering, whatever becomes ready first
    channels = {number: tuple(row for _, row in sorted(rows)) for number, rows in enumerate(order.values())}
    return ReplaySteps(
        table=_own_table(rank, traces),
        kind=kind,
        lane=program.node_lane[begin:end],
        duration_ns=program.node_duration_ps[begin:end] // _PS_PER_NS,
        parents=program.node_deps[begin:end].astype(np.int64),
        child_ptr=child_ptr,
        child=program.child[first_child : first_child + int(child_ptr[-1])].astype(np.int64),
        operations=operations,
        channel=channels,
        groups={number: _members(program, number) for number in range(len(program.group_ptr) - 1)},
    )


def _members(program: Program, group: int) -> tuple[int, ...]:
    """Return the ranks of a group in member order."""
    return tuple(program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].tolist())


def _collective(rank: int, program_row: int, trace_row: int, traces: TraceSet, program: Program) -> ReplayOperation:
    """Return the operation of a collective, given by its rows in the program and in the rank's trace."""
    slot = int(program.slot_ptr[rank] + program.node_group[program_row])
    group, size = int(program.slot_group[slot]), int(program.node_bytes[program_row])
    members = _members(program, group)
    kind = KINDS[program.node_collective[program_row]]
    operation = ReplayOperation(kind, size, group, members, members.index(rank))
    if not program.node_uneven[program_row]:
        return operation
    seq = int(program.node_seq[program_row])
    own = _bytes_sent(rank, trace_row, traces, len(members))
    rows = [own if member == rank else _bytes_sent_by(member, group, seq, traces, program) for member in members]
    return operation._replace(send_bytes=own, recv_bytes=tuple(sent[operation.own] for sent in rows))


def _bytes_sent_by(member: int, group: int, number: int, traces: TraceSet, program: Program) -> tuple[int, ...]:
    """Return the bytes that a member (rank) sends to each member in its `number`-th collective of a group."""
    trace = int(program.trace_of_npu[member])
    slots = program.slot_group[program.slot_ptr[member] : program.slot_ptr[member + 1]]
    entry = int(program.trace_slot_ptr[trace]) + int(np.flatnonzero(slots == group)[0])
    row = int(program.coll_node[program.coll_ptr[entry] + number])
    return _bytes_sent(member, row, traces, len(_members(program, group)))


def _bytes_sent(npu: int, row: int, traces: TraceSet, num_members: int) -> tuple[int, ...]:
    """Return the bytes that an NPU sends to each member in the all-to-all at a row of its trace, by its split sizes."""
    table = traces.traces[int(traces.trace_of_npu[npu])]
    # without split sizes all members get the same
    splits = table.split_sizes[int(table.in_split_size[row])] or (1,) * num_members
    size, total = int(table.comm_size[row]), sum(splits)
    return tuple(size * split // total if total else 0 for split in splits)


def _own_table(rank: int, traces: TraceSet) -> TraceTable:
    """Return the trace of a rank; peers of a shared trace are shifted to this rank."""
    trace = int(traces.trace_of_npu[rank])
    table, example = traces.traces[trace], int(traces.example_npu[trace])
    # a trace shared by several ranks names the peers of its example: if rank 4's trace sends to 5, rank 6 sends to 7
    shift = rank - example if example >= 0 else 0
    ends = {name: getattr(table, name) for name in ("comm_src", "comm_dst")}
    return dataclasses.replace(
        table, **{name: np.where(end >= 0, end + shift, end).astype(np.int32) for name, end in ends.items()}
    )


Bytes = NDArray[np.uint8]


class Transport(Protocol):
    """The library that executes single operations."""

    def begin(self, operation: ReplayOperation) -> Any:  # noqa: ANN401 - its own
        """Start an operation and return the argument of `is_done`."""

    def is_done(self, started: Any) -> bool:  # noqa: ANN401 - its own
        """Return whether an operation is complete on this rank.

        Args:
            started: The value that `begin` returned.
        """


class OperationTimes(NamedTuple):
    """Start and duration of each node: int64[n] nanoseconds, on a clock that starts with the replay."""

    start_ns: Int64
    duration_ns: Int64


class _Player:
    """State of the replay of one rank's trace."""

    def __init__(self, steps: ReplaySteps, transport: Transport, *, sleeps: bool) -> None:
        self._steps = steps
        self._transport = transport
        self._sleeps = sleeps
        self._waits_for = steps.parents.tolist()
        # Ascending rows are a heap already. The row decides among ready nodes: ranks with equal traces act alike.
        self._ready = [row for row, parents in enumerate(self._waits_for) if parents == 0]
        self._started: list[tuple[int, Any]] = []
        self._sleeping: list[tuple[int, int]] = []
        self._lanes: dict[int, deque[int]] = {}
        self._channel_of = {row: number for number, rows in steps.channel.items() for row in rows}
        self._next = dict.fromkeys(steps.channel, 0)
        # communication rows whose parents are done, but which wait for an earlier row of their channel
        self._held: set[int] = set()
        self._left = len(steps.kind)
        self._start, self._end = np.zeros(self._left, np.int64), np.zeros(self._left, np.int64)
        self._zero = time.perf_counter_ns()

    def play(self) -> OperationTimes:
        """Replay all nodes."""
        while self._left:
            while self._ready:
                self._take(heapq.heappop(self._ready))
            now = self._now()
            while self._sleeping and self._sleeping[0][0] <= now:
                self._wake(heapq.heappop(self._sleeping)[1])
            self._started = [(row, started) for row, started in self._started if not self._finish_if_done(row, started)]
            if not self._ready:
                time.sleep(0)  # yields the core to gloo's threads and to other ranks of this machine
        return OperationTimes(self._start, self._end - self._start)

    def _now(self) -> int:
        return time.perf_counter_ns() - self._zero

    def _take(self, row: int) -> None:
        """Process a row whose parents are done."""
        kind = self._steps.kind[row]
        if row in self._channel_of:
            self._held.add(row)
            self._begin_next(self._channel_of[row])
        elif self._sleeps and kind in {COMPUTE, MEMORY}:
            lane = self._lanes.setdefault(int(self._steps.lane[row]), deque())
            lane.append(row)
            if len(lane) == 1:
                self._sleep(row)
        else:
            self._start[row] = self._now()
            self._finish(row)

    def _begin_next(self, channel: int) -> None:
        """Start the rows of a channel that are ready, in the order of the trace."""
        rows = self._steps.channel[channel]
        # MPI and gloo match collectives of a group by the order of calls. If one rank began B before A and another A
        # before B, both would wait for ever, or exchange wrong data.
        while self._next[channel] < len(rows) and rows[self._next[channel]] in self._held:
            row = rows[self._next[channel]]
            self._held.discard(row)
            self._next[channel] += 1
            self._start[row] = self._now()
            self._started.append((row, self._transport.begin(self._steps.operations[row])))

    def _finish_if_done(self, row: int, started: Any) -> bool:  # noqa: ANN401 - the transport's
        """Return whether an operation is complete; if so, finish its row."""
        if not self._transport.is_done(started):
            return False
        self._finish(row)
        return True

    def _sleep(self, row: int) -> None:
        """Start the sleep of a compute or memory node."""
        self._start[row] = self._now()
        heapq.heappush(self._sleeping, (int(self._start[row] + self._steps.duration_ns[row]), row))

    def _wake(self, row: int) -> None:
        """End a sleep and start the next one of its lane."""
        lane = self._lanes[int(self._steps.lane[row])]
        lane.popleft()
        self._finish(row)
        if lane:
            self._sleep(lane[0])

    def _finish(self, row: int) -> None:
        """Record the end of a row and release its children."""
        self._end[row] = self._now()
        self._left -= 1
        steps = self._steps
        for child in steps.child[steps.child_ptr[row] : steps.child_ptr[row + 1]].tolist():
            self._waits_for[child] -= 1
            if self._waits_for[child] == 0:
                heapq.heappush(self._ready, child)


def play(steps: ReplaySteps, transport: Transport, *, sleeps: bool) -> OperationTimes:
    """Replay the trace of one rank.

    Args:
        steps: The operations of this rank and their dependencies.
        transport: The library that sends messages and runs collectives.
        sleeps: Whether compute and memory nodes sleep for their duration.
    """
    return _Player(steps, transport, sleeps=sleeps).play()


class Buffers:
    """A pool of byte arrays by size."""

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}

    def take(self, size: int) -> Bytes:
        """Return an array that no other operation uses.

        Args:
            size: The number of bytes.
        """
        free = self._free.get(size)
        if free:
            return free.pop()
        array = np.empty(size, np.uint8)
        array[:] = 0  # touches every page, so that the operating system maps it now
        return array

    def give(self, *arrays: Bytes) -> None:
        """Return arrays to the pool."""
        for array in arrays:
            self._free.setdefault(len(array), []).append(array)
