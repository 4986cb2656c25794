"""The state of a run with packets under way, and how it moves forward in time by whole periods.

The run is one process, of one or several logical processes. Times are written relative to a moment between two windows,
sequence numbers relative to the first packet of the queue pair that is not acknowledged. What NPUs do later, such as
the end of a computation, stays at its time: it bounds how far the network moves (pdes/reuse/within_messages.py).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nadi.pdes.construction import packets as plain_packets
from nadi.pdes.construction.layout import LogicalProcess, Simulation, offsets
from nadi.pdes.core import Int64, packet, state as s
from nadi.pdes.core.algorithms import FREE, NONE
from nadi.pdes.core.jit import words_of
from nadi.pdes.core.rows.network import Port
from nadi.pdes.core.rows.npu import Npu
from nadi.pdes.core.rows.run import Counters
from nadi.pdes.network.batch import TIES
from nadi.pdes.network.port_queues import TIME_MASK
from nadi.pdes.reuse.observed_buffers import ObservedBuffers

# Words of rows that the state has as they are; others are relative to the moment, or no part of the future.
_QUEUE_ENDS = {"control_head", "control_tail", "transit_head", "transit_tail"}
_PORT_WORDS = " ".join(name for name in Port.declared if name not in _QUEUE_ENDS)
# caches of places found last, the time of the current event, and what the list of own events has
_NPU_IGNORED = {"now_ps", "heap_size", "rto_at_ps", "last_receiver", "last_instance"}
_NPU_WORDS = " ".join(name for name, word in Npu.declared.items() if not word.is_built and name not in _NPU_IGNORED)
_PAIR_WORDS = (
    "end_seq head_end current_end ring_next port pending retries active controlled w1 w2 current_tag head_message "
    "current_message tail_message sibling messages"
)
_RECEIVER_WORDS = "key nak_sent messages port_back"
_GATE_WORDS = "mask paused asked waiting_bytes queued_bytes in_bytes held_bytes trimmed_turn discipline"
_POOL_WORDS = "used_bytes ports asked"
_SCALARS = (
    "free_messages free_instances queue_pairs receivers rows_left replay_starts due_replays packet_rows changes_cell "
    "fault_at is_disturbed cell_ps"
)

# 1 for each counter that periods add to, all but those of the engine's own work
_IN_EACH = np.zeros(Counters.words, np.int64)
_IN_EACH[: len(Counters.declared)] = [name not in {"windows", "events"} for name in Counters.declared]


class PairNumbers:
    """Numbers of the sending queue pairs of all logical processes together, which each count their own from 0."""

    def __init__(self, sim: Simulation) -> None:
        """Number the queue pairs that are in use now in `sim`, a run of one process."""
        self.first = offsets([int(lp.world.net.ctl.queue_pairs) for lp in sim.lps])  # of each LP, and behind the last
        self._of_npu = self.first[sim.layout.owner[: sim.program.npus]]

    def of_packets(self, word1: Int64, word2: Int64) -> Int64:
        """Return the number of the queue pair of each packet, -1 for a pause frame, which has none.

        Args:
            word1: int64[n], words 1 of the packets (pdes/core/packet.py).
            word2: int64[n], their words 2.
        """
        sender, pair = plain_packets.sending_pairs(word1, word2)
        return np.where(pair < 0, -1, self._of_npu[sender] + pair)

    def of_receivers(self, keys: Int64) -> Int64:
        """Return the number of the queue pair that sends to each receiving one.

        Args:
            keys: int64[n], keys of receiving queue pairs (`packet.receiver_key`).
        """
        return self._of_npu[packet.key_source(keys)] + (keys & packet.PSN_MASK)


@dataclass(eq=False)
class PartInstant:
    """The state of a logical process between two windows, but for its packets on links."""

    same: list[Any]  # arrays that are equal in equal states
    ties: Int64  # counts of ties of nodes and ports, modulo TIES, which are equal in equal states, too
    lasting: list[Int64]  # times that either stay, or are later by as much as the moment
    counts: Int64
    links: Any  # rows of the outgoing links
    dropped: Int64
    buffers: ObservedBuffers


@dataclass(eq=False)
class Instant:
    """The state of a run between two windows."""

    moment_ps: int  # all before it has happened
    una: Int64  # of each queue pair of all LPs: first packet that is not acknowledged
    wires: Int64  # packets on links, by link and time, with times since the moment and sequence numbers since `una`
    parts: list[PartInstant]


def plain(rows: Any) -> Any:
    """Return rows as an array whose columns are found faster than those of a recarray."""
    return np.asarray(rows).view(np.ndarray)


def queue_pairs_of(world: s.World) -> Any:
    """Return the rows of an LP's sending queue pairs that are in use, as of `plain`.

    Args:
        world: State of the LP (`World`).
    """
    return plain(world.qps.qp)[: int(world.net.ctl.queue_pairs)]


def _columns(rows: Any, names: str) -> Any:
    """Return the columns of rows with these names, divided by spaces, as one array."""
    columns = [rows[name] for name in names.split()]
    return np.concatenate([each.reshape(len(rows), math.prod(each.shape[1:])).astype(np.int64) for each in columns], 1)


def _with_numbers(pairs: PairNumbers, word1: Int64, word2: Int64, added: Int64) -> Int64:
    """Return words 2 of packets whose sequence numbers are further by `added`, by queue pair of all LPs."""
    number = pairs.of_packets(word1, word2)
    by = np.where(number < 0, 0, added[number])
    return (word2 & ~np.int64(packet.PSN_MASK)) | (word2 + by & packet.PSN_MASK)


def _port_queues(world: s.World) -> tuple[Int64, Int64]:
    """Return the records that wait at ports of NPUs, and the port and list of each."""
    port = plain(world.npus.port)
    found, places = [], []
    for number, kind in enumerate(("control", "transit")):
        used = np.flatnonzero(port[f"{kind}_packets"] > 0)
        ends = port[f"{kind}_head"][used], port[f"{kind}_tail"][used]
        records, counts = plain_packets.queues_of(world.net, *ends)
        found.append(records)
        places.append(np.repeat(2 * used + number, counts))
    return np.concatenate(found), np.concatenate(places)


def _gate_queues(world: s.World) -> tuple[Int64, Int64]:
    """Return the records that wait at ports of switches with shared buffers, and the port and queue of each."""
    gate = plain(world.net.gate)
    queues = gate["queues"].shape[1]
    link, queue = np.nonzero(gate["mask"][:, None] >> np.arange(queues) & 1)
    ends = gate["queues"][link, queue]
    records, counts = plain_packets.queues_of(world.net, ends & ((1 << 32) - 1), ends >> 32)
    return records, np.repeat(link * queues + queue, counts)


@dataclass(eq=False)
class OwnEvents:
    """The events of all NPUs' own, NPU by NPU."""

    place: Int64  # index in the heap
    owner: Int64
    time_ps: Int64
    slot: Int64
    is_port: Any  # a port falls idle
    is_timer: Any  # the retransmission timer, which does nothing unless a deadline has passed


def own_events(world: s.World) -> OwnEvents:
    """Return the events of all NPUs' own.

    Args:
        world: State of the LP (`World`).
    """
    npu = plain(world.npus.npu)[: int(world.net.const.npus)]
    sizes = npu["heap_size"]
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = np.repeat(npu["heap"], sizes) + within
    time_ps, slot = world.npus.heap.reshape(-1, 2)[place].T
    owner = np.repeat(np.arange(len(npu)), sizes)
    ports = npu["ports"][owner]
    return OwnEvents(place, owner, time_ps, slot, slot < ports, slot == ports + s.LANES)


def take_off(sim: Simulation) -> Int64:
    """Take all packets from outboxes, inboxes and links; return them as `sent_packets`, by link and time.

    Args:
        sim: A run of one process, between two windows.
    """
    found = [each for lp in sim.lps for each in (plain_packets.sent_packets(lp), _taken_off(lp))]
    packets = np.concatenate(found)
    return packets[np.lexsort((packets[:, 0], np.take(packets, plain_packets.LINK, axis=1)))]


def _taken_off(lp: LogicalProcess) -> Int64:
    """Empty the outbox, inboxes and links of an LP; return the packets of inboxes and links as of `sent_packets`."""
    net: Any = lp.world.net
    packets = plain_packets.packets_on_wires(lp.world, lp.part, lp.part.crossing_words)
    heads = np.concatenate([net.inbox[0::2], net.wait_head]).astype(np.int64)
    tails = np.concatenate([net.inbox[1::2], np.full(len(net.wait_head), -1)]).astype(np.int64)
    used = heads >= 0
    records, _ = plain_packets.queues_of(net, heads[used], tails[used])
    ends = np.concatenate([net.inbox, net.wait_tail[net.wait_tail >= 0]])
    blocks = np.unique(np.concatenate([ends[ends >= 0], records]) >> s.BLOCK_SHIFT)
    free = int(net.ctl.free_blocks)
    net.block_free[free : free + len(blocks)] = blocks
    net.ctl.free_blocks = free + len(blocks)
    net.inbox[:] = net.wait_head[:] = net.wait_tail[:] = NONE
    net.waiting[:] = net.ctl.pending[:] = 0
    net.ctl.soonest_ps = net.ctl.far_soonest_ps = s.INF
    # neighbours read it in their next window
    net.outbox[net.out_at[int(net.ctl.parity) : 2 * lp.part.lists : 2]] = 0
    return packets


def set_down(sim: Simulation, packets: Int64) -> int:
    """Let packets wait at the ends of their links; return the time in ps of the earliest event of the run.

    Args:
        sim: A run of one process, from which `take_off` has taken all packets.
        packets: Packets as `take_off` returns them.
    """
    soonest_ps = s.INF
    for lp in sim.lps:
        plain_packets.put_on_links(lp, plain_packets.arriving(lp.part, sim.layout, packets))
        net = lp.world.net
        soonest_ps = min(soonest_ps, int(net.ctl.soonest_ps), int(net.next_time.min(initial=s.INF)))
    return soonest_ps


def pending_event_ps(sim: Simulation) -> int:
    """Return the time in ps of the first event of an NPU that is not of its ports, INF without one.

    Args:
        sim: A run of one process.
    """
    own = [own_events(lp.world) for lp in sim.lps]
    return min(int(events.time_ps[~events.is_port & ~events.is_timer].min(initial=s.INF)) for events in own)


def instant(sim: Simulation, packets: Int64, moment_ps: int) -> Instant:
    """Return the state of a run between two windows.

    Args:
        sim: A run of one process, from which `take_off` has taken all packets.
        packets: These packets.
        moment_ps: Time in ps before which all has happened, and nothing else.
    """
    pairs = PairNumbers(sim)
    una = np.concatenate([queue_pairs_of(lp.world)["una"] for lp in sim.lps])
    wires = packets.copy()
    wires[:, 0] -= moment_ps
    wires[:, 2] = _with_numbers(pairs, wires[:, 1], wires[:, 2], -una)
    parts = [_part(lp.world, pairs, una, own, moment_ps) for lp, own in zip(sim.lps, pairs.first, strict=False)]
    return Instant(moment_ps, una, wires, parts)


def _part(world: s.World, numbers: PairNumbers, una: Int64, first: int, moment_ps: int) -> PartInstant:
    """Return the state of an LP at a moment; una: that of all queue pairs, of which the LP's begin at `first`."""
    net: Any = world.net
    pairs = queue_pairs_of(world)
    own_una = una[first : first + len(pairs)]
    same = _queued(world, numbers, *_port_queues(world), moment_ps, una)
    same += [_columns(plain(world.npus.port), _PORT_WORDS), _columns(plain(world.npus.npu), _NPU_WORDS)]
    same += [_columns(pairs, _PAIR_WORDS), pairs["next_seq"] - own_una, pairs["sent_max"] - own_una]
    awaits = (own_una < pairs["next_seq"]) & (pairs["deadline_ps"] < s.INF)
    same.append(np.where(awaits, pairs["deadline_ps"] - moment_ps, 0))
    receivers = plain(world.qps.rxqp)
    receivers = receivers[receivers["key"] != FREE]
    same.append(receivers["expected"] - una[numbers.of_receivers(receivers["key"])])
    same.append(_columns(receivers, _RECEIVER_WORDS))
    events = own_events(world)
    order = np.lexsort((events.slot, events.owner))
    order = order[~events.is_timer[order]]
    times_ps = events.time_ps - events.is_port * moment_ps
    same += [events.owner[order], events.slot[order], times_ps[order], plain(world.npus.system).view(np.int64).copy()]
    counted = (net.counts, net.port_ties, net.mark_draws)
    same.append(plain(net.mark_draws)["draws"].copy())
    ties = np.concatenate([plain(net.counts)["ties"], plain(net.port_ties)["ties"]])
    lasting = [plain(net.tx)["busy_ps"].copy(), *(plain(rows)[_time_of(rows)].copy() for rows in counted)]
    if net.hooks.shared_switches:
        gate = plain(net.gate)
        same += [_columns(gate, _GATE_WORDS), _columns(plain(net.pool), _POOL_WORDS)]
        same += _queued(world, numbers, *_gate_queues(world), moment_ps, una, TIME_MASK)
        lasting.append(np.where(gate["paused"][:, None] >> np.arange(8) & 1, gate["since_ps"], 0))
    same.append(np.array([net.ctl[name] for name in _SCALARS.split()] + [net.count.flows, net.count.trace_rows]))
    counts, links = words_of(net.count).copy(), net.tx.copy()
    return PartInstant(same, ties, lasting, counts, links, net.tx_dropped.copy(), ObservedBuffers.of(world))


def _time_of(rows: Any) -> str:
    """Return the name of the word with the time of the latest tie or draw."""
    return "last_draw_ps" if "draws" in rows.dtype.names else "last_tie_ps"


def _queued(
    world: s.World, pairs: PairNumbers, records: Int64, places: Int64, moment_ps: int, una: Int64, mask: int = -1
) -> list[Int64]:
    """Return what records in queues are: their places, and words relative to a moment; mask: bits of their times."""
    words, _ = plain_packets.words_of_packets(world.net, records)
    word2 = _with_numbers(pairs, words[:, 1], words[:, 2], -una)
    return [places, words[:, 0] & ~mask, moment_ps - words[:, 0] & mask, words[:, 1], word2, words[:, 3]]


def stretches_left(sim: Simulation, earlier: Instant, now: Instant, pending_ps: int) -> int:
    """Return how many stretches like that between two states can follow before a message ends or an NPU acts.

    Args:
        sim: A run of one process, now.
        earlier: The first state.
        now: The second state, that of `sim`.
        pending_ps: Time in ps of the first event that is not of the network.
    """
    sent = now.una - earlier.una
    moving = sent > 0
    if (sent < 0).any() or not moving.any():
        return 0
    qp = np.concatenate([queue_pairs_of(lp.world) for lp in sim.lps])[moving]
    if (qp["head_message"] != qp["current_message"]).any():
        return 0
    # the last packet of a message is not sent in these stretches
    stretches = int(((qp["current_end"] - 1 - qp["next_seq"]) // sent[moving]).min())
    return min(stretches, (pending_ps - now.moment_ps) // (now.moment_ps - earlier.moment_ps))


def stretches_to_return(earlier: Instant, now: Instant) -> int:
    """Return after how many stretches like that between two states the first one returns; 0 if it is not known.

    1 if both are equal. If they differ in counts of ties alone, these have their values again after so many stretches,
    and the state has probably returned, unless the orders of ties have changed it.

    Args:
        earlier: The first state.
        now: The second state.
    """
    length_ps = now.moment_ps - earlier.moment_ps
    # a queue pair that was opened in between changes the run
    if length_ps <= 0 or len(earlier.una) != len(now.una) or not np.array_equal(earlier.wires, now.wires):
        return 0
    if not all(_is_same(*each, earlier.moment_ps, length_ps) for each in zip(earlier.parts, now.parts, strict=True)):
        return 0
    counted = [after.ties - before.ties for before, after in zip(earlier.parts, now.parts, strict=True)]
    return TIES // math.gcd(TIES, int(np.gcd.reduce(np.concatenate(counted))))


def _is_same(earlier: PartInstant, now: PartInstant, earlier_ps: int, length_ps: int) -> bool:
    """Return whether the states of an LP at two moments, the first at `earlier_ps`, are the same but for ties."""
    if not all(np.array_equal(before, after) for before, after in zip(earlier.same, now.same, strict=True)):
        return False
    for before, after in zip(earlier.lasting, now.lasting, strict=True):
        if not ((after == before) | (after - before == length_ps)).all():
            return False
    # a port that has sent nothing is idle
    stays = earlier.lasting[0] == now.lasting[0]
    return not (now.lasting[0][stays] > earlier_ps).any()


def go_forward(sim: Simulation, packets: Int64, earlier: Instant, now: Instant, periods: int) -> None:
    """Let a run be whole periods later, each as the stretch between two states that are equal.

    Args:
        sim: A run of one process, in the second state.
        packets: Packets on links, as of `take_off`, which the function changes.
        earlier: The first state.
        now: The second state.
        periods: Number of periods.
    """
    pairs = PairNumbers(sim)
    length_ps = now.moment_ps - earlier.moment_ps
    sent = periods * (now.una - earlier.una)
    packets[:, 0] += periods * length_ps
    packets[:, 2] = _with_numbers(pairs, packets[:, 1], packets[:, 2], sent)
    for lp, first, before, after in zip(sim.lps, pairs.first, earlier.parts, now.parts, strict=False):
        _let_part_go_forward(lp.world, pairs, sent, first, before, after, periods, length_ps)


def _let_part_go_forward(
    world: s.World, numbers: PairNumbers, sent: Int64, first: int, earlier: PartInstant, now: PartInstant,
    periods: int, length_ps: int,
) -> None:  # fmt: skip
    """Let an LP be whole periods later; sent: packets of all queue pairs, of which the LP's begin at `first`."""
    net: Any = world.net
    shift_ps = periods * length_ps
    _let_wait(net, numbers, _port_queues(world)[0], shift_ps, sent)
    qp: Any = world.qps.qp[: int(net.ctl.queue_pairs)]
    qp.deadline_ps[(qp.una < qp.next_seq) & (qp.deadline_ps < s.INF)] += shift_ps
    for name in ("next_seq", "una", "sent_max"):
        qp[name] += sent[first : first + len(qp)]
    receivers: Any = world.qps.rxqp
    used = receivers.key != FREE
    receivers.expected[used] += sent[numbers.of_receivers(receivers.key[used])]
    times = [net.tx.busy_ps, *(rows[_time_of(rows)] for rows in (net.counts, net.port_ties, net.mark_draws))]
    if net.hooks.shared_switches:
        _let_wait(net, numbers, _gate_queues(world)[0], shift_ps, sent, TIME_MASK)
        times.append(net.gate.since_ps)
        noted: ObservedBuffers = earlier.buffers
        noted.repeat(world, periods, length_ps)
    for values, before, after in zip(times, earlier.lasting, now.lasting, strict=True):
        values[after - before == length_ps] += shift_ps
    _let_happen_later(world, shift_ps)
    counts = words_of(net.count)
    more = counts - earlier.counts
    counts += periods * more * _IN_EACH
    own: Any = net.tx
    own.sent_bytes += periods * (packet.bytes_sent(own.sent_bytes) - packet.bytes_sent(earlier.links.sent_bytes))
    own.sent_packets += periods * (
        packet.packets_sent(own.sent_packets) - packet.packets_sent(earlier.links.sent_packets)
    )
    net.tx_dropped[:] += periods * (net.tx_dropped - earlier.dropped)
    net.ctl.now_ps += shift_ps
    net.ctl.begin_ps += shift_ps


def _let_wait(net: Any, pairs: PairNumbers, records: Int64, shift_ps: int, sent: Int64, mask: int = -1) -> None:
    """Let packets in queues have come later, with later sequence numbers; mask: bits of their times."""
    record = net.record
    times_ps = record.ready_ps[records]
    record.ready_ps[records] = (times_ps & ~mask) | (times_ps + shift_ps & mask)
    record.w2[records] = _with_numbers(pairs, record.w1[records], record.w2[records], sent)


def _let_happen_later(world: s.World, shift_ps: int) -> None:
    """Let events of ports and timers of NPUs, and of switches, be later."""
    net, npu = world.net, world.npus.npu
    events = own_events(world)
    times_ps = events.time_ps + (events.is_port | events.is_timer) * shift_ps
    # a sorted list is a heap
    order = np.lexsort((events.slot, times_ps, events.owner))
    heap: Any = world.npus.heap.reshape(-1, 2)
    heap[events.place] = np.stack([times_ps[order], events.slot[order]], axis=1)
    npu.rto_at_ps[npu.rto_at_ps < s.INF] += shift_ps
    npus = int(net.const.npus)
    next_ps: Any = net.next_time
    next_ps[:npus] = s.INF
    np.minimum.at(next_ps, events.owner, times_ps)
    later = next_ps[npus:]
    later[later < s.INF] += shift_ps
