"""A trace file node by node, findings on it and their report, and fixes that need no guess."""

import array
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from nadi.et.errors import TraceError
from nadi.et.framing import iter_messages
from nadi.et.order import cycle_text
from nadi.et.schema import Node, RawNode
from nadi.et.table import TraceTable
from nadi.inputs.arrays import Int64, Mask, UInt64

# A trace file node by node, however wrong its nodes are: ids and dependencies.


class Dependencies(NamedTuple):
    """The m dependencies of the nodes of a file."""

    row: Int64  # int64[m], row of the waiting node
    parent_id: UInt64  # uint64[m], id of the parent as written
    parent: Int64  # int64[m], row of the first node with this id, -1 = no node has it
    is_control: Mask  # bool[m], whether it is a control dependency


class RawTrace:
    """The n nodes of a file and their m dependencies."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        self.error = ""  # reason why the file could not be read to its end; "" = it could
        ids, parents = array.array("Q"), array.array("Q")
        counts: tuple[array.array[int], array.array[int]] = array.array("q"), array.array("q")
        try:
            messages = iter_messages(path)
            next(messages)
            for offset, message in messages:
                try:
                    node = RawNode.FromString(message)
                except DecodeError as error:
                    place = f"{self.path}: byte {offset}"
                    raise TraceError(f"{place}: corrupt message ({error}), expected a Node") from error
                ids.append(node.id)
                for deps, count in zip((node.data_deps, node.ctrl_deps), counts, strict=True):
                    parents.extend(deps)
                    count.append(len(deps))
        except TraceError as error:
            self.error = str(error)
        self.node_id = np.array(ids, np.uint64)  # uint64[n], as written
        data, control = (np.array(count, np.int64) for count in counts)
        self.dependencies = self._resolved(np.array(parents, np.uint64), data, control)

    @cached_property
    def repeats(self) -> Int64:
        """int64[], rows whose id an earlier row has."""
        first = np.unique(self.node_id, return_index=True)[1]
        return np.setdiff1d(np.arange(len(self.node_id)), first)

    @cached_property
    def dangling(self) -> Mask:
        """bool[m], dependencies on ids that the file lacks."""
        return self.dependencies.parent < 0

    @cached_property
    def ambiguous(self) -> Mask:
        """bool[m], dependencies on an id that occurs more than once."""
        return np.isin(self.dependencies.parent_id, self.node_id[self.repeats])

    def on_cycles(self, among: Mask) -> tuple[Mask, Int64]:
        """Return the dependencies on cycles, bool[m], and each row's set of mutually waiting rows, int64[n].

        Args:
            among: The dependencies that count, bool[m].
        """
        from scipy.sparse import csgraph, csr_matrix  # noqa: PLC0415 - a tenth of each command's start

        deps = self.dependencies
        use = among & ~self.dangling
        n = len(self.node_id)
        # A dependency is on a cycle if both ends are in one strongly connected component
        graph = csr_matrix((np.ones(int(use.sum()), np.int8), (deps.row[use], deps.parent[use])), shape=(n, n))
        loop = csgraph.connected_components(graph, directed=True, connection="strong")[1].astype(np.int64)
        return use & (loop[deps.row] == loop[deps.parent]), loop

    def cycles(self, among: Mask, max_paths: int) -> tuple[int, list[tuple[int, str]]]:
        """Return the number of cyclic sets, and for some of them the smallest row and a shortest cycle as text.

        Args:
            among: The dependencies that count, bool[m].
            max_paths: The maximum number of sets with a cycle.
        """
        is_part, loop = self.on_cycles(among)
        row, parent = self.dependencies.row[is_part], self.dependencies.parent[is_part]
        loops, first = np.unique(loop[row], return_index=True)
        found = []
        for number in loops[np.argsort(first)][:max_paths].tolist():
            of_loop = loop[row] == number
            found.append(self._path(row[of_loop], parent[of_loop]))
        return len(loops), sorted(found)

    def _resolved(self, parent_ids: UInt64, data_counts: Int64, control_counts: Int64) -> Dependencies:
        """Return the dependencies as rows, from parent ids node by node, data first, and their numbers by node."""
        n = len(self.node_id)
        parent_ids = parent_ids[: int(data_counts[:n].sum() + control_counts[:n].sum())]
        # Each node lists its data dependencies first, then its control dependencies
        counts = np.stack([data_counts[:n], control_counts[:n]], axis=1).reshape(-1)
        # Counts 1 0 2 1 of two nodes give 0 2 2 3: half of it is the node, and odd numbers are control dependencies
        kind = np.repeat(np.arange(2 * n), counts)
        ids, first = np.unique(self.node_id, return_index=True)
        place = np.minimum(np.searchsorted(ids, parent_ids), max(n and len(ids) - 1, 0))
        is_there = ids[place] == parent_ids if n else np.zeros(0, np.bool_)
        return Dependencies(kind // 2, parent_ids, np.where(is_there, first[place], -1), kind % 2 == 1)

    def _path(self, child_rows: Int64, parent_rows: Int64) -> tuple[int, str]:
        """Return the smallest row of a cyclic set, and a shortest cycle through it: ids that each wait for the next."""
        start = int(child_rows.min())
        waits_for: dict[int, list[int]] = {}
        for child, of_child in zip(child_rows.tolist(), parent_rows.tolist(), strict=True):
            waits_for.setdefault(child, []).append(of_child)
        came_from: dict[int, int] = {}
        reached = [start]
        # Breadth first, so that the cycle is a shortest one through `start`
        while start not in came_from:
            following = []
            for child in reached:
                for of_child in waits_for[child]:
                    if of_child not in came_from:
                        came_from[of_child] = child
                        following.append(of_child)
            reached = following
        backwards = [start, came_from[start]]
        while backwards[-1] != start:
            backwards.append(came_from[backwards[-1]])
        ids = [str(self.node_id[at]) for at in reversed(backwards[1:])]
        return start, cycle_text(ids, str(self.node_id[start]))


ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""ERROR: `nadi run` refuses the trace, or deadlocks. WARNING: it runs, but is hardly intended. NOTE: information."""

MAX_EXAMPLES = 100  # examples kept per kind of problem over all files: a report on a million nodes stays small


class Example(NamedTuple):
    """An example of a problem."""

    path: str  # file with the problem; "" if it concerns all files
    node: int | None  # id of the node in the file; None if it concerns no single node
    text: str  # description of what was found and what was expected

    def __str__(self) -> str:
        place = self.path + (f": node {self.node}" if self.node is not None else "")
        return f"{place}: {self.text}" if place else self.text


@dataclass(frozen=True)
class Finding:
    """A kind of problem, in one file or in all together."""

    severity: str  # one of SEVERITIES
    what: str  # description of the kind, the same for all files
    count: int  # number of occurrences
    examples: tuple[Example, ...]  # some of the occurrences


def at_nodes(
    severity: str, what: str, trace: TraceTable | RawTrace, rows: NDArray[np.integer], text_of_row: Callable[[int], str]
) -> Iterable[Finding]:
    """Yield a Finding on some nodes of a trace, with examples; nothing if there are no nodes.

    Args:
        severity: The severity, one of SEVERITIES.
        what: The kind of problem, the same text for all files.
        trace: The trace with the nodes.
        rows: The rows of the nodes, int[].
        text_of_row: A function that returns what was found and expected at a row.
    """
    if len(rows):
        shown = rows[:MAX_EXAMPLES].tolist()
        examples = tuple(Example(trace.path, int(trace.node_id[row]), text_of_row(row)) for row in shown)
        yield Finding(severity, what, len(rows), examples)


@dataclass(frozen=True)
class FindingGroup(Finding):
    """Findings of one check and kind, over all files."""

    check: str  # name of the check


class CheckReport:
    """All findings; `traces` and `nodes` count distinct files and their nodes."""

    def __init__(self, path: str, npus: int) -> None:
        self.path = path
        self.npus = npus
        self.traces = 0
        self.nodes = 0
        self._groups: dict[tuple[str, str, str], tuple[int, list[Example]]] = {}

    def add(self, check_name: str, findings: Iterable[Finding]) -> None:
        """Add the findings of a check.

        Args:
            check_name: The name of the check.
            findings: The findings of all checks in a file.
        """
        for finding in findings:
            key = check_name, finding.severity, finding.what
            count, examples = self._groups.get(key, (0, []))
            examples += finding.examples[: MAX_EXAMPLES - len(examples)]
            self._groups[key] = count + finding.count, examples

    @property
    def groups(self) -> list[FindingGroup]:
        """Findings by severity, most severe first, then by check."""
        found = [
            FindingGroup(severity, what, count, tuple(examples), check)
            for (check, severity, what), (count, examples) in self._groups.items()
        ]
        return sorted(found, key=lambda group: (SEVERITIES.index(group.severity), group.check, group.what))

    def count(self, severity: str) -> int:
        """Return the number of findings of a severity.

        Args:
            severity: The severity, one of SEVERITIES.
        """
        return sum(group.count for group in self.groups if group.severity == severity)

    @property
    def is_clean(self) -> bool:
        """Whether there is no error."""
        return self.count(ERROR) == 0

    def described(self, max_examples: int) -> dict[str, Any]:
        """Return the report as values that JSON can hold.

        Args:
            max_examples: The maximum number of examples per kind of problem.
        """
        return {
            "path": self.path,
            "npus": self.npus,
            "traces": self.traces,
            "nodes": self.nodes,
            **{f"{severity}s": self.count(severity) for severity in SEVERITIES},
            "findings": [
                {key: getattr(group, key) for key in ("check", "severity", "what", "count")}
                | {"examples": [example._asdict() for example in group.examples[:max_examples]]}
                for group in self.groups
            ],
        }


# Fixes of a trace file that need no guess: which dependencies can be removed, which ids can be replaced.


@dataclass(frozen=True)
class TraceFix:
    """A kind of change of a file."""

    what: str  # description of the change
    count: int  # number of changes
    examples: tuple[Example, ...]  # some of the changes


class FileChanges(NamedTuple):
    """Changes to make in a file."""

    left_out: Mask  # bool[m], dependencies to remove
    new_id: dict[int, int]  # new id of each row that gets one
    fixes: tuple[TraceFix, ...]  # descriptions of the changes


def safe_changes(raw: RawTrace) -> FileChanges:
    """Return the changes that need no guess.

    A dependency on a node that the file lacks, or of a node on itself, is removed, because it can never be satisfied.
    If control dependencies close a cycle and data dependencies do not, all control dependencies are removed, as in
    `et.read_trace(strict=False)`, which explains why. A repeated id is replaced if no node depends on it.

    Args:
        raw: The file node by node.
    """
    deps = raw.dependencies
    on_itself = deps.parent_id == raw.node_id[deps.row]
    # An id that occurs twice may mean the other node
    on_itself &= ~raw.ambiguous
    left_out = raw.dangling | on_itself
    kinds = [
        ("dependencies on nodes that the file lacks are removed", raw.dangling),
        ("dependencies of nodes on themselves are removed", on_itself),
    ]
    closes_cycle = np.any(raw.on_cycles(~left_out)[0]) and not np.any(raw.on_cycles(~left_out & ~deps.is_control)[0])
    if closes_cycle:
        control = deps.is_control & ~left_out
        kinds.append(("control dependencies are removed, because they close a cycle", control))
        left_out |= deps.is_control
    fixes = [_left_out(raw, what, which) for what, which in kinds if np.any(which)]
    waited_for = deps.parent_id[raw.ambiguous]
    free = raw.repeats[~np.isin(raw.node_id[raw.repeats], waited_for)]
    new_id = dict(zip(free.tolist(), _unused(raw, len(free)), strict=True))
    if new_id:
        examples = tuple(
            Example(raw.path, int(raw.node_id[row]), f"the node at place {row} is now {new}")
            for row, new in list(new_id.items())[:MAX_EXAMPLES]
        )
        what = "ids that occurred twice, and on which no node depends, are replaced"
        fixes.append(TraceFix(what, len(new_id), examples))
    return FileChanges(left_out, new_id, tuple(fixes))


def readable_changes(raw: RawTrace) -> FileChanges:
    """Return the changes that make the file readable as a table, to find further problems; they are never written.

    Args:
        raw: The file node by node.
    """
    safe = safe_changes(raw)
    left_out = safe.left_out | raw.on_cycles(~safe.left_out)[0]
    new_id = dict(zip(raw.repeats.tolist(), _unused(raw, len(raw.repeats)), strict=True))
    return FileChanges(left_out, new_id, ())


def changed_messages(raw: RawTrace, changes: FileChanges) -> Iterator[bytes]:
    """Yield the messages of the file with the changes, metadata first; everything else is the same byte for byte.

    Args:
        raw: The file node by node.
        changes: The changes to make.
    """
    deps = raw.dependencies
    # Dependencies come node by node: those of node i are of_node[i] to of_node[i + 1]
    of_node = np.searchsorted(deps.row, np.arange(len(raw.node_id) + 1))
    is_changed = np.zeros(len(raw.node_id), np.bool_)
    is_changed[deps.row[changes.left_out]] = True
    # Message -1 is the metadata, before the first node
    for row, (_, message) in enumerate(iter_messages(raw.path), start=-1):
        if row < 0 or not (is_changed[row] or row in changes.new_id):
            yield message
            continue
        try:
            node = Node.FromString(message)
        except DecodeError as error:
            place = f"{raw.path}: node {raw.node_id[row]}"
            raise TraceError(f"{place}: corrupt message ({error}), expected a Node") from error
        own = slice(int(of_node[row]), int(of_node[row + 1]))
        keep = ~changes.left_out[own]
        for field, is_control in ((node.data_deps, False), (node.ctrl_deps, True)):
            ids = deps.parent_id[own][keep & (deps.is_control[own] == is_control)].tolist()
            del field[:]
            field.extend(ids)
        node.id = changes.new_id.get(row, node.id)
        yield node.SerializeToString(deterministic=True)


def _left_out(raw: RawTrace, what: str, is_removed: Mask) -> TraceFix:
    """Return the TraceFix titled `what` of the dependencies that the mask (bool[m]) selects."""
    deps = raw.dependencies
    examples = tuple(
        Example(
            raw.path,
            int(raw.node_id[deps.row[at]]),
            f"no longer waits for node {deps.parent_id[at]} ({'control' if deps.is_control[at] else 'data'})",
        )
        for at in np.flatnonzero(is_removed)[:MAX_EXAMPLES].tolist()
    )
    return TraceFix(what, int(np.count_nonzero(is_removed)), examples)


def _unused(raw: RawTrace, count: int) -> list[int]:
    """Return `count` numbers that are neither ids nor parents, beyond the largest id if they fit."""
    taken = np.union1d(raw.node_id, raw.dependencies.parent_id)
    above = int(raw.node_id.max(initial=0)) + 1
    if above + count + len(taken) < 2**63:
        # Among count + len(taken) numbers, at least `count` are free
        candidates = np.arange(above, above + count + len(taken), dtype=np.uint64)
    else:
        candidates = np.arange(count + len(taken), dtype=np.uint64)
    found: list[int] = np.setdiff1d(candidates, taken)[:count].tolist()
    return found
