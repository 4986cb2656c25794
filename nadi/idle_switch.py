"""How long a schedule takes on an idle switch: its steps played packet by packet, in plain Python.

For algorithms whose messages wait for each other as latency and rate happen to be, so that no formula says how long
they take. All members have a link to a switch that never blocks; links between switches are as if they were not. The
transport is that of docs/fabric.md without losses: queue pairs with a window send a packet each in turn,
acknowledgements go first, and the switch sends to each member in the order in which packets came to it. Many packets go
in groups, and the window then holds some groups: who shares a link with whom counts for more than how finely.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from workload import Schedules
from workload.lanes import Buffer, buffers, lane_rows, unpack
from workload.plans import NONE, Step

_MOST_GROUPS = 1 << 17
_GROUPS_IN_WINDOW = 4


class Link(NamedTuple):
    """What a packet takes.

    Attributes:
        mtu_bytes: payload of a full packet.
        empty_ps: of a packet without payload on a member's link.
        ps_per_byte: of payload.
        ack_ps: of an acknowledgement.
        fixed_ps: from the last byte sent to the last received, less what the next two say.
        repeats: how many times a packet's time goes by on links between the first and the last, and on the last one.
        window_packets: that a queue pair may have unacknowledged.
    """

    mtu_bytes: int
    empty_ps: float
    ps_per_byte: float
    ack_ps: float
    fixed_ps: float
    repeats: float
    window_packets: int


def played_ps(schedules: Schedules, index: int, size_bytes: int, link: Link) -> float:
    """Picoseconds until the last member has done all.

    Args:
        schedules: as packed.
        index: of the schedule.
        size_bytes: the whole buffer.
        link: what a packet takes.
    """
    return _Network(schedules, index, size_bytes, link).play()


class _Lane:
    """Where a member is in a lane: steps done, whether the next one's send is posted, what came and what left.

    Followers are the member's lanes of which a step waits for one of this lane.
    """

    def __init__(self, steps: list[Step], buffer: Buffer, latency_ps: int, *, blocking: bool) -> None:
        self.steps, self.buffer, self.latency_ps, self.blocking = steps, buffer, latency_ps, blocking
        self.done, self.came, self.left = 0, 0, 0
        self.is_posted, self.is_put_off = False, False
        self.followers: list[_Lane] = []

    def may_end(self, step: Step) -> bool:
        """Whether a step whose send is posted is done."""
        has_left = self.left > 0 or step.send_peer == NONE or not self.blocking
        return has_left and (self.came > 0 or step.recv_peer == NONE)

    def end(self, step: Step) -> None:
        """Go on to the next step."""
        self.left -= step.send_peer != NONE and self.blocking
        self.came -= step.recv_peer != NONE
        self.done += 1
        self.is_posted = False


class _Message:
    """What is left to send of a message between two lanes."""

    def __init__(self, size_bytes: int, from_lane: _Lane, to_lane: int, mtu_bytes: int) -> None:
        self.packets = _packets(size_bytes, mtu_bytes)
        self.last_bytes = size_bytes - (self.packets - 1) * mtu_bytes
        self.from_lane, self.to_lane = from_lane, to_lane


def _packets(size_bytes: int, mtu_bytes: int) -> int:
    return max(1, -(-size_bytes // mtu_bytes))


class _QueuePair:
    """Messages from a member to a peer in turn."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.messages: deque[_Message] = deque()
        self.unacknowledged = 0
        self.is_in_ring = False


class _Member:
    """A member and its ports: its own towards the switch, and the switch's towards it."""

    def __init__(self, lanes: list[_Lane]) -> None:
        self.lanes = lanes
        for lane in lanes:
            for number in sorted({step.dep_lane for step in lane.steps} - {NONE}):
                lanes[number].followers.append(lane)
        self.pairs: dict[int, _QueuePair] = {}
        self.ring: deque[_QueuePair] = deque()
        self.acks: deque[tuple[int, int]] = deque()
        self.is_sending = False
        self.port_free_ps = 0.0


class _Network:
    """Events are (time, turn, method, arguments)."""

    def __init__(self, schedules: Schedules, index: int, size_bytes: int, link: Link) -> None:
        s = schedules
        self.members = [
            _Member(
                [
                    _Lane(steps, buffer, int(s.lane_latency_ps[row]), blocking=bool(s.lane_blocking[row]))
                    for steps, buffer, row in zip(*own, strict=True)
                ]
            )
            for own in zip(unpack(s, index), buffers(s, index), lane_rows(s, index), strict=True)
        ]
        self.size_bytes, self.link = size_bytes, link
        packets = sum(
            _packets(self._bytes(lane, step), link.mtu_bytes)
            for member in self.members
            for lane in member.lanes
            for step in lane.steps
            if step.send_peer != NONE
        )
        self.group = -(-packets // _MOST_GROUPS)
        self.window = max(link.window_packets, _GROUPS_IN_WINDOW * self.group)
        self.full_ps = link.empty_ps + link.mtu_bytes * link.ps_per_byte
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.count = 0
        self.now_ps = self.end_ps = float(s.launch_ps[index])

    def play(self) -> float:
        for me, member in enumerate(self.members):
            self._advance(me, member.lanes)
        while self.events:
            self.now_ps, _, happens, arguments = heapq.heappop(self.events)
            happens(*arguments)
        return self.end_ps

    def _at(self, time_ps: float, happens: Callable[..., None], *arguments: object) -> None:
        self.count += 1
        heapq.heappush(self.events, (time_ps, self.count, happens, arguments))

    def _advance(self, me: int, lanes: Iterable[_Lane]) -> None:
        """Do what a member can in some lanes and in those that wait for them, and let its port send."""
        waiting = deque(lanes)
        while waiting:
            lane, done = waiting[0], waiting[0].done
            while self._half_step(me, lane):
                pass
            waiting.popleft()
            if lane.done > done:
                waiting.extend(lane.followers)
        self._send(me)

    def _half_step(self, me: int, lane: _Lane) -> bool:
        """Post what a lane's next step sends, or end the step; whether it could."""
        lanes = self.members[me].lanes
        if lane.done == len(lane.steps) or lane.is_put_off:
            return False
        step = lane.steps[lane.done]
        if lane.is_posted:
            if not lane.may_end(step):
                return False
            lane.end(step)
            self.end_ps = self.now_ps
        elif step.dep_lane != NONE and lanes[step.dep_lane].done <= step.dep_step:
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
        message = _Message(self._bytes(lane, step), lane, step.send_lane, self.link.mtu_bytes)
        pair = self.members[me].pairs.setdefault(step.send_peer, _QueuePair(step.send_peer))
        pair.messages.append(message)
        self._take_turns(me, pair)

    def _bytes(self, lane: _Lane, step: Step) -> int:
        return lane.buffer.wire_bytes(step.send_chunk, step.send_count, self.size_bytes)

    def _take_turns(self, me: int, pair: _QueuePair) -> None:
        """Put a queue pair behind those that may send, if it has something to send and room in its window."""
        if pair.messages and pair.unacknowledged < self.window and not pair.is_in_ring:
            pair.is_in_ring = True
            self.members[me].ring.append(pair)

    def _send(self, me: int) -> None:
        """If the member's port is free: an acknowledgement, else packets of the queue pair whose turn it is."""
        own = self.members[me]
        if own.is_sending:
            return
        if own.acks:
            peer, packets = own.acks.popleft()
            duration_ps = packets * self.link.ack_ps
            self._begin(me, peer, duration_ps, self.link.ack_ps, self._acknowledged, peer, me, packets)
            self._at(self.now_ps + duration_ps, self._has_sent, me, None)
        elif own.ring:
            self._send_data(me, own.ring.popleft())

    def _send_data(self, me: int, pair: _QueuePair) -> None:
        message = pair.messages[0]
        packets = min(message.packets, self.group, self.window - pair.unacknowledged)
        message.packets -= packets
        is_last = message.packets == 0
        last_ps = self.link.empty_ps + message.last_bytes * self.link.ps_per_byte if is_last else self.full_ps
        duration_ps = (packets - 1) * self.full_ps + last_ps
        pair.unacknowledged += packets
        if is_last:
            pair.messages.popleft()
        pair.is_in_ring = False
        self._take_turns(me, pair)
        first_ps = self.full_ps if packets > 1 else last_ps
        to_lane = message.to_lane if is_last else NONE
        self._begin(me, pair.peer, duration_ps, first_ps, self._comes, me, pair.peer, packets, to_lane)
        self._at(self.now_ps + duration_ps, self._has_sent, me, message.from_lane if is_last else None)

    def _begin(
        self, me: int, peer: int, duration_ps: float, first_ps: float, happens: Callable[..., None], *arguments: object
    ) -> None:
        """Keep the port busy; the first packet's head comes to the switch's port towards the peer."""
        self.members[me].is_sending = True
        head_ps = self.now_ps + first_ps * self.link.repeats + self.link.fixed_ps
        self._at(head_ps, self._forward, peer, duration_ps, happens, *arguments)

    def _forward(self, peer: int, duration_ps: float, happens: Callable[..., None], *arguments: object) -> None:
        member = self.members[peer]
        member.port_free_ps = max(self.now_ps, member.port_free_ps) + duration_ps
        self._at(member.port_free_ps, happens, *arguments)

    def _has_sent(self, me: int, lane: _Lane | None) -> None:
        """The port is free; lane: of the message whose last byte has left, if any."""
        self.members[me].is_sending = False
        if lane is None:
            self._send(me)
        else:
            lane.left += 1
            self._advance(me, [lane])

    def _comes(self, peer: int, me: int, packets: int, to_lane: int) -> None:
        """Data of a peer; to_lane: that gets the message, if this is its last packet."""
        self.members[me].acks.append((peer, packets))
        if to_lane == NONE:
            self._send(me)
        else:
            lane = self.members[me].lanes[to_lane]
            lane.came += 1
            self._advance(me, [lane])

    def _acknowledged(self, me: int, peer: int, packets: int) -> None:
        pair = self.members[me].pairs[peer]
        pair.unacknowledged -= packets
        self._take_turns(me, pair)
        self._send(me)
