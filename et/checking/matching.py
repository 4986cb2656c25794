"""What must match between NPUs, as arrays: ends of messages, and the collectives that the members of a group issue.

`nadi trace check` and the checks before a run call the same functions. Each message has a hash of tag, sequence number
and size. For each pair of NPUs, the sum of the hashes of all sends minus those of all receives is 0 if every message
has both ends. NPUs that share a trace share the sums over its messages, which do not depend on the peers' numbers.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nadi.et.order import occurrence
from nadi.et.schema import NodeType
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int32, Int64, Mask, UInt64, sums


@dataclasses.dataclass(frozen=True, eq=False)
class MessageNodes:
    """The p sends and receives of a trace in topological order."""

    row: Int32  # int32[p], row of the table
    is_send: Mask  # bool[p], whether it is a send
    peer: Int32  # int32[p], other end as written, -1 = missing
    own: Int32  # int32[p], own end as written, -1 = missing
    tag: Int32  # int32[p], tag, 0 where missing
    seq: Int32  # int32[p], number of earlier messages of the same direction, peer and tag
    size: Int64  # int64[p], bytes, -1 = missing

    @classmethod
    def of(cls, table: TraceTable, order: Int32) -> Self:
        """Return the messages of a trace.

        Args:
            table: The trace as a table of columns.
            order: The rows in topological order, int32[n].
        """
        type_ = table.type[order]
        row = order[(type_ == NodeType.COMM_SEND_NODE) | (type_ == NodeType.COMM_RECV_NODE)]
        is_send = table.type[row] == NodeType.COMM_SEND_NODE
        source, target = table.comm_src[row], table.comm_dst[row]
        peer, own = np.where(is_send, target, source), np.where(is_send, source, target)
        tag = np.maximum(table.comm_tag[row], 0)
        return cls(row, is_send, peer, own, tag, occurrence(is_send, peer, tag), table.comm_size[row])

    def with_peer(self, number: int, *, is_send: bool) -> Int64:
        """Return the indices of the messages with a peer, in order.

        Args:
            number: The number of the peer as written in the trace; none below 0 has messages.
            is_send: Whether to return the sends to it, else the receives from it.
        """
        return np.flatnonzero((self.peer == number) & (self.is_send == is_send) & (number >= 0))


class MessageSums(NamedTuple):
    """Hashes of sends minus those of receives, mod 2^64, for p pairs of NPUs."""

    pair: Int64  # int64[p], pairs as source * npus + target
    ends: UInt64  # uint64[p], differences for hashes of tag and sequence number
    sizes: UInt64  # uint64[p], differences for hashes of tag, sequence number and size


def message_sums(messages: MessageNodes, users: Int64, shifts: Int64, npus: int) -> MessageSums:
    """Return the sums of each NPU that runs a trace and each of its peers that exists.

    Args:
        messages: The messages of the trace.
        users: The NPUs that run the trace, int64[], ascending.
        shifts: The number added to peers for each of these NPUs, int64[users].
        npus: The number of NPUs.
    """
    # Sequence numbers are the same for all users of the trace, because equal peers stay equal when they shift
    ends = mixed(messages.tag, messages.seq)
    key, *hashes = sums(messages.peer.astype(np.int64) * 2 + messages.is_send, ends, mixed(ends, messages.size))
    peer, is_send = key >> 1, key % 2 == 1
    user, other = users[:, None], peer + shifts[:, None]
    # Sends and receives of one message have the same pair: source * npus + target
    pair = np.where(is_send, user * npus + other, other * npus + user)
    exists = (peer >= 0) & (other >= 0) & (other < npus)
    signed = (np.where(is_send, column, np.negative(column)) for column in hashes)
    return MessageSums(pair[exists], *(np.broadcast_to(column, pair.shape)[exists] for column in signed))


def by_pair(several_sums: Iterable[MessageSums]) -> MessageSums:
    """Return several sums as one, with each pair of NPUs once, ascending.

    Args:
        several_sums: The sums of traces or of ranks.
    """
    nothing = MessageSums(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    return MessageSums(*sums(*(np.concatenate(column) for column in zip(nothing, *several_sums, strict=True))))


def lack_peers(messages: MessageNodes, shifts: Int64, npus: int) -> Mask:
    """Return bool[p], messages whose peer is missing, or is no NPU for one of the NPUs that run the trace.

    Args:
        messages: The messages of the trace.
        shifts: The number added to peers for each NPU that runs the trace, int64[].
        npus: The number of NPUs.
    """
    return (messages.peer < 0) | (messages.peer + shifts.min() < 0) | (messages.peer + shifts.max() >= npus)


def wrong_owners(messages: MessageNodes, users: Int64, shifts: Int64) -> tuple[Mask, Mask]:
    """Return bool[p] twice: messages of an NPU with itself, and messages whose own end is another NPU's.

    Args:
        messages: The messages of the trace.
        users: The NPUs that run the trace, int64[], ascending.
        shifts: The number added to peers for each of these NPUs, int64[users].
    """
    # If peers shift, users minus shifts is the example for all; if they are as written, only one user may run it
    own_numbers = np.unique(users - shifts)
    with_itself = (messages.peer >= 0) & np.isin(messages.peer, own_numbers)
    return with_itself, (messages.own >= 0) & (~np.isin(messages.own, own_numbers) | (len(own_numbers) > 1))


def sequence_digests(group: NDArray[np.integer], columns: Sequence[NDArray[np.integer]], groups: int) -> UInt64:
    """Return uint64[groups, 2], a digest of the sequence of collectives in each group.

    Args:
        group: The group of each collective, int[c], from 0 to groups - 1.
        columns: What must be equal at all members, such as kinds and sizes, int[c] each.
        groups: The number of groups.
    """
    order = np.argsort(group, kind="stable")
    ordered = [column[order] for column in columns]
    ends = np.cumsum(np.bincount(group, minlength=groups)).tolist()
    digests = b"".join(
        hashlib.blake2b(b"".join(column[begin:end].tobytes() for column in ordered), digest_size=16).digest()
        for begin, end in zip([0, *ends], ends, strict=False)
    )
    return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def are_alike(digests: UInt64, begins: Int64) -> Mask:
    """Return for each run of digests whether all of them are equal.

    Args:
        digests: The digests, uint64[n, 2].
        begins: The first index of each run, int64[].
    """
    if len(begins) == 0:
        return np.zeros(0, np.bool_)
    # Digests of 2 words are all equal if in each word the smallest is the largest
    smallest, largest = (np.asarray(pick.reduceat(digests, begins, axis=0)) for pick in (np.minimum, np.maximum))
    return np.all(smallest == largest, axis=1)


def first_difference(texts: Sequence[str], others: Sequence[str]) -> int:
    """Return the first index at which two sequences differ; the shorter length if one begins with the other.

    Args:
        texts: The first sequence.
        others: The second sequence.
    """
    differing = (at for at, (text, other) in enumerate(zip(texts, others, strict=False)) if text != other)
    return next(differing, min(len(texts), len(others)))


def mixed(*columns: NDArray[np.integer]) -> UInt64:
    """Return uint64[n], a hash of each row, mixed as in splitmix64 (Steele, Lea and Flood, OOPSLA 2014).

    Args:
        *columns: The columns of the rows, int[n] each.
    """
    hashes = np.zeros(len(columns[0]), np.uint64)
    # Mixed after each column, so that (1, 2) and (2, 1) have different hashes
    for column in columns:
        hashes += column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes ^= hashes >> np.uint64(31)
    return hashes
