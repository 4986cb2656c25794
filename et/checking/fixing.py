"""Fixes of a trace file that need no guess: which dependencies can be removed, which ids can be replaced."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from nadi.et.checking.finding import MAX_EXAMPLES, Example
from nadi.et.checking.raw import RawTrace
from nadi.et.errors import TraceError
from nadi.et.framing import iter_messages
from nadi.et.schema import Node
from nadi.inputs.arrays import Mask


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
