"""Chakra traces as JSON, in two kinds.

The first kind holds the objects of protobuf's JSON for GlobalMetadata and each Node, as a sequence. Chakra's
chakra_jsonizer writes them; a list of them is read, too. Field names are read as protobuf writes them ("dataDeps") and
as in the schema ("data_deps"), 64-bit integers as strings and as numbers. The second kind is one object with
`workload_graph`, which Chakra's feeder reads beside its binary traces (src/feeder/json_node.cpp, wrapper_node.cpp):

    {"workload_graph": [
      {"Id": 1, "Name": "fwd", "NodeType": 4, "is_cpu_op": false, "runtime": 12, "data_deps": []},
      {"Id": 2, "Name": "sum", "NodeType": 7, "is_cpu_op": false, "data_deps": [1], "comm_type": 0, "comm_size": 1024}]}

Its `NodeType` and `comm_type` are the numbers of the schema, `runtime` is in microseconds. All other keys of a node are
attributes of the same name.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from nadi import inputs
from nadi.et.errors import TraceError, advising
from nadi.et.files import GROUPS_NAME, files_of_npus, prefix_of
from nadi.et.formats.chakra import OPTIONS as CHAKRA_OPTIONS, groups_in, is_strict, write_groups
from nadi.et.framing import split_frames
from nadi.et.reader import table_of
from nadi.et.schema import KINDS, AttributeProto, GlobalMetadata, Node, NodeType, RawNode, attribute
from nadi.et.table import LazyTraces, TraceTable, TraceTables, frames_of

NAME = "json"
TITLE = "Chakra traces as JSON, NAME.<npu>.json"
OPTIONS = CHAKRA_OPTIONS
_SUFFIX = ".json"
_KEYS = frozenset({"chakra-json", "gzip:chakra-json"})
_MAX_BYTES = 1 << 30
_MAX_CACHED_ATTRIBUTES = 1 << 16
_EXPECTED = "a Chakra trace as JSON"
_SPACE = re.compile(r"[\s,]*")
GRAPH = "workload_graph"
_FIELDS = {"Id": "id", "Name": "name", "NodeType": "type", "runtime": "duration_micros"}
_LISTS = {"data_deps", "ctrl_deps"}


def recognises(path: Path) -> bool:
    """Return whether the path is a Chakra trace as JSON, or a folder whose numbered JSON files are.

    Args:
        path: The path of a file or folder.
    """
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if prefix_of(file, _SUFFIX))
        return bool(found) and recognises(found[0])
    kind = inputs.kind_of(path)
    return kind is not None and kind.key in _KEYS


def read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables:
    """Return the traces of files or a folder; a file without a number is NPU 0's.

    Args:
        paths: The files or folders that the user gives.
        options: The values of the format's options by name: only strict.
    """
    files = files_of_npus(paths, _SUFFIX)
    strict = is_strict(options)
    return TraceTables(LazyTraces(files.keys(), lambda npu: read_json(files[npu], strict=strict)), groups_in(paths))


def read_json(path: Path, *, strict: bool = True) -> TraceTable:
    """Return the trace of one file, gzipped or not.

    Args:
        path: The path of the file.
        strict: Whether dependencies on missing nodes, and control dependencies that close cycles, are errors; else they
            are dropped.
    """
    messages = _messages(path)
    metadata = next(messages, None)
    if metadata is None:
        raise TraceError(f"{path}: no object in it, expected {_EXPECTED}")
    with advising(f"--from {NAME}:strict=false"):
        return table_of(metadata, messages, path, strict=strict, keep_others=True)


def names(traces: TraceTables, prefix: str) -> list[str]:
    """Return `prefix.<npu>.json` for each NPU, and the group file.

    Args:
        traces: The traces by NPU, with their groups.
        prefix: The beginning of the files' names.
    """
    return [*(f"{prefix}.{npu}.json" for npu in traces.tables), *([GROUPS_NAME] if traces.groups else [])]


def write(traces: TraceTables, folder: Path, prefix: str, options: Mapping[str, str]) -> None:  # noqa: ARG001 - none
    """Write each trace to the file PREFIX.NPU.json in a folder, one line per object.

    Args:
        traces: The traces by NPU, with their groups.
        folder: The folder of the files.
        prefix: The beginning of the files' names.
        options: The values of options by name: there are no options.
    """
    for npu, table in traces.tables.items():
        with (folder / f"{prefix}.{npu}.json").open("w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(found)}\n" for found in objects(table))
    write_groups(traces, folder)


def objects(table: TraceTable) -> Iterator[dict[str, Any]]:
    """Yield the metadata and the nodes of a trace, as protobuf's JSON has them.

    Args:
        table: The trace as a table of columns.
    """
    frames = frames_of(table)
    metadata = next(split_frames(next(frames)))
    yield json_format.MessageToDict(GlobalMetadata.FromString(metadata))
    for batch in frames:
        for message in split_frames(batch):
            yield _object(RawNode.FromString(message))


def _object(node: Message) -> dict[str, Any]:
    """Return a node without fields that are 0 or empty, as protobuf writes it."""
    fields: dict[str, Any] = {
        "id": str(node.id) if node.id else "",
        "name": node.name.decode(),
        "type": NodeType(node.type).name,
        "ctrlDeps": [str(parent) for parent in node.ctrl_deps],
        "dataDeps": [str(parent) for parent in node.data_deps],
        "startTimeMicros": str(node.start_time_micros) if node.start_time_micros else "",
        "durationMicros": str(node.duration_micros) if node.duration_micros else "",
        "inputs": json_format.MessageToDict(node.inputs) if node.HasField("inputs") else None,
        "outputs": json_format.MessageToDict(node.outputs) if node.HasField("outputs") else None,
        "attr": [_attribute_object(message) for message in node.attr],
    }
    return {name: value for name, value in fields.items() if value}


@functools.lru_cache(_MAX_CACHED_ATTRIBUTES)  # a trace repeats a few attributes
def _attribute_object(message: bytes) -> dict[str, Any]:
    """Return an attribute as an object of JSON."""
    return json_format.MessageToDict(AttributeProto.FromString(message))


@functools.lru_cache(_MAX_CACHED_ATTRIBUTES)
def _attribute(text: str) -> Message:
    """Return the attribute of an object of JSON."""
    return json_format.ParseDict(json.loads(text), AttributeProto())


def _messages(path: Path) -> Iterator[Message]:
    """Yield the GlobalMetadata in a JSON file, then its Nodes."""
    for number, found in enumerate(_objects(path)):
        place = f"{path}: object {number}"
        if not isinstance(found, dict):
            raise TraceError(f"{place}: found {json.dumps(found)[:60]}, expected an object")
        if number == 0 and GRAPH in found:
            yield GlobalMetadata()
            yield from nodes_of_graph(str(path), found)
            continue
        try:
            if number == 0:
                if "type" in found or "id" in found:
                    raise TraceError(f"{place}: found a Node, expected a GlobalMetadata first")
                yield json_format.ParseDict(found, GlobalMetadata())
                continue
            # Attributes repeat within a trace: parse each distinct one once, apart from its node
            attributes = found.pop("attr", [])
            node = json_format.ParseDict(found, Node())
            if not isinstance(attributes, list):
                raise TraceError(f"{place}: attr is {json.dumps(attributes)[:60]}, expected a list")
            node.attr.extend(_attribute(json.dumps(attribute)) for attribute in attributes)
        except (json_format.ParseError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, TraceError):
                raise
            # Messages of protobuf have several lines
            text = " ".join(str(error).split())[:200]
            raise TraceError(f"{place}: {text}, expected a Chakra {'node' if number else 'GlobalMetadata'}") from error
        yield node


def _objects(path: Path) -> Iterator[object]:
    """Yield the JSON values in a file, which are a sequence or a list."""
    text = _text(path)
    decoder = json.JSONDecoder()
    at = _skip_space(text, 0)
    in_list = text.startswith("[", at)
    # Behind the bracket of a list
    at += in_list
    while True:
        at = _skip_space(text, at)
        if at == len(text) or (in_list and text[at] == "]"):
            # A list that was cut off, or text behind its end: both are damaged files
            if in_list and (at == len(text) or text[at + 1 :].strip()):
                raise TraceError(f"{path}: character {at}: the list does not end with ], expected {_EXPECTED}")
            return
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:  # also for a number of 5,000 digits
            problem = getattr(error, "msg", str(error))
            raise TraceError(f"{path}: character {at}: {problem}, expected {_EXPECTED}") from error
        yield found


def _skip_space(text: str, position: int) -> int:
    """Return the position in `text` at which the next value begins; commas between values count as space."""
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _text(path: Path) -> str:
    """Return the text of a file, inflated; raise TraceError if it is larger than 1 GiB or not UTF-8."""
    parts, size = [], 0
    with inputs.refusing(path, _EXPECTED, TraceError, UnicodeDecodeError):
        for block in inputs.blocks(path):
            size += len(block)
            if size > _MAX_BYTES:
                raise TraceError(f"{path}: more than 1 GiB of JSON, expected less")
            parts.append(block)
        return b"".join(parts).decode("utf-8-sig")


def nodes_of_graph(path: str, document: Mapping[str, Any]) -> Iterator[Message]:
    """Yield the nodes of a file with `workload_graph`.

    Args:
        path: The path of the file, for errors.
        document: The content of the file as a JSON object.
    """
    graph = document[GRAPH]
    if not isinstance(graph, list):
        raise TraceError(f"{path}: {GRAPH} is {json.dumps(graph)[:60]}, expected a list of nodes")
    for number, entry in enumerate(graph):
        place = f"{path}: entry {number} of {GRAPH}"
        if not isinstance(entry, dict) or not {"Id", "NodeType"} <= entry.keys():
            raise TraceError(f"{place}: found {json.dumps(entry)[:60]}, expected a node with Id and NodeType")
        node = Node()
        for key, value in entry.items():
            try:
                _set(node, key, value)
            except (ValueError, TypeError) as error:
                text = " ".join(str(error).split())[:120]
                raise TraceError(f"{place}: {key} is {json.dumps(value)[:60]}: {text}") from error
        yield node


def _set(node: Message, key: str, value: object) -> None:
    """Set a field or attribute of a node from a key and its value; raise ValueError or TypeError for a wrong value."""
    if key in _FIELDS:
        setattr(node, _FIELDS[key], value)
    elif key in _LISTS:
        if not isinstance(value, list):
            raise TypeError("expected a list of ids")
        getattr(node, key).extend(value)
    else:
        node.attr.append(attribute(key, KINDS.get(key) or _kind(value), value))


def _kind(value: object) -> str:
    """Return the attribute type for a value whose key is unknown."""
    # bool comes first, as true is an int in Python, too
    for kind, name in ((bool, "bool"), (int, "int64"), (float, "double"), (str, "string")):
        if isinstance(value, kind):
            return name
    raise TypeError("expected a number, a text, true or false")
