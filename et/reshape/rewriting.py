"""Writing of the nodes of a trace that stay, with their new dependencies."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from et.framing import frame
from et.reshape.wire import WireTrace
from et.schema import NodeType
from et.table import TraceTable
from et.writer import write_frames

Change = Callable[[int, Message], None]


def rewrite(
    out: Path,
    table: TraceTable,
    parents: Mapping[int, set[int]],
    joints: NDArray[np.bool_],
    order: Sequence[int] | None = None,
    change: Change | None = None,
) -> None:
    """Write those rows of a trace that have an entry in `parents`.

    A control dependency that stays remains one. Dependencies that bridge removed nodes are data dependencies, which
    every reader of Chakra traces supports.

    Args:
        out: Path of the new file, gzipped if its name ends in .gz.
        table: The trace; it is read again from its path.
        parents: Parents of each row.
        joints: bool[n], rows that become METADATA nodes, which do nothing.
        order: Rows in the order of the new file; None = as in the old file.
        change: Function called with row and WireNode of each node that stays.
    """
    trace = WireTrace(Path(table.path))
    rows = _nodes(trace, table, parents, joints, change)
    if order is None:
        frames: Iterator[bytes] = (message for _, message in rows)
    else:
        by_row = dict(rows)
        frames = (by_row[row] for row in order)
    write_frames(out, _with_metadata(trace.metadata, frames))


def _with_metadata(metadata: bytes, frames: Iterator[bytes]) -> Iterator[bytes]:
    yield frame(metadata)
    yield from frames


def _nodes(
    trace: WireTrace,
    table: TraceTable,
    parents: Mapping[int, set[int]],
    joints: NDArray[np.bool_],
    change: Change | None,
) -> Iterator[tuple[int, bytes]]:
    row_of_id = {node_id: row for row, node_id in enumerate(table.node_id.tolist())}
    ids = table.node_id.tolist()
    for row, (message, node) in enumerate(trace.nodes()):
        if row not in parents:
            continue
        remaining = set(parents[row])
        kept = [_kept_ids(deps, remaining, row_of_id) for deps in (node.ctrl_deps, node.data_deps)]
        untouched = kept[0] == node.ctrl_deps[:] and kept[1] == node.data_deps[:]
        named = {row_of_id[i] for i in (*kept[0], *kept[1])}
        new = [ids[parent] for parent in sorted(remaining - named)]
        if untouched and not new and not joints[row] and change is None:
            yield row, frame(message)
            continue
        node.ctrl_deps[:], node.data_deps[:] = kept[0], kept[1] + new
        if joints[row]:
            _do_nothing(node)
        elif change is not None:
            change(row, node)
        yield row, frame(node.SerializeToString(deterministic=True))


def _kept_ids(deps: Sequence[int], remaining: set[int], row_of_id: Mapping[int, int]) -> list[int]:
    return [i for i in deps if row_of_id.get(i, -1) in remaining]


def _do_nothing(node: Message) -> None:
    """Turn a node into a joint, which keeps its id, name and dependencies only."""
    node.type = NodeType.METADATA_NODE
    for field in ("duration_micros", "inputs", "outputs", "attr"):
        node.ClearField(field)
