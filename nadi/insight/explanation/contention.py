"""Contention: links that collectives and messages shared with other traffic, and how busy these links were.

A collective or message that took more than `IN_THE_WAY` times its time on an idle network is contended. All messages
in flight during it, its own and others', are placed on the fabric: first evenly over all equal-cost links, then in
proportion to each link's byte counter of the whole run, which reflects the real choices of ECMP or another rule. Bytes
over rate is how long a link was busy during the piece; the busiest link on the piece's own paths is its bottleneck.

The explanation names that link, and the what-ifs make it faster: both use the same numbers.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import partition
from nadi.errors import ConfigError
from nadi.inputs.arrays import Float64, Int64, numpy_column
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.insight.explanation.run_events import RunEvents, bytes_of_messages, of_collectives, shares_of_messages
from nadi.insight.link_load import limiting_link
from nadi.insight.runs import Run
from nadi.simulation.closed_forms import ideal_ps
from nadi.simulation.schemas import FLOWS, LINKS
from nadi.topologies import Graph, TopologyError

IN_THE_WAY = 1.1  # ratio of a piece's time to its time on an idle network above which it is contended
MAX_KINDS = 48  # number of kinds of contended pieces whose links are computed: the kinds with the largest total time
_PARTS_OF_OCTAVE = 8
"""Otherwise equal pieces are of one kind if their slow-downs differ by less than a factor of 2^(1/8)."""
_HALF = 0.5  # share of a piece's time for which its busiest link must be busy to count as the bottleneck
_TIMES = ("ready_ps", "finish_ps", "closed_form_ps")
_COLUMNS = ("src", "dst", "group", "seq", "bytes", "start_ps", "finish_ps")

Pairs = tuple[Int64, Float64]  # pairs of NPUs, each as sender * npus + receiver, and the bytes between them


class ContendedClass(NamedTuple):
    """A kind of contended pieces, described by its representative."""

    time_ps: float  # time of the representative in picoseconds
    idle_ps: float  # time of the representative on an idle network in picoseconds
    links: Int64  # int64[k], links on its paths
    busy_ps: Float64  # float64[k], time that each of these links was busy during the piece, with all traffic

    def bottleneck(self) -> int:
        """Return the busiest link."""
        return int(self.links[np.argmax(self.busy_ps)])

    def has_bottleneck(self) -> bool:
        """Return whether the busiest link was busy for at least half the time; else launches and latency dominate."""
        return bool(self.busy_ps.max() >= _HALF * self.time_ps)

    def faster(self, rate_factor: Float64, idle_ratio: float) -> float:
        """Return the time with faster links over the time now, at most 1; rate_factor: float64[links], factors.

        The bottleneck's sending time, and the waiting that other traffic causes there, shrink with the bottleneck's
        rate until another link becomes the bottleneck. The rest changes by `idle_ratio`, as the piece does on an idle
        network, and the piece never takes less than its time there. Without known links, nothing changes.
        """
        if not len(self.links):
            return 1.0
        busiest_ps = float(self.busy_ps.max())
        waited_ps = self.time_ps - self.idle_ps if self.has_bottleneck() else 0.0
        at_bottleneck_ps = min(max(busiest_ps, waited_ps), self.time_ps)
        # the busiest link may be another one after the change
        still = float((self.busy_ps / rate_factor[self.links]).max()) / busiest_ps
        # no faster than the idle network with faster links
        least_ps = min(self.idle_ps * idle_ratio, self.time_ps)
        rest_ps = (self.time_ps - at_bottleneck_ps) * min(idle_ratio, 1.0)
        return max(at_bottleneck_ps * still + rest_ps, least_ps) / self.time_ps


class Contention(NamedTuple):
    """The contended collectives and messages of a run."""

    kinds: Sequence[ContendedClass]  # kinds of contended pieces
    of_node: Int64  # int64[n], kind of each trace node's collective or message; -1 = not contended, or not known
    node: Int64  # int64[len(kinds)], trace node of the representative of each kind


class _Pieces(NamedTuple):
    """p contended pieces."""

    node: Int64  # int64[p], a node of each: a member of the collective, or the receive
    group: Int64  # int64[p], group of a collective; -1 for a message
    seq: Int64  # int64[p], place of a collective in its group; -1 for a message
    src: Int64  # int64[p], sender of a message; -1 for a collective
    dst: Int64  # int64[p], receiver of a message; -1 for a collective
    bytes: Int64  # int64[p], size in bytes
    begin_ps: Float64  # float64[p], begin
    end_ps: Float64  # float64[p], end
    idle_ps: Float64  # float64[p], time on an idle network

    def selected(self, which: Int64) -> "_Pieces":
        """Return the pieces with these indices.

        Args:
            which: int64[k], indices of the pieces.
        """
        return _Pieces(**{name: column[which] for name, column in self._asdict().items()})


def contention(run: Run, run_events: RunEvents, path_nodes: Iterable[int]) -> Contention:
    """Find the contended pieces of a run; none without messages or a known fabric.

    Args:
        run: The run, read from its folder (`Run`).
        run_events: Events of the run: begins and ends of its trace nodes (`RunEvents`).
        path_nodes: Nodes of the critical path, whose pieces are preferred.
    """
    nothing = Contention([], np.full(len(run_events.npu), -1), np.zeros(0, np.int64))
    if not (run.network.has_links and run.has(LINKS) and run.has(FLOWS)):
        return nothing
    try:
        graph = run.graph
    except (ConfigError, TopologyError):
        return nothing
    both = _of_collectives(run, run_events), _of_messages(run, run_events, graph)
    pieces = _Pieces(*(np.concatenate(columns) for columns in zip(*both, strict=True)))
    # pieces without an idle time are NaN, and compare as False
    with np.errstate(invalid="ignore"):
        is_contended = (pieces.idle_ps > 0) & (pieces.end_ps - pieces.begin_ps > IN_THE_WAY * pieces.idle_ps)
    pieces = pieces.selected(np.flatnonzero(is_contended))
    if not len(pieces.node):
        return nothing
    piece_of_node = _pieces_of_nodes(run_events, pieces)
    on_path = np.zeros(len(pieces.node), np.bool_)
    on_path[[piece for piece in piece_of_node[list(path_nodes)].tolist() if piece >= 0]] = True
    kind_of_piece, examples = _kinds(run_events, pieces, on_path)
    kinds = _busy_links(run, graph, pieces.selected(examples))
    is_known = np.array([len(kind.links) > 0 for kind in kinds])
    # without busy links there is nothing to show
    kind_of_piece[(kind_of_piece >= 0) & ~is_known[kind_of_piece]] = -1
    of_node = np.where(piece_of_node >= 0, kind_of_piece[piece_of_node], -1)
    return Contention(kinds, of_node, pieces.node[examples])


def rows_of_collectives(run: Run) -> dict[tuple[int, int], int]:
    """Return the row of collectives.parquet by group and place in the group.

    Args:
        run: The run, read from its folder (`Run`).
    """
    groups, places = (run.collectives[name].to_pylist() for name in ("group", "seq"))
    return {key: row for row, key in enumerate(zip(groups, places, strict=True))}


def _of_collectives(run: Run, run_events: RunEvents) -> _Pieces:
    """Return all collectives, from the begin of their last member."""
    program, node = run_events.program, run_events.first
    group, _, size = of_collectives(run_events, node)
    seq = program.node_seq[run_events.at[node]].astype(np.int64)
    table = run.collectives
    row_of = rows_of_collectives(run)
    row = np.array([row_of.get(key, -1) for key in zip(group.tolist(), seq.tolist(), strict=True)], np.int64)
    # collectives that were not done at a cut have no row
    node, group, seq, size = node[row >= 0], group[row >= 0], seq[row >= 0], size[row >= 0]
    columns = (numpy_column(table[name], np.float64, null=0)[row[row >= 0]] for name in _TIMES)
    none = np.full(len(node), -1)
    return _Pieces(node, group, seq, none, none, size, *columns)


def _of_messages(run: Run, run_events: RunEvents, graph: Graph) -> _Pieces:
    """Return all messages with a receive in a trace, from the begin of their send."""
    node = np.flatnonzero((run_events.sender >= 0) & (run_events.finish_ps > run_events.start_ps))
    src, dst, size = (
        run_events.npu[run_events.sender[node]],
        run_events.npu[node],
        run_events.program.node_bytes[run_events.at[node]],
    )
    none = np.full(len(node), -1)
    flows = {"src": src, "dst": dst, "group": none, "bytes": bytes_of_messages(run_events, node)}
    idle_ps = ideal_ps(
        graph, run.reader.fitted_settings(), flows, shares_of_messages(run_events, run_events.sender[node])
    )
    # the message is on its way from the begin of the send to the end of the receive
    begin_ps, end_ps = run_events.start_ps[run_events.sender[node]], run_events.finish_ps[node]
    times = (column.astype(np.float64) for column in (begin_ps, end_ps, idle_ps))
    return _Pieces(node, none, none, src, dst, size.astype(np.int64), *times)


def _pieces_of_nodes(run_events: RunEvents, pieces: _Pieces) -> Int64:
    """Return int64[n]: the piece of each trace node; -1 = no piece."""
    number = np.arange(len(pieces.node))
    is_joint = pieces.group >= 0
    of_collective = np.full(len(run_events.first) + 1, -1)  # the last entry is for nodes of no collective
    of_collective[run_events.collective[pieces.node[is_joint]]] = number[is_joint]
    of_node = of_collective[run_events.collective]
    receives = pieces.node[~is_joint]
    of_node[receives] = of_node[run_events.sender[receives]] = number[~is_joint]
    return of_node


def _kinds(run_events: RunEvents, pieces: _Pieces, is_on_path: NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Return int64[p], the kind of each piece (-1 = a kind with little time), and the representative of each kind."""
    time_ps = pieces.end_ps - pieces.begin_ps
    what = run_events.program.node_collective[run_events.at[pieces.node]].astype(np.int64)
    # on a logarithmic scale, as factors matter
    slowdown = np.rint(_PARTS_OF_OCTAVE * np.log2(time_ps / pieces.idle_ps)).astype(np.int64)
    keys = np.stack([pieces.group >= 0, what, pieces.bytes, np.rint(pieces.idle_ps).astype(np.int64), slowdown])
    _, number = np.unique(keys, axis=1, return_inverse=True)
    number = number.reshape(-1)
    longest = np.argsort(-np.bincount(number, time_ps), kind="stable")[:MAX_KINDS]
    place = np.full(number.max() + 1, -1)
    place[longest] = np.arange(len(longest))
    # a piece on the critical path represents its kind, the longest of them
    order = np.lexsort((-time_ps, ~is_on_path, number))
    first = order[np.searchsorted(number[order], longest)]
    return place[number], first


def _busy_links(run: Run, graph: Graph, pieces: _Pieces) -> list[ContendedClass]:
    """Return for each piece how long the links on its paths were busy during it."""
    whole, during, own = _traffic(run, graph.npus, pieces)
    sent_bytes = numpy_column(run.links["tx_bytes"], np.float64)
    spread_bytes = _loads(graph, _joined(whole))
    # Bytes that a link sent in the run, headers and acknowledgements included, over its share with even spreading.
    chosen = np.divide(sent_bytes, spread_bytes, out=np.zeros(graph.links), where=spread_bytes > 0)
    ps_per_byte = PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps
    found = []
    times = zip(pieces.begin_ps, pieces.end_ps, pieces.idle_ps, strict=True)
    for at, (begin_ps, end_ps, idle_ps) in enumerate(times):
        links = np.flatnonzero(_loads(graph, _joined(own[at])) * chosen)
        busy_ps = (_loads(graph, _joined(during[at])) * chosen * ps_per_byte)[links]
        if not len(links):  # a collective as one coupled flow, without messages
            limit = limiting_link(run, *(int(column[at]) for column in (pieces.group, pieces.src, pieces.dst)))
            if limit is not None:
                links, busy_ps = np.array([limit]), np.array([end_ps - begin_ps])
        found.append(ContendedClass(float(end_ps - begin_ps), float(idle_ps), links, busy_ps))
    return found


def _traffic(run: Run, num_npus: int, pieces: _Pieces) -> tuple[list[Pairs], list[list[Pairs]], list[list[Pairs]]]:
    """Return all traffic of a run, the traffic in flight during each piece, and each piece's own messages.

    The function reads flows.parquet block by block; each list holds the pairs of every block.
    """
    whole: list[Pairs] = []
    during: list[list[Pairs]] = [[] for _ in pieces.node]
    own: list[list[Pairs]] = [[] for _ in pieces.node]
    for block in run.blocks(FLOWS, _COLUMNS):
        flows = {name: numpy_column(block.column(name), np.int64, null=-1) for name in _COLUMNS}
        src, dst, start_ps, finish_ps = (flows[name] for name in ("src", "dst", "start_ps", "finish_ps"))
        between_npus = (src != dst) & (src < num_npus) & (dst < num_npus)
        pair, size = np.where(between_npus, src * num_npus + dst, -1), flows["bytes"].astype(np.float64)
        whole.append(_summed(pair, size))
        # messages of no duration divide by one
        time_ps = np.maximum(finish_ps - start_ps, 1)
        for at, (begin_ps, end_ps) in enumerate(zip(pieces.begin_ps, pieces.end_ps, strict=True)):
            meets = np.flatnonzero((start_ps < end_ps) & (finish_ps > begin_ps))
            overlap_ps = np.minimum(finish_ps[meets], end_ps) - np.maximum(start_ps[meets], begin_ps)
            # of a message that overlaps in part, the bytes in proportion to the time
            during[at].append(_summed(pair[meets], size[meets] * overlap_ps / time_ps[meets]))
            group, seq = flows["group"][meets], flows["seq"][meets]
            if pieces.group[at] >= 0:
                is_own = (group == pieces.group[at]) & (seq == pieces.seq[at])
            else:
                is_own = (group < 0) & (src[meets] == pieces.src[at]) & (dst[meets] == pieces.dst[at])
            own[at].append(_summed(pair[meets[is_own]], size[meets[is_own]]))
    return whole, during, own


def _summed(pair_of_message: Int64, size_bytes: Float64) -> Pairs:
    """Return each pair once with its summed bytes, without the invalid pair -1."""
    pairs, number = np.unique(pair_of_message, return_inverse=True)
    total = np.asarray(np.bincount(number.reshape(-1), size_bytes, len(pairs)), np.float64)
    return pairs[pairs >= 0], total[pairs >= 0]


def _joined(parts: Sequence[Pairs]) -> Pairs:
    """Return each pair of all parts once with its summed bytes."""
    return _summed(
        np.concatenate([np.zeros(0, np.int64), *(part[0] for part in parts)]),
        np.concatenate([np.zeros(0), *(part[1] for part in parts)]),
    )


def _loads(graph: Graph, pairs: Pairs) -> Float64:
    """Return float64[links]: bytes per link, spread evenly over all equal-cost links."""
    if not len(pairs[0]):
        return np.zeros(graph.links)
    return partition.link_loads(graph, pairs[0] // graph.npus, pairs[0] % graph.npus, pairs[1])
