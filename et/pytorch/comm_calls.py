"""What PyTorch records of a collective or message: kind, bytes, type, split sizes, group and peers.

The NCCL backend records `record_param_comms`. Its inputs are, in this order, tensors (not always), a sequence number,
the process group (a number before 1.0.3, then name and description), a rank (own, root or peer), the name, split
sizes in and out, and at the end the group's size, since 1.1.0 behind the first rank and the stride; since 1.1.0
attributes say all that by name, as Kineto does since PyTorch 2.3. Annotations `nccl:NAME` and `gloo:NAME` have the
tensors only; gloo's peers and split sizes stand in the c10d operator that has issued it.

Sources: pytorch/torch/csrc/distributed/c10d/{ParamCommsUtils.hpp,ProcessGroupNCCL.cpp,ProcessGroupGloo.cpp}, PARAM's
commsTraceParser.py.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from et.pytorch.host_trace import HostOp
from et.schema import CollectiveCommType
from inputs.limits import MAX_NPUS

RECORD = "record_param_comms"
UNKNOWN, SEND, RECV = -1, -2, -3
ON_HOST = frozenset({"gloo", "mpi", "ucc"})
"""Backends that carry calls out on threads of the host."""
GROUP_ANNOTATION = "nadi:process_group:"
"""What `collect` puts around calls, where the backend does not say its group; the group's name follows."""
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
"""What may follow in a name, without its underscores."""
_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "int": 4, "long": 8, "longint": 8, "short": 2, "shortint": 2,
    "char": 1, "signedchar": 1, "byte": 1, "unsignedchar": 1, "bool": 1, "complexfloat": 8, "complexdouble": 16,
    "float8e4m3fn": 1, "float8e5m2": 1, "float8e4m3fnuz": 1, "float8e5m2fnuz": 1,
}  # fmt: skip
_DEVICE_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)|rcclGenericKernel|ncclKernel_([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class CommCall:
    """A collective or message that one rank takes part in.

    Attributes:
        kind: CollectiveCommType, SEND or RECV.
        name: as PyTorch says it.
        size_bytes: what this rank puts in (of a receive: gets); of a scatter, all that the root sends; -1 = not said.
        dtype: "Float"; "" = not said.
        in_split: of an all-to-all with uneven parts, elements for each member; () = even.
        out_split: the same of what comes in.
        group: name of the process group, or its number in old traces; "" = not said.
        ranks: its members; () = not said.
        group_size: 0 = not said.
        peer: the other end of a message, as a member of the group; root of a broadcast; -1 = not said.
        tag: of a message.
    """

    kind: int
    name: str
    size_bytes: int
    dtype: str = ""
    in_split: tuple[int, ...] = ()
    out_split: tuple[int, ...] = ()
    group: str = ""
    ranks: tuple[int, ...] = ()
    group_size: int = 0
    peer: int = -1
    tag: int = 0


def kind_named(name: str) -> int | None:
    """The kind that a name of PyTorch means, such as "_allgather_base"; None = it is no kind."""
    plain = name.lower().replace("_", "").replace("c10d::", "")
    for beginning, kind in _KINDS:
        if plain.startswith(beginning) and plain.removeprefix(beginning) in _ENDS:
            return int(kind)
    return None


def annotated(name: str) -> tuple[str, int | None] | None:
    """Backend and kind of an annotation such as "gloo:all_reduce"; None = it is none."""
    match = _ANNOTATION.fullmatch(name)
    return (match[1], kind_named(match[2])) if match else None


def kernel_kind(name: str) -> int | None:
    """The kind of an NCCL kernel, of its name; None if it is another kernel, -1 if the name does not say."""
    match = _DEVICE_KERNEL.search(name)
    if not match:
        return None
    kind = kind_named(match[1] or match[2] or "")
    return -1 if kind is None else kind


def of_host(op: HostOp) -> CommCall | None:
    """What a host operator named record_param_comms or BACKEND:NAME says; None if it is no communication, as "wait"."""
    tensors_in, tensors_out = _tensors(op.inputs), _tensors(op.outputs)
    if op.name != RECORD:
        found = annotated(op.name)
        return _of_tensors(op.name, found[1], tensors_in, tensors_out) if found and found[1] is not None else None
    said = op.attributes
    rest = op.inputs if op.input_types and "Tensor" not in str(op.input_types[0]) else op.inputs[1:]
    name = str(said.get("collective_name") or next((v for v in rest[2:5] if isinstance(v, str)), ""))
    kind = kind_named(name)
    if kind is None or len(rest) < 4:
        return None
    at = rest.index(name) if name in rest else 3
    group = rest[at - 2] if at >= 2 else ""
    named = group[0] if isinstance(group, list) and group else group
    size = _size(kind, sum(t[3] * t[4] for t in tensors_in), sum(t[3] * t[4] for t in tensors_out))
    if not tensors_in and "in_msg_nelems" in said:
        width = _width(str(said.get("dtype", "")))
        size = _size(kind, int(said["in_msg_nelems"]) * width, int(said.get("out_msg_nelems", 0)) * width)
    group_size = int(said.get("pg_size", rest[-1] if isinstance(rest[-1], int) else 0))
    return CommCall(
        kind=kind,
        name=name,
        size_bytes=_whole(kind, size, group_size, has_input=bool(tensors_in)),
        dtype=str(said.get("dtype", "")) or _dtype(op.input_types),
        in_split=_splits(said.get("in_split_size", rest[at + 1] if len(rest) > at + 1 else ())),
        out_split=_splits(said.get("out_split_size", rest[at + 2] if len(rest) > at + 2 else ())),
        group=str(said.get("pg_name", named)),
        ranks=_strided(said, group_size),
        group_size=group_size,
        peer=int(rest[at - 1]) if at >= 1 and isinstance(rest[at - 1], int) else -1,
    )


def of_kineto(name: str, args: Mapping[str, Any]) -> CommCall | None:
    """What an operator or kernel of Kineto says; None if it is no communication or says too little to know which."""
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
            size_bytes=_whole(kind, size, group_size, has_input=int(args.get("In msg nelems", 0)) > 0),
            dtype=str(args.get("dtype", "")),
            in_split=_splits(args.get("In split size", ())),
            out_split=_splits(args.get("Out split size", ())),
            group=str(args.get("Process Group Name", "")),
            ranks=_splits(args.get("Process Group Ranks", ())),
            group_size=group_size,
            peer=int(end) if end is not None else -1,
        )
    found = annotated(name)
    if not found or found[1] is None:
        return None
    match = _ANNOTATION.fullmatch(name)
    size = _dims_bytes(args.get("Input Dims", ()), args.get("Input type", ()))
    size = 0 if found[1] == CollectiveCommType.BARRIER else size
    call = CommCall(found[1], name, size, dtype=str(next(iter(args.get("Input type", ())), "")))
    if match and match[3]:
        return _with(call, peer=int(match[5]))
    return call


def of_record(args: Mapping[str, Any]) -> CommCall | None:
    """What record_param_comms says in a Kineto trace before PyTorch 2.3: group and size of the group, but not its kind.

    The kind is that of the annotation within it; a record without one is no communication ("wait").
    """
    said = [_literal(value) for value in args.get("Concrete Inputs", ())]
    types = args.get("Input type", ())
    if len(said) < 8 or len(types) != len(said) or not isinstance(said[2], int) or not isinstance(said[-1], int):
        return None
    size = _dims_bytes(args.get("Input Dims", ())[:1], [_element(args)])
    return CommCall(UNKNOWN, RECORD, size, group=str(said[2]), group_size=said[-1], peer=_number(said[3]))


def from_issuer(call: CommCall, name: str, values: Sequence[Any]) -> CommCall:
    """The call with what the c10d operator that has issued it says: peer, tag, root, split sizes.

    Args:
        call: of the backend's annotation.
        name: of the operator, "c10d::send".
        values: its inputs, as the host trace has them or Kineto's texts ("Concrete Inputs").
    """
    plain = [_literal(value) for value in values]
    numbers = [value for value in plain if isinstance(value, int) and not isinstance(value, bool)]
    if call.kind in {SEND, RECV} and numbers:
        return _with(call, peer=numbers[0], tag=numbers[1] if len(numbers) > 1 else 0)
    if call.kind == CollectiveCommType.BROADCAST and numbers:
        return _with(call, peer=numbers[0])
    if name.endswith("alltoall_base_") and len(plain) > 4:
        out_split, in_split = _splits(plain[3]), _splits(plain[4])
        return _with(call, in_split=in_split, out_split=out_split)
    return call


def group_of(values: Sequence[Any]) -> str:
    """The process group that a functional collective names: the last text of its inputs."""
    texts = [value for value in values if isinstance(value, str) and value and not value.startswith("<")]
    return texts[-1] if texts else ""


def _number(value: Any) -> int:  # noqa: ANN401 - any value of JSON
    return value if isinstance(value, int) else -1


def _element(args: Mapping[str, Any]) -> str:
    """Type of the elements of a list of tensors, which Kineto does not say."""
    return str(args.get("dtype", ""))


def _with(call: CommCall, **fields: Any) -> CommCall:  # noqa: ANN401 - fields of CommCall
    return CommCall(**{name: fields.get(name, getattr(call, name)) for name in CommCall.__slots__})


def _of_tensors(name: str, kind: int, given: Sequence[list[Any]], made: Sequence[list[Any]]) -> CommCall:
    """A call that is known by its tensors only."""
    match = _ANNOTATION.fullmatch(name)
    size = _size(kind, sum(t[3] * t[4] for t in given), sum(t[3] * t[4] for t in made)) if given or made else -1
    size = 0 if kind == CollectiveCommType.BARRIER else size
    peer = int(match[5]) if match and match[5] else -1
    return CommCall(kind, name, size, peer=peer)


def _tensors(values: Sequence[Any]) -> list[list[Any]]:
    """Tensors among values, and in lists of them, at any depth."""
    found = []
    for value in values:
        if isinstance(value, list):
            if len(value) == 6 and isinstance(value[5], str) and all(isinstance(part, int) for part in value[:5]):
                found.append(value)
            else:
                found.extend(_tensors(value))
    return found


def storages(values: Sequence[Any]) -> set[int]:
    """Ids of the storages of tensors among values."""
    return {int(tensor[1]) for tensor in _tensors(values)}


def _size(kind: int, in_bytes: int, out_bytes: int) -> int:
    """What counts as the size of a call, by this rank."""
    if kind == CollectiveCommType.BARRIER:
        return 0
    return out_bytes if kind in {RECV, CollectiveCommType.SCATTER} and out_bytes else in_bytes or out_bytes


def _whole(kind: int, size: int, group_size: int, *, has_input: bool) -> int:
    """Of a scatter the root's buffer, which is as many times what each member gets."""
    if kind == CollectiveCommType.SCATTER and group_size:
        return size * group_size
    if kind == CollectiveCommType.ALL_GATHER and not has_input and group_size:
        return size // group_size
    return size


def _width(dtype: str) -> int:
    """Bytes of an element."""
    plain = dtype.lower().removeprefix("c10::").replace("_", "").replace(" ", "")
    return _BYTES.get(plain, 0)


def _dtype(types: Sequence[Any]) -> str:
    """Of the first tensor: "Tensor(c10::Half)" or "GenericList[Tensor(float)]" gives "Half", "float"."""
    match = re.search(r"Tensor\(([^()]+)\)", " ".join(map(str, types[:1])))
    return match[1].removeprefix("c10::") if match else ""


def _dims_bytes(dims: Sequence[Any], types: Sequence[Any]) -> int:
    """Bytes of tensors whose shapes and types are listed; -1 = it does not say."""
    total, known = 0, False
    for shape, dtype in zip(dims, types, strict=False):
        shapes = shape if shape and isinstance(shape[0], list) else [shape]
        width = _width(str(dtype))
        for one in shapes:
            if width and all(isinstance(extent, int) for extent in one):
                count = 1
                for extent in one:
                    count *= extent
                total, known = total + count * width, True
    return total if known else -1


def _splits(said: Any) -> tuple[int, ...]:  # noqa: ANN401 - a list or its text
    """Split sizes or ranks, of a list or the text of one; what is cut off ("[1, 2, ...") counts as not said."""
    value = _literal(said)
    if not isinstance(value, list | tuple) or not all(isinstance(part, int) for part in value):
        return ()
    return tuple(value)


def _literal(value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    """The value that a text of Kineto stands for."""
    if not isinstance(value, str) or not value:
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # brackets within brackets within brackets
        return value


def _strided(said: Mapping[str, Any], group_size: int) -> tuple[int, ...]:
    """Members, of the first rank and the stride, which PyTorch says where they are equally far apart."""
    first, stride = said.get("global_rank_start"), said.get("global_rank_stride")
    if not isinstance(first, int) or not isinstance(stride, int) or not 1 <= group_size <= MAX_NPUS or stride < 1:
        return ()
    return tuple(range(first, first + stride * group_size, stride))
