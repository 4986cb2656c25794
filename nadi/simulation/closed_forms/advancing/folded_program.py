"""Folded programs: rows, sends and groups of classes of NPUs for a kernel, and the keys of the required times."""

from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Float64, Int32, Int64
from nadi.pdes.kernels import Array, Program, Rows, rows_of
from nadi.pdes.traces import offsets
from nadi.simulation.closed_forms.advancing.equivalence import Classes, TracePeers, slots_of
from nadi.simulation.closed_forms.advancing.state import GroupClass
from nadi.workload.node_kinds import SEND
from nadi.workload.program import receive_key


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
    parts: Int64  # int64[M], messages that it is divided into over the sender's NICs, 1 = it is whole


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
    program: Program,
    classes: Classes,
    pairs: TracePeers,
    group_equivalence: Int64,
    pair_equivalence: Int64,
    port_of_pair: Int32,
) -> FoldedProgram:
    """Lay out the classes of a Program, and list the collectives and messages that need a time.

    Args:
        program: Work of all NPUs (`Program`).
        classes: Classes of NPUs that do the same at the same times.
        pairs: Peers of each NPU.
        group_equivalence: int64[G], equal numbers for groups with equal positions.
        pair_equivalence: int64[k], equal numbers for pairs with equal paths.
        port_of_pair: int32[k], the sender's port.
    """
    trace = program.trace_of_npu[classes.example]
    rows = np.diff(program.trace_ptr)[trace]
    slot_ptr = offsets(np.diff(program.slot_ptr)[classes.example])
    slot = ranges(program.slot_ptr[classes.example], np.diff(slot_ptr))
    sends_before = np.concatenate([[0], np.cumsum(program.node_kind == SEND)])
    # number of each send among those of its trace
    ordinal = sends_before[:-1] - np.repeat(sends_before[program.trace_ptr[:-1]], np.diff(program.trace_ptr))
    group, member, member_slot = _groups(program, classes)
    collectives, instance_key = _collectives(program, classes, group, member, member_slot, group_equivalence)
    send_ptr, sends, send_key, messages, ports = _sends(program, classes, pairs, pair_equivalence, port_of_pair)
    return FoldedProgram(
        program=program,
        classes=classes,
        row_ptr=offsets(rows),
        send_ptr=send_ptr,
        send_key=send_key,
        send_ordinal=ordinal.astype(np.int32),
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


def _groups(program: Program, classes: Classes) -> tuple[Rows, Int32, Int32]:
    """Return rows of the classes of groups, without instance_base, and their distinct members as classes and slots."""
    owner, slot = slots_of(program)
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
    # one more than can come, if a member has no traces: it never begins
    group.needed = members + (users < sizes)
    group.member_base = offsets(members)[:-1]
    group.members = members
    return group, unlike[:, 1].astype(np.int32), unlike[:, 2].astype(np.int32)


def _collectives(
    program: Program, classes: Classes, group: Rows, member: Int32, member_slot: Int32, group_equivalence: Int64
) -> tuple[CollectiveKeys, Int64]:
    """Return the collectives that need a time, and the row of these for each one; set instance_base of the groups.

    `group`, `member` and `member_slot` are those of `_groups`; `group_equivalence` is that of `lay_out`.
    """
    # all members have the same collectives, so those of the first are listed
    first = group.member_base
    npu = classes.example[member[first]].astype(np.int64)
    trace = program.trace_of_npu[npu]
    entry = program.trace_slot_ptr[trace] + member_slot[first]
    counts = program.coll_ptr[entry + 1] - program.coll_ptr[entry]
    group.instance_base = offsets(counts)[:-1]
    group_class = np.repeat(np.arange(len(counts)), counts)
    row = program.coll_node[ranges(program.coll_ptr[entry], counts)].astype(np.int64)
    node = program.trace_ptr[trace[group_class]] + row
    schedule = program.node_schedule[node].astype(np.int64)
    position = _numbers(group_equivalence[classes.group_example])
    takes_time = np.flatnonzero(schedule >= 0)
    columns = [position[group_class], schedule, program.node_bytes[node]]
    keys, chosen, key_of_collective = _unlike(np.stack(columns, axis=1)[takes_time])
    instance_key = np.full(len(node), -1)
    instance_key[takes_time] = key_of_collective
    first_group = np.full(len(position), np.iinfo(np.int64).max)
    # the first group of each position stands for all
    np.minimum.at(first_group, position, classes.group_example)
    chosen = takes_time[chosen]
    return CollectiveKeys(
        first_group[keys[:, 0]], keys[:, 1], keys[:, 2], npu[group_class[chosen]], row[chosen]
    ), instance_key


def _numbers(keys: Array) -> Int64:
    """Return int64[n], equal numbers from 0 on for equal keys."""
    return np.unique(keys, return_inverse=True)[1].reshape(-1)


def _unlike(keys: Int64) -> tuple[Int64, Int64, Int64]:
    """Return the distinct rows of int64[n, k], the index of the first of each, and the index in these of each row."""
    if len(keys) == 0:
        return keys, np.zeros(0, np.int64), np.zeros(0, np.int64)
    unlike, at, index = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return unlike, at, index.reshape(-1)


def _sends(
    program: Program, classes: Classes, pairs: TracePeers, pair_equivalence: Int64, port_of_pair: Int32
) -> tuple[Int64, tuple[Int32, Int32, Int32, Int32], Int32, MessageKeys, Int64]:
    """Return pointers, columns and keys of the sends of all classes, and each class's ports, as lay_out needs them."""
    all_sends = np.flatnonzero(program.node_kind == SEND)
    trace_sends = np.searchsorted(all_sends, program.trace_ptr)
    send_ptr = offsets(np.diff(trace_sends)[program.trace_of_npu[classes.example]])
    total = int(send_ptr[-1])
    pair, size, channel, parts = (np.zeros(total, np.int64) for _ in range(4))
    to, to_row = np.zeros(total, np.int32), np.zeros(total, np.int32)
    for c in np.flatnonzero(np.diff(send_ptr)).tolist():
        npu = int(classes.example[c])
        trace = int(program.trace_of_npu[npu])
        rows = all_sends[trace_sends[trace] : trace_sends[trace + 1]]
        own = slice(int(send_ptr[c]), int(send_ptr[c + 1]))
        distance = program.node_peer[rows].astype(np.int64)
        peer = program.peers(np.array(npu), distance)
        known = slice(int(pairs.ptr[npu]), int(pairs.ptr[npu + 1]))
        pair[own] = known.start + np.searchsorted(pairs.distance[known], distance)
        size[own] = program.node_bytes[rows]
        channel[own] = program.node_channel[rows]
        parts[own] = program.node_parts[rows]
        to[own] = classes.class_of_npu[peer]
        to_row[own] = _receives(program, rows, program.trace_of_npu[peer])
    unlike, at, index = _unlike(np.stack([pair_equivalence[pair], size, channel, parts], axis=1))
    shares = np.append(program.channels.shares, 1.0)  # the last row is that of -1
    messages = MessageKeys(pairs.npu[pair[at]], pairs.peer[pair[at]], unlike[:, 1], shares[unlike[:, 2]], unlike[:, 3])
    line = np.where(channel >= 0, _numbers(pair * (len(shares) + 1) + channel), -1)
    line[channel >= 0] = _numbers(line[channel >= 0])
    ports = np.zeros(len(classes.example), np.int64)
    np.maximum.at(ports, np.repeat(np.arange(len(ports)), np.diff(send_ptr)), port_of_pair[pair] + 1)
    columns = port_of_pair[pair].astype(np.int32), to, to_row, line.astype(np.int32)
    return send_ptr, columns, index.astype(np.int32), messages, ports


def _receives(program: Program, send_rows: Int64, receiver_trace: Int32) -> Int32:
    """Return int32[], rows of the receives that match sends (rows of Program) in the traces of their receivers."""
    peer = -program.node_peer[send_rows].astype(np.int64)
    key = receive_key(peer, program.node_tag[send_rows].astype(np.int64), program.node_seq[send_rows])
    found = np.zeros(len(send_rows), np.int32)
    for trace in np.unique(receiver_trace).tolist():
        first, end = int(program.recv_ptr[trace]), int(program.recv_ptr[trace + 1])
        mine = receiver_trace == trace
        # receives of a trace are sorted by key
        found[mine] = program.recv_node[first + np.searchsorted(program.recv_key[first:end], key[mine])]
    return found
