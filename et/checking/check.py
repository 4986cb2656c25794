"""The base class of all checks in `et.checks`, and what they get: traces, as a table or node by node."""

import os
from collections.abc import Iterable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from nadi.et.checking.checked_trace import CheckedTrace
from nadi.et.checking.finding import Finding
from nadi.et.checking.fixing import changed_messages, readable_changes
from nadi.et.checking.raw import RawTrace
from nadi.et.checking.sources import Communicators, Sources
from nadi.et.errors import TraceError
from nadi.et.reader import read_trace, table_of
from nadi.et.schema import GlobalMetadata, Node

_MAX_OPEN_TRACES = 4


class OpenedTrace(NamedTuple):
    """A trace file."""

    trace: int  # number of the trace in Sources
    path: str  # path of the file
    error: str  # reason why there is no table; "" = there is a table
    raw: RawTrace | None  # the nodes one by one; None if et.read_trace reads the file, so that dependencies are right
    checked: CheckedTrace | None  # the table; None if it cannot be made


def open_trace(trace_number: int, path: str | os.PathLike[str]) -> OpenedTrace:
    """Return the content of a trace file; its problems are in the result, and no error is raised.

    Args:
        trace_number: The number of the trace in Sources.
        path: The path of the file.
    """
    try:
        return OpenedTrace(trace_number, str(path), "", None, CheckedTrace(trace_number, read_trace(path)))
    except TraceError as error:
        complaint = str(error)
    raw = RawTrace(path)
    if raw.error:
        return OpenedTrace(trace_number, str(path), raw.error, raw, None)
    try:
        messages = changed_messages(raw, readable_changes(raw))
        metadata = GlobalMetadata.FromString(next(messages))
        table = table_of(metadata, map(Node.FromString, messages), path)
    except TraceError as error:
        complaint = str(error)
    except DecodeError:
        pass  # the complaint of et.read_trace remains
    else:
        return OpenedTrace(trace_number, str(path), "", raw, CheckedTrace(trace_number, table))
    return OpenedTrace(trace_number, str(path), complaint, raw, None)


class CheckContext:
    """State that all checks of one pass share."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.communicators = Communicators(sources)
        self.unread: set[int] = set()  # numbers of the traces visited so far that cannot be read
        self._kept: dict[int, OpenedTrace] = {}

    def reopened(self, trace_number: int) -> CheckedTrace:
        """Return a readable trace once more, for details; the last few stay in memory.

        Args:
            trace_number: The number of the trace in Sources.
        """
        if trace_number not in self._kept:
            if len(self._kept) >= _MAX_OPEN_TRACES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[trace_number] = open_trace(trace_number, self.sources.files[trace_number])
        checked = self._kept[trace_number].checked
        if checked is None:
            raise RuntimeError(f"{self.sources.files[trace_number]}: changed during the check")
        return checked


class Check:
    """Examines each trace, then everything that it has collected; its memory must not grow with the number of nodes."""

    def __init__(self, context: CheckContext) -> None:
        self.context = context
        self.sources = context.sources

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:  # noqa: ARG002 - most checks ignore files
        """Return what is wrong with a file, readable or not.

        Args:
            opened: The file, readable or not.
        """
        return ()

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:  # noqa: ARG002 - some checks use files only
        """Return what is wrong with a trace.

        Args:
            checked: The trace to check.
        """
        return ()

    def end(self) -> Iterable[Finding]:
        """Return what is wrong with all traces together; not called for one file out of several."""
        return ()
