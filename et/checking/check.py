"""What every check of `et.checks` is."""

from collections.abc import Iterable

from et.checking.communicators import Communicators
from et.checking.finding import Finding
from et.checking.looked import CheckedTrace
from et.checking.opened import OpenedTrace, open_trace
from et.checking.sources import Sources


class CheckContext:
    """What all checks of one look share.

    Attributes:
        sources: what is looked at.
        communicators: its groups.
        unread: numbers of traces that cannot be read, as far as they have been looked at.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.communicators = Communicators(sources)
        self.unread: set[int] = set()
        self._kept: dict[int, OpenedTrace] = {}

    def again(self, trace: int) -> CheckedTrace:
        """A trace that was readable, to say more about it; the last few stay in memory."""
        if trace not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[trace] = open_trace(trace, self.sources.files[trace])
        looked = self._kept[trace].looked
        if looked is None:
            raise RuntimeError(f"{self.sources.files[trace]}: changed while it was checked")
        return looked


class Check:
    """Looks at one trace after another, then at what it has gathered. Memory must not grow with the traces' nodes."""

    def __init__(self, around: CheckContext) -> None:
        self.around = around
        self.sources = around.sources

    def file(self, opened: OpenedTrace) -> Iterable[Finding]:  # noqa: ARG002 - most do not look at files
        """What is wrong with a file, readable or not."""
        return ()

    def trace(self, looked: CheckedTrace) -> Iterable[Finding]:  # noqa: ARG002 - some look at files only
        """What is wrong with a trace."""
        return ()

    def end(self) -> Iterable[Finding]:
        """What is wrong with all of them together; not asked of one file out of several."""
        return ()


_MOST_KEPT = 4
