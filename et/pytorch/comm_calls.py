"""Kind, size, type, split sizes, group and peers of a collective or message that PyTorch records.

The NCCL backend records `record_param_comms`. Its inputs are, in this order: tensors (not always), a sequence number,
the process group (a number before 1.0.3, then name and description), a rank (own, root or peer), the name, split
sizes in and out, and at the end the group's size. Since 1.1.0 the first rank and the stride are before the size, and
attributes name all of these values, as in Kineto since PyTorch 2.3. Annotations `nccl:NAME` and `gloo:NAME` have the
tensors only; gloo's peers and split sizes are in the c10d operator that issued the call.

Sources: pytorch/torch/csrc/distributed/c10d/{ParamCommsUtils.hpp,ProcessGroupNCCL.cpp,ProcessGroupGloo.cpp}, PARAM's
commsTraceParser.py.
"""

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nadi.et.pytorch.host_trace import HostOp
from nadi.et.schema import CollectiveCommType
from nadi.inputs.limits import MAX_NPUS

RECORD = "record_param_comms"
UNKNOWN, SEND, RECV = -1, -2, -3
ON_HOST = frozenset({"gloo", "mpi", "ucc"})  # backends that execute calls on threads of the host
GROUP_ANNOTATION = "nadi:process_group:"
"""Prefix of the annotation, followed by the group's name, that `collect` adds if the backend does not record groups."""
_ANNOTATION = re.compile(r"(nccl|gloo|mpi|ucc|xccl|hccl):(\w+)(?: (\d+)(->|<-)(\d+))?")
_KINDS = (
    ("allreduce", CollectiveCommType.ALL_REDUCE),
    ("allgather", CollectiveCommType.ALL_GATHER),
    ("reducescatter", CollectiveCommType.REDUCE_SCATTER),
    ("alltoall", CollectiveCommType.ALL_TO_ALL),
    ("broadcast", CollectiveCommType.BROADCAST),
    ("reduce", CollectiveCommType.REDUCE),
    ("gather", CollectiveCommType.GATHER),
    ("scatter", CollectiveCommType.SCATTER),
    ("barrier", CollectiveCommType.BARRIER),
    ("send", SEND),
    ("recv", RECV),
)
_ENDS = frozenset({"", "v", "base", "sparse", "oop", "single", "anysource", "barrier", "coalesced"}) | frozenset(
    {"tensor", "tensorcoalesced", "intotensor", "intotensorcoalesced"}
)
"""Endings of names after the kind, without underscores."""
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "int": 4, "long": 8, "longint": 8, "short": 2, "shortint": 2,
    "char": 1, "signedchar": 1, "byte": 1, "unsignedchar": 1, "bool": 1, "complexfloat": 8, "complexdouble": 16,
    "float8e4m3fn": 1, "float8e5m2": 1, "float8e4m3fnuz": 1, "float8e5m2fnuz": 1,
}  # fmt: skip
_DEVICE_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)|rcclGenericKernel|ncclKernel_([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class CommCall:
    """A collective or message of one rank."""

    kind: int  # CollectiveCommType, SEND or RECV
    name: str  # name that PyTorch records
    # bytes that this rank contributes, -1 = unknown. A receive has the bytes received, a scatter those of the root's
    # whole buffer
    size_bytes: int
    dtype: str = ""  # element type, such as "Float"; "" = unknown
    in_split: tuple[int, ...] = ()  # elements sent to each member in an all-to-all with uneven parts; () = even
    out_split: tuple[int, ...] = ()  # elements received from each member; () = even
    group: str = ""  # name of the process group, or its number in old traces; "" = unknown
    ranks: tuple[int, ...] = ()  # members of the group; () = unknown
    group_size: int = 0  # number of members; 0 = unknown
    peer: int = -1  # other end of a message, or root of a broadcast, as a member of the group; -1 = unknown
    tag: int = 0  # tag of a message


def kind_named(name: str) -> int | None:
    """Return the kind that a name of PyTorch means, such as "_allgather_base"; None if it names no kind.

    Args:
        name: The name of an operator or a collective.
    """
    plain = name.lower().replace("_", "").replace("c10d::", "")
    for beginning, kind in _KINDS:
        if plain.startswith(beginning) and plain.removeprefix(beginning) in _ENDS:
            return int(kind)
    return None


def backend_and_kind(name: str) -> tuple[str, int | None] | None:
    """Return backend and kind of an annotation such as "gloo:all_reduce"; None if the name is no such annotation.

    Args:
        name: The name of a host operator or annotation.
    """
    match = _ANNOTATION.fullmatch(name)
    return (match[1], kind_named(match[2])) if match else None


def kernel_kind(name: str) -> int | None:
    """Return the kind in the name of an NCCL kernel; -1 if the name does not have it, None for other kernels.

    Args:
        name: The name of a device operation.
    """
    match = _DEVICE_KERNEL.search(name)
    if not match:
        return None
    kind = kind_named(match[1] or match[2] or "")
    return -1 if kind is None else kind


def call_of_host(op: HostOp) -> CommCall | None:
    """Return the call of a host operator record_param_comms or BACKEND:NAME; None for others, such as "wait".

    Args:
        op: Any operator of a host trace.
    """
    tensors_in, tensors_out = _tensors(op.inputs), _tensors(op.outputs)
    in_bytes, out_bytes = (sum(t[3] * t[4] for t in tensors) for tensors in (tensors_in, tensors_out))
    if op.name != RECORD:
        return _annotated(op.name, in_bytes if tensors_in or tensors_out else -1, out_bytes)
    attributes = op.attributes
    rest = op.inputs if op.input_types and "Tensor" not in str(op.input_types[0]) else op.inputs[1:]
    name = str(attributes.get("collective_name") or next((v for v in rest[2:5] if isinstance(v, str)), ""))
    kind = kind_named(name)
    if kind is None or len(rest) < 4:
        return None
    # The places of group, rank and split sizes are relative to the name, as schemas differ in what comes first
    at = rest.index(name) if name in rest else 3
    group = rest[at - 2] if at >= 2 else ""
    named = group[0] if isinstance(group, list) and group else group
    size = _size(kind, in_bytes, out_bytes)
    # New schemas have the number of elements; old ones need the tensors
    if not tensors_in and "in_msg_nelems" in attributes:
        width = _width(str(attributes.get("dtype", "")))
        size = _size(kind, int(attributes["in_msg_nelems"]) * width, int(attributes.get("out_msg_nelems", 0)) * width)
    group_size = int(attributes.get("pg_size", rest[-1] if isinstance(rest[-1], int) else 0))
    return CommCall(
        kind=kind,
        name=name,
        size_bytes=_group_bytes(kind, size, group_size, has_input=bool(tensors_in)),
        dtype=str(attributes.get("dtype", "")) or _dtype(op.input_types),
        in_split=_splits(attributes.get("in_split_size", rest[at + 1] if len(rest) > at + 1 else ())),
        out_split=_splits(attributes.get("out_split_size", rest[at + 2] if len(rest) > at + 2 else ())),
        group=str(attributes.get("pg_name", named)),
        ranks=_strided(op.attributes, group_size),
        group_size=group_size,
        peer=int(rest[at - 1]) if at >= 1 and isinstance(rest[at - 1], int) else -1,
    )


def call_of_kineto(name: str, args: Mapping[str, Any]) -> CommCall | None:
    """Return the call of an operator or kernel of Kineto; None if it is no call of a known kind.

    Args:
        name: The name of the operator or kernel.
        args: The arguments of its event.
    """
    if "Collective name" in args:
        kind = kind_named(str(args["Collective name"]))
        if kind is None:
            return None
        width = _width(str(args.get("dtype", "")))
        size = _size(kind, int(args.get("In msg nelems", 0)) * width, int(args.get("Out msg nelems", 0)) * width)
        group_size = int(args.get("Group size", 0))
        end = args.get("Dst Rank") if kind == SEND else args.get("Src Rank") if kind == RECV else args.get("Root Rank")
        return CommCall(
            kind=kind,
            name=str(args["Collective name"]),
            size_bytes=_group_bytes(kind, size, group_size, has_input=int(args.get("In msg nelems", 0)) > 0),
            dtype=str(args.get("dtype", "")),
            in_split=_splits(args.get("In split size", ())),
            out_split=_splits(args.get("Out split size", ())),
            group=str(args.get("Process Group Name", "")),
            ranks=_splits(args.get("Process Group Ranks", ())),
            group_size=group_size,
            peer=int(end) if end is not None else -1,
        )
    # Annotations have the shapes and types of tensors only
    dtype = str(next(iter(args.get("Input type", ())), ""))
    return _annotated(name, _dims_bytes(args.get("Input Dims", ()), args.get("Input type", ())), 0, dtype)


def call_of_record(args: Mapping[str, Any]) -> CommCall | None:
    """Return the call of record_param_comms in a Kineto trace before PyTorch 2.3, without its kind.

    The kind is that of the annotation within the record; a record without an annotation is no communication ("wait").

    Args:
        args: The arguments of the event.
    """
    values = [_literal(value) for value in args.get("Concrete Inputs", ())]
    types = args.get("Input type", ())
    if len(values) < 8 or len(types) != len(values) or not (isinstance(values[2], int) and isinstance(values[-1], int)):
        return None
    size = _dims_bytes(args.get("Input Dims", ())[:1], [str(args.get("dtype", ""))])
    peer = values[3] if isinstance(values[3], int) else -1
    return CommCall(UNKNOWN, RECORD, size, group=str(values[2]), group_size=values[-1], peer=peer)


def with_issuer(call: CommCall, operator_name: str, values: Sequence[Any]) -> CommCall:
    """Return a call completed from the c10d operator that issued it: with its peer, tag, root or split sizes.

    Args:
        call: A call that a thread of the host executes.
        operator_name: The name of the operator.
        values: The operator's inputs.
    """
    plain = [_literal(value) for value in values]
    numbers = [value for value in plain if isinstance(value, int) and not isinstance(value, bool)]
    if call.kind in {SEND, RECV} and numbers:
        return replace(call, peer=numbers[0], tag=numbers[1] if len(numbers) > 1 else 0)
    if call.kind == CollectiveCommType.BROADCAST and numbers:
        return replace(call, peer=numbers[0])
    if operator_name.endswith("alltoall_base_") and len(plain) > 4:
        out_split, in_split = _splits(plain[3]), _splits(plain[4])
        return replace(call, in_split=in_split, out_split=out_split)
    return call


def functional_group(operator_inputs: Sequence[Any]) -> str:
    """Return the process group that a functional collective names: the last text among its inputs.

    Args:
        operator_inputs: The inputs of an operator _c10d_functional::NAME.
    """
    texts = [value for value in operator_inputs if isinstance(value, str) and value and not value.startswith("<")]
    return texts[-1] if texts else ""


def _annotated(name: str, in_bytes: int, out_bytes: int, dtype: str = "") -> CommCall | None:
    """Return the call of an annotation such as "gloo:send 0->1" of tensors of these bytes; None for other names."""
    match = _ANNOTATION.fullmatch(name)
    kind = kind_named(match[2]) if match else None
    if match is None or kind is None:
        return None
    return CommCall(kind, name, _size(kind, in_bytes, out_bytes), dtype, peer=int(match[5] or -1))


def _tensors(values: Sequence[Any]) -> list[list[Any]]:
    """Return the tensors among values and in lists of them, at any depth."""
    found = []
    for value in values:
        if isinstance(value, list):
            if len(value) == 6 and isinstance(value[5], str) and all(isinstance(part, int) for part in value[:5]):
                found.append(value)
            else:
                found.extend(_tensors(value))
    return found


def storages(values: Sequence[Any]) -> set[int]:
    """Return the ids of the storages that hold the tensors among some values.

    Args:
        values: Inputs or outputs of a host operator, lists of tensors included.
    """
    return {int(tensor[1]) for tensor in _tensors(values)}


def _size(kind: int, in_bytes: int, out_bytes: int) -> int:
    """Return the size of a call of a kind in bytes as this rank sees it, from the bytes of its tensors."""
    if kind == CollectiveCommType.BARRIER:
        return 0
    return out_bytes if kind in {RECV, CollectiveCommType.SCATTER} and out_bytes else in_bytes or out_bytes


def _group_bytes(kind: int, size_bytes: int, group_size: int, *, has_input: bool) -> int:
    """Return the size of a call of a kind by the convention of CommCall, in bytes.

    The root's buffer of a scatter is what a member gets times the group size. An all-gather without recorded input
    contributes one part of its output.
    """
    if kind == CollectiveCommType.SCATTER and group_size:
        return size_bytes * group_size
    if kind == CollectiveCommType.ALL_GATHER and not has_input and group_size:
        return size_bytes // group_size
    return size_bytes


def _width(dtype: str) -> int:
    """Return the bytes of an element of a type such as "c10::Half"; 0 if it is unknown."""
    plain = dtype.lower().removeprefix("c10::").replace("_", "").replace(" ", "")
    return _ELEMENT_BYTES.get(plain, 0)


def _dtype(types: Sequence[Any]) -> str:
    """Return the type of the first tensor: "Half" for "Tensor(c10::Half)", "float" for "GenericList[Tensor(float)]"."""
    match = re.search(r"Tensor\(([^()]+)\)", " ".join(map(str, types[:1])))
    return match[1].removeprefix("c10::") if match else ""


def _dims_bytes(dims: Sequence[Any], types: Sequence[Any]) -> int:
    """Return the bytes of tensors with the listed shapes and types; -1 if none of them is known."""
    total, known = 0, False
    for shape, dtype in zip(dims, types, strict=False):
        shapes = shape if shape and isinstance(shape[0], list) else [shape]
        width = _width(str(dtype))
        for extents in shapes:
            if width and all(isinstance(extent, int) for extent in extents):
                total, known = total + math.prod(extents) * width, True
    return total if known else -1


def _splits(listed: Any) -> tuple[int, ...]:  # noqa: ANN401 - a list or its text
    """Return split sizes or ranks from a list or its text; () for a truncated one ("[1, 2, ..."), which is unusable."""
    value = _literal(listed)
    if not isinstance(value, list | tuple) or not all(isinstance(part, int) for part in value):
        return ()
    return tuple(value)


def _literal(value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    """Return the value that a text of Kineto denotes."""
    if not isinstance(value, str) or not value:
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # deeply nested brackets
        return value


def _strided(attributes: Mapping[str, Any], group_size: int) -> tuple[int, ...]:
    """Return the members of a group from the first rank and stride among the attributes of a call; () without them."""
    first, stride = attributes.get("global_rank_start"), attributes.get("global_rank_stride")
    if not isinstance(first, int) or not isinstance(stride, int) or not 1 <= group_size <= MAX_NPUS or stride < 1:
        return ()
    return tuple(range(first, first + stride * group_size, stride))
