"""The timeline of a simulated run: lanes of some NPUs, arrows of messages, load and queues of links over time."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64, arrow_numbers, numpy_column
from nadi.insight.explanation import axis_of, senders_of
from nadi.insight.link_load import link_load
from nadi.insight.runs import Run
from nadi.reports.perfetto import PerfettoTrace, Slice, Value, perfetto_trace, write_notes, write_npu
from nadi.simulation.schemas import FLOWS, LINKS

MAX_NPUS = 64  # Number of NPUs that are shown by default
MAX_SLICES = 200_000  # Number of slices of all NPUs
MAX_LINKS = 16  # Number of links with a load counter
MAX_QUEUES = 16  # Number of ports with a queue counter
STRETCHES = 1000  # Number of intervals that load counters divide the run into
_PS_PER_NS = 1000
_LANES = ("compute", "memory", "cpu", "remote")


class RunTimeline(NamedTuple):
    """Contents and omissions of a timeline."""

    npus: int  # Number of NPUs with lanes
    npus_left_out: int  # Number of NPUs without lanes
    slices: int  # Number of slices
    aggregated: int  # Number of short nodes that are merged into slices of several nodes
    flows: int  # Number of arrows from sends to receives
    counters: int  # Number of links with a counter of load or queue
    left_out: int  # Number of nodes that are not shown because too many overlap

    def notes(self) -> list[str]:
        """Return sentences about what is left out."""
        notes = []
        if self.npus_left_out:
            npus = self.npus + self.npus_left_out
            notes.append(f"{self.npus:,} of {npus:,} NPUs, evenly spaced (--npus names others)")
        if self.aggregated:
            notes.append(f"{self.aggregated:,} short nodes are merged with their neighbours")
        if self.left_out:
            notes.append(f"{self.left_out:,} nodes are left out: too many overlap")
        return notes


def write_run_timeline(
    path: str | os.PathLike[str], run: Run, npus: Sequence[int] = (), max_slices: int = MAX_SLICES
) -> RunTimeline:
    """Write the timeline of a run that keeps its trace nodes; the limits on slices and counters bound its size.

    Args:
        path: File to write.
        run: The run, read from its folder (`Run`).
        npus: Numbers of the NPUs to show; () = at most MAX_NPUS, evenly spaced.
        max_slices: Maximum number of slices of all NPUs.
    """
    known = np.unique(numpy_column(run.nodes["npu"], np.int64))
    missing = sorted(set(npus) - set(known.tolist()))
    if missing:
        raise ConfigError(
            f"{run.folder}: NPU {missing[0]} has no trace nodes; expected some of {len(known):,} that have"
        )
    if not len(known):
        raise ConfigError(f"{run.folder}: no trace nodes; expected a run with some")
    # first and last included; few NPUs may be chosen twice
    spaced = known[np.unique(np.linspace(0, len(known) - 1, MAX_NPUS).astype(int))]
    chosen = np.array(sorted(set(npus))) if npus else spaced
    arrows = _arrows(run, chosen)
    with perfetto_trace(path) as trace:
        counts = [
            _write_npu(trace, run, npu, position, arrows, max_slices // len(chosen))
            for position, npu in enumerate(chosen.tolist())
        ]
        slices, aggregated, left_out = map(sum, zip(*counts, strict=True))
        counters = _loads(trace, run) + _queues(trace, run)
        shown = RunTimeline(
            len(chosen), len(known) - len(chosen), slices, aggregated, len(arrows) // 2, counters, left_out
        )
        write_notes(trace, shown.notes())
    return shown


def _write_npu(
    trace: PerfettoTrace, run: Run, npu: int, position: int, arrow_of_row: dict[tuple[int, int], int], max_slices: int
) -> tuple[int, int, int]:
    """Write the lanes of an NPU; return the number of slices, of merged nodes, and of nodes left out."""
    nodes = run.nodes.take(arrow_numbers(np.flatnonzero(numpy_column(run.nodes["npu"]) == npu)))
    columns = {name: nodes[name].to_pylist() for name in ("row", "name", "kind", "lane", "bytes", "group")}
    begin_ns, end_ns = (numpy_column(nodes[name], np.int64) // _PS_PER_NS for name in ("start_ps", "finish_ps"))
    took_ps = numpy_column(nodes["finish_ps"], np.int64) - numpy_column(nodes["start_ps"], np.int64)
    lane_of_node = np.array(list(map(_lane, columns["kind"], columns["lane"], columns["name"])), object)
    names = sorted(set(lane_of_node) - {""}, key=_order)

    def slice_of(row: int) -> Slice:
        details: dict[str, Value] = {"row": columns["row"][row], "took_ps": int(took_ps[row])}
        if columns["bytes"][row]:
            details["bytes"] = columns["bytes"][row]
        if columns["group"][row] is not None:
            details["group"] = columns["group"][row]
        arrow = arrow_of_row.get((npu, columns["row"][row]))
        ends = () if arrow is None else (arrow,)
        both = (ends, ()) if columns["kind"][row] == "send" else ((), ends)
        return Slice(int(begin_ns[row]), int(end_ns[row]), columns["name"][row], details, *both)

    lanes = {name: np.flatnonzero(lane_of_node == name) for name in names}
    return write_npu(trace, npu, position, lanes, begin_ns, end_ns, slice_of, max_slices)


def _lane(kind: str, engine_lane: str | None, name: str) -> str:
    """Return the lane of a node; "" for a node that is not shown because it takes no time."""
    if kind in {"compute", "memory"}:
        return engine_lane or kind
    if kind == "noop":
        return ""
    axis = axis_of(name)
    what = {"send": "sends", "recv": "receives"}.get(kind, "collectives")
    return f"{axis} {what}" if axis else what


def _order(lane: str) -> tuple[int, str]:
    return (_LANES.index(lane), lane) if lane in _LANES else (len(_LANES), lane)


def _arrows(run: Run, npus: Int64) -> dict[tuple[int, int], int]:
    """Return the number of the arrow at each send and receive whose NPUs are both shown, by NPU and row."""
    kinds = set(pc.unique(run.nodes["kind"]).to_pylist())
    if not {"send", "recv"} <= kinds:
        return {}
    npu, row = (numpy_column(run.nodes[name], np.int64) for name in ("npu", "row"))
    try:
        sender = senders_of(run)
    except ValueError as error:
        if getattr(error, "exit_code", None) != ConfigError.exit_code:
            raise
        return {}
    recvs = np.flatnonzero(sender >= 0)
    both = recvs[np.isin(npu[recvs], npus) & np.isin(npu[sender[recvs]], npus)]
    arrows: dict[tuple[int, int], int] = {}
    for number, recv in enumerate(both.tolist(), 1):
        send = int(sender[recv])
        arrows[int(npu[recv]), int(row[recv])] = arrows[int(npu[send]), int(row[send])] = number
    return arrows


def _loads(trace: PerfettoTrace, run: Run) -> int:
    """Write counters of the busiest links, estimated from the times of messages."""
    if not (run.network.has_links and run.has(LINKS) and run.has(FLOWS) and len(run.flows)):
        return 0
    try:
        load = link_load(run, MAX_LINKS, STRETCHES)
    except ValueError as error:
        if getattr(error, "exit_code", None) != ConfigError.exit_code:
            raise
        return 0
    parent = trace.track("links: load, estimated from the times of messages")
    for rank, (link, share) in enumerate(zip(load.link.tolist(), load.share, strict=True)):
        track = trace.counter(_link(run, link), "%", parent, rank)
        _count(trace, track, load.edges_ps[:-1], np.round(share * 100, 2))
    return len(load.link)


def _queues(trace: PerfettoTrace, run: Run) -> int:
    """Write counters of the fullest shared buffers."""
    if run.queues is None or not len(run.queues):
        return 0
    link, time_ps, depth = (numpy_column(run.queues[name], np.int64) for name in ("link", "time_ps", "bytes"))
    fullest = np.zeros(int(link.max()) + 1, np.int64)
    np.maximum.at(fullest, link, depth)
    chosen = np.argsort(-fullest, kind="stable")[:MAX_QUEUES]
    chosen = chosen[fullest[chosen] > 0]
    parent = trace.track("queues: maximum bytes at the port")
    for rank, port in enumerate(chosen.tolist()):
        here = np.flatnonzero(link == port)
        here = here[np.argsort(time_ps[here], kind="stable")]
        _count(trace, trace.counter(_link(run, port), "B", parent, rank), time_ps[here], depth[here])
    return len(chosen)


def _count(
    trace: PerfettoTrace, counter_track: int, time_ps: NDArray[np.floating | np.integer], values: NDArray
) -> None:
    """Write a counter's values where they change."""
    last = None
    for time, value in zip(time_ps.tolist(), values.tolist(), strict=True):
        if value != last:
            trace.count(counter_track, int(time) // _PS_PER_NS, value)
            last = value


def _link(run: Run, link: int) -> str:
    return f"{run.links['src'][link].as_py()} → {run.links['dst'][link].as_py()}"
