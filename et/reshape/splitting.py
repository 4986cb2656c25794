"""Splitting of a master trace into the files that were merged, byte for byte (of gzipped files: the inflated bytes)."""

import os
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError, Message

from et.errors import TraceError
from et.framing import frame
from et.reshape.master import NPU, VERBATIM, Index, MasterTraceFile, index_of
from et.reshape.wire import WireTrace
from et.schema import AttributeProto, GlobalMetadata
from et.writer import write_frames


def read_index(path: str | os.PathLike[str]) -> Index:
    """Return the files of a master trace without reading its nodes."""
    return index_of(path, GlobalMetadata.FromString(WireTrace(Path(path)).metadata))


def split(path: str | os.PathLike[str], folder: Path) -> Index:
    """Write the files of a master trace into an existing folder, under their own names.

    Gzipped files have the same inflated bytes as before; they are compressed again.

    Args:
        path: The master trace.
        folder: Folder for the files; the caller publishes them when all are complete.

    Raises:
        TraceError: The trace is corrupt or no master trace, its nodes differ from its index, or a file cannot be
            written.
    """
    trace = WireTrace(Path(path))
    index = index_of(path, GlobalMetadata.FromString(trace.metadata))
    nodes = trace.nodes()
    for member in index.members:
        file = folder / member.name
        staged = file.with_name(f"{member.name}.gz") if member.gzipped else file.with_name(f"{member.name}.plain")
        write_frames(staged, _frames(path, nodes, member))
        staged.replace(file)
    extra = next(nodes, None)
    if extra is not None:
        raise TraceError(
            f"{path}: node {extra[1].id}: belongs to no file, expected an id of one of {len(index.members)} files"
        )
    for name, content in index.companions:
        (folder / name).write_bytes(content)
    return index


def _frames(
    path: str | os.PathLike[str], nodes: Iterator[tuple[bytes, Message]], member: MasterTraceFile
) -> Iterator[bytes]:
    """Yield the messages of one file, whose nodes come next."""
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
    """Return the bytes of a node of the file."""
    ids = member.numbering.to_file([node.id])
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
    if not node.attr:
        raise ValueError(f"no attribute {NPU}, expected one")
    try:
        return AttributeProto.FromString(node.attr.pop())
    except DecodeError as error:
        raise ValueError(f"a corrupt attribute ({error}), expected {NPU}") from None


def _refuse_other(attribute: Message) -> None:
    if attribute.name != NPU:
        raise ValueError(f"its last attribute is {attribute.name}, expected {NPU}")
