"""Device operations of a step: the call that launched each, the host operator around that call, and their order.

A kernel has its launch's correlation id. The operator is the innermost one that is open on the launch's thread at the
call. If the launch is not in the trace, it is the operator in the kernel's External id. Operations of a stream follow
each other; those of different streams depend on each other by events that one records and another waits for.

Kineto's events of category cuda_sync name both streams of a wait, but most traces lack them. Without them a
cudaStreamWaitEvent names neither its stream nor its event, so its meaning is inferred from its place among the
launches: the next work launched on a stream may wait for the last work launched on another stream before the call. It
does if that work was over when the next began. Waits in a collective's operator are on its stream.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nadi.et.pytorch.kineto import RESOLUTION_NS, Call, DeviceOp, KinetoTrace

_STREAM_WAIT = "Stream Wait Event"
_WAITS = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")
_BLOCKING_CALLS = ("Synchronize", "cudaMemcpy", "hipMemcpy", "cudaFree", "hipMemcpyWithStream")
_ASYNC = "Async"


@dataclass
class DeviceWork:
    """Device operations of a step."""

    ops: list[DeviceOp] = field(default_factory=list)  # operations in order of their start times
    launches: dict[int, Call] = field(default_factory=dict)  # launching call of each op, by the op's number
    # number of Kineto's operator that launched each op, by the op's number; ops without one are left out
    caller: dict[int, int] = field(default_factory=dict)
    left_over: list[DeviceOp] = field(default_factory=list)  # ops of an earlier step that ran when this one began
    lost: dict[int, str] = field(default_factory=dict)  # reason why an op has no known operator, by the op's number


@dataclass
class StreamOrder:
    """Dependencies of device ops, by number, and how they were found."""

    after: dict[int, list[int]] = field(default_factory=dict)  # device ops that each device op awaits
    recorded: int = 0  # number of waits of one stream for another that Kineto records
    inferred: int = 0  # number of waits that were inferred from place and time


def stream_order(work: DeviceWork, kineto: KinetoTrace, stream_of_call: Mapping[int, int]) -> StreamOrder:
    """Find the dependencies between device operations.

    Args:
        work: The device operations of a step.
        kineto: The Kineto trace of the rank.
        stream_of_call: The stream of the kernel that a collective launches, for each call within the collective's
            operator, by the call's number.
    """
    order = StreamOrder({number: [] for number in range(len(work.ops))})
    last: dict[int, int] = {}
    for number, op in enumerate(work.ops):
        if op.stream in last:
            order.after[number].append(last[op.stream])
        last[op.stream] = number
    if any(wait.name == _STREAM_WAIT for wait in kineto.waits):
        _add_recorded(order, work, kineto)
    else:
        _add_inferred(order, work, kineto, stream_of_call)
    return order


def _launched(work: DeviceWork) -> dict[int, tuple[list[int], list[int]]]:
    """Return, by stream, the launch times of its ops in ns, in order, and their numbers."""
    launched: dict[int, tuple[list[int], list[int]]] = {}
    times = [work.launches[n].start_ns if n in work.launches else op.start_ns for n, op in enumerate(work.ops)]
    for number in sorted(range(len(times)), key=times.__getitem__):
        of_stream = launched.setdefault(work.ops[number].stream, ([], []))
        of_stream[0].append(times[number])
        of_stream[1].append(number)
    return launched


def _add_recorded(order: StreamOrder, work: DeviceWork, kineto: KinetoTrace) -> None:
    """Add to the order the waits between streams that the Kineto trace records."""
    by_stream = _launched(work)
    at_ns = {call.correlation: call.start_ns for call in kineto.calls}
    for wait in kineto.waits:
        stream, awaited = wait.args.get("stream", -1), wait.args.get("wait_on_stream", -1)
        recorded_ns = at_ns.get(int(wait.args.get("wait_on_cuda_event_record_corr_id", -1)))
        is_known = wait.name == _STREAM_WAIT and stream in by_stream and awaited in by_stream
        if stream == awaited or not is_known or recorded_ns is None:
            continue
        times, numbers = by_stream[stream]
        place = bisect.bisect_right(times, at_ns.get(wait.correlation, wait.start_ns))
        times_before, before = by_stream[awaited]
        # The event stands for the last operation that was launched on the awaited stream before the event was recorded
        last = bisect.bisect_left(times_before, recorded_ns) - 1
        if place < len(numbers) and last >= 0 and _is_over(work.ops[before[last]], work.ops[numbers[place]]):
            order.after[numbers[place]].append(before[last])
            order.recorded += 1


def _add_inferred(order: StreamOrder, work: DeviceWork, kineto: KinetoTrace, stream_of_call: Mapping[int, int]) -> None:
    """Add the waits between streams that calls suggest; `stream_of_call` has the stream of a collective's own calls."""
    by_stream = _launched(work)
    waits = [(call.start_ns, stream_of_call.get(i)) for i, call in enumerate(kineto.calls) if call.name in _WAITS]
    times = [at_ns for at_ns, _ in waits]
    for stream, (launched, numbers) in by_stream.items():
        for place, number in enumerate(numbers):
            # Waits between the launches of two consecutive operations of the stream
            since = launched[place - 1] if place else -1
            between = waits[bisect.bisect_right(times, since) : bisect.bisect_left(times, launched[place])]
            # The waits between two launches on the stream that may be the stream's own
            own = [at_ns for at_ns, wait_stream in between if wait_stream is None or wait_stream == stream]
            for other, (others_launched, others) in by_stream.items() if own else ():
                last = bisect.bisect_left(others_launched, own[-1]) - 1
                if other != stream and last >= 0 and _is_over(work.ops[others[last]], work.ops[number]):
                    order.after[number].append(others[last])
                    order.inferred += 1


def _is_over(before: DeviceOp, after: DeviceOp) -> bool:
    """Return whether `before` was over when `after` began, as far as the clocks are precise."""
    return before.end_ns <= after.start_ns + RESOLUTION_NS


def device_work(kineto: KinetoTrace, begin_ns: int, end_ns: int) -> DeviceWork:
    """Find the device operations that were launched in a period.

    An op whose launch is not in the trace counts by its start time, and without a time limit if no step follows.

    Args:
        kineto: The Kineto trace of the rank.
        begin_ns: The begin of the period on the rank's clock.
        end_ns: The end of the period on the rank's clock.
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
    """Return whether a call returns only when work of the device is done.

    Args:
        call: A call of the CUDA runtime or driver.
    """
    return any(part in call.name for part in _BLOCKING_CALLS) and _ASYNC not in call.name


def waited_copies(work: DeviceWork) -> dict[int, int]:
    """Return the number of each copy whose launch returned only when the copy was done, by correlation.

    These are copies to and from unpinned memory.

    Args:
        work: The device operations of a step.
    """
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
        self._by_stream = _launched(work)  # launch times and numbers of ops

    def by(self, call: Call) -> list[int]:
        """Return the last device operation before a call, on the stream that the call awaits.

        If the trace does not name the stream, the result has the last operation of each stream. An operation that was
        not over when the call returned is left out.

        Args:
            call: A blocking call.
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
