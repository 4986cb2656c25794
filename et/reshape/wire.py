"""Nodes as bytes: read without decoding their attributes, and written back unchanged."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from google.protobuf.message import DecodeError, Message

from nadi.et.errors import TraceError
from nadi.et.framing import frame, iter_messages, write_frames
from nadi.et.reader import metadata_of
from nadi.et.schema import NodeType, WireNode
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Mask

Parents = Mapping[int, set[int]]


class WireTrace:
    """The messages of a trace file: its metadata (bytes of the GlobalMetadata) at once, its nodes in an iteration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._messages = iter_messages(path)
        offset, self.metadata = next(self._messages)
        metadata_of(path, iter([(offset, self.metadata)]))
        self._at = offset + len(frame(self.metadata))  # byte at which the next message must begin

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes of each node."""
        for offset, message in self._messages:
            # Copying a message writes its length in the fewest bytes. If the file has more, offsets would not match,
            # and `split` could not give the file back byte for byte.
            if offset != self._at:
                place = f"{self.path}: byte {self._at}"
                raise TraceError(f"{place}: a message length in more bytes than necessary, expected the fewest")
            self._at += len(frame(message))
            yield message

    def nodes(self) -> Iterator[tuple[bytes, Message]]:
        """Yield bytes and WireNode of each node."""
        for message in self:
            begin = self._at - len(frame(message))
            try:
                yield message, WireNode.FromString(message)
            except DecodeError as error:
                raise TraceError(f"{self.path}: byte {begin}: corrupt message ({error}), expected a Node") from error


def rewrite(
    out: Path,
    table: TraceTable,
    parents: Parents,
    joints: Mask,
    order: Sequence[int] | None = None,
    durations: Mapping[int, int] = MappingProxyType({}),
) -> None:
    """Write a part of a trace, with other dependencies; what else the nodes hold is unchanged.

    A control dependency that stays remains one. Dependencies that bridge removed nodes are data dependencies, which
    every reader of Chakra traces supports.

    Args:
        out: The file to write; it is gzipped if its name ends in .gz.
        table: The trace, whose file is read again.
        parents: The rows that stay, each with its parents among them.
        joints: bool[n], rows that become METADATA nodes, which do nothing.
        order: The rows in the order of the new file; None = the order of the old file.
        durations: New durations in microseconds, by row.
    """
    trace = WireTrace(Path(table.path))
    nodes = _nodes(trace, table, parents, joints, durations)
    if order is None:
        frames: Iterable[bytes] = (message for _, message in nodes)
    else:
        by_row = dict(nodes)
        frames = (by_row[row] for row in order)
    write_frames(out, itertools.chain([frame(trace.metadata)], frames))


def _nodes(
    trace: WireTrace, table: TraceTable, parents_of_row: Parents, joints: Mask, micros_of_row: Mapping[int, int]
) -> Iterator[tuple[int, bytes]]:
    """Yield row and frame of each node that stays, with its new dependencies."""
    row_of_id = {node_id: row for row, node_id in enumerate(table.node_id.tolist())}
    ids = table.node_id.tolist()
    for row, (message, node) in enumerate(trace.nodes()):
        if row not in parents_of_row:
            continue
        remaining = set(parents_of_row[row])
        # The dependencies that stay, control and data
        kept = [[i for i in deps if row_of_id.get(i, -1) in remaining] for deps in (node.ctrl_deps, node.data_deps)]
        untouched = kept[0] == node.ctrl_deps[:] and kept[1] == node.data_deps[:]
        # Parents that the file already names keep their kind; the others are new
        named = {row_of_id[i] for i in (*kept[0], *kept[1])}
        new = [ids[parent] for parent in sorted(remaining - named)]
        if untouched and not new and not joints[row] and row not in micros_of_row:
            yield row, frame(message)
            continue
        node.ctrl_deps[:], node.data_deps[:] = kept[0], kept[1] + new
        if joints[row]:
            node.type = NodeType.METADATA_NODE
            # A joint only connects its parents with its children: it keeps its id and name, but no work
            for field in ("duration_micros", "inputs", "outputs", "attr"):
                node.ClearField(field)
        elif row in micros_of_row:
            node.duration_micros = micros_of_row[row]
        yield row, frame(node.SerializeToString(deterministic=True))
