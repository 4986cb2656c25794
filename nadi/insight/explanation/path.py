"""The critical path of a run: consecutive pieces without gaps from its begin to its end."""

from typing import NamedTuple

import numpy as np

from nadi.insight.explanation.run_events import AFTER, DONE, DURATION, MESSAGE, RunEvents, names
from nadi.insight.runs import Run
from nadi.simulation.schemas import COMMUNICATION_AXES
from nadi.workload import KINDS, node_kinds

COMPUTING, COLLECTIVE, MESSAGES = "compute", "collective", "message"
MEMORY, SENDING, WAITING = "memory", "sending", "waiting"


class PathPiece(NamedTuple):
    """A piece of the critical path."""

    # COMPUTING; COLLECTIVE, after its last member has begun; MESSAGES, from the begin of a send to the end of its
    # receive; MEMORY; SENDING, until the last byte of a message has left; or WAITING for an unknown reason
    what: str
    sort: str  # label that similar pieces share: the last part of the node's name, or axis, kind and size
    node: int  # index of the node in RunEvents
    start_ps: float  # begin in picoseconds
    end_ps: float  # end in picoseconds

    @property
    def time_ps(self) -> float:
        """Duration in picoseconds."""
        return self.end_ps - self.start_ps


def critical_path(run: Run, run_events: RunEvents) -> list[PathPiece]:
    """Return the pieces from the begin of the run to its end; where several ends coincide, one path of them.

    Args:
        run: The run, read from its folder (`Run`).
        run_events: Events of the run: begins and ends of its trace nodes (`RunEvents`).
    """
    times = run_events.dag.times()
    edges = run_events.dag.edges
    pieces = []
    for edge in run_events.dag.path(run_events.last(), times):
        # edges without time only order events
        if edges.weight[edge] > 0:
            node = int(run_events.of_node[edge])
            end_ps = float(times[edges.target[edge]])
            what = _what(run_events, int(run_events.kind[edge]), node)
            pieces.append(
                PathPiece(what, _sort(run, run_events, what, node), node, end_ps - float(edges.weight[edge]), end_ps)
            )
    first = pieces[0].start_ps if pieces else 0.0
    # the path may begin after the begin of the run, as with jobs that start later
    if first > 0:
        pieces.insert(0, PathPiece(WAITING, "before the first node", pieces[0].node, 0.0, first))
    return pieces


def axis_of(name: str) -> str:
    """Return the axis of parallelism in a node's name, else ""."""
    axis = name.rpartition("/")[2].partition(":")[0]
    return axis if axis in COMMUNICATION_AXES else ""


def _what(run_events: RunEvents, edge_kind: int, node: int) -> str:
    """Return what a node does on the path, from the kind of its edge: COMPUTING, COLLECTIVE, ..."""
    if edge_kind in {DONE, MESSAGE, AFTER}:
        return {DONE: COLLECTIVE, MESSAGE: MESSAGES, AFTER: WAITING}[edge_kind]
    if edge_kind == DURATION and run_events.collective[node] >= 0:
        return COLLECTIVE
    of_kind = int(run_events.node_kind[node])
    return (
        COMPUTING
        if of_kind == node_kinds.COMPUTE
        else {node_kinds.MEMORY: MEMORY, node_kinds.SEND: SENDING, node_kinds.RECV: MESSAGES}.get(of_kind, WAITING)
    )


def _sort(run: Run, run_events: RunEvents, what: str, node: int) -> str:
    """Return the label of similar pieces of a node that does `what`: axis and kind, or the node's work."""
    name = names(run)[node].as_py()
    if what == COLLECTIVE:
        axis = axis_of(name)
        kind = KINDS[int(run_events.program.node_collective[run_events.at[node]])]
        return f"{axis}:{kind}" if axis else kind
    if what == COMPUTING:
        lane = "host " if int(run_events.lane[node]) == node_kinds.CPU_LANE else ""
        # "forward attention" for step0/forward/mb3/layer17/attention
        parts = [part.rstrip("0123456789") for part in name.split("/")]
        kept = [part for part in parts if part and part not in {"step", "mb", "layer", "chunk"}]
        return lane + (" ".join(dict.fromkeys(kept)) or name)
    if what in {MESSAGES, SENDING}:
        return axis_of(name) or "messages"
    return what


def npus_of(run_events: RunEvents, pieces: list[PathPiece]) -> list[int]:
    """Return the NPUs on the path, in order, without immediate repetitions.

    Args:
        run_events: Events of the run: begins and ends of its trace nodes (`RunEvents`).
        pieces: Pieces of the critical path.
    """
    npus = np.array([int(run_events.npu[piece.node]) for piece in pieces], np.int64)
    return npus[np.flatnonzero(np.diff(npus, prepend=-1))].tolist()
