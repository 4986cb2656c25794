"""A trace file node by node, whatever is wrong with what its nodes say: ids, and who waits for whom."""

import array
import os
from functools import cached_property
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from et.errors import TraceError
from et.framing import iter_messages
from et.schema import RawNode

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]

_LONGEST_PATH_SHOWN = 12


class Dependencies(NamedTuple):
    """Dependencies of the nodes of a file, m of them.

    Attributes:
        row: int64[m], of the node that waits.
        parent_id: uint64[m], as it is written.
        parent: int64[m], the row of the first node with this id, -1 = there is none.
        is_control: bool[m].
    """

    row: Int64
    parent_id: UInt64
    parent: Int64
    is_control: Mask


class RawTrace:
    """The frames of a file, n nodes.

    Attributes:
        path: the file.
        error: why it could not be read to its end; "" = it could.
        node_id: uint64[n].
        dependencies: see there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        self.error = ""
        ids, parents = array.array("Q"), array.array("Q")
        counts: tuple[array.array[int], array.array[int]] = array.array("q"), array.array("q")
        try:
            messages = iter_messages(path)
            next(messages)
            for offset, message in messages:
                node = self._parsed(offset, message)
                ids.append(node.id)
                for deps, count in zip((node.data_deps, node.ctrl_deps), counts, strict=True):
                    parents.extend(deps)
                    count.append(len(deps))
        except TraceError as error:
            self.error = str(error)
        self.node_id = np.array(ids, np.uint64)
        self.dependencies = self._resolved(
            np.array(parents, np.uint64), *(np.array(count, np.int64) for count in counts)
        )

    @cached_property
    def repeats(self) -> Int64:
        """int64[]: rows whose id an earlier row has."""
        first = np.unique(self.node_id, return_index=True)[1]
        return np.setdiff1d(np.arange(len(self.node_id)), first)

    @cached_property
    def dangling(self) -> Mask:
        """bool[m]: dependencies on ids that the file lacks."""
        return self.dependencies.parent < 0

    @cached_property
    def ambiguous(self) -> Mask:
        """bool[m]: dependencies on an id that stands more than once."""
        return np.isin(self.dependencies.parent_id, self.node_id[self.repeats])

    def on_cycles(self, among: Mask) -> tuple[Mask, Int64]:
        """Dependencies that are part of a cycle, and the loops that they make.

        Args:
            among: bool[m], the dependencies that count.

        Returns:
            bool[m]; int64[n]: rows that wait for each other have the same number.
        """
        deps = self.dependencies
        use = among & ~self.dangling
        n = len(self.node_id)
        graph = csr_matrix((np.ones(int(use.sum()), np.int8), (deps.row[use], deps.parent[use])), shape=(n, n))
        loop = connected_components(graph, directed=True, connection="strong")[1].astype(np.int64)
        return use & (loop[deps.row] == loop[deps.parent]), loop

    def cycles(self, among: Mask, most: int) -> tuple[int, list[tuple[int, str]]]:
        """How many loops there are, and of the first ones the row with the least number and a shortest path.

        Args:
            among: bool[m], the dependencies that count.
            most: paths that are found.
        """
        is_part, loop = self.on_cycles(among)
        row, parent = self.dependencies.row[is_part], self.dependencies.parent[is_part]
        loops, first = np.unique(loop[row], return_index=True)
        found = []
        for number in loops[np.argsort(first)][:most].tolist():
            of_loop = loop[row] == number
            found.append(self._path(row[of_loop], parent[of_loop]))
        return len(loops), sorted(found)

    def _parsed(self, offset: int, message: bytes) -> Message:
        try:
            return RawNode.FromString(message)
        except DecodeError as error:
            raise TraceError(f"{self.path}: byte {offset}: corrupt message ({error}), expected a Node") from error

    def _resolved(self, parents: UInt64, data: Int64, control: Int64) -> Dependencies:
        """`parents`: node after node, data before control; data, control: how many each has."""
        n = len(self.node_id)
        parents = parents[: int(data[:n].sum() + control[:n].sum())]
        counts = np.stack([data[:n], control[:n]], axis=1).reshape(-1)
        kind = np.repeat(np.arange(2 * n), counts)
        ids, first = np.unique(self.node_id, return_index=True)
        place = np.minimum(np.searchsorted(ids, parents), max(n and len(ids) - 1, 0))
        is_there = ids[place] == parents if n else np.zeros(0, np.bool_)
        return Dependencies(kind // 2, parents, np.where(is_there, first[place], -1), kind % 2 == 1)

    def _path(self, row: Int64, parent: Int64) -> tuple[int, str]:
        """A shortest cycle through the least row of a loop, as ids, each waiting for the next."""
        start = int(row.min())
        waits_for: dict[int, list[int]] = {}
        for child, of_child in zip(row.tolist(), parent.tolist(), strict=True):
            waits_for.setdefault(child, []).append(of_child)
        came_from: dict[int, int] = {}
        reached = [start]
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
        if len(ids) > _LONGEST_PATH_SHOWN:
            ids = [*ids[:_LONGEST_PATH_SHOWN], f"... ({len(ids) - _LONGEST_PATH_SHOWN} more)"]
        return start, " -> ".join([*ids, str(self.node_id[start])])
