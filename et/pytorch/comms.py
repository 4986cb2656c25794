"""Collectives and messages of one rank in a step: what they are, what issued them, and what executed them.

With NCCL an operator of the host (`record_param_comms`, or an annotation `nccl:NAME`) issues a call and launches a
kernel, which executes it on the device. With gloo a c10d operator issues it, and an annotation `gloo:NAME` on a thread
of gloo marks its execution.
"""

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nadi.et.pytorch import comm_calls
from nadi.et.pytorch.comm_calls import ON_HOST, RECORD, RECV, SEND, CommCall
from nadi.et.pytorch.host_trace import HostOp
from nadi.et.pytorch.kineto import HostOperator, KinetoTrace
from nadi.et.pytorch.streams import DeviceWork
from nadi.et.schema import CollectiveCommType

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
