"""Pairs of simulated and measured times for the nodes of a run, and the clock offsets of the measured ranks.

All members of an all-reduce, all-gather, reduce-scatter, all-to-all or barrier end at about the same moment, because no
member can end before the last one has begun. A rank's clock is ahead by the difference of its measured finish from that
of the others, minus the simulated difference. The estimate minimises absolute deviations over all collectives
(iteratively reweighted least squares), so that single delays do not distort it.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.errors import ConfigError
from nadi.et import topological_order
from nadi.et.statistics import waited_micros
from nadi.inputs.arrays import Int64, arrow_numbers, numpy_column, positions
from nadi.inputs.units import PS_PER_US
from nadi.insight.runs import Run
from nadi.simulation import schemas
from nadi.workload import TraceSet, load_set
from nadi.workload.collectives import UNEVEN

if TYPE_CHECKING:
    import pyarrow as pa


TIMED_KINDS = ("compute", "host compute", "memory", "send", "recv", "collective")
COMPUTE, HOST_COMPUTE, MEMORY, SEND, RECV, COLLECTIVE = range(len(TIMED_KINDS))
_NUMBERS = ("npu", "row", "node_id", "group", "bytes", "start_ps", "finish_ps")
_NODE_COLUMNS = (*_NUMBERS, "name", "kind", "lane")
_COLLECTIVE_COLUMNS = ("group", "group_name", "seq", "kind", "members", "bytes", "start_ps")
_MAX_DURATION_MICROS = 9 * 10**12  # in picoseconds still less than 2^63


@dataclasses.dataclass(frozen=True, eq=False)
class TimedNodes:
    """n nodes of a run with durations in the traces, sorted by NPU and row."""

    run: Path  # folder of the run
    traces: Path  # path of the traces with the measured times
    npu: Int64  # int64[n], NPU of each node
    node_id: NDArray[np.uint64]  # uint64[n], id of each node in its trace
    name: "pa.ChunkedArray"  # pa.ChunkedArray[n] of text
    kind: NDArray[np.int8]  # int8[n], row of KINDS
    size_bytes: Int64  # int64[n], size of the message or of the collective's whole buffer
    peer: Int64  # int64[n], the other NPU of a send or receive, -1 = none
    collective: Int64  # int64[n], row of `collectives`, -1 = none
    message: Int64  # int64[n], number that the send and the receive of a message share, -1 = none
    simulated_start_ps: Int64  # int64[n], start in the run
    simulated_ps: Int64  # int64[n], duration in the run
    measured_start_ps: Int64  # int64[n], time since the first compared node of the NPU; 0 where has_start is false
    measured_ps: Int64  # int64[n], positive duration, with the wait that a converter has removed from it (WAIT_MICROS)
    has_start: NDArray[np.bool_]  # bool[npus], whether the trace of an NPU has start times
    base_micros: Int64  # int64[npus], start of the NPU's first compared node on its own clock
    collectives: dict[str, Any]  # columns of collectives.parquet of the run
    # counts of the run's nodes that are not compared: "without_trace", "not_in_traces" and "without_time"
    left_out: dict[str, int]

    def __len__(self) -> int:
        return len(self.npu)


def read_beside(run: Path, traces: Path | None = None) -> TimedNodes:
    """Pair a run's nodes with those of traces with times (None = those that the run read), by NPU and id."""
    config, nodes, collectives = _read_run(run)
    configured = config.get("workload", {}).get("traces")
    if traces is None and configured is None:
        raise ConfigError(f"{run}: a run of a model, which carries no measured times; expected TRACES beside it")
    source = traces if traces is not None else Path(configured)
    npus = int(nodes["npu"].max()) + 1
    loaded = load_set(source, npus, strict=False, keep_others=True)
    return _paired(run, source, nodes, collectives, loaded)


def _read_run(run: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the settled configuration, nodes and collectives of a run."""
    opened = Run(run)
    nodes = opened.read(schemas.NODES, _NODE_COLUMNS)
    collectives = opened.read(schemas.COLLECTIVES, _COLLECTIVE_COLUMNS)
    if nodes is None or collectives is None:
        lacking = schemas.NODES.file if nodes is None else schemas.COLLECTIVES.file
        raise ConfigError(f'{run}: no {lacking}; expected results of nadi run with [output] nodes = "all"')
    if not nodes.num_rows:
        raise ConfigError(f"{run}: {schemas.NODES.file} has no rows; expected a run of traces")
    columns: dict[str, Any] = {name: numpy_column(nodes[name], null=-1) for name in _NUMBERS}
    columns |= {"kind": _words(nodes["kind"]), "lane": _words(nodes["lane"]), "name": nodes["name"]}
    of_collectives = {name: numpy_column(collectives[name]) for name in _COLLECTIVE_COLUMNS}
    return opened.summary.get("config", {}), columns, of_collectives


def _words(column: "pa.ChunkedArray") -> NDArray[Any]:
    """Return a text column with few distinct values as an array of str; null as ""."""
    return numpy_column(column, str, null="")


def _paired(
    run: Path, traces_path: Path, nodes: dict[str, Any], collectives: dict[str, Any], trace_set: TraceSet
) -> TimedNodes:
    """Return the nodes that both the run (columns of its tables) and the traces have, with durations in the traces."""
    kind = np.full(len(nodes["npu"]), -1, np.int8)  # -1 = a node that does nothing
    for number, name in enumerate(TIMED_KINDS):
        kind[nodes["kind"] == name] = number
    kind[(kind == COMPUTE) & (nodes["lane"] == "cpu")] = HOST_COMPUTE
    at, left_out = _rows_in_traces(nodes, trace_set, kind >= 0)
    is_there = at >= 0
    if not np.any(is_there):
        raise ConfigError(
            f"{traces_path}: no node of the run {run} is in these traces; expected the traces that were run"
        )
    trace_of_row = trace_set.trace_of_npu[nodes["npu"].clip(max=len(trace_set.trace_of_npu) - 1)]
    columns: dict[str, Int64] = {
        name: np.concatenate([getattr(trace, name) for trace in trace_set.traces]).astype(np.int64)
        for name in ("duration_micros", "start_time_micros", "comm_src", "comm_dst", "comm_tag")
    }
    ptr = np.cumsum([0, *(len(trace) for trace in trace_set.traces)])
    place = np.where(is_there, ptr[trace_of_row] + at, 0)
    waited = np.concatenate([waited_micros(trace) for trace in trace_set.traces])
    duration = np.where(is_there, (columns["duration_micros"] + waited)[place], 0)
    start = np.where(is_there, (columns["start_time_micros"] - waited)[place], 0)
    if duration.max() > _MAX_DURATION_MICROS:
        raise ConfigError(f"{traces_path}: a node takes {duration.max():,} microseconds; expected at most 10^13")
    position = _positions(nodes["npu"], trace_set, np.where(kind >= SEND, at, -1))
    timed = np.flatnonzero(is_there & (duration > 0))
    left_out["without_time"] = int(np.count_nonzero(is_there)) - len(timed)
    if not len(timed):
        raise ConfigError(f"{traces_path}: no node has a duration; expected traces that carry measured times")
    has_start, base, since = _starts(nodes["npu"], timed, start)
    written_peer = np.where(kind == SEND, columns["comm_dst"][place], columns["comm_src"][place])
    example = trace_set.example_npu[trace_of_row]
    shift = np.where(example >= 0, nodes["npu"] - example, 0)
    is_message = is_there & ((kind == SEND) | (kind == RECV))
    peer = np.where(is_message, written_peer + shift, -1)
    seq = _seq(np.flatnonzero(is_there & (kind == COLLECTIVE)), position, nodes["npu"], nodes["group"])
    tag = np.where(is_message, columns["comm_tag"][place], -1)
    return TimedNodes(
        run=run,
        traces=traces_path,
        npu=nodes["npu"][timed].astype(np.int64),
        node_id=nodes["node_id"][timed],
        name=nodes["name"].take(arrow_numbers(timed)),
        kind=kind[timed],
        size_bytes=nodes["bytes"][timed],
        peer=peer[timed].astype(np.int64),
        collective=_collective_of(run, traces_path, nodes, collectives, seq)[timed],
        message=_message_of(nodes["npu"], kind, peer, tag, position)[timed],
        simulated_start_ps=nodes["start_ps"][timed],
        simulated_ps=(nodes["finish_ps"] - nodes["start_ps"])[timed],
        measured_start_ps=since * PS_PER_US,
        measured_ps=duration[timed] * PS_PER_US,
        has_start=has_start,
        base_micros=base,
        collectives=collectives,
        left_out=left_out,
    )


def _rows_in_traces(
    nodes: dict[str, Any], trace_set: TraceSet, is_counted: NDArray[np.bool_]
) -> tuple[Int64, dict[str, int]]:
    """Return int64[rows of the run], rows in traces or -1, and numbers of nodes left out.

    is_counted: bool[rows of the run], rows to look up; the others get -1.
    """
    found = np.full(len(nodes["npu"]), -1, np.int64)
    without_trace = 0
    sorted_ids: dict[int, tuple[NDArray[np.uint64], Int64]] = {}
    for npu, own in _slices(nodes["npu"]):
        trace = int(trace_set.trace_of_npu[npu]) if npu < len(trace_set.trace_of_npu) else -1
        if trace < 0:
            without_trace += int(np.count_nonzero(is_counted[own]))
            continue
        table = trace_set.traces[trace]
        if trace not in sorted_ids:
            by_id = np.argsort(table.node_id)
            sorted_ids[trace] = table.node_id[by_id], by_id
        ids, by_id = sorted_ids[trace]
        # ids are unique within a trace, but in any order
        place = np.searchsorted(ids, nodes["node_id"][own]).clip(max=max(len(ids) - 1, 0))
        same = ids[place] == nodes["node_id"][own] if len(ids) else np.zeros(len(place), bool)
        found[own] = np.where(same, by_id[place] if len(ids) else -1, -1)
    found[~is_counted] = -1
    lacking = int(np.count_nonzero(is_counted)) - without_trace - int(np.count_nonzero(found >= 0))
    return found, {"without_trace": without_trace, "not_in_traces": lacking}


def _slices(npu_of_row: Int64) -> list[tuple[int, slice]]:
    """Return the range of rows of each NPU; the rows of an NPU are consecutive."""
    begins = np.flatnonzero(np.diff(npu_of_row, prepend=-1))
    ends = [*begins[1:].tolist(), *([len(npu_of_row)] if len(npu_of_row) else [])]
    return [(int(npu_of_row[begin]), slice(int(begin), end)) for begin, end in zip(begins, ends, strict=True)]


def _starts(npu_of_row: Int64, timed_rows: Int64, start_micros: Int64) -> tuple[NDArray[np.bool_], Int64, Int64]:
    """Return which NPUs have starts, the first start of each in microseconds, and int64[timed]: the time since it."""
    npus = int(npu_of_row.max()) + 1
    own = npu_of_row[timed_rows]
    latest = np.full(npus, -1, np.int64)
    np.maximum.at(latest, own, start_micros[timed_rows])
    base = np.full(npus, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(base, own, start_micros[timed_rows])
    # all 0, or so far apart that picoseconds exceed 63 bits: no times of starts
    has_start = (latest > 0) & (latest - base <= _MAX_DURATION_MICROS)
    base[~has_start] = 0
    return has_start, base, np.where(has_start[own], start_micros[timed_rows] - base[own], 0)


def _positions(npu_of_row: Int64, trace_set: TraceSet, trace_row: Int64) -> Int64:
    """Return int64[rows of the run]: the place of each trace row, if >= 0, in its trace's topological order."""
    found = np.full(len(trace_row), -1, np.int64)
    rows = np.flatnonzero(trace_row >= 0)
    places: dict[int, Int64] = {}
    for number, own in _slices(npu_of_row[rows]):
        trace = int(trace_set.trace_of_npu[number])
        if trace not in places:
            order = topological_order(trace_set.traces[trace])
            places[trace] = np.empty(len(order), np.int64)
            # once per distinct trace
            places[trace][order] = np.arange(len(order))
        found[rows[own]] = places[trace][trace_row[rows[own]]]
    return found


def _seq(rows: Int64, position: Int64, *keys: Int64) -> Int64:
    """Return int64[len(position)]: the index of each row among rows with the same keys, by position; -1 elsewhere."""
    seq = np.full(len(position), -1, np.int64)
    order = rows[np.lexsort((position[rows], *(key[rows] for key in keys)))]
    is_first = np.ones(len(order), bool)
    is_first[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    # begin of each row's run: with first rows at 0 and 3, five rows have 0 0 0 3 3
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    seq[order] = np.arange(len(order)) - begins
    return seq


def _message_of(npu_of_row: Int64, kind: NDArray[np.int8], peer: Int64, tag: Int64, position: Int64) -> Int64:
    """Return int64[rows of the run]: a number that both ends of a message share, by ends, tag and index; -1 = none."""
    found = np.full(len(npu_of_row), -1, np.int64)
    ends = np.flatnonzero((position >= 0) & (peer >= 0))
    if not len(ends):
        return found
    seq = _seq(ends, position, npu_of_row, peer, tag, kind.astype(np.int64))[ends]
    is_send = kind[ends] == SEND
    src, dst = np.where(is_send, npu_of_row[ends], peer[ends]), np.where(is_send, peer[ends], npu_of_row[ends])
    # both ends have the same source, destination, tag and index
    _, number = np.unique(np.stack([src, dst, tag[ends], seq]), axis=1, return_inverse=True)
    found[ends] = number.reshape(-1)
    return found


def _collective_of(
    run: Path, traces_path: Path, nodes: dict[str, Any], collectives: dict[str, Any], collective_index: Int64
) -> Int64:
    """Return int64[rows of the run]: the row of each node in collectives.parquet, -1 = none; refuse other traces."""
    found = np.full(len(collective_index), -1, np.int64)
    rows = np.flatnonzero(collective_index >= 0)
    if not len(rows):
        return found
    # group and number of the collective as one word
    width = int(max(collectives["seq"].max(initial=0), collective_index.max())) + 1
    key = collectives["group"].astype(np.int64) * width + collectives["seq"]
    found[rows] = positions(key, nodes["group"][rows].astype(np.int64) * width + collective_index[rows])
    rows = rows[found[rows] >= 0]
    # a member cannot have begun before the collective did
    before = nodes["start_ps"][rows] < collectives["start_ps"][found[rows]]
    if np.any(before):
        row = rows[int(np.argmax(before))]
        raise ConfigError(
            f"{traces_path}: node {nodes['node_id'][row]} of NPU {nodes['npu'][row]} is another collective in the run "
            f"{run}; expected the traces that were run, with their dependencies"
        )
    return found


SYNCHRONISING = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", UNEVEN, "barrier")
_ROUNDS = 12  # number of reweighted solutions
_MIN_RESIDUAL_MICROS = 0.01  # residual below which weights do not grow further, which keeps them finite
_TOLERANCE = 1e-13  # relative tolerance of the solver (scipy.sparse.linalg.lsqr)


class RankClocks(NamedTuple):
    """Clock offsets of the ranks."""

    # float64[npus], time that a rank's clock is ahead of its reference rank's; NaN for a rank that shares no collective
    # with another rank
    offset_micros: NDArray[np.float64]
    # int64[npus], lowest rank that is connected to each rank by common collectives; -1 = none
    reference: NDArray[np.int64]
    # float64[observations], differences of finishes that the offsets do not explain
    residual_micros: NDArray[np.float64]


def estimate_clocks(nodes: TimedNodes) -> RankClocks:
    """Estimate the clock offsets of all ranks whose traces have start times, from synchronising collectives.

    Args:
        nodes: Nodes with measured and simulated times.
    """
    npus = len(nodes.has_start)
    # rows of synchronising collectives with two or more timed members
    kinds = np.asarray(nodes.collectives["kind"], dtype=str)
    is_timed = (nodes.collective >= 0) & nodes.has_start[nodes.npu]
    is_timed[is_timed] = np.isin(kinds, SYNCHRONISING)[nodes.collective[is_timed]]
    rows = np.flatnonzero(is_timed)
    counts = np.bincount(nodes.collective[rows], minlength=len(kinds))
    # one member alone says nothing about two clocks
    rows = rows[counts[nodes.collective[rows]] > 1]
    offset, reference = np.full(npus, np.nan), np.full(npus, -1, np.int64)
    if not len(rows):
        return RankClocks(offset, reference, np.zeros(0))
    npu = nodes.npu[rows]
    finish = nodes.measured_start_ps[rows] + nodes.measured_ps[rows]
    simulated = nodes.simulated_start_ps[rows] + nodes.simulated_ps[rows]
    _, instance = np.unique(nodes.collective[rows], return_inverse=True)
    # members of a synchronising collective end together, so differences come from clocks
    difference = (finish - simulated) / PS_PER_US
    solved, first, residual = _solved(npu, instance, difference, npus)
    met = np.unique(npu)
    reference[met] = first[met]
    base = nodes.base_micros[met] - nodes.base_micros[reference[met]]
    offset[met] = base + solved[met] - solved[reference[met]]
    return RankClocks(offset, reference, residual)


def _solved(
    rank_of_row: NDArray[np.int64],
    collective_of_row: NDArray[np.int64],
    difference_micros: NDArray[np.float64],
    num_npus: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Solve difference = offset of the rank + time of the collective; return offsets, references and residuals."""
    from scipy import sparse
    from scipy.sparse import csgraph
    from scipy.sparse.linalg import lsqr

    count, columns = len(rank_of_row), num_npus + int(collective_of_row.max()) + 1
    row = np.arange(count)
    ones = np.ones(2 * count)
    places = np.concatenate([row, row]), np.concatenate([rank_of_row, num_npus + collective_of_row])
    matrix = sparse.csr_matrix((ones, places), (count, columns))
    edges = sparse.coo_matrix((np.ones(count), (rank_of_row, num_npus + collective_of_row)), (columns, columns))
    # ranks that share no collectives, even indirectly, cannot be compared
    _, component = csgraph.connected_components(edges, directed=False)
    first = np.full(int(component.max()) + 1, num_npus, np.int64)
    np.minimum.at(first, component[rank_of_row], rank_of_row)
    weight, solved = np.ones(count), np.zeros(columns)
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        left = difference_micros - matrix @ solved
        found = lsqr(sparse.diags(root) @ matrix, root * left, atol=_TOLERANCE, btol=_TOLERANCE)
        solved = solved + found[0]
        # reweighted least squares towards the smallest sum of absolute errors: outliers count less
        weight = 1 / np.maximum(np.abs(difference_micros - matrix @ solved), _MIN_RESIDUAL_MICROS)
    return solved[:num_npus], first[component[:num_npus]], difference_micros - matrix @ solved
