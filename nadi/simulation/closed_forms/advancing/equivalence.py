"""Classes of NPUs that do the same at the same times, and the program of one NPU of each class.

The classes come from colour refinement. NPUs of one trace begin as one class. A class splits if two of its members have
groups or peers that differ. Groups are equal if they have equal positions on the fabric and members of the same classes
in the same slots. Peers are equal if they belong to one class and the paths to them are equal. When no class splits any
more, all members of a class do the same from event to event, because everything that reaches them comes from members of
the same classes at the same times. A hash of 128 bits identifies a colour.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Float64, Int32, Int64
from nadi.pdes.kernels import Array, Program, Rows, rows_of
from nadi.pdes.traces import offsets
from nadi.simulation.closed_forms.advancing.state import GroupClass
from nadi.workload.node_kinds import RECV, SEND
from nadi.workload.program import receive_key

Words = NDArray[np.uint64]

_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)


class TracePeers(NamedTuple):
    """Peers with which each NPU exchanges messages, by the rows of its trace; k pairs, NPU by NPU."""

    ptr: Int64  # int64[npus+1], range of the pairs of each NPU
    npu: Int64  # int64[k], NPU of the pair
    place: Int64  # int64[k], index of the pair among those of the NPU's trace, in order of distance
    distance: Int64  # int64[k], rank of the other NPU minus the own one; ascending on an NPU
    peer: Int64  # int64[k], the other NPU
    sends: NDArray[np.bool_]  # bool[k], True = the NPU sends to the peer; False = it only receives


class Classes(NamedTuple):
    """C classes of NPUs, numbered by their first member, and Q classes of groups."""

    class_of_npu: Int32  # int32[npus], class of each NPU
    example: Int32  # int32[C], first NPU of each class
    size: Int64  # int64[C], number of NPUs of each class
    class_of_group: Int32  # int32[G], class of each group, -1 = no NPU has a slot of the group
    group_example: Int32  # int32[Q], first group of each class


def pairs_of(program: Program) -> TracePeers:
    """Return the peers to which each NPU of a Program sends or from which it receives.

    Args:
        program: Work of all NPUs (`Program`).
    """
    kind, peer, ptr = program.node_kind, program.node_peer, program.trace_ptr
    far, sends = [], []
    for first, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        own_kind, own_peer = kind[first:end], peer[first:end]
        of_sends = np.unique(own_peer[own_kind == SEND])
        far.append(np.union1d(of_sends, own_peer[own_kind == RECV]).astype(np.int64))
        sends.append(np.isin(far[-1], of_sends))
    counts = np.array([len(own) for own in far], np.int64)[program.trace_of_npu]
    pair_ptr = np.concatenate([[0], np.cumsum(counts)])
    npu = np.repeat(np.arange(program.npus), counts)
    # peers are kept once per trace; NPUs with the same trace share them
    place = np.arange(len(npu)) - pair_ptr[npu]
    base = np.concatenate([[0], np.cumsum([len(own) for own in far])])[program.trace_of_npu[npu]]
    distance = np.concatenate([np.zeros(0, np.int64), *far])[base + place]
    of_pair = np.concatenate([np.zeros(0, np.bool_), *sends])[base + place]
    return TracePeers(pair_ptr, npu, place, distance, program.peers(npu, distance).astype(np.int64), of_pair)


def classes_of(
    program: Program,
    pairs: TracePeers,
    group_equivalence: Int64,
    pair_equivalence: Int64,
    npu_equivalence: Int64 | None = None,
) -> Classes:
    """Return the coarsest classes whose members do the same at the same times.

    Args:
        program: Work of all NPUs (`Program`).
        pairs: Peers of each NPU.
        group_equivalence: int64[G], equal numbers for groups with equal positions.
        pair_equivalence: int64[k], equal numbers for pairs with equal paths.
        npu_equivalence: int64[npus], equal numbers for NPUs with equal pace at all times; None = all NPUs are equal.
    """
    own = np.zeros(program.npus, np.int64) if npu_equivalence is None else npu_equivalence
    colour = numbered([program.trace_of_npu.astype(np.uint64), own.astype(np.uint64)])
    # colour refinement: split classes by what their members meet until nothing splits any more
    while True:
        of_groups = _group_colours(program, colour, group_equivalence)
        # two seeds, as hashes of one may collide
        sums = [_npu_sums(seed, program, pairs, colour, of_groups, pair_equivalence) for seed in _SEEDS]
        refined = numbered([colour.astype(np.uint64), *sums])
        if refined.max(initial=0) == colour.max(initial=0):
            break
        colour = refined
    _, example, size = np.unique(refined, return_index=True, return_counts=True)
    of_groups = _group_colours(program, refined, group_equivalence)
    used = np.unique(program.slot_group)
    class_of_group = np.full(len(program.group_ptr) - 1, -1, np.int32)
    number = numbered([words[used] for words in of_groups]) if len(used) else np.zeros(0, np.int64)
    class_of_group[used] = number
    _, first = np.unique(number, return_index=True)
    return Classes(
        refined.astype(np.int32), example.astype(np.int32), size.astype(np.int64), class_of_group, used[first]
    )


def numbered(columns: list[Words]) -> Int64:
    """Return int64[n], equal numbers for equal rows, in order of first appearance.

    Args:
        columns: uint64[n] each, the columns of the rows to compare.
    """
    # rows as opaque bytes, which NumPy can sort and compare
    rows = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.dtype((np.void, 8 * len(columns)))).reshape(-1)
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    # np.unique numbers rows in sorted order, which says nothing here
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def mixed(seed: int, *words: NDArray) -> Words:
    """Return uint64[n], hashes of n rows of words (splitmix64 of one word at a time).

    Args:
        seed: Seed of the hashes.
        *words: int[n] each, the columns of the rows to hash.
    """
    hashed = np.full(len(words[0]), seed, np.uint64)
    for word in words:
        hashed = (hashed ^ word.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed ^= hashed >> np.uint64(31)
    return hashed


def slots_of(program: Program) -> tuple[Int64, Int64]:
    """Return int64[slots], twice: the NPU that owns each slot, and the index of the slot on that NPU.

    Args:
        program: Work of all NPUs (`Program`).
    """
    owner = np.repeat(np.arange(program.npus), np.diff(program.slot_ptr))
    return owner, np.arange(len(owner)) - program.slot_ptr[owner]


def _group_colours(program: Program, class_of_npu: Int64, group_equivalence: Int64) -> list[Words]:
    """Return uint64[G], twice: a hash of each group's position and of the classes and slots of its members."""
    owner, slot = slots_of(program)
    hashed = []
    for seed in _SEEDS:
        total = np.zeros(len(group_equivalence), np.uint64)
        # a sum, as the order of members does not count here: their position is part of `group_equivalence`
        np.add.at(total, program.slot_group, mixed(seed, class_of_npu[owner], slot))
        hashed.append(mixed(seed, total, group_equivalence))
    return hashed


def _npu_sums(
    seed: int, program: Program, pairs: TracePeers, class_of_npu: Int64, of_groups: list[Words], pair_equivalence: Int64
) -> Words:
    """Return uint64[npus], a hash of each NPU's groups, slot by slot, and of its peers, pair by pair."""
    owner, slot = slots_of(program)
    total = np.zeros(program.npus, np.uint64)
    np.add.at(total, owner, mixed(seed, slot, *(words[program.slot_group] for words in of_groups)))
    np.add.at(total, pairs.npu, mixed(seed + 1, pairs.place, class_of_npu[pairs.peer], pair_equivalence))
    return total


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


class ClassProgram(NamedTuple):
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
) -> ClassProgram:
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
    return ClassProgram(
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
