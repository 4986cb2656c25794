"""Time of a schedule on an idle fabric: its steps are played packet by packet (`network`).

Messages wait for each other in patterns that depend on latency and rate, which no formula covers in general. Each
message passes two ports at which packets queue: the port by which it leaves the sender, and the port of the switch
before the receiver. There is a third port if all messages to the receiver meet before. The links between act as if only
this sender used them, and keep its packets in order. If switches have equal links, hashes decide the order, so there
each packet travels on its own.

The transport is that of docs/explanation/fabric.md without losses. Queue pairs with a window take turns packet by
packet; acknowledgements go first; a connection with a share sends no packet before its bytes are moved (`moved_ps`); a
switch sends packets in the order of their arrival. Long messages with many packets may send batches of packets as one,
because messages that take turns for a long time hardly depend on the granularity.
"""

import time

import numpy as np
from numpy.typing import NDArray

from nadi.simulation.closed_forms.lone_message import ACKNOWLEDGEMENT, Way
from nadi.simulation.closed_forms.playing import state as idle
from nadi.simulation.closed_forms.playing.idle_paths import IdleFabric, PathTimes
from nadi.simulation.closed_forms.playing.network import ALL_DONE, NO_ROOM, play
from nadi.simulation.closed_forms.playing.state import Clock, PacketKind, PlayEvent, PlayState
from pdes.kernels import Directory, aligned, compile_for, guarded, row_of, rows_of
from workload import Schedules
from workload.collectives.plans.plan import NONE
from workload.collectives.schedules.read_back import all_steps

_BATCH_ABOVE_PACKETS = 1 << 22  # number of packets from which on long messages send batches of packets
_MIN_PIECES_PER_MESSAGE = 1024  # minimum number of batches per message on average
_MIN_PIECES_PER_WINDOW = 16  # minimum number of batches in a window
_LATER_PIECES = (
    2  # batches added to a window, since a batch leads with its first packet and is acknowledged at its last
)
_BUSY_TIMES = ("first_ps", "last_ps", "between_ps", "meet_ps")  # fields of PathTimes that add up over packets
_PAUSE_PACKETS = 1 << 20  # packets between returns of the kernel, which let Python handle interrupts: about 0.5 s

Int64 = NDArray[np.int64]


def compile_player() -> float:
    """Compile the player or load it from the cache, and return the seconds that this took."""
    begun = time.perf_counter()
    compile_for(play, 0)
    return time.perf_counter() - begun


class PreparedSchedule:
    """A schedule on an idle fabric, ready to play; `packets` is the number of packets or batches to play."""

    def __init__(self, schedules: Schedules, index: int, size_bytes: int, fabric: IdleFabric) -> None:
        """Lay out the schedule."""
        self._schedules, self._index = schedules, index
        self._steps = all_steps(schedules, index, size_bytes)
        payload = self._steps.bytes[self._steps.dst >= 0]
        self._fabric, packets = fabric, _packets(payload, fabric.mtu_bytes)
        batch = packets_per_batch(packets, len(payload), fabric.window_packets)
        if batch > 1:
            self._fabric = _batched(fabric, batch)
            packets = _packets(payload, self._fabric.mtu_bytes)
        self.packets = packets

    def time_ps(self) -> float:
        """Return the time in picoseconds until the last member is done."""
        state = self._state()
        directory = Directory(state, "closed form of a collective")
        while (stopped := play(directory.address)) != ALL_DONE:
            if stopped == NO_ROOM:
                state = _with_more_room(state)
                directory.update(state)
            else:
                state.ctl.pause_after = _PAUSE_PACKETS
        directory.check_guards()
        return float(state.clock.end_ps)

    def _state(self) -> idle.IdleGroup:
        s, steps, fabric = self._schedules, self._steps, self._fabric
        pair_of, pairs, ways, hops_of_pair, kinds = self._pairs()
        packets = np.where(steps.dst >= 0, np.maximum(1, -(-steps.bytes // fabric.mtu_bytes)), 0)
        last_bytes = np.where(steps.dst >= 0, steps.bytes - (packets - 1) * fabric.mtu_bytes, 0)
        last = np.full(len(steps.lane), NONE)
        sends = np.flatnonzero(steps.dst >= 0)
        kind = np.stack([hops_of_pair[pair_of[sends]], last_bytes[sends]], axis=1)
        unlike, of_send = np.unique(kind, axis=0, return_inverse=True)
        last[sends] = kinds.rows(unlike)[of_send.reshape(-1)]
        count = 1 + max((max(path.first, path.last, path.meets) for path in fabric.paths.values()), default=0)
        room = 2 * len(steps.row) + len(pairs.way) + 8 * count + 16
        length = 4 * room
        if fabric.ends.send_ps > 0:  # every posted message waits in the heap, and a lane may post all its messages
            room += len(sends)
            length += len(sends)
        ctl, clock = row_of(PlayState), row_of(Clock)
        ctl.window_packets, ctl.mtu_bytes, ctl.room = fabric.window_packets, fabric.mtu_bytes, room
        ctl.pause_after, ctl.seed = _PAUSE_PACKETS, fabric.seed
        # delay until the first step may be done, unless lanes wait on their own
        waits = len(steps.row) > 0 and steps.row[0] != NONE and s.lane_begins[steps.row[0]] > 0
        clock.now_ps = clock.end_ps = s.launch_ps[self._index] + (0.0 if waits else fabric.ends.begin_ps)
        laid_out = idle.IdleGroup(
            lanes=self._lanes(),
            steps=idle.PlayedSteps(
                lane=steps.lane,
                pair=pair_of,
                to=steps.to,
                receives=steps.receives.astype(np.int64),
                after=steps.after,
                after_step=steps.after_step,
                bytes=steps.bytes,
                packets=packets,
                last_bytes=last_bytes,
                last=last,
                next=np.full(len(steps.lane), NONE),
            ),
            ways=ways,
            pairs=pairs,
            ports=_ports(count, room),
            ctl=ctl,
            clock=clock,
            ends=fabric.ends,
            kind=kinds.times(),
            time_ps=np.zeros(length),
            event=rows_of(PlayEvent, length),
        )
        return guarded(laid_out)

    def _lanes(self) -> idle.PlayedLanes:
        """Return the lanes before their first step."""
        s, steps = self._schedules, self._steps
        lanes = len(steps.row)
        edges = np.unique(np.stack([steps.after, steps.lane], axis=1)[steps.after >= 0], axis=0)
        return idle.PlayedLanes(
            member_ptr=steps.member_ptr,
            first=steps.first,
            latency_ps=s.lane_latency_ps[steps.row].astype(np.float64),
            begins=s.lane_begins[steps.row].astype(np.int64),
            blocking=s.lane_blocking[steps.row].astype(np.int64),
            follower_ptr=np.searchsorted(edges[:, 0], np.arange(lanes + 1)),
            follower=edges[:, 1].copy(),
            at=steps.first[:-1].copy(),
            came=np.zeros(lanes, np.int64),
            left=np.zeros(lanes, np.int64),
            state=np.zeros(lanes, np.int64),
            waits=np.zeros(lanes, np.int64),
            ring=np.zeros(lanes + 1, np.int64),
            receive_ptr=np.searchsorted(np.flatnonzero(steps.receives), steps.first),
            reduces=np.append(steps.reduces[steps.receives], False).astype(np.int64),
            taken=np.zeros(lanes, np.int64),
            taken_ps=np.zeros(lanes),
        )

    def _pairs(self) -> tuple[Int64, idle.QueuePairs, idle.MemberPaths, Int64, "_PacketKinds"]:
        """Return the queue pair of each step, the queue pairs, their paths, the hops of each, and the packet kinds."""
        s, steps, fabric = self._schedules, self._steps, self._fabric
        connection = s.lane_connection[steps.row].astype(np.int64)[steps.lane]
        shares = s.lane_shares[steps.row][steps.lane]
        sends = np.flatnonzero(steps.dst >= 0)
        keys = np.stack([steps.src, steps.dst, connection], axis=1)[sends]
        unlike, example, of_send = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        pair_of = np.full(len(steps.lane), NONE)
        pair_of[sends] = of_send.reshape(-1)
        kinds = _PacketKinds(fabric)
        ends = unlike[:, :2].tolist()
        number: dict[tuple[int, int], int] = {}
        way, back = (
            np.array([number.setdefault(pair, len(number)) for pair in pairs], np.int64)
            for pairs in ([(a, b) for a, b in ends], [(b, a) for a, b in ends])
        )
        share, moved_ps = shares[sends[example]], np.zeros(len(unlike))
        hops, hops_back = np.zeros(len(unlike), np.int64), np.zeros(len(unlike), np.int64)
        driven: set[tuple[int, int]] = set()
        for q, (a, b) in enumerate(ends):
            there = fabric.paths[a, b].hops
            if share[q] > 1 and fabric.moved_ps is not None:
                moved_ps[q] = share[q] * fabric.moved_ps(there[0])
            elif share[q] > 1:
                there = (there[0]._replace(shares=float(share[q])), *there[1:])
                driven.add((a, b))
            hops[q], hops_back[q] = kinds.way(there), kinds.way(fabric.paths[b, a].hops)
        full = kinds.rows(np.stack([hops, np.full(len(way), fabric.mtu_bytes)], axis=1))
        ack = kinds.rows(np.stack([hops_back, np.full(len(way), ACKNOWLEDGEMENT)], axis=1))
        count = len(unlike)
        pairs = idle.QueuePairs(
            way=way,
            back=back,
            full=full,
            ack=ack,
            moved_ps=moved_ps,
            head=np.full(count, NONE),
            tail=np.full(count, NONE),
            packets=np.zeros(count, np.int64),
            open=np.zeros(count, np.int64),
            is_full=np.zeros(count, np.int64),
            waits=np.zeros(count, np.int64),
            next=np.full(count, NONE),
            next_ps=np.zeros(count),
            arrived_ps=np.zeros(count),
        )
        return pair_of, pairs, _ways(fabric, list(number), driven), hops, kinds


def packets_per_batch(packets: int, messages: int, window_packets: int) -> int:
    """Return the number of packets that travel as one; 1 = each travels alone."""
    long = packets // max(1, messages) // _MIN_PIECES_PER_MESSAGE
    return max(1, min(packets // _BATCH_ABOVE_PACKETS, long, window_packets // _MIN_PIECES_PER_WINDOW))


def _packets(payload: Int64, mtu_bytes: int) -> int:
    return int(np.maximum(1, -(-payload // mtu_bytes)).sum())


def _batched(fabric: IdleFabric, packets: int) -> IdleFabric:
    """Return the fabric with batches of packets and acknowledgements; the first packet leads, the last one ends."""

    def times(hops: Way, size_bytes: int) -> PathTimes:
        count, last_bytes = packets, size_bytes
        if size_bytes != ACKNOWLEDGEMENT:
            count = max(1, -(-size_bytes // fabric.mtu_bytes))
            last_bytes -= (count - 1) * fabric.mtu_bytes
        last = fabric.times(hops, last_bytes)
        full = last if size_bytes == ACKNOWLEDGEMENT else fabric.times(hops, fabric.mtu_bytes)
        leads = full if count > 1 else last
        batch_ps = {name: (count - 1) * getattr(full, name) + getattr(last, name) for name in _BUSY_TIMES}
        batch_ps["left_ps"] = batch_ps["first_ps"]
        return last._replace(head_ps=leads.head_ps, seen_ps=leads.seen_ps, on_head_ps=leads.on_head_ps, **batch_ps)

    window = -(-fabric.window_packets // packets) + _LATER_PIECES
    return fabric._replace(mtu_bytes=packets * fabric.mtu_bytes, window_packets=window, times=times)


def _ports(count: int, room: int) -> idle.Ports:
    """Return idle ports; `room` is the number of entries for waiting acknowledgements."""
    return idle.Ports(
        free_ps=np.zeros(count),
        wake_ps=np.full(count, np.inf),
        turn=np.full(count, NONE),
        last_turn=np.full(count, NONE),
        ack=np.full(count, NONE),
        last_ack=np.full(count, NONE),
        acks=np.zeros(count, np.int64),
        is_kicked=np.zeros(count, np.int64),
        kicked=np.zeros(count, np.int64),
        ack_pair=np.zeros(room, np.int64),
        ack_step=np.zeros(room, np.int64),
        next_ack=np.append(np.arange(1, room), NONE),
    )


class _PacketKinds:
    """Kinds of packets, by path and payload."""

    def __init__(self, fabric: IdleFabric) -> None:
        self._fabric = fabric
        self._ways: dict[tuple, int] = {}
        self._rows: dict[tuple[int, int], int] = {}
        self._times: list[PathTimes] = []

    def way(self, hops: tuple) -> int:
        """Return the number of a path."""
        return self._ways.setdefault(hops, len(self._ways))

    def rows(self, kinds: Int64) -> Int64:
        """Return the rows of kinds, int64[K, 2] of path number and payload."""
        hops = list(self._ways)
        rows = np.zeros(len(kinds), np.int64)
        for i, (way, size_bytes) in enumerate(kinds.tolist()):
            if (way, size_bytes) not in self._rows:
                self._rows[way, size_bytes] = len(self._rows)
                self._times.append(self._fabric.times(hops[way], size_bytes))
            rows[i] = self._rows[way, size_bytes]
        return rows

    def times(self) -> np.recarray:
        """Return the times of all kinds."""
        rows = rows_of(PacketKind, len(self._times))
        rows[: len(self._times)] = self._times
        return rows


def _ways(fabric: IdleFabric, pairs: list[tuple[int, int]], driven: set[tuple[int, int]]) -> idle.MemberPaths:
    """Return the paths of these pairs of members.

    Paths of `driven` pairs keep no order: at message level, a message at a share may leave later than one that began
    after it.
    """
    paths, links = [fabric.paths[pair] for pair in pairs], [fabric.links[pair] for pair in pairs]
    order = [NONE if pair in driven else path.order for pair, path in zip(pairs, paths, strict=True)]
    return idle.MemberPaths(
        port=np.array([path.first for path in paths], np.int64),
        queue=np.array([path.last for path in paths], np.int64),
        meets=np.array([path.meets for path in paths], np.int64),
        via=np.array([via for via, _, _ in links], np.int64),
        latency_ps=np.array([latency for _, latency, _ in links], np.float64),
        last=np.array([last for _, _, last in links], np.int64),
        order=np.array(order, np.int64),
        free_ps=np.zeros(max(order, default=NONE) + 1),
    )


def _with_more_room(state: idle.IdleGroup) -> idle.IdleGroup:
    """Return the state with twice the room for events and acknowledgements."""
    ports, ctl = state.ports, state.ctl
    old = len(ports.ack_pair)
    free = np.arange(old + 1, 2 * old + 1)
    free[-1] = ctl.free_ack
    ctl.free_ack = old
    ports = ports._replace(
        ack_pair=aligned(np.concatenate([ports.ack_pair, np.zeros(old, np.int64)])),
        ack_step=aligned(np.concatenate([ports.ack_step, np.zeros(old, np.int64)])),
        next_ack=aligned(np.concatenate([ports.next_ack, free])),
    )
    return state._replace(
        ports=ports,
        time_ps=aligned(np.concatenate([state.time_ps, np.zeros_like(state.time_ps)])),
        event=aligned(np.concatenate([state.event, np.zeros_like(state.event)])),
    )
