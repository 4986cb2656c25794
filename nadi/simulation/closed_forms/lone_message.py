"""A message alone on an idle path: what a path is, what packets are on its links, and what the message takes.

All that closed forms know of this stands here; the engine has it in its kernels only, so each holds the other to it.

A message is a train of packets, all but the last of them full. Switches store and forward, so packet p leaves link k
when it has come over link k - 1 and packet p - 1 has left link k; with s the time of a full packet on each link and l
that of the last one, the train of P packets takes, beside delays and latencies, the longest way through that grid:

    max over j of  sum(s[:j + 1]) + (P - 2) max(s[:j + 1]) + sum(l[j:])        (P > 1; sum(l) for one packet)

Where its NPU drives it at a share of the first link's rate (pdes/nic/driven.py), moving a packet is as one link more
before that, which the payload alone takes.

That is `alone_ps`. Formulas of collectives want a latency and a rate instead: `train` splits a message into a part that
grows with it, on the slowest link, and the rest, which is no less than a short last packet makes of it. At message
level it takes what the model says (pdes/messages/fidelity).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import topologies
from inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.simulation.closed_forms.advancing.folded_program import MessageKeys
from nadi.simulation.closed_forms.advancing.run import MessageTimes
from pdes import Fidelity, Settings
from pdes.wire import SHARE_UNITS, acknowledgement_bytes, is_framed, is_nvlink, wire_bytes
from topologies import Graph

Int64 = NDArray[np.int64]

ACKNOWLEDGEMENT = -1
"""In place of a packet's payload."""


class Hop(NamedTuple):
    """A link on a message's way.

    Attributes:
        ps_per_byte: of what is on the link.
        framed: as NVLink frames it (pdes.network.framing).
        delay_ps: of the link.
        latency_ps: of the switch that sends on it, 0 for the first link.
        shares: of the first link, at whose 1 / shares the message is driven; of messages between two NPUs, and at
            message level.
        meets: at its port all that goes to the way's end meets, sooner than at the last of the slowest links.
    """

    ps_per_byte: float
    framed: bool
    delay_ps: int
    latency_ps: int
    shares: float = 1
    meets: bool = False


Way = tuple[Hop, ...]
"""All links of a path, in order."""


class PacketTrain(NamedTuple):
    """A message on an idle path, as a formula has it.

    Attributes:
        total_ps: from the first bit sent to the last bit received.
        serial_ps: what it takes on the slowest link, the part that grows with the message.
    """

    total_ps: float
    serial_ps: float


def ways_of(graph: Graph, settings: Settings, routes: list[list[int]]) -> list[Way]:
    """The hops of each route of one link or more; equal ones are one object."""
    links = np.array([link for route in routes for link in route], np.int64)
    ends = np.cumsum(np.array([len(route) for route in routes], np.int64))
    latency = graph.node_latency_ps[graph.link_src[links]]
    latency[ends - np.array([len(route) for route in routes], np.int64)] = 0
    framed = is_framed(graph, settings)[links]
    columns = PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps[links], framed, graph.link_delay_ps[links], latency
    hops = [Hop(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]
    known: dict[Way, Way] = {}
    ways = (tuple(hops[end - len(route) : end]) for route, end in zip(routes, ends.tolist(), strict=True))
    return [known.setdefault(way, way) for way in ways]


def driven(way: Way, settings: Settings, *, inside: bool, shares: float = 1) -> Way:
    """The way of a message between two NPUs: driven at a share where the run or the message has one.

    Args:
        way: all links.
        settings: of the packets; their p2p_share holds for messages to other hosts, whatever `shares` says.
        inside: the first link is NVLink.
        shares: of the message, 1 = at the line rate.
    """
    if settings.p2p_share < 1 and not inside:
        shares = 1 / settings.p2p_share
    shares = round(SHARE_UNITS * shares) / SHARE_UNITS
    if shares <= 1:
        return way
    return (way[0]._replace(shares=shares), *way[1:])


def bytes_on(way: Way, size_bytes: int | Int64, settings: Settings) -> Int64:
    """Bytes of a packet on each link: of so much payload, int64[..., links] for an array [..., 1] of them.

    Args:
        way: all links.
        size_bytes: payload; ACKNOWLEDGEMENT = an acknowledgement.
        settings: headers and framing.
    """
    framed = np.array([hop.framed for hop in way])
    if isinstance(size_bytes, int) and size_bytes == ACKNOWLEDGEMENT:
        return acknowledgement_bytes(framed, settings)
    return wire_bytes(size_bytes, framed, settings)


def bytes_seen(on_wire: Int64, settings: Settings) -> Int64:
    """Of these bytes those that must be at a switch before it sends them on."""
    return np.minimum(on_wire, settings.header_bytes) if settings.cut_through else on_wire


def rates_of(way: Way) -> NDArray[np.float64]:
    """float64[links], picoseconds per byte."""
    return np.array([hop.ps_per_byte for hop in way])


def alone_ps(way: Way, size_bytes: Int64, settings: Settings) -> Int64:
    """From when messages are posted until their last bits are here, exact to the picosecond where switches store.

    Args:
        way: all links.
        size_bytes: int64[m].
        settings: of the packets, which no switch cuts through; or a message-level model: then with what
            passes before the receiver acts.

    Returns:
        int64[m].
    """
    model = settings.fidelity
    if model.alone_ps:
        return whole_ps(way, size_bytes, model) + model.endpoint_delay_ps
    return _fixed_ps(way) + model.send_latency_ps + _train_ps(way, size_bytes, settings)


def _train_ps(way: Way, size_bytes: Int64, settings: Settings) -> Int64:
    """int64[m]: what `alone_ps` is without delays and latencies."""
    packets = np.maximum(1, -(-size_bytes // settings.mtu_bytes))
    last_bytes = (size_bytes - (packets - 1) * settings.mtu_bytes)[:, None]
    full_ps = (_times_ps(way, np.array([[settings.mtu_bytes]]), settings)[0] + 0.5).astype(np.int64)
    last_ps = (_times_ps(way, last_bytes, settings) + 0.5).astype(np.int64)
    whole = np.cumsum(full_ps) + (packets[:, None] - 2) * np.maximum.accumulate(full_ps)
    rest = np.cumsum(last_ps[:, ::-1], axis=1)[:, ::-1]
    found_ps: Int64 = np.where(packets > 1, (whole + rest).max(axis=1), rest[:, 0])
    return found_ps


def _times_ps(way: Way, size_bytes: Int64, settings: Settings) -> NDArray[np.float64]:
    """float64[m, links] picoseconds of packets (payload int64[m, 1]) on each link; before them of what moves them."""
    on_links: NDArray[np.float64] = bytes_on(way, size_bytes, settings) * rates_of(way)
    if way[0].shares <= 1:
        return on_links
    full_ps = float(bytes_on(way, settings.mtu_bytes, settings)[0] * way[0].ps_per_byte) * way[0].shares
    return np.concatenate([size_bytes * (full_ps / settings.mtu_bytes), on_links], axis=1)


def _fixed_ps(way: Way) -> int:
    """Delays and latencies."""
    return sum(hop.delay_ps + hop.latency_ps for hop in way)


def whole_ps(way: Way, size_bytes: Int64, model: Fidelity, *, fixed: bool = True) -> Int64:
    """int64[m]: messages at message level, by the run's model.

    Args:
        way: all links, or neighbours among them.
        size_bytes: int64[m].
        model: message-level.
        fixed: with delays and latencies.

    Raises:
        ValueError: they go as packets.
    """
    if model.alone_ps is None:
        raise ValueError(f"{model.name}: is not message-level")
    psb = np.array([hop.ps_per_byte * hop.shares for hop in way])
    delay_ps, latency_ps = (
        np.array(column if fixed else [0] * len(way), np.int64)
        for column in ([hop.delay_ps for hop in way], [hop.latency_ps for hop in way])
    )
    found_ps: Int64 = model.alone_ps(psb, delay_ps, latency_ps, size_bytes, model.resolution_ps)
    return found_ps


def train(
    graph: Graph, links: list[int], size_bytes: int, settings: Settings, *, both_ways: bool = False
) -> PacketTrain:
    """A message of size_bytes along `links` (in order), nothing else on them.

    Args:
        graph: the network.
        links: of the path.
        size_bytes: payload.
        settings: packets and switching.
        both_ways: a message as large comes in at the same time over the same cables, and is acknowledged.
    """
    (way,) = ways_of(graph, settings, [links])
    model = settings.fidelity
    if model.alone_ps:
        return _whole_train(way, size_bytes, model)
    psb = rates_of(way)
    packets = max(1, -(-size_bytes // settings.mtu_bytes))
    full_ps = bytes_on(way, settings.mtu_bytes, settings) * psb
    last = bytes_on(way, size_bytes - (packets - 1) * settings.mtu_bytes, settings)
    slowest = int(np.argmax(full_ps))
    before_ps = float(np.delete(bytes_seen(last, settings) * psb, slowest).sum()) + _fixed_ps(way)
    before_ps += model.send_latency_ps + model.endpoint_delay_ps
    if model.acknowledged:
        (back,) = ways_of(graph, settings, [[link ^ 1 for link in reversed(links)]])
        before_ps += float((bytes_on(back, ACKNOWLEDGEMENT, settings) * rates_of(back)).sum() + _fixed_ps(back))
    serial_ps = float((packets - 1) * full_ps[slowest] + last[slowest] * psb[slowest])
    if both_ways:
        # acknowledgements begin when the first packet is here; one is due when the next message may be sent
        ack_ps = float(bytes_on(way, ACKNOWLEDGEMENT, settings)[slowest] * psb[slowest])
        meanwhile = before_ps / (float(full_ps[slowest]) + ack_ps)
        serial_ps += max(1.0, packets - meanwhile) * ack_ps
    return PacketTrain(serial_ps + before_ps, serial_ps)


def _whole_train(way: Way, size_bytes: int, model: Fidelity) -> PacketTrain:
    slowest = max(way, key=lambda hop: hop.ps_per_byte)
    sizes = np.array([size_bytes], np.int64)
    total_ps, serial_ps = whole_ps(way, sizes, model), whole_ps((slowest,), sizes, model, fixed=False)
    return PacketTrain(int(total_ps[0]) + model.endpoint_delay_ps, int(serial_ps[0]))


def message_times(graph: Graph, settings: Settings, keys: MessageKeys) -> MessageTimes:
    """What messages between two NPUs take, for runs and clocks of closed forms.

    Exact, but for cut-through switches and acknowledged messages, which take their formula: driven at a share, such a
    one takes as much longer as its bytes take longer to leave.

    Args:
        graph: the network.
        settings: packets and switching, and what passes at the ends of messages.
        keys: M messages.
    """
    model = settings.fidelity
    times = np.zeros((3, len(keys.src)), np.int64)
    nvlink = is_nvlink(graph)
    for i, (src, dst, size_bytes, shares) in enumerate(zip(*(column.tolist() for column in keys), strict=True)):
        links = topologies.route(graph, src, dst)
        (way,) = ways_of(graph, settings, [links])
        inside = bool(nvlink[links[0]])
        way = driven(way, settings, inside=inside, shares=shares)
        formula = train(graph, links, size_bytes, settings)
        hold_ps, left_ps = _leaving_ps(way, size_bytes, formula.serial_ps, settings)
        if inside or settings.p2p_share == 1:  # beside a message with a share of its own, others may use the port
            hold_ps = formula.serial_ps
        total_ps = round(formula.total_ps + left_ps - formula.serial_ps)
        if not (model.acknowledged or settings.cut_through):
            total_ps = int(alone_ps(way, np.array([size_bytes]), settings)[0]) + model.endpoint_delay_ps
        left_ps += model.send_latency_ps
        if model.acknowledged:
            left_ps = total_ps - model.endpoint_delay_ps
        times[:, i] = round(hold_ps), round(left_ps), total_ps
    return MessageTimes(*times)


def _leaving_ps(way: Way, size_bytes: int, serial_ps: float, settings: Settings) -> tuple[float, float]:
    """How long a message keeps its port from others, and when its last byte has left; serial_ps: of its train."""
    if way[0].shares <= 1:
        return serial_ps, serial_ps
    moved_ps, _ = _times_ps(way[:1], np.array([[size_bytes]]), settings)[0]
    left_ps = _train_ps(way[:1], np.array([size_bytes]), settings)[0]
    return max(serial_ps, float(moved_ps)), max(serial_ps, float(left_ps))
