"""Device operations of a step: the call that launched each, the host operator around that call, and the order.

A kernel has its launch's correlation id. The operator is the innermost one that is open on the launch's thread at the
call. If the launch is not in the trace, it is the operator in the kernel's External id.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from et.pytorch.kineto import RESOLUTION_NS, Call, DeviceOp, KinetoTrace

_BLOCKING_CALLS = ("Synchronize", "cudaMemcpy", "hipMemcpy", "cudaFree", "hipMemcpyWithStream")
_ASYNC = "Async"


@dataclass
class DeviceWork:
    """Device operations of a step."""

    ops: list[DeviceOp] = field(default_factory=list)  # operations in order of their start times
    launches: dict[int, Call] = field(default_factory=dict)  # launching call of each op, by the op's number
    # number of Kineto's operator that launched each op, by the op's number; ops without one are left out
    caller: dict[int, int] = field(default_factory=dict)
    # ops of an earlier step that were still running when this step began
    left_over: list[DeviceOp] = field(default_factory=list)
    # reason why no operator of the host is known for an op, by the op's number
    lost: dict[int, str] = field(default_factory=dict)


def device_work(kineto: KinetoTrace, begin_ns: int, end_ns: int) -> DeviceWork:
    """Find the operations that were launched from begin_ns to end_ns.

    An op whose launch is not in the trace counts by its start time, and without a time limit if no step follows.
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
    """Return whether a call returns only when work of the device is done."""
    return any(part in call.name for part in _BLOCKING_CALLS) and _ASYNC not in call.name


def waited_copies(work: DeviceWork) -> dict[int, int]:
    """Return the copies whose launch returned only when they were done, by correlation: those to unpinned memory."""
    found = {}
    for number, call in work.launches.items():
        op = work.ops[number]
        blocks = _ASYNC not in call.name or "DtoH" in op.name or "Pageable" in op.name
        if "emcpy" in call.name and blocks and op.end_ns <= call.end_ns + RESOLUTION_NS:
            found[call.correlation] = number
    return found


class AwaitedOps:
    """The device ops that each blocking call awaits."""

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
        """Return the last op launched before a call on its stream, or on each stream if the trace does not name one.

        An op that was not over when the call returned is left out.
        """
        stream = self._stream_of.get(call.correlation)
        found = []
        for op_stream, (times, numbers) in self._by_stream.items():
            last = bisect.bisect_left(times, call.start_ns) - 1
            if stream is not None and op_stream != stream and "Device" not in call.name:
                continue
            if last >= 0 and self._ops[numbers[last]].end_ns <= call.end_ns + RESOLUTION_NS:
                found.append(numbers[last])
        return found

    @staticmethod
    def _launched(work: DeviceWork, number: int) -> int:
        return work.launches[number].start_ns if number in work.launches else work.ops[number].start_ns
