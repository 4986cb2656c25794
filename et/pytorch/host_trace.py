"""Host execution traces of every schema, as PyTorch's ExecutionTraceObserver writes them.

Up to 1.0.1 a node has its fields side by side (`parent`, `inputs`, `input_shapes`, ...). Since 1.0.2-chakra.0.0.4 the
parent is `ctrl_deps`, inputs and outputs are objects, and the rest is a list `attrs`, to which later schemas add
(1.0.3 and 1.1.0 the parameters of collectives, 1.1.1 strides and kernels). The fields that a node has decide how it is
read, so that a later schema that only adds fields is read too.

Source: pytorch/torch/csrc/profiler/standalone/execution_trace_observer.cpp.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nadi.et.errors import TraceError
from nadi.et.pytorch.documents import Document

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
