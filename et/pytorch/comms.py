"""Device operations of a rank in a step, and its collectives and messages: what issued them, and what executed them.

With NCCL an operator of the host (`record_param_comms`, or an annotation `nccl:NAME`) issues a call and launches a
kernel, which executes it on the device. With gloo a c10d operator issues it, and an annotation `gloo:NAME` on a thread
of gloo marks its execution.
"""

import bisect
import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nadi.et.pytorch import comm_calls
from nadi.et.pytorch.comm_calls import ON_HOST, RECORD, RECV, SEND, CommCall
from nadi.et.pytorch.host_trace import HostOp
from nadi.et.pytorch.kineto import RESOLUTION_NS, Call, DeviceOp, HostOperator, KinetoTrace
from nadi.et.schema import CollectiveCommType

# Device operations of a step: the call that launched each, the host operator around that call, and their order.
#
# A kernel has its launch's correlation id. The operator is the innermost one that is open on the launch's thread at the
# call. If the launch is not in the trace, it is the operator in the kernel's External id. Operations of a stream follow
# each other; those of different streams depend on each other by events that one records and another waits for.
#
# Kineto's events of category cuda_sync name both streams of a wait, but most traces lack them. Without them a
# cudaStreamWaitEvent names neither its stream nor its event, so its meaning is inferred from its place among the
# launches: the next work launched on a stream may wait for the last work launched on another stream before the call. It
# does if that work was over when the next began. Waits in a collective's operator are on its stream.

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


_KIND_ON_HOST = {int(CollectiveCommType.REDUCE_SCATTER): int(CollectiveCommType.ALL_REDUCE)}
"""Gloo executes a reduce-scatter as an all-reduce, and records it as one."""
_FUNCTIONAL = "_c10d_functional::"


@dataclass(slots=True)
class Comm:
    """One call of a collective, send or receive, and its execution."""

    call: CommCall  # kind, size and members of the call
    issuer: int  # number of Kineto's operator that issued it, -1 = unknown
    name: str  # name of its node
    kernel: int = -1  # number of the device op that executes it, -1 = none
    on_host: int = -1  # number of Kineto's operator that executes it on the host, -1 = none
    # begin and end of its execution on the rank's own clock; both 0 if it was not executed
    start_ns: int = 0
    end_ns: int = 0


@dataclass
class Comms:
    """Collectives and messages of a rank."""

    calls: list[Comm] = field(default_factory=list)  # the calls in order of issue
    # places in `calls` by number of the device op; several where one kernel executes a group of calls
    of_kernel: dict[int, list[int]] = field(default_factory=dict)
    carriers: set[int] = field(default_factory=set)  # operators that execute calls on the host, and those within them
    lost: list[str] = field(default_factory=list)  # sentence for each record of communication of an unknown kind


def find(
    kineto: KinetoTrace, linked: Mapping[int, HostOp], device_work: DeviceWork, begin_ns: int, end_ns: int
) -> Comms:
    """Find the calls whose operators begin in a period.

    Args:
        kineto: The Kineto trace of a rank.
        linked: The operator of the host trace for each linked operator of Kineto, by number.
        device_work: The device operations of the period.
        begin_ns: The begin of the period on the rank's clock.
        end_ns: The end of the period on the rank's clock.
    """
    comms = Comms()
    place_of: dict[int, int] = {}
    for number, op in enumerate(kineto.ops):
        if not begin_ns <= op.start_ns < end_ns:
            continue
        found = comm_calls.backend_and_kind(op.name)
        if op.name != RECORD and found is None:
            continue
        if found is not None and found[1] is None and "coalesced" not in op.name:
            comms.lost.append(f"{op.name}: no known collective has this name")
        # An annotation within a record describes the same call
        above = next((n for n in kineto.enclosing(op.parent) if n in place_of), None)
        if above is not None:
            host = linked.get(number)
            inner = comm_calls.call_of_host(host) if host is not None else None
            complete(comms.calls[place_of[above]], op.name, inner or comm_calls.call_of_kineto(op.name, op.args))
            continue
        call = _call(op, linked.get(number))
        if call is None:
            continue
        place_of[number] = len(comms.calls)
        comms.calls.append(Comm(call, number, op.name if op.name != RECORD else call.name))
        if found is not None and found[0] in ON_HOST:
            comms.calls[-1].on_host = number
            comms.calls[-1].start_ns, comms.calls[-1].end_ns = op.start_ns, op.end_ns
    issuing = [n for n, op in enumerate(kineto.ops) if begin_ns <= op.start_ns < end_ns and op.name[:6] == "c10d::"]
    _issue_on_host(kineto, linked, comms, issuing)
    # by time of issue, because gloo's threads may begin two calls in another order on each rank
    order = sorted(range(len(comms.calls)), key=lambda place: kineto.ops[comms.calls[place].issuer].start_ns)
    new_place = {place: number for number, place in enumerate(order)}
    comms.calls[:] = [comms.calls[place] for place in order]
    place_of = {number: new_place[place] for number, place in place_of.items()}
    _give_kernels(kineto, device_work, comms, place_of)
    comms.carriers = {comm.on_host for comm in comms.calls if comm.on_host >= 0}
    for number, op in enumerate(kineto.ops):
        if op.parent in comms.carriers:
            comms.carriers.add(number)
    return comms


def _call(op: HostOperator, host_op: HostOp | None) -> CommCall | None:
    """Return the call that an operator issues, from the host trace if that has it, otherwise from Kineto."""
    from_host = comm_calls.call_of_host(host_op) if host_op is not None else None
    from_kineto = comm_calls.call_of_kineto(op.name, op.args)
    if from_host is None:
        return from_kineto if from_kineto is not None or op.name != RECORD else comm_calls.call_of_record(op.args)
    if from_kineto is None:
        return from_host
    return replace(
        from_host,
        ranks=from_host.ranks or from_kineto.ranks,
        group=from_host.group or from_kineto.group,
        group_size=from_host.group_size or from_kineto.group_size,
        size_bytes=from_kineto.size_bytes if from_host.size_bytes < 0 else from_host.size_bytes,
        dtype=from_host.dtype or from_kineto.dtype,
    )


def complete(comm: Comm, name: str, inner: CommCall | None) -> None:
    """Add to a call what the annotation within its record has and the record lacks.

    Args:
        comm: The call, which is changed.
        name: The name of the annotation.
        inner: The annotation's own call; None if its kind is unknown.
    """
    comm.name = name if ":" in name else comm.name
    if inner is not None:
        outer = comm.call
        kind, call_name = (inner.kind, inner.name) if outer.kind == comm_calls.UNKNOWN else (outer.kind, outer.name)
        size = outer.size_bytes if outer.size_bytes > 0 else max(outer.size_bytes, inner.size_bytes)
        comm.call = replace(outer, kind=kind, name=call_name, size_bytes=size, dtype=outer.dtype or inner.dtype)


def _issue_on_host(kineto: KinetoTrace, linked: Mapping[int, HostOp], comms: Comms, c10d_ops: Sequence[int]) -> None:
    """Find the c10d operators that issued what the host's threads execute, and take over their information."""
    waiting: dict[int, list[int]] = collections.defaultdict(list)
    issued = sorted(
        (comm for comm in comms.calls if comm.on_host >= 0),
        key=lambda comm: (kineto.ops[comm.on_host].rf_id, comm.start_ns),
    )
    for number in c10d_ops:
        kind = comm_calls.kind_named(kineto.ops[number].name)
        if kind is not None:
            waiting[_KIND_ON_HOST.get(kind, kind)].append(number)
    for comm in issued:
        # A thread executes a call after an operator of the same kind has issued it, in order of issue
        before = [number for number in waiting[comm.call.kind] if kineto.ops[number].start_ns <= comm.start_ns]
        if comm.call.kind in {SEND, RECV} or not before:
            above = kineto.ops[comm.on_host].parent
            before = [above] if above >= 0 and kineto.ops[above].name.startswith("c10d::") else before
        if not before:
            continue
        comm.issuer = before[0]
        if before[0] in waiting[comm.call.kind]:
            waiting[comm.call.kind].remove(before[0])
        op = kineto.ops[comm.issuer]
        host = linked.get(comm.issuer)
        values = host.inputs if host is not None else op.args.get("Concrete Inputs", ())
        comm.call = comm_calls.with_issuer(comm.call, op.name, values)
        if op.parent >= 0 and kineto.ops[op.parent].name.startswith(_FUNCTIONAL):
            above_host = linked.get(op.parent)
            values = above_host.inputs if above_host else kineto.ops[op.parent].args.get("Concrete Inputs", ())
            comm.call = replace(comm.call, group=comm_calls.functional_group(values))
        names = (kineto.ops[n].name for n in kineto.enclosing(comm.issuer))
        prefix = comm_calls.GROUP_ANNOTATION
        named = next((name.removeprefix(prefix) for name in names if name.startswith(prefix)), "")
        if named:
            comm.call = replace(comm.call, group=named)


def _give_kernels(kineto: KinetoTrace, device_work: DeviceWork, comms: Comms, place_of_op: Mapping[int, int]) -> None:
    """Find what each NCCL kernel executes: the call around its launch, or all calls that were grouped before it."""
    taken: set[int] = set()
    for number in sorted(
        range(len(device_work.ops)), key=lambda n: device_work.launches[n].start_ns if n in device_work.launches else 0
    ):
        op = device_work.ops[number]
        kind = comm_calls.kernel_kind(op.name)
        if kind is None:
            continue
        caller = device_work.caller.get(number, -1)
        places = [place_of_op[n] for n in kineto.enclosing(caller) if n in place_of_op][:1]
        if not places:
            call = comm_calls.call_of_kineto(op.name, op.args)
            grouped = []
            if number in device_work.launches:  # calls that the launching thread has issued before
                launch = device_work.launches[number]
                for place, comm in enumerate(comms.calls):
                    issuer = kineto.ops[comm.issuer]
                    is_before = issuer.thread == launch.thread and issuer.start_ns <= launch.start_ns
                    grouped += [place] * (is_before and place not in taken and comm.on_host < 0)
            # Only a coalescing operator launches one kernel for several calls
            names = [kineto.ops[n].name.lower() for n in kineto.enclosing(caller)]
            if grouped and any("coalesced" in name or "batch" in name for name in names):
                places = grouped
            elif call is not None:
                places = [len(comms.calls)]
                comms.calls.append(Comm(call, caller, call.name))
        if not places:
            comms.lost.append(f"{op.name[:60]}: no record of the host shows what it executes")
            continue
        taken.update(places)
        comms.of_kernel[number] = places
        for place in places:
            comm = comms.calls[place]
            comm.kernel, comm.start_ns, comm.end_ns = number, op.start_ns, op.end_ns
