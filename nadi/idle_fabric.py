"""How long a schedule takes on an idle fabric: its steps played packet by packet, in plain Python.

For algorithms whose messages wait for each other as latency and rate happen to be, so that no formula says how long
they take. Each message passes two ports at which packets queue: that by which it leaves the sender, and that of the
switch before the receiver; links between are as if only its queue pair used them. The transport is that of
docs/fabric.md without losses: queue pairs with a window send a packet each in turn, acknowledgements go first, a
connection with a share sends no packet before its bytes are moved (pdes.driven), and a switch sends in the order in
which packets came to it. Many packets go in groups, and the window then holds some groups: who shares a link with whom
counts for more than how finely.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from nadi.idle_paths import ACKNOWLEDGEMENT, Fabric, Path, Times
from workload import Schedules
from workload.lanes import Buffer, buffers, lane_rows, unpack
from workload.plans import NONE, Step

_MOST_GROUPS = 1 << 17
_GROUPS_IN_WINDOW = 4

_Act = Callable[..., None]


def played_ps(schedules: Schedules, index: int, size_bytes: int, fabric: Fabric) -> float:
    """Picoseconds until the last member has done all.

    Args:
        schedules: as packed.
        index: of the schedule.
        size_bytes: the whole buffer.
        fabric: the members' paths, and what a packet is.
    """
    return _Network(schedules, index, size_bytes, fabric).play()


class _Lane:
    """Where a member is in a lane: steps done, whether the next one's send is posted, what came and what left.

    Followers are the member's lanes of which a step waits for one of this lane.
    """

    def __init__(self, steps: list[Step], buffer: Buffer, size_bytes: int, schedules: Schedules, row: int) -> None:
        self.steps = steps
        self.bytes = [
            buffer.wire_bytes(step.send_chunk, step.send_count, size_bytes) if step.send_peer != NONE else NONE
            for step in steps
        ]
        self.latency_ps, self.blocking = int(schedules.lane_latency_ps[row]), bool(schedules.lane_blocking[row])
        self.connection, self.shares = int(schedules.lane_connection[row]), int(schedules.lane_shares[row])
        self.done, self.came, self.left = 0, 0, 0
        self.is_posted, self.is_put_off = False, False
        self.followers: list[_Lane] = []

    def may_end(self, step: Step) -> bool:
        """Whether a step whose send is posted is done."""
        has_left = not self.blocking or self.left > 0 or step.send_peer == NONE
        return has_left and (self.came > 0 or step.recv_peer == NONE)

    def end(self, step: Step) -> None:
        """Go on to the next step."""
        self.left -= step.send_peer != NONE and self.blocking
        self.came -= step.recv_peer != NONE
        self.done += 1
        self.is_posted = False


class _Message:
    """What is left to send of a message between two lanes."""

    __slots__ = ("from_lane", "last_bytes", "packets", "to_lane")

    def __init__(self, size_bytes: int, from_lane: _Lane, to_lane: int, mtu_bytes: int) -> None:
        self.packets = _packets(size_bytes, mtu_bytes)
        self.last_bytes = size_bytes - (self.packets - 1) * mtu_bytes
        self.from_lane, self.to_lane = from_lane, to_lane


def _packets(size_bytes: int, mtu_bytes: int) -> int:
    return max(1, -(-size_bytes // mtu_bytes))


class _Way:
    """A path, and the times of packets on it that are known."""

    __slots__ = ("first", "hops", "last", "times")

    def __init__(self, path: Path) -> None:
        self.first, self.last, self.hops = path
        self.times: dict[int, Times] = {}


class _QueuePair:
    """Messages from a member to a peer over one connection, in turn.

    Attributes:
        waits: among those that take turns at the port, or for its share.
        next_ps: when the next packet may leave, as far as its share goes.
        moved_ps_per_byte: of payload, at its share; 0 = no share.
        acknowledged: when how many packets are known to have come, as far as that is settled.
        is_full: whether it waits for its window.
    """

    __slots__ = (
        "acknowledged",
        "back",
        "is_full",
        "me",
        "messages",
        "moved_ps_per_byte",
        "next_ps",
        "peer",
        "port",
        "unacknowledged",
        "waits",
        "way",
    )

    def __init__(self, me: int, peer: int, way: _Way, back: _Way, port: "_Port", moved_ps_per_byte: float) -> None:
        self.me, self.peer, self.way, self.back, self.port = me, peer, way, back, port
        self.moved_ps_per_byte, self.next_ps = moved_ps_per_byte, 0.0
        self.messages: deque[_Message] = deque()
        self.acknowledged: deque[tuple[float, int]] = deque()
        self.unacknowledged = 0
        self.waits = self.is_full = False


class _Port:
    """By which a member sends: acknowledgements, queue pairs in turn, those held back by their share."""

    __slots__ = ("acks", "free_ps", "held", "turns", "wake_ps")

    def __init__(self) -> None:
        self.acks: deque[tuple[_QueuePair, int]] = deque()
        self.turns: deque[_QueuePair] = deque()
        self.held: list[tuple[float, int, _QueuePair]] = []
        self.free_ps, self.wake_ps = 0.0, math.inf


class _Member:
    """A member's lanes, and its queue pairs by peer and connection."""

    def __init__(self, lanes: list[_Lane]) -> None:
        self.lanes = lanes
        for lane in lanes:
            for number in sorted({step.dep_lane for step in lane.steps} - {NONE}):
                lanes[number].followers.append(lane)
        self.pairs: dict[tuple[int, int], _QueuePair] = {}


class _Network:
    """Events are (time, turn, method, arguments)."""

    def __init__(self, schedules: Schedules, index: int, size_bytes: int, fabric: Fabric) -> None:
        rows = (unpack(schedules, index), buffers(schedules, index), lane_rows(schedules, index))
        self.members = [
            _Member([_Lane(*one[:2], size_bytes, schedules, one[2]) for one in zip(*own, strict=True)])
            for own in zip(*rows, strict=True)
        ]
        self.fabric, self.mtu_bytes = fabric, fabric.mtu_bytes
        sizes = (size for member in self.members for lane in member.lanes for size in lane.bytes)
        packets = sum(_packets(size, self.mtu_bytes) for size in sizes if size != NONE)
        self.group = -(-packets // _MOST_GROUPS)
        self.window = max(fabric.window_packets, _GROUPS_IN_WINDOW * self.group)
        self.ports: dict[int, _Port] = {}
        self.queue_free_ps: dict[int, float] = {}
        self.ways = {pair: _Way(path) for pair, path in fabric.paths.items()}
        self.kicked: list[_Port] = []
        self.events: list[tuple[float, int, _Act, tuple[Any, ...]]] = []
        self.count = 0
        self.now_ps = self.end_ps = float(schedules.launch_ps[index])

    def play(self) -> float:
        for me, member in enumerate(self.members):
            self._advance(me, member.lanes)
        events = self.events
        while events:
            self.now_ps, _, happens, arguments = heapq.heappop(events)
            happens(*arguments)
        return self.end_ps

    def _at(self, time_ps: float, happens: _Act, *arguments: object) -> None:
        self.count += 1
        heapq.heappush(self.events, (time_ps, self.count, happens, arguments))

    def _advance(self, me: int, lanes: Iterable[_Lane]) -> None:
        """Do what a member can in some lanes and in those that wait for them, and let its ports send."""
        waiting = deque(lanes)
        while waiting:
            lane, done = waiting[0], waiting[0].done
            while self._half_step(me, lane):
                pass
            waiting.popleft()
            if lane.done > done:
                waiting.extend(lane.followers)
        while self.kicked:
            self._send(self.kicked.pop())

    def _half_step(self, me: int, lane: _Lane) -> bool:
        """Post what a lane's next step sends, or end the step; whether it could."""
        if lane.done == len(lane.steps) or lane.is_put_off:
            return False
        step = lane.steps[lane.done]
        if lane.is_posted:
            if not lane.may_end(step):
                return False
            lane.end(step)
            self.end_ps = self.now_ps
        elif step.dep_lane != NONE and self.members[me].lanes[step.dep_lane].done <= step.dep_step:
            return False
        elif step.send_peer != NONE and lane.latency_ps:
            lane.is_put_off = True
            self._at(self.now_ps + lane.latency_ps, self._post_late, me, lane)
        else:
            self._post(me, lane)
        return True

    def _post_late(self, me: int, lane: _Lane) -> None:
        lane.is_put_off = False
        self._post(me, lane)
        self._advance(me, [lane])

    def _post(self, me: int, lane: _Lane) -> None:
        lane.is_posted = True
        step = lane.steps[lane.done]
        if step.send_peer == NONE:
            return
        pair = self._pair(me, step.send_peer, lane)
        pair.messages.append(_Message(lane.bytes[lane.done], lane, step.send_lane, self.mtu_bytes))
        if len(pair.messages) == 1:
            pair.next_ps = self._moved_at(pair)
        self._take_turns(pair, self.now_ps)
        self.kicked.append(pair.port)

    def _pair(self, me: int, peer: int, lane: _Lane) -> _QueuePair:
        pair = self.members[me].pairs.get((peer, lane.connection))
        if pair is None:
            way, back = self.ways[me, peer], self.ways[peer, me]
            port = self.ports.setdefault(way.first, _Port())
            share = 0.0 if lane.shares == 1 else lane.shares * self._times(way, self.mtu_bytes).first_ps
            pair = _QueuePair(me, peer, way, back, port, share / self.mtu_bytes)
            self.members[me].pairs[peer, lane.connection] = pair
        return pair

    def _times(self, way: _Way, size_bytes: int) -> Times:
        found = way.times.get(size_bytes)
        if found is None:
            found = way.times[size_bytes] = self.fabric.times(way.hops, size_bytes)
        return found

    def _next_group(self, pair: _QueuePair) -> int:
        return min(pair.messages[0].packets, self.group, self.window - pair.unacknowledged)

    def _moved_at(self, pair: _QueuePair) -> float:
        """When the payload of the packets that are sent next has been moved, if that begins now."""
        if pair.moved_ps_per_byte == 0.0 or not pair.messages:
            return self.now_ps
        message, packets = pair.messages[0], min(pair.messages[0].packets, self.group)
        size = packets * self.mtu_bytes
        if packets == message.packets:
            size += message.last_bytes - self.mtu_bytes
        return self.now_ps + size * pair.moved_ps_per_byte

    def _take_turns(self, pair: _QueuePair, by_ps: float) -> None:
        """Put a queue pair behind those that take turns, if it has something to send and room in its window.

        One whose share lets it send only after by_ps is held back until then.
        """
        if pair.waits or not pair.messages or not self._has_room(pair):
            return
        pair.waits = True
        if pair.next_ps <= by_ps:
            pair.port.turns.append(pair)
        else:
            self.count += 1
            heapq.heappush(pair.port.held, (pair.next_ps, self.count, pair))

    def _has_room(self, pair: _QueuePair) -> bool:
        """Whether there is room in the window by now; if not, what is acknowledged next wakes the pair."""
        acknowledged = pair.acknowledged
        while acknowledged and acknowledged[0][0] <= self.now_ps:
            pair.unacknowledged -= acknowledged.popleft()[1]
        if pair.unacknowledged < self.window:
            return True
        if not pair.is_full:
            pair.is_full = True
            if acknowledged:
                self._at(acknowledged[0][0], self._acknowledged, pair)
        return False

    def _acknowledged(self, pair: _QueuePair) -> None:
        pair.is_full = False
        self._take_turns(pair, self.now_ps)
        self._send(pair.port)

    def _wake(self, port: _Port) -> None:
        if port.wake_ps <= self.now_ps:  # else an earlier one took its place
            port.wake_ps = math.inf
            self._send(port)

    def _wake_at(self, port: _Port, time_ps: float) -> None:
        """Have the port tried at that time, unless that is so before."""
        if time_ps < port.wake_ps:
            port.wake_ps = time_ps
            self._at(time_ps, self._wake, port)

    def _send(self, port: _Port) -> None:
        """If the port is free: an acknowledgement, else packets of the queue pair whose turn it is."""
        now_ps, held = self.now_ps, port.held
        if port.free_ps <= now_ps:
            while held and held[0][0] <= now_ps:
                port.turns.append(heapq.heappop(held)[2])
            if port.acks:
                self._send_acks(port, *port.acks.popleft())
            elif port.turns:
                self._send_data(port, port.turns.popleft())
        if port.acks or port.turns:
            self._wake_at(port, port.free_ps)
        elif held:
            self._wake_at(port, max(port.free_ps, held[0][0]))

    def _send_acks(self, port: _Port, pair: _QueuePair, packets: int) -> None:
        """Of a queue pair that sends to the port's member."""
        one = self._times(pair.back, ACKNOWLEDGEMENT)
        self._begin(port, pair.back, packets, one, one, self._is_acknowledged, pair, packets)

    def _is_acknowledged(self, at_ps: float, pair: _QueuePair, packets: int) -> None:
        """It will be at that time."""
        pair.acknowledged.append((at_ps, packets))
        if pair.is_full and len(pair.acknowledged) == 1:
            self._at(at_ps, self._acknowledged, pair)

    def _send_data(self, port: _Port, pair: _QueuePair) -> None:
        message, packets = pair.messages[0], self._next_group(pair)
        message.packets -= packets
        pair.unacknowledged += packets
        is_last = message.packets == 0
        full = last = self._times(pair.way, self.mtu_bytes)
        if is_last:
            last = self._times(pair.way, message.last_bytes)
            pair.messages.popleft()
        to_lane = message.to_lane if is_last else NONE
        self._begin(port, pair.way, packets, full, last, self._will_come, pair, packets, to_lane)
        pair.waits = False
        pair.next_ps = self._moved_at(pair)
        self._take_turns(pair, port.free_ps)
        if is_last and message.from_lane.blocking:
            self._at(port.free_ps, self._has_left, pair.me, message.from_lane)

    def _begin(
        self, port: _Port, way: _Way, packets: int, full: Times, last: Times, reaches: _Act, *arguments: object
    ) -> None:
        """Keep the port busy; the first packet's head comes to the switch's port, if there is one."""
        first = full if packets > 1 else last
        port.free_ps = self.now_ps + (packets - 1) * full.first_ps + last.first_ps
        soonest_ps = port.free_ps + last.tail_ps
        if way.last == NONE:
            reaches(soonest_ps + last.after_ps, *arguments)
            return
        duration_ps = (packets - 1) * full.last_ps + last.last_ps
        head_ps = self.now_ps + first.head_ps
        self._at(head_ps, self._forward, way.last, duration_ps, soonest_ps, last.after_ps, reaches, arguments)

    def _forward(
        self,
        queue: int,
        duration_ps: float,
        soonest_ps: float,
        after_ps: float,
        reaches: _Act,
        arguments: tuple[Any, ...],
    ) -> None:
        """Packets go behind those that came to the switch's port before, and no sooner than they come."""
        free_ps = max(self.now_ps, self.queue_free_ps.get(queue, 0.0)) + duration_ps
        self.queue_free_ps[queue] = free_ps = max(free_ps, soonest_ps)
        reaches(free_ps + after_ps, *arguments)

    def _has_left(self, me: int, lane: _Lane) -> None:
        """The last byte of a lane's message."""
        lane.left += 1
        self._advance(me, [lane])

    def _will_come(self, at_ps: float, pair: _QueuePair, packets: int, to_lane: int) -> None:
        """Data of a queue pair; to_lane: that gets the message, if this is its last packet."""
        self._at(at_ps, self._comes, pair, packets, to_lane)

    def _comes(self, pair: _QueuePair, packets: int, to_lane: int) -> None:
        port = self.ports.get(pair.back.first)
        if port is None:
            port = self.ports[pair.back.first] = _Port()
        port.acks.append((pair, packets))
        if to_lane == NONE:
            self._send(port)
            return
        self.kicked.append(port)
        lane = self.members[pair.peer].lanes[to_lane]
        lane.came += 1
        self._advance(pair.peer, [lane])
