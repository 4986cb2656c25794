"""The base class of all checks in `et.checks`."""

from collections.abc import Iterable

from et.checking.checked_trace import CheckedTrace
from et.checking.communicators import Communicators
from et.checking.finding import Finding
from et.checking.opened import OpenedTrace, open_trace
from et.checking.sources import Sources

_MAX_OPEN_TRACES = 4


class CheckContext:
    """State that all checks of one pass share.

    Attributes:
        sources: The traces to check.
        communicators: Groups of the traces.
        unread: Numbers of the traces visited so far that cannot be read.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.communicators = Communicators(sources)
        self.unread: set[int] = set()
        self._kept: dict[int, OpenedTrace] = {}

    def reopened(self, trace: int) -> CheckedTrace:
        """Return a readable trace once more, for details; the last few stay in memory."""
        if trace not in self._kept:
            if len(self._kept) >= _MAX_OPEN_TRACES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[trace] = open_trace(trace, self.sources.files[trace])
        checked = self._kept[trace].checked
        if checked is None:
            raise RuntimeError(f"{self.sources.files[trace]}: changed during the check")
        return checked


class Check:
    """Examines each trace, then everything that it has collected; its memory must not grow with the number of nodes."""

    def __init__(self, context: CheckContext) -> None:
        self.context = context
        self.sources = context.sources

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:  # noqa: ARG002 - most checks ignore files
        """Return what is wrong with a file, readable or not."""
        return ()

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:  # noqa: ARG002 - some checks use files only
        """Return what is wrong with a trace."""
        return ()

    def end(self) -> Iterable[Finding]:
        """Return what is wrong with all traces together; not called for one file out of several."""
        return ()
