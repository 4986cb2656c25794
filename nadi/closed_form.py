"""What a collective takes on an idle network: its steps played there, or the algorithm's formula.

A formula gets the path's own latency and rate. A message of b bytes between two NPUs is a train of packets: every
packet adds header_bytes, each link adds its delay, each switch its latency, and all but the slowest link the time of
the last packet once more (store and forward; with cut-through switches that of the header only). Where an NPU sends and
receives over the same cable, the acknowledgements of what it receives take turns with the packets that it sends. How
often messages follow one another is the algorithm's part of the form. Messages that go whole take what their model
says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

import topologies
import workload
from nadi.idle_fabric import Play
from nadi.idle_paths import Fabric, Key, fabric_of
from pdes.framing import FLIT_BYTES, is_framed, wire_bytes
from pdes.settings import Settings
from topologies import Graph
from topologies.aggregators import with_aggregators
from workload import Program, collectives
from workload.shape import Shape, shape_of
from workload.tree import Tree, trees_of

Int64 = NDArray[np.int64]
Item = TypeVar("Item")

_MOST_SENDS = 32
_MOST_MESSAGES = 1 << 21
_MOST_PAIRS = 1 << 14
"""Of members, and messages among them, that are played where there is a formula: a second or two to lay them out."""
_MOST_PACKETS = 1 << 23
_MOST_PACKETS_OF_ESTIMATES = 1 << 26
"""That are played where a formula is exact, and where it is an estimate: about a microsecond each."""

_PS_PER_S = 10**12


@dataclass
class Played:
    """What has been played of a program.

    Attributes:
        found_ps: by number of the schedule, size and paths of the members.
        packets_left: that may yet be played where there is a formula.
    """

    found_ps: dict[tuple[int, int, Key], float] = field(default_factory=dict)
    packets_left: int = _MOST_PACKETS_OF_ESTIMATES

    def time_ps(
        self, program: Program, schedule: int, size_bytes: int, fabric: Fabric, most_packets: int
    ) -> float | None:
        """The steps themselves, on the members' own ports.

        Args:
            program: with the schedule.
            schedule: its number.
            size_bytes: the whole buffer.
            fabric: the members' paths.
            most_packets: None where there are more, or fewer are left; 0 = it is played in any case.
        """
        key = schedule, size_bytes, fabric.key
        if key not in self.found_ps:
            play = Play(program.schedules, schedule, size_bytes, fabric)
            if most_packets:
                if play.packets > min(self.packets_left, most_packets):
                    return None
                self.packets_left -= play.packets
            self.found_ps[key] = play.time_ps()
        return self.found_ps[key]


class Train(NamedTuple):
    """A message on an idle path.

    Attributes:
        total_ps: from the first bit sent to the last bit received.
        serial_ps: what it takes on the slowest link, the part that grows with the message.
    """

    total_ps: float
    serial_ps: float


def train(graph: Graph, links: list[int], size_bytes: int, settings: Settings, *, both_ways: bool = False) -> Train:
    """A message of size_bytes along `links` (in order), nothing else on them.

    Args:
        graph: the network.
        links: of the path.
        size_bytes: payload.
        settings: packets and switching.
        both_ways: a message as large comes in at the same time over the same cables, and is acknowledged.
    """
    if settings.fidelity.alone_ps:
        return _whole(graph, links, size_bytes, settings)
    packets = max(1, -(-size_bytes // settings.mtu_bytes))
    framed = is_framed(graph, settings)[links]
    psb = 8 * _PS_PER_S / graph.link_rate_bps[links]
    full_ps = wire_bytes(settings.mtu_bytes, framed, settings) * psb
    last = wire_bytes(size_bytes - (packets - 1) * settings.mtu_bytes, framed, settings)
    slowest = int(np.argmax(full_ps))
    forwarded = np.minimum(last, settings.cut_through_header_bytes) if settings.cut_through else last
    before_ps = float(np.delete(forwarded * psb, slowest).sum())
    before_ps += sum(int(graph.link_delay_ps[link]) for link in links)
    before_ps += sum(int(graph.node_latency_ps[graph.link_src[link]]) for link in links[1:])
    serial_ps = float((packets - 1) * full_ps[slowest] + last[slowest] * psb[slowest])
    if both_ways:
        # acknowledgements begin when the first packet is here; one is due when the next message may be sent
        ack_ps = float((FLIT_BYTES if framed[slowest] else settings.ack_bytes) * psb[slowest])
        meanwhile = before_ps / (float(full_ps[slowest]) + ack_ps)
        serial_ps += max(1.0, packets - meanwhile) * ack_ps
    return Train(serial_ps + before_ps, serial_ps)


def _whole(graph: Graph, links: list[int], size_bytes: int, settings: Settings) -> Train:
    """A message that goes whole, by the run's model."""
    model = settings.fidelity
    psb = 8 * _PS_PER_S / graph.link_rate_bps[links].astype(np.float64)
    path = psb, graph.link_delay_ps[links], graph.node_latency_ps[graph.link_src[links[1:]]]
    slowest = psb[[psb.argmax()]], np.zeros(1, np.int64), np.zeros(0, np.int64)
    sizes = np.array([size_bytes], np.int64)
    total_ps, serial_ps = (int(model.alone_ps(*way, sizes, model.resolution_ps)[0]) for way in (path, slowest))
    return Train(total_ps + model.endpoint_delay_ps, serial_ps)


def idle_ps(
    graph: Graph,
    program: Program,
    settings: Settings,
    *,
    kind: str,
    algorithm: str,
    schedule: int,
    members: Int64,
    size_bytes: int,
    played: Played | None = None,
) -> float:
    """Picoseconds of a collective on an idle network.

    The steps are played (nadi.idle_fabric). Where that would take too long, the algorithm's formula stands.

    Where the members' paths differ, a formula's rate is the slowest path's, and its latency the mean of all but the
    fastest: a chunk that goes round a ring of n takes n - 1 of its paths. An algorithm that knows the fabric asks it
    itself.

    Args:
        graph: the network.
        program: with the schedule.
        settings: packets and switching.
        kind: see workload.KINDS.
        algorithm: its name, and parameters if any.
        schedule: number of the schedule, -1 = a group of one.
        members: int[n], NPUs of the group.
        size_bytes: the whole buffer S.
        played: what has been played of this program; more is added. None = this collective alone is.
    """
    if schedule < 0:
        return 0.0
    chosen = collectives.choose(kind, algorithm)
    found_ps = _played_ps(graph, program, settings, chosen, schedule, members, size_bytes, played or Played())
    if found_ps is not None:
        return found_ps
    if chosen.needs_shape:
        shape = _on_the_wire(shape_of(graph, members, trees=chosen.trees), settings)
        return workload.closed_form(kind, algorithm, len(members), size_bytes, 0.0, 0.0, shape)
    data, payload = _message_bytes(program, schedule, size_bytes)
    whole = math.ceil(payload)
    one_way = bool(getattr(chosen.module, "ONE_WAY", False))
    trains = [
        _train_between(
            graph, int(members[src]), int(members[dst]), int(members[src if one_way else sender]), whole, settings
        )
        for src, dst, sender in _sends(program, schedule)
    ]
    serial_ps = max(t.serial_ps for t in trains)
    n, mean_ps = len(members), sum(t.total_ps for t in trains) / len(trains)
    around_ps = (n * mean_ps - min(t.total_ps for t in trains)) / (n - 1)
    latency_ps = max(0.0, around_ps - serial_ps)
    bytes_per_s = data / serial_ps * _PS_PER_S if data and serial_ps else float("inf")
    return workload.closed_form(kind, algorithm, len(members), size_bytes, latency_ps, bytes_per_s)


def fullest_ps(
    graph: Graph, program: Program, settings: Settings, schedule: int, members: Int64, size_bytes: int
) -> float:
    """Picoseconds of the most that a member sends or receives in an all-to-all with split sizes, as one message.

    Args:
        graph: the network.
        program: with the schedule.
        settings: packets and switching.
        schedule: number of the schedule, -1 = a group of one.
        members: int[n], NPUs of the group.
        size_bytes: of the buffer.
    """
    if schedule < 0:
        return 0.0
    s, most = program.schedules, 0
    for plan in s.plan_of[s.plan_of_ptr[schedule] : s.plan_of_ptr[schedule + 1]]:
        steps = _steps(program, int(plan))
        for peer, count in ((s.send_peer, s.send_count), (s.recv_peer, s.recv_count)):
            most = max(most, int(count[steps][peer[steps] >= 0].sum()))
    if most == 0:
        return 0.0
    fullest_bytes = most * size_bytes // int(s.chunks[schedule])
    paths = (topologies.route(graph, int(members[src]), int(members[dst])) for src, dst, _ in _sends(program, schedule))
    return min(train(graph, links, fullest_bytes, settings).total_ps for links in paths)


def _played_ps(
    graph: Graph,
    program: Program,
    settings: Settings,
    chosen: collectives.Choice,
    schedule: int,
    members: Int64,
    size_bytes: int,
    played: Played,
) -> float | None:
    """The steps themselves, on the members' own ports; None where a formula must do."""
    has_formula = chosen.has_formula and not program.schedules.uneven[schedule]
    if has_formula:
        if settings.phases_per_dimension and _has_gates(program, schedule):
            return None
        if _messages(program, schedule) > _MOST_MESSAGES:
            return None
    npus, complete = members.tolist(), graph
    if chosen.trees:
        switches = trees_of(graph, members, chosen.trees)[1]
        npus += range(graph.npus, graph.npus + len(switches))
        complete = with_aggregators(graph, switches)
    pairs = _pairs(program, schedule)
    if has_formula and len(pairs) > _MOST_PAIRS:
        return None
    fabric = fabric_of(complete, settings, npus, pairs, size_bytes)
    most = 0 if not has_formula else _MOST_PACKETS if chosen.is_exact else _MOST_PACKETS_OF_ESTIMATES
    return played.time_ps(program, schedule, size_bytes, fabric, most)


def _has_gates(program: Program, schedule: int) -> bool:
    """Whether phases wait for a token."""
    s = program.schedules
    plans = s.plan_of[s.plan_of_ptr[schedule] : s.plan_of_ptr[schedule + 1]]
    return any((s.lane_gate[s.plan_ptr[plan] : s.plan_ptr[plan + 1]] >= 0).any() for plan in plans.tolist())


def _messages(program: Program, schedule: int) -> int:
    """How many messages there are."""
    s = program.schedules
    plans = s.plan_of[s.plan_of_ptr[schedule] : s.plan_of_ptr[schedule + 1]]
    sent = [np.count_nonzero(s.send_peer[_steps(program, int(plan))] >= 0) for plan in plans]
    return int(sum(sent)) * (int(s.members[schedule]) if s.relative[schedule] else 1)


def _pairs(program: Program, schedule: int) -> set[tuple[int, int]]:
    """Senders and receivers of all messages."""
    s = program.schedules
    n, plans = int(s.members[schedule]), s.plan_of[s.plan_of_ptr[schedule] : s.plan_of_ptr[schedule + 1]]
    if s.relative[schedule]:
        offsets = _offsets(program, schedule, int(plans[0]))
        return {(m, _peer(program, schedule, view, m, offset)) for m in range(n) for view, offset in offsets}
    peers = [np.unique(s.send_peer[_steps(program, int(plan))]).tolist() for plan in plans]
    return {(m, peer) for m in range(n) for peer in peers[m] if peer >= 0}


def _train_between(graph: Graph, src: int, dst: int, sender: int, size_bytes: int, settings: Settings) -> Train:
    """A message from src to dst, while src acknowledges what `sender` sends to it (src itself: nobody does)."""
    links = topologies.route(graph, src, dst)
    both_ways = sender != src and topologies.route(graph, src, sender)[0] == links[0]
    return train(graph, links, size_bytes, settings, both_ways=both_ways)


def _on_the_wire(shape: Shape, settings: Settings) -> Shape:
    """The shape with the rates that are left for payload in full packets; NVLink is what joins the NPUs of a host.

    Inside a host and between hosts as much goes the other way, and is acknowledged.
    """
    if settings.fidelity.alone_ps:
        return shape

    def payload_bps(rate_bps: int, *, framed: bool, answer_bytes: int) -> int:
        on_wire = float(wire_bytes(settings.mtu_bytes, framed, settings)) + answer_bytes
        return int(rate_bps * settings.mtu_bytes / on_wire)

    rates = tuple(payload_bps(rate, framed=False, answer_bytes=0) for rate in shape.rate_bps)
    inside = settings.nvlink_framing
    answer_bytes = FLIT_BYTES if inside else settings.ack_bytes
    return shape._replace(
        rate_bps=rates,
        inside_bps=payload_bps(shape.inside_bps, framed=inside, answer_bytes=answer_bytes),
        outside_bps=payload_bps(shape.outside_bps, framed=False, answer_bytes=settings.ack_bytes),
        trees=tuple(branch._replace(tree=_tree_on_the_wire(branch.tree, settings)) for branch in shape.trees),
    )


def _tree_on_the_wire(tree: Tree, settings: Settings) -> Tree:
    """The tree with the rates that are left for payload; all links but one of a way add the last packet's time."""
    framed = np.array(tree.nvlink) & settings.nvlink_framing
    full = wire_bytes(settings.mtu_bytes, framed, settings).astype(np.float64)
    answer = np.where(framed, FLIT_BYTES, settings.ack_bytes)
    rate = np.array(tree.rate_bps)
    packet_ps = 8 * _PS_PER_S * full / np.maximum(rate, 1) * np.maximum(np.array(tree.links) - 1, 0)
    return tree._replace(
        rate_bps=tuple((rate * settings.mtu_bytes / full).astype(np.int64).tolist()),
        both_ways_bps=tuple((rate * settings.mtu_bytes / (full + answer)).astype(np.int64).tolist()),
        latency_ps=tuple((np.array(tree.latency_ps) + packet_ps).astype(np.int64).tolist()),
    )


def _message_bytes(program: Program, schedule: int, size_bytes: int) -> tuple[float, float]:
    """Data and payload of a usual message: its share of the buffer, which need not be whole."""
    s = program.schedules
    plans = s.plan_of[s.plan_of_ptr[schedule] : s.plan_of_ptr[schedule + 1]]
    sizes = np.concatenate([_sizes(program, schedule, int(plan), size_bytes) for plan in np.unique(plans)])
    data, payload = sizes[np.argsort(sizes[:, 0])[(len(sizes) - 1) // 2]].tolist()
    return data, payload


def _sizes(program: Program, schedule: int, plan: int, size_bytes: int) -> NDArray[np.float64]:
    """float64[sends, 2]: data and payload of all messages of a plan."""
    s = program.schedules
    found = [np.zeros((0, 2))]
    for lane in range(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1])):
        steps = slice(int(s.lane_ptr[lane]), int(s.lane_ptr[lane + 1]))
        pieces = int(s.lane_parts[lane]) * int(s.lane_chunks[lane])
        if s.lane_view[lane] >= 0:
            pieces *= int(s.view_parts[s.view_base[schedule] + s.lane_view[lane]])
        data = s.send_count[steps][s.send_peer[steps] >= 0] * (size_bytes / pieces)
        found.append(np.stack([data, data * (s.lane_wire_num[lane] / s.lane_wire_den[lane])], axis=1))
    return np.concatenate(found)


def _sends(program: Program, schedule: int) -> list[tuple[int, int, int]]:
    """Messages, at most _MOST_SENDS of them spread over the group: sender, receiver, who sends to that sender.

    The last is the sender itself where nobody does.
    """
    s = program.schedules
    n = int(s.members[schedule])
    plans = s.plan_of[s.plan_of_ptr[schedule] : s.plan_of_ptr[schedule + 1]]
    if s.relative[schedule]:
        offsets = _offsets(program, schedule, int(plans[0]))
        everyone = [
            (m, _peer(program, schedule, view, m, offset), _peer(program, schedule, view, m, -offset))
            for m in _spread(range(n))
            for view, offset in _spread(offsets)
        ]
    else:
        peers = [np.unique(s.send_peer[_steps(program, int(plan))]) for plan in plans]
        pairs = [(m, int(peer)) for m in range(n) for peer in peers[m] if peer >= 0]
        sender_of = {dst: src for src, dst in pairs}
        everyone = [(src, dst, sender_of.get(src, src)) for src, dst in pairs]
    return _spread(everyone)


def _steps(program: Program, plan: int) -> slice:
    s = program.schedules
    return slice(int(s.lane_ptr[s.plan_ptr[plan]]), int(s.lane_ptr[s.plan_ptr[plan + 1]]))


def _offsets(program: Program, schedule: int, plan: int) -> list[tuple[int, int]]:
    """View (over all schedules, -1 = none) and offset of the peers to which a relative plan sends."""
    s, found = program.schedules, set()
    for lane in range(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1])):
        peers = np.unique(s.send_peer[s.lane_ptr[lane] : s.lane_ptr[lane + 1]])
        view = int(s.view_base[schedule] + s.lane_view[lane]) if s.lane_view[lane] >= 0 else -1
        found |= {(view, peer) for peer in peers[peers > 0].tolist()}
    return sorted(found)


def _peer(program: Program, schedule: int, view: int, member: int, offset: int) -> int:
    """The member that stands `offset` places after another, in its line of a view or in the group."""
    s = program.schedules
    if view < 0:
        return (member + offset) % int(s.members[schedule])
    size, first = int(s.view_size[view]), int(s.view_ptr[view])
    at = int(s.view_at[first + member])
    return int(s.view_member[first + at - at % size + (at + offset) % size])


def _spread(items: Sequence[Item]) -> list[Item]:
    """At most _MOST_SENDS of the items, evenly apart."""
    return [items[i * len(items) // min(len(items), _MOST_SENDS)] for i in range(min(len(items), _MOST_SENDS))]
