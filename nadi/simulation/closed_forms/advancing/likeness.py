"""NPUs that do the same at the same times: classes of which one member need be simulated.

Colour refinement. NPUs of one trace begin as one class. A class is divided where two of its members have groups or
peers that are not alike: groups are alike if they stand alike on the fabric and have members of the same classes in the
same slots; peers if they are of one class and the ways to them are alike. When nothing is divided any more, what one
member of a class does from event to event every other does too: all that reaches it, from its groups and its peers,
comes from members of the same classes at the same times. Colours are told apart by 128 bits of hash.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdes.arrays import Program
from workload.node_kinds import RECV, SEND

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Words = NDArray[np.uint64]

_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)


class TracePeers(NamedTuple):
    """Whom each NPU exchanges messages with, by the rows of its trace; k pairs, NPU by NPU.

    Attributes:
        ptr: int64[npus+1], pairs of an NPU.
        npu: int64[k].
        place: int64[k], number of the pair among those of the NPU's trace, by distance.
        peer: int64[k], the other NPU.
        sends: bool[k], the NPU sends to it; else it only receives.
    """

    ptr: Int64
    npu: Int64
    place: Int64
    peer: Int64
    sends: NDArray[np.bool_]


class Classes(NamedTuple):
    """C classes of NPUs, numbered by their least member, and Q of groups.

    Attributes:
        class_of_npu: int32[npus].
        example: int32[C], the least NPU of each.
        size: int64[C], how many there are.
        class_of_group: int32[G], -1 = nobody has a slot of it.
        group_example: int32[Q], the least group of each.
    """

    class_of_npu: Int32
    example: Int32
    size: Int64
    class_of_group: Int32
    group_example: Int32


def pairs_of(program: Program) -> TracePeers:
    """Whom each NPU of a Program sends to or receives from."""
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
    place = np.arange(len(npu)) - pair_ptr[npu]
    base = np.concatenate([[0], np.cumsum([len(own) for own in far])])[program.trace_of_npu[npu]]
    distance = np.concatenate([np.zeros(0, np.int64), *far])[base + place]
    of_pair = np.concatenate([np.zeros(0, np.bool_), *sends])[base + place]
    return TracePeers(pair_ptr, npu, place, npu + distance, of_pair)


def classes_of(
    program: Program, pairs: TracePeers, group_likeness: Int64, pair_likeness: Int64, npu_likeness: Int64 | None = None
) -> Classes:
    """The coarsest classes whose members do the same at the same times.

    Args:
        program: of all NPUs.
        pairs: of it.
        group_likeness: int64[G], equal for groups that stand alike on the fabric.
        pair_likeness: int64[k], equal for pairs with ways alike.
        npu_likeness: int64[npus], equal for NPUs that are as fast at all times; None = all are.
    """
    own = np.zeros(program.npus, np.int64) if npu_likeness is None else npu_likeness
    colour = numbered([program.trace_of_npu.astype(np.uint64), own.astype(np.uint64)])
    while True:
        of_groups = _group_colours(program, colour, group_likeness)
        sums = [_npu_sums(seed, program, pairs, colour, of_groups, pair_likeness) for seed in _SEEDS]
        refined = numbered([colour.astype(np.uint64), *sums])
        if refined.max(initial=0) == colour.max(initial=0):
            return _classes(program, refined, _group_colours(program, refined, group_likeness))
        colour = refined


def every_npu(program: Program, group_likeness: Int64) -> Classes:
    """Each NPU as a class of its own, with which folding must agree."""
    colour = np.arange(program.npus)
    return _classes(program, colour, _group_colours(program, colour, group_likeness))


def _classes(program: Program, colour: Int64, of_groups: list[Words]) -> Classes:
    _, example, size = np.unique(colour, return_index=True, return_counts=True)
    used = np.unique(program.slot_group)
    class_of_group = np.full(len(program.group_ptr) - 1, -1, np.int32)
    number = numbered([words[used] for words in of_groups]) if len(used) else np.zeros(0, np.int64)
    class_of_group[used] = number
    _, first = np.unique(number, return_index=True)
    return Classes(
        colour.astype(np.int32), example.astype(np.int32), size.astype(np.int64), class_of_group, used[first]
    )


def numbered(columns: list[Words]) -> Int64:
    """int64[n]: equal rows have one number, numbers go by first appearance."""
    rows = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.dtype((np.void, 8 * len(columns)))).reshape(-1)
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def mixed(seed: int, *words: NDArray) -> Words:
    """uint64[n]: a hash of words (splitmix64 of one after another)."""
    found = np.full(len(words[0]), seed, np.uint64)
    for word in words:
        found = (found ^ word.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found


def _slots(program: Program) -> tuple[Int64, Int64]:
    """int64[slots] each: whose slot it is, and its number there."""
    owner = np.repeat(np.arange(program.npus), np.diff(program.slot_ptr))
    return owner, np.arange(len(owner)) - program.slot_ptr[owner]


def _group_colours(program: Program, colour: Int64, likeness: Int64) -> list[Words]:
    """uint64[G], twice: a hash of how a group stands and of the classes and slots of its members."""
    owner, slot = _slots(program)
    found = []
    for seed in _SEEDS:
        total = np.zeros(len(likeness), np.uint64)
        np.add.at(total, program.slot_group, mixed(seed, colour[owner], slot))
        found.append(mixed(seed, total, likeness))
    return found


def _npu_sums(
    seed: int, program: Program, pairs: TracePeers, colour: Int64, of_groups: list[Words], pair_likeness: Int64
) -> Words:
    """uint64[npus]: a hash of an NPU's groups, slot by slot, and of its peers, pair by pair."""
    owner, slot = _slots(program)
    total = np.zeros(program.npus, np.uint64)
    np.add.at(total, owner, mixed(seed, slot, *(words[program.slot_group] for words in of_groups)))
    np.add.at(total, pairs.npu, mixed(seed + 1, pairs.place, colour[pairs.peer], pair_likeness))
    return total
