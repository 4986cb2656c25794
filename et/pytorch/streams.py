"""Dependencies between streams of a device: order, and events that one stream records and another waits for.

Kineto's events of category cuda_sync name both streams of a wait, but most traces lack them. Without them a
cudaStreamWaitEvent names neither its stream nor its event, so its meaning is inferred from its place among the
launches: the next work launched on a stream may wait for the last work launched on another stream before the call. It
does if that work was over when the next began. Waits within the operator of a collective are on the collective's
own stream.
"""

import bisect
import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from et.pytorch.kineto import RESOLUTION_NS, Call, DeviceOp

_STREAM_WAIT = "Stream Wait Event"
_WAITS = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")


@dataclass
class StreamOrder:
    """Dependencies of device ops, by number, and how they were found."""

    after: dict[int, list[int]] = field(default_factory=dict)  # device ops that each device op awaits
    recorded: int = 0  # number of waits of one stream for another that Kineto records
    inferred: int = 0  # number of waits that were inferred from place and time


def stream_order(
    device_ops: Sequence[DeviceOp],
    launches: Mapping[int, Call],
    calls: Sequence[Call],
    waits: Sequence[Call],
    stream_of_call: Mapping[int, int],
) -> StreamOrder:
    """Find the dependencies between device ops.

    Args:
        device_ops: Device ops in order of their start times.
        launches: Launching call of each device op, by the op's number.
        calls: Calls of the runtime, in order of their start times.
        waits: Kineto's events of category cuda_sync.
        stream_of_call: Stream of each wait within a collective's operator, by the call's place in calls.
    """
    order = StreamOrder({number: [] for number in range(len(device_ops))})
    last: dict[int, int] = {}
    for number, op in enumerate(device_ops):
        if op.stream in last:
            order.after[number].append(last[op.stream])
        last[op.stream] = number
    stream_waits = [wait for wait in waits if wait.name == _STREAM_WAIT]
    if stream_waits:
        _add_recorded(order, device_ops, launches, calls, stream_waits)
    else:
        _add_inferred(order, device_ops, launches, calls, stream_of_call)
    return order


def _launched(device_ops: Sequence[DeviceOp], launches: Mapping[int, Call]) -> dict[int, tuple[list[int], list[int]]]:
    """Return, by stream, the launch times of its ops, in order, and their numbers."""
    found: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
    for number, op in enumerate(device_ops):
        found[op.stream].append((launches[number].start_ns if number in launches else op.start_ns, number))
    return {
        stream: ([at for at, _ in sorted(ops)], [number for _, number in sorted(ops)]) for stream, ops in found.items()
    }


def _add_recorded(
    order: StreamOrder,
    device_ops: Sequence[DeviceOp],
    launches: Mapping[int, Call],
    calls: Sequence[Call],
    waits: Sequence[Call],
) -> None:
    by_stream = _launched(device_ops, launches)
    at = {call.correlation: call.start_ns for call in calls}
    for wait in waits:
        stream, awaited = wait.args.get("stream"), wait.args.get("wait_on_stream")
        recorded = at.get(int(wait.args.get("wait_on_cuda_event_record_corr_id", -1)))
        if stream == awaited or stream not in by_stream or awaited not in by_stream or recorded is None:
            continue
        times, numbers = by_stream[stream]
        place = bisect.bisect_right(times, at.get(wait.correlation, wait.start_ns))
        times_before, before = by_stream[awaited]
        last = bisect.bisect_left(times_before, recorded) - 1
        if place < len(numbers) and last >= 0 and _is_over(device_ops[before[last]], device_ops[numbers[place]]):
            order.after[numbers[place]].append(before[last])
            order.recorded += 1


def _add_inferred(
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
            between = waits[bisect.bisect_right(times, since) : bisect.bisect_left(times, launched[place])]
            own = [at for at, wait_stream in between if wait_stream is None or wait_stream == stream]
            if not own:
                continue
            for other, (others_launched, others) in by_stream.items():
                last = bisect.bisect_left(others_launched, own[-1]) - 1
                if other == stream or last < 0:
                    continue
                if _is_over(device_ops[others[last]], device_ops[number]):
                    order.after[number].append(others[last])
                    order.inferred += 1


def _is_over(before: DeviceOp, after: DeviceOp) -> bool:
    """Return whether `before` was over when `after` began, as far as the clocks are precise."""
    return before.end_ns <= after.start_ns + RESOLUTION_NS
