"""Opening a trace to look at it: as a table if it is one, and node by node if something is wrong."""

import os
from typing import NamedTuple

from google.protobuf.message import DecodeError

from et.checking.looked import CheckedTrace
from et.checking.mending import changed_messages, readable_changes
from et.checking.raw import RawTrace
from et.errors import TraceError
from et.reader import read_trace, table_of
from et.schema import GlobalMetadata, Node


class OpenedTrace(NamedTuple):
    """A trace file.

    Attributes:
        trace: its number in Sources.
        path: the file.
        error: why there is no table; "" = there is one.
        raw: its nodes one by one; None where et.read_trace reads it and so nothing is wrong with its dependencies.
        looked: the table; None if there is none.
    """

    trace: int
    path: str
    error: str
    raw: RawTrace | None
    looked: CheckedTrace | None


def open_trace(trace: int, path: str | os.PathLike[str]) -> OpenedTrace:
    """Read a file. What is wrong with it is in the result, nothing is raised."""
    try:
        return OpenedTrace(trace, str(path), "", None, CheckedTrace(trace, read_trace(path)))
    except TraceError as error:
        said = str(error)
    raw = RawTrace(path)
    if raw.error:
        return OpenedTrace(trace, str(path), raw.error, raw, None)
    try:
        messages = changed_messages(raw, readable_changes(raw))
        metadata = GlobalMetadata.FromString(next(messages))
        table = table_of(metadata, map(Node.FromString, messages), path)
    except TraceError as error:
        said = str(error)
    except DecodeError:
        pass  # what reading it as a trace has said
    else:
        return OpenedTrace(trace, str(path), "", raw, CheckedTrace(trace, table))
    return OpenedTrace(trace, str(path), said, raw, None)
