"""How a collective algorithm says what its members do: lanes of steps.

A member runs its lanes side by side, and the steps of a lane one after another. A step waits for its dependency, posts
its send (which never blocks), then waits for its receive.

    ring = Lane()
    for k in range(n - 1):
        ring.step(send_to=1, send=-k % n, receive_from=n - 1, receive=(-k - 1) % n)
    everyone_alike(n, chunks=n, lanes=[ring])

A lane may see the group in another order or in lines (`LineView`), and work on a part of the buffer only, cut into
chunks of its own. Chunk numbers count region by region: region * chunks + place. Region 0 is the buffer (the input of
all-to-all, whose output is region 1), the others are scratch.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workload.errors import WorkloadError

Int32 = NDArray[np.int32]

NONE = -1
AT_ONCE = (NONE, NONE)
"""Of `Lane.step`, after: the step waits for no other."""
MAX_CONNECTIONS = 64
"""Of a member to one peer; what the engine's keys have room for."""
MAX_SHARES = 1 << 16
"""Into how many a port's line rate may be cut."""
SHARE_STEP = 1 / 1024
"""To which shares are rounded."""
MOST_STEPS = 6_000_000
"""Of all members and aggregators of algorithms whose every step is said in Python: half a minute and some 1 GB."""


class Step(NamedTuple):
    """One step; the fields are the columns of `workload.collectives.schedules.packed.Schedules`, -1 = none.

    A step without peers but with chunks copies them from send_chunk to recv_chunk of the same member, in no time.
    """

    dep_lane: int
    dep_step: int
    send_peer: int
    send_lane: int
    send_chunk: int
    send_count: int
    recv_peer: int
    recv_chunk: int
    recv_count: int
    reduce: bool


class Attributes(NamedTuple):
    """What holds for all steps of a lane.

    The whole buffer S is cut into P = parts * (parts of the view) equal parts; the lane of a member works on number
    part * (parts of the view) + (the member's part in the view), which is cut into chunks.

    Attributes:
        view: row of Plans.views by which peers and chunks are counted, -1 = the group itself.
        part: which of `parts` equal parts of the buffer.
        parts: see part.
        chunks: into how many the lane's part is cut; None = Plans.chunks.
        latency_ps: from when a step is ready until its send is posted.
        wire: (numerator, denominator), bytes of payload per byte of data; rounded up for each message.
        phase: lanes of a member with the same number are one phase; -1 = none.
        gate: dimension of the system layer of which the phase needs a token; -1 = none.
        arrangement: row of Plans.arrangements, the order in which it sees the pieces of regions; -1 = as they are.
        blocking: a step ends no sooner than the last byte of what it sends has left, so sends follow each other.
        connection: over which of its MAX_CONNECTIONS connections to a peer it sends. Messages of one go in order; those
            of another go by turns with them, and by a way of their own where there are several.
        shares: the connection is driven at one of so many equal shares of its port's line rate, 1 = at line rate; they
            need not be a whole number. A message has left no sooner than its bytes take at that. All lanes of a
            connection have the same.
        begins: the lane begins a collective of its own within this one: the delay of endpoints passes before its first
            send. If the first lane of a plan does, none passes before the whole.
    """

    view: int = NONE
    part: int = 0
    parts: int = 1
    chunks: int | None = None
    latency_ps: int = 0
    wire: tuple[int, int] = (1, 1)
    phase: int = NONE
    gate: int = NONE
    arrangement: int = NONE
    blocking: bool = False
    connection: int = 0
    shares: float = 1
    begins: bool = False


PLAIN = Attributes()

_WORDS = len(Step._fields)
_SEND_PEER = Step._fields.index("send_peer")


class LaneSteps(Sequence[Step]):
    """Steps of a lane that stand in an array of those of many: 40 bytes each, where tuples take some 200.

    Args:
        array: int32, the fields of steps one after another.
        begin, end: its first step, and the one behind its last.
    """

    __slots__ = ("array", "begin", "end")

    def __init__(self, array: "array[int]", begin: int, end: int) -> None:
        self.array, self.begin, self.end = array, begin, end

    def words(self) -> memoryview:
        """int32[steps * 10]: the fields, step by step."""
        return memoryview(self.array)[_WORDS * self.begin : _WORDS * self.end]

    def follows(self, other: "LaneSteps") -> bool:
        """Whether these stand right behind another lane's, in one array."""
        return self.array is other.array and self.begin == other.end

    def through(self, last: "LaneSteps") -> memoryview:
        """int32[steps * 10]: the fields of these, of those of `last` and of all between the two."""
        return memoryview(self.array)[_WORDS * self.begin : _WORDS * last.end]

    def sends(self) -> bool:
        """Whether one of them sends."""
        return any(peer >= 0 for peer in self.words()[_SEND_PEER::_WORDS])

    def __len__(self) -> int:
        return self.end - self.begin

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, at: int | slice) -> Step | tuple[Step, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        first = _WORDS * range(self.begin, self.end)[at]
        *numbers, reduce = self.array[first : first + _WORDS]
        return Step._make((*numbers, bool(reduce)))

    def __iter__(self) -> Iterator[Step]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return self.words() == other.words() if isinstance(other, LaneSteps) else tuple(self) == other

    def __hash__(self) -> int:
        return hash(self.words().tobytes())


Plan = tuple[Sequence[Step], ...]
"""What one member does: the steps of its lanes."""


class Lane:
    """A lane under construction; the arguments are those of Attributes."""

    def __init__(
        self,
        view: int = NONE,
        part: int = 0,
        parts: int = 1,
        chunks: int | None = None,
        latency_ps: int = 0,
        wire: tuple[int, int] = (1, 1),
        phase: int = NONE,
        gate: int = NONE,
        arrangement: int = NONE,
        blocking: bool = False,
        connection: int = 0,
        shares: float = 1,
    ) -> None:
        self.attributes = Attributes(
            view, part, parts, chunks, latency_ps, wire, phase, gate, arrangement, blocking, connection, shares
        )
        self.words: array[int] = array("i")

    @property
    def steps(self) -> LaneSteps:
        """Those added so far."""
        return LaneSteps(self.words, 0, len(self.words) // _WORDS)

    def add(self, step: Step) -> None:
        """Add a step as it is."""
        self.words.extend(step)

    def begin_after(self, lane: int, step: int) -> None:
        """Have the first step wait for one of another lane of the same member."""
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
            send_to: member to send to; where everyone is alike, how far on in the group it is (1 .. n-1), or in the
                member's line of the lane's view (1 .. size-1). -1 = no send.
            to_lane: lane of the receiver that takes the message.
            send: first chunk to send; where everyone is alike, counted from the member's own.
            send_count: how many chunks in a row.
            receive_from: member to receive from, as send_to.
            receive: first chunk that is received, as send.
            receive_count: how many chunks in a row.
            reduce: what is received is added to the chunk, else it replaces it.
            after: (lane, step) of the same member that must be done before the step starts.
        """
        sends, receives = send_to != NONE, receive_from != NONE
        self.words.extend(
            (
                *after,
                send_to,
                to_lane if sends else NONE,
                send if sends else NONE,
                send_count if sends else NONE,
                receive_from,
                receive if receives else NONE,
                receive_count if receives else NONE,
                reduce,
            )
        )
        return self

    def copy(
        self,
        chunk: int,
        *,
        to: int,
        count: int = 1,
        reduce: bool = False,
        after: tuple[int, int] = AT_ONCE,
    ) -> "Lane":
        """Add a step that moves chunks within the member, in no time, and return the lane.

        Args:
            chunk: first chunk to read, counted as in `step`.
            to: first chunk to write.
            count: how many chunks in a row.
            reduce: they are added to what is there, else they replace it.
            after: as in `step`.
        """
        self.words.extend((*after, NONE, NONE, chunk, count, NONE, to, count, reduce))
        return self


class LineView(NamedTuple):
    """The n members in lines of equal length, and which part of a lane's buffer each works on. `lines` makes one.

    Attributes:
        size: members of a line.
        member: int32[n], the lines one after another.
        at: int32[n], where in `member` each member stands: its place in its line is at % size.
        part: int32[n], of each member.
        parts: into how many equal parts a lane's buffer is cut.
    """

    size: int
    member: Int32
    at: Int32
    part: Int32
    parts: int


def lines(lines_of_members: ArrayLike, part: ArrayLike | None = None, parts: int = 1) -> LineView:
    """A view of all members in lines.

    Args:
        lines_of_members: int[lines, size], each member 0 .. n-1 once. One line of n is a ring in another order.
        part: int[n], the part of each member by its number; None = 0 for all.
        parts: how many there are.

    Raises:
        WorkloadError: lines of unlike lengths, a member missing or twice, or a part that is not there.
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
    at[member] = np.arange(n, dtype=np.int32)
    own = np.zeros(n, np.int32) if part is None else np.asarray(part, np.int32)
    if own.shape != (n,) or parts < 1 or own.min() < 0 or own.max() >= parts:
        raise WorkloadError(f"view: parts of {len(own)} members, expected one of 0 .. {parts - 1} for each of {n}")
    return LineView(table.shape[1], member, at, own, parts)


class Plans(NamedTuple):
    """An algorithm for one kind and number of members.

    Attributes:
        members: n.
        chunks: into how many the buffer is cut, or a lane's part of it, unless the lane says another number.
        relative: one plan for all members, peers and chunks counted from the member; else one plan each, absolute.
        plans: 1 plan if relative, else n.
        attributes: of the lanes of each plan; () = all are PLAIN.
        views: orders of the members, which lanes of a relative plan name by their row.
        regions: how many buffers chunk numbers run over, one after another; all-to-all has two or more.
        launch_ps: from when the collective is ready until its first step.
        arrangements: orders of the pieces of a region, int32[pieces] each: where a lane sees piece i, piece
            arrangement[i] of the buffer lies. Members pack what they send and unpack what they receive, in no time.
        aggregators: so many of the members, the last, are in switches: they begin with nothing, and nothing is promised
            to them.
        uneven: messages have the bytes of a matrix, see workload.collectives.uneven; no closed form of an algorithm is
            theirs.
    """

    members: int
    chunks: int
    relative: bool
    plans: tuple[Plan, ...]
    attributes: tuple[tuple[Attributes, ...], ...] = ()
    views: tuple[LineView, ...] = ()
    regions: int = 1
    launch_ps: int = 0
    arrangements: tuple[Int32, ...] = ()
    aggregators: int = 0
    uneven: bool = False

    def attributes_of(self, plan: int) -> tuple[Attributes, ...]:
        """Those of the lanes of a plan, by its row."""
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
    """All members do the same: peer p means member (me + p) mod n, chunk c means (me chunks/n + c) mod chunks.

    In a lane with a view, `me` and n are the place in the line and its size; chunks turn within their region.
    """
    made = _plans(chunks, [lanes], regions=regions, launch_ps=launch_ps)
    return made._replace(members=members, relative=True, views=tuple(views), arrangements=tuple(arrangements))


def each_its_own(
    chunks: int,
    lanes_of_members: Iterable[Sequence[Lane]],
    *,
    regions: int = 1,
    launch_ps: int = 0,
    arrangements: Sequence[Int32] = (),
    aggregators: int = 0,
) -> Plans:
    """Every member has lanes of its own, with peers and chunks as they are; the last members may be aggregators."""
    made = _plans(chunks, lanes_of_members, regions=regions, launch_ps=launch_ps)
    return made._replace(arrangements=tuple(arrangements), aggregators=aggregators)


def _plans(chunks: int, lanes_of_plans: Iterable[Sequence[Lane]], *, regions: int, launch_ps: int) -> Plans:
    """One plan for each member; the steps of all stand in one array, equal attributes once."""
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
