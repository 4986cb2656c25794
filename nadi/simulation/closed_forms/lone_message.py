"""Time of a message alone on an idle path, and the slowdown of the messages of a run against it.

This module holds all that closed forms know of packets on links. The engine has the same model in its kernels only, so
each is a check of the other.

A message is a train of packets, all but the last of them full. Switches store and forward, so packet p leaves link k
when it has arrived over link k - 1 and packet p - 1 has left link k. Let s be the time of a full packet on each link
and l that of the last packet. The train of P packets takes, in addition to delays and latencies, the longest path
through this grid:

    max over j of  sum(s[:j + 1]) + (P - 2) max(s[:j + 1]) + sum(l[j:])        (P > 1; sum(l) for one packet)

If the NPU drives the message at a share of the first link's rate (pdes/nic/pacing.py), moving a packet acts as
one more link in front, which carries the payload only.

`alone_ps` evaluates this expression. Formulas of collectives need a latency and a rate instead: `train` splits a
message into a part that grows with its size, on the slowest link, and the rest, which is at least the contribution of a
short last packet. At message level the message model gives the time (pdes/fidelity).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import topologies
from nadi.inputs.arrays import Float64, Int64
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.pdes import Fidelity, Settings
from nadi.pdes.wire import SHARE_UNITS, acknowledgement_bytes, is_framed, is_nvlink, wire_bytes
from nadi.simulation.closed_forms.advancing.equivalence import MessageKeys
from nadi.simulation.closed_forms.advancing.run import MessageTimes
from nadi.topologies import Graph
from nadi.workload import Program
from nadi.workload.node_kinds import SEND
from nadi.workload.program import receive_key

ACKNOWLEDGEMENT = -1  # value in place of a packet's payload size that denotes an acknowledgement
MAX_PAIRS = 20_000  # maximum number of distinct pairs of NPUs whose routes `ideal_ps` computes
MAX_HOPS = 400_000  # maximum number of links on these routes
UNKNOWN = -1  # ideal time of a message that `ideal_ps` does not compute


class Hop(NamedTuple):
    """A link on a message's path."""

    ps_per_byte: float  # picoseconds per byte on the wire
    framed: bool  # True if the link frames packets as NVLink does (pdes.network.framing)
    delay_ps: int  # propagation delay of the link in picoseconds
    latency_ps: int  # latency in picoseconds of the switch that sends on the link; 0 for the first link
    cuts: bool  # True if a switch that cuts packets through receives from the link
    # divisor of the first link's rate: its NPU drives the message at rate / shares. It applies to messages between two
    # NPUs, and at message level.
    shares: float = 1


Way = tuple[Hop, ...]  # all links of a path, in order


class TrainTimes(NamedTuple):
    """Times of a message on an idle path, for formulas."""

    total_ps: float  # picoseconds from the first bit sent to the last bit received
    serial_ps: float  # picoseconds on the slowest link, the part that grows with the size of the message


def ways_of(graph: Graph, settings: Settings, routes: list[list[int]]) -> list[Way]:
    """Return the hops of each route; every route has at least one link, and equal results are one object.

    Args:
        graph: The fabric (`Graph`).
        settings: The engine's settings of the run (`pdes.Settings`).
        routes: Links of each route, in order.
    """
    links = np.array([link for route in routes for link in route], np.int64)
    lengths = np.array([len(route) for route in routes], np.int64)
    ends = np.cumsum(lengths)
    latency = graph.node_latency_ps[graph.link_src[links]]
    # the sender, at which a path begins, forwards nothing
    latency[ends - lengths] = 0
    framed = is_framed(graph, settings)[links]
    cuts = settings.cut_through & (graph.link_dst[links] >= graph.npus)
    columns = PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps[links], framed, graph.link_delay_ps[links], latency, cuts
    hops = [Hop(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]
    known: dict[Way, Way] = {}
    ways = (tuple(hops[end - len(route) : end]) for route, end in zip(routes, ends.tolist(), strict=True))
    # equal objects compare at once, and take memory once
    return [known.setdefault(way, way) for way in ways]


def with_shares(hops: Way, settings: Settings, *, inside: bool, shares: float = 1) -> Way:
    """Return the path of a message between two NPUs with its shares: its NPU drives it at line rate / shares.

    Args:
        hops: Links of the path.
        settings: The engine's settings of the run (`pdes.Settings`).
        inside: Whether the first link is NVLink, to which p2p_share of the settings does not apply.
        shares: Line rate divided by the rate of the message; p2p_share of the settings overrides it.
    """
    if settings.p2p_share < 1 and not inside:
        shares = 1 / settings.p2p_share
    shares = round(SHARE_UNITS * shares) / SHARE_UNITS
    if shares <= 1:
        return hops
    return (hops[0]._replace(shares=shares), *hops[1:])


def bytes_on(hops: Way, size_bytes: int | Int64, settings: Settings) -> Int64:
    """Return the bytes of a packet, or of an ACKNOWLEDGEMENT, on each link; int64[..., links] for an array [..., 1].

    Args:
        hops: Links of the path.
        size_bytes: Payload of the packet in bytes, or ACKNOWLEDGEMENT.
        settings: The engine's settings of the run (`pdes.Settings`).
    """
    framed = np.array([hop.framed for hop in hops])
    if isinstance(size_bytes, int) and size_bytes == ACKNOWLEDGEMENT:
        return acknowledgement_bytes(framed, settings)
    return wire_bytes(size_bytes, framed, settings)


def bytes_seen(hops: Way, wire_bytes: Int64, settings: Settings) -> Int64:
    """Return how many bytes of a packet the end of each link needs before it acts.

    Args:
        hops: Links of the path.
        wire_bytes: int64[links], size of the packet on each link.
        settings: The engine's settings of the run (`pdes.Settings`).
    """
    return np.where([hop.cuts for hop in hops], np.minimum(wire_bytes, settings.header_bytes), wire_bytes)


def rates_of(hops: Way) -> Float64:
    """Return float64[links], picoseconds per byte.

    Args:
        hops: Links of the path.
    """
    return np.array([hop.ps_per_byte for hop in hops])


def alone_ps(hops: Way, size_bytes: Int64, settings: Settings) -> Int64:
    """Return int64[m], picoseconds from the post of each message to its last bit, exact if switches store packets.

    Args:
        hops: Links of the path.
        size_bytes: int64[m], payload of each message in bytes.
        settings: The engine's settings of the run (`pdes.Settings`).
    """
    model = settings.fidelity
    if model.hooks.alone_ps:
        return message_level_ps(hops, size_bytes, model) + model.endpoint_delay_ps
    return _fixed_ps(hops) + model.send_latency_ps + _train_ps(hops, size_bytes, settings)


def _train_ps(hops: Way, size_bytes: Int64, settings: Settings) -> Int64:
    """Return int64[m], picoseconds of each message (size_bytes: int64[m]) on its path without delays and latencies."""
    packets = np.maximum(1, -(-size_bytes // settings.mtu_bytes))
    last_bytes = (size_bytes - (packets - 1) * settings.mtu_bytes)[:, None]
    full_ps = (_times_ps(hops, np.array([[settings.mtu_bytes]]), settings)[0] + 0.5).astype(np.int64)
    last_ps = (_times_ps(hops, last_bytes, settings) + 0.5).astype(np.int64)
    # up to link k the train has the pace of the slowest link so far, from there on only the last packet counts
    whole = np.cumsum(full_ps) + (packets[:, None] - 2) * np.maximum.accumulate(full_ps)
    # time of the last packet from each link to the end
    rest = np.cumsum(last_ps[:, ::-1], axis=1)[:, ::-1]
    times_ps: Int64 = np.where(packets > 1, (whole + rest).max(axis=1), rest[:, 0])
    return times_ps


def _times_ps(hops: Way, size_bytes: Int64, settings: Settings) -> Float64:
    """Return float64[m, links], picoseconds of packets with payload size_bytes (int64[m, 1]) on each link.

    If NCCL's kernel moves the message at a share of the port's rate (`shares` above 1, its inverse), a further first
    column is the time to move the payload.
    """
    on_links: Float64 = bytes_on(hops, size_bytes, settings) * rates_of(hops)
    if hops[0].shares <= 1:
        return on_links
    full_ps = float(bytes_on(hops, settings.mtu_bytes, settings)[0] * hops[0].ps_per_byte) * hops[0].shares
    return np.concatenate([size_bytes * (full_ps / settings.mtu_bytes), on_links], axis=1)


def _fixed_ps(hops: Way) -> int:
    """Return the sum of delays and latencies in picoseconds."""
    return sum(hop.delay_ps + hop.latency_ps for hop in hops)


def message_level_ps(hops: Way, size_bytes: Int64, model: Fidelity, *, fixed: bool = True) -> Int64:
    """Return int64[m], times of messages at message level on consecutive links.

    Args:
        hops: Links of the path.
        size_bytes: int64[m], payload of each message in bytes.
        model: Model of the network with its settings.
        fixed: Whether to count the links' delays and the switches' latencies.
    """
    hooks = model.hooks
    if hooks.alone_ps is None:
        raise ValueError(f"{hooks.name}: is not message-level")
    ps_per_byte = np.array([hop.ps_per_byte * hop.shares for hop in hops])
    delay_ps = np.array([hop.delay_ps * fixed for hop in hops], np.int64)
    latency_ps = np.array([hop.latency_ps * fixed for hop in hops], np.int64)
    times_ps: Int64 = hooks.alone_ps(ps_per_byte, delay_ps, latency_ps, size_bytes, model.resolution_ps)
    return times_ps


def train(
    graph: Graph, links: list[int], size_bytes: int, settings: Settings, *, both_ways: bool = False
) -> TrainTimes:
    """Return the times of one message along some links without other traffic.

    Args:
        graph: The fabric (`Graph`).
        links: Links of the path, in order.
        size_bytes: Payload of the message in bytes.
        settings: The engine's settings of the run (`pdes.Settings`).
        both_ways: Whether a message of equal size arrives at the same time over the same cables and is acknowledged.
    """
    (way,) = ways_of(graph, settings, [links])
    model = settings.fidelity
    if model.hooks.alone_ps:
        slowest_link = max(way, key=lambda hop: hop.ps_per_byte)
        sizes = np.array([size_bytes], np.int64)
        total_ps = int(message_level_ps(way, sizes, model)[0]) + model.endpoint_delay_ps
        return TrainTimes(total_ps, int(message_level_ps((slowest_link,), sizes, model, fixed=False)[0]))
    ps_per_byte = rates_of(way)
    packets = max(1, -(-size_bytes // settings.mtu_bytes))
    full_ps = bytes_on(way, settings.mtu_bytes, settings) * ps_per_byte
    last = bytes_on(way, size_bytes - (packets - 1) * settings.mtu_bytes, settings)
    slowest = len(way) - 1 - int(np.argmax(full_ps[::-1]))  # the last of equal ones: others may cut packets through
    # on all links but the slowest only the last packet counts: the others pass while the slowest link is busy
    before_ps = float(np.delete(bytes_seen(way, last, settings) * ps_per_byte, slowest).sum()) + _fixed_ps(way)
    before_ps += model.send_latency_ps + model.endpoint_delay_ps
    if model.acknowledged:
        before_ps += _answer_ps(graph, links, settings)
    serial_ps = float((packets - 1) * full_ps[slowest] + last[slowest] * ps_per_byte[slowest])
    if both_ways:
        # acknowledgements begin when the first packet arrives; one of them delays the start of the next message
        ack_ps = float(bytes_on(way, ACKNOWLEDGEMENT, settings)[slowest] * ps_per_byte[slowest])
        meanwhile = before_ps / (float(full_ps[slowest]) + ack_ps)
        serial_ps += max(1.0, packets - meanwhile) * ack_ps
    return TrainTimes(serial_ps + before_ps, serial_ps)


def _answer_ps(graph: Graph, links: list[int], settings: Settings) -> int:
    """Return the time in ps of an acknowledgement on the idle way back along `links`."""
    (back,) = ways_of(graph, settings, [[link ^ 1 for link in reversed(links)]])
    seen = bytes_seen(back, bytes_on(back, ACKNOWLEDGEMENT, settings), settings)
    return int((seen * rates_of(back) + 0.5).astype(np.int64).sum()) + _fixed_ps(back)


def message_times(graph: Graph, settings: Settings, keys: MessageKeys) -> MessageTimes:
    """Return the times of messages between two NPUs, for runs and clocks of closed forms.

    The times are exact, except with cut-through switches, which use the formula of `train`. Such a message, if driven
    at a share, takes longer by the extra time that its bytes need to leave. A message that is divided over NICs takes
    as long as its parts on the slowest of them.

    Args:
        graph: The fabric (`Graph`).
        settings: The engine's settings of the run (`pdes.Settings`).
        keys: The messages: sender, receiver, bytes, share and parts of each.
    """
    nvlink = is_nvlink(graph)
    times = np.zeros((3, len(keys.src)), np.int64)
    for i, (src, dst, size_bytes, shares, parts) in enumerate(zip(*(column.tolist() for column in keys), strict=True)):
        for port, port_bytes in _bytes_of_ports(graph, src, dst, size_bytes, parts):
            links = topologies.route(graph, src, dst, functools.partial(_first_of, port=port))
            inside = bool(nvlink[port])
            own_ps = _message_ps(graph, settings, links, port_bytes, shares, inside=inside)
            # a message that is divided over NICs ends with its slowest part
            times[:, i] = np.maximum(times[:, i], own_ps)
    return MessageTimes(*times)


def _first_of(equal_links: Sequence[int], *, port: int) -> int:
    """Return the port if it is among links of equal cost, else the first of them."""
    return port if port in equal_links else min(equal_links)


def _bytes_of_ports(graph: Graph, src: int, dst: int, size_bytes: int, parts: int) -> list[tuple[int, int]]:
    """Return the ports of an NPU that take a message's parts, one of those with equal rates, and what each sends."""
    links = topologies.next_links(graph, src, dst)
    if parts == 1:
        return [(min(links), size_bytes)]
    of_port, rate_bps = graph.port_shares[links].astype(np.int64), graph.link_rate_bps[links]
    # NICs of equal share and rate are done at the same time: one stands for all of them
    _, first = np.unique(np.stack([of_port, rate_bps]), axis=1, return_index=True)
    return [(links[at], -(-size_bytes * int(of_port[at]) // int(of_port.sum()))) for at in first.tolist()]


def _message_ps(
    graph: Graph, settings: Settings, links: list[int], size_bytes: int, shares: float, *, inside: bool
) -> tuple[int, int, int]:
    """Return how long (ps) a message holds its port, and when its last byte has left and is there.

    Args:
        graph: Fabric that the message crosses.
        settings: The settings of the network.
        links: The path of the message, in order.
        size_bytes: The payload of the message in bytes.
        shares: The divisor of the port's rate that gives the rate of the message.
        inside: Whether the first link is NVLink.
    """
    model, size = settings.fidelity, np.array([size_bytes])
    (way,) = ways_of(graph, settings, [links])
    way = with_shares(way, settings, inside=inside, shares=shares)
    formula = train(graph, links, size_bytes, settings)
    hold_ps = left_ps = formula.serial_ps
    if way[0].shares > 1:
        left_ps = max(left_ps, float(_train_ps(way[:1], size, settings)[0]))
        if not inside and settings.p2p_share < 1:  # else other messages may use the port beside this one
            hold_ps = max(hold_ps, float(_times_ps(way[:1], size[:, None], settings)[0, 0]))
    total_ps = round(formula.total_ps + left_ps - formula.serial_ps)
    if not any(hop.cuts for hop in way):
        total_ps = int(alone_ps(way, size, settings)[0]) + model.endpoint_delay_ps
        if model.acknowledged:
            total_ps += _answer_ps(graph, links, settings)
    left_ps += model.send_latency_ps
    if model.acknowledged:
        left_ps = total_ps - model.endpoint_delay_ps
    return round(hold_ps), round(left_ps), total_ps


def shares_of(program: Program, messages: Mapping[str, NDArray]) -> Float64:
    """Return float64[m], the shares of each message between two NPUs: its NPU drives it at line rate / shares; else 1.

    `messages`: Columns src, dst, group, lane and seq of m messages.

    Args:
        program: Work of all NPUs (`Program`).
        messages: Columns src, dst, group, lane and seq of m messages.
    """
    shares = np.ones(len(messages["src"]))
    if not len(program.channels.shares):
        return shares
    between_npus = np.flatnonzero(messages["group"] < 0)
    traces = program.trace_of_npu[messages["src"][between_npus]]
    src, dst, tag, seq = (messages[name][between_npus].astype(np.int64) for name in ("src", "dst", "lane", "seq"))
    key = receive_key(program.ranks_apart(src, dst), tag, seq)
    of_channel = np.append(program.channels.shares, 1.0)  # the last entry is for channel -1
    for trace in np.unique(traces).tolist():
        first, end = int(program.trace_ptr[trace]), int(program.trace_ptr[trace + 1])
        rows = first + np.flatnonzero(program.node_kind[first:end] == SEND)
        columns = (program.node_peer, program.node_tag, program.node_seq)
        known = receive_key(*(column[rows].astype(np.int64) for column in columns))
        sends = np.flatnonzero((traces == trace) & np.isin(key, known))  # answers to requests are no sends
        order = np.argsort(known)
        row_of_send = rows[order[np.searchsorted(known[order], key[sends])]]
        shares[between_npus[sends]] = of_channel[program.node_channel[row_of_send]]
    return shares


def ideal_ps(graph: Graph, settings: Settings, messages: Mapping[str, NDArray], shares: Float64 | None = None) -> Int64:
    """Return int64[m], the time of each message alone on an idle network along a shortest path, to the picosecond.

    The function computes one route per pair of NPUs. With cut-through switches or more than MAX_PAIRS pairs all times
    are UNKNOWN; after MAX_HOPS links, those of the remaining pairs are, and those of switches that reduce.

    `messages`: Columns src, dst, group and bytes of m messages.
    `shares`: float64[m], the result of `shares_of`; None = all messages at line rate.

    Args:
        graph: The fabric (`Graph`).
        settings: The engine's settings of the run (`pdes.Settings`).
        messages: Columns src, dst, group and bytes of m messages.
        shares: float64[m], the result of `shares_of`; None = all messages at line rate.
    """
    ideal = np.full(len(messages["src"]), UNKNOWN, np.int64)
    if settings.cut_through or not len(ideal):
        return ideal
    between_npus = np.flatnonzero((messages["src"] < graph.npus) & (messages["dst"] < graph.npus))
    # switches that reduce have no route of their own
    if len(between_npus) < len(ideal):
        own = {name: messages[name][between_npus] for name in ("src", "dst", "group", "bytes")}
        ideal[between_npus] = ideal_ps(graph, settings, own, None if shares is None else shares[between_npus])
        return ideal
    # pair of NPUs as one number, and above it the share at which the message is driven
    key = messages["src"].astype(np.int64) * graph.npus + messages["dst"]
    known, share = np.unique(np.ones(1) if shares is None else shares, return_inverse=True)
    if settings.p2p_share < 1 or shares is not None:
        key += np.where(messages["group"] < 0, share.reshape(-1) + 1, 0) * graph.npus**2
    pairs, pair = np.unique(key, return_inverse=True)
    if len(pairs) > MAX_PAIRS:
        return ideal
    ways = _ways(graph, pairs, settings, known)
    number = {way: i for i, way in enumerate(dict.fromkeys(ways))}
    way_of_flow = np.array([number[way] for way in ways], np.int64)[pair.reshape(-1)]
    # messages by path, so that each path is evaluated once for all its sizes
    order = np.argsort(way_of_flow, kind="stable")
    ends = np.searchsorted(way_of_flow[order], np.arange(len(number) + 1))
    for way, i in number.items():
        if way:
            flows_on_way = order[ends[i] : ends[i + 1]]
            ideal[flows_on_way] = alone_ps(way, messages["bytes"][flows_on_way], settings)
    return ideal


def slowdown(ideal_ps: Int64, messages: Mapping[str, NDArray]) -> Float64:
    """Return float64[m], completion times of messages (columns) divided by `ideal_ps`; NaN where that is unknown."""
    ratio = np.full(len(ideal_ps), np.nan)
    np.divide(messages["finish_ps"] - messages["start_ps"], ideal_ps, out=ratio, where=ideal_ps > 0)
    return ratio


def _ways(graph: Graph, pairs: Int64, settings: Settings, known_shares: Float64) -> list[Way]:
    """Return the path of each pair; an empty path after MAX_HOPS links.

    A pair is src * npus + dst, plus k * npus^2 for messages with share known_shares[k - 1].
    """
    routes: list[list[int]] = []
    hops = 0
    # 0 = not driven; else 1 + the index of the share
    driven_at, pair = np.divmod(pairs, graph.npus**2)
    for src, dst in zip(*(part.tolist() for part in np.divmod(pair, graph.npus)), strict=True):
        routes.append(topologies.route(graph, src, dst) if hops < MAX_HOPS and src != dst else [])
        hops += len(routes[-1])
    known = iter(ways_of(graph, settings, [route for route in routes if route]))
    ways = [next(known) if route else () for route in routes]
    nvlink = is_nvlink(graph)
    for i in np.flatnonzero(driven_at).tolist():
        if ways[i]:
            own = float(known_shares[driven_at[i] - 1])
            ways[i] = with_shares(ways[i], settings, inside=bool(nvlink[routes[i][0]]), shares=own)
    return ways
