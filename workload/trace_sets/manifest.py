"""Manifest of a trace set: the file of each NPU, and the families of groups (format: docs/reference/traces.md)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from nadi import inputs
from nadi.et.files import MANIFEST_NAME
from nadi.inputs.arrays import Int32, Int64
from nadi.inputs.documents import checked, quoted
from nadi.inputs.limits import MAX_NPUS
from nadi.workload.errors import WorkloadError
from nadi.workload.trace_sets.repeating import numbers_of, shortened
from nadi.workload.trace_sets.trace_set import AS_WRITTEN, IDLE, Families

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
    npus: list[Any]  # NPUs that run it, in the form of workload.trace_sets.repeating


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
