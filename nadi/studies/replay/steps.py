"""What one rank has to do: the nodes of its trace, with sizes, members and peers settled as for a simulation."""

import dataclasses
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

import workload
from et import TraceTable, read_groups
from nadi.errors import ConfigError
from nadi.simulation.wiring.affordable import available_bytes
from workload import KINDS, CollectiveSettings, Program, TraceSet
from workload.node_kinds import COLLECTIVE, SEND

Int64 = NDArray[np.int64]
_SHARE_OF_MEMORY = 0.5
_BUFFERS = 2
_PS_PER_NS = 1000


class ReplayOperation(NamedTuple):
    """One operation of a rank.

    Attributes:
        kind: of workload.KINDS, or "send" or "recv".
        size_bytes: of the message or the whole buffer.
        group: number of the group, -1 of a message.
        members: ranks of the group in member order; of a message the peer alone.
        own: which of the members this rank is.
        tag: of a message.
        send_bytes: of an uneven all-to-all: to each member; else ().
        recv_bytes: from each member; else ().
    """

    kind: str
    size_bytes: int
    group: int
    members: tuple[int, ...]
    own: int = 0
    tag: int = 0
    send_bytes: tuple[int, ...] = ()
    recv_bytes: tuple[int, ...] = ()

    @property
    def part_bytes(self) -> int:
        """Of a member's part of the buffer, rounded up."""
        return -(-self.size_bytes // len(self.members))


@dataclasses.dataclass(frozen=True, eq=False)
class ReplaySteps:
    """The n nodes of a rank's trace.

    Attributes:
        table: the trace, peers as this rank has them.
        kind: int8[n], NOOP to COLLECTIVE.
        lane: int8[n], of compute and memory nodes.
        duration_ns: int64[n], of compute and memory nodes.
        parents: int64[n], how many.
        child_ptr: int64[n + 1], and
        child: int64[], rows that wait for each.
        operations: what rows of communication do; a collective of one member is not among them.
        channel: rows that must begin in this order, by group or by peer and tag.
        groups: members of each group that any rank uses, by number, the same on all ranks.
    """

    table: TraceTable
    kind: NDArray[np.int8]
    lane: NDArray[np.int8]
    duration_ns: Int64
    parents: Int64
    child_ptr: Int64
    child: Int64
    operations: dict[int, ReplayOperation]
    channel: dict[int, tuple[int, ...]]
    groups: dict[int, tuple[int, ...]]


def read_traces(
    path: Path,
    ranks: int,
    groups: Path | None,
    *,
    strict: bool,
    all_gather_size: Literal["contribution", "total"],
) -> tuple[TraceSet, Program]:
    """Read the traces of all ranks and check them against each other, as before a simulation.

    Raises:
        et.TraceError, workload.WorkloadError: the traces are wrong, or there are more of them than ranks.
    """
    found = workload.load_set(path, ranks, strict=strict)
    program = workload.build_program(
        found.traces,
        found.trace_of_npu,
        ranks,
        read_groups(groups) if groups else {},
        settings=CollectiveSettings(all_gather_size=all_gather_size),
        example_npu=found.example_npu,
        families=found.families,
    )
    largest = int(program.node_bytes.max(initial=0))
    free = available_bytes()
    most = largest if free is None else int(free * _SHARE_OF_MEMORY / ranks / _BUFFERS)
    if largest > most:
        raise ConfigError(
            f"{path}: an operation of {largest:,} bytes, expected at most {most:,} of {ranks} ranks on this machine"
        )
    return found, program


def steps_of(rank: int, traces: TraceSet, program: Program) -> ReplaySteps:
    """What a rank does."""
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
        at = begin + row
        if kind[row] == COLLECTIVE:
            if program.node_schedule[at] < 0:
                continue
            operation = _collective(rank, at, row, traces, program)
            key: tuple[int, ...] = (operation.group,)
        else:
            peer, tag = rank + int(program.node_peer[at]), int(program.node_tag[at])
            is_send = kind[row] == SEND
            operation = ReplayOperation(
                "send" if is_send else "recv", int(program.node_bytes[at]), -1, (peer,), tag=tag
            )
            key = (peer, tag, int(is_send))
        operations[row] = operation
        order.setdefault(key, []).append((int(program.node_seq[at]), row))
    channels = {number: tuple(row for _, row in sorted(rows)) for number, rows in enumerate(order.values())}
    return ReplaySteps(
        table=_as_own(rank, traces),
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
    return tuple(program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].tolist())


def _collective(rank: int, at: int, row: int, traces: TraceSet, program: Program) -> ReplayOperation:
    slot = int(program.slot_ptr[rank] + program.node_group[at])
    group, size = int(program.slot_group[slot]), int(program.node_bytes[at])
    members = _members(program, group)
    kind = KINDS[program.node_collective[at]]
    operation = ReplayOperation(kind, size, group, members, members.index(rank))
    if not program.node_uneven[at]:
        return operation
    seq = int(program.node_seq[at])
    own = _sent(rank, row, traces, len(members))
    rows = [own if member == rank else _sent_by(member, group, seq, traces, program) for member in members]
    return operation._replace(send_bytes=own, recv_bytes=tuple(sent[operation.own] for sent in rows))


def _sent_by(member: int, group: int, seq: int, traces: TraceSet, program: Program) -> tuple[int, ...]:
    """What a member sends to each in a collective of a group, the how-manieth of that."""
    trace = int(program.trace_of_npu[member])
    slots = program.slot_group[program.slot_ptr[member] : program.slot_ptr[member + 1]]
    entry = int(program.trace_slot_ptr[trace]) + int(np.flatnonzero(slots == group)[0])
    row = int(program.coll_node[program.coll_ptr[entry] + seq])
    return _sent(member, row, traces, len(_members(program, group)))


def _sent(npu: int, row: int, traces: TraceSet, members: int) -> tuple[int, ...]:
    """Bytes of an all-to-all to each member, by its split sizes."""
    table = traces.traces[int(traces.trace_of_npu[npu])]
    splits = table.split_sizes[int(table.in_split_size[row])] or (1,) * members
    size, whole = int(table.comm_size[row]), sum(splits)
    return tuple(size * split // whole if whole else 0 for split in splits)


def _as_own(rank: int, traces: TraceSet) -> TraceTable:
    """The trace of a rank, peers of a shared one shifted."""
    trace = int(traces.trace_of_npu[rank])
    table, example = traces.traces[trace], int(traces.example_npu[trace])
    shift = rank - example if example >= 0 else 0
    ends = {name: getattr(table, name) for name in ("comm_src", "comm_dst")}
    return dataclasses.replace(
        table, **{name: np.where(end >= 0, end + shift, end).astype(np.int32) for name, end in ends.items()}
    )
