"""The index of a master trace, in attributes of its GlobalMetadata, which lists the files that were merged.

A master trace is a Chakra trace of all NPUs: the nodes of one file after those of another, each with the attribute
`npu`, under ids that no other file uses. `nadi.*` attributes of the metadata hold what is needed to split it again:

| attribute | type | what |
| --- | --- | --- |
| nadi.master | int32_val | 1, the version of this table |
| nadi.files | bytes_list | names of the files |
| nadi.npus | int64_list | the NPU in each name, -1 = none |
| nadi.gzipped | bool_list | whether the file was gzipped |
| nadi.nodes | uint64_list | number of its nodes |
| nadi.least_id | uint64_list | the smallest id that it mentions |
| nadi.first | uint64_list | the id that replaces it in the master trace: the new id is id - least_id + first |
| nadi.extent | uint64_list | number of ids of the master trace that belong to the file |
| nadi.metadata | bytes_list | its own GlobalMetadata |
| nadi.ids.K | uint64_list | for a file K with widely spread ids: the ids that it mentions; the i-th becomes first + i |
| nadi.companions, nadi.companion_bytes | bytes_list | names and contents of traces.json and group files beside them |
"""

import bisect
import os
from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import Message

from nadi.et.builders import attribute, metadata
from nadi.et.errors import TraceError

VERSION = 1
NPU = "npu"
VERBATIM = "nadi.bytes"  # attribute with the original bytes of a node that protobuf would not write identically
_MASTER = "nadi.master"
_IDS = "nadi.ids."
# Attributes with a value per file, and their types.
_COLUMNS = {
    "nadi.files": "bytes_list",
    "nadi.npus": "int64_list",
    "nadi.gzipped": "bool_list",
    "nadi.nodes": "uint64_list",
    "nadi.metadata": "bytes_list",
    "nadi.least_id": "uint64_list",
    "nadi.first": "uint64_list",
    "nadi.extent": "uint64_list",
}


class Numbering(NamedTuple):
    """The conversion of ids of one file to ids of the master trace."""

    min_id: int  # smallest id that the file mentions
    first: int  # id of the master trace that replaces min_id
    extent: int  # number of ids of the master trace that belong to the file
    ids: tuple[int, ...] = ()  # all ids of the file, in order, if they are too widely spread to be shifted

    def to_master(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of the master trace for ids of the file.

        Args:
            ids: Ids that the file mentions.
        """
        if self.ids:
            # `ids` is sorted, so the place of an id is its number: 5, 900, 10^18 become first, first + 1, first + 2
            return [self.first + bisect.bisect_left(self.ids, i) for i in ids]
        shift = self.first - self.min_id
        return [i + shift for i in ids]

    def to_file(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of the file for ids of the master trace; raise ValueError if one is of another file.

        Args:
            ids: Ids of the master trace.
        """
        for i in ids:
            if not self.first <= i < self.first + self.extent:
                raise ValueError(f"id {i}, expected {self.first} to {self.first + self.extent - 1}")
        if self.ids:
            return [self.ids[i - self.first] for i in ids]
        shift = self.first - self.min_id
        return [i - shift for i in ids]


class MasterTraceFile(NamedTuple):
    """A file of a master trace."""

    name: str  # name of the file, without its folder
    npu: int  # NPU in the name, -1 = none
    gzipped: bool  # whether the file was gzipped
    nodes: int  # number of its nodes
    metadata: bytes  # bytes of its GlobalMetadata
    numbering: Numbering  # conversion of its ids


class Index(NamedTuple):
    """The files of a master trace."""

    members: tuple[MasterTraceFile, ...]  # trace files in the order of their nodes
    companions: tuple[tuple[str, bytes], ...]  # name and bytes of the other files in their folder


def master_metadata(index: Index, schema_version: str) -> Message:
    """Return the GlobalMetadata of a master trace.

    Args:
        index: The files that the master trace has.
        schema_version: The version of Chakra's schema of the merged traces; "" if they have different versions.
    """
    members = index.members
    # One attribute per column, which has an entry per file
    rows = [(os.fsencode(name), *own, *numbering[:3]) for name, *own, numbering in members]
    columns = zip(*rows, strict=True) if rows else [()] * len(_COLUMNS)
    attrs = [attribute(_MASTER, "int32", VERSION)]
    attrs += [attribute(name, kind, column) for (name, kind), column in zip(_COLUMNS.items(), columns, strict=True)]
    for number, member in enumerate(members):
        if member.numbering.ids:
            attrs.append(attribute(f"{_IDS}{number}", "uint64_list", member.numbering.ids))
    if index.companions:
        names, contents = zip(*index.companions, strict=True)
        attrs.append(attribute("nadi.companions", "bytes_list", [os.fsencode(name) for name in names]))
        attrs.append(attribute("nadi.companion_bytes", "bytes_list", contents))
    return metadata(schema_version, attrs)


def index_of(path: str | os.PathLike[str], global_metadata: Message) -> Index:
    """Return the files of a master trace, read from its GlobalMetadata.

    Args:
        path: The master trace, for errors.
        global_metadata: The GlobalMetadata message of the master trace.
    """
    attrs = {attr.name: attr for attr in global_metadata.attr}
    if _MASTER not in attrs:
        raise TraceError(f"{path}: a trace of one NPU, expected a master trace of `nadi trace merge`")
    if attrs[_MASTER].int32_val != VERSION:
        raise TraceError(f"{path}: {_MASTER} is {attrs[_MASTER].int32_val}, expected {VERSION}")

    def listed(name: str, kind: str) -> list:
        return list(getattr(attrs[name], kind).values) if name in attrs else []

    files, *columns = (listed(name, kind) for name, kind in _COLUMNS.items())
    names = [os.fsdecode(name) for name in files]
    companions = [os.fsdecode(name) for name in listed("nadi.companions", "bytes_list")]
    contents = listed("nadi.companion_bytes", "bytes_list")
    if any(len(column) != len(names) for column in columns) or len(companions) != len(contents):
        raise TraceError(f"{path}: attributes nadi.* of unequal length, expected one entry per file")
    members = []
    for number, (name, npu, gzipped, nodes, own, min_id, first, extent) in enumerate(zip(names, *columns, strict=True)):
        ids = tuple(listed(f"{_IDS}{number}", "uint64_list"))
        members.append(MasterTraceFile(name, npu, gzipped, nodes, own, Numbering(min_id, first, extent, ids)))
    for name in (*names, *companions):
        if not name or "/" in name or "\0" in name or name in {".", ".."}:
            raise TraceError(f"{path}: names a file {name!r}, expected a name without a folder")
    if len({*names, *companions}) < len(names) + len(companions):
        raise TraceError(f"{path}: names a file twice, expected each once")
    return Index(tuple(members), tuple(zip(companions, contents, strict=True)))
