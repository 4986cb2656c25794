"""Traces of messages without a model: the patterns incast, permutation, pairs, all-to-all and random, and their traces.

`distributions` has the times and sizes of random messages.
"""

import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.et import Block, NameTable, TraceColumns, TraceTable, write_table
from nadi.inputs.arrays import Int64, Mask, pointers
from nadi.inputs.limits import MAX_NPUS
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_US, US_PER_S
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.point_to_point.distributions import Arrivals, Sizes
from nadi.workload.trace_sets.files import staged_traces
from nadi.workload.trace_sets.trace_set import TraceSet

# Traces of an NPU's messages, made column by column: lists of a million flows take seconds.
#
# Each row is a copy of one of three: a receive, a wait on the host, and a send, with some columns filled in later.


NODE_BYTES = 300  # memory in bytes per node while traces are made: twice what 3 million nodes take
_RECEIVE, _WAIT, _SEND = range(3)


def message_trace(
    npu: int,
    receives: tuple[Int64, Int64, Int64],
    sends: tuple[Int64, Int64, Int64, Int64],
    *,
    in_turn: bool,
    exact: bool,
) -> TraceTable:
    """Return the trace of an NPU: its receives, then its waits and sends.

    Args:
        npu: The number of the NPU.
        receives: The number, sender and bytes of each message that the NPU receives, int64[] each.
        sends: The number, receiver, bytes and time of each message that the NPU sends, int64[] each, sorted by time.
        in_turn: Whether a send follows the end of the send before it.
        exact: Whether times are numbers of operations, one per picosecond, instead of microseconds.
    """
    number, _, _, at = sends
    gaps = np.diff(at, prepend=0)
    waits = gaps > 0
    place = len(receives[0]) + np.arange(len(at)) + np.cumsum(waits)  # rows of sends; a wait is in the row before
    rows = len(receives[0]) + len(at) + int(waits.sum())
    kind = np.full(rows, _WAIT)
    kind[: len(receives[0])], kind[place] = _RECEIVE, _SEND
    columns = _copies(npu, kind)
    for other_end, (_, peer, size), own in (("comm_src", receives, _RECEIVE), ("comm_dst", sends[:3], _SEND)):
        columns[other_end][kind == own] = peer
        columns["comm_size"][kind == own] = size
    columns["num_ops" if exact else "duration_micros"][place[waits] - 1] = gaps[waits]
    dep_ptr, dep = _parents(rows, place, waits, in_turn=in_turn)
    names = [f"message{i}/from{peer}" for i, peer in zip(receives[0].tolist(), receives[1].tolist(), strict=True)]
    for i, peer, is_late in zip(number.tolist(), sends[1].tolist(), waits.tolist(), strict=True):
        names += [f"message{i}/wait", f"message{i}/to{peer}"] if is_late else [f"message{i}/to{peer}"]
    table = NameTable.of(name.encode() for name in names)
    return dataclasses.replace(_template(), **columns, names=table, dep_ptr=dep_ptr, dep=dep)


@cache
def _template() -> TraceTable:
    """Return a trace of NPU 0 with a row of each kind, in the order of _RECEIVE, _WAIT and _SEND."""
    block = Block()
    block.recv("", 1, peer=0)
    block.comp("", is_cpu_op=True)
    block.send("", 1, peer=0)
    columns = TraceColumns(0)
    columns.stamp(block)
    return columns.table()


def _copies(npu: int, kind: Int64) -> dict[str, Any]:
    """Return the columns of an NPU's rows of these kinds, without those of parents and names."""
    columns = {name: values[kind] for name, values in _template_columns().items()}
    columns["comm_src"][kind == _SEND] = columns["comm_dst"][kind == _RECEIVE] = npu
    return columns | {"node_id": np.arange(len(kind), dtype=np.uint64)}


@cache
def _template_columns() -> dict[str, Any]:
    """Return the columns of `_template` by name, without those of parents, names and numbers of nodes."""
    template = _template()
    columns = {field.name: getattr(template, field.name) for field in dataclasses.fields(template)}
    others = {"dep_ptr", "dep", "node_id"}
    return {name: values for name, values in columns.items() if isinstance(values, np.ndarray) and name not in others}


def _parents(rows: int, sends: Int64, waits: Mask, *, in_turn: bool) -> tuple[Int64, Any]:
    """Return dep_ptr and dep: a wait follows the wait before, a send the latest wait (in_turn: and the send before)."""
    own_waits = sends[waits] - 1
    latest = np.cumsum(waits) - 1  # of the waits before each send, -1 = none
    children, parents = [own_waits[1:]], [own_waits[:-1]]
    waited = latest >= 0
    children.append(sends[waited])
    parents.append(own_waits[latest[waited]])
    if in_turn:
        children.append(sends[1:])
        parents.append(sends[:-1])
    child, parent = np.concatenate(children), np.concatenate(parents)
    order = np.lexsort((parent, child))
    return pointers(np.bincount(child, minlength=rows)), parent[order].astype(np.int32)


# Traces of messages without a model: incast, permutation, pairs, all-to-all, and messages at random times.
#
# Each message is a send at one NPU and a receive at another. To send a message at a given time, the sender has compute
# nodes on the host whose durations are the gaps between the times. Files have durations in integer microseconds;
# `write` rounds the times and not the gaps, so that each time is off by at most half a microsecond and the load is as
# requested. Traces in memory have gaps in picoseconds, as operations of a host that does OPS_PER_S of them.


OPS_PER_S = 10**12  # operations per second of the host in traces in memory: one per picosecond
MAX_MESSAGES = 10**8
MAX_LOAD = 2.0
POISSON = Arrivals()
_GAPS, _SIZES, _PEERS = range(3)  # Purposes of random numbers, each with its own stream


class MessageSequence(NamedTuple):
    """Messages in each sender's order."""

    npus: int  # Number of NPUs that take part, numbered from 0
    src: Int64  # int64[m], number of the sending NPU
    dst: Int64  # int64[m], number of the receiving NPU
    bytes: Int64  # int64[m], message sizes in bytes
    at_us: NDArray[np.float64]  # float64[m], earliest send times in microseconds, ascending for each sender
    in_turn: bool  # Whether each sender's message waits until its previous message is sent

    @property
    def nodes(self) -> int:
        """Upper bound of the number of nodes of all traces together."""
        return len(self.src) * (2 if self.in_turn else 3)


def incast(npus: int, fan_in: int, rounds: int, sizes: Sizes, seed: int, receiver: int = 0) -> MessageSequence:
    """Return messages to one NPU from random others, which send at the same time.

    Args:
        npus: The number of NPUs that take part.
        fan_in: The number of senders.
        rounds: The number of consecutive messages from each sender to each of its receivers.
        sizes: The distribution of message sizes.
        seed: The seed of the random numbers.
        receiver: The number of the NPU that receives all messages.
    """
    _check(npus, rounds * fan_in)
    if not 1 <= fan_in < npus:
        raise WorkloadError(f"incast: fan-in is {fan_in}, expected 1 to {npus - 1}, of {npus} NPUs")
    if not 0 <= receiver < npus:
        raise WorkloadError(f"incast: receiver is {receiver}, expected 0 to {npus - 1}")
    order = np.argsort(_uniform(npus, seed, 0, _PEERS), kind="stable")
    senders = np.sort(order[order != receiver][:fan_in])
    return _rounds(npus, senders, np.full(fan_in, receiver), rounds, sizes, seed)


def permutation(npus: int, rounds: int, sizes: Sizes, seed: int) -> MessageSequence:
    """Return messages from each NPU to one other NPU of a random permutation without fixed points.

    Args:
        npus: The number of NPUs that take part.
        rounds: The number of consecutive messages from each sender to each of its receivers.
        sizes: The distribution of message sizes.
        seed: The seed of the random numbers.
    """
    _check(npus, rounds * npus)
    order = np.argsort(_uniform(npus, seed, 0, _PEERS), kind="stable")
    dst = np.empty(npus, np.int64)
    dst[order] = np.roll(order, -1)  # one cycle through all NPUs: none sends to itself
    return _rounds(npus, np.arange(npus), dst, rounds, sizes, seed)


def pairs(npus: int, stride: int, rounds: int, sizes: Sizes, seed: int) -> MessageSequence:
    """Return messages between the NPUs of pairs i and i + stride, in both directions.

    Args:
        npus: The number of NPUs that take part.
        stride: The difference of the numbers of a pair.
        rounds: The number of consecutive messages from each sender to each of its receivers.
        sizes: The distribution of message sizes.
        seed: The seed of the random numbers.
    """
    _check(npus, rounds * npus)
    if stride < 1 or npus % (2 * stride):
        valid = [shard for shard in range(npus // 2, 0, -1) if npus % (2 * shard) == 0]
        expected = f"one of {', '.join(map(str, valid))}" if valid else "an even number of NPUs"
        raise WorkloadError(f"pairs: stride is {stride}, of {npus} NPUs; expected {expected}")
    src = np.arange(npus)
    return _rounds(npus, src, np.where(src // stride % 2 == 0, src + stride, src - stride), rounds, sizes, seed)


def all_to_all(npus: int, rounds: int, sizes: Sizes, seed: int) -> MessageSequence:
    """Return messages from each NPU to all others sequentially, beginning with the next NPU.

    Args:
        npus: The number of NPUs that take part.
        rounds: The number of consecutive messages from each sender to each of its receivers.
        sizes: The distribution of message sizes.
        seed: The seed of the random numbers.
    """
    _check(npus, rounds * npus * (npus - 1))
    step = np.tile(np.arange(1, npus), npus)
    src = np.repeat(np.arange(npus), npus - 1)
    return _rounds(npus, src, (src + step) % npus, rounds, sizes, seed)


def random_messages(
    npus: int, load: float, rate_bps: int, duration_ps: int, sizes: Sizes, seed: int, arrivals: Arrivals = POISSON
) -> MessageSequence:
    """Return messages from each NPU to uniformly random others, at the times of an arrival process.

    All messages are sent before the end of the period.

    Args:
        npus: The number of NPUs that take part.
        load: The expected share of the rate of its link that each NPU sends, above 0.
        rate_bps: The rate of an NPU's link in bits per second.
        duration_ps: The length of the period in picoseconds.
        sizes: The distribution of message sizes.
        seed: The seed of the random numbers.
        arrivals: The arrival process of each NPU's messages.
    """
    if not 0 < load <= MAX_LOAD:
        raise WorkloadError(f"traffic: load is {load:g}, expected more than 0, at most {MAX_LOAD:g}")
    mean_gap_us = sizes.mean_bytes * BITS_PER_BYTE / (load * rate_bps) * US_PER_S
    duration_us = duration_ps / PS_PER_US
    _check(npus, int(npus * min(duration_us / mean_gap_us, MAX_MESSAGES + 1)))
    by_sender = []
    for npu in range(npus):
        at = arrivals.times(duration_us, mean_gap_us, _stream(seed, npu, _GAPS))
        others = (_uniform(len(at), seed, npu, _PEERS) * (npus - 1)).astype(np.int64)
        size = sizes.at(_uniform(len(at), seed, npu, _SIZES))
        by_sender.append((np.full(len(at), npu), others + (others >= npu), size, at))
    src, dst, size, at_us = (np.concatenate(column) for column in zip(*by_sender, strict=True))
    return MessageSequence(npus, src, dst, size, at_us, in_turn=False)


def traces_of(messages: MessageSequence, first_npu: int = 0, *, exact: bool) -> Iterator[tuple[int, TraceTable]]:
    """Yield the number and the trace of each NPU that sends or receives: its receives, then its waits and sends.

    Args:
        messages: The messages in each sender's order.
        first_npu: The fabric's number of NPU 0 of the messages.
        exact: Whether gaps are numbers of operations, one per picosecond, instead of microseconds.
    """
    by_src, by_dst = (np.argsort(ends, kind="stable") for ends in (messages.src, messages.dst))
    npus = np.union1d(messages.src, messages.dst)
    sends = np.split(by_src, np.searchsorted(messages.src[by_src], npus)[1:])
    receives = np.split(by_dst, np.searchsorted(messages.dst[by_dst], npus)[1:])
    at = np.rint(messages.at_us * PS_PER_US if exact else messages.at_us).astype(np.int64)
    for npu, own_sends, own_receives in zip(npus.tolist(), sends, receives, strict=True):
        received = own_receives, messages.src[own_receives] + first_npu, messages.bytes[own_receives]
        sent = own_sends, messages.dst[own_sends] + first_npu, messages.bytes[own_sends], at[own_sends]
        yield npu, message_trace(npu + first_npu, received, sent, in_turn=messages.in_turn, exact=exact)


def trace_set(messages: MessageSequence) -> TraceSet:
    """Return the traces of all NPUs, with exact gaps. Raises WorkloadError: there is no message.

    Args:
        messages: The messages in each sender's order.
    """
    tables: list[TraceTable | None] = [None] * messages.npus
    for npu, table in traces_of(messages, exact=True):
        tables[npu] = table
    return TraceSet.of(tables)


def write(messages: MessageSequence, out: Path, prefix: str, first_npu: int = 0) -> int:
    """Write the traces `<out>/<prefix>.<npu>.et` of NPUs that send or receive, and return their number.

    Files get their names when all are complete.

    Args:
        messages: The messages in each sender's order.
        out: The folder of the files, which may hold traces of NPUs with smaller numbers.
        prefix: The beginning of the files' names.
        first_npu: The fabric's number of NPU 0 of the messages.
    """
    if not 0 <= first_npu <= MAX_NPUS + 1 - messages.npus:
        raise WorkloadError(f"first NPU is {first_npu}, expected 0 to {MAX_NPUS + 1 - messages.npus}")
    names = {npu: f"{prefix}.{npu + first_npu}.et" for npu in np.union1d(messages.src, messages.dst).tolist()}

    def is_accepted(name: str) -> bool:
        """Return whether the trace called `name` has another prefix, or belongs to an NPU below the first."""
        number = name[len(prefix) + 1 :].split(".", maxsplit=1)[0]
        return not name.startswith(f"{prefix}.") or (number.isdecimal() and int(number) < first_npu)

    with staged_traces(out, list(names.values()), f"these traces named {prefix}", accepts=is_accepted) as staging:
        for npu, table in traces_of(messages, first_npu, exact=False):
            write_table(staging / names[npu], table)
    return len(names)


def _check(npus: int, messages: int) -> None:
    """Refuse numbers of NPUs and messages that are out of range."""
    if not 2 <= npus <= MAX_NPUS:
        raise WorkloadError(f"traffic: {npus} NPUs, expected 2 to {MAX_NPUS}")
    if not 0 <= messages <= MAX_MESSAGES:
        raise WorkloadError(f"traffic: {messages:,} messages, expected at most {MAX_MESSAGES:,}")


def _rounds(npus: int, senders: Int64, receivers: Int64, rounds: int, sizes: Sizes, seed: int) -> MessageSequence:
    """Return `rounds` messages from each sender to its receiver, in rounds; sizes are random."""
    count = rounds * len(senders)
    size = sizes.at(_uniform(count, seed, 0, _SIZES))
    return MessageSequence(
        npus, np.tile(senders, rounds), np.tile(receivers, rounds), size, np.zeros(count), in_turn=True
    )


def _uniform(count: int, seed: int, npu: int, purpose: int) -> NDArray[np.float64]:
    return _stream(seed, npu, purpose).random(count)


def _stream(seed: int, npu: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, npu, purpose]))
