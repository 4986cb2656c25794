"""Traces of messages without a model: incast, permutation, pairs, all-to-all, and Poisson arrivals.

Each message is a send at one NPU and a receive at another. A message may wait for a moment: its sender then has compute
nodes of the host that last from one moment to the next. Their durations are whole microseconds, as the format has them;
moments are rounded, not the gaps between, so that none is more than half a microsecond off and the load is as asked.
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from et import Block, TraceColumns, TraceTable, write_table
from inputs.limits import MAX_NPUS
from inputs.units import BITS_PER_BYTE, PS_PER_US, US_PER_S
from workload.errors import WorkloadError
from workload.generators.point_to_point.message_sizes import Sizes

Int64 = NDArray[np.int64]

MOST_MESSAGES = 10**8
MOST_LOAD = 2.0
_GAPS, _SIZES, _PEERS = range(3)
"""What random numbers are for; each has its own."""


class MessageSequence(NamedTuple):
    """Messages in the order in which each sender sends them.

    Attributes:
        npus: NPUs that take part, numbered from 0.
        src, dst: int64[m].
        bytes: int64[m].
        at_us: int64[m], before which a message is not sent; ascending for each sender.
        in_turn: each sender's message waits for the one before it to be done.
    """

    npus: int
    src: Int64
    dst: Int64
    bytes: Int64
    at_us: Int64
    in_turn: bool

    @property
    def nodes(self) -> int:
        """Of all traces, at most."""
        return len(self.src) * (2 if self.in_turn else 3)


def incast(npus: int, fan_in: int, rounds: int, sizes: Sizes, seed: int, receiver: int = 0) -> MessageSequence:
    """To one NPU from `fan_in` others, chosen by the seed, each `rounds` messages one after another.

    Raises:
        WorkloadError: more senders than there are, or a number out of range.
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
    """From each NPU to another one, to each from one, chosen by the seed.

    Raises:
        WorkloadError: a number out of range.
    """
    _check(npus, rounds * npus)
    order = np.argsort(_uniform(npus, seed, 0, _PEERS), kind="stable")
    dst = np.empty(npus, np.int64)
    dst[order] = np.roll(order, -1)  # one cycle through all: nobody sends to himself
    return _rounds(npus, np.arange(npus), dst, rounds, sizes, seed)


def pairs(npus: int, stride: int, rounds: int, sizes: Sizes, seed: int) -> MessageSequence:
    """Between NPUs i and i + stride, both ways.

    Raises:
        WorkloadError: NPUs do not divide into pairs so, or a number out of range.
    """
    _check(npus, rounds * npus)
    if stride < 1 or npus % (2 * stride):
        near = [s for s in range(npus // 2, 0, -1) if npus % (2 * s) == 0]
        would = f"one of {', '.join(map(str, near))}" if near else "an even number of NPUs"
        raise WorkloadError(f"pairs: stride is {stride}, of {npus} NPUs; expected {would}")
    src = np.arange(npus)
    return _rounds(npus, src, np.where(src // stride % 2 == 0, src + stride, src - stride), rounds, sizes, seed)


def all_to_all(npus: int, rounds: int, sizes: Sizes, seed: int) -> MessageSequence:
    """From each NPU to all others, beginning with the next one, one message after another.

    Raises:
        WorkloadError: a number out of range.
    """
    _check(npus, rounds * npus * (npus - 1))
    step = np.tile(np.arange(1, npus), npus)
    src = np.repeat(np.arange(npus), npus - 1)
    return _rounds(npus, src, (src + step) % npus, rounds, sizes, seed)


def poisson(npus: int, load: float, rate_bps: int, duration_ps: int, sizes: Sizes, seed: int) -> MessageSequence:
    """From each NPU to any other, as likely as each, at moments of a Poisson process.

    Args:
        npus: how many.
        load: share of rate_bps that each NPU offers in the long run.
        rate_bps: of an NPU's link.
        duration_ps: messages arrive before this.
        sizes: of messages.
        seed: of gaps, sizes and receivers.

    Raises:
        WorkloadError: a number out of range.
    """
    if not 0 < load <= MOST_LOAD:
        raise WorkloadError(f"poisson: load is {load:g}, expected more than 0, at most {MOST_LOAD:g}")
    mean_gap_us = sizes.mean_bytes * BITS_PER_BYTE / (load * rate_bps) * US_PER_S
    duration_us = duration_ps / PS_PER_US
    _check(npus, int(npus * min(duration_us / mean_gap_us, MOST_MESSAGES + 1)))
    found = []
    for npu in range(npus):
        at = _arrivals(duration_us, mean_gap_us, seed, npu)
        others = (_uniform(len(at), seed, npu, _PEERS) * (npus - 1)).astype(np.int64)
        size = sizes.at(_uniform(len(at), seed, npu, _SIZES))
        found.append((np.full(len(at), npu), others + (others >= npu), size, np.rint(at).astype(np.int64)))
    src, dst, size, at_us = (np.concatenate(column) for column in zip(*found, strict=True))
    return MessageSequence(npus, src, dst, size, at_us, in_turn=False)


def trace_of(messages: MessageSequence, npu: int, first_npu: int = 0) -> TraceTable:
    """An NPU's trace: receives, then waits and sends.

    Args:
        messages: of all.
        npu: of those that take part.
        first_npu: number of NPU 0 of `messages` on the fabric.
    """
    block = Block()
    for i in np.flatnonzero(messages.dst == npu).tolist():
        src = int(messages.src[i]) + first_npu
        block.recv(f"message{i}/from{src}", int(messages.bytes[i]), peer=src)
    now_us = 0
    waited: list[int] = []
    sent: list[int] = []
    for i in np.flatnonzero(messages.src == npu).tolist():
        gap_us = int(messages.at_us[i]) - now_us
        if gap_us:
            waited = [block.comp(f"message{i}/wait", duration_micros=gap_us, is_cpu_op=True, after=waited)]
            now_us = int(messages.at_us[i])
        dst = int(messages.dst[i]) + first_npu
        after = [*waited, *sent] if messages.in_turn else waited
        sent = [block.send(f"message{i}/to{dst}", int(messages.bytes[i]), peer=dst, after=after)]
    columns = TraceColumns(npu + first_npu)
    columns.stamp(block)
    return columns.table()


def write(messages: MessageSequence, out: Path, prefix: str, first_npu: int = 0) -> int:
    """Write the traces `<out>/<prefix>.<npu>.et` of NPUs that send or receive; returns how many.

    Files get their names when all are complete. With first_npu, traces of lower NPUs may lie there.

    Raises:
        WorkloadError: out cannot be written, holds other traces of that prefix, or NPUs are numbered beyond what runs.
    """
    if not 0 <= first_npu <= MAX_NPUS + 1 - messages.npus:
        raise WorkloadError(f"first NPU is {first_npu}, expected 0 to {MAX_NPUS + 1 - messages.npus}")
    taking_part = np.union1d(messages.src, messages.dst).tolist()
    names = {npu: f"{prefix}.{npu + first_npu}.et" for npu in taking_part}
    try:
        out.mkdir(parents=True, exist_ok=True)
        _refuse_leftovers(out, prefix, set(names.values()), first_npu)
        with tempfile.TemporaryDirectory(dir=out, prefix=".writing-") as staging:
            for npu in taking_part:
                write_table(Path(staging) / names[npu], trace_of(messages, npu, first_npu))
            for name in names.values():
                (Path(staging) / name).replace(out / name)
    except OSError as error:
        raise WorkloadError(f"{out}: {error.strerror or error}, expected a folder to write traces to") from error
    return len(names)


def _check(npus: int, messages: int) -> None:
    """Refuse what does not make traffic."""
    if not 2 <= npus <= MAX_NPUS:
        raise WorkloadError(f"traffic: {npus} NPUs, expected 2 to {MAX_NPUS}")
    if not 0 <= messages <= MOST_MESSAGES:
        raise WorkloadError(f"traffic: {messages:,} messages, expected at most {MOST_MESSAGES:,}")


def _rounds(npus: int, src: Int64, dst: Int64, rounds: int, sizes: Sizes, seed: int) -> MessageSequence:
    """The same pairs again and again, each sender's messages one after another."""
    count = rounds * len(src)
    size = sizes.at(_uniform(count, seed, 0, _SIZES))
    return MessageSequence(
        npus, np.tile(src, rounds), np.tile(dst, rounds), size, np.zeros(count, np.int64), in_turn=True
    )


def _arrivals(duration: float, mean_gap: float, seed: int, npu: int) -> NDArray[np.float64]:
    """Moments of a Poisson process."""
    block = int(duration / mean_gap * 1.1) + 64
    stream = _stream(seed, npu, _GAPS)
    at = np.cumsum(-np.log1p(-stream.random(block))) * mean_gap
    while at[-1] < duration:
        at = np.concatenate((at, at[-1] + np.cumsum(-np.log1p(-stream.random(block))) * mean_gap))
    return at[at < duration]


def _uniform(count: int, seed: int, npu: int, purpose: int) -> NDArray[np.float64]:
    return _stream(seed, npu, purpose).random(count)


def _stream(seed: int, npu: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, npu, purpose]))


def _refuse_leftovers(out: Path, prefix: str, names: set[str], first_npu: int) -> None:
    """Traces of another run would be read as part of this one."""
    for file in sorted(out.glob(f"{prefix}.*.et*")):
        number = file.name[len(prefix) + 1 :].split(".")[0]
        is_lower = number.isdecimal() and int(number) < first_npu
        if file.name not in names and not is_lower:
            raise WorkloadError(f"{file}: of another run, expected a folder without other traces named {prefix}")
