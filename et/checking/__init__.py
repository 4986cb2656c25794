"""Infrastructure of trace checks, which are in `et.checks`: their base class, their input, their findings, and fixes.

A check gets sources, and traces as a table or node by node.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from nadi.et.checking.finding import (
    SEVERITIES,
    WARNING,
    CheckReport,
    Example,
    Finding,
    RawTrace,
    TraceFix,
    changed_messages,
    readable_changes,
    safe_changes,
)
from nadi.et.checking.matching import MessageNodes
from nadi.et.errors import TraceError
from nadi.et.order import topological_order
from nadi.et.reader import read_trace, table_of
from nadi.et.schema import ALL_NPUS, CollectiveCommType, GlobalMetadata, Node, NodeType
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int8, Int32, Int64

# Input of a check: files, the NPUs that run each, and the groups that their collectives name, as in runs.

AS_WRITTEN = -1

UNKNOWN = -1
ALL = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Sources:
    """T distinct traces of some NPUs."""

    path: Path  # path that the user gave for all of them
    files: tuple[Path, ...]  # the trace files
    users: tuple[Int64, ...]  # int64[] per trace, NPUs that run it, ascending
    # for each trace, the NPU whose peers are as written; peers of other users shift by the user's number minus the
    # example's. AS_WRITTEN = -1: peers are as written for all users
    examples: tuple[int, ...]
    npus: int  # number of NPUs, which are 0 .. npus-1
    # members of each group in the group file, by name
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    # groups of each family in a trace set, by name; an NPU is in at most one group of a family
    families: Mapping[str, tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=dict)
    groups_file: str = ""  # file of `groups`, "" = none
    is_complete: bool = True  # False = one file out of several, so that its peers cannot be checked

    def shifts(self, trace_number: int) -> Int64:
        """Return int64[users], the number added to peers for each user of a trace.

        Args:
            trace_number: The number of the trace in Sources.
        """
        return shifts_of(self.users[trace_number], self.examples[trace_number])

    def place(self, npu: int) -> tuple[int, int] | None:
        """Return the trace that an NPU runs and the NPU's index among its users; None if it runs no trace.

        Args:
            npu: The number of the NPU.
        """
        for trace, users in enumerate(self.users):
            at = int(np.searchsorted(users, npu))
            if at < len(users) and users[at] == npu:
                return trace, at
        return None


def shifts_of(users: Int64, example: int) -> Int64:
    """Return int64[users], the number added to peers for each user of a trace.

    Args:
        users: The NPUs that run the trace, int64[].
        example: The NPU whose peers are as written; AS_WRITTEN = they are the same for all users.
    """
    return np.zeros(len(users), np.int64) if example == AS_WRITTEN else users - example


class Communicators:
    """The groups met so far, numbered in that order; 0 is all NPUs."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.names = [ALL_NPUS]
        self.members: list[Int64] = [np.arange(sources.npus)]
        self._number: dict[tuple[str, tuple[int, ...]], int] = {}
        self._families: dict[str, Int64] = {}

    def of(self, table: TraceTable, group: int, users: Int64) -> Int64:
        """Return int64[users], the number of the group that a name in a trace means for each user, UNKNOWN = -1.

        Args:
            table: The trace as a table of columns.
            group: The row of the name in `group_names` of the table.
            users: The NPUs that run the trace, int64[], ascending.
        """
        name = table.group_names[group]
        if name == ALL_NPUS:
            return np.full(len(users), ALL)
        if name in self._sources.families:
            if name not in self._families:
                found = np.full(self._sources.npus, UNKNOWN)
                for npus in self._sources.families[name]:
                    found[list(npus)] = self._add(name, npus)
                self._families[name] = found
            return self._families[name][users]
        members = self._sources.groups.get(name, table.metadata_groups.get(name))
        if members is None:
            return np.full(len(users), UNKNOWN)
        key = name, tuple(members)
        if key not in self._number:
            # A group without a list of members is that of all NPUs
            self._number[key] = self._add(name, members or range(self._sources.npus))
        return np.full(len(users), self._number[key])

    def _add(self, group_name: str, members: Sequence[int]) -> int:
        """Store a group, and return its new number."""
        self.names.append(group_name)
        self.members.append(np.array(members, np.int64))
        return len(self.members) - 1


# A trace as checks use it: its table, order, messages and collectives.


UNEVEN = -2  # size of a collective whose members need not have the same size
WHOLE = -1  # involved_dim of a collective over all dimensions


@dataclasses.dataclass(frozen=True, eq=False)
class CollectiveNodes:
    """The c collectives of a trace in topological order, without host calls that have no comm_type."""

    row: Int32  # int32[c], row of the table
    group: Int32  # int32[c], row of the table's group_names
    dims: Int32  # int32[c], involved_dim if it omits dimensions, otherwise WHOLE = -1
    kind: Int8  # int8[c], CollectiveCommType; both kinds of reduce-scatter are one
    size: Int64  # int64[c], bytes, 0 for barriers, -1 = missing, UNEVEN = -2 if the members' sizes may differ


class CheckedTrace:
    """A trace that could be read."""

    def __init__(self, trace: int, table: TraceTable) -> None:
        self.trace = trace  # number in Sources
        self.table = table  # without the dependencies that checks of single files report

    @cached_property
    def order(self) -> Int32:
        """int32[n], rows, parents before children."""
        return topological_order(self.table)

    @cached_property
    def messages(self) -> MessageNodes:
        """Sends and receives of the trace."""
        return MessageNodes.of(self.table, self.order)

    @cached_property
    def collectives(self) -> CollectiveNodes:
        """Collectives of the trace."""
        table = self.table
        row = self.order[(table.type[self.order] == NodeType.COMM_COLL_NODE) & (table.comm_type[self.order] >= 0)]
        kind = table.comm_type[row]
        kind = np.where(kind == CollectiveCommType.REDUCE_SCATTER_BLOCK, CollectiveCommType.REDUCE_SCATTER, kind)
        size = np.where(kind == CollectiveCommType.BARRIER, 0, table.comm_size[row])
        size[(kind == CollectiveCommType.ALL_TO_ALL) & (table.in_split_size[row] > 0)] = UNEVEN
        dims = np.where(table.group[row] == 0, table.involved_dim[row], WHOLE)
        all_dims = int(dims.max(initial=WHOLE))
        # All bits from 0 on: then the set of these dimensions is the whole fabric, as far as the trace shows
        if all_dims > 0 and all_dims & (all_dims + 1) == 0:  # all dimensions that this trace mentions
            dims[dims == all_dims] = WHOLE
        return CollectiveNodes(row, table.group[row], dims, kind.astype(np.int8), size)

    def node(self, row: int) -> int:
        """Return the id of a node.

        Args:
            row: The row of the node.
        """
        return int(self.table.node_id[row])


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
