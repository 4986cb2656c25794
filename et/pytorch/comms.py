"""Collectives and messages of one rank in a step: what they are, who issued them, and what carried them out.

With NCCL an operator of the host (`record_param_comms`, or an annotation `nccl:NAME`) issues a call and launches a
kernel, which carries it out on the device. With gloo a c10d operator issues it and an annotation `gloo:NAME` on a
thread of gloo's carries it out.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from et.pytorch import comm_calls
from et.pytorch.comm_calls import ON_HOST, RECORD, RECV, SEND, CommCall
from et.pytorch.device import DeviceWork
from et.pytorch.host_trace import HostOp
from et.pytorch.kineto import HostOperator, KinetoTrace
from et.schema import CollectiveCommType

_KIND_ON_HOST = {int(CollectiveCommType.REDUCE_SCATTER): int(CollectiveCommType.ALL_REDUCE)}
"""Gloo carries a reduce-scatter out as an all-reduce, and then says that it is one."""
_FUNCTIONAL = "_c10d_functional::"


@dataclass(slots=True)
class Comm:
    """One call.

    Attributes:
        call: what it is.
        issuer: number of Kineto's operator that has issued it, -1 = not known.
        kernel: number of the device op that carries it out, -1 = none.
        on_host: number of Kineto's operator that carries it out on the host, -1 = none.
        start_ns, end_ns: when it was carried out, on the rank's own clock; both 0 where nothing did.
        name: of its node.
    """

    call: CommCall
    issuer: int
    name: str
    kernel: int = -1
    on_host: int = -1
    start_ns: int = 0
    end_ns: int = 0


@dataclass
class Comms:
    """Those of a rank.

    Attributes:
        calls: in order of issue.
        of_kernel: by number of a device op, places in calls; several where calls were put together.
        carriers: Kineto's operators that carry calls out on the host, and all within them.
        lost: what looks like communication and is none that is known, a sentence each.
    """

    calls: list[Comm] = field(default_factory=list)
    of_kernel: dict[int, list[int]] = field(default_factory=dict)
    carriers: set[int] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)


def find(kineto: KinetoTrace, linked: Mapping[int, HostOp], work: DeviceWork, begin_ns: int, end_ns: int) -> Comms:
    """The calls whose operators begin from begin_ns to end_ns."""
    comms = Comms()
    place_of: dict[int, int] = {}
    for number, op in enumerate(kineto.ops):
        if not begin_ns <= op.start_ns < end_ns:
            continue
        found = comm_calls.annotated(op.name)
        if op.name != RECORD and found is None:
            continue
        if found is not None and found[1] is None and "coalesced" not in op.name:
            comms.lost.append(f"{op.name}: no collective of this name is known")
        above = _nearest(kineto, op.parent, place_of)
        if above is not None:
            _complete(comms.calls[place_of[above]], op, linked.get(number))
            continue
        call = _call(op, linked.get(number))
        if call is None:
            continue
        place_of[number] = len(comms.calls)
        comms.calls.append(Comm(call, number, op.name if op.name != RECORD else call.name))
        if found is not None and found[0] in ON_HOST:
            comms.calls[-1].on_host = number
            comms.calls[-1].start_ns, comms.calls[-1].end_ns = op.start_ns, op.end_ns
    issuing = [
        n for n, op in enumerate(kineto.ops) if begin_ns <= op.start_ns < end_ns and op.name.startswith("c10d::")
    ]
    _issue_on_host(kineto, linked, comms, issuing)
    _order(kineto, comms, place_of)
    _give_kernels(kineto, work, comms, place_of)
    comms.carriers = _within(kineto, {comm.on_host for comm in comms.calls if comm.on_host >= 0})
    return comms


def _order(kineto: KinetoTrace, comms: Comms, place_of: dict[int, int]) -> None:
    """Sort the calls by when they were issued: gloo's threads may begin two of them in another order on each rank."""
    order = sorted(range(len(comms.calls)), key=lambda place: kineto.ops[comms.calls[place].issuer].start_ns)
    now = {place: number for number, place in enumerate(order)}
    comms.calls[:] = [comms.calls[place] for place in order]
    place_of.update({op: now[place] for op, place in place_of.items()})


def _call(op: HostOperator, host: HostOp | None) -> CommCall | None:
    """What an operator issues, by the host trace if it says so, else by Kineto."""
    said = comm_calls.of_host(host) if host is not None else None
    by_kineto = comm_calls.of_kineto(op.name, op.args)
    if said is None:
        return by_kineto if by_kineto is not None or op.name != RECORD else comm_calls.of_record(op.args)
    if by_kineto is None:
        return said
    return replace(
        said,
        ranks=said.ranks or by_kineto.ranks,
        group=said.group or by_kineto.group,
        group_size=said.group_size or by_kineto.group_size,
        size_bytes=by_kineto.size_bytes if said.size_bytes < 0 else said.size_bytes,
        dtype=said.dtype or by_kineto.dtype,
    )


def _complete(comm: Comm, op: HostOperator, host: HostOp | None) -> None:
    """What the annotation within a record says that the record does not."""
    comm.name = op.name if ":" in op.name else comm.name
    inner = comm_calls.of_host(host) if host is not None else None
    inner = inner or comm_calls.of_kineto(op.name, op.args)
    if inner is None:
        return
    said = comm.call
    kind = inner.kind if said.kind == comm_calls.UNKNOWN else said.kind
    name = inner.name if said.kind == comm_calls.UNKNOWN else said.name
    size = inner.size_bytes if said.size_bytes < 0 else said.size_bytes
    comm.call = replace(said, kind=kind, name=name, size_bytes=size, dtype=said.dtype or inner.dtype)


def _issue_on_host(kineto: KinetoTrace, linked: Mapping[int, HostOp], comms: Comms, issuing: Sequence[int]) -> None:
    """Find the c10d operators that have issued what the host's threads carry out, and take what they say."""
    waiting: dict[int, list[int]] = collections.defaultdict(list)
    issued = sorted(
        (comm for comm in comms.calls if comm.on_host >= 0),
        key=lambda comm: (kineto.ops[comm.on_host].rf_id, comm.start_ns),
    )
    for number in issuing:
        kind = comm_calls.kind_named(kineto.ops[number].name)
        if kind is not None:
            waiting[_KIND_ON_HOST.get(kind, kind)].append(number)
    for comm in issued:
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
        comm.call = comm_calls.from_issuer(comm.call, op.name, values)
        if op.parent >= 0 and kineto.ops[op.parent].name.startswith(_FUNCTIONAL):
            above_host = linked.get(op.parent)
            said = above_host.inputs if above_host else kineto.ops[op.parent].args.get("Concrete Inputs", ())
            comm.call = replace(comm.call, group=comm_calls.group_of(said))
        named = _group_annotation(kineto, comm.issuer)
        if named:
            comm.call = replace(comm.call, group=named)


def _group_annotation(kineto: KinetoTrace, number: int) -> str:
    """The process group that an annotation of `et.pytorch.collect` around an operator names; "" = none."""
    while number >= 0:
        name = kineto.ops[number].name
        if name.startswith(comm_calls.GROUP_ANNOTATION):
            return name.removeprefix(comm_calls.GROUP_ANNOTATION)
        number = kineto.ops[number].parent
    return ""


def _give_kernels(kineto: KinetoTrace, work: DeviceWork, comms: Comms, place_of: Mapping[int, int]) -> None:
    """Find what each NCCL kernel carries out: the call around its launch, else all those put together before."""
    taken: set[int] = set()
    for number in sorted(range(len(work.ops)), key=lambda n: work.launches[n].start_ns if n in work.launches else 0):
        op = work.ops[number]
        kind = comm_calls.kernel_kind(op.name)
        if kind is None:
            continue
        caller = work.caller.get(number, -1)
        above = _nearest(kineto, caller, place_of)
        places = [place_of[above]] if above is not None else []
        if not places:
            call = comm_calls.of_kineto(op.name, op.args)
            together = [
                place
                for place, comm in enumerate(comms.calls)
                if place not in taken and comm.on_host < 0 and _before(kineto, comm.issuer, work, number)
            ]
            if together and _is_together(kineto, caller):
                places = together
            elif call is not None:
                places = [len(comms.calls)]
                comms.calls.append(Comm(call, caller, call.name))
        if not places:
            comms.lost.append(f"{op.name[:60]}: nothing on the host says what it carries out")
            continue
        taken.update(places)
        comms.of_kernel[number] = places
        for place in places:
            comm = comms.calls[place]
            comm.kernel, comm.start_ns, comm.end_ns = number, op.start_ns, op.end_ns


def _is_together(kineto: KinetoTrace, number: int) -> bool:
    """Whether an operator, or one around it, puts calls together."""
    while number >= 0:
        if "coalesced" in kineto.ops[number].name.lower() or "batch" in kineto.ops[number].name.lower():
            return True
        number = kineto.ops[number].parent
    return False


def _before(kineto: KinetoTrace, issuer: int, work: DeviceWork, kernel: int) -> bool:
    """Whether a call was issued by the thread that launches a kernel, before it does."""
    launch = work.launches.get(kernel)
    op = kineto.ops[issuer]
    return launch is not None and op.thread == launch.thread and op.start_ns <= launch.start_ns


def _nearest(kineto: KinetoTrace, number: int, among: Iterable[int]) -> int | None:
    """The nearest of some operators that is this one or around it."""
    known = among if isinstance(among, dict | set) else set(among)
    while number >= 0:
        if number in known:
            return number
        number = kineto.ops[number].parent
    return None


def _within(kineto: KinetoTrace, tops: set[int]) -> set[int]:
    """These operators and all that they have called."""
    found = set(tops)
    for number, op in enumerate(kineto.ops):
        if op.parent in found:
            found.add(number)
    return found
