"""Lower bound on the time of a program from link rates: the time that links need for the bytes that must cross them.

Hashes and queues choose among equal links, so the bound counts bytes that must cross a set of links whatever the
choice: the links out of or into one NPU by the port that it must take, or out of or into a leaf with its NPUs, a
server, a pod, or half of the pods. A set of links of rates r needs at least bytes / sum(r).

Data packets include their headers. Acknowledgements travel in the other direction, except those of the last window of
each queue pair, because the run may end before they are sent. On NVLink 128 bytes take 160, and an acknowledgement
takes one flit; a set with links of both kinds uses the smaller value of each. The engine rounds the time of every
packet to a picosecond, so the bound subtracts half a picosecond per packet. At message level there are no headers and
no acknowledgements, and times are rounded down to multiples of the model's resolution. If messages do not wait for each
other, there is no bound.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Float64, Int64
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.pdes import Settings
from nadi.pdes.wire import FLIT_BYTES, LINE_BYTES, PER_LINE_BYTES, is_framed, window_packets
from nadi.simulation.assembly import engine_inputs
from nadi.topologies import Graph
from nadi.workload import Program
from nadi.workload.program.traffic import Traffic, traffic

_BLOCK_PAIRS = 1 << 19  # number of pairs of NPUs that are routed at a time
_OUTSIDE = -1


class _Load(NamedTuple):
    """Minimum traffic of p pairs of NPUs."""

    src: Int64  # int64[p], sending NPU
    dst: Int64  # int64[p], receiving NPU
    # float64[4, p]: payload in bytes, data packets, acknowledgements, and the picoseconds that rounding may subtract
    # from the sum of their times on one link
    amount: Float64


class _LinkSets(NamedTuple):
    """k sets of links."""

    rate_bps: Float64  # float64[k], sum of the rates
    max_bps: Float64  # float64[k], rate of the fastest link
    delay_ps: Float64  # float64[k], delay of the shortest link
    per_byte: Float64  # float64[k], bytes on the wire per byte of payload
    header_bytes: Float64  # float64[k], additional bytes per data packet
    ack_bytes: Float64  # float64[k], bytes per acknowledgement


def link_bound_ps(graph: Graph, program: Program, settings: Settings) -> float:
    """Return the time in picoseconds that the busiest set of links needs, with its delay; 0 if nothing waits.

    Args:
        graph: The idle fabric.
        program: The work of all NPUs, one collective.
        settings: The settings of the engine.
    """
    if not settings.fidelity.hooks.contends:
        return 0.0
    graph, running, _ = engine_inputs(graph, program)
    sent = traffic(running)
    if not len(sent.src):
        return 0.0
    load = _load(graph, running, sent, settings)
    by_label = (_bound_at_labels(graph, settings, label, load) for label in _node_labels(graph))
    return max(_bound_at_ports(graph, settings, load), *by_label)


def _load(graph: Graph, program: Program, sent: Traffic, settings: Settings) -> _Load:
    """Return the minimum traffic of pairs of NPUs: data one way, and acknowledgements back."""
    src, dst = sent.src.astype(np.int64), sent.dst.astype(np.int64)
    size_bytes = sent.bytes.astype(np.float64)
    if not settings.fidelity.model.has_headers:
        cut_ps = (0.5 + settings.fidelity.resolution_ps) * sent.messages
        return _Load(src, dst, np.stack([size_bytes, 0 * cut_ps, 0 * cut_ps, cut_ps]))
    # a minimum: each message has one packet at least, and all together fill packets of the MTU at best
    packets = np.maximum(sent.messages, -(-sent.bytes // settings.mtu_bytes)).astype(np.float64)
    queue_pairs = len(program.group_ptr) * (1 + int(program.schedules.lane_connection.max(initial=0)))
    # a run may end with a full window of unacknowledged packets on each queue pair of a pair of NPUs
    acks = np.maximum(packets - queue_pairs * window_packets(graph, settings), 0)
    back = np.flatnonzero(acks)
    of_data = np.stack([size_bytes, packets, 0 * packets, 0.5 * packets])
    of_acks = np.stack([0 * acks[back], 0 * acks[back], acks[back], 0.5 * acks[back]])
    return _Load(
        np.concatenate([src, dst[back]]), np.concatenate([dst, src[back]]), np.concatenate([of_data, of_acks], axis=1)
    )


def _node_labels(graph: Graph) -> list[Int64]:
    """Return int64[nodes] arrays; nodes with equal labels form a set (NPU, host, pod, half of the pods, leaf).

    Nodes in no set have the label _OUTSIDE.
    """
    own = np.arange(graph.nodes)
    labels = [np.where(own < graph.npus, own, _OUTSIDE)]
    host = np.full(graph.nodes, _OUTSIDE, np.int64)
    host[: graph.npus] = graph.host
    beside = (graph.link_dst >= graph.npus) & (graph.link_src < graph.npus)
    switch, of_host = graph.link_dst[beside].astype(np.int64), graph.host[graph.link_src[beside]].astype(np.int64)
    # a switch belongs to a server if all its NPUs do: then the smallest and the largest host are equal
    first_host, last_host = np.full(graph.nodes, graph.nodes), np.full(graph.nodes, _OUTSIDE)
    np.minimum.at(first_host, switch, of_host)
    np.maximum.at(last_host, switch, of_host)
    host[graph.npus :] = np.where(first_host == last_host, last_host, _OUTSIDE)[graph.npus :]
    pod = graph.pod.astype(np.int64)
    # half of the slices of a torus have as many links to the others as one slice, and more traffic
    half = np.where(pod >= 0, 2 * pod // (pod.max(initial=0) + 1), _OUTSIDE)
    labels += [host, pod, half]
    leaves = graph.routing.leaves(graph)
    return labels if leaves is None else [*labels, leaves]


def _bound_at_labels(graph: Graph, settings: Settings, label_of_node: Int64, load: _Load) -> float:
    """Return the longest time in picoseconds for the traffic that leaves or enters the nodes of one label."""
    most = 0.0
    # whatever path traffic between two labels takes, it uses some link out of the one and some link into the other
    crosses_link = label_of_node[graph.link_src] != label_of_node[graph.link_dst]
    crosses = label_of_node[load.src] != label_of_node[load.dst]
    for link_end, end in ((graph.link_src, load.src), (graph.link_dst, load.dst)):
        links = np.flatnonzero(crosses_link & (label_of_node[link_end] != _OUTSIDE))
        pairs = np.flatnonzero(crosses & (label_of_node[end] != _OUTSIDE))
        if len(links) and len(pairs):
            sets = _sets(graph, settings, links, label_of_node[link_end[links]], int(label_of_node.max()) + 1)
            most = max(
                most, _longest_ps(sets, _summed(label_of_node[end[pairs]], load.amount[:, pairs], len(sets.rate_bps)))
            )
    return most


def _bound_at_ports(graph: Graph, settings: Settings, load: _Load) -> float:
    """Return the longest time in picoseconds that the ports of an NPU need for the traffic `load`.

    The traffic of a pair counts at the set of ports that it must take out of its NPU or into the other; with
    dimension-ordered routing it counts at all sets of links on its path.
    """
    blocks = [slice(begin, begin + _BLOCK_PAIRS) for begin in range(0, len(load.src), _BLOCK_PAIRS)]
    routing = graph.routing
    parts = [routing.certain_loads(graph, load.src[b], load.dst[b], load.amount[:, b]) for b in blocks]
    most = 0.0
    for ends in zip(*parts, strict=True):
        links, set_of_link, first = ends[0]
        sums = np.sum([amounts for _, _, amounts in ends], axis=0)
        most = max(most, _longest_ps(_sets(graph, settings, links, set_of_link, first.shape[1]), sums))
    return most


def _sets(graph: Graph, settings: Settings, links: NDArray[np.integer], set_of_link: Int64, num_sets: int) -> _LinkSets:
    """Return `num_sets` sets of links; `set_of_link` holds the set of each of `links`."""
    has_headers = settings.fidelity.model.has_headers
    is_link_framed = is_framed(graph, settings) if has_headers else np.zeros(graph.links, np.bool_)
    rate, most = np.zeros(num_sets), np.zeros(num_sets)
    delay = np.full(num_sets, np.inf)
    np.add.at(rate, set_of_link, graph.link_rate_bps[links])
    np.maximum.at(most, set_of_link, graph.link_rate_bps[links])
    np.minimum.at(delay, set_of_link, graph.link_delay_ps[links])
    links_of = np.bincount(set_of_link, minlength=num_sets)
    framed = np.bincount(set_of_link, is_link_framed[links], minlength=num_sets)
    # a mixed set takes the smaller of both kinds in each column, which can only lower the bound
    flits = framed > 0
    header = np.where(
        flits, np.where(framed < links_of, min(settings.header_bytes, FLIT_BYTES), 0), settings.header_bytes
    )
    ack = np.where(flits, min(settings.ack_bytes, FLIT_BYTES), settings.ack_bytes)
    per_byte = np.where(flits & (framed == links_of), 1 + PER_LINE_BYTES / LINE_BYTES, 1.0)
    return _LinkSets(rate, most, delay, per_byte, header, ack)


def _summed(set_of_pair: Int64, amounts: Float64, num_sets: int) -> Float64:
    """Return float64[4, num_sets], the sums of float64[4, pairs] by set."""
    return np.stack([np.bincount(set_of_pair, values, minlength=num_sets) for values in amounts])


def _longest_ps(sets: _LinkSets, traffic_of_set: Float64) -> float:
    """Return the longest time in picoseconds that a set needs for its traffic, float64[4, k], including its delay.

    With rates r, b bytes, and n packets of which rounding subtracts c each: T sum(r) >= sum(b) - c n max(r).
    """
    payload, packets, acks, cut_ps = traffic_of_set
    total = sets.per_byte * payload + sets.header_bytes * packets + sets.ack_bytes * acks
    used = (total > 0) & (sets.rate_bps > 0)
    busy_ps = (PS_PER_BYTE_AT_1_BPS * total[used] - cut_ps[used] * sets.max_bps[used]) / sets.rate_bps[used]
    return float((busy_ps + sets.delay_ps[used])[busy_ps > 0].max(initial=0.0))
