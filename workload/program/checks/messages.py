"""Every send must have its receive, or somebody waits for ever.

Each message has a hash of tag, place and size. For each pair of NPUs the hashes of all sends less those of all receives
are 0 when every one has its counterpart; times a hash of the pair they make one number for all pairs, which the ranks
compare. Only when it is not 0 do they look for the pair and tell each other its messages. NPUs that share a trace share
the sums over its messages, too: these are the same for each of them, whatever number its peer has.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from et.checking.hashing import mixed
from workload.errors import WorkloadError, first_of
from workload.node_kinds import SEND
from workload.trace_sets.exchange import Exchange, agree, alone
from workload.trace_sets.own import OwnTraces
from workload.trace_sets.view import AS_WRITTEN, TraceView

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]


class _Kinds(NamedTuple):
    """The messages of a trace, k kinds: those with one peer and direction.

    Attributes:
        peer: int64[k], as the trace has it.
        is_send: bool[k].
        ends: uint64[k], hashes of tag and place together, mod 2^64.
        sizes: uint64[k], hashes of tag, place and size together.
    """

    peer: Int64
    is_send: Mask
    ends: UInt64
    sizes: UInt64


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
    sums = agree(exchange, lambda: own.each(lambda view, users: _sums(view, users, npus)))
    excess = sum(int(((mixed(of.pair) | np.uint64(1)) * of.sizes).sum(dtype=np.uint64)) for of in sums)
    if sum(exchange(excess)) % 2**64 == 0:
        return
    pair = _first_wrong(exchange(_by_pair(sums)))
    _tell(pair // npus, pair % npus, exchange(_messages(own, pair)))


def _sums(view: TraceView, users: Int64, npus: int) -> _Sums:
    """Of the NPUs that run a trace, whose ends of messages must be theirs."""
    _check_ends(view, users)
    kinds = _kinds(view)
    npu = np.repeat(users, len(kinds.peer))
    shift = np.repeat([view.shift(user) for user in users.tolist()], len(kinds.peer)).astype(np.int64)
    peer = np.tile(kinds.peer, len(users)) + shift
    is_send = np.tile(kinds.is_send, len(users))
    pair = np.where(is_send, npu * npus + peer, peer * npus + npu)
    return _Sums(pair, *(_signed(np.tile(column, len(users)), is_send) for column in (kinds.ends, kinds.sizes)))


def _kinds(view: TraceView) -> _Kinds:
    """Each place among equal messages is the same for all users: peers that are equal stay equal when they shift."""
    rows = view.p2p_rows
    size = view.table.comm_size[rows]
    key = view.p2p_peer.astype(np.int64) * 2 + (view.kind[rows] == SEND)
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    if len(first) == 0:
        nothing = np.zeros(0, np.uint64)
        return _Kinds(key, key > 0, nothing, nothing)
    ends = np.add.reduceat(mixed(view.p2p_tag, view.p2p_seq)[order], first)
    sizes = np.add.reduceat(mixed(view.p2p_tag, view.p2p_seq, size)[order], first)
    return _Kinds(key[order][first] >> 1, key[order][first] % 2 == 1, ends, sizes)


def _check_ends(view: TraceView, users: Int64) -> None:
    """Nobody sends to itself, and what a trace says of its own end is so for all who run it.

    Raises:
        WorkloadError: it is not; of the least NPU.
    """
    errors = []
    peer, own = view.p2p_peer, view.p2p_own
    to_itself = _least_equal(view, users, peer)
    if to_itself is not None:
        wrong = peer + view.shift(to_itself) == to_itself
        errors.append(_wrong_end(view, to_itself, wrong, "sends to or receives from itself, expected another peer"))
    other = _least_unequal(view, users, own[own >= 0])
    if other is not None:
        wrong = (own >= 0) & (own + view.shift(other) != other)
        errors.append(_wrong_end(view, other, wrong, "runs it, but its own end is another NPU's"))
    if errors:
        raise first_of(errors)


def _least_equal(view: TraceView, users: Int64, numbers: Int32) -> int | None:
    """The least of the users whose own number is among some that stand in the trace."""
    if view.example == AS_WRITTEN:
        found = users[np.isin(users, numbers)]
    else:
        found = users[:1] if np.any(numbers == view.example) else users[:0]
    return int(found[0]) if len(found) else None


def _least_unequal(view: TraceView, users: Int64, numbers: Int32) -> int | None:
    """The least of the users for whom one of some numbers that stand in the trace is not its own."""
    distinct = np.unique(numbers)
    if len(distinct) != 1:
        found = users[: len(distinct)]
    elif view.example == AS_WRITTEN:
        found = users[users != distinct[0]]
    else:
        found = users[: int(distinct[0] != view.example)]
    return int(found[0]) if len(found) else None


def _wrong_end(view: TraceView, npu: int, wrong: Mask, text: str) -> WorkloadError:
    r = int(view.p2p_rows[np.argmax(wrong)])
    ends = f"comm_src {view.table.comm_src[r]}, comm_dst {view.table.comm_dst[r]}"
    written = f", as NPU {view.example} has it" if view.shift(npu) else ""
    return WorkloadError(f"{view.node(r)}: NPU {npu} {text} ({ends}{written})", npu)


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
    ends = divmod(pair, len(own.trace_of_npu))
    found = []
    for npu, other, is_send in (*zip(ends, reversed(ends), (True, False), strict=True),):
        if own.trace_of_npu[npu] >= 0:
            view = own.views[own.trace_of_npu[npu]]
            rows, size = view.p2p_rows, view.table.comm_size
            wanted = (view.p2p_peer + view.shift(npu) == other) & ((view.kind[rows] == SEND) == is_send)
            for i in np.flatnonzero(wanted).tolist():
                message = int(view.p2p_tag[i]), int(view.p2p_seq[i]), not is_send, int(size[rows[i]])
                found.append(_Message(*message, view.node(int(rows[i]))))
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
