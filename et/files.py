"""Files of a set of traces: one per NPU with a common prefix, in a folder or a list, and the groups beside them."""

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import Message

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.et.schema import ALL_NPUS, AttributeProto, group_name, integer_list

GROUPS_NAME = "groups.json"
MANIFEST_NAME = "traces.json"


class PlainTraces(NamedTuple):
    """The files of one prefix."""

    prefix: Path  # folder and common beginning of the names
    files: dict[int, Path]  # file of each NPU


def plain_traces(path: str | os.PathLike[str]) -> PlainTraces:
    """Return the traces `<prefix>.<npu>.et` or `.et.gz` of a prefix, or of a folder that holds those of one prefix.

    Args:
        path: The prefix of the files' names, or a folder that holds the traces of one prefix.
    """
    given = Path(path)
    # First as a prefix, then as a folder
    of_prefix = _by_prefix(file for file in _listed(given.parent) if prefix_of(file) == given.name)
    folder = given.parent if of_prefix else given
    of_prefix = of_prefix or _by_prefix(_listed(folder))
    if not of_prefix:
        kind = inputs.kind_of(given)
        found = f"is {kind.words}, and there are no traces" if kind else "no traces"
        # The traces of a set have names of another form, NAME.npu<N>.et, and are read by the set's folder
        hint = f"; {given.parent} is a trace set" if (given.parent / MANIFEST_NAME).is_file() else ""
        raise TraceError(f"{given}: {found}, looked for {given}.<npu>.et, {given}.<npu>.et.gz and {given}{hint}")
    if len(of_prefix) > 1:
        examples = ", ".join(str(folder / name) for name in sorted(of_prefix)[:3])
        raise TraceError(f"{given}: traces of {len(of_prefix)} prefixes, expected one of them ({examples})")
    name, files = next(iter(of_prefix.items()))
    return PlainTraces(folder / name, dict(sorted(files.items())))


def _listed(folder: Path) -> list[Path]:
    """Return the sorted content of a folder, empty if the path is no folder."""
    with inputs.refusing(folder, "a folder of traces", TraceError):
        return sorted(folder.iterdir()) if folder.is_dir() else []


def files_of_npus(paths: Sequence[Path], name_end: str = ".et") -> dict[int, Path]:
    """Return the file of each NPU among files and folders, all of one prefix.

    Args:
        paths: The files and folders; a file without a number is NPU 0's.
        name_end: The end of the files' names.
    """
    listed = [file for given in paths for file in (sorted(given.iterdir()) if given.is_dir() else [given])]
    of_prefix = _by_prefix(listed, name_end, is_given=lambda file: file in paths)
    if not of_prefix:
        raise TraceError(f"{paths[0]}: no trace in it, expected files NAME.<npu>{name_end}")
    if len(of_prefix) > 1:
        first, second = (next(iter(files.values())) for files in list(of_prefix.values())[:2])
        raise TraceError(f"{second}: another name than {first.name}, expected one trace per NPU, all of one name")
    (files,) = of_prefix.values()
    return dict(sorted(files.items()))


def prefix_of(file: Path, suffix: str = ".et") -> str | None:
    """Return the text before the NPU's number in a file name; None if the name has another form.

    Args:
        file: The path of the file.
        suffix: The end of the file's name.
    """
    match = _named(file, suffix)
    return match[1] if match else None


def npu_of(file: Path) -> int | None:
    """Return the NPU of a trace `<prefix>.<npu>.et` or `.et.gz`; None if its name has no number there.

    Args:
        file: The path of the file.
    """
    match = _named(file, ".et")
    return int(match[2]) if match else None


def _named(file: Path, suffix: str) -> re.Match[str] | None:
    return re.fullmatch(rf"(.+)\.([0-9]{{1,9}}){re.escape(suffix)}(\.gz)?", file.name)


def _by_prefix(
    candidates: Iterable[Path], suffix: str = ".et", is_given: Callable[[Path], bool] = lambda _: False
) -> dict[str, dict[int, Path]]:
    """Return the file of each NPU by prefix; `is_given` selects files that count whatever their names are."""
    of_prefix: dict[str, dict[int, Path]] = {}
    for file in candidates:
        found = _named(file, suffix)
        if found is None and not is_given(file):
            continue
        files = of_prefix.setdefault(found[1] if found else file.name, {})
        npu = int(found[2]) if found else 0
        if npu in files:
            raise TraceError(f"{file}: second trace of NPU {npu}, besides {files[npu].name}, expected one per NPU")
        files[npu] = file
    return of_prefix


# Communicators: the group file beside the traces, and the process groups that METADATA nodes define.


Groups = dict[str, tuple[int, ...]]


def read_groups(path: str | os.PathLike[str]) -> Groups:
    """Read a group file, JSON `{"<id>": [npu, ...], ...}`; return the NPUs of each group in member order, by its name.

    Members are distinct integers from 0, at least one per group; "" and "0" (all NPUs) are no names of groups.

    Args:
        path: The path of the file.
    """
    try:
        data = json.loads(inputs.read_text(path), object_pairs_hook=_without_repeats)
    except OSError as error:
        _refuse_others(path)
        raise TraceError(f"{path}: {error.strerror or error}, expected a group file") from error
    except (ValueError, RecursionError) as error:  # also for wrong UTF-8, a repeated name, a number of 5,000 digits
        _refuse_others(path)
        raise TraceError(f'{path}: {error}, expected JSON like {{"1": [0, 1]}}') from error
    if not isinstance(data, dict) or not all(isinstance(members, list) for members in data.values()):
        _refuse_others(path)
    if not isinstance(data, dict):
        raise TraceError(f'{path}: found {_short(data)}, expected an object like {{"1": [0, 1]}}')
    return {name: _members(path, name, members) for name, members in data.items()}


def groups_of_metadata_node(node: Message) -> Groups:
    """Return the process groups of a METADATA node, a RawNode; empty if it defines no groups.

    Two forms are known: attributes pg_name and ranks; and PyTorch's "process_group:init", whose inputs hold
    `[{"pg_name": "1", "ranks": [0, 1], ...}, ...]` within brackets and quotes. No ranks means all NPUs. The default
    group ("" or "0") is left out.

    Args:
        node: The METADATA node, a RawNode.
    """
    attributes = {a.name: a for a in map(AttributeProto.FromString, node.attr)}
    # Chakra's form; otherwise PyTorch's
    if "pg_name" in attributes and "ranks" in attributes:
        groups = {group_name(attributes["pg_name"]): integer_list(attributes["ranks"])}
    else:
        groups = _process_groups(node.inputs.values)
    return {name: ranks for name, ranks in groups.items() if name not in {ALL_NPUS, "0"}}


def _process_groups(values: str) -> Groups:
    """Return the groups in the inputs of a node; empty if they are no such JSON (PyTorch truncates long strings)."""
    try:
        # The JSON is within brackets and quotes
        items = json.loads(values[values.find("[{") : values.rfind("}]") + 2])
    except ValueError:
        return {}
    groups = {}
    for item in items:
        name, ranks = item.get("pg_name"), item.get("ranks", [])
        if not isinstance(name, str) or not isinstance(ranks, list) or not all(type(r) is int for r in ranks):
            raise ValueError(f"process group {_short(item)}, expected pg_name (a string) and ranks (integers)")
        groups[name] = tuple(ranks)
    return groups


def _refuse_others(path: str | os.PathLike[str]) -> None:
    """Refuse a file of another kind by its kind."""
    kind = inputs.kind_of(path)
    if kind is not None and kind.key not in {"groups", "json", "text", "empty"}:
        raise TraceError(inputs.complaint(path, kind, 'a group file, JSON like {"1": [0, 1]}'))


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict; raise ValueError if a name occurs twice."""
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'group "{repeated}" occurs twice')
    return data


def _members(path: str | os.PathLike[str], group_name: str, npus: object) -> tuple[int, ...]:
    """Return the members of a group in a group file; raise TraceError unless they are distinct NPU numbers."""
    place = f'{path}: group "{group_name}"'
    if group_name in {ALL_NPUS, "0"}:
        raise TraceError(f"{place}: that name always means all NPUs, expected another one")
    if not isinstance(npus, list) or not npus:
        raise TraceError(f"{place}: found {_short(npus)}, expected a list of NPUs")
    for npu in npus:
        if type(npu) is not int or not 0 <= npu < 2**31:
            raise TraceError(f"{place}: member {_short(npu)}, expected an NPU number from 0")
    if len(set(npus)) < len(npus):
        repeated = next(npu for i, npu in enumerate(npus) if npu in npus[:i])
        raise TraceError(f"{place}: NPU {repeated} occurs twice, expected each member once")
    return tuple(npus)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:60]}..."


# The files of a trace set: those in a folder, or those with a common prefix.


_NAME = re.compile(r"(?P<prefix>.*?)\.(?:npu)?(?P<npu>\d+)\.et(?:\.gz)?", re.DOTALL)
_ENDINGS = (".et", ".et.gz")
_COMPANIONS = (MANIFEST_NAME, GROUPS_NAME)
_EXPECTED = "PREFIX of PREFIX.<npu>.et, a folder of traces, or a trace"
NO_NPU = -1


class TraceFile(NamedTuple):
    """One trace of a set."""

    npu: int  # NPU in the file's name; NO_NPU = -1 without one
    path: Path  # path of the file


def npu_of_name(file_name: str) -> int:
    """Return the NPU in a name `<prefix>.<npu>.et`, or `<prefix>.npu<npu>.et` of a trace set; -1 without one.

    Args:
        file_name: The name of a file without its folder.
    """
    match = _NAME.fullmatch(file_name)
    return int(match["npu"]) if match and int(match["npu"]) < 2**31 else NO_NPU


def find_files(location: str | os.PathLike[str]) -> list[TraceFile]:
    """Return the traces in a folder, those with a prefix, or the named one, sorted by NPU and name.

    Args:
        location: A folder, the common prefix of the files' paths, or the path of one trace.
    """
    path = Path(location)
    if path.is_dir():
        found = [TraceFile(npu_of_name(file.name), file) for file in _not_hidden(path) if file.name.endswith(_ENDINGS)]
    elif path.exists():
        found = [TraceFile(npu_of_name(path.name), path)]
    else:
        named = [(file, _NAME.fullmatch(file.name)) for file in _not_hidden(path.parent)]
        found = [
            TraceFile(npu_of_name(file.name), file) for file, match in named if match and match["prefix"] == path.name
        ]
    if not found:
        raise TraceError(f"{location}: no traces, expected {_EXPECTED}")
    return sorted(found, key=lambda file: (file.npu, file.path.name))


def companions(location: str | os.PathLike[str]) -> list[Path]:
    """Return the files that describe a trace set: its manifest, and its group files.

    A group file is `groups.json`, or `PREFIX.json` as STG writes it; for a folder, every group file in it.

    Args:
        location: A folder, the common prefix of the files' paths, or the path of one trace.
    """
    path = Path(location)
    if path.is_dir():
        candidates = [file for file in _not_hidden(path) if file.suffix == ".json"]
    else:
        prefix = match["prefix"] if (match := _NAME.fullmatch(path.name)) else path.name
        names = {*_COMPANIONS, f"{prefix}.json"}
        candidates = [file for file in _not_hidden(path.parent) if file.name in names]
    kinds = {file: inputs.kind_of(file) for file in candidates if file.is_file()}
    return [file for file, kind in kinds.items() if file.name in _COMPANIONS or (kind and kind.key == "groups")]


def _not_hidden(folder: Path) -> list[Path]:
    """Return the files of a folder that are not hidden, by name; raise TraceError if it cannot be read."""
    with inputs.refusing(folder, _EXPECTED, TraceError):
        return sorted(file for file in folder.iterdir() if not file.name.startswith("."))
