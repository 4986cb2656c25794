"""What a master trace says of the files that it was merged of, in attributes of its GlobalMetadata.

A master trace is a Chakra trace of all NPUs: the nodes of one file after those of another, each with the attribute
`npu`, under ids that no other file uses. `nadi.*` attributes of the metadata hold what is needed to split it again:

| attribute | type | what |
| --- | --- | --- |
| nadi.master | int32_val | 1, the version of this table |
| nadi.files | bytes_list | names of the files |
| nadi.npus | int64_list | the NPU that each name says, -1 = none |
| nadi.gzipped | bool_list | whether the file was |
| nadi.nodes | uint64_list | how many nodes it has |
| nadi.least_id | uint64_list | the least id that it mentions; its nodes have ids from |
| nadi.first | uint64_list | ... here on in the master trace: id - least_id + first |
| nadi.metadata | bytes_list | its own GlobalMetadata |
| nadi.ids.K | uint64_list | of file K, whose ids lie too far apart: those that it mentions; the i-th is first + i |
| nadi.companions, nadi.companion_bytes | bytes_list | names and contents of traces.json and group files beside them |
"""

import bisect
import os
from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import Message

from et.builders import attribute, metadata
from et.errors import TraceError

VERSION = 1
NPU = "npu"
VERBATIM = "nadi.bytes"
"""Of a node that protobuf would not write as it was: its own bytes."""
_MASTER = "nadi.master"
_IDS = "nadi.ids."


class Numbering(NamedTuple):
    """How the ids of one file become ids of the master trace.

    Attributes:
        least: the least id that the file mentions.
        first: what that becomes.
        ids: the ids that the file mentions, in order, where they lie too far apart to be shifted; else none.
        extent: how many ids of the master trace belong to the file.
    """

    least: int
    first: int
    extent: int
    ids: tuple[int, ...] = ()

    def into(self, ids: Sequence[int]) -> list[int]:
        """Ids of the master trace."""
        if self.ids:
            return [self.first + bisect.bisect_left(self.ids, i) for i in ids]
        shift = self.first - self.least
        return [i + shift for i in ids]

    def back(self, ids: Sequence[int]) -> list[int]:
        """Ids of the file.

        Raises:
            ValueError: one is not the file's.
        """
        for i in ids:
            if not self.first <= i < self.first + self.extent:
                raise ValueError(f"id {i}, expected {self.first} to {self.first + self.extent - 1}")
        if self.ids:
            return [self.ids[i - self.first] for i in ids]
        shift = self.first - self.least
        return [i - shift for i in ids]


class MasterTraceFile(NamedTuple):
    """A file of a master trace.

    Attributes:
        name: of the file, without its folder.
        npu: that the name says, -1 = none.
        gzipped: whether it was.
        nodes: how many it has.
        metadata: its GlobalMetadata.
        numbering: of its ids.
    """

    name: str
    npu: int
    gzipped: bool
    nodes: int
    metadata: bytes
    numbering: Numbering


class Index(NamedTuple):
    """What a master trace says of its files.

    Attributes:
        members: in the order of their nodes.
        companions: name and bytes of the files that stood beside them.
    """

    members: tuple[MasterTraceFile, ...]
    companions: tuple[tuple[str, bytes], ...]


def written(index: Index, version: str) -> Message:
    """The GlobalMetadata of a master trace."""
    members = index.members
    attrs = [
        attribute(_MASTER, "int32", VERSION),
        attribute("nadi.files", "bytes_list", [os.fsencode(member.name) for member in members]),
        attribute("nadi.npus", "int64_list", [member.npu for member in members]),
        attribute("nadi.gzipped", "bool_list", [member.gzipped for member in members]),
        attribute("nadi.nodes", "uint64_list", [member.nodes for member in members]),
        attribute("nadi.least_id", "uint64_list", [member.numbering.least for member in members]),
        attribute("nadi.first", "uint64_list", [member.numbering.first for member in members]),
        attribute("nadi.extent", "uint64_list", [member.numbering.extent for member in members]),
        attribute("nadi.metadata", "bytes_list", [member.metadata for member in members]),
    ]
    for number, member in enumerate(members):
        if member.numbering.ids:
            attrs.append(attribute(f"{_IDS}{number}", "uint64_list", member.numbering.ids))
    if index.companions:
        names, contents = zip(*index.companions, strict=True)
        attrs.append(attribute("nadi.companions", "bytes_list", [os.fsencode(name) for name in names]))
        attrs.append(attribute("nadi.companion_bytes", "bytes_list", contents))
    return metadata(version, attrs)


def index_of(path: str | os.PathLike[str], said: Message) -> Index:
    """The files of a master trace, by its GlobalMetadata.

    Raises:
        TraceError: it is no master trace, one of another version, or says things that do not fit together.
    """
    attrs = {attr.name: attr for attr in said.attr}
    if _MASTER not in attrs:
        raise TraceError(f"{path}: a trace of one NPU, expected a master trace of `nadi trace merge`")
    if attrs[_MASTER].int32_val != VERSION:
        raise TraceError(f"{path}: {_MASTER} is {attrs[_MASTER].int32_val}, expected {VERSION}")

    def listed(name: str, kind: str) -> list:
        return list(getattr(attrs[name], kind).values) if name in attrs else []

    names = [os.fsdecode(name) for name in listed("nadi.files", "bytes_list")]
    columns = (
        listed("nadi.npus", "int64_list"),
        listed("nadi.gzipped", "bool_list"),
        listed("nadi.nodes", "uint64_list"),
        listed("nadi.metadata", "bytes_list"),
        listed("nadi.least_id", "uint64_list"),
        listed("nadi.first", "uint64_list"),
        listed("nadi.extent", "uint64_list"),
    )
    companions = [os.fsdecode(name) for name in listed("nadi.companions", "bytes_list")]
    contents = listed("nadi.companion_bytes", "bytes_list")
    if any(len(column) != len(names) for column in columns) or len(companions) != len(contents):
        raise TraceError(f"{path}: attributes nadi.* of unequal length, expected an entry for each file")
    members = []
    for number, (name, npu, gzipped, nodes, own, least, first, extent) in enumerate(zip(names, *columns, strict=True)):
        ids = tuple(listed(f"{_IDS}{number}", "uint64_list"))
        members.append(MasterTraceFile(name, npu, gzipped, nodes, own, Numbering(least, first, extent, ids)))
    for name in (*names, *companions):
        if not name or "/" in name or "\0" in name or name in {".", ".."}:
            raise TraceError(f"{path}: names a file {name!r}, expected a name without a folder")
    if len({*names, *companions}) < len(names) + len(companions):
        raise TraceError(f"{path}: names a file twice, expected each once")
    return Index(tuple(members), tuple(zip(companions, contents, strict=True)))
