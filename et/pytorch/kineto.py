"""Files that PyTorch writes, and Kineto traces: what its profiler has recorded on the host's threads and on the device.

Times are in nanoseconds since the epoch. In the file `ts` and `dur` are in microseconds, relative to
`baseTimeNanoseconds` if the file has it. The schema below is of the fields that Nadi reads; other fields may be
anything, and numbers may also be written as text; ROCm writes streams in hexadecimal. Events of categories that are
neither read nor known to hold no work are counted.

Sources: pytorch/kineto libkineto/src/output_json.cpp and ActivityType.cpp, and torch/csrc/profiler/collection.cpp for
arguments.
"""

import gc
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Required

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.inputs.documents import DocumentError, validated

# Files that PyTorch writes: host execution traces and Kineto traces, as JSON, gzipped or not.

HOST, KINETO = "host-trace", "kineto"
EXPECTED = "a PyTorch host execution trace or a Kineto trace (JSON)"
_NAMES = ("*.json", "*.json.gz", "*.pt.trace.json", "*.pt.trace.json.gz")
_RANK = re.compile(r"rank[_-]?([0-9]{1,6})", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,6}")


class Document(NamedTuple):
    """A parsed file."""

    path: Path  # path of the file
    kind: str  # HOST or KINETO
    data: dict[str, Any]  # the JSON object


def kind_of(path: Path) -> str:
    """Return whether a file is of HOST or KINETO; "" for any other file.

    Args:
        path: The file, which may be of any kind.
    """
    kind = inputs.kind_of(path)
    key = kind.key.removeprefix("gzip:") if kind is not None else ""
    return key if key in {HOST, KINETO} else ""


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Return the files that paths name; for a folder, the traces of PyTorch in it at any depth, sorted by name.

    Args:
        paths: Files and folders.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted({file for name in _NAMES for file in path.rglob(name) if not file.name.startswith(".")})
            traces = [file for file in inside if kind_of(file)]
            if not traces:
                raise TraceError(f"{path}: none of its files is {EXPECTED}")
            found.extend(traces)
        else:
            found.append(path)
    return found


def read_document(path: Path) -> Document:
    """Parse a file; raise TraceError if the file cannot be read, is truncated, or is of another kind.

    Args:
        path: A file, which may be gzipped.
    """
    with inputs.refusing(path, EXPECTED, TraceError):
        text = b"".join(inputs.blocks(path)).decode("utf-8", errors="replace")
    try:
        with _no_garbage_collection():
            data = json.loads(text, strict=False)  # Kineto does not escape names
    except (ValueError, RecursionError) as error:
        kind = inputs.kind_of(path)
        if kind is not None and kind.key.removeprefix("gzip:") not in {HOST, KINETO, "json"}:
            raise TraceError(inputs.complaint(path, kind, EXPECTED)) from error
        raise TraceError(f"{path}: {error}, expected {EXPECTED} that is complete") from error
    if isinstance(data, dict) and isinstance(data.get("traceEvents"), list):
        return Document(path, KINETO, data)
    if isinstance(data, dict) and isinstance(data.get("nodes"), list) and "schema" in data:
        return Document(path, HOST, data)
    kind = inputs.kind_of(path)
    if kind is not None:
        raise TraceError(inputs.complaint(path, kind, EXPECTED))
    raise TraceError(f'{path}: found neither "traceEvents" nor "schema" and "nodes", expected {EXPECTED}')


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: JSON parsing makes no garbage, and searching for it multiplies the time by seven."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def ranks_by_name(paths: Sequence[Path]) -> list[int | None]:
    """Return the rank in each file name: "rank3", otherwise the number that differs between names; None without one.

    Args:
        paths: The files of all ranks of one run, of one kind.
    """
    matches = [_RANK.search(path.name) for path in paths]
    if all(matches):
        return [int(match[1]) for match in matches if match]
    names = [[int(number) for number in _NUMBER.findall(path.name)] for path in paths]
    if len(paths) < 2 or len({len(numbers) for numbers in names}) > 1:
        return [None] * len(paths)
    # A number that is different in each name is the rank; the last one, if there are several
    places = [place for place in range(len(names[0])) if len({numbers[place] for numbers in names}) == len(paths)]
    return [numbers[places[-1]] if places else None for numbers in names]


_OPS = frozenset({"cpu_op", "user_annotation", "operator"})
_CALLS = frozenset(
    {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver"}
    | {"privateuse1_runtime", "privateuse1_driver"}
)
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_READ = _OPS | _CALLS | _DEVICE | {"cuda_sync"}
_NO_WORK = frozenset(  # categories of marks, counters and names, and of the profiler's own work
    {"python_function", "gpu_user_annotation", "cpu_instant_event", "external_correlation", "overhead", "trace", ""}
    | {"ac2g", "fwdbwd", "gpu_pm_counter", "cuda_profiler_range", "collective_comm", "cuda_event", "mtia_insight"}
)
_STEP = re.compile(r"ProfilerStep#([0-9]{1,18})")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
RESOLUTION_NS = 1000  # resolution of Kineto's times: smaller differences between two of them mean nothing
MERGED = "nadi_merged"  # key that marks the Kineto part of a merged file; no file of PyTorch has it
_OTHERS_ARE_KEPT = ConfigDict(extra="allow", allow_inf_nan=False, coerce_numbers_to_str=True)
_MAX_DURATION_US = 1_000_000_000_000  # longest duration in microseconds, 11.6 days, the limit for trace nodes, too
_LAST_US = 4 * 10**15  # latest time stamp in microseconds, in the year 2096: sums in nanoseconds fit into 64 bits
_MAX_RANKS = 1 << 31

_Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
_Elements = Annotated[int, Field(ge=0, lt=1 << 56)]  # of a message: at 16 bytes each, the bytes fit into 64 bits
_Rank = Annotated[int, Field(ge=-1, lt=_MAX_RANKS)]
_Ranks = Annotated[int, Field(ge=0, lt=_MAX_RANKS)]
_Time = Annotated[int, Field(ge=-_LAST_US, le=_LAST_US)] | Annotated[float, Field(ge=-_LAST_US, le=_LAST_US)]
_Duration = Annotated[int, Field(le=_MAX_DURATION_US)] | Annotated[float, Field(le=_MAX_DURATION_US)]
_Numbers = str | list[_Int64]


def _stream(value: object) -> object:
    """Return the number of a stream in hexadecimal, such as the address 0x7f00 of ROCm; any other value unchanged."""
    if isinstance(value, str) and _HEXADECIMAL.fullmatch(value):
        number = int(value, 16)
        return number - (1 << 64) if number >> 63 else number
    return value


_Stream = Annotated[_Int64, BeforeValidator(_stream)]

KinetoArguments = TypedDict(
    "KinetoArguments",
    {
        "Record function id": _Int64,
        "External id": _Int64 | str | None,
        "correlation": _Int64,
        "stream": _Stream,
        "wait_on_stream": _Stream | str | None,
        "wait_on_cuda_event_record_corr_id": _Int64,
        "Collective name": str,
        "dtype": str,
        "In msg nelems": _Elements,
        "Out msg nelems": _Elements,
        "Group size": _Ranks,
        "Src Rank": _Rank | None,
        "Dst Rank": _Rank | None,
        "Root Rank": _Rank | None,
        "In split size": _Numbers,
        "Out split size": _Numbers,
        "Process Group Name": str,
        "Process Group Ranks": _Numbers,
        "Input Dims": list[Any],
        "Input type": list[Any],
        "Concrete Inputs": list[Any],
    },
    total=False,
)
"""Arguments of an event."""
KinetoArguments.__pydantic_config__ = _OTHERS_ARE_KEPT  # type: ignore[attr-defined]


@dataclass(slots=True)
class HostOperator:
    """An operator or annotation on a thread of the host."""

    name: str  # name of the operator or annotation
    thread: int  # number of the thread
    # begin and end
    start_ns: int
    end_ns: int
    args: Mapping[str, Any]  # arguments of the Kineto event
    is_annotation: bool = False  # whether the event only names a stretch of time and does nothing itself
    parent: int = -1  # number of the op that has called it, -1 = none

    @property
    def rf_id(self) -> int:
        """Record function id, 0 = unknown."""
        return int(self.args.get("Record function id", 0))


@dataclass(slots=True)
class Call:
    """A call of the CUDA runtime or driver: a launch, an event, a wait."""

    name: str  # name of the function, such as "cudaLaunchKernel"
    thread: int  # number of the thread; -1 for a wait of a stream
    start_ns: int  # begin of the call
    end_ns: int  # end of the call
    correlation: int  # number that the call shares with the device op that it launches, -1 = unknown
    args: Mapping[str, Any]  # arguments of the Kineto event
    op: int = -1  # number of the op that makes the call, -1 = none


@dataclass(slots=True)
class DeviceOp:
    """A kernel, copy or memset on a stream of a device."""

    name: str  # name of the kernel, or kind of copy
    stream: int  # number of the stream
    start_ns: int  # begin of the execution
    end_ns: int  # end of the execution
    correlation: int  # number that the op shares with the call that launches it, -1 = unknown
    args: Mapping[str, Any]  # arguments of the Kineto event


@dataclass
class KinetoTrace:
    """The trace of one rank; ops, calls and device ops are in order of their start times."""

    path: Path  # path of the file
    rank: int | None  # rank that the file names; None = unknown
    world_size: int  # number of ranks of the run, 0 = unknown
    pid: int  # id of the process, -1 = unknown
    ops: list[HostOperator] = field(default_factory=list)  # operators and annotations of the host
    calls: list[Call] = field(default_factory=list)  # calls of the CUDA runtime or driver
    device_ops: list[DeviceOp] = field(default_factory=list)  # kernels, copies and memsets
    waits: list[Call] = field(default_factory=list)  # events of cuda_sync, which name both streams; often missing
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # ranks by name, from pg_config; () = unknown
    group_sizes: dict[str, int] = field(default_factory=dict)  # number of ranks of each process group, by its name
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # begin and end of ProfilerSteps in ns, by number
    host_name: str = ""  # name of the machine, "" = unknown
    python_functions: int = 0  # number of events of Python functions, which are not used
    unread: Counter[str] = field(default_factory=Counter)  # number of events that are not read, by category
    is_merged: bool = False  # whether the trace is a part of a file of chakra_trace_link, without waits between streams

    def enclosing(self, number: int) -> Iterator[int]:
        """Yield the number of an operator and of the operators around it, the innermost first; nothing for -1.

        Args:
            number: The number of an operator, or -1.
        """
        while number >= 0:
            yield number
            number = self.ops[number].parent


def kineto_trace(document: Document) -> KinetoTrace:
    """Read a Kineto trace; raise TraceError if an event that is read lacks a field, or has a field of the wrong kind.

    Args:
        document: A file of kind KINETO.
    """
    data = document.data
    distributed = data.get("distributedInfo")
    # A run of one process lacks it
    info: Mapping[str, Any] = distributed if isinstance(distributed, dict) else {}
    rank, size = (_rank(info.get(key)) for key in ("rank", "world_size"))
    trace = KinetoTrace(document.path, rank, size or 0, pid=-1)
    trace.host_name = str(data.get("host_name", ""))
    trace.is_merged = data.get(MERGED) is True
    try:
        base_ns = validated(data, HEAD).get("baseTimeNanoseconds", 0)
    except DocumentError as error:
        raise TraceError(f"{document.path}: {error}") from error
    for number, event in enumerate(data["traceEvents"]):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        try:
            _add(trace, event, base_ns)
        except DocumentError as error:
            raise TraceError(f"{document.path}: entry {number} of traceEvents: {error}") from error
    if not trace.ops and not trace.device_ops:
        expected = "a trace of a training run"
        raise TraceError(f"{document.path}: its events include no operator and no kernel, expected {expected}")
    listed = info.get("pg_config")
    for entry in listed.values() if isinstance(listed, dict) else listed if isinstance(listed, list) else ():
        try:
            group = validated(entry, GROUP)
        except DocumentError:
            continue  # events also name their groups
        name, ranks = group["pg_name"], group.get("ranks", ())
        is_complete = isinstance(ranks, list) and all(_rank(rank) is not None for rank in ranks)
        trace.groups[name] = tuple(ranks) if is_complete else ()
        trace.group_sizes[name] = group.get("pg_size", len(trace.groups[name]))
    _order(trace)
    return trace


def _add(trace: KinetoTrace, event: Mapping[str, Any], file_base_ns: int) -> None:
    """Add an event to the list of its category."""
    category = str(event.get("cat", "")).lower()
    if category == "python_function":
        trace.python_functions += 1
    if category not in _READ:
        if category not in _NO_WORK:
            trace.unread[category] += 1
        return
    event = validated(event, EVENT)
    start_ns = file_base_ns + _ns(event["ts"])
    end_ns = start_ns + max(_ns(event.get("dur", 0)), 0)
    name, args = event["name"], event.get("args", {})
    if category in _OPS:
        trace.ops.append(HostOperator(name, event["tid"], start_ns, end_ns, args, category == "user_annotation"))
        step = _STEP.fullmatch(name)
        if step:
            trace.steps[int(step[1])] = (start_ns, end_ns)
        if isinstance(event.get("pid"), int):
            trace.pid = event["pid"]
    elif category in _CALLS:
        trace.calls.append(Call(name, event["tid"], start_ns, end_ns, int(args.get("correlation", -1)), args))
    elif category in _DEVICE:
        stream = args.get("stream", event["tid"])
        trace.device_ops.append(DeviceOp(name, stream, start_ns, end_ns, int(args.get("correlation", -1)), args))
    else:
        trace.waits.append(Call(name, -1, start_ns, end_ns, int(args.get("correlation", -1)), args))


def _ns(time_us: float) -> int:
    """Return a time in nanoseconds, exact for whole numbers of microseconds."""
    return time_us * 1000 if isinstance(time_us, int) else round(time_us * 1000)


def _rank(number: object) -> int | None:
    """Return a rank or a number of ranks; None if the value is neither."""
    return number if isinstance(number, int) and 0 <= number < _MAX_RANKS else None


def _order(trace: KinetoTrace) -> None:
    """Sort, and find the parents of ops and calls: the ops that are open on their thread when they begin."""
    trace.ops.sort(key=lambda op: (op.start_ns, -op.end_ns))
    trace.calls.sort(key=lambda call: (call.start_ns, call.end_ns))
    trace.device_ops.sort(key=lambda op: (op.start_ns, op.end_ns))
    open_ops: dict[int, list[int]] = {}
    call = 0
    for number, op in enumerate(trace.ops):
        while call < len(trace.calls) and trace.calls[call].start_ns < op.start_ns:
            _enclose(trace, trace.calls[call], open_ops)
            call += 1
        # The operators that are open on the thread, the innermost last
        stack = open_ops.setdefault(op.thread, [])
        while stack and trace.ops[stack[-1]].end_ns < op.end_ns:  # over, or not around it because clocks are imprecise
            stack.pop()
        if stack and trace.ops[stack[-1]].end_ns > op.start_ns:
            op.parent = stack[-1]
        stack.append(number)
    for late in trace.calls[call:]:
        _enclose(trace, late, open_ops)


def _enclose(trace: KinetoTrace, call: Call, open_ops_of_thread: Mapping[int, list[int]]) -> None:
    """Find the innermost op that is open when a call begins."""
    stack = open_ops_of_thread.get(call.thread, [])
    while stack and trace.ops[stack[-1]].end_ns <= call.start_ns:
        stack.pop()
    call.op = stack[-1] if stack else -1


@with_config(_OTHERS_ARE_KEPT)
class KinetoEvent(TypedDict, total=False):
    """A complete event, `"ph": "X"`; times in microseconds."""

    name: Required[str]  # name of the operator, call or kernel
    ts: Required[_Time]  # begin, relative to the file's baseTimeNanoseconds
    tid: Required[_Stream]  # number of the thread, or of the stream
    dur: _Duration  # duration; 0 if it is missing
    args: KinetoArguments  # arguments, which depend on the category


@with_config(_OTHERS_ARE_KEPT)
class KinetoGroup(TypedDict, total=False):
    """A process group."""

    pg_name: Required[str]  # name of the group
    pg_size: _Ranks  # number of ranks
    ranks: list[_Rank] | Any  # ranks of the group; PyTorch may shorten the list to a text


@with_config(_OTHERS_ARE_KEPT)
class KinetoHead(TypedDict, total=False):
    """Fields of a trace beside its events."""

    # time of `ts` 0, in nanoseconds since the epoch
    baseTimeNanoseconds: Annotated[int, Field(ge=0, le=_LAST_US * 1000)]


EVENT = TypeAdapter(KinetoEvent)
GROUP = TypeAdapter(KinetoGroup)
HEAD = TypeAdapter(KinetoHead)
