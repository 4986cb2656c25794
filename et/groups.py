"""Communicators: the group file beside the traces, and the process groups that METADATA nodes define."""

import json
import os
from typing import Any

from google.protobuf.message import Message

from nadi import inputs
from nadi.et.attributes import ALL_NPUS, group_name, integer_list
from nadi.et.errors import TraceError
from nadi.et.schema import AttributeProto

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
