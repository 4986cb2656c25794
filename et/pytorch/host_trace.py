"""Host execution traces of every schema, and links of their operators to those of Kineto traces.

Up to 1.0.1 a node has its fields side by side (`parent`, `inputs`, `input_shapes`, ...). Since 1.0.2-chakra.0.0.4 the
parent is `ctrl_deps`, inputs and outputs are objects, and the rest is a list `attrs`, to which later schemas add
(1.0.3 and 1.1.0 the parameters of collectives, 1.1.1 strides and kernels). The fields that a node has decide how it is
read, so that a later schema that only adds fields is read too.

Source: pytorch/torch/csrc/profiler/standalone/execution_trace_observer.cpp.
"""

import collections
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, TypeVar

from nadi.et.errors import TraceError
from nadi.et.pytorch.kineto import HOST, KINETO, MERGED, Document, KinetoTrace

KNOWN_SCHEMAS = ("1.0.1", "1.0.2", "1.0.3", "1.1.0", "1.1.1")
PROCESS_GROUPS = "## process_group:init ##"
ROOTS = "[pytorch|profiler|"


@dataclass(frozen=True, slots=True)
class HostOp:
    """An operator that the host has called."""

    op_id: int  # id of the operator in the file
    name: str  # name of the operator, such as "aten::mm"
    parent: int  # op_id of the caller
    rf_id: int  # id of its record function, in order of calls
    thread: int  # number of the thread in the trace
    inputs: list[Any]  # input values; a tensor is [tensor id, storage id, offset, elements, bytes per element, device]
    input_types: list[Any]  # type of each input
    outputs: list[Any]  # output values, in the form of `inputs`
    attributes: Mapping[str, Any]  # all other attributes, by name


@dataclass(frozen=True)
class HostTrace:
    """The operators that one rank's host has called."""

    path: Path  # path of the file
    schema: str  # version of the file's schema
    pid: int  # id of the process, -1 = unknown
    ops: tuple[HostOp, ...]  # operators in order of calls, without the roots, which represent process and threads
    groups: Mapping[str, tuple[int, ...]]  # ranks of each group by name (id in old schemas); () = all
    group_sizes: Mapping[str, int]  # number of ranks of each process group, by its name

    @property
    def is_known(self) -> bool:
        """Whether the schema is one of KNOWN_SCHEMAS."""
        return self.schema.startswith(KNOWN_SCHEMAS)


def host_trace(document: Document) -> HostTrace:
    """Read a host trace; raise TraceError if a node lacks its id or name, or a field has the wrong kind.

    Args:
        document: A file of kind HOST.
    """
    ops, groups, sizes = [], {}, {}
    for number, node in enumerate(document.data["nodes"]):
        try:
            op = _op(node)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            found = f"{type(error).__name__} {error}"
            place = f"{document.path}: entry {number} of nodes"
            raise TraceError(f"{place}: {found}, expected a node of a host trace") from error
        if op.name == PROCESS_GROUPS:
            for group in _process_groups(op):
                name = str(group.get("pg_name", group.get("backend_id", "")))
                groups[name] = tuple(int(rank) for rank in group.get("ranks", ()))
                sizes[name] = int(group.get("group_size", len(groups[name])))
                # Old schemas name groups by this number
                if "backend_id" in group:
                    groups[str(group["backend_id"])], sizes[str(group["backend_id"])] = groups[name], sizes[name]
        elif not op.name.startswith(ROOTS):
            ops.append(op)
    # Ids of record functions count calls
    ops.sort(key=lambda op: (op.rf_id, op.op_id))
    pid = document.data.get("pid")
    return HostTrace(
        path=document.path,
        schema=str(document.data["schema"]),
        pid=pid if isinstance(pid, int) else -1,
        ops=tuple(ops),
        groups=groups,
        group_sizes=sizes,
    )


def _op(node: Mapping[str, Any]) -> HostOp:
    """Return the operator in a node of a host trace, of a new schema (with "attrs") or an old one."""
    if "attrs" in node:
        attributes = {entry["name"]: entry["value"] for entry in node["attrs"]}
        node_inputs, node_outputs = node["inputs"], node["outputs"]
        inputs, types, outputs = node_inputs["values"], node_inputs["types"], node_outputs["values"]
        parent = node["ctrl_deps"]
    else:
        own_fields = {"id", "name", "parent", "inputs", "input_types", "outputs"}
        attributes = {name: value for name, value in node.items() if name not in own_fields}
        inputs, types, outputs, parent = node["inputs"], node["input_types"], node["outputs"], node["parent"]
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not isinstance(types, list):
        raise TypeError("inputs or outputs that are no list")
    return HostOp(
        op_id=_int64(node["id"]),
        name=str(node["name"]),
        parent=_int64(parent),
        rf_id=_int64(attributes.pop("rf_id")),
        thread=_int64(attributes.pop("tid")),
        inputs=inputs,
        input_types=types,
        outputs=outputs,
        attributes=attributes,
    )


def _int64(value: Any) -> int:  # noqa: ANN401 - of JSON
    """Return a number of a node."""
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{str(number)[:20]}... has more than 64 bits")
    return number


def _process_groups(op: HostOp) -> list[dict[str, Any]]:
    """Return the process groups in a node; none if PyTorch has truncated its long text."""
    try:
        listed = json.loads(op.inputs[0])
    except (ValueError, IndexError, TypeError):
        return []
    return [group for group in listed if isinstance(group, dict)] if isinstance(listed, list) else []


# Separation of host traces that chakra_trace_link has merged with a Kineto trace into the two parts.
#
# In a merged file (ET+) operators have `ts`, `inclusive_dur` and `exclusive_dur` of Kineto. Each kernel, copy and
# memset is a node with `cat` and `stream` below the operator that launched it. The launches themselves are lost, and
# the time of a device node is that of its launch: a node begins when it has been launched and its stream has finished
# what was launched on it before. The files do not show which streams wait for others.
#
# Source: mlcommons/chakra, src/trace_link/trace_linker.py.


DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_NANOSECOND = 0.001  # a nanosecond in microseconds, the unit of `ts`
_MAX_MICROS = 2**53  # latest time that is exact as a floating-point number, in the year 2255
_USER_SCOPE = 7  # value of RecordScope::USER_SCOPE, which PyTorch gives annotations (aten/src/ATen/record_function.h)


def is_merged(document: Document) -> bool:
    """Return whether a host trace has nodes of the device, which only merged files have.

    Args:
        document: A file of kind HOST.
    """
    return any(isinstance(node, dict) and node.get("cat") in DEVICE for node in document.data["nodes"])


def separated(document: Document) -> tuple[Document, Document]:
    """Return the host trace and the Kineto trace that a file was merged from.

    The host trace is without nodes of the device and has a record function id for each operator; the Kineto trace has
    an event for each operator that has a time, each launch and each node of the device.

    Args:
        document: A merged file.
    """
    nodes = document.data["nodes"]
    for number, node in enumerate(nodes):
        if not isinstance(node, dict) or not isinstance(node.get("id"), int) or not isinstance(node.get("name"), str):
            raise TraceError(f"{document.path}: entry {number} of nodes: expected a node with id and name")
        times = [node.get("ts"), node.get("inclusive_dur")]
        is_timed = node.get("cat") in DEVICE or any(isinstance(time, float) for time in times)
        if is_timed and not all(map(_is_number, times)):
            raise TraceError(f"{document.path}: entry {number} of nodes: expected numbers as ts and inclusive_dur")
    host = _with_record_ids([node for node in nodes if node.get("cat") not in DEVICE])
    operators = {node["id"]: _event(node) for node in host if _has_time(node)}
    launched = sorted((node for node in nodes if node.get("cat") in DEVICE), key=lambda node: (node["ts"], node["id"]))
    events = [*operators.values(), *_device_events(launched, operators)]
    pid = document.data.get("pid", -1)
    return (
        Document(document.path, HOST, document.data | {"nodes": host}),
        Document(document.path, KINETO, {MERGED: True, "traceEvents": [event | {"pid": pid} for event in events]}),
    )


def _device_events(
    device_nodes: Sequence[Mapping[str, Any]], event_of_operator: Mapping[int, Mapping[str, Any]]
) -> list[Any]:
    """Return a launch, where its operator has a time, and a device event for each node of the device."""
    events = []
    free_at: dict[Any, float] = {}  # end of each stream's last operation
    for correlation, node in enumerate(device_nodes):
        parent = node.get("ctrl_deps", node.get("parent"))
        caller = event_of_operator.get(parent if isinstance(parent, int) else -1)
        if caller is not None:
            last = caller["ts"] + max(caller["dur"] - _NANOSECOND, 0)  # the operator is still open
            at = min(max(node["ts"], caller["ts"]), last)
            args = {"correlation": correlation}
            events.append(_complete("(launch)", "cuda_runtime", caller["tid"], at, 0, args))
        stream = node.get("stream")
        begin = max(node["ts"], free_at.get(stream, node["ts"]))
        # A stream executes one operation at a time
        free_at[stream] = begin + node["inclusive_dur"]
        args = {"correlation": correlation, "stream": stream if isinstance(stream, int) else 0}
        events.append(_complete(node["name"], node["cat"], args["stream"], begin, node["inclusive_dur"], args))
    return events


def _event(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Kineto event of an operator."""
    attributes = _attributes(node)
    category = "user_annotation" if attributes.get("scope") == _USER_SCOPE else "cpu_op"
    args = {"Record function id": attributes["rf_id"]}
    return _complete(node["name"], category, attributes.get("tid", 0), node["ts"], node["inclusive_dur"], args)


def _complete(name: str, category: str, thread: int, begin: float, micros: float, args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "tid": thread, "ts": begin, "dur": micros, "args": args}


def _with_record_ids(nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the nodes, each with a record function id of its own; nodes that lack one get a new one."""
    used: set[int] = set()
    free = 1 + max((rf_id for node in nodes if isinstance(rf_id := _attributes(node).get("rf_id"), int)), default=0)
    found = []
    for node in nodes:
        attributes = {"tid": 0} | _attributes(node)
        # Links by id need one id per operator
        if not isinstance(attributes.get("rf_id"), int) or attributes["rf_id"] < 1 or attributes["rf_id"] in used:
            attributes["rf_id"], free = free, free + 1
        used.add(attributes["rf_id"])
        if "attrs" in node:
            found.append(node | {"attrs": [{"name": name, "value": value} for name, value in attributes.items()]})
        else:
            found.append(node | {"tid": attributes["tid"], "rf_id": attributes["rf_id"]})
    return found


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's attributes by name: the list `attrs` of new schemas, the node itself in old ones."""
    listed = node.get("attrs", node)
    if isinstance(listed, dict):
        return dict(listed)
    entries = listed if isinstance(listed, list) else []
    return {entry["name"]: entry.get("value") for entry in entries if isinstance(entry, dict) and "name" in entry}


def _has_time(node: Mapping[str, Any]) -> bool:
    is_root = node["name"].startswith(ROOTS)
    return not is_root and _is_number(node.get("ts")) and _is_number(node.get("inclusive_dur"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_MICROS


# Links between host operators of the execution trace and operators of Kineto.
#
# Operators are linked by record function id if Kineto has it (PyTorch 2.1 and later) and the ids of both traces fit.
# Otherwise they are linked thread by thread and caller by caller, by the order and names of calls. Operators that only
# one of the traces has (ProfilerStep, annotations) are ignored.


T = TypeVar("T")

BY_ID, BY_ORDER, NOT_AT_ALL = "record function id", "order and name", "not linked"


@dataclass
class Links:
    """Links between Kineto's operators and the host's."""

    host: dict[int, HostOp] = field(default_factory=dict)  # operator of the host, by the number of Kineto's operator
    way: str = NOT_AT_ALL  # BY_ID, BY_ORDER or NOT_AT_ALL (no host trace, or no operator fits)
    windows: int = 0  # number of places of the Kineto trace that the host trace fits equally well; the first is used

    def span_ns(self, kineto: KinetoTrace) -> tuple[int, int]:
        """Return when the first linked operator begins and when the last one ends, in ns; (0, 0) if none is linked.

        Args:
            kineto: The Kineto trace whose operators are linked.
        """
        begins = min((kineto.ops[i].start_ns for i in self.host), default=0)
        return begins, max((kineto.ops[i].end_ns for i in self.host), default=0)


def link(host: HostTrace | None, kineto: KinetoTrace) -> Links:
    """Link the operators of the host trace of a rank with those of its Kineto trace.

    Ids of traces that were not recorded together, or that count differently, fit some operators by chance. So if they
    fit fewer than half of the operators that could be linked, operators are also linked by order and name, and the
    better of the two results is used.

    Args:
        host: The host trace; None if the rank does not have one.
        kineto: The Kineto trace.
    """
    if host is None or not host.ops:
        return Links()
    # Equal ids count only together with equal names
    by_id = {op.rf_id: op for op in host.ops if op.rf_id > 0}
    found = {i: by_id[op.rf_id] for i, op in enumerate(kineto.ops) if by_id.get(op.rf_id) is not None}
    found = {i: op for i, op in found.items() if op.name == kineto.ops[i].name}
    links = Links(found, BY_ID) if found else Links()
    if 2 * len(links.host) >= min(len(host.ops), len(kineto.ops)):
        return links
    ordered = _by_order(host, kineto)
    return ordered if len(ordered.host) > len(links.host) else links


def is_of_a_part(links: Links, kineto: KinetoTrace) -> bool:
    """Return whether a host trace covers a part of the Kineto trace only, such as one of several steps.

    It does if it fits several places by order, or if most calls that launch something are before or after it.

    Args:
        links: The links between the two traces.
        kineto: The Kineto trace.
    """
    if not links.host:
        return False
    if links.windows > 1:
        return True
    begin_ns, end_ns = links.span_ns(kineto)
    launches = {op.correlation for op in kineto.device_ops}
    starts = [call.start_ns for call in kineto.calls if call.correlation in launches]
    return sum(begin_ns <= start_ns < end_ns for start_ns in starts) * 2 < len(starts)


def _by_order(host: HostTrace, kineto: KinetoTrace) -> Links:
    """Return the links by order and name between the pairs of threads whose operators have most names in common."""
    of_host: dict[int, list[HostOp]] = collections.defaultdict(list)
    of_kineto: dict[int, list[int]] = collections.defaultdict(list)
    for called in host.ops:
        of_host[called.thread].append(called)
    for number, op in enumerate(kineto.ops):
        of_kineto[op.thread].append(number)
    links = Links()
    for thread in sorted(of_host, key=lambda thread: -len(of_host[thread])):
        ops = of_host[thread]
        # Common names count as often as in both: 3 and 2 calls of aten::mm are 2
        names = collections.Counter(op.name for op in ops)
        matching_names = {
            t: sum((names & collections.Counter(kineto.ops[i].name for i in numbers)).values())
            for t, numbers in of_kineto.items()
        }
        best = max(matching_names, key=lambda t: (matching_names[t], -t), default=None)
        if best is None or not matching_names[best]:
            continue
        # A thread of one trace belongs to at most one of the other; those with the most operators choose first
        _link_thread(ops, of_kineto.pop(best), kineto, links)
    links.way = BY_ORDER if links.host else NOT_AT_ALL
    return links


def _link_thread(host_ops: Sequence[HostOp], kineto_numbers: Sequence[int], kineto: KinetoTrace, links: Links) -> None:
    """Add the links between operators of one thread, given in order of calls."""
    known = {op.name for op in host_ops} & {kineto.ops[i].name for i in kineto_numbers}
    left = [op for op in host_ops if op.name in known]
    right = [i for i in kineto_numbers if kineto.ops[i].name in known]
    names_left, names_right = [op.name for op in left], [kineto.ops[i].name for i in right]
    # A character per name: text search finds the whole sequence of calls fast
    character = {name: chr(number) for number, name in enumerate({*names_left, *names_right})}
    text, part = ("".join(character[name] for name in sequence) for sequence in (names_right, names_left))
    # The host trace may be one of several equal steps: find all its places
    places, at = [], text.find(part) if part else -1
    while at >= 0:
        places.append(at)
        at = text.find(part, at + len(part))
    begins = places
    if begins:
        links.windows = max(links.windows, len(begins))
        links.host.update(zip(right[begins[0] :], left, strict=False))
        return
    host_parent = {op.op_id: op.parent for op in host_ops}
    # No place has the whole sequence: compare calls caller by caller
    kept = {op.op_id for op in left}
    tops = _forest(left, lambda op: op.op_id, lambda op: _nearest(op.parent, kept, host_parent))
    kept_right = set(right)
    parents = {i: kineto.ops[i].parent for i in kineto_numbers}
    others = _forest(right, lambda i: i, lambda i: _nearest(kineto.ops[i].parent, kept_right, parents))
    links.host.update(_link_children(tops, others, kineto))


def _nearest(caller: int, kept_callers: set[int], caller_of: Mapping[int, int]) -> int:
    """Return the nearest of the kept callers from `caller` outwards, -1 = none."""
    steps = 0
    while caller not in kept_callers:
        if caller not in caller_of or steps > len(caller_of):  # a file may have a cycle
            return -1
        caller, steps = caller_of[caller], steps + 1
    return caller


def _forest(operators: Sequence[T], id_of: Callable[[T], int], caller_of: Callable[[T], int]) -> dict[int, list[T]]:
    """Return the operators that each caller's id has called, in order; -1 for those without a caller."""
    children: dict[int, list[T]] = collections.defaultdict(list)
    for item in operators:
        above = caller_of(item)
        children[-1 if above == id_of(item) else above].append(item)
    return children


def _link_children(
    host_children: Mapping[int, list[HostOp]], kineto_children: Mapping[int, list[int]], kineto: KinetoTrace
) -> dict[int, HostOp]:
    """Return the links from number to operator: what two linked callers have called, from the outermost (-1) on."""
    links: dict[int, HostOp] = {}
    waiting = [(-1, -1)]
    while waiting:
        host_caller, kineto_caller = waiting.pop()
        left, right = host_children.get(host_caller, []), kineto_children.get(kineto_caller, [])
        for a, b in _matches([op.name for op in left], [kineto.ops[i].name for i in right]):
            links[right[b]] = left[a]
            waiting.append((left[a].op_id, right[b]))
    return links


def _matches(items: Sequence[Hashable], others: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of places that hold equal items, in order."""
    if items == others:
        return [(i, i) for i in range(len(items))]
    # The longest common runs, in order
    blocks = SequenceMatcher(None, items, others, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]
