"""The oracle: checks what a schedule does by running it with symbols in place of data.

The buffer is cut so finely that chunks of all lanes are whole numbers of atoms. An atom holds a multiset of
contributions (member, atom): each member's own data at the start, sums after reductions. Regions above 0 are empty at
the start, and so are aggregators, whose data at the end is not checked.

Members and messages proceed in random order; messages between the same two members and lane stay in order, as on one
queue pair. At the end every member must have exactly what the kind of collective promises. This is plain Python for
checks of algorithms: n members and k messages take time proportional to n k.
"""

import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from nadi.workload.collectives.plans.plan import NONE, Step
from nadi.workload.collectives.schedules.packed import Schedules
from nadi.workload.collectives.schedules.sends import Buffer, buffers, unpack

_IN_PARTS = ("reduce-scatter", "scatter", "all-gather", "gather", "all-to-all")

# Number of times that an atom contains each contribution; dictionaries are replaced, never changed
Content = dict[tuple[int, int], int]
# Content of the atoms that hold data; atoms of region r come after r times the atoms of the buffer
Memory = dict[int, Content]


_Actor = tuple[int, int, int]  # a lane as (NONE, member, lane), or a wire with messages as (sender, receiver, lane)


class OracleError(AssertionError):
    """The schedule does not do what the collective promises."""


class PostedAtoms(NamedTuple):
    """Contents of atoms at the time when their send was posted."""

    sender: int  # member that sends
    contents: tuple[Content, ...]  # contents of each atom


def check(kind: str, schedules: Schedules, index: int, seed: int = 0) -> None:
    """Run a schedule as a collective of a kind, in random order, and check its result.

    Raises OracleError: a member ends with other data than promised, sends an empty chunk, leaves a message over or gets
    stuck, or the result of a lane with several senders depends on the order of their messages.

    Args:
        kind: The kind of collective, one of workload.KINDS.
        schedules: The schedules as arrays.
        index: The number of the schedule.
        seed: The seed of the random order of members and messages.
    """
    play(Game, kind, schedules, index, seed)


def play(game_of: Callable[..., "Game"], kind: str, schedules: Schedules, index: int, seed: int) -> None:
    """Run the steps of a schedule in random order, and check the result of the collective.

    Args:
        game_of: The class of the run, Game or a class below it, which defines the data at the start and at the end.
        kind: The kind of collective, one of workload.KINDS.
        schedules: The schedules as arrays.
        index: The number of the schedule.
        seed: The seed of the random order of members and messages.
    """
    lanes, of_lanes = unpack(schedules, index), buffers(schedules, index)
    pieces = {buffer.parts * buffer.chunks for own in of_lanes for buffer in own}
    pieces |= {len(buffer.arrangement) for own in of_lanes for buffer in own if buffer.arrangement is not None}
    chunks, regions = int(schedules.chunks[index]), int(schedules.regions[index])
    n = int(schedules.members[index] - schedules.aggregators[index])
    # Lanes in 4 chunks and lanes in 6 have 12 atoms in common; n parts must be whole numbers of atoms, too
    parts = n if game_of is Game and kind in _IN_PARTS and n > 1 else 1
    grid = _Grid(math.lcm(chunks, parts, *pieces), regions)
    for member, own in enumerate(lanes):
        for lane, steps in enumerate(own):
            _check_any_order(member, lane, steps, own)
    game = game_of(kind, n, lanes, of_lanes, grid, random.Random(seed))  # noqa: S311 - not for secrets
    game.play()
    game.check_end()


class _Grid(NamedTuple):
    """Number of atoms of the buffer, and number of buffers (regions) of a member."""

    atoms: int  # number of atoms of the buffer
    regions: int  # number of buffers of a member

    def span(self, buffer: Buffer, chunk: int, count: int) -> Sequence[int]:
        """Return the atoms of consecutive chunks in the lane's order; OracleError for chunks that are not there.

        Args:
            buffer: The part of the buffer on which the lane works.
            chunk: The number of the first chunk, region by region.
            count: The number of chunks.
        """
        region, place = divmod(chunk, buffer.chunks)
        if place + count > buffer.chunks or region >= self.regions:
            raise OracleError(f"chunks {chunk} .. {chunk + count - 1} of {self.regions} x {buffer.chunks}: not there")
        width = self.atoms // (buffer.parts * buffer.chunks)
        start, first = region * self.atoms, (buffer.part * buffer.chunks + place) * width
        seen = range(first, first + count * width)
        if buffer.arrangement is None:
            return range(start + seen.start, start + seen.stop)
        piece = self.atoms // len(buffer.arrangement)
        # An arrangement moves whole pieces; the atoms within a piece keep their order
        return [start + int(buffer.arrangement[atom // piece]) * piece + atom % piece for atom in seen]


def _check_any_order(member: int, lane: int, steps: list[Step], member_lanes: list[list[Step]]) -> None:
    """Check that a lane with several senders only receives, and that the member's other lanes only wait for its end."""
    label = f"member {member} lane {lane}"
    if len({s.recv_peer for s in steps} - {NONE}) <= 1:
        return
    if any(s.send_chunk != NONE for s in steps):
        raise OracleError(f"{label}: several senders, and sends between their messages")
    waited_for = {s.dep_step for other in member_lanes for s in other if s.dep_lane == lane}
    if waited_for - {len(steps) - 1}:
        raise OracleError(f"{label}: several senders, and someone waits for step {min(waited_for)}, not for the last")
    copies = [c for s in steps if not s.reduce for c in range(s.recv_chunk, s.recv_chunk + s.recv_count)]
    if len(set(copies)) < len(copies):
        raise OracleError(f"{label}: several senders, and two of them replace the same chunk")


class _Lane:
    """A running lane: number of steps done, whether the next send is posted, and messages that have arrived."""

    def __init__(self, steps: list[Step], buffer: Buffer) -> None:
        """Create a lane that has done none of its steps; buffer: part of the buffer on which it works."""
        self.steps = steps
        self.buffer = buffer
        self.done = 0
        self.posted = False
        self.inbox: deque[PostedAtoms] = deque()
        self.waiting = Counter(step.recv_peer for step in steps if step.recv_peer != NONE)
        self.from_several = len(self.waiting) > 1
        self.of_sender = {peer: deque(s for s in steps if s.recv_peer == peer) for peer in self.waiting}

    def finished(self) -> bool:
        return self.done == len(self.steps)


class Game:
    """A run of a schedule with symbols; the lanes and their buffers are by member."""

    def __init__(
        self,
        kind: str,
        members: int,
        lanes: list[list[list[Step]]],
        buffers_of_lanes: list[list[Buffer]],
        grid: _Grid,
        random_order: random.Random,
    ) -> None:
        """Create a game of a kind of collective among `members` members; lanes (of steps) and buffers are by member."""
        self.kind, self.n, self.grid, self.rng = kind, members, grid, random_order
        self.lanes = [
            [_Lane(*lane) for lane in zip(own, of_own, strict=True)]
            for own, of_own in zip(lanes, buffers_of_lanes, strict=True)
        ]
        self.memory: list[Memory] = [self.start(member) if member < members else {} for member in range(len(lanes))]
        self.wire: dict[_Actor, deque[PostedAtoms]] = defaultdict(deque)
        # for each lane of a member, the lanes that wait for one of its steps
        self.followers: list[list[set[int]]] = [[set() for _ in own] for own in lanes]
        for own, followers in zip(lanes, self.followers, strict=True):
            for lane, steps in enumerate(own):
                for step in steps:
                    if step.dep_lane != NONE:
                        followers[step.dep_lane].add(lane)

    def play(self) -> None:
        """Let lanes and wires act in random order, some lanes slowly, until nothing moves."""
        # An actor that cannot proceed is tried again after an event that it may wait for.
        ready = [(NONE, member, lane) for member, own in enumerate(self.lanes) for lane in range(len(own))]
        # Some actors that lag far behind find races that uniformly random orders hardly reach
        slow = {actor for actor in ready if self.rng.random() < 0.3}
        queued = set(ready)
        while ready:
            index = int(self.rng.random() * len(ready))
            actor = ready[index]
            if actor in slow and self.rng.random() >= 0.1:
                continue
            ready[index] = ready[-1]
            ready.pop()
            queued.remove(actor)
            for other in self._act(actor):
                if other not in queued:
                    ready.append(other)
                    queued.add(other)

    def check_end(self) -> None:
        """Refuse lanes that are stuck, messages that are left over, and wrong data at the end."""
        for member, own in enumerate(self.lanes):
            for i, lane in enumerate(own):
                if not lane.finished():
                    raise OracleError(f"member {member} lane {i}: stuck at step {lane.done} of {len(lane.steps)}")
                if lane.inbox:
                    raise OracleError(f"member {member} lane {i}: a message from {lane.inbox[0].sender} is left over")
        for member in range(self.n):
            for atom, promised in self.promised(member).items():
                content = self.memory[member].get(atom)
                is_barrier = self.kind == "barrier"  # which only needs contributions of all members, in any number
                if content is None or (content.keys() != promised.keys() if is_barrier else content != promised):
                    raise OracleError(f"member {member} chunk {atom}: {content}, promised {promised}")

    def _act(self, actor: _Actor) -> list[_Actor]:
        """Let a lane or a wire act; return the actors that may proceed after it, with itself; none if it could not."""
        sender, member, index = actor
        if sender == NONE:
            return self._advance(member, index)
        if index >= len(self.lanes[member]):
            raise OracleError(f"member {member} has no lane {index}, to which {sender} sends")
        messages = self.wire[actor]
        self.lanes[member][index].inbox.append(messages.popleft())
        return [(NONE, member, index), *([actor] if messages else [])]

    def _advance(self, member: int, lane_number: int) -> list[_Actor]:
        """Do the next half of a lane's step, if possible; return the actors that may proceed after it."""
        lane, itself = self.lanes[member][lane_number], (NONE, member, lane_number)
        if lane.finished():
            return []
        # A step has two halves: it posts its send once its dependency is done, and ends once its receive is there.
        # Between them other lanes may act, as on real NICs.
        step = lane.steps[lane.done]
        if not lane.posted:
            if step.dep_lane != NONE and self.lanes[member][step.dep_lane].done <= step.dep_step:
                return []
            lane.posted = True
            if step.send_peer == NONE:
                return [itself]
            wire = member, step.send_peer, step.send_lane
            self.wire[wire].append(PostedAtoms(member, self._read(member, lane.buffer, step, "sends")))
            return [itself, wire]
        if step.recv_peer != NONE:
            if not lane.inbox:
                return []
            sender, contents = lane.inbox.popleft()
            if not lane.of_sender.get(sender):
                raise OracleError(f"member {member}: a message from {sender}, which step {lane.done} does not expect")
            if lane.from_several:  # a message goes where the steps of its sender say
                step = lane.of_sender[sender].popleft()
            self._write(member, lane.buffer, step, contents)
        elif step.recv_chunk != NONE:
            self._write(member, lane.buffer, step, self._read(member, lane.buffer, step, "copies"))
        lane.done, lane.posted = lane.done + 1, False
        return [itself, *((NONE, member, other) for other in self.followers[member][lane_number])]

    def _read(self, member: int, buffer: Buffer, step: Step, verb: str) -> tuple[Content, ...]:
        """Return the contents of the chunks that a step sends or copies; verb: word for errors."""
        atoms = self.grid.span(buffer, step.send_chunk, step.send_count)
        empty = [atom for atom in atoms if atom not in self.memory[member]]
        if empty:
            raise OracleError(f"member {member} {verb} chunk {empty[0]}, which holds nothing yet")
        return tuple(self.memory[member][atom] for atom in atoms)

    def _write(self, member: int, buffer: Buffer, step: Step, contents: tuple[Content, ...]) -> None:
        """Write, or add, the contents of received or copied chunks to a member's memory."""
        atoms, memory = self.grid.span(buffer, step.recv_chunk, step.recv_count), self.memory[member]
        if len(contents) != len(atoms):
            raise OracleError(f"member {member}: {len(contents)} chunks came, expected {len(atoms)}")
        for atom, content in zip(atoms, contents, strict=True):
            if step.reduce and atom not in memory:
                raise OracleError(f"member {member} reduces into chunk {atom}, which holds nothing")
            if step.reduce:  # all contributions of both; dictionaries are never changed
                shared = memory[atom].keys() & content.keys()
                memory[atom] = {**memory[atom], **content, **{key: memory[atom][key] + content[key] for key in shared}}
            else:
                memory[atom] = content

    def _part(self, member: int) -> range:
        share = self.grid.atoms // self.n
        return range(member * share, (member + 1) * share)

    def _own_part(self, member: int, region: int = 0) -> Memory:
        shift = region * self.grid.atoms
        return {shift + atom: {(member, atom): 1} for atom in self._part(member)}

    def start(self, member: int) -> Memory:
        """Return the data that a member holds at the start.

        Args:
            member: The number of the member.
        """
        if self.kind in {"all-gather", "gather"}:
            return self._own_part(member)
        if self.kind in {"broadcast", "scatter"} and member != 0:
            return {}
        whole: Memory = {atom: {(member, atom): 1} for atom in range(self.grid.atoms)}
        return whole | self._own_part(member, region=1) if self.kind == "all-to-all" else whole

    @cached_property
    def _summed(self) -> Memory:
        """The sums of all members' data."""
        return {a: {(m, a): 1 for m in range(self.n)} for a in range(self.grid.atoms)}

    @cached_property
    def _gathered(self) -> Memory:
        """The part of each member's data that the member owns."""
        return {a: content for m in range(self.n) for a, content in self._own_part(m).items()}

    @cached_property
    def _of_root(self) -> Memory:
        """The data of member 0."""
        return {a: {(0, a): 1} for a in range(self.grid.atoms)}

    def promised(self, member: int) -> Memory:
        """Return the data that a member must hold at the end; atoms that are missing here may hold anything.

        Args:
            member: The number of the member.
        """
        own = self._part(member)
        makes: dict[str, Callable[[], Memory]] = {
            "all-reduce": lambda: self._summed,
            "barrier": lambda: self._summed,
            "reduce": lambda: {} if member else self._summed,
            "reduce-scatter": lambda: {a: self._summed[a] for a in own},
            "all-gather": lambda: self._gathered,
            "gather": lambda: {} if member else self._gathered,
            "broadcast": lambda: self._of_root,
            "scatter": lambda: {a: self._of_root[a] for a in own},
            "all-to-all": lambda: {
                self.grid.atoms + a: {(m, o): 1} for m in range(self.n) for a, o in zip(self._part(m), own, strict=True)
            },
        }
        return makes[self.kind]()
