"""Classes of NPUs that do the same at the same times, so that simulating one member of each class suffices.

The classes come from colour refinement. NPUs of one trace begin as one class. A class splits if two of its members have
groups or peers that differ. Groups are equal if they have equal positions on the fabric and members of the same classes
in the same slots. Peers are equal if they belong to one class and the paths to them are equal. When no class splits any
more, all members of a class do the same from event to event, because everything that reaches them comes from members of
the same classes at the same times. A hash of 128 bits identifies a colour.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int32, Int64
from nadi.pdes.kernels import Program
from nadi.workload.node_kinds import RECV, SEND

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
