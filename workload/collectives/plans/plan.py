"""The plan of a collective algorithm: for each member, lanes of steps.

A member runs its lanes side by side, and the steps of a lane one after another. A step waits for its dependency, posts
its send (which never blocks), then waits for its receive.

    ring = Lane()
    for k in range(n - 1):
        ring.step(send_to=1, send=-k % n, receive_from=n - 1, receive=(-k - 1) % n)
    everyone_alike(n, chunks=n, lanes=[ring])

A lane may number the members in another order or in lines (`LineView`), and may work on a part of the buffer that is
cut into its own number of chunks. Chunk numbers run region by region: region * chunks + index in the region. Region 0
is the buffer (the input of all-to-all, whose output is region 1); the others are scratch space.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from nadi.inputs.arrays import Int32
from nadi.workload.errors import WorkloadError

NONE = -1
AT_ONCE = (NONE, NONE)  # value of `after` in `Lane.step`: the step waits for no other step
MAX_CONNECTIONS = 64  # maximum number of connections from a member to one peer; the engine's keys have room for no more
MAX_SHARES = 1 << 16  # maximum divisor of a port's line rate (Attributes.shares)
SHARE_STEP = 1 / 1024  # resolution to which shares are rounded
# Maximum number of steps of all members and aggregators, for algorithms that build each step in Python: at this number
# they take half a minute and about 1 GB
MAX_STEPS = 6_000_000


class Step(NamedTuple):
    """One step; the fields are the columns of `workload.collectives.schedules.packed.Schedules`, -1 = none.

    A step without peers but with chunks copies them from send_chunk to recv_chunk of the same member, in no time.
    """

    dep_lane: int  # lane of the same member that must have done more than dep_step steps
    dep_step: int  # see dep_lane
    send_peer: int  # member to which the step sends
    send_lane: int  # lane of the receiver that takes the message
    send_chunk: int  # first chunk to send
    send_count: int  # number of chunks to send
    # member from which the step receives. A lane with several senders takes messages in order of arrival; those of a
    # sender go to the chunks of the steps that name it.
    recv_peer: int
    recv_chunk: int  # first chunk to receive
    recv_count: int  # number of chunks to receive
    reduce: bool  # whether received data is added to the chunk instead of replacing it

    def moved(self, first_lane: int) -> "Step":
        """Return the step with its lanes, its own member's and the receiver's, counted from another first lane.

        Args:
            first_lane: The number of the lane that was lane 0.
        """
        dep_lane, send_lane = (NONE if lane == NONE else lane + first_lane for lane in (self.dep_lane, self.send_lane))
        return self._replace(dep_lane=dep_lane, send_lane=send_lane)

    def waiting(self, after: tuple[int, int]) -> "Step":
        """Return the step with a dependency.

        Args:
            after: The (lane, step) of the same member that must be done before the step starts.
        """
        return self._replace(dep_lane=after[0], dep_step=after[1])


IDLE = Step(*(NONE,) * 9, reduce=False)  # a step that does nothing


class Attributes(NamedTuple):
    """Properties of all steps of a lane.

    The whole buffer S is cut into P = parts * (parts of the view) equal parts. A member's lane works on part number
    part * (parts of the view) + (the member's part in the view), which is cut into chunks.
    """

    view: int = NONE  # row of Plans.views that numbers peers and chunks, -1 = the group itself
    part: int = 0  # number of the lane's part of the buffer, below `parts`
    parts: int = 1  # number of equal parts of the buffer
    chunks: int | None = None  # number of chunks of the lane's part; None = Plans.chunks
    latency_ps: int = 0  # time from when a step is ready until its send is posted
    # (numerator, denominator) of payload bytes per byte of data; each message is rounded up
    wire: tuple[int, int] = (1, 1)
    phase: int = NONE  # number of the phase, which all lanes of a member with the same number form; -1 = none
    gate: int = NONE  # dimension of the system layer whose token the phase needs; -1 = none
    arrangement: int = NONE  # row of Plans.arrangements, the lane's order of the pieces of a region; -1 = buffer order
    # whether a step ends only when the last byte of its send has left, so that sends follow each other
    blocking: bool = False
    # number of the connection to a peer, below MAX_CONNECTIONS. Messages of one connection stay in order; different
    # connections take turns, and may take different paths.
    connection: int = 0
    # divisor of the port's line rate that limits the connection, 1 = line rate; need not be an integer. A message has
    # left when its bytes have passed at that rate. All lanes of a connection have the same value.
    shares: float = 1
    # whether the lane begins a collective of its own within this one: the endpoint delay passes before its first send.
    # If this holds for the first lane of a plan, no such delay passes before the whole.
    begins: bool = False


PLAIN = Attributes()

_WORDS = len(Step._fields)
_SEND_PEER, _RECV_PEER = Step._fields.index("send_peer"), Step._fields.index("recv_peer")


class LaneSteps(Sequence[Step]):
    """Steps `begin` to before `end` in an int32 array of many lanes: 40 bytes per step, where tuples take 200."""

    __slots__ = ("array", "begin", "end")

    def __init__(self, array: "array[int]", begin: int, end: int) -> None:
        self.array, self.begin, self.end = array, begin, end

    def words(self) -> memoryview:
        """Return int32[steps * 10]: the fields, step by step."""
        return memoryview(self.array)[_WORDS * self.begin : _WORDS * self.end]

    def follows(self, other: "LaneSteps") -> bool:
        """Return whether these steps come directly after another lane's in the same array.

        Args:
            other: The steps of another lane.
        """
        return self.array is other.array and self.begin == other.end

    def through(self, last: "LaneSteps") -> memoryview:
        """Return int32[steps * 10]: the fields from the first of these steps to the last step of another lane.

        Args:
            last: The steps of the other lane, which is in the same array and not before this one.
        """
        return memoryview(self.array)[_WORDS * self.begin : _WORDS * last.end]

    def sends(self) -> bool:
        """Return whether any step sends."""
        return bool((np.asarray(self.words()[_SEND_PEER::_WORDS]) >= 0).any())

    def __len__(self) -> int:
        return self.end - self.begin

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, index: int | slice) -> Step | tuple[Step, ...]:
        """Return the step with an index within the lane, or a tuple of the steps of a slice."""
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        first = _WORDS * range(self.begin, self.end)[index]
        *numbers, reduce = self.array[first : first + _WORDS]
        return Step._make((*numbers, bool(reduce)))

    def __iter__(self) -> Iterator[Step]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return self.words() == other.words() if isinstance(other, LaneSteps) else tuple(self) == other

    def __hash__(self) -> int:
        return hash(self.words().tobytes())


def step_table(lanes: Sequence[Sequence[Step]]) -> Int32:
    """Return int32[steps, 10]: the steps of all lanes, without a copy if they are consecutive in one array.

    Args:
        lanes: The steps of each lane.
    """
    if lanes and all(isinstance(lane, LaneSteps) for lane in lanes):
        own = cast("Sequence[LaneSteps]", lanes)
        # Lanes that follow each other in one array are a view of it: large plans are never copied
        if all(lane.follows(before) for before, lane in pairwise(own)):
            return np.frombuffer(own[0].through(own[-1]), np.int32).reshape(-1, len(Step._fields))
    table = np.empty((sum(map(len, lanes)), len(Step._fields)), np.int32)
    flat, at = table.reshape(-1), 0
    for lane in lanes:
        words = lane.words() if isinstance(lane, LaneSteps) else np.fromiter(chain.from_iterable(lane), np.int32).data
        flat[at : at + len(words)] = words
        at += len(words)
    return table


Plan = tuple[Sequence[Step], ...]  # the plan of one member: the steps of its lanes


class Lane:
    """A lane under construction; the arguments are those of Attributes."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - the fields of Attributes
        self.attributes = Attributes(**attributes)
        self.words: array[int] = array("i")

    @property
    def steps(self) -> LaneSteps:
        """The steps added so far."""
        return LaneSteps(self.words, 0, len(self.words) // _WORDS)

    def add(self, step: Step) -> None:
        """Add a finished step.

        Args:
            step: The step to add behind the others.
        """
        self.words.extend(step)

    def begin_after(self, lane: int, step: int) -> None:
        """Make the first step wait for a step of another lane of the same member.

        Args:
            lane: The number of the other lane in the member's plan.
            step: The index of the step in that lane.
        """
        # dep_lane and dep_step are the first two fields of a step
        self.words[:2] = array("i", (lane, step))

    def step(
        self,
        *,
        send_to: int = NONE,
        to_lane: int = 0,
        send: int = 0,
        send_count: int = 1,
        receive_from: int = NONE,
        receive: int = 0,
        receive_count: int = 1,
        reduce: bool = False,
        after: tuple[int, int] = AT_ONCE,
    ) -> "Lane":
        """Add a step and return the lane.

        Args:
            send_to: Receiving member. In relative plans its distance in the group (1 .. n-1) or in the line of the
                lane's view (1 .. size-1). -1 = no send.
            to_lane: Lane of the receiver that takes the message.
            send: First chunk to send; in relative plans counted from the member's own chunk.
            send_count: Number of consecutive chunks to send.
            receive_from: Sending member, counted as send_to; -1 = no receive.
            receive: First chunk to receive, counted as send.
            receive_count: Number of consecutive chunks to receive.
            reduce: Whether received data is added to the chunk instead of replacing it.
            after: (lane, step) of the same member that must be done before the step starts.
        """
        sent = (to_lane, send, send_count) if send_to != NONE else (NONE, NONE, NONE)
        received = (receive, receive_count) if receive_from != NONE else (NONE, NONE)
        self.words.extend((*after, send_to, *sent, receive_from, *received, reduce))
        return self

    def several(
        self,
        steps: int,
        *,
        send_to: ArrayLike = NONE,
        to_lane: int = 0,
        send: ArrayLike = 0,
        receive_from: ArrayLike = NONE,
        receive: ArrayLike = 0,
        reduce: ArrayLike = False,
        after: tuple[ArrayLike, ArrayLike] = AT_ONCE,
    ) -> "Lane":
        """Add steps of one chunk each, and return the lane; an argument is one value for all, or int[steps].

        Args:
            steps: The number of steps.
            send_to: The receiving member, counted as in `step`; -1 = no send.
            to_lane: The lane of the receiver that takes the message.
            send: The chunk to send; in relative plans counted from the member's own chunk.
            receive_from: The sending member, counted as in `step`; -1 = no receive.
            receive: The chunk to receive, counted as send.
            reduce: Whether received data is added to the chunk instead of replacing it.
            after: The (lane, step) of the same member that must be done before the step starts.
        """
        table = np.full((steps, _WORDS), NONE, np.int32)
        table[:, 0], table[:, 1] = after
        sent, received = (_SEND_PEER, send_to, (to_lane, send, 1)), (_RECV_PEER, receive_from, (receive, 1))
        # The fields behind a peer (its lane, chunk, count) stay -1 in steps without this peer
        for column, peer, values in (sent, received):
            if peer is not NONE:
                table[:, column] = peer
                for place, value in enumerate(values, column + 1):
                    table[:, place] = np.where(table[:, column] == NONE, NONE, value)
        table[:, -1] = reduce
        self.words.frombytes(table.tobytes())
        return self

    def copy(
        self, chunk: int, *, to: int, count: int = 1, reduce: bool = False, after: tuple[int, int] = AT_ONCE
    ) -> "Lane":
        """Add a step that copies chunks within the member, in no time, and return the lane.

        Args:
            chunk: The first chunk to read, counted as in `step`.
            to: The first chunk to write.
            count: The number of consecutive chunks.
            reduce: Whether the chunks are added to the target chunks instead of replacing them.
            after: The (lane, step) of the same member that must be done before the step starts.
        """
        self.words.extend((*after, NONE, NONE, chunk, count, NONE, to, count, reduce))
        return self


class LineView(NamedTuple):
    """The n members in lines of equal length, and the part of a lane's buffer that each member works on."""

    size: int  # number of members of a line
    member: Int32  # int32[n], members, line by line
    at: Int32  # int32[n], index of each member in `member`; its place in its line is at % size
    part: Int32  # int32[n], part of each member
    parts: int  # number of equal parts of a lane's buffer


def lines(lines_of_members: ArrayLike, part: ArrayLike | None = None, parts: int = 1) -> LineView:
    """Return a view of all members in lines; one line is a ring in another order.

    Raises WorkloadError: lines of unequal lengths, a member that is missing or repeated, or a part out of range.

    Args:
        lines_of_members: The numbers of the members, int[lines, size], each member once.
        part: The part of the buffer that each member works on, int[n], below `parts`; None = part 0 for all members.
        parts: The number of equal parts of a lane's buffer.
    """
    try:
        table = np.asarray(lines_of_members, np.int32)
    except ValueError:
        raise WorkloadError("view: lines of unlike lengths, expected equal ones") from None
    if table.ndim != 2 or table.size == 0:
        raise WorkloadError(f"view: members in {table.ndim} dimensions, expected a list of lines of members")
    n = table.size
    member = table.reshape(-1)
    if not np.array_equal(np.sort(member), np.arange(n)):
        raise WorkloadError(f"view: {n} members in lines, expected each of 0 .. {n - 1} once")
    at = np.empty(n, np.int32)
    # The inverse of `member`: where each member is in the list of lines
    at[member] = np.arange(n, dtype=np.int32)
    own = np.zeros(n, np.int32) if part is None else np.asarray(part, np.int32)
    if own.shape != (n,) or parts < 1 or own.min() < 0 or own.max() >= parts:
        raise WorkloadError(f"view: parts of {len(own)} members, expected one of 0 .. {parts - 1} for each of {n}")
    return LineView(table.shape[1], member, at, own, parts)


class Plans(NamedTuple):
    """An algorithm's plans for one kind and number of members."""

    members: int  # number of members n
    chunks: int  # number of chunks of the buffer, or of a lane's part unless its attributes give another number
    # whether all members share one plan with peers and chunks counted from the member; else each member has a plan with
    # absolute numbers
    relative: bool
    plans: tuple[Plan, ...]  # one plan if relative, else n plans
    attributes: tuple[tuple[Attributes, ...], ...] = ()  # attributes of the lanes of each plan; () = PLAIN for all
    views: tuple[LineView, ...] = ()  # orders of the members, which lanes of a relative plan refer to by row
    regions: int = 1  # number of buffers that chunk numbers run over; all-to-all has two or more
    launch_ps: int = 0  # time from when the collective is ready until its first step
    # orders of the pieces of a region, int32[pieces] each: where a lane sees piece i, the buffer has piece
    # arrangement[i]. Members pack before sending and unpack after receiving, in no time.
    arrangements: tuple[Int32, ...] = ()
    # number of members, the last ones, that are in switches: they begin with no data and end with none
    aggregators: int = 0
    # whether messages have the bytes of a matrix (workload.collectives.uneven), to which no algorithm's closed form
    # applies
    uneven: bool = False
    # protocol of the messages ("ll", "ll128" or "simple"), of which the lanes have the bytes; "" = any
    protocol: str = ""

    def attributes_of(self, plan: int) -> tuple[Attributes, ...]:
        """Return the attributes of the lanes of a plan.

        Args:
            plan: The row of the plan in `plans`.
        """
        return self.attributes[plan] if self.attributes else (PLAIN,) * len(self.plans[plan])


def everyone_alike(
    members: int,
    chunks: int,
    lanes: Sequence[Lane],
    *,
    views: Sequence[LineView] = (),
    regions: int = 1,
    launch_ps: int = 0,
    arrangements: Sequence[Int32] = (),
) -> Plans:
    """Return plans of identical members: peer p is member (me + p) mod n, chunk c is (me chunks/n + c) mod chunks.

    In a lane with a view, `me` and n are the place in the line and the line's size; chunks turn within their region.

    Args:
        members: The number of members, n.
        chunks: The number of chunks of the buffer.
        lanes: The lanes of every member.
        views: The orders of the members that lanes name by row.
        regions: The number of buffers of a member that chunk numbers run over.
        launch_ps: The time in picoseconds before the first step.
        arrangements: The orders of the pieces of a region that lanes name by row, int32[pieces] each.
    """
    plans = _plans(chunks, [lanes], regions=regions, launch_ps=launch_ps)
    return plans._replace(members=members, relative=True, views=tuple(views), arrangements=tuple(arrangements))


def each_its_own(
    chunks: int,
    lanes_of_members: Iterable[Sequence[Lane]],
    *,
    regions: int = 1,
    launch_ps: int = 0,
    arrangements: Sequence[Int32] = (),
    aggregators: int = 0,
) -> Plans:
    """Return plans of members with lanes of their own and absolute peers and chunks.

    Args:
        chunks: The number of chunks of the buffer.
        lanes_of_members: The lanes of each member; the last members may be aggregators.
        regions: The number of buffers of a member that chunk numbers run over.
        launch_ps: The time in picoseconds before the first step.
        arrangements: The orders of the pieces of a region that lanes name by row, int32[pieces] each.
        aggregators: The number of members, the last ones, that are aggregators in switches.
    """
    plans = _plans(chunks, lanes_of_members, regions=regions, launch_ps=launch_ps)
    return plans._replace(arrangements=tuple(arrangements), aggregators=aggregators)


def _plans(chunks: int, lanes_of_plans: Iterable[Sequence[Lane]], *, regions: int, launch_ps: int) -> Plans:
    """Return one plan per list of lanes; all steps share one array, and equal attributes are stored once."""
    words: array[int] = array("i")
    plans: list[Plan] = []
    attributes: list[tuple[Attributes, ...]] = []
    known: dict[Attributes, Attributes] = {}
    for lanes in lanes_of_plans:
        ends = [len(words) // _WORDS]
        for lane in lanes:
            words.extend(lane.words)
            ends.append(len(words) // _WORDS)
        plans.append(tuple(LaneSteps(words, *ends_of_lane) for ends_of_lane in pairwise(ends)))
        attributes.append(tuple(known.setdefault(lane.attributes, lane.attributes) for lane in lanes))
    own = () if known.keys() <= {PLAIN} else tuple(attributes)
    return Plans(len(plans), chunks, False, tuple(plans), own, (), regions, launch_ps)
