"""The smallest programs: one collective, or one message per NPU, for benchmarks and scenarios."""

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from et import CollectiveCommType, coll_node, metadata, table_of
from workload.check import MOST_NPUS
from workload.errors import WorkloadError
from workload.groups import resolve
from workload.kinds import BARRIER, kind_index
from workload.own import IDLE, own_traces
from workload.program import Program, Rows, assemble, build_program, empty_rows
from workload.schedules import ScheduleSet
from workload.settings import CollectiveSettings
from workload.view import RECV, SEND

Int64 = NDArray[np.int64]

NOBODY = -1


def collective_program(kind: str, npus: int, size_bytes: int, algorithm: str | None = None) -> Program:
    """One collective of all NPUs.

    Args:
        kind: see workload.kinds.KINDS.
        npus: members.
        size_bytes: the whole buffer S, also for all-gather and gather (as nccl-tests counts). A barrier has none.
        algorithm: its default for None.

    Raises:
        WorkloadError: unknown kind or algorithm, size_bytes not positive (barrier excepted), or too many NPUs.
    """
    row = kind_index(kind)
    comm_type = CollectiveCommType.BARRIER if row == BARRIER else CollectiveCommType(row)
    if size_bytes < 1 and row != BARRIER:
        raise WorkloadError(f"{kind} of {size_bytes} B: expected at least 1")
    settings = CollectiveSettings({kind: algorithm} if algorithm else {}, all_gather_size="total")
    node = coll_node(0, kind, comm_type, max(size_bytes, 0))
    return build_program([table_of(metadata(), [node])], np.zeros(npus, np.int32), npus, settings=settings)


def pairs_program(destination: ArrayLike, size_bytes: int) -> Program:
    """Every NPU sends one message at once, and receives those that are for it.

    Args:
        destination: int[npus], to whom each NPU sends, -1 = to nobody.
        size_bytes: of each message.

    Returns:
        A program whose traces hold the send, if any, and then the receives by sender. NPUs with equal distances share
        them.

    Raises:
        WorkloadError: a destination out of range or the NPU itself, or size_bytes negative.
    """
    to = np.asarray(destination, np.int64)
    npus = len(to)
    wrong = (to < NOBODY) | (to >= npus) | (to == np.arange(npus))
    if not 1 <= npus < MOST_NPUS:
        raise WorkloadError(f"{npus} NPUs: expected 1 to {MOST_NPUS - 1}")
    if np.any(wrong):
        npu = int(np.argmax(wrong))
        raise WorkloadError(f"destination {to[npu]} of NPU {npu}: expected another NPU from 0 to {npus - 1}, or -1")
    if size_bytes < 0:
        raise WorkloadError(f"messages of {size_bytes} B: expected 0 or more")
    own_rows, distinct = _shared(npus, *_ends(to))
    rows = [_message_rows(kind, peer, size_bytes) for kind, peer in distinct]
    groups = resolve(own_traces([], np.full(npus, IDLE, np.int32)), npus, {})
    return assemble(own_rows, rows, groups, ScheduleSet().pack())


def permutation(npus: int, seed: int = 0) -> Int64:
    """int64[npus]: a random destination for each NPU, all different and none its own (one random cycle).

    Raises:
        WorkloadError: fewer than two NPUs.
    """
    if npus < 2:
        raise WorkloadError(f"permutation of {npus} NPUs: expected at least 2")
    cycle = np.random.default_rng(seed).permutation(npus)
    destination = np.empty(npus, np.int64)
    destination[cycle] = np.roll(cycle, -1)
    return destination


def _ends(to: Int64) -> tuple[Int64, Int64, Int64]:
    """NPU, SEND or RECV, and relative peer of every end of a message: by NPU, the send first, then by sender."""
    senders = np.flatnonzero(to != NOBODY)
    npu = np.concatenate([senders, to[senders]])
    other = np.concatenate([to[senders], senders])
    kind = np.repeat([SEND, RECV], len(senders))
    order = np.lexsort((other, kind, npu))
    return npu[order], kind[order], (other - npu)[order]


def _shared(npus: int, npu: Int64, kind: Int64, peer: Int64) -> tuple[NDArray[np.int32], list[tuple[Int64, Int64]]]:
    """The trace of each NPU, and kinds and peers of each distinct trace."""
    ptr = np.searchsorted(npu, np.arange(npus + 1)).tolist()
    number: dict[bytes, int] = {}
    own_rows = np.empty(npus, np.int32)
    distinct: list[tuple[Int64, Int64]] = []
    for i, (begin, end) in enumerate(pairwise(ptr)):
        key = kind[begin:end].tobytes() + peer[begin:end].tobytes()
        if key not in number:
            number[key] = len(distinct)
            distinct.append((kind[begin:end], peer[begin:end]))
        own_rows[i] = number[key]
    return own_rows, distinct


def _message_rows(kind: Int64, peer: Int64, size_bytes: int) -> Rows:
    rows = empty_rows(len(kind))
    return rows._replace(
        kind=kind.astype(np.int8),
        bytes=np.full(len(kind), size_bytes, np.int64),
        peer=peer.astype(np.int32),
    )
