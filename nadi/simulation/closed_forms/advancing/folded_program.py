"""Folded programs: rows, sends and groups of classes of NPUs for a kernel, and the keys of the required times."""

from typing import NamedTuple

import numpy as np

from nadi.simulation.closed_forms.advancing.likeness import Classes, TracePeers
from nadi.simulation.closed_forms.advancing.state import GroupClass
from pdes.arrays import Array, Float64, Int32, Int64, Program, Rows
from pdes.kernels import rows_of
from pdes.traces import offsets
from workload.node_kinds import SEND
from workload.program.assembling import receive_key


class CollectiveKeys(NamedTuple):
    """K collectives that need a time of their own."""

    group: Int64  # int64[K], first group that does the collective
    schedule: Int64  # int64[K], number of its schedule in Program
    bytes: Int64  # int64[K], size of its buffer
    npu: Int64  # int64[K], an NPU that takes part
    row: Int64  # int64[K], row of the collective in that NPU's trace


class MessageKeys(NamedTuple):
    """M messages that need a time of their own."""

    src: Int64  # int64[M], an NPU that sends the message
    dst: Int64  # int64[M], NPU that receives it
    bytes: Int64  # int64[M], payload in bytes
    # float64[M], divisor of the port's line rate: the NPU drives the message at line rate / shares; 1 = line rate
    shares: Float64


class FoldedProgram(NamedTuple):
    """Classes of a Program as arrays for the kernel, without times."""

    program: Program  # Program of all NPUs
    classes: Classes  # classes of its NPUs and groups
    row_ptr: Int64  # int64[C+1], range of the rows of each class
    send_ptr: Int64  # int64[C+1], range of the sends of each class
    send_key: Int32  # int32[], row of `messages` for each send
    send_ordinal: Int32  # int32[N], index of each row of the Program among the sends of its trace
    sends: tuple[Int32, Int32, Int32, Int32]  # port, receiving class, row there, and line of each send, int32[] each
    lines: int  # number of lines, which are connections of a class to a peer at one share
    port_ptr: Int64  # int64[C+1], range of the ports of each class
    slot_ptr: Int64  # int64[C+1], range of the slots of each class
    slot_group: Int32  # int32[], class of the group of each slot
    group: np.recarray  # rows of GroupClass
    member: Int32  # int32[], class of NPUs of each member of each class of groups
    member_slot: Int32  # int32[], slot of the group on that member
    instance_key: Int64  # int64[instances], row of `collectives`, -1 = the collective takes no time
    collectives: CollectiveKeys  # collectives that need a time
    messages: MessageKeys  # messages that need a time


def lay_out(
    program: Program, classes: Classes, pairs: TracePeers, group_likeness: Int64, pair_likeness: Int64, port: Int32
) -> FoldedProgram:
    """Lay out the classes of a Program, and list the collectives and messages that need a time.

    `group_likeness`: int64[G], equal numbers for groups with equal positions on the fabric.
    `pair_likeness`: int64[k], equal numbers for pairs with equal paths.
    `port`: int32[k], number of the sender's port of each pair.
    """
    trace = program.trace_of_npu[classes.example]
    rows = np.diff(program.trace_ptr)[trace]
    slot_ptr = offsets(np.diff(program.slot_ptr)[classes.example])
    slot = ranges(program.slot_ptr[classes.example], np.diff(slot_ptr))
    group, member, member_slot = _groups(program, classes)
    collectives, instance_key = _collectives(program, classes, group, member, member_slot, group_likeness)
    send_ptr, sends, send_key, messages, ports = _sends(program, classes, pairs, pair_likeness, port)
    return FoldedProgram(
        program=program,
        classes=classes,
        row_ptr=offsets(rows),
        send_ptr=send_ptr,
        send_key=send_key,
        send_ordinal=_ordinals(program),
        sends=sends,
        lines=int(sends[3].max(initial=-1)) + 1,
        port_ptr=offsets(ports),
        slot_ptr=slot_ptr,
        slot_group=classes.class_of_group[program.slot_group[slot]],
        group=group,
        member=member,
        member_slot=member_slot,
        instance_key=instance_key,
        collectives=collectives,
        messages=messages,
    )


def ranges(first: Array, counts: Array) -> Int64:
    """Return the concatenated ranges that begin at each `first` and have `counts` numbers."""
    ptr = offsets(counts)
    return np.arange(ptr[-1]) - np.repeat(ptr[:-1] - first, counts)


def _ordinals(program: Program) -> Int32:
    """Return int32[N], the index of each row among the sends of its trace."""
    is_send = program.node_kind == SEND
    before = np.concatenate([[0], np.cumsum(is_send)])
    return (before[:-1] - np.repeat(before[program.trace_ptr[:-1]], np.diff(program.trace_ptr))).astype(np.int32)


def _groups(program: Program, classes: Classes) -> tuple[Rows, Int32, Int32]:
    """Return the rows of the classes of groups, and their distinct members as classes and slots.

    The function leaves instance_base of the groups open.
    """
    owner = np.repeat(np.arange(program.npus), np.diff(program.slot_ptr))
    slot = np.arange(len(owner)) - program.slot_ptr[owner]
    is_example = np.zeros(len(program.group_ptr) - 1, np.bool_)
    is_example[classes.group_example] = True
    own = np.flatnonzero(is_example[program.slot_group])
    of_group = classes.class_of_group[program.slot_group[own]].astype(np.int64)
    users = np.bincount(of_group, minlength=len(classes.group_example))
    keys = np.stack([of_group, classes.class_of_npu[owner[own]], slot[own]], axis=1)
    unlike = np.unique(keys, axis=0) if len(keys) else keys.reshape(0, 3)
    members = np.bincount(unlike[:, 0], minlength=len(classes.group_example))
    group = rows_of(GroupClass, len(members))[: len(members)]
    sizes = np.diff(program.group_ptr)[classes.group_example]
    group.needed = members + (users < sizes)
    group.member_base = offsets(members)[:-1]
    group.members = members
    return group, unlike[:, 1].astype(np.int32), unlike[:, 2].astype(np.int32)


def _collectives(
    program: Program, classes: Classes, group: Rows, member: Int32, member_slot: Int32, likeness: Int64
) -> tuple[CollectiveKeys, Int64]:
    """Return the collectives that need a time, and the row of these for each collective of each class of groups.

    The function also sets instance_base of the groups.
    """
    first = group.member_base
    trace = program.trace_of_npu[classes.example[member[first]]].astype(np.int64)
    entry = program.trace_slot_ptr[trace] + member_slot[first]
    counts = program.coll_ptr[entry + 1] - program.coll_ptr[entry]
    group.instance_base = offsets(counts)[:-1]
    done = _collective_numbers(program)
    stands = _numbers(likeness[classes.group_example])
    at = ranges(program.coll_ptr[entry], counts)
    of_row = np.repeat(stands, counts) * (int(done.max(initial=0)) + 1) + done[at]
    costs = done[at] > 0
    found = np.zeros(int(of_row.max(initial=0)) + 1, np.bool_)
    found[of_row[costs]] = True
    instance_key = np.where(costs, np.cumsum(found)[of_row] - 1, -1)
    chosen = np.full(int(np.count_nonzero(found)), len(at))
    np.minimum.at(chosen, instance_key[costs], np.flatnonzero(costs))
    of_group = np.searchsorted(offsets(counts), chosen, side="right") - 1
    row = program.coll_node[at[chosen]].astype(np.int64)
    node = program.trace_ptr[trace[of_group]] + row
    least = _first_equal_group(likeness, classes.group_example)
    keys = CollectiveKeys(
        group=least[classes.group_example[of_group]].astype(np.int64),
        schedule=program.node_schedule[node].astype(np.int64),
        bytes=program.node_bytes[node],
        npu=classes.example[member[first[of_group]]].astype(np.int64),
        row=row,
    )
    return keys, instance_key


def _collective_numbers(program: Program) -> Int64:
    """Return int64[], equal numbers for entries of coll_node with one schedule and size; 0 = without a schedule."""
    trace = np.searchsorted(program.coll_ptr[program.trace_slot_ptr], np.arange(len(program.coll_node)), side="right")
    node = program.trace_ptr[trace - 1] + program.coll_node
    schedule = program.node_schedule[node].astype(np.int64)
    size = _numbers(program.node_bytes[node])
    number = _numbers(schedule * (int(size.max(initial=0)) + 1) + size) + 1
    return np.where(schedule >= 0, number, 0)


def _numbers(keys: Array) -> Int64:
    """Return int64[n], equal numbers from 0 on for equal keys."""
    return np.unique(keys, return_inverse=True)[1].reshape(-1)


def _first_equal_group(likeness: Int64, used: Int32) -> Int64:
    """Return int64[G], the first of the used groups with an equal position."""
    least = np.arange(len(likeness))
    order = np.sort(used)
    _, first, inverse = np.unique(likeness[order], return_index=True, return_inverse=True)
    least[order] = order[first[inverse.reshape(-1)]]
    return least


def _unlike(keys: Int64) -> tuple[Int64, Int64, Int64]:
    """Return the distinct rows of int64[n, k], the index of the first of each, and the index in these of each row."""
    if len(keys) == 0:
        return keys, np.zeros(0, np.int64), np.zeros(0, np.int64)
    unlike, at, index = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return unlike, at, index.reshape(-1)


def _sends(
    program: Program, classes: Classes, pairs: TracePeers, likeness: Int64, port: Int32
) -> tuple[Int64, tuple[Int32, Int32, Int32, Int32], Int32, MessageKeys, Int64]:
    """Return the pointers, columns and keys of the sends of all classes, and the number of ports of each class."""
    kind = program.node_kind
    count = np.add.reduceat(np.append(kind == SEND, False).astype(np.int64), program.trace_ptr[:-1])
    count = np.where(np.diff(program.trace_ptr) > 0, count, 0)
    send_ptr = offsets(count[program.trace_of_npu[classes.example]])
    total = int(send_ptr[-1])
    pair, size, channel = (np.zeros(total, np.int64) for _ in range(3))
    to, to_row = np.zeros(total, np.int32), np.zeros(total, np.int32)
    for c in np.flatnonzero(np.diff(send_ptr)).tolist():
        npu = int(classes.example[c])
        trace = int(program.trace_of_npu[npu])
        rows = int(program.trace_ptr[trace]) + np.flatnonzero(
            kind[program.trace_ptr[trace] : program.trace_ptr[trace + 1]] == SEND
        )
        own = slice(int(send_ptr[c]), int(send_ptr[c + 1]))
        peer = npu + program.node_peer[rows].astype(np.int64)
        known = slice(int(pairs.ptr[npu]), int(pairs.ptr[npu + 1]))
        pair[own] = known.start + np.searchsorted(pairs.peer[known], peer)
        size[own] = program.node_bytes[rows]
        channel[own] = program.node_channel[rows]
        to[own] = classes.class_of_npu[peer]
        to_row[own] = _receives(program, rows, program.trace_of_npu[peer])
    unlike, at, index = _unlike(np.stack([likeness[pair], size, channel], axis=1))
    shares = np.append(program.channels.shares, 1.0)  # the last row is that of -1
    messages = MessageKeys(pairs.npu[pair[at]], pairs.peer[pair[at]], unlike[:, 1], shares[unlike[:, 2]])
    line = np.where(channel >= 0, _numbers(pair * (len(shares) + 1) + channel), -1)
    line[channel >= 0] = _numbers(line[channel >= 0])
    ports = np.zeros(len(classes.example), np.int64)
    np.maximum.at(ports, np.repeat(np.arange(len(ports)), np.diff(send_ptr)), port[pair] + 1)
    columns = port[pair].astype(np.int32), to, to_row, line.astype(np.int32)
    return send_ptr, columns, index.astype(np.int32), messages, ports


def _receives(program: Program, rows: Int64, to_trace: Int32) -> Int32:
    """Return int32[], rows of the receives that match sends (rows of Program) in the traces of their receivers."""
    peer = -program.node_peer[rows].astype(np.int64)
    key = receive_key(peer, program.node_tag[rows].astype(np.int64), program.node_seq[rows])
    found = np.zeros(len(rows), np.int32)
    for trace in np.unique(to_trace).tolist():
        first, end = int(program.recv_ptr[trace]), int(program.recv_ptr[trace + 1])
        mine = to_trace == trace
        found[mine] = program.recv_node[first + np.searchsorted(program.recv_key[first:end], key[mine])]
    return found
