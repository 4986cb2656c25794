"""What must hold between traces before a run, so that nobody waits for a message that never comes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workload.errors import WorkloadError
from workload.groups import GroupTable
from workload.kinds import BARRIER
from workload.view import SEND, TraceView

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

MOST_NPUS = 1 << 19
MOST_TAGS = 1 << 24
MOST_OF_ONE_KEY = 1 << 20


def check_sizes(view: TraceView, npus: int) -> None:
    """Check sizes, peers and tags of one trace.

    Raises:
        WorkloadError: comm_size missing or (collectives other than barriers) 0, a peer missing or out of range, a tag
            or a count of equal messages or collectives out of range.
    """
    size = view.table.comm_size[view.coll_rows]
    _refuse(view, view.coll_rows, (size <= 0) & (view.coll_kind != BARRIER), "comm_size", size, "more than 0")
    _refuse(view, view.coll_rows, view.coll_seq >= MOST_OF_ONE_KEY, "number in its group", view.coll_seq, "below 2^20")
    rows, size = view.p2p_rows, view.table.comm_size[view.p2p_rows]
    _refuse(view, rows, size < 0, "comm_size", size, "0 or more")
    peer, is_send = view.p2p_peer, view.kind[rows] == SEND
    wrong = (peer < 0) | (peer >= npus)
    for name, side in (("comm_dst", is_send), ("comm_src", ~is_send)):
        _refuse(view, rows, wrong & side, name, peer, f"an NPU from 0 to {npus - 1}")
    _refuse(view, rows, view.p2p_tag >= MOST_TAGS, "comm_tag", view.p2p_tag, "below 2^24")
    _refuse(view, rows, view.p2p_seq >= MOST_OF_ONE_KEY, "number among equal messages", view.p2p_seq, "below 2^20")


def check_collectives(views: Sequence[TraceView], trace_of_npu: Int32, groups: GroupTable) -> None:
    """Check that all members of each group issue the same collectives in the same order.

    Args:
        views: distinct traces.
        trace_of_npu: int32[npus], -1 = the NPU has none.
        groups: of these traces.

    Raises:
        WorkloadError: a member lacks a collective, or members disagree in kind or size.
    """
    owner = np.repeat(np.arange(len(trace_of_npu)), np.diff(groups.slot_ptr))
    slot = np.arange(len(owner)) - groups.slot_ptr[owner]
    by_group = np.argsort(groups.slot_group, kind="stable")
    users_ptr = np.searchsorted(groups.slot_group[by_group], np.arange(len(groups.names) + 1))
    for group, name in enumerate(groups.names):
        users = by_group[users_ptr[group] : users_ptr[group + 1]]
        if len(users) == 0:
            continue
        _check_presence(views, trace_of_npu, owner[users], slot[users], groups, group)
        _, first = np.unique(trace_of_npu[owner[users]], return_index=True)
        reference, *others = ((int(owner[u]), int(slot[u])) for u in users[np.sort(first)])
        for other in others:
            _compare(views, trace_of_npu, name, reference, other)


def check_messages(views: Sequence[TraceView], trace_of_npu: Int32) -> None:
    """Check that every send has its receive and the other way round.

    Args:
        views: distinct traces.
        trace_of_npu: int32[npus], -1 = the NPU has none.

    Raises:
        WorkloadError: an NPU sends to itself; its number in the trace is another's; a send without receive, a receive
            without send, or the two differ in size.
    """
    ends = [_ends(view, np.flatnonzero(trace_of_npu == t), len(trace_of_npu)) for t, view in _with_messages(views)]
    if not ends:
        return
    key, seq, is_send, npu, row = (np.concatenate(column) for column in zip(*ends, strict=True))
    order = np.lexsort((~is_send, seq, key))
    key, seq, is_send, npu, row = (column[order] for column in (key, seq, is_send, npu, row))
    pair = np.zeros(len(key), np.bool_)  # a send with its receive behind it
    pair[:-1] = (key[1:] == key[:-1]) & (seq[1:] == seq[:-1])
    alone = ~pair
    alone[1:] &= ~pair[:-1]
    if np.any(alone):
        at = int(np.argmax(alone))
        view, r = views[trace_of_npu[npu[at]]], int(row[at])
        raise WorkloadError(_alone(view, r, int(npu[at]), int(seq[at]), is_send=bool(is_send[at])))
    _check_equal_sizes(views, trace_of_npu, npu.reshape(-1, 2), row.reshape(-1, 2))


def _refuse(
    view: TraceView, rows: Int32, wrong: NDArray[np.bool_], what: str, found: NDArray[np.integer], expected: str
) -> None:
    if np.any(wrong):
        at = int(np.argmax(wrong))
        value = "missing" if found[at] == -1 else found[at]
        raise WorkloadError(f"{view.node(int(rows[at]))}: {what} is {value}, expected {expected}")


def _check_presence(
    views: Sequence[TraceView], trace_of_npu: Int32, users: Int64, slots: Int64, groups: GroupTable, group: int
) -> None:
    """Every member uses the group at all."""
    members = groups.group_member[groups.group_ptr[group] : groups.group_ptr[group + 1]]
    missing = np.setdiff1d(members, users)
    if len(missing):
        absent = int(missing[0])
        view, slot = views[trace_of_npu[users[0]]], int(slots[0])
        row = int(view.slot_rows(slot)[0])
        trace = trace_of_npu[absent]
        state = f"whose trace {views[trace].table.path} has no collective of this group" if trace >= 0 else "no trace"
        raise WorkloadError(
            f"{view.first_use(slot)}: {view.collective(row)}, the first of the group, has no counterpart "
            f"on member NPU {absent}: {state}"
        )


def _compare(
    views: Sequence[TraceView], trace_of_npu: Int32, group: str, a: tuple[int, int], b: tuple[int, int]
) -> None:
    """The collectives of two members, each given as (NPU, slot), are the same."""
    views_ab = [views[trace_of_npu[npu]] for npu, _ in (a, b)]
    rows = [view.slot_rows(slot) for view, (_, slot) in zip(views_ab, (a, b), strict=True)]
    common = min(len(r) for r in rows)
    kinds = [view.coll_kind[view.coll_slot == slot][:common] for view, (_, slot) in zip(views_ab, (a, b), strict=True)]
    sizes = [view.table.comm_size[r[:common]] for view, r in zip(views_ab, rows, strict=True)]
    differ = (kinds[0] != kinds[1]) | ((sizes[0] != sizes[1]) & (kinds[0] != BARRIER))
    if np.any(differ):
        k = int(np.argmax(differ))
        (view, other), (row, other_row) = views_ab, (int(r[k]) for r in rows)
        raise WorkloadError(
            f'{view.node(row)}: group "{group}": collective {k} on NPU {a[0]} is {view.collective(row)}, '
            f"but on NPU {b[0]} it is {other.collective(other_row)} ({other.node(other_row)})"
        )
    if len(rows[0]) != len(rows[1]):
        longer = 0 if len(rows[0]) > common else 1
        row, (missing, _) = int(rows[longer][common]), (b, a)[longer]
        view = views_ab[longer]
        raise WorkloadError(
            f'{view.node(row)}: group "{group}": {view.collective(row)}, collective {common} of the group, '
            f"has no counterpart on member NPU {missing}, which issues {common} ({views_ab[1 - longer].table.path})"
        )


def _with_messages(views: Sequence[TraceView]) -> list[tuple[int, TraceView]]:
    return [(t, view) for t, view in enumerate(views) if len(view.p2p_rows)]


def _ends(view: TraceView, npus_of_trace: Int64, npus: int) -> tuple[Int64, Int64, NDArray[np.bool_], Int64, Int64]:
    """The ends of messages on all NPUs that run a trace.

    Returns:
        key (sender, receiver and tag), seq, is_send, npu, row.
    """
    many, k = len(npus_of_trace), len(view.p2p_rows)
    npu = np.repeat(npus_of_trace, k)
    row, peer, own = (np.tile(column, many).astype(np.int64) for column in (view.p2p_rows, view.p2p_peer, view.p2p_own))
    is_send = view.kind[row] == SEND
    _refuse_end(view, row, npu, peer == npu, "sends to or receives from itself, expected another peer")
    _refuse_end(view, row, npu, (own >= 0) & (own != npu), "runs it, but its own end is another NPU's")
    source, target = np.where(is_send, npu, peer), np.where(is_send, peer, npu)
    key = (source * npus + target) * MOST_TAGS + np.tile(view.p2p_tag, many)
    return key, np.tile(view.p2p_seq, many).astype(np.int64), is_send, npu, row


def _refuse_end(view: TraceView, row: Int64, npu: Int64, wrong: NDArray[np.bool_], text: str) -> None:
    if np.any(wrong):
        at = int(np.argmax(wrong))
        r = int(row[at])
        ends = f"comm_src {view.table.comm_src[r]}, comm_dst {view.table.comm_dst[r]}"
        raise WorkloadError(f"{view.node(r)}: NPU {npu[at]} {text} ({ends})")


def _alone(view: TraceView, row: int, npu: int, seq: int, *, is_send: bool) -> str:
    tag = max(int(view.table.comm_tag[row]), 0)
    if is_send:
        return (
            f"{view.node(row)}: send {seq} from NPU {npu} to NPU {view.table.comm_dst[row]} with tag {tag} "
            f"has no receive there"
        )
    return (
        f"{view.node(row)}: receive {seq} on NPU {npu} from NPU {view.table.comm_src[row]} with tag {tag} "
        f"has no send there"
    )


def _check_equal_sizes(views: Sequence[TraceView], trace_of_npu: Int32, npu: Int64, row: Int64) -> None:
    """Sizes of pairs: npu and row are [pairs, 2], the send first."""
    size_ptr = np.cumsum([0, *(len(view.table) for view in views)])
    sizes = np.concatenate([view.table.comm_size for view in views])
    size = sizes[size_ptr[trace_of_npu[npu]] + row]
    differ = size[:, 0] != size[:, 1]
    if np.any(differ):
        at = int(np.argmax(differ))
        view, other = (views[t] for t in trace_of_npu[npu[at]])
        raise WorkloadError(
            f"{view.node(int(row[at, 0]))}: NPU {npu[at, 0]} sends {size[at, 0]} B, but NPU {npu[at, 1]} "
            f"expects {size[at, 1]} B ({other.node(int(row[at, 1]))})"
        )
