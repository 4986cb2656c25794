"""Every send must have its receive, or somebody waits for ever.

Each message has a hash; the hashes of all sends less those of all receives are 0 when every one has its counterpart. So
ranks compare one number. Only when it is not 0 do they look for the pair of NPUs and tell each other its messages.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from workload.errors import WorkloadError, first_of
from workload.exchange import Exchange, agree, alone
from workload.own import OwnTraces
from workload.view import SEND, TraceView

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]


class _Ends(NamedTuple):
    """Ends of m messages on the NPUs that run one trace.

    Attributes:
        row: int64[m], the node.
        pair: int64[m], sender times NPUs of the fabric plus receiver.
        tag: int64[m].
        seq: int64[m], the how-manieth with this pair and tag.
        size: int64[m].
        is_send: bool[m].
    """

    row: Int64
    pair: Int64
    tag: Int64
    seq: Int64
    size: Int64
    is_send: Mask


class _Sums(NamedTuple):
    """Hashes of sends less those of receives, mod 2^64, of p pairs of NPUs.

    Attributes:
        pair: int64[p], sorted.
        ends: uint64[p], of tag and place.
        sizes: uint64[p], of tag, place and size.
    """

    pair: Int64
    ends: UInt64
    sizes: UInt64


class _Message(NamedTuple):
    """One end of a message, in the order in which they are told."""

    tag: int
    seq: int
    is_receive: bool
    size: int
    node: str


def check_messages(own: OwnTraces, exchange: Exchange = alone) -> None:
    """Check that every send has its receive and the other way round.

    Args:
        own: traces of this rank's NPUs.
        exchange: with the other ranks.

    Raises:
        WorkloadError: an NPU sends to itself; its number in the trace is another's; a send without receive, a receive
            without send, or the two differ in size.
    """
    npus = len(own.trace_of_npu)
    excess = agree(exchange, lambda: sum(own.each(lambda view, users: _excess(view, users, npus))))
    if sum(exchange(excess)) % 2**64 == 0:
        return
    sums = own.each(lambda view, users: _sums(_ends(view, users, npus)))
    pair = _first_wrong(exchange(_by_pair(sums)))
    _tell(pair // npus, pair % npus, exchange(_messages(own, pair)))


def _ends(view: TraceView, users: Int64, npus: int) -> _Ends:
    many, k = len(users), len(view.p2p_rows)
    npu = np.repeat(users, k)
    row, peer, own, tag, seq = (
        np.tile(column, many).astype(np.int64)
        for column in (view.p2p_rows, view.p2p_peer, view.p2p_own, view.p2p_tag, view.p2p_seq)
    )
    wrong_ends = (
        (peer == npu, "sends to or receives from itself, expected another peer"),
        ((own >= 0) & (own != npu), "runs it, but its own end is another NPU's"),
    )
    errors = [_wrong_end(view, row, npu, wrong, text) for wrong, text in wrong_ends if np.any(wrong)]
    if errors:
        raise first_of(errors)
    is_send = view.kind[row] == SEND
    pair = np.where(is_send, npu * npus + peer, peer * npus + npu)
    return _Ends(row, pair, tag, seq, view.table.comm_size[row], is_send)


def _wrong_end(view: TraceView, row: Int64, npu: Int64, wrong: Mask, text: str) -> WorkloadError:
    at = int(np.argmax(wrong))
    r = int(row[at])
    ends = f"comm_src {view.table.comm_src[r]}, comm_dst {view.table.comm_dst[r]}"
    return WorkloadError(f"{view.node(r)}: NPU {npu[at]} {text} ({ends})", int(npu[at]))


def _excess(view: TraceView, users: Int64, npus: int) -> int:
    """Hashes of the sends less those of the receives, with everything in which they must agree."""
    if len(view.p2p_rows) == 0:
        return 0
    ends = _ends(view, users, npus)
    signed = _signed(_hash(ends.pair, ends.tag, ends.seq, ends.size), ends.is_send)
    return int(signed.sum(dtype=np.uint64))


def _sums(ends: _Ends) -> _Sums:
    without_size = _hash(ends.tag, ends.seq)
    return _Sums(
        ends.pair, _signed(without_size, ends.is_send), _signed(_hash(ends.tag, ends.seq, ends.size), ends.is_send)
    )


def _hash(*columns: Int64) -> UInt64:
    """uint64[m]: of the columns together; each step is that of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed += column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _signed(value: UInt64, is_send: Mask) -> UInt64:
    return np.where(is_send, value, np.negative(value))


def _by_pair(sums: Sequence[_Sums]) -> _Sums:
    """Sums of several, each pair once."""
    nothing = _Sums(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    pair, ends, sizes = (np.concatenate(column) for column in zip(nothing, *sums, strict=True))
    order = np.argsort(pair, kind="stable")
    first = np.flatnonzero(np.diff(pair[order], prepend=-1))
    if len(first) == 0:
        return nothing
    return _Sums(pair[order][first], np.add.reduceat(ends[order], first), np.add.reduceat(sizes[order], first))


def _first_wrong(of_ranks: Sequence[_Sums]) -> int:
    """The pair to tell: the least one with an end alone, else the least one with a size that differs."""
    total = _by_pair(of_ranks)
    wrong = total.ends if np.any(total.ends) else total.sizes
    return int(total.pair[np.argmax(wrong != 0)])


def _messages(own: OwnTraces, pair: int) -> list[_Message]:
    """Ends of the messages of a pair that this rank has."""
    npus = len(own.trace_of_npu)
    found = []
    for npu in divmod(pair, npus):
        if own.trace_of_npu[npu] >= 0:
            view = own.views[own.trace_of_npu[npu]]
            ends = _ends(view, np.array([npu]), npus)
            for i in np.flatnonzero(ends.pair == pair).tolist():
                message = int(ends.tag[i]), int(ends.seq[i]), not ends.is_send[i], int(ends.size[i])
                found.append(_Message(*message, view.node(int(ends.row[i]))))
    return found


def _tell(source: int, target: int, of_ranks: Sequence[list[_Message]]) -> NoReturn:
    """Raise the error of a pair's first message that is alone, else of the first with two sizes."""
    ends_of = defaultdict(list)
    for message in sorted(chain.from_iterable(of_ranks)):
        ends_of[message.tag, message.seq].append(message)
    for (tag, seq), ends in ends_of.items():
        if len(ends) == 1:
            what = f"receive {seq} on NPU {target} from NPU {source} with tag {tag} has no send there"
            if not ends[0].is_receive:
                what = f"send {seq} from NPU {source} to NPU {target} with tag {tag} has no receive there"
            raise WorkloadError(f"{ends[0].node}: {what}")
    send, receive = next(ends for ends in ends_of.values() if ends[0].size != ends[1].size)
    raise WorkloadError(
        f"{send.node}: NPU {source} sends {send.size} B, but NPU {target} expects {receive.size} B ({receive.node})"
    )
