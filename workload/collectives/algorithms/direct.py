"""Direct: every member sends directly to every member that needs its data, all sends posted at once.

One lane sends, a second one receives in any order. The members start with different peers (the next, the next but one,
...), so that at each moment every member receives from one sender. All-reduce is a reduce-scatter and then an
all-gather. Broadcast, reduce, gather and scatter are stars around the root.

A `window` limits the number of a member's sends on their way: a send waits for a receive, the one from the distance at
which the send `window` before it went. A window of 1 is the pairwise exchange.
"""

from nadi.inputs.units import PS_PER_S
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Lane, Plans, each_its_own, everyone_alike
from nadi.workload.errors import WorkloadError

KINDS = ("all-to-all", "all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "gather", "scatter")
PARAMETERS = {"window": 0}
LIMITS = {"window": (0, 1 << 20)}

_STARS = ("broadcast", "reduce", "gather", "scatter")
_AT_ONCE = (-1, -1)


def plan(kind: str, members: int, window: int = 0) -> Plans:
    """Return each member's steps: a sending and a receiving lane, twice for all-reduce; with a window, a lane per peer.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        window: The maximum number of unanswered messages of a member; 0 = no limit, the only value for kinds with a
            root.
    """
    if kind in _STARS:
        if window:
            raise WorkloadError(f"algorithm 'direct:window={window}' for {kind}: expected 0, as no sender receives")
        return _rooted(members, in_parts=kind in {"scatter", "gather"}, outwards=kind in {"broadcast", "scatter"})
    regions = 2 if kind == "all-to-all" else 1
    lanes = _windowed(kind, members, window) if window else _lanes(kind, members)
    return everyone_alike(members, members, lanes, regions=regions)


def extent(kind: str, members: int, window: int = 0) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        window: The maximum number of unanswered messages of a member; 0 = no limit, the only value for kinds with a
            root.
    """
    peers = members - 1
    if kind in _STARS:
        return PlanExtent(2 * peers, members, members)
    halves = 2 if kind == "all-reduce" else 1
    if not window:
        return PlanExtent(2 * halves * peers, 2 * halves)
    return PlanExtent((3 if kind == "all-reduce" else 1) * peers, halves * peers + (kind == "all-reduce"))


def closed_form(
    kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float, window: int = 0
) -> float:
    """Return the time in ps of direct sends: a + (n-1) S/nB; twice for all-reduce; a + (n-1) S/B for broadcast, reduce.

    With a window w, message k = 0 .. n-2 leaves at the later of k S/nB and floor(k/w) (a + S/nB) + (k mod w) S/nB.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        size_bytes: The size of the whole buffer S in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
        window: The maximum number of unanswered messages of a member; 0 = no limit, the only value for kinds with a
            root.
    """
    message_ps = (size_bytes if kind in {"broadcast", "reduce"} else size_bytes / members) / bytes_per_s * PS_PER_S
    last = members - 2
    leaves_ps = last * message_ps
    if window:
        # Each group of `window` messages waits for the answers to the group before it
        leaves_ps = max(leaves_ps, last // window * (latency_ps + message_ps) + last % window * message_ps)
    once_ps = leaves_ps + latency_ps + message_ps
    return 2 * once_ps if kind == "all-reduce" else once_ps


def _windowed(kind: str, members: int, window: int, first: int = 0, after: tuple[int, int] = _AT_ONCE) -> list[Lane]:
    """Return a lane per distance: send that far on, receive from as far before; first: number of its first lane."""
    # window: maximum number of unanswered messages; after: (lane, step) after which the first begins.
    if kind == "all-reduce":
        lanes = _windowed("reduce-scatter", members, window)
        # The all-gather may begin only when every part of the own chunk has been added: one lane waits for all of them
        all_in = Lane()
        for lane in range(members - 1):
            all_in.step(after=(lane, 0))
        return [*lanes, all_in, *_windowed("all-gather", members, window, members, (members - 1, members - 2))]
    lanes_by_distance = []
    for distance in range(1, members):
        # Chunks are counted from the member, and region 1 begins at chunk n. So the output block of the member
        # `distance` before is chunk n + (n - distance).
        send, receive = {
            "all-to-all": (distance, 2 * members - distance),
            "reduce-scatter": (distance, 0),
            "all-gather": (0, members - distance),
        }[kind]
        lane, waits = first + distance - 1, distance > window
        lanes_by_distance.append(
            Lane().step(
                send_to=distance,
                to_lane=lane,
                send=send,
                receive_from=members - distance,
                receive=receive,
                reduce=kind == "reduce-scatter",
                after=(lane - window, 0) if waits else after,
            )
        )
    return lanes_by_distance


def _lanes(kind: str, members: int) -> list[Lane]:
    """Return the lanes of each member without a window, for a kind without a root."""
    if kind == "all-to-all":
        return [_to_all(members, to_lane=1, sends_own=False), _from_all(members, into_own=False, region=1)]
    if kind == "reduce-scatter":
        return [_to_all(members, to_lane=1, sends_own=False), _from_all(members, into_own=True, reduce=True)]
    if kind == "all-gather":
        return [_to_all(members, to_lane=1, sends_own=True), _from_all(members, into_own=False)]
    first = _lanes("reduce-scatter", members)
    return [
        *first,
        _to_all(members, to_lane=3, sends_own=True, after=(1, members - 2)),
        _from_all(members, into_own=False),
    ]


def _to_all(members: int, *, to_lane: int, sends_own: bool, after: tuple[int, int] = _AT_ONCE) -> Lane:
    """Return a lane that sends the own chunk, or else the chunk of each peer, to each peer's lane to_lane."""
    # after: (lane, step) that must be done before.
    lane = Lane()
    for peer in range(1, members):
        lane.step(send_to=peer, to_lane=to_lane, send=0 if sends_own else peer, after=after if peer == 1 else _AT_ONCE)
    return lane


def _from_all(members: int, *, into_own: bool, reduce: bool = False, region: int = 0) -> Lane:
    """Return a lane that receives into the own chunk, or else the chunk of each peer; the first to send comes first."""
    lane = Lane()
    for distance in range(1, members):
        peer = members - distance
        lane.step(receive_from=peer, receive=region * members + (0 if into_own else peer), reduce=reduce)
    return lane


def _rooted(members: int, *, in_parts: bool, outwards: bool) -> Plans:
    """Return plans in which the root sends to (outwards), or receives from, all others: one chunk, or each its part."""
    root, leaves = Lane(), [Lane() for _ in range(1, members)]
    for member, leaf in enumerate(leaves, start=1):
        chunk = member if in_parts else 0
        if outwards:
            root.step(send_to=member, send=chunk)
            leaf.step(receive_from=0, receive=chunk)
        else:
            root.step(receive_from=member, receive=chunk, reduce=not in_parts)
            leaf.step(send_to=0, send=chunk)
    return each_its_own(members if in_parts else 1, [[root], *([leaf] for leaf in leaves)])
