"""Checks of each trace before a run: sizes, peers, tags and counts within the engine's limits."""

import numpy as np
from numpy.typing import NDArray

from nadi.et.arrays import Int32, Int64, Mask
from nadi.inputs.limits import MAX_BYTES, MAX_EQUAL_MESSAGES, TAGS
from nadi.workload.collectives.uneven.splits import check_splits
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import BARRIER
from nadi.workload.node_kinds import SEND
from nadi.workload.trace_sets.view import TraceView

_AT_MOST = f"at most {MAX_BYTES} bytes"


def check_sizes(view: TraceView, running_npus: Int64, npus: int) -> None:
    """Check sizes, peers and tags of one trace.

    Raises WorkloadError: comm_size is missing, above 64 TiB, or 0 (except for barriers and split sizes); split sizes do
    not cut it into integer bytes; or a peer, a tag, or a count of equal messages or collectives is missing or out of
    range.
    """
    size = view.table.comm_size[view.coll_rows]
    wrong = np.where(view.coll_uneven, size < 0, (size <= 0) & (view.coll_kind != BARRIER))
    _refuse(view, view.coll_rows, wrong, "comm_size", size, "more than 0")
    _refuse(view, view.coll_rows, size > MAX_BYTES, "comm_size", size, _AT_MOST)
    check_splits(view)
    _refuse(
        view, view.coll_rows, view.coll_seq >= MAX_EQUAL_MESSAGES, "number in its group", view.coll_seq, "below 2^20"
    )
    rows, size = view.p2p_rows, view.table.comm_size[view.p2p_rows]
    _refuse(view, rows, size < 0, "comm_size", size, "0 or more")
    _refuse(view, rows, size > MAX_BYTES, "comm_size", size, _AT_MOST)
    _check_peers(view, running_npus, npus)
    _refuse(view, rows, view.p2p_tag >= TAGS, "comm_tag", view.p2p_tag, "below 2^24")
    _refuse(view, rows, view.p2p_seq >= MAX_EQUAL_MESSAGES, "number among equal messages", view.p2p_seq, "below 2^20")


def _check_peers(view: TraceView, running_npus: Int64, npus: int) -> None:
    """Check the peers of the first and the last NPU that run a trace, which have the smallest and largest peers."""
    peer, is_send = view.p2p_peer, view.kind[view.p2p_rows] == SEND
    first, last = view.shift(int(running_npus[0])), view.shift(int(running_npus[-1]))
    wrong = (peer < 0) | (peer + first < 0) | (peer + last >= npus)
    for name, side in (("comm_dst", is_send), ("comm_src", ~is_send)):
        if np.any(wrong & side):
            at = int(np.argmax(wrong & side))
            number = int(peer[at])
            shifts = np.array([view.shift(npu) for npu in running_npus.tolist()])
            is_valid = (number + shifts >= 0) & (number + shifts < npus) & (number >= 0)
            npu = int(running_npus[np.argmin(is_valid)])
            value = "missing" if number == -1 else f"{number}{_shifted(view, npu, number)}"
            raise WorkloadError(
                f"{view.node(int(view.p2p_rows[at]))}: {name} is {value}, expected an NPU from 0 to {npus - 1}", npu
            )


def _shifted(view: TraceView, npu: int, peer: int) -> str:
    """Return a text with a peer's number for an NPU, "" if it is the number in the trace."""
    shift = view.shift(npu)
    return f" for NPU {view.example}, which means {peer + shift} for NPU {npu}" if shift else ""


def _refuse(
    view: TraceView, rows: Int32, is_wrong: Mask, quantity: str, values: NDArray[np.integer], expected: str
) -> None:
    """Raise WorkloadError for the first wrong row of a trace, with its quantity, value, and the expected values."""
    if np.any(is_wrong):
        at = int(np.argmax(is_wrong))
        value = "missing" if values[at] == -1 else values[at]
        raise WorkloadError(f"{view.node(int(rows[at]))}: {quantity} is {value}, expected {expected}")
