"""A trace file node by node, however wrong its nodes are: ids and dependencies."""

import array
import os
from functools import cached_property
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from nadi.et.errors import TraceError
from nadi.et.framing import iter_messages
from nadi.et.order import cycle_text
from nadi.et.schema import RawNode
from nadi.inputs.arrays import Int64, Mask, UInt64


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
