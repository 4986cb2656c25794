"""The critical path of a run, consecutive pieces without gaps from its begin to its end, and what bounds each piece.

Bounds of communication are the rate of a link, latency, a pause, or other traffic.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nadi import topologies
from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64, arrow_numbers, numpy_column
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_S
from nadi.insight.explanation import run_events as events
from nadi.insight.explanation.contention import IN_THE_WAY, Contention, rows_of_collectives
from nadi.insight.link_load import limiting_link
from nadi.insight.network import find_pauses
from nadi.insight.runs import Run
from nadi.simulation.closed_forms import CollectiveCosts, CollectiveKeys
from nadi.simulation.schemas import COMMUNICATION_AXES, FLOWS, LINKS, PAUSES
from nadi.terminal import rate_text
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


def critical_path(run: Run, run_events: events.RunEvents) -> list[PathPiece]:
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
            what = _activity(run_events, int(run_events.kind[edge]), node)
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


def _activity(run_events: events.RunEvents, edge_kind: int, node: int) -> str:
    """Return what a node does on the path, from the kind of its edge: COMPUTING, COLLECTIVE, ..."""
    if edge_kind in {events.DONE, events.MESSAGE, events.AFTER}:
        return {events.DONE: COLLECTIVE, events.MESSAGE: MESSAGES, events.AFTER: WAITING}[edge_kind]
    if edge_kind == events.DURATION and run_events.collective[node] >= 0:
        return COLLECTIVE
    of_kind = int(run_events.node_kind[node])
    return (
        COMPUTING
        if of_kind == node_kinds.COMPUTE
        else {node_kinds.MEMORY: MEMORY, node_kinds.SEND: SENDING, node_kinds.RECV: MESSAGES}.get(of_kind, WAITING)
    )


def _sort(run: Run, run_events: events.RunEvents, what: str, node: int) -> str:
    """Return the label of similar pieces of a node that does `what`: axis and kind, or the node's work."""
    name = events.node_names(run)[node].as_py()
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


def npus_of_path(run_events: events.RunEvents, pieces: list[PathPiece]) -> list[int]:
    """Return the NPUs on the path, in order, without immediate repetitions.

    Args:
        run_events: Events of the run: begins and ends of its trace nodes (`RunEvents`).
        pieces: Pieces of the critical path.
    """
    npus = np.array([int(run_events.npu[piece.node]) for piece in pieces], np.int64)
    return npus[np.flatnonzero(np.diff(npus, prepend=-1))].tolist()


Rows = dict[str, Int64]  # columns of flows.parquet; ideal_ps is -1 where it is not known

MAX_FLOWS = 4096  # number of messages of a collective that are examined
_COLUMNS = ("src", "dst", "group", "seq", "control", "bytes", "start_ps", "finish_ps", "ideal_ps")
_SEQ_BITS = 32  # bits of a collective's place in a key of group and place


class MessagesOfPath:
    """Messages of given collectives, and messages that traces send between given pairs of NPUs."""

    def __init__(self, run: Run, collectives: Iterable[tuple[int, int]], pairs: Iterable[tuple[int, int]]) -> None:
        """Read the messages; ConfigError if flows.parquet cannot be read."""
        self._npus = int(run.summary.get("npus", 0))
        wanted = np.array([group << _SEQ_BITS | seq for group, seq in set(collectives)], np.int64)
        between = np.array([src * self._npus + dst for src, dst in set(pairs) if src >= 0], np.int64)
        rows = list(_chosen(run, wanted, between, self._npus)) if len(wanted) or len(between) else []
        empty = np.zeros(0, np.int64)
        self._rows = {name: np.concatenate([empty, *(block[name] for block in rows)]) for name in _COLUMNS}
        # group and place of a collective as one number, so that one comparison of a column finds its messages
        self._key = self._rows["group"] << _SEQ_BITS | self._rows["seq"]

    def of_collective(self, group: int, seq: int) -> Rows:
        """Return the messages of a collective sorted by receiver; a sample of MAX_FLOWS if there are more.

        Args:
            group: Number of the group.
            seq: Number of the collective in its group.
        """
        here = np.flatnonzero(self._key == (group << _SEQ_BITS | seq))
        here = here[np.argsort(self._rows["dst"][here], kind="stable")]
        if len(here) > MAX_FLOWS:
            # evenly over the receivers, so that the sample represents all
            here = here[np.linspace(0, len(here) - 1, MAX_FLOWS).astype(np.int64)]
        return self._at(here)

    def between(self, src: int, dst: int, end_ps: float) -> Rows:
        """Return the trace's message from src to dst whose end is nearest to end_ps; no rows without such a message."""
        own = np.flatnonzero((self._rows["src"] == src) & (self._rows["dst"] == dst) & (self._rows["group"] < 0))
        if len(own):
            # two NPUs may send each other many messages; the path names one only by its end
            own = own[[int(np.argmin(np.abs(self._rows["finish_ps"][own] - end_ps)))]]
        return self._at(own)

    def _at(self, rows: Int64) -> Rows:
        return {name: column[rows] for name, column in self._rows.items()}


def _chosen(run: Run, collective_keys: Int64, npu_pairs: Int64, num_npus: int) -> Iterator[Rows]:
    """Yield the rows of each block of flows.parquet that belong to these collectives or pairs (src * npus + dst)."""
    for block in run.blocks(FLOWS, _COLUMNS):
        group, seq, src, dst = (_numbers(block, name) for name in ("group", "seq", "src", "dst"))
        of_collectives = np.isin(group << _SEQ_BITS | seq, collective_keys)
        # requests and answers of a rendezvous are no messages of the trace
        of_traces = (group < 0) & (_numbers(block, "control") == 0)
        of_traces[of_traces] = np.isin(src[of_traces] * num_npus + dst[of_traces], npu_pairs)
        here = np.flatnonzero(of_collectives | of_traces)
        if len(here):
            found = block.take(arrow_numbers(here))
            yield {name: _numbers(found, name) for name in _COLUMNS}


def _numbers(block: pa.RecordBatch, name: str) -> Int64:
    return numpy_column(block.column(name), np.int64, null=-1)


_HALF = 0.5  # share of a piece's time (or of its closed form, or its delay) from which on a cause counts as the bound


class Bound(NamedTuple):
    """The bound of a piece of the path."""

    resource: str  # "link", "latency", "queue", "pause" or "network" (not known more closely)
    name: str  # name of the link; "" for no link
    text: str  # description in words
    idle_ps: float  # time of the piece on an idle network; NaN = not known


class PathBounds:
    """The bounds of the pieces of a path, computed once for similar pieces."""

    def __init__(self, run: Run, found: events.RunEvents, pieces: Sequence[PathPiece], shared: Contention) -> None:
        """Read links, pauses and collectives of a run and the messages of the path, as far as the run keeps them."""
        self._run, self._found, self._shared = run, found, shared
        self._known: dict[tuple[object, ...], Bound] = {}
        self._links = run.links.to_pydict() if run.has(LINKS) and run.network.has_links else None
        self._rows = rows_of_collectives(run)
        first: dict[tuple[object, ...], PathPiece] = {}  # the first piece of each key
        for piece in pieces:
            if piece.what in {COLLECTIVE, MESSAGES, SENDING}:
                first.setdefault(self._key(piece), piece)
        joint = [self._place(piece.node) for piece in first.values() if piece.what == COLLECTIVE]
        pairs = [self._ends(piece) for piece in first.values() if piece.what != COLLECTIVE]
        self._messages = MessagesOfPath(run, joint, pairs)
        self._costs: CollectiveCosts | None = None
        self._pauses = None
        if run.has(PAUSES) and run.pauses is not None:
            columns = {name: numpy_column(run.pauses[name]) for name in run.pauses.column_names}
            self._pauses = find_pauses(columns, run.finish_time_ps)

    def of(self, piece: PathPiece) -> Bound | None:
        """Return the bound of a piece; None for a piece that is not communication."""
        if piece.what not in {COLLECTIVE, MESSAGES, SENDING}:
            return None
        key = self._key(piece)
        if key not in self._known:
            self._known[key] = self._bound(piece)
        return self._known[key]

    def _key(self, piece: PathPiece) -> tuple[object, ...]:
        """Return a key that pieces with the same bound share: same kind and size, and a duration equal within 2 %."""
        took = round(math.log(max(piece.time_ps, 1.0)) * 50)
        return piece.what, piece.sort, int(self._found.program.node_bytes[self._found.at[piece.node]]), took

    def _bound(self, piece: PathPiece) -> Bound:
        """Return what bounds the time of a piece of communication."""
        idle_ps, flows = self._alone(piece)
        is_in_the_way = idle_ps > 0 and piece.time_ps > IN_THE_WAY * idle_ps
        if piece.what == COLLECTIVE:
            limit = limiting_link(self._run, self._place(piece.node)[0], -1, -1)
        else:
            limit = limiting_link(self._run, -1, *self._ends(piece))
        if is_in_the_way and limit is not None:
            name, times = self._name(limit), piece.time_ps / idle_ps
            return Bound("link", name, f"others in the way, {times:.2f} times the idle time; share of {name}", idle_ps)
        used = _bytes_by_link(self._run, flows) if self._links is not None and len(flows["src"]) else {}
        if self._links is None or not used:
            why = "closed forms do not model links" if self._links is None else "its messages or paths are not known"
            return Bound("network", "", why, idle_ps)
        serial = {link: size * BITS_PER_BYTE / self._links["rate_bps"][link] * PS_PER_S for link, size in used.items()}
        # the link that would take longest for the bytes of the piece
        slowest = max(serial, key=lambda link: serial[link])
        if is_in_the_way:
            return self._in_the_way(piece, used, slowest, idle_ps)
        name, rate = self._name(slowest), rate_text(self._links["rate_bps"][slowest])
        # its bytes take at least half of the time
        if serial[slowest] >= _HALF * min(piece.time_ps, idle_ps if idle_ps > 0 else piece.time_ps):
            return Bound("link", name, f"rate of {name} ({rate})", idle_ps)
        if self._share_of_bytes(piece) >= _HALF:
            return Bound("link", name, f"rate of the channels on {name} ({rate})", idle_ps)
        return Bound("latency", "", "latency: one step waits for the one before", idle_ps)

    def _in_the_way(
        self, piece: PathPiece, bytes_of_link: Mapping[int, float], slowest_link: int, idle_ps: float
    ) -> Bound:
        """Return a bound outside the piece's own bytes: a pause, else the busiest link on its paths meanwhile."""
        links = self._links or {}
        if self._pauses is not None:
            during = (self._pauses.start_ps < piece.end_ps) & (self._pauses.end_ps > piece.start_ps)
            overlap = np.minimum(self._pauses.end_ps, piece.end_ps) - np.maximum(self._pauses.start_ps, piece.start_ps)
            paused: dict[int, float] = {}
            for link, time_ps in zip(self._pauses.link[during].tolist(), overlap[during].tolist(), strict=True):
                if link in bytes_of_link:
                    paused[link] = paused.get(link, 0.0) + time_ps
            if paused:
                most = max(paused, key=lambda link: paused[link])
                if paused[most] >= _HALF * (piece.time_ps - idle_ps):
                    name = self._name(most)
                    return Bound("pause", name, f"pauses of {name}", idle_ps)
        kind = int(self._shared.of_node[piece.node])
        if kind >= 0:
            bottleneck = self._shared.kinds[kind].bottleneck()
        else:  # one of very many kinds: the link with the longest queue of the whole run
            queue_s = {link: links["max_queue_bytes"][link] / links["rate_bps"][link] for link in bytes_of_link}
            bottleneck = max(bytes_of_link, key=lambda link: (queue_s[link], link == slowest_link))
        if kind >= 0 and not self._shared.kinds[kind].has_bottleneck():
            return Bound("latency", "", "latency: launches, and steps that wait for each other", idle_ps)
        name, times = self._name(bottleneck), piece.time_ps / idle_ps
        return Bound("queue", name, f"others in the way, {times:.2f} times the idle time; queue of {name}", idle_ps)

    def _share_of_bytes(self, piece: PathPiece) -> float:
        """Return the share of a collective's closed form that grows with size: twice the saving of half the bytes."""
        if piece.what != COLLECTIVE:
            return 0.0
        if self._costs is None:
            self._costs = events.closed_forms(self._run)
        found, node = self._found, np.array([piece.node])
        group, schedule, size = events.of_collectives(found, node)
        kinds, how = found.program.node_collective[found.at[node]], self._run.work.collectives
        times_ps = []
        # a time a + b n: halving n saves half of the part that grows with it
        for size_bytes in (size, size // 2):
            keys = CollectiveKeys(group, schedule, size_bytes, found.npu[node], found.row[node])
            times_ps.append(float(self._costs.of_collectives(found.program, how, keys, kinds).time_ps[0]))
        whole, half = times_ps
        return 2 * (whole - half) / whole if whole else 0.0

    def _alone(self, piece: PathPiece) -> tuple[float, Rows]:
        """Return the time on an idle network (NaN = not known), and the messages of the piece."""
        if piece.what == COLLECTIVE:
            group, seq = self._place(piece.node)
            row = self._rows.get((group, seq))
            idle_ps = float(self._run.collectives["closed_form_ps"][row].as_py()) if row is not None else math.nan
            return idle_ps, self._messages.of_collective(group, seq)
        flows = self._messages.between(*self._ends(piece), piece.end_ps)
        # 0 also stands for not known
        ideal_ps = int(flows["ideal_ps"][0]) if len(flows["src"]) else 0
        return float(ideal_ps) if ideal_ps > 0 else math.nan, flows

    def _place(self, node: int) -> tuple[int, int]:
        """Return group and place in the group of a collective."""
        program, at, npu = self._found.program, int(self._found.at[node]), int(self._found.npu[node])
        group = int(program.slot_group[program.slot_ptr[npu] + program.node_group[at]])
        return group, int(program.node_seq[at])

    def _ends(self, piece: PathPiece) -> tuple[int, int]:
        """Return sender and receiver of a message."""
        found, node = self._found, piece.node
        npu = int(found.npu[node])
        peer = int(found.program.peers(found.npu[node], found.program.node_peer[found.at[node]]))
        return (npu, peer) if piece.what == SENDING else (peer, npu)

    def _name(self, link: int) -> str:
        links = self._links or {}
        return f"{links['src'][link]} → {links['dst'][link]}"


def _bytes_by_link(run: Run, messages: Mapping[str, Int64]) -> dict[int, float]:
    """Return the bytes of messages between NPUs by link, each on a shortest path (the first of several)."""
    try:
        graph = run.graph
    except (ConfigError, topologies.TopologyError):
        return {}
    used: dict[int, float] = {}
    pairs = messages["src"] * graph.nodes + messages["dst"]
    for pair in np.unique(pairs).tolist():
        src, dst = divmod(pair, graph.nodes)
        # switches that reduce have no route of their own
        if src == dst or max(src, dst) >= graph.npus:
            continue
        size = float(messages["bytes"][pairs == pair].sum())
        for link in topologies.route(graph, src, dst):
            used[link] = used.get(link, 0.0) + size
    return used
