"""Who waits for whom on a device: the order of streams, and events that one stream records and another waits for.

Kineto's events of category cuda_sync say both streams; most traces lack them. Without them a cudaStreamWaitEvent says
neither its stream nor its event, so what it may have meant is found by its place among the launches: the next work
launched on a stream may wait for the last work launched on another one before the call, and does if that was over
when it began. Waits within the operator of a collective are those of the collective's own stream.
"""

import bisect
import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from et.pytorch.kineto import Call, DeviceOp

_STREAM_WAIT = "Stream Wait Event"
_WAITS = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")
_CLOCK_NS = 1000
"""Two times of the device may be so far off, since Kineto counts microseconds."""


@dataclass
class StreamOrder:
    """What device ops come after, by number, and how that was found.

    Attributes:
        after: for each device op the device ops that it waits for.
        said: waits of one stream for another that Kineto says.
        inferred: those that were found by place and time.
    """

    after: dict[int, list[int]] = field(default_factory=dict)
    said: int = 0
    inferred: int = 0


def stream_order(
    device_ops: Sequence[DeviceOp],
    launches: Mapping[int, Call],
    calls: Sequence[Call],
    waits: Sequence[Call],
    stream_of_call: Mapping[int, int],
) -> StreamOrder:
    """Find the order.

    Args:
        device_ops: in order of their beginnings.
        launches: by number of a device op, the call that has launched it.
        calls: of the runtime, in order of their beginnings.
        waits: Kineto's events of category cuda_sync.
        stream_of_call: by place in calls, of waits within a collective's operator: its stream.
    """
    order = StreamOrder({number: [] for number in range(len(device_ops))})
    last: dict[int, int] = {}
    for number, op in enumerate(device_ops):
        if op.stream in last:
            order.after[number].append(last[op.stream])
        last[op.stream] = number
    said = [wait for wait in waits if wait.name == _STREAM_WAIT]
    if said:
        _as_said(order, device_ops, launches, calls, said)
    else:
        _as_inferred(order, device_ops, launches, calls, stream_of_call)
    return order


def _launched(device_ops: Sequence[DeviceOp], launches: Mapping[int, Call]) -> dict[int, tuple[list[int], list[int]]]:
    """By stream: when its ops were launched, in order, and their numbers."""
    found: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
    for number, op in enumerate(device_ops):
        found[op.stream].append((launches[number].start_ns if number in launches else op.start_ns, number))
    return {
        stream: ([at for at, _ in sorted(some)], [number for _, number in sorted(some)])
        for stream, some in found.items()
    }


def _as_said(
    order: StreamOrder,
    device_ops: Sequence[DeviceOp],
    launches: Mapping[int, Call],
    calls: Sequence[Call],
    waits: Sequence[Call],
) -> None:
    by_stream = _launched(device_ops, launches)
    at = {call.correlation: call.start_ns for call in calls}
    for wait in waits:
        stream, of = wait.args.get("stream"), wait.args.get("wait_on_stream")
        recorded = at.get(int(wait.args.get("wait_on_cuda_event_record_corr_id", -1)))
        if stream == of or stream not in by_stream or of not in by_stream or recorded is None:
            continue
        times, numbers = by_stream[stream]
        place = bisect.bisect_right(times, at.get(wait.correlation, wait.start_ns))
        times_before, before = by_stream[of]
        last = bisect.bisect_left(times_before, recorded) - 1
        if place < len(numbers) and last >= 0 and _over(device_ops[before[last]], device_ops[numbers[place]]):
            order.after[numbers[place]].append(before[last])
            order.said += 1


def _as_inferred(
    order: StreamOrder,
    device_ops: Sequence[DeviceOp],
    launches: Mapping[int, Call],
    calls: Sequence[Call],
    stream_of_call: Mapping[int, int],
) -> None:
    by_stream = _launched(device_ops, launches)
    if len(by_stream) < 2:
        return
    waits = [(call.start_ns, stream_of_call.get(i)) for i, call in enumerate(calls) if call.name in _WAITS]
    times = [at for at, _ in waits]
    for stream, (launched, numbers) in by_stream.items():
        for place, number in enumerate(numbers):
            since = launched[place - 1] if place else -1
            some = waits[bisect.bisect_right(times, since) : bisect.bisect_left(times, launched[place])]
            own = [at for at, of in some if of is None or of == stream]
            if not own:
                continue
            for other, (others_launched, others) in by_stream.items():
                last = bisect.bisect_left(others_launched, own[-1]) - 1
                if other == stream or last < 0:
                    continue
                if _over(device_ops[others[last]], device_ops[number]):
                    order.after[number].append(others[last])
                    order.inferred += 1


def _over(before: DeviceOp, after: DeviceOp) -> bool:
    """Whether one was over when the other began, as far as clocks tell."""
    return before.end_ns <= after.start_ns + _CLOCK_NS
