"""The events of a finished run as an acyclic graph whose longest paths give their times.

A vertex is a moment: the begin of a trace node, its end, or the moment when the last member of a collective had begun.
An edge u -> v with weight w means that v is at least w after u. Edges are

- begin -> end of a node: its duration;
- begin of a member -> last member has begun -> end of each member: duration of the collective after that moment;
- begin of a send -> end of its receive: duration of the message;
- end -> begin: a dependency of the trace, the previous node on the lane, or the previous collective of the group; else
  the node of the NPU whose end released it. An unexplained gap between the last of these ends and the begin is kept as
  the weight of the edge.

With the times of the run as weights, the longest paths reproduce the run to the picosecond.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nadi.errors import ConfigError
from nadi.inputs.arrays import Float64, Int64, numpy_column, positions, spans
from nadi.inputs.errors import NadiError
from nadi.insight.runs import Run
from nadi.pdes import Settings
from nadi.simulation.closed_forms import WHAT_IF_EFFORT, CollectiveCosts, slots_of
from nadi.topologies import Graph
from nadi.workload import Program
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, MEMORY, RECV, SEND


class CyclicError(NadiError, ValueError):
    """An order of the moments does not exist."""


class Edges(NamedTuple):
    """E edges."""

    source: Int64  # int64[E], vertex at the begin
    target: Int64  # int64[E], vertex at the end
    weight: Float64  # float64[E], minimum delay in picoseconds


class Dag:
    """A graph of moments (vertices) and waits (E edges), to find the longest paths.

    `edges` are sorted by level of their target, `place` holds the former index of each.
    """

    def __init__(self, vertices: int, edges: Edges, begin: Float64) -> None:
        """Sort the vertices; begin: float64[vertices], time of one without incoming edges. Refuse cycles."""
        self._begin = begin
        level = _levels(vertices, edges)
        # edges by level of their end, so that each level needs those before it only
        self.place = np.lexsort((edges.target, level[edges.target]))
        self.edges = Edges(edges.source[self.place], edges.target[self.place], edges.weight[self.place])
        target = self.edges.target
        self._first = np.flatnonzero(np.diff(target, prepend=-1))
        self._heads = target[self._first]
        of_head = level[self._heads]
        self._ends = np.searchsorted(of_head, np.arange(1, int(of_head.max(initial=0)) + 2))

    def times(self, weight: Float64 | None = None) -> Float64:
        """Return float64[vertices], picoseconds; weight: float64[E], sorted as `edges`, None = their own weights."""
        weight = self.edges.weight if weight is None else weight
        time = self._begin.copy()
        source, first = self.edges.source, np.append(self._first, len(self.edges.source))
        begin = 0
        for end in self._ends.tolist():
            if end > begin:
                low, high = first[begin], first[end]
                arrivals = time[source[low:high]] + weight[low:high]
                # all vertices of a level at once
                time[self._heads[begin:end]] = np.maximum.reduceat(arrivals, first[begin:end] - low)
            begin = end
        return time

    def path(self, last: int, time: Float64) -> list[int]:
        """Return the edges, as indices, of a longest path to the vertex `last`, in order; time: result of `times()`."""
        weight = self.edges.weight
        found: list[int] = []
        at = last
        order = np.argsort(self._heads, kind="stable")
        heads, first = self._heads[order], np.append(self._first, len(weight))
        while True:
            place = int(np.searchsorted(heads, at))
            if place == len(heads) or heads[place] != at:
                return found[::-1]
            low, high = first[order[place]], first[order[place] + 1]
            # the incoming edge that arrived last; of several, the first
            edge = int(low + np.argmax(time[self.edges.source[low:high]] + weight[low:high]))
            found.append(edge)
            at = int(self.edges.source[edge])


def _levels(num_vertices: int, edges: Edges) -> Int64:
    """Return int64[vertices]: number of edges on the path with most edges to each vertex."""
    order = np.argsort(edges.source, kind="stable")
    target = edges.target[order]
    ptr = np.searchsorted(edges.source[order], np.arange(num_vertices + 1))
    missing = np.bincount(edges.target, minlength=num_vertices)
    level, now = np.zeros(num_vertices, np.int64), np.flatnonzero(missing == 0)
    number, seen = 0, 0
    while len(now):
        level[now] = number
        seen, number = seen + len(now), number + 1
        count = ptr[now + 1] - ptr[now]
        reached = target[spans(ptr[now], count)[1]]
        reached, times = np.unique(reached, return_counts=True)
        # a vertex is reached when the last of its incoming edges has been followed
        missing[reached] -= times
        now = reached[missing[reached] == 0]
    if seen < num_vertices:
        raise CyclicError(f"{num_vertices - seen:,} of {num_vertices:,} moments wait for each other")
    return level


MAX_NODES = 8_000_000  # number of trace nodes up to which a run is explained, to bound memory
DURATION, DONE, MESSAGE, AFTER, JOINS = range(5)
"""Kinds of edges: a node's duration; a collective after its last member had begun; a message; a begin after an end; a
member that joins its collective."""
_TAG_BITS, _SEQ_BITS = 24, 20
"""Bits of a message's tag and of its place in a key, which identifies a message between two NPUs."""
_MAX_LANES = 8  # offset that separates numbers of groups from numbers of lanes


REPRESENTED_BY = "represented_by"


class Representatives(NamedTuple):
    """Representatives of NPUs and groups in runs that keep the trace nodes of one NPU per class.

    NPUs of a class have the same nodes at the same times (closed_forms/advancing/equivalence.py). The nodes of one NPU
    per class therefore describe a collective with members of several classes, although that NPU's own group may be
    another, equivalent one; and its sends describe the messages of every NPU of its class.
    """

    like: Int64  # int64[npus], NPU whose nodes represent those of each NPU; its own number where all nodes are kept
    first: Int64  # int64[npus], row of the representative's first node in nodes.parquet; -1 = no node
    group: Int64  # int64[groups], equal for groups whose collectives have the same representative nodes


class RunEvents(NamedTuple):
    """A run of n trace nodes and c collectives."""

    # graph of moments in picoseconds: n begins, n ends, and c moments when the last member of a collective had begun
    dag: Dag
    kind: NDArray[np.int8]  # int8[E], kind of each edge of `dag.edges`
    # int64[E], a DURATION's node, a MESSAGE's receive, the member for DONE and JOINS, AFTER's later node
    of_node: Int64
    npu: Int64  # int64[n], NPU of each node
    row: Int64  # int64[n], row of each node in the NPU's trace
    node_kind: NDArray[np.int8]  # int8[n], kind as in Program
    lane: NDArray[np.int8]  # int8[n], lane as in Program
    at: Int64  # int64[n], row of Program.node_*
    start_ps: Int64  # int64[n], begin of each node
    finish_ps: Int64  # int64[n], end of each node
    collective: Int64  # int64[n], collective of a node; -1 = none
    first: Int64  # int64[c], one node of each collective
    ready_ps: Int64  # int64[c], begin of its last member
    sender: Int64  # int64[n], send of a receive; -1 = none
    counts: NDArray[np.bool_]  # bool[n], whether the end of a node may be the end that is explained
    program: Program  # Program that ran

    def last(self) -> int:
        """Return the vertex of the end that is explained: of the run, or of a job."""
        return len(self.npu) + int(np.argmax(np.where(self.counts, self.finish_ps, -1)))

    def end_ps(self, times: NDArray[np.number]) -> float:
        """Return the latest of the times of ends that count; times: number[vertices], in picoseconds."""
        n = len(self.npu)
        return float(np.where(self.counts, times[n : 2 * n], 0).max(initial=0))


def _rows_in_program(run: Run, program: Program, npu: Int64, trace_row: Int64) -> Int64:
    """Return int64[n], rows of Program.node_*; refuse a run with a row beyond the trace of its NPU."""
    trace = program.trace_of_npu[npu]
    # NPUs without a trace have no rows
    rows = np.where(trace >= 0, np.diff(program.trace_ptr)[trace], 0)
    wrong = np.flatnonzero(trace_row >= rows)
    if len(wrong):
        first = wrong[0]
        wrong_row = f"row {trace_row[first]} of NPU {npu[first]}, whose trace has {rows[first]} rows"
        raise ConfigError(f"{run.folder}: nodes.parquet: {wrong_row}; expected results of `nadi run --out`")
    return program.trace_ptr[trace] + trace_row


def events_of_run(run: Run, job: str = "") -> RunEvents:
    """Return the events of a run, to explain the end of a job.

    job: Name of the job, "" = all jobs, but without those that are messages without a model, if there are others.
    Raises ConfigError: the run lacks the job, has not kept its nodes and traces, or has too many of them.
    """
    nodes, program = run.nodes, run.work.program
    of_jobs = _npus_of_jobs(run, program, job)
    if len(nodes) > MAX_NODES:
        raise ConfigError(f"{run.folder}: {len(nodes):,} trace nodes; expected at most {MAX_NODES:,} to be explained")
    columns = ("npu", "row", "start_ps", "finish_ps")
    npu, row, start_ps, finish_ps = (numpy_column(nodes[name], np.int64) for name in columns)
    at = _rows_in_program(run, program, npu, row)
    kind = program.node_kind[at]
    like = representatives(run, program, npu)
    collective, first, ready_ps = _collectives(program, npu, at, kind, start_ps, like.group)
    sender = _senders(program, npu, at, kind, like)
    parents = _parents(program, npu, row)
    own_lane = np.where((kind == COMPUTE) | (kind == MEMORY), program.node_lane[at], -1).astype(np.int64)
    if not run.reader.fitted_settings().concurrent_collectives:
        own = np.flatnonzero(collective >= 0)
        own_lane[own] = program.slot_group[program.slot_ptr[npu[own]] + program.node_group[at[own]]] + _MAX_LANES
    # consecutive nodes of an NPU that exclude each other: on a lane, or of a group
    order = np.lexsort((finish_ps, start_ps, own_lane, npu))
    order = order[own_lane[order] >= 0]
    one, other = order[:-1], order[1:]
    follows = (npu[one] == npu[other]) & (own_lane[one] == own_lane[other]) & (finish_ps[one] <= start_ps[other])
    turns = one[follows], other[follows]
    # the node of the same NPU that ended just when a node began, if that is after all its parents' ends
    parent, child = np.append(parents[0], turns[0]), np.append(parents[1], turns[1])
    latest = np.full(len(npu), -1)
    np.maximum.at(latest, child, finish_ps[parent])
    waited = np.flatnonzero((latest < start_ps) & (start_ps > 0))
    longer = np.flatnonzero(finish_ps > start_ps)  # what takes no time holds up nothing
    times = np.unique(np.concatenate([finish_ps[longer], start_ps[waited]]))
    key = npu[longer] * len(times) + np.searchsorted(times, finish_ps[longer])
    wanted = npu[waited] * len(times) + np.searchsorted(times, start_ps[waited])
    match = positions(key, wanted)
    before = longer[match[match >= 0]], waited[match >= 0]
    edges, what, of_node = _edges(start_ps, finish_ps, collective, ready_ps, sender, (parents, turns, before))
    begin = np.concatenate([start_ps, finish_ps, ready_ps]).astype(np.float64)
    dag = Dag(len(begin), edges, begin)
    return RunEvents(
        *(dag, what[dag.place], of_node[dag.place], npu, row, kind, program.node_lane[at], at, start_ps, finish_ps),
        *(collective, first, ready_ps, sender, of_jobs[npu], program),
    )


def _npus_of_jobs(run: Run, program: Program, name: str) -> NDArray[np.bool_]:
    """Return bool[npus]: the NPUs of a job, or of all jobs that count (`happened`)."""
    if name:
        run.check_job(name)
    if program.jobs is None:
        return np.ones(program.npus, np.bool_)
    chosen = [each == name for each in program.jobs.names]
    if not name:
        # jobs that only send messages have no end to explain
        chosen = [not job.is_traffic for job in run.work.jobs]
    return np.append(chosen if any(chosen) else np.ones(len(chosen), np.bool_), False)[program.jobs.of_npus()]


def senders_of(run: Run) -> Int64:
    """Return int64[n], by row of nodes.parquet: the row of the send of each receive; -1 = no receive.

    Args:
        run: The run, read from its folder (`Run`).
    """
    program = run.work.program
    npu, row = (numpy_column(run.nodes[name], np.int64) for name in ("npu", "row"))
    at = program.trace_ptr[program.trace_of_npu[npu]] + row
    return _senders(program, npu, at, program.node_kind[at], representatives(run, program, npu))


def node_names(run: Run) -> pa.ChunkedArray:
    """Return the names of the nodes, in the order of RunEvents.

    Args:
        run: The run, read from its folder (`Run`).
    """
    return run.nodes["name"]


def _collectives(
    program: Program,
    npu: Int64,
    program_row: Int64,
    kind: NDArray[np.int8],
    start_ps: Int64,
    representative_group: Int64,
) -> tuple[Int64, Int64, Int64]:
    """Return the collective of each node, one node of each collective, and the begin of the last member of each."""
    number = np.full(len(npu), -1)
    own = np.flatnonzero((kind == COLLECTIVE) & (program.node_schedule[program_row] >= 0))
    group = representative_group[program.slot_group[program.slot_ptr[npu[own]] + program.node_group[program_row[own]]]]
    # group and number of the collective as one word
    key = group << 32 | program.node_seq[program_row[own]].astype(np.int64)
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    number[own] = index.reshape(-1)
    ready_ps = np.zeros(len(first), np.int64)
    np.maximum.at(ready_ps, number[own], start_ps[own])
    return number, own[first], ready_ps


def _senders(
    program: Program, npu: Int64, program_row: Int64, kind: NDArray[np.int8], representatives_of_run: Representatives
) -> Int64:
    """Return int64[n]: the send of each receive, or its representative; -1 = no receive."""
    sender = np.full(len(npu), -1)
    recvs = np.flatnonzero(kind == RECV)
    peer = program.peers(npu[recvs], program.node_peer[program_row[recvs]]).astype(np.int64)
    sent_by, sent_at, place = _sends(program, np.unique(peer), representatives_of_run)
    sent_to = program.peers(sent_by, program.node_peer[sent_at])
    both = np.concatenate([sent_by * program.npus + sent_to, peer * program.npus + npu[recvs]])
    # numbers of pairs leave room for tag and number in one word
    _, pair = np.unique(both, return_inverse=True)
    rows = np.concatenate([sent_at, program_row[recvs]])
    tag = program.node_tag[rows].astype(np.int64) & ((1 << _TAG_BITS) - 1)
    seq = program.node_seq[rows].astype(np.int64) & ((1 << _SEQ_BITS) - 1)
    key = (pair.reshape(-1) << _TAG_BITS | tag) << _SEQ_BITS | seq
    match = positions(key[: len(sent_by)], key[len(sent_by) :])
    sender[recvs[match >= 0]] = place[match[match >= 0]]
    return sender


def _sends(program: Program, npus: Int64, representatives_of_run: Representatives) -> tuple[Int64, Int64, Int64]:
    """Return for all sends of some NPUs: the NPU, the row of Program.node_*, and the node that represents the send."""
    npus = npus[representatives_of_run.first[npus] >= 0]
    trace = program.trace_of_npu[npus]
    rows = np.diff(program.trace_ptr)[trace]
    npu = np.repeat(npus, rows)
    at = spans(program.trace_ptr[trace], rows)[1]
    node = spans(representatives_of_run.first[npus], rows)[1]
    is_send = program.node_kind[at] == SEND
    return npu[is_send], at[is_send], node[is_send]


def _parents(program: Program, npu: Int64, trace_row: Int64) -> tuple[Int64, Int64]:
    """Return the edges parent -> child between nodes, as node indices."""
    runs = np.flatnonzero(np.diff(npu, prepend=-1))
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for begin in runs.tolist():
        trace = program.trace_of_npu[npu[begin]]
        low, high = program.trace_ptr[trace], program.trace_ptr[trace + 1]
        ptr = program.child_ptr[low : high + 1]
        # rows are used as offsets below, so the file must be whole
        if trace_row[begin] != 0:
            raise ConfigError(f"nodes.parquet: NPU {npu[begin]} begins with row {trace_row[begin]}; expected 0")
        sources.append(begin + np.repeat(np.arange(high - low), np.diff(ptr)))
        targets.append(begin + program.child[ptr[0] : ptr[-1]].astype(np.int64))
    return np.concatenate(sources), np.concatenate(targets)


def _edges(
    start_ps: Int64,
    finish_ps: Int64,
    collective: Int64,
    ready_ps: Int64,
    sender: Int64,
    wait_edges: tuple[tuple[Int64, Int64], ...],
) -> tuple[Edges, NDArray[np.int8], Int64]:
    """Return all edges, the kind and node of each; wait_edges: (earlier, later nodes) of parents, lanes, groups."""
    # moments: i is the start of node i, n + i its finish, and 2 n + c the begin of the last member of collective c
    n = len(start_ps)
    node = np.arange(n)
    joins = np.flatnonzero(collective >= 0)
    done = joins[finish_ps[joins] >= ready_ps[collective[joins]]]
    message = np.flatnonzero((sender >= 0) & (finish_ps > start_ps))
    message = message[start_ps[sender[message]] <= finish_ps[message]]
    is_held = np.zeros(n, np.bool_)  # by something else than its own duration
    is_held[done], is_held[message] = True, True
    own = np.where(is_held, 0, finish_ps - start_ps)
    source = np.concatenate([wait[0] for wait in wait_edges])
    target = np.concatenate([wait[1] for wait in wait_edges])
    latest = np.full(n, np.iinfo(np.int64).min)
    np.maximum.at(latest, target, finish_ps[source])
    # time from the end of the last node waited for until the start; 0 of nodes that wait for none
    gap = np.where(latest == np.iinfo(np.int64).min, 0, start_ps - latest)
    parts = (
        (node, n + node, own, DURATION, node),
        (joins, 2 * n + collective[joins], np.zeros(len(joins)), JOINS, joins),
        (2 * n + collective[done], n + done, finish_ps[done] - ready_ps[collective[done]], DONE, done),
        (sender[message], n + message, finish_ps[message] - start_ps[sender[message]], MESSAGE, message),
        (n + source, target, gap[target], AFTER, target),
    )
    columns = [np.concatenate([part[column] for part in parts]) for column in (0, 1, 2, 4)]
    what = np.repeat(np.array([part[3] for part in parts], np.int8), [len(part[0]) for part in parts])
    return Edges(columns[0], columns[1], columns[2].astype(np.float64)), what, columns[3]


def has_kept_rows(run: Run) -> bool:
    """Return whether the run keeps the trace nodes of one NPU per class only."""
    return REPRESENTED_BY in run.npus.column_names


def representatives(run: Run, program: Program, npu: Int64) -> Representatives:
    """Return the representatives of a run.

    Args:
        run: The run, read from its folder (`Run`).
        program: Work of all NPUs (`Program`).
        npu: int64[n], NPU of each row of nodes.parquet.
    """
    groups = np.arange(len(program.group_ptr) - 1)
    like = np.arange(program.npus)
    if has_kept_rows(run):
        like = numpy_column(run.npus[REPRESENTED_BY], np.int64)
        groups = _equivalent_groups(program, like, groups)
    first = np.full(program.npus, -1)
    own, begin = np.unique(npu, return_index=True)
    # rows of an NPU are consecutive in the table
    first[own] = begin
    return Representatives(like, first[like], groups)


def _equivalent_groups(program: Program, representative_npu: Int64, group_numbers: Int64) -> Int64:
    """Return int64[groups]: the lowest of the groups that are equivalent to each group."""
    owner, slot = slots_of(program)
    own = program.slot_group.astype(np.int64)
    pairs = np.unique(np.stack([own, own[program.slot_ptr[representative_npu[owner]] + slot]]), axis=1)
    kept = np.unique(own[np.isin(owner, representative_npu)])  # groups of NPUs whose nodes are kept
    left, right = pairs[:, np.isin(pairs[0], kept)]
    from scipy import sparse
    from scipy.sparse import csgraph

    edges = sparse.coo_matrix((np.ones(len(left)), (left, right)), (len(group_numbers), len(group_numbers)))
    _, component = csgraph.connected_components(edges, directed=False)
    _, lowest = np.unique(component, return_index=True)
    return lowest[component]


def closed_forms(run: Run) -> CollectiveCosts:
    """Return closed forms of collectives on the run's fabric."""
    return closed_forms_on(run.graph, run.reader.fitted_settings())


def closed_forms_on(
    graph: Graph, settings: Settings, before: tuple[CollectiveCosts, NDArray[np.bool_]] | None = None
) -> CollectiveCosts:
    """Return closed forms on a fabric; large collectives are extrapolated, because each what-if evaluates all again.

    before: Closed forms on a fabric that differs in the rates of these links, bool[links], only.

    Args:
        graph: The fabric (`Graph`).
        settings: The engine's settings of the run (`pdes.Settings`).
        before: Closed forms on a fabric that differs in the rates of some links only, and bool[links], these links;
            None = no such fabric.
    """
    return CollectiveCosts(graph, settings, WHAT_IF_EFFORT, before=before)


def shares_of_messages(run_events: RunEvents, sends: Int64) -> NDArray[np.float64]:
    """Return float64[k]: share of the port's line rate that drives each message.

    Args:
        run_events: Events of the run: begins and ends of its trace nodes (`RunEvents`).
        sends: int64[k], nodes that send.
    """
    of_channel = np.append(run_events.program.channels.shares, 1.0)  # the last is that of -1, no channel
    return of_channel[run_events.program.node_channel[run_events.at[sends]]]


def bytes_of_messages(run_events: RunEvents, ends: Int64) -> Int64:
    """Return int64[k]: bytes of each message, or of its longest part over several NICs.

    Args:
        run_events: Events of the run: begins and ends of its trace nodes (`RunEvents`).
        ends: int64[k], nodes that send or receive.
    """
    at = run_events.at[ends]
    # rounded up: the longest part decides
    return -(-run_events.program.node_bytes[at] // run_events.program.node_parts[at])


def of_collectives(run_events: RunEvents, collective_nodes: Int64) -> tuple[Int64, Int64, Int64]:
    """Return group, schedule and size in bytes of the collectives of nodes, int64[k] each.

    Args:
        run_events: Events of the run: begins and ends of its trace nodes (`RunEvents`).
        collective_nodes: int64[k], nodes of collectives.
    """
    program, at, npu = run_events.program, run_events.at[collective_nodes], run_events.npu[collective_nodes]
    group = program.slot_group[program.slot_ptr[npu] + program.node_group[at]].astype(np.int64)
    return group, program.node_schedule[at].astype(np.int64), program.node_bytes[at].astype(np.int64)
