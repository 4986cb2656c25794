"""Chakra's JSON traces with `workload_graph`, which its feeder reads beside its binary ones.

    {"workload_graph": [
      {"Id": 1, "Name": "fwd", "NodeType": 4, "is_cpu_op": false, "runtime": 12, "data_deps": []},
      {"Id": 2, "Name": "sum", "NodeType": 7, "is_cpu_op": false, "data_deps": [1], "comm_type": 0, "comm_size": 1024}]}

A file is one NPU's trace. `NodeType` and `comm_type` are the numbers of the schema, `runtime` is in microseconds. All
other keys of a node are attributes of the same name.

Source: mlcommons/chakra, src/feeder/json_node.cpp and wrapper_node.cpp.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import Message

from et.attributes import KINDS
from et.builders import attribute
from et.errors import TraceError
from et.schema import Node

GRAPH = "workload_graph"
_FIELDS = {"Id": "id", "Name": "name", "NodeType": "type", "runtime": "duration_micros"}
_LISTS = {"data_deps", "ctrl_deps"}


def nodes_of_graph(path: str, document: Mapping[str, Any]) -> Iterator[Message]:
    """Make the nodes of a file, from its JSON object with `workload_graph`; errors begin with `path`."""
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
    for kind, name in ((bool, "bool"), (int, "int64"), (float, "double"), (str, "string")):
        if isinstance(value, kind):
            return name
    raise TypeError("expected a number, a text, true or false")
