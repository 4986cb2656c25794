"""Manifest of a trace set: the file of each NPU, and the families of groups (format: docs/reference/traces.md)."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from nadi import inputs
from nadi.et import ComposedNames, NameTable, NodeType, TraceTable
from nadi.et.files import MANIFEST_NAME
from nadi.inputs.arrays import Int32, Int64, pointers
from nadi.inputs.documents import checked, quoted
from nadi.inputs.limits import MAX_NPUS
from nadi.workload.errors import WorkloadError
from nadi.workload.trace_sets.trace_set import AS_WRITTEN, IDLE, Families, TraceSet

# Short form of lists of NPUs, and traces that run several times.
#
# The short form is for lists that are nested arithmetic progressions.
#
# A list consists of entries, each a number or a *progression* `{"first": f, "repeat": [[count, step], ...]}`: `count`
# numbers with differences `step` that begin with f, nested so that the last pair of `repeat` changes fastest. [8 9 24
# 25] is f = 8, [[2, 16], [2, 1]].

_SHORTEST = 3  # Minimum number of numbers of a progression


def shortened(numbers: Sequence[int]) -> list[object]:
    """Return a list of numbers as JSON: numbers and {"first", "repeat"} for arithmetic progressions.

    Args:
        numbers: The numbers to shorten, such as those of NPUs.
    """
    values = np.asarray(numbers, np.int64)
    steps = _steps(values)
    if steps is not None and len(values) >= _SHORTEST:
        return [_entry(int(values[0]), steps)]
    entries: list[object] = []
    at = 0
    while at < len(values):
        length = _run(values[at:])
        if length >= _SHORTEST:
            entries.append(_entry(int(values[at]), [[length, int(values[at + 1] - values[at])]]))
        else:
            length = 1
            entries.append(int(values[at]))
        at += length
    return entries


def numbers_of(entries: object, limit: int) -> Int64:
    """Return the numbers of a list in its short form. Raises ValueError: another form, or numbers above the limit.

    Args:
        entries: The list as parsed from JSON: numbers and progressions.
        limit: The maximum number of numbers, and a bound that each must be below in absolute value.
    """
    if not isinstance(entries, list):
        raise ValueError(f"found {_short(entries)}, expected a list of numbers and progressions")  # noqa: TRY004
    parts = [np.zeros(0, np.int64)]
    for entry in entries:
        parts.append(_numbers(entry, limit))
        if sum(map(len, parts)) > limit:
            raise ValueError(f"more than {limit} numbers, expected at most so many")
    return np.concatenate(parts)


def _entry(first: int, steps: list[list[int]]) -> dict[str, object]:
    return {"first": first, "repeat": steps}


def _run(values: Int64) -> int:
    """Return the length of the arithmetic progression at the beginning of the values."""
    if len(values) < 2:
        return len(values)
    breaks = np.flatnonzero(np.diff(values) != values[1] - values[0])
    return int(breaks[0]) + 1 if len(breaks) else len(values)


def _steps(values: Int64) -> list[list[int]] | None:
    """Return [count, step] of nested progressions with these values, the last changing fastest; None without any."""
    if len(values) <= 1:
        return [] if len(values) else None
    length = _run(values)
    # [8, 9, 24, 25]: the first run is [8, 9], rows are [[8, 9], [24, 25]], and 8, 24 is a progression
    if len(values) % length:
        return None
    rows = values.reshape(-1, length)
    # Every run must have the steps of the first one; their first values then form the outer progressions
    if np.any(rows - rows[:, :1] != rows[0] - rows[0, 0]):
        return None
    outer = _steps(rows[:, 0])
    return None if outer is None else [*outer, [length, int(values[1] - values[0])]]


def _numbers(entry: object, limit: int) -> Int64:
    """Return the numbers, all below a limit, of one entry of a shortened list: a number or a "first" with "repeat"."""
    if _is_number(entry, limit):
        return np.array([entry], np.int64)
    if type(entry) is int:
        raise ValueError(f"found {entry}, expected a number below {limit}")
    if not isinstance(entry, dict) or set(entry) != {"first", "repeat"}:
        raise ValueError(f'found {_short(entry)}, expected a number or {{"first": 0, "repeat": [[2, 1]]}}')
    first, repeat = entry["first"], entry["repeat"]
    if not _is_number(first, limit) or not isinstance(repeat, list) or not all(_is_pair(p, limit) for p in repeat):
        raise ValueError(f"found {_short(entry)}, expected numbers below {limit} and pairs [count, step]")
    if math.prod(count for count, _ in repeat) > limit:
        raise ValueError(f"found {_short(entry)}, expected at most {limit} numbers")
    values = np.array([first], np.int64)
    for count, step in repeat:
        values = (values[:, None] + np.arange(count) * step).reshape(-1)
    return values


def _is_pair(pair: object, most: int) -> bool:
    """Return whether a JSON value is [count, step] of a progression of numbers below a limit."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    count, step = pair
    return type(count) is int and 1 <= count <= most and _is_number(step, most)


def _is_number(value: object, most: int) -> bool:
    return type(value) is int and -most < value < most


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


# Traces that run several times, one after another: a rank begins again when all its nodes are done.


_MAX_NODES = 1 << 31  # rows of a trace are int32
_ABSENT = -1
_ABSENT_COLUMNS = (
    *("num_ops", "tensor_size", "comm_type", "comm_size"),
    *("comm_src", "comm_dst", "comm_tag", "involved_dim"),
)
"""Columns whose value -1 means that a node lacks them; of the other ones it is 0."""


def repeated(traces: TraceSet, times: int) -> TraceSet:
    """Return traces that do the same work several times in a row. Raises WorkloadError: they are too long.

    Between two times, a node without work follows all nodes of the earlier one and precedes those of the later one.

    Args:
        traces: The traces to repeat.
        times: The number of times.
    """
    return dataclasses.replace(traces, traces=[_repeated(table, times) for table in traces.traces])


def _repeated(table: TraceTable, times: int) -> TraceTable:
    """Return a trace that repeats a trace a number of times."""
    n = len(table)
    if times == 1 or n == 0:
        return table
    if (n + 1) * times >= _MAX_NODES:
        raise WorkloadError(f"{table.path}: {n:,} nodes, {times:,} times; expected fewer than 2^31 nodes")
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if isinstance(value, np.ndarray) and field.name not in {"dep_ptr", "dep", "node_id"}:
            between = np.full(1, _ABSENT if field.name in _ABSENT_COLUMNS else 0).astype(value.dtype)
            # n rows and the node in between, `times` times, without the one behind the last
            columns[field.name] = np.tile(np.concatenate([value, between]), times)[:-1]
    columns["type"][n :: n + 1] = NodeType.METADATA_NODE
    dep_ptr, dep = _parents(table, times)
    ids = np.arange(len(columns["type"]), dtype=np.uint64)
    return dataclasses.replace(table, **columns, names=_names(table, times), node_id=ids, dep_ptr=dep_ptr, dep=dep)


def _parents(table: TraceTable, times: int) -> tuple[Int64, np.ndarray]:
    """Return dep_ptr and dep of the repeated trace."""
    n, counts = len(table), np.diff(table.dep_ptr)
    # Nodes that no node waits for: the node in between waits for them
    leaves = np.setdiff1d(np.arange(n), table.dep)
    later_counts = np.maximum(counts, 1)  # the roots have the node in between as their parent
    later = np.full(int(later_counts.sum()), _ABSENT, np.int64)
    later[np.repeat(counts > 0, later_counts)] = table.dep
    dep, dep_counts = [table.dep.astype(np.int64)], [counts]
    for time in range(1, times):
        base = time * (n + 1)
        # Rows of time k begin at k (n + 1), and the node before them, base - 1, has the leaves of the time before as
        # parents. _ABSENT (-1) + base is that node, which thus becomes the parent of the roots.
        dep += [leaves + base - n - 1, later + base]
        dep_counts += [np.array([len(leaves)]), later_counts]
    return pointers(np.concatenate(dep_counts)), np.concatenate(dep).astype(np.int32)


def _names(table: TraceTable, times: int) -> ComposedNames:
    """Return the names of the repeated trace, which hold each name once."""
    n = len(table)
    names = table.names
    if isinstance(names, NameTable):
        head, tail = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
        heads, tails = names, NameTable.of([b""])
    else:
        head, tail, heads, tails = names.head, names.tail, names.heads, names.tails
    more = NameTable.of([*(name.encode() for name in heads), b"next iteration"])
    empty = NameTable.of([*(name.encode() for name in tails), b""])
    columns = (np.append(head, len(heads)), np.append(tail, len(tails)))
    return ComposedNames(more, empty, *(np.tile(column, times)[:-1].astype(np.int32) for column in columns))


NAME = MANIFEST_NAME
VERSION = 1
_EXPECTED = "the manifest of a trace set (JSON)"


class Manifest(NamedTuple):
    """Content of a manifest of T traces."""

    files: tuple[str, ...]  # Names of the files in the manifest's folder
    nodes: tuple[int, ...]  # Number of nodes of each trace
    example_npu: Int32  # int32[T], example NPU of each trace, see TraceSet
    trace_of_npu: Int32  # int32[npus], trace of each NPU, IDLE (-1) = no trace
    families: Families  # Families of groups, see TraceSet
    framework: str = ""  # Framework of the training steps, see TraceSet
    copied: frozenset[str] = frozenset()  # Families that copy engines serve, see TraceSet
    dispatch_sms: int = 0  # Number of multiprocessors that a dispatcher's kernels hold, see TraceSet
    leaves_sms: bool = True  # Whether products leave NCCL's multiprocessors free, see TraceSet


def _beside(file: str) -> str:
    """Return the name of a file, after a check that it leads to no other folder."""
    if file in {"", ".", ".."} or "/" in file or "\0" in file:
        raise ValueError(f"found {quoted(file)}; expected a name beside the manifest")
    return file


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TraceEntry(_Part):
    """An entry of a manifest's traces, as the file has it."""

    file: Annotated[str, AfterValidator(_beside)]  # Name of the trace's file
    # NPU whose peers the trace has, AS_WRITTEN (-1) = all NPUs have the same
    example: Annotated[int, Field(ge=AS_WRITTEN, strict=True)]
    nodes: Annotated[int, Field(ge=0, strict=True)]  # Number of nodes
    npus: list[Any]  # NPUs that run it, in the form of workload.trace_sets.manifest


class RegularFamily(_Part):
    """A family whose groups have equal offsets, as the file has it; its lists have the form of progressions."""

    groups: list[Any]  # First member of each group
    members: list[Any]  # Offsets of all members of a group from the first one


class ManifestFile(_Part):
    """A manifest as its file has it."""

    version: Literal[1]  # Version of the format
    npus: Annotated[int, Field(ge=1, le=MAX_NPUS, strict=True)]  # Number of NPUs
    traces: Annotated[tuple[TraceEntry, ...], Field(min_length=1)]  # Distinct traces
    idle: list[Any] = []  # NPUs without a trace, in the form of progressions
    families: dict[str, Any]  # A RegularFamily or a list of groups, which are lists in the form of progressions
    framework: Literal["", "megatron", "deepspeed", "fsdp"] = ""  # Framework of the training steps
    copied: frozenset[str] = frozenset()  # Families that copy engines serve
    dispatch_sms: Annotated[int, Field(ge=0, le=1 << 20, strict=True)] = 0  # Multiprocessors of a dispatcher's kernels
    leaves_sms: Annotated[bool, Field(strict=True)] = True  # Whether products leave NCCL's multiprocessors free


def written(manifest: Manifest) -> str:
    """Return the text of a manifest: JSON with one line per trace and family.

    Args:
        manifest: The content of the manifest.
    """
    traces = [
        {
            "file": file,
            "example": example,
            "nodes": nodes,
            "npus": shortened(np.flatnonzero(manifest.trace_of_npu == trace).tolist()),
        }
        for trace, (file, nodes, example) in enumerate(
            zip(manifest.files, manifest.nodes, manifest.example_npu.tolist(), strict=True)
        )
    ]
    lines = [f'"version": {VERSION}', f'"npus": {len(manifest.trace_of_npu)}']
    lines.append('"traces": [\n' + ",\n".join(json.dumps(trace) for trace in traces) + "\n]")
    idle = shortened(np.flatnonzero(manifest.trace_of_npu == IDLE).tolist())
    lines += [f'"idle": {json.dumps(idle)}'] * bool(idle)
    families = (f"{json.dumps(name)}: {json.dumps(_family(groups))}" for name, groups in manifest.families.items())
    lines.append('"families": {\n' + ",\n".join(families) + "\n}")
    lines += [f'"framework": {json.dumps(manifest.framework)}'] * bool(manifest.framework)
    lines += [f'"copied": {json.dumps(sorted(manifest.copied))}'] * bool(manifest.copied)
    lines += [f'"dispatch_sms": {manifest.dispatch_sms}'] * bool(manifest.dispatch_sms)
    lines += ['"leaves_sms": false'] * (not manifest.leaves_sms)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest.

    Raises WorkloadError: the file is unreadable, is no JSON or has another version; a key is unknown, missing or
    invalid; or an NPU is in no trace, in two traces, or in two groups of a family.

    Args:
        path: The path of the manifest.
    """
    data = checked(ManifestFile, _json(path), path, WorkloadError)
    npus, traces = data.npus, data.traces
    files = tuple(trace.file for trace in traces)
    if len(set(files)) < len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise WorkloadError(f"{path}: file {twice} stands twice, expected each once")
    users = [_npus(path, f"{trace.file}: npus: ", trace.npus, npus) for trace in traces]
    idle = _npus(path, "idle: ", data.idle, npus)
    for trace, own in zip(traces, users, strict=True):
        if trace.example != AS_WRITTEN and trace.example not in own:
            raise WorkloadError(f"{path}: {trace.file}: example is {trace.example}, expected one of its NPUs")
    if unknown := data.copied - data.families.keys():
        raise WorkloadError(f"{path}: copied has {quoted(min(unknown))}, expected names of families")
    return Manifest(
        files,
        tuple(trace.nodes for trace in traces),
        np.array([trace.example for trace in traces], np.int32),
        _trace_of_npu(path, files, users, idle, npus),
        {name: _groups(path, name, family, npus) for name, family in data.families.items()},
        data.framework,
        data.copied,
        data.dispatch_sms,
        data.leaves_sms,
    )


def _json(path: Path) -> object:
    """Return the JSON of a file; WorkloadError if it is unreadable or wrong."""
    # ValueError: also wrong UTF-8, a number of 5,000 digits
    with inputs.refusing(path, _EXPECTED, WorkloadError, ValueError, RecursionError):
        found: object = json.loads(inputs.read_text(path), object_pairs_hook=_without_repeats)
    return found


def _without_repeats(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the items of a JSON object; ValueError if a key occurs twice."""
    data = dict(items)
    if len(data) < len(items):
        names = [name for name, _ in items]
        raise ValueError(f'"{next(name for name in names if names.count(name) > 1)}" stands twice')
    return data


def _npus(path: Path, label: str, entries: object, npus: int) -> Int64:
    """Return the NPUs, below `npus`, that a list of JSON stands for; label: its place, for errors in file `path`."""
    try:
        found = numbers_of(entries, npus)
    except ValueError as error:
        raise WorkloadError(f"{path}: {label}{error}") from None
    wrong = found[found < 0]
    if len(wrong):
        raise WorkloadError(f"{path}: {label}found NPU {wrong[0]}, expected 0 to {npus - 1}")
    return found


def _trace_of_npu(
    path: Path, files: Sequence[str], npus_of_traces: Sequence[Int64], idle_npus: Int64, npus: int
) -> Int32:
    """Return the trace of each NPU, after checking that each NPU occurs once.

    Args:
        path: The path of the manifest, for errors.
        files: The file of each trace.
        npus_of_traces: The NPUs of each trace, int64[].
        idle_npus: The NPUs without a trace, int64[].
        npus: The number of NPUs.
    """
    every = np.concatenate([*npus_of_traces, idle_npus])
    counts = np.bincount(every, minlength=npus)
    if np.any(counts > 1):
        npu = int(np.argmax(counts > 1))
        named = zip([*files, "idle"], [*npus_of_traces, idle_npus], strict=True)
        places = [name for name, own in named for _ in range(int(np.count_nonzero(own == npu)))]
        raise WorkloadError(f"{path}: NPU {npu} is in {places[0]} and in {places[1]}, expected one trace for each NPU")
    if np.any(counts == 0):
        raise WorkloadError(f"{path}: NPU {int(np.argmin(counts))} is in no trace, expected it in one, or in idle")
    found = np.empty(npus, np.int32)
    # `every` has each NPU once by now; the number behind the last trace stands for idle ones until the next line
    found[every] = np.repeat(np.arange(len(npus_of_traces) + 1), [*map(len, npus_of_traces), len(idle_npus)])
    found[idle_npus] = IDLE
    return found


def _family(groups: Sequence[tuple[int, ...]]) -> object:
    """Return a family for JSON: first members and common offsets of its groups, or a list of groups."""
    if len(groups) > 1 and len({len(members) for members in groups}) == 1:
        table = np.array(groups, np.int64)
        # Groups with equal offsets, as [0, 8], [1, 9], ...: 10,000 of them take one line of JSON
        if np.all(table - table[:, :1] == table[0] - table[0, 0]):
            return {"groups": shortened(table[:, 0].tolist()), "members": shortened((table[0] - table[0, 0]).tolist())}
    return [shortened(members) for members in groups]


def _groups(path: Path, name: str, value: object, npus: int) -> tuple[tuple[int, ...], ...]:
    """Return a family's groups, NPU numbers, from its JSON value, after a check that each NPU is in at most one."""
    where = f'family "{name}": '
    if name in {"", "0"}:
        raise WorkloadError(f"{path}: {where}that name always means all NPUs, expected another one")
    if isinstance(value, list):
        groups = tuple(tuple(_npus(path, where, members, npus).tolist()) for members in value)
    else:
        parts = checked(RegularFamily, value, f"{path}: {where[:-2]}", WorkloadError)
        begin = _npus(path, f"{where}groups: ", parts.groups, npus)
        try:
            members = numbers_of(parts.members, npus)
        except ValueError as error:
            raise WorkloadError(f"{path}: {where}members: {error}") from None
        # Before the product is built: a short line of JSON could ask for 10^12 members
        if len(begin) * len(members) > npus:
            raise WorkloadError(
                f"{path}: {where}{len(begin)} groups of {len(members)}, expected at most {npus} members"
            )
        groups = tuple(map(tuple, (begin[:, None] + members).tolist()))
    _check_groups(f"{path}: {where}", groups, npus)
    return groups


def _check_groups(label: str, groups: Sequence[tuple[int, ...]], npus: int) -> None:
    """Check that groups have members below `npus`, each in one group; label: begin of errors."""
    if not groups or not all(groups):
        raise WorkloadError(f"{label}{'a group without members' if groups else 'no group'}, expected groups of NPUs")
    every = np.array([npu for members in groups for npu in members], np.int64)
    wrong = every[(every < 0) | (every >= npus)]
    if len(wrong):
        raise WorkloadError(f"{label}member {wrong[0]}, expected an NPU from 0 to {npus - 1}")
    many = np.bincount(every, minlength=npus)
    if np.any(many > 1):
        raise WorkloadError(f"{label}NPU {int(np.argmax(many > 1))} stands in it twice, expected it in one group")
