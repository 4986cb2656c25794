"""Reading a trace file: as messages, or as a TraceTable."""

import dataclasses
import os
from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from et.columns import Columns
from et.decoder import decoded
from et.errors import StrictTraceError, TraceError
from et.framing import iter_messages
from et.order import dependency_cycle
from et.schema import GlobalMetadata, Node
from et.table import TraceTable

Path = str | os.PathLike[str]

_NODE_TYPE_FIELD = 3
_VERSION_ATTRIBUTE = "schema"


def read_messages(path: Path) -> tuple[Message, list[Message]]:
    """Read a trace file as protobuf messages: (GlobalMetadata, [Node, ...]), whatever the nodes say.

    Raises:
        TraceError: the file cannot be read, is truncated or corrupt.
    """
    messages = iter_messages(path)
    metadata = metadata_of(path, messages)
    return metadata, [_parse(path, offset, Node, message) for offset, message in messages]


def read_trace(path: Path, *, strict: bool = True, keep_others: bool = False) -> TraceTable:
    """Read a trace file as a table.

    Args:
        path: the file, gzipped or not.
        keep_others: keep attributes that no column takes, as bytes; for writing the table again.
        strict: False is for traces of real PyTorch runs. Dependencies on nodes that the file lacks are dropped and
            counted in TraceTable.dangling. Where control dependencies close a cycle and data dependencies do not,
            all control dependencies are dropped and counted in TraceTable.dropped_control: Chakra's converter puts
            the whole order into data_deps and leaves in ctrl_deps the parents of calls, with ids of the time before
            it renumbered the nodes; Chakra's own feeder resolves data_deps only.

    Raises:
        TraceError: the file cannot be read, is truncated or corrupt; a node has an invalid or unknown type, an id
            that another has, a dangling dependency, an attribute of the wrong kind or out of range, a collective
            that is not known or (other than on the host) not named; the dependencies (if not strict, the data
            dependencies) have a cycle.
    """
    found = decoded(path, keep_others=keep_others)
    if found is None:
        return _table(path, iter_messages(path), strict=strict, keep_others=keep_others)
    message, columns = found
    return _checked(path, metadata_of(path, iter([(0, message)])), columns, strict=strict)


def table_of(
    metadata: Message,
    nodes: Iterable[Message],
    path: Path = "<memory>",
    *,
    strict: bool = True,
    keep_others: bool = False,
) -> TraceTable:
    """The table that read_trace would read from a file of these messages.

    Raises:
        TraceError: as read_trace; in place of byte offsets stand numbers of messages.
    """
    messages = (message.SerializeToString() for message in (metadata, *nodes))
    return _table(path, enumerate(messages), strict=strict, keep_others=keep_others)


def _table(path: Path, messages: Iterator[tuple[int, bytes]], *, strict: bool, keep_others: bool) -> TraceTable:
    metadata = metadata_of(path, messages)
    columns = Columns(path, keep_others=keep_others)
    for offset, message in messages:
        if not message:
            raise TraceError(f"{path}: node 0: node type 0, expected 1 to 7")  # before millions more, as of zeros
        columns.add(offset, message)
    return _checked(path, metadata, columns, strict=strict)


def _checked(path: Path, metadata: Message, columns: Columns, *, strict: bool) -> TraceTable:
    """The table of all nodes, checked for what concerns them together."""
    table = columns.table(_version(metadata), strict=strict)
    cycle = dependency_cycle(table)
    if not cycle:
        return table
    without = columns.table(_version(metadata), strict=False, with_control=False)
    if strict:
        problem = f"{path}: dependency cycle {cycle}, expected no cycle"
        if dependency_cycle(without):
            raise TraceError(problem)
        raise StrictTraceError(problem, "drops control dependencies, which close it")
    held_up = dependency_cycle(without)
    if held_up:
        raise TraceError(f"{path}: dependency cycle {held_up}, expected no cycle")
    dangling_control = table.dangling - without.dangling
    return dataclasses.replace(without, dangling_control=dangling_control, control_cycle=cycle)


def _version(metadata: Message) -> str:
    """Of the schema. Traces that Chakra's converter makes of PyTorch's have an attribute in place of the field."""
    said = (attribute.string_val for attribute in metadata.attr if attribute.name == _VERSION_ATTRIBUTE)
    return metadata.version or next(said, "")


def metadata_of(path: Path, messages: Iterator[tuple[int, bytes]]) -> Message:
    """The first message. One with a node type is a node: metadata has no such field."""
    offset, message = next(messages)
    metadata = _parse(path, offset, GlobalMetadata, message)
    if any(field.field_number == _NODE_TYPE_FIELD for field in UnknownFieldSet(metadata)):
        raise TraceError(f"{path}: byte {offset}: found a Node, expected a GlobalMetadata first")
    return metadata


def _parse(path: Path, offset: int, message_class: type[Message], message: bytes) -> Message:
    try:
        return message_class.FromString(message)
    except DecodeError as error:
        expected = message_class.DESCRIPTOR.name
        raise TraceError(f"{path}: byte {offset}: corrupt message ({error}), expected a {expected}") from error
