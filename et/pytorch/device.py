"""Device operations of a step: which call has launched each, within which operator of the host, and in which order.

A kernel has its launch's correlation id. The operator is the innermost one that is open on the launch's thread when it
is called; where the launch is not in the trace, the one that the kernel's External id names.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from et.pytorch.kineto import Call, DeviceOp, KinetoTrace

_SYNCHRONISE = ("Synchronize", "cudaMemcpy", "hipMemcpy", "cudaFree", "hipMemcpyWithStream")
_ASYNC = "Async"
_CLOCK_NS = 1000
"""Two times of the device may be so far off, since Kineto counts microseconds."""


@dataclass
class DeviceWork:
    """Device operations of a step.

    Attributes:
        ops: in order of their beginnings.
        launches: by number of an op its call.
        caller: by number of an op the number of Kineto's operator that has launched it, where there is one.
        left_over: ops of an earlier step that were not over when this one began.
        lost: by number of an op, why no operator of the host is known for it.
    """

    ops: list[DeviceOp] = field(default_factory=list)
    launches: dict[int, Call] = field(default_factory=dict)
    caller: dict[int, int] = field(default_factory=dict)
    left_over: list[DeviceOp] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)


def device_work(kineto: KinetoTrace, begin_ns: int, end_ns: int) -> DeviceWork:
    """Find what was launched from begin_ns to end_ns.

    An op whose launch is not in the trace counts by when it began; if nothing follows the step, however late that is.
    """
    is_last = all(op.start_ns < end_ns for op in kineto.ops)
    calls = {call.correlation: call for call in kineto.calls if call.correlation >= 0}
    external = {op.args.get("External id"): number for number, op in enumerate(kineto.ops)}
    work = DeviceWork()
    for op in kineto.device_ops:
        call = calls.get(op.correlation)
        at_ns = call.start_ns if call is not None else op.start_ns
        if at_ns < begin_ns or (at_ns >= end_ns and not (is_last and call is None)):
            if at_ns < begin_ns < op.end_ns:
                work.left_over.append(op)
            continue
        number = len(work.ops)
        work.ops.append(op)
        named = op.args.get("External id")
        if call is not None:
            work.launches[number] = call
            if call.op >= 0:
                work.caller[number] = call.op
            else:
                work.lost[number] = f"no operator is open on thread {call.thread} when {call.name} launches it"
        elif named is not None and named in external and named != op.correlation:
            work.caller[number] = external[named]
        else:
            work.lost[number] = f"no launch with correlation {op.correlation} in the trace"
    return work


def is_blocking(call: Call) -> bool:
    """Whether a call comes back only when work of the device is done."""
    return any(part in call.name for part in _SYNCHRONISE) and _ASYNC not in call.name


def waited_copies(work: DeviceWork) -> dict[int, int]:
    """Copies whose launch came back only when they were done, by correlation: to memory that is not pinned."""
    found = {}
    for number, call in work.launches.items():
        op = work.ops[number]
        blocks = _ASYNC not in call.name or "DtoH" in op.name or "Pageable" in op.name
        if "emcpy" in call.name and blocks and op.end_ns <= call.end_ns + _CLOCK_NS:
            found[call.correlation] = number
    return found


class AwaitedOps:
    """Of each blocking call the device ops that it has waited for."""

    def __init__(self, work: DeviceWork, waits: Sequence[Call]) -> None:
        self._ops = work.ops
        self._stream_of: Mapping[int, int | None] = {
            wait.correlation: wait.args.get("stream", wait.args.get("wait_on_stream"))
            for wait in waits
            if wait.name in {"Stream Sync", "Event Sync", "Stream Synchronize", "Event Synchronize"}
        }
        self._by_stream: dict[int, tuple[list[int], list[int]]] = {}
        for number, op in sorted(enumerate(work.ops), key=lambda item: self._launched(work, item[0])):
            times, numbers = self._by_stream.setdefault(op.stream, ([], []))
            times.append(self._launched(work, number))
            numbers.append(number)

    def by(self, call: Call) -> list[int]:
        """The last op launched before it on its stream; on each stream where the trace does not say which one.

        An op that was not over when the call came back was not waited for.
        """
        stream = self._stream_of.get(call.correlation)
        found = []
        for of, (times, numbers) in self._by_stream.items():
            last = bisect.bisect_left(times, call.start_ns) - 1
            if stream is not None and of != stream and "Device" not in call.name:
                continue
            if last >= 0 and self._ops[numbers[last]].end_ns <= call.end_ns + _CLOCK_NS:
                found.append(numbers[last])
        return found

    @staticmethod
    def _launched(work: DeviceWork, number: int) -> int:
        return work.launches[number].start_ns if number in work.launches else work.ops[number].start_ns
