"""The critical path of a run: the pieces that follow each other without a gap from its begin to its end."""

from typing import NamedTuple

import numpy as np

from nadi.insight.explanation.happened import AFTER, DONE, DURATION, MESSAGE, RunEvents, names
from nadi.insight.runs import Run
from nadi.simulation.schemas import COMMUNICATION_AXES
from workload import KINDS, node_kinds

COMPUTING, COLLECTIVE, MESSAGES, MEMORY, SENDING, WAITING = (
    "compute",
    "collective",
    "message",
    "memory",
    "sending",
    "waiting",
)


class PathPiece(NamedTuple):
    """A piece of the path.

    Attributes:
        what: COMPUTING; COLLECTIVE, after its last member had begun; MESSAGES, from the begin of a send until it was
            received; MEMORY; SENDING, until a message's last byte had left; or WAITING, nothing tells for what.
        sort: pieces of one sort are alike: the last part of the node's name, or axis, kind and size.
        node: number of Happened.
        start_ps, end_ps: picoseconds.
    """

    what: str
    sort: str
    node: int
    start_ps: float
    end_ps: float

    @property
    def time_ps(self) -> float:
        """How long it is."""
        return self.end_ps - self.start_ps


def critical_path(run: Run, found: RunEvents) -> list[PathPiece]:
    """Pieces from the begin of the run to its end; their times add up to the run's.

    Where several ends come at the same moment, the path goes by one of them.
    """
    times = found.dag.times()
    edges = found.dag.edges
    pieces = []
    for edge in found.dag.path(found.last(), times):
        if edges.weight[edge] > 0:
            node = int(found.of_node[edge])
            end_ps = float(times[edges.target[edge]])
            what = _what(found, int(found.kind[edge]), node)
            pieces.append(
                PathPiece(what, _sort(run, found, what, node), node, end_ps - float(edges.weight[edge]), end_ps)
            )
    first = pieces[0].start_ps if pieces else 0.0
    if first > 0:
        pieces.insert(0, PathPiece(WAITING, "before the first node", pieces[0].node, 0.0, first))
    return pieces


def axis_of(name: str) -> str:
    """The axis of parallelism that a node's name tells, else ""."""
    axis = name.rpartition("/")[2].partition(":")[0]
    return axis if axis in COMMUNICATION_AXES else ""


def _what(found: RunEvents, kind: int, node: int) -> str:
    if kind in {DONE, MESSAGE, AFTER}:
        return {DONE: COLLECTIVE, MESSAGE: MESSAGES, AFTER: WAITING}[kind]
    if kind == DURATION and found.collective[node] >= 0:
        return COLLECTIVE
    of_kind = int(found.node_kind[node])
    return (
        COMPUTING
        if of_kind == node_kinds.COMPUTE
        else {node_kinds.MEMORY: MEMORY, node_kinds.SEND: SENDING, node_kinds.RECV: MESSAGES}.get(of_kind, WAITING)
    )


def _sort(run: Run, found: RunEvents, what: str, node: int) -> str:
    name = names(run)[node].as_py()
    if what == COLLECTIVE:
        axis = axis_of(name)
        kind = KINDS[int(found.program.node_collective[found.at[node]])]
        return f"{axis}:{kind}" if axis else kind
    if what == COMPUTING:
        lane = "host " if int(found.lane[node]) == node_kinds.CPU_LANE else ""
        return lane + _work(name)
    if what in {MESSAGES, SENDING}:
        return axis_of(name) or "messages"
    return what


def _work(name: str) -> str:
    """What a compute node does, of a name such as step0/forward/mb3/layer17/attention: forward attention."""
    parts = [part.rstrip("0123456789") for part in name.split("/")]
    kept = [part for part in parts if part and part not in {"step", "mb", "layer", "chunk"}]
    return " ".join(dict.fromkeys(kept)) or name


def npus_of(found: RunEvents, pieces: list[PathPiece]) -> list[int]:
    """The NPUs on which the path is, piece by piece, one that follows itself once."""
    npus = np.array([int(found.npu[piece.node]) for piece in pieces], np.int64)
    return npus[np.flatnonzero(np.diff(npus, prepend=-1))].tolist()
