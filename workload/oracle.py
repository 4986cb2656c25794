"""What a schedule really does, found by playing it with symbols in place of data.

A chunk holds a multiset of contributions (member, chunk): each member's own data at the start, sums after reductions.
Members and messages proceed in random order; messages between the same two members and lane stay in order, as on one
queue pair. At the end every member must have exactly what the kind of collective promises. Plain Python, for tests of
algorithms: n members and k messages take time n k.
"""

import random
from collections import Counter, defaultdict, deque
from itertools import pairwise
from typing import NamedTuple

from workload.plans import NONE, Step
from workload.schedules import Schedules

Content = Counter[tuple[int, int]]
Memory = dict[int, Content]
"""Chunks that hold something that means something."""


class OracleError(AssertionError):
    """The schedule does not do what the collective promises."""


class Message(NamedTuple):
    """Contents of some chunks, as they were when the send was posted."""

    sender: int
    contents: tuple[Content, ...]


def check(kind: str, schedules: Schedules, index: int, seed: int = 0) -> None:
    """Play schedule `index` as a collective of this kind, in an order that depends on the seed.

    Raises:
        OracleError: a member ends with something else than promised; a chunk is sent that holds nothing; a message is
            left over; nothing goes on; or a lane with several senders depends on which message comes first.
    """
    lanes = unpack(schedules, index)
    for member, own in enumerate(lanes):
        for lane, steps in enumerate(own):
            _check_any_order(member, lane, steps, own)
    game = _Game(kind, lanes, int(schedules.chunks[index]), random.Random(seed))  # noqa: S311 - not for secrets
    game.play()
    game.check_end()


def unpack(schedules: Schedules, index: int) -> list[list[list[Step]]]:
    """Steps of each lane of each member, with peers and chunks absolute."""
    n, chunks = int(schedules.members[index]), int(schedules.chunks[index])
    plans = schedules.plan_of[schedules.plan_of_ptr[index] : schedules.plan_of_ptr[index + 1]]
    if not schedules.relative[index]:
        return [_lanes(schedules, int(plan)) for plan in plans]
    lanes = _lanes(schedules, int(plans[0]))
    return [[[_absolute(step, me, n, chunks) for step in lane] for lane in lanes] for me in range(n)]


def _lanes(schedules: Schedules, plan: int) -> list[list[Step]]:
    columns = [getattr(schedules, name).tolist() for name in Step._fields]
    steps = [Step(*row) for row in zip(*columns, strict=True)]
    ptr = schedules.lane_ptr[schedules.plan_ptr[plan] : schedules.plan_ptr[plan + 1] + 1].tolist()
    return [steps[a:b] for a, b in pairwise(ptr)]


def _absolute(step: Step, me: int, n: int, chunks: int) -> Step:
    def peer(p: int) -> int:
        return NONE if p == NONE else (me + p) % n

    def chunk(c: int) -> int:
        return NONE if c == NONE else (me * (chunks // n) + c) % chunks

    return step._replace(
        send_peer=peer(step.send_peer),
        send_chunk=chunk(step.send_chunk),
        recv_peer=peer(step.recv_peer),
        recv_chunk=chunk(step.recv_chunk),
    )


def _check_any_order(member: int, lane: int, steps: list[Step], own: list[list[Step]]) -> None:
    """A lane that several peers send to may only receive, and others may only wait for its end."""
    where = f"member {member} lane {lane}"
    if len({s.recv_peer for s in steps} - {NONE}) <= 1:
        return
    if any(s.send_peer != NONE for s in steps):
        raise OracleError(f"{where}: several senders, and sends between their messages")
    waited_for = {s.dep_step for other in own for s in other if s.dep_lane == lane}
    if waited_for - {len(steps) - 1}:
        raise OracleError(f"{where}: several senders, and someone waits for step {min(waited_for)}, not for the last")
    copies = [c for s in steps if not s.reduce for c in range(s.recv_chunk, s.recv_chunk + s.recv_count)]
    if len(set(copies)) < len(copies):
        raise OracleError(f"{where}: several senders, and two of them replace the same chunk")


class _Lane:
    """A lane at work: done steps, whether the next one's send is posted, messages that have come in."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        self.done = 0
        self.posted = False
        self.inbox: deque[Message] = deque()
        self.waiting = Counter(step.recv_peer for step in steps if step.recv_peer != NONE)
        self.from_several = len(self.waiting) > 1
        self.of_sender = {peer: deque(s for s in steps if s.recv_peer == peer) for peer in self.waiting}

    def finished(self) -> bool:
        return self.done == len(self.steps)


class _Game:
    def __init__(self, kind: str, lanes: list[list[list[Step]]], chunks: int, rng: random.Random) -> None:
        self.kind, self.n, self.chunks, self.rng = kind, len(lanes), chunks, rng
        self.lanes = [[_Lane(steps) for steps in own] for own in lanes]
        self.memory = [self._start(member) for member in range(self.n)]
        # all-to-all reads one buffer and writes another; the others work in place
        self.output = [self._own_part(m) for m in range(self.n)] if kind == "all-to-all" else self.memory
        self.wire: dict[tuple[int, int, int], deque[Message]] = defaultdict(deque)

    def play(self) -> None:
        """Let lanes and wires act in random order, some of them slow, until nothing moves."""
        slow = {actor for actor in self._actors() if self.rng.random() < 0.3}
        while True:
            actors = self._actors()
            self.rng.shuffle(actors)
            quick = [a for a in actors if a not in slow or self.rng.random() < 0.1]
            moved = sum(map(self._act, quick)) or sum(map(self._act, actors))
            if not moved:
                return

    def check_end(self) -> None:
        for member, own in enumerate(self.lanes):
            for i, lane in enumerate(own):
                if not lane.finished():
                    raise OracleError(f"member {member} lane {i}: stuck at step {lane.done} of {len(lane.steps)}")
                if lane.inbox:
                    raise OracleError(f"member {member} lane {i}: a message from {lane.inbox[0].sender} is left over")
        for member in range(self.n):
            for chunk, promised in self._promised(member).items():
                found = self.output[member].get(chunk)
                if self._normal(found) != self._normal(promised):
                    raise OracleError(f"member {member} chunk {chunk}: {found}, promised {promised}")

    def _actors(self) -> list[tuple[int, int, int]]:
        """Lanes as (-1, member, lane), wires that carry something as (sender, receiver, lane)."""
        lanes = [(NONE, member, lane) for member in range(self.n) for lane in range(len(self.lanes[member]))]
        return lanes + [wire for wire, messages in self.wire.items() if messages]

    def _act(self, actor: tuple[int, int, int]) -> bool:
        sender, member, index = actor
        if sender == NONE:
            return self._advance(member, self.lanes[member][index])
        if not self.wire[actor]:
            return False
        if index >= len(self.lanes[member]):
            raise OracleError(f"member {member} has no lane {index}, to which {sender} sends")
        self.lanes[member][index].inbox.append(self.wire[actor].popleft())
        return True

    def _advance(self, member: int, lane: _Lane) -> bool:
        """Do the next half of a step, if it can be done."""
        if lane.finished():
            return False
        step = lane.steps[lane.done]
        if not lane.posted:
            if step.dep_lane != NONE and self.lanes[member][step.dep_lane].done <= step.dep_step:
                return False
            lane.posted = True
            if step.send_peer != NONE:
                self._post(member, step)
            return True
        if step.recv_peer != NONE:
            if not lane.inbox:
                return False
            self._receive(member, lane, step, lane.inbox.popleft())
        lane.done, lane.posted = lane.done + 1, False
        return True

    def _post(self, member: int, step: Step) -> None:
        chunks = range(step.send_chunk, step.send_chunk + step.send_count)
        empty = [c for c in chunks if c not in self.memory[member]]
        if empty:
            raise OracleError(f"member {member} sends chunk {empty[0]}, which holds nothing yet")
        contents = tuple(self.memory[member][c].copy() for c in chunks)
        self.wire[member, step.send_peer, step.send_lane].append(Message(member, contents))

    def _receive(self, member: int, lane: _Lane, step: Step, message: Message) -> None:
        if not lane.of_sender.get(message.sender):
            raise OracleError(
                f"member {member}: a message from {message.sender}, which step {lane.done} does not expect"
            )
        if lane.from_several:  # a message goes where the steps of its sender say
            step = lane.of_sender[message.sender].popleft()
        if len(message.contents) != step.recv_count:
            raise OracleError(f"member {member}: {len(message.contents)} chunks came, expected {step.recv_count}")
        memory = self.output[member]
        for chunk, content in enumerate(message.contents, start=step.recv_chunk):
            if step.reduce and chunk not in memory:
                raise OracleError(f"member {member} reduces into chunk {chunk}, which holds nothing")
            memory[chunk] = memory[chunk] + content if step.reduce else content

    def _normal(self, content: Content | None) -> object:
        """A barrier only asks who has been heard of, not how often."""
        return content if content is None or self.kind != "barrier" else set(content)

    def _part(self, member: int) -> range:
        share = self.chunks // self.n
        return range(member * share, (member + 1) * share)

    def _own_part(self, member: int) -> Memory:
        return {c: Counter([(member, c)]) for c in self._part(member)}

    def _start(self, member: int) -> Memory:
        """What a member holds at the start."""
        if self.kind in {"all-gather", "gather"}:
            return self._own_part(member)
        if self.kind in {"broadcast", "scatter"} and member != 0:
            return {}
        return {c: Counter([(member, c)]) for c in range(self.chunks)}

    def _promised(self, member: int) -> Memory:
        """What a member must hold at the end; what is not named here may be anything."""
        members, own = range(self.n), self._part(member)
        summed = {c: Counter([(m, c) for m in members]) for c in range(self.chunks)}
        gathered = {c: content for m in members for c, content in self._own_part(m).items()}
        of_root = {c: Counter([(0, c)]) for c in range(self.chunks)}
        nothing: Memory = {}
        return {
            "all-reduce": summed,
            "barrier": summed,
            "reduce": nothing if member else summed,
            "reduce-scatter": {c: summed[c] for c in own},
            "all-gather": gathered,
            "gather": nothing if member else gathered,
            "broadcast": of_root,
            "scatter": {c: of_root[c] for c in own},
            "all-to-all": {c: Counter([(m, o)]) for m in members for c, o in zip(self._part(m), own, strict=True)},
        }[self.kind]
