"""Opening of a trace for checks: as a table if it is readable, and node by node if something is wrong."""

import os
from typing import NamedTuple

from google.protobuf.message import DecodeError

from et.checking.checked_trace import CheckedTrace
from et.checking.fixing import changed_messages, readable_changes
from et.checking.raw import RawTrace
from et.errors import TraceError
from et.reader import read_trace, table_of
from et.schema import GlobalMetadata, Node


class OpenedTrace(NamedTuple):
    """A trace file."""

    trace: int  # number of the trace in Sources
    path: str  # path of the file
    error: str  # reason why there is no table; "" = there is a table
    # the nodes one by one; None if et.read_trace reads the file, so that its dependencies are right
    raw: RawTrace | None
    checked: CheckedTrace | None  # the table; None if it cannot be made


def open_trace(trace: int, path: str | os.PathLike[str]) -> OpenedTrace:
    """Read a file; its problems are in the result, and no error is raised."""
    try:
        return OpenedTrace(trace, str(path), "", None, CheckedTrace(trace, read_trace(path)))
    except TraceError as error:
        complaint = str(error)
    raw = RawTrace(path)
    if raw.error:
        return OpenedTrace(trace, str(path), raw.error, raw, None)
    try:
        messages = changed_messages(raw, readable_changes(raw))
        metadata = GlobalMetadata.FromString(next(messages))
        table = table_of(metadata, map(Node.FromString, messages), path)
    except TraceError as error:
        complaint = str(error)
    except DecodeError:
        pass  # the complaint of et.read_trace remains
    else:
        return OpenedTrace(trace, str(path), "", raw, CheckedTrace(trace, table))
    return OpenedTrace(trace, str(path), complaint, raw, None)
