"""Separation of host traces that chakra_trace_link has merged with a Kineto trace into the two parts.

In a merged file (ET+) operators have `ts`, `inclusive_dur` and `exclusive_dur` of Kineto. Each kernel, copy and memset
is a node with `cat` and `stream` below the operator that launched it. The launches themselves are lost, and the time
of a device node is that of its launch: a node begins when it has been launched and its stream has finished what was
launched on it before. The files do not show which streams wait for others.

Source: mlcommons/chakra, src/trace_link/trace_linker.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nadi.et.errors import TraceError
from nadi.et.pytorch.documents import HOST, KINETO, Document
from nadi.et.pytorch.host_trace import ROOTS
from nadi.et.pytorch.kineto import MERGED

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
