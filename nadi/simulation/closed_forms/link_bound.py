"""The least that a program can take: what links need to send all that must cross them, were they never idle.

Which of several equal links a packet takes is up to hashes and queues, so what is counted must cross a set of links
whatever they choose: the links out of or into one NPU by the port that it must take, or out of or into a leaf with its
NPUs, a server, a pod. A set of links of rates r takes at least its bytes / sum(r). Data packets have their headers.
Acknowledgements go the other way; but of the last window of each queue pair the run may end before they are sent.
On links of NVLink 128 bytes take 160, and an acknowledgement a flit; where a set has links of both kinds, the least of
either is taken. Every packet's time is rounded to a picosecond, so half of one each is taken off. At message level
there are neither headers nor acknowledgements, and times are cut to multiples of the model's resolution; where messages
do not wait for each other, nothing is the least.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import partition
from inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.simulation.wiring.in_network import with_reducers
from pdes import Settings
from pdes.wire import FLIT_BYTES, LINE_BYTES, PER_LINE_BYTES, is_framed, window_packets
from topologies import RING, DimensionRouting, Graph, TableRouting
from workload import Program
from workload.program.traffic import Traffic, traffic

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

_MOST_PAIRS = 1 << 19  # at once
_OUTSIDE = -1


class _Load(NamedTuple):
    """What p pairs of NPUs send at least.

    Attributes:
        src: int64[p].
        dst: int64[p].
        amount: float64[4, p]: payload in bytes, packets of data, acknowledgements, and the picoseconds that rounding
            may take off all their times on one link.
    """

    src: Int64
    dst: Int64
    amount: Float64


class _Sets(NamedTuple):
    """k sets of links.

    Attributes:
        rate_bps: float64[k], sum of the rates.
        most_bps: float64[k], the fastest.
        delay_ps: float64[k], the shortest.
        per_byte: float64[k], bytes on the wire for one of payload.
        header_bytes: float64[k], and for each packet.
        ack_bytes: float64[k], and for each acknowledgement.
    """

    rate_bps: Float64
    most_bps: Float64
    delay_ps: Float64
    per_byte: Float64
    header_bytes: Float64
    ack_bytes: Float64


class _Fabric:
    """A fabric whose links are told apart by how they frame packets."""

    def __init__(self, graph: Graph, settings: Settings) -> None:
        self.graph, self.settings = graph, settings
        whole = settings.fidelity.act is not None
        self.framed = np.zeros(graph.links, np.bool_) if whole else is_framed(graph, settings)


def link_bound_ps(graph: Graph, program: Program, settings: Settings) -> float:
    """Picoseconds that the busiest set of links needs, and its delay; 0 if nothing is sent, or nothing waits."""
    if not settings.fidelity.congestion_aware:
        return 0.0
    graph, running, _ = with_reducers(graph, program)
    sent = traffic(running)
    if not len(sent.src):
        return 0.0
    load = _load(graph, running, sent, settings)
    fabric = _Fabric(graph, settings)
    return max(_at_ports(fabric, load), *(_around(fabric, label, load) for label in _labels(graph)))


def _load(graph: Graph, program: Program, sent: Traffic, settings: Settings) -> _Load:
    """Data, and acknowledgements that must be back before the last data leaves."""
    src, dst = sent.src.astype(np.int64), sent.dst.astype(np.int64)
    size_bytes = sent.bytes.astype(np.float64)
    if settings.fidelity.act:
        cut_ps = (0.5 + settings.fidelity.resolution_ps) * sent.messages
        return _Load(src, dst, np.stack([size_bytes, 0 * cut_ps, 0 * cut_ps, cut_ps]))
    packets = np.maximum(sent.messages, -(-sent.bytes // settings.mtu_bytes)).astype(np.float64)
    queue_pairs = len(program.group_ptr) * (1 + int(program.schedules.lane_connection.max(initial=0)))
    acks = np.maximum(packets - queue_pairs * window_packets(graph, settings), 0)
    back = np.flatnonzero(acks)
    of_data = np.stack([size_bytes, packets, 0 * packets, 0.5 * packets])
    of_acks = np.stack([0 * acks[back], 0 * acks[back], acks[back], 0.5 * acks[back]])
    return _Load(
        np.concatenate([src, dst[back]]),
        np.concatenate([dst, src[back]]),
        np.concatenate([of_data, of_acks], axis=1),
    )


def _labels(graph: Graph) -> list[Int64]:
    """int64[nodes] each: nodes of one number belong together; _OUTSIDE to none."""
    own = np.arange(graph.nodes)
    labels = [np.where(own < graph.npus, own, _OUTSIDE)]
    host = np.full(graph.nodes, _OUTSIDE, np.int64)
    host[: graph.npus] = graph.host
    beside = (graph.link_dst >= graph.npus) & (graph.link_src < graph.npus)
    switch, of_host = graph.link_dst[beside].astype(np.int64), graph.host[graph.link_src[beside]].astype(np.int64)
    least, most = np.full(graph.nodes, graph.nodes), np.full(graph.nodes, _OUTSIDE)
    np.minimum.at(least, switch, of_host)
    np.maximum.at(most, switch, of_host)
    host[graph.npus :] = np.where(least == most, most, _OUTSIDE)[graph.npus :]
    labels += [host, graph.pod.astype(np.int64)]
    if isinstance(graph.routing, TableRouting):
        leaf = own.copy()
        alone = (graph.routing.home >= 0).sum(axis=1) == 1
        leaf[: graph.npus] = np.where(alone, graph.routing.home_node[graph.routing.home[:, 0]], own[: graph.npus])
        labels.append(leaf)
    return labels


def _around(fabric: _Fabric, label: Int64, load: _Load) -> float:
    """Of what leaves or enters the nodes of one label."""
    graph = fabric.graph
    most = 0.0
    crosses_link = label[graph.link_src] != label[graph.link_dst]
    crosses = label[load.src] != label[load.dst]
    for link_end, end in ((graph.link_src, load.src), (graph.link_dst, load.dst)):
        links = np.flatnonzero(crosses_link & (label[link_end] != _OUTSIDE))
        pairs = np.flatnonzero(crosses & (label[end] != _OUTSIDE))
        if len(links) and len(pairs):
            sets = _sets(fabric, links, label[link_end[links]], int(label.max()) + 1)
            most = max(most, _most_ps(sets, _summed(label[end[pairs]], load.amount[:, pairs], len(sets.rate_bps))))
    return most


def _at_ports(fabric: _Fabric, load: _Load) -> float:
    """Of the set of ports by which a pair must leave its NPU, or reach it, or all on its way where routes are known."""
    graph, routing = fabric.graph, fabric.graph.routing
    blocks = [slice(begin, begin + _MOST_PAIRS) for begin in range(0, len(load.src), _MOST_PAIRS)]
    parts = [_Load(load.src[b], load.dst[b], load.amount[:, b]) for b in blocks]
    if isinstance(routing, DimensionRouting):
        return _by_dimension(fabric, routing, parts)
    homes = routing.home.shape[1]
    size = graph.npus * homes
    out, into = (np.zeros((len(load.amount), size)) for _ in range(2))
    for part in parts:
        first, last = _columns(routing, part)
        for ends, column, sums in ((part.src, first, out), (part.dst, last, into)):
            known = np.flatnonzero(column >= 0)
            np.add(sums, _summed(ends[known] * homes + column[known], part.amount[:, known], size), out=sums)
    most = 0.0
    for sums, npu_end, switch_end in ((out, graph.link_src, graph.link_dst), (into, graph.link_dst, graph.link_src)):
        links = np.flatnonzero((npu_end < graph.npus) & (switch_end >= graph.npus))
        home = routing.home_node[routing.home[npu_end[links]]] == switch_end[links][:, None]
        column = (home & (routing.home[npu_end[links]] >= 0)).argmax(axis=1)
        sets = _sets(fabric, links, npu_end[links].astype(np.int64) * homes + column, size)
        most = max(most, _most_ps(sets, sums))
    return most


def _columns(routing: TableRouting, load: _Load) -> tuple[Int64, Int64]:
    """int64[p] each: which of its switches a pair must leave by, and reach its NPU from; -1 = one of several."""
    here, there = routing.home[load.src], routing.home[load.dst]
    row = routing.row[routing.home_node[here]]
    hops = routing.hops[row[:, :, None], there[:, None, :]].astype(np.int64)
    hops[(here < 0)[:, :, None] | (there < 0)[:, None, :]] = np.iinfo(np.int64).max
    nearest = hops == hops.min(axis=(1, 2), keepdims=True)
    return _only(nearest.any(axis=2)), _only(nearest.any(axis=1))


def _only(possible: NDArray[np.bool_]) -> Int64:
    """int64[p]: the column of the only True in each row, -1 where there are several."""
    return np.where(possible.sum(axis=1) == 1, possible.argmax(axis=1), -1)


def _by_dimension(fabric: _Fabric, routing: DimensionRouting, parts: list[_Load]) -> float:
    """Of each set of equal links, without pairs that stand opposite each other on a ring: these have two ways."""
    count = len(routing.set_ptr) - 1
    sums = np.zeros((len(parts[0].amount), count))
    of_set = np.repeat(np.arange(count), np.diff(routing.set_ptr))
    sizes = np.diff(routing.set_ptr)
    for part in parts:
        tied = np.zeros(len(part.src), np.bool_)
        for d, size in enumerate(routing.sizes.tolist()):
            ahead = (routing.digit[part.dst, d].astype(np.int64) - routing.digit[part.src, d]) % size
            tied |= (routing.mode[0, d] == RING) & (size > 2) & (2 * ahead == size)
        sure = np.flatnonzero(~tied)
        ends = part.src[sure], part.dst[sure]
        loads = (partition.link_loads(fabric.graph, *ends, values[sure]) for values in part.amount)
        sums += [of_link[routing.set_link[routing.set_ptr[:-1]]] * sizes for of_link in loads]
    return _most_ps(_sets(fabric, routing.set_link, of_set, count), sums)


def _sets(fabric: _Fabric, links: NDArray[np.integer], number: Int64, count: int) -> _Sets:
    """Sets of links, by the number that each link has."""
    graph, settings = fabric.graph, fabric.settings
    rate, most = np.zeros(count), np.zeros(count)
    delay = np.full(count, np.inf)
    np.add.at(rate, number, graph.link_rate_bps[links])
    np.maximum.at(most, number, graph.link_rate_bps[links])
    np.minimum.at(delay, number, graph.link_delay_ps[links])
    links_of = np.bincount(number, minlength=count)
    framed = np.bincount(number, fabric.framed[links], minlength=count)
    flits = framed > 0
    header = np.where(
        flits, np.where(framed < links_of, min(settings.header_bytes, FLIT_BYTES), 0), settings.header_bytes
    )
    ack = np.where(flits, min(settings.ack_bytes, FLIT_BYTES), settings.ack_bytes)
    per_byte = np.where(flits & (framed == links_of), 1 + PER_LINE_BYTES / LINE_BYTES, 1.0)
    return _Sets(rate, most, delay, per_byte, header, ack)


def _summed(number: Int64, amount: Float64, count: int) -> Float64:
    """float64[4, count]: amounts, float64[4, n], by number."""
    return np.stack([np.bincount(number, values, minlength=count) for values in amount])


def _most_ps(sets: _Sets, amount: Float64) -> float:
    """The longest that a set takes for what crosses it, float64[4, k], with its delay.

    With r the rates, b bytes and n packets of which rounding takes c each: T sum(r) >= sum(b) - c n max(r).
    """
    payload, packets, acks, cut_ps = amount
    total = sets.per_byte * payload + sets.header_bytes * packets + sets.ack_bytes * acks
    used = (total > 0) & (sets.rate_bps > 0)
    busy_ps = (PS_PER_BYTE_AT_1_BPS * total[used] - cut_ps[used] * sets.most_bps[used]) / sets.rate_bps[used]
    return float((busy_ps + sets.delay_ps[used])[busy_ps > 0].max(initial=0.0))
