"""Minimal programs with one collective, or one message per NPU, for benchmarks and scenarios."""

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from nadi.et import CollectiveCommType, coll_node, metadata, table_of
from nadi.inputs.arrays import Int32, Int64, pointers
from nadi.inputs.limits import MAX_NPUS
from nadi.topologies import Graph
from nadi.workload.collectives.schedules.packed import ScheduleSet
from nadi.workload.collectives.uneven import NAME as UNEVEN, units
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import BARRIER, kind_index
from nadi.workload.node_kinds import COLLECTIVE, RECV, SEND
from nadi.workload.program.building import build_program
from nadi.workload.program.choosing import CollectiveSettings
from nadi.workload.program.program import Program, assemble, empty_rows
from nadi.workload.trace_sets.groups import GroupTable, resolve
from nadi.workload.trace_sets.trace_set import IDLE, own_traces

NOBODY = -1


def collective_program(
    kind: str,
    npus: int,
    size_bytes: int,
    algorithm: str | None = None,
    fabric: Graph | None = None,
    max_bytes: int | None = None,
) -> Program:
    """Return a program with one collective of all NPUs.

    Args:
        kind: The kind of collective, one of workload.KINDS.
        npus: The number of NPUs.
        size_bytes: The size of the whole buffer S in bytes, also for all-gather and gather (as in nccl-tests); a
            barrier ignores it.
        algorithm: The algorithm with parameters if any; None = the default.
        fabric: The fabric as a graph, which some algorithms need; None = unknown.
        max_bytes: The maximum memory of plans in bytes; None = unlimited.
    """
    row = kind_index(kind)
    comm_type = CollectiveCommType.BARRIER if row == BARRIER else CollectiveCommType(row)
    if size_bytes < 1 and row != BARRIER:
        raise WorkloadError(f"{kind} of {size_bytes} B: expected at least 1")
    chosen = {kind: algorithm} if algorithm else {}
    settings = CollectiveSettings(chosen, all_gather_size="total", most_bytes=max_bytes)
    node = coll_node(0, kind, comm_type, max(size_bytes, 0))
    table, trace_of_npu = table_of(metadata(), [node]), np.zeros(npus, np.int32)
    return build_program([table], trace_of_npu, npus, settings=settings, fabric=fabric)


def uneven_program(matrix_bytes: ArrayLike, algorithm: str | None = None, fabric: Graph | None = None) -> Program:
    """Return a program with one all-to-all of all NPUs that has a separate size for each pair.

    Args:
        matrix_bytes: The bytes from NPU (row) to NPU (column), int[npus, npus].
        algorithm: One of workload.collectives.uneven_algorithms, with parameters if any; None = the default.
        fabric: The fabric as a graph, which some algorithms need; None = unknown.
    """
    units(matrix_bytes)
    rows = np.asarray(matrix_bytes, np.int64).tolist()
    if not any(map(any, rows)):
        raise WorkloadError(f"{UNEVEN}: no bytes at all, expected some")
    number = {row: i for i, row in enumerate(dict.fromkeys(map(tuple, rows)))}
    tables = [
        table_of(metadata(), [coll_node(0, UNEVEN, CollectiveCommType.ALL_TO_ALL, sum(row), in_split_size=row)])
        for row in number
    ]
    settings = CollectiveSettings({UNEVEN: algorithm} if algorithm else {})
    trace_of_npu = np.array([number[tuple(row)] for row in rows], np.int32)
    return build_program(tables, trace_of_npu, len(rows), settings=settings, fabric=fabric)


def hierarchical_program(npus: int, group: int, size_bytes: int) -> Program:
    """Return a program with a hierarchical all-reduce whose middle step is a ring per rail.

    Args:
        npus: The number of NPUs.
        group: The number of neighbours in a group, such as the NPUs of a server.
        size_bytes: The size of the whole buffer in bytes, a multiple of `group`.
    """
    # The steps are a reduce-scatter in each group of neighbours (such as the NPUs of a server), an all-reduce of the
    # shards between NPUs with the same position in their groups, and an all-gather in each group.
    if not (2 <= group <= npus // 2 and npus % group == 0 and npus <= MAX_NPUS):
        raise WorkloadError(f"{npus} NPUs in groups of {group}: expected two groups or more of equal size")
    if size_bytes < group or size_bytes % group:
        raise WorkloadError(f"all-reduce of {size_bytes} B in groups of {group}: expected a multiple of {group}")
    hosts = npus // group
    schedules = ScheduleSet()
    settings = CollectiveSettings()
    steps = (("reduce-scatter", group), ("all-reduce", hosts), ("all-gather", group))
    # Each NPU has two slots, its server's group and its rail's. The all-gather is the second collective of the first,
    # hence sequence number 1.
    rows = empty_rows(3)._replace(
        kind=np.full(3, COLLECTIVE, np.int8),
        bytes=np.array([size_bytes, size_bytes // group, size_bytes], np.int64),
        seq=np.array([0, 0, 1], np.int32),
        collective=np.array([kind_index(kind) for kind, _ in steps], np.int8),
        group=np.array([0, 1, 0], np.int32),
        schedule=np.array([schedules.add(kind, settings.algorithm_of(kind), n) for kind, n in steps], np.int32),
        dep_ptr=np.array([0, 0, 1, 2], np.int64),
        dep=np.array([0, 1], np.int32),
    )
    npu = np.arange(npus, dtype=np.int32)
    # The rails of 2 servers with 3 NPUs each: 0 3, 1 4, 2 5
    members = [npu, npu, npu.reshape(hosts, group).T.reshape(-1)]
    sizes = [npus] + [group] * hosts + [hosts] * group
    groups = GroupTable(
        group_ptr=pointers(sizes),
        # Groups: all NPUs, then the servers, then the rails
        group_member=np.concatenate(members).astype(np.int32),
        names=("",) * len(sizes),
        slot_ptr=2 * np.arange(npus + 1, dtype=np.int64),
        slot_group=np.stack([1 + npu // group, 1 + hosts + npu % group], axis=1).reshape(-1).astype(np.int32),
        slot_member=np.stack([npu % group, npu // group], axis=1).reshape(-1).astype(np.int32),
    )
    return assemble(np.zeros(npus, np.int32), [rows], groups, schedules.pack())


def pairs_program(destination: ArrayLike, size_bytes: int) -> Program:
    """Return a program whose NPUs each send one message immediately and receive the messages for them.

    The traces hold the send, if any, and then the receives by sender; NPUs with equal distances share them.

    Args:
        destination: The receiving NPU of each NPU's message, int[npus]; -1 = no message.
        size_bytes: The size of each message in bytes.
    """
    to = np.asarray(destination, np.int64)
    npus = len(to)
    wrong = (to < NOBODY) | (to >= npus) | (to == np.arange(npus))
    if not 1 <= npus <= MAX_NPUS:
        raise WorkloadError(f"{npus} NPUs: expected 1 to {MAX_NPUS}")
    if np.any(wrong):
        npu = int(np.argmax(wrong))
        raise WorkloadError(f"destination {to[npu]} of NPU {npu}: expected another NPU from 0 to {npus - 1}, or -1")
    if size_bytes < 0:
        raise WorkloadError(f"messages of {size_bytes} B: expected 0 or more")
    own_rows, distinct = _shared(npus, *_ends(to))
    rows = [
        empty_rows(len(kind))._replace(
            kind=kind.astype(np.int8), bytes=np.full(len(kind), size_bytes, np.int64), peer=peer.astype(np.int32)
        )
        for kind, peer in distinct
    ]
    groups = resolve(own_traces([], np.full(npus, IDLE, np.int32)), npus, {})
    return assemble(own_rows, rows, groups, ScheduleSet().pack())


def permutation(npus: int, seed: int = 0) -> Int64:
    """Return int64[npus]: a random permutation without fixed points (one random cycle).

    Args:
        npus: The number of NPUs, 2 or more.
        seed: The seed of the random numbers.
    """
    if npus < 2:
        raise WorkloadError(f"permutation of {npus} NPUs: expected at least 2")
    cycle = np.random.default_rng(seed).permutation(npus)
    destination = np.empty(npus, np.int64)
    # A cycle 2 0 1 sends from 2 to 0, from 0 to 1 and from 1 to 2: nobody sends to itself
    destination[cycle] = np.roll(cycle, -1)
    return destination


def _ends(destinations: Int64) -> tuple[Int64, Int64, Int64]:
    """Return NPU, SEND or RECV, and relative peer of each end of a message: by NPU, the send first, then by sender."""
    # destinations: int64[npus], receiver of each NPU's message, NOBODY = none.
    senders = np.flatnonzero(destinations != NOBODY)
    npu = np.concatenate([senders, destinations[senders]])
    other = np.concatenate([destinations[senders], senders])
    kind = np.repeat([SEND, RECV], len(senders))
    order = np.lexsort((other, kind, npu))
    return npu[order], kind[order], (other - npu)[order]


def _shared(npus: int, npu: Int64, kind: Int64, peer: Int64) -> tuple[Int32, list[tuple[Int64, Int64]]]:
    """Return the trace of each NPU, and kinds and peers of each distinct trace."""
    # npu, kind, peer: int64[ends], ends of messages by NPU.
    ptr = np.searchsorted(npu, np.arange(npus + 1)).tolist()
    number: dict[bytes, int] = {}
    own_rows = np.empty(npus, np.int32)
    distinct: list[tuple[Int64, Int64]] = []
    for i, (begin, end) in enumerate(pairwise(ptr)):
        # Peers are relative to the NPU, so that NPUs with equal distances have equal bytes
        key = kind[begin:end].tobytes() + peer[begin:end].tobytes()
        if key not in number:
            number[key] = len(distinct)
            distinct.append((kind[begin:end], peer[begin:end]))
        own_rows[i] = number[key]
    return own_rows, distinct
