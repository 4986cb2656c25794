"""A master trace split into the files that it was merged of, byte for byte what they inflate to."""

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
    """What a master trace says of its files; its nodes are not looked at.

    Raises:
        TraceError: it cannot be read, or is no master trace.
    """
    return index_of(path, GlobalMetadata.FromString(WireTrace(Path(path)).metadata))


def split(path: str | os.PathLike[str], folder: Path) -> Index:
    """Write the files of a master trace into a folder that is there, under their own names.

    What a gzipped file inflates to is what it was; it is compressed anew.

    Args:
        path: the master trace.
        folder: for the files; the caller sees to it that they appear when all are complete.

    Raises:
        TraceError: the trace is corrupt or no master trace, has other nodes than it says, or a file cannot be written.
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
        raise TraceError(f"{path}: node {extra[1].id}: of no file, expected an id of one of {len(index.members)} files")
    for name, content in index.companions:
        (folder / name).write_bytes(content)
    return index


def _frames(
    path: str | os.PathLike[str], nodes: Iterator[tuple[bytes, Message]], member: MasterTraceFile
) -> Iterator[bytes]:
    """The messages of one file, whose nodes come next."""
    yield frame(member.metadata)
    for number in range(member.nodes):
        _, node = next(nodes, (b"", None))
        if node is None:
            raise TraceError(f"{path}: ends after {number} nodes of {member.name}, expected {member.nodes}")
        try:
            yield frame(_restored(node, member))
        except ValueError as error:
            raise TraceError(f"{path}: node {node.id}: not one of {member.name} as it was: {error}") from None


def _restored(node: Message, member: MasterTraceFile) -> bytes:
    """The bytes of a node of the file.

    Raises:
        ValueError: it has another's id, or lacks what `merge` has added.
    """
    ids = member.numbering.back([node.id])
    last = _pop(node)
    if last.name == VERBATIM:
        _refuse_other(_pop(node))
        return bytes(last.bytes_val)
    _refuse_other(last)
    node.id = ids[0]
    for deps in (node.ctrl_deps, node.data_deps):
        if deps:
            deps[:] = member.numbering.back(deps[:])
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
