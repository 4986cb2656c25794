"""Nodes as bytes: read without decoding their attributes, and written back unchanged."""

from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError, Message

from et.errors import TraceError
from et.framing import frame, iter_messages
from et.reader import metadata_of
from et.schema import WireNode


class WireTrace:
    """The messages of a trace file: its metadata at once, its nodes in an iteration.

    Attributes:
        metadata: Bytes of the GlobalMetadata.

    Args:
        path: Path of the file.

    Raises:
        TraceError: The file cannot be read, or its first message is no GlobalMetadata.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._messages = iter_messages(path)
        offset, self.metadata = next(self._messages)
        metadata_of(path, iter([(offset, self.metadata)]))
        self._at = offset + len(frame(self.metadata))

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes of each node."""
        for offset, message in self._messages:
            if offset != self._at:
                raise TraceError(
                    f"{self.path}: byte {self._at}: a message length in more bytes than necessary, expected the fewest"
                )
            self._at += len(frame(message))
            yield message

    def nodes(self) -> Iterator[tuple[bytes, Message]]:
        """Yield bytes and WireNode of each node.

        Raises:
            TraceError: The file is truncated or corrupt, as in `__iter__`, or a node is corrupt.
        """
        for message in self:
            begin = self._at - len(frame(message))
            try:
                yield message, WireNode.FromString(message)
            except DecodeError as error:
                raise TraceError(f"{self.path}: byte {begin}: corrupt message ({error}), expected a Node") from error
