"""Merging of the traces of several NPUs into one master trace, and splitting it into the same files again.

Files come back byte for byte; of gzipped files the inflated bytes do.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.et.files import TraceFile
from nadi.et.framing import frame, write_frames
from nadi.et.reshape.wire import WireTrace
from nadi.et.schema import AttributeProto, GlobalMetadata, attribute, metadata

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


_MAX_IDS = 1 << 62
_MAX_SHIFTED_EXTENT = 1 << 40  # files with a wider range of ids get consecutive numbers instead
_MAX_COMPANION_BYTES = 64 << 20
_GZIP_MAGIC = b"\x1f\x8b"


def merge(out: str | os.PathLike[str], files: Sequence[TraceFile], companions: Sequence[Path] = ()) -> Index:
    """Merge traces into one master trace, where each node has an id of its own and the attribute `npu`.

    Each file is read twice, and one file is in memory at a time. The master trace appears only when it is complete.

    Args:
        out: The master trace to write; it is gzipped if its name ends in .gz.
        files: The traces to merge, of distinct names.
        companions: Further files that the master trace keeps: a manifest, group files.
    """
    names = [file.path.name for file in files]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise TraceError(f"{repeated}: two files have that name, expected distinct names")
    out = Path(out)
    if any(out.absolute() == file.path.absolute() for file in files):
        raise TraceError(f"{out}: is one of the traces to merge, expected another name")
    members: list[MasterTraceFile] = []
    versions, first = set(), 0
    for file in files:
        members.append(_member(file, first))
        # Each file has a range of ids of its own: `split` finds a node's file by its place, and its id by a shift
        first += members[-1].numbering.extent
        versions.add(GlobalMetadata.FromString(members[-1].metadata).version)
    index = Index(tuple(members), tuple((file.name, _content(file)) for file in companions))
    metadata = master_metadata(index, versions.pop() if len(versions) == 1 else "")
    write_frames(out, _frames(metadata.SerializeToString(deterministic=True), index, files))
    return index


def _member(file: TraceFile, first_id: int) -> MasterTraceFile:
    """Return the index entry of a file, from a first pass over it; its ids in the master trace begin at `first_id`."""
    trace = WireTrace(file.path)
    ids: set[int] = set()
    mentioned: set[int] = set()
    nodes = 0
    for _, node in trace.nodes():
        nodes += 1
        if node.id in ids:
            raise TraceError(f"{file.path}: node {node.id}: the id occurs twice, expected each id once")
        ids.add(node.id)
        mentioned.update(node.ctrl_deps[:], node.data_deps[:])
    # Parents that no node has (dangling) need a number, too, to come back unchanged
    mentioned |= ids
    min_id = min(mentioned, default=0)
    extent = max(mentioned, default=-1) - min_id + 1
    dense: tuple[int, ...] = ()
    # Ids that are hashes would use up the master trace's range
    if extent > _MAX_SHIFTED_EXTENT:
        dense = tuple(sorted(mentioned))
        extent = len(dense)
    if first_id + extent > _MAX_IDS:
        raise TraceError(f"{file.path}: the traces so far have {_MAX_IDS} ids, expected fewer")
    with file.path.open("rb") as opened:
        gzipped = opened.read(2) == _GZIP_MAGIC
    numbering = Numbering(min_id, first_id, extent, dense)
    return MasterTraceFile(file.path.name, file.npu, gzipped, nodes, trace.metadata, numbering)


def _frames(master_metadata_bytes: bytes, index: Index, files: Sequence[TraceFile]) -> Iterator[bytes]:
    """Yield the messages of a master trace, each after its length."""
    yield frame(master_metadata_bytes)
    for file, member in zip(files, index.members, strict=True):
        npu = attribute(NPU, "int32", file.npu).SerializeToString(deterministic=True)
        trace = WireTrace(file.path)
        # The second pass must see the same file as the first
        if trace.metadata != member.metadata:
            raise TraceError(f"{file.path}: changed while it was read, expected it to stay the same")
        numbering = member.numbering
        for message, node in trace.nodes():
            # Protobuf can write the same node in other bytes: then keep the original ones for `split`
            is_plain = node.SerializeToString(deterministic=True) == message
            try:
                node.id = numbering.to_master([node.id])[0]
                for deps in (node.ctrl_deps, node.data_deps):
                    if deps:
                        deps[:] = numbering.to_master(deps[:])
            except (ValueError, IndexError):
                raise TraceError(f"{file.path}: changed while it was read, expected it to stay the same") from None
            node.attr.append(npu)
            if not is_plain:
                node.attr.append(attribute(VERBATIM, "bytes", message).SerializeToString(deterministic=True))
            yield frame(node.SerializeToString(deterministic=True))


def _content(file: Path) -> bytes:
    """Return the bytes of a file to keep; raise TraceError if it is too large."""
    with inputs.refusing(file, "a file to keep beside the traces", TraceError):
        return inputs.read_bytes(file, _MAX_COMPANION_BYTES)


def read_index(path: str | os.PathLike[str]) -> Index:
    """Return the files of a master trace without reading its nodes.

    Args:
        path: The master trace.
    """
    return index_of(path, GlobalMetadata.FromString(WireTrace(Path(path)).metadata))


def split(path: str | os.PathLike[str], folder: Path) -> Index:
    """Write the files of a master trace into an existing folder; the caller publishes them when all are complete.

    Gzipped files have the same inflated bytes as before; they are compressed again.

    Args:
        path: The master trace.
        folder: An existing folder for the files.
    """
    trace = WireTrace(Path(path))
    index = index_of(path, GlobalMetadata.FromString(trace.metadata))
    nodes = trace.nodes()
    for member in index.members:
        file = folder / member.name
        # The name decides about compression, but a file may be gzipped without .gz in its name
        staged = file.with_name(f"{member.name}.gz") if member.gzipped else file.with_name(f"{member.name}.plain")
        write_frames(staged, _frames_of_member(path, nodes, member))
        staged.replace(file)
    # All files are complete: nothing may be left
    extra = next(nodes, None)
    if extra is not None:
        expected = f"an id of one of {len(index.members)} files"
        raise TraceError(f"{path}: node {extra[1].id}: belongs to no file, expected {expected}")
    for name, content in index.companions:
        (folder / name).write_bytes(content)
    return index


def _frames_of_member(
    path: str | os.PathLike[str], nodes: Iterator[tuple[bytes, Message]], member: MasterTraceFile
) -> Iterator[bytes]:
    """Yield the messages of one file, whose nodes come next; `path` is the master trace."""
    yield frame(member.metadata)
    for number in range(member.nodes):
        _, node = next(nodes, (b"", None))
        if node is None:
            raise TraceError(f"{path}: ends after {number} nodes of {member.name}, expected {member.nodes}")
        try:
            yield frame(_restored(node, member))
        except ValueError as error:
            raise TraceError(f"{path}: node {node.id}: cannot be restored for {member.name}: {error}") from None


def _restored(node: Message, member: MasterTraceFile) -> bytes:
    """Return the bytes of a node of a file from the node in the master trace."""
    ids = member.numbering.to_file([node.id])
    # The last attribute is the NPU, or the original bytes with the NPU before
    last = _pop(node)
    if last.name == VERBATIM:
        _refuse_other(_pop(node))
        return bytes(last.bytes_val)
    _refuse_other(last)
    node.id = ids[0]
    for deps in (node.ctrl_deps, node.data_deps):
        if deps:
            deps[:] = member.numbering.to_file(deps[:])
    return bytes(node.SerializeToString(deterministic=True))


def _pop(node: Message) -> Message:
    """Remove the last attribute of a node and return it; raise ValueError if the node has no attribute."""
    if not node.attr:
        raise ValueError(f"no attribute {NPU}, expected one")
    try:
        return AttributeProto.FromString(node.attr.pop())
    except DecodeError as error:
        raise ValueError(f"a corrupt attribute ({error}), expected {NPU}") from None


def _refuse_other(attribute: Message) -> None:
    if attribute.name != NPU:
        raise ValueError(f"its last attribute is {attribute.name}, expected {NPU}")
