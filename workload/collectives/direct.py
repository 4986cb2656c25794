"""Direct: everybody sends straight to everybody that needs it, all sends posted at once.

One lane sends, a second one takes whatever comes in whatever order. The members start with different peers (the next,
the next but one, ...), so that at each moment everyone receives from one sender. All-reduce is the reduce-scatter and
then the all-gather. Broadcast, reduce, gather and scatter are stars around the root.
"""

from workload.plans import Lane, Plans, each_its_own, everyone_alike

NAME = "direct"
KINDS = ("all-to-all", "all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "gather", "scatter")


def plan(kind: str, members: int) -> Plans:
    """Lanes: sends and a sink, twice for all-reduce; one for the stars."""
    if kind in {"broadcast", "scatter"}:
        return _from_root(members, in_parts=kind == "scatter")
    if kind in {"reduce", "gather"}:
        return _to_root(members, in_parts=kind == "gather")
    regions = 2 if kind == "all-to-all" else 1
    return everyone_alike(members, members, _lanes(kind, members), regions=regions)


def closed_form(kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Latency once: a + (n-1) S/nB; twice that for all-reduce; a + (n-1) S/B for broadcast and reduce."""
    message_bytes = size_bytes if kind in {"broadcast", "reduce"} else size_bytes / members
    once_ps = latency_ps + (members - 1) * message_bytes / bytes_per_s * 1e12
    return 2 * once_ps if kind == "all-reduce" else once_ps


def _lanes(kind: str, n: int) -> list[Lane]:
    if kind == "all-to-all":
        return [_to_all(n, sink=1, own=False), _from_all(n, own=False, region=1)]
    if kind == "reduce-scatter":
        return [_to_all(n, sink=1, own=False), _from_all(n, own=True, reduce=True)]
    if kind == "all-gather":
        return [_to_all(n, sink=1, own=True), _from_all(n, own=False)]
    first = _lanes("reduce-scatter", n)
    return [*first, _to_all(n, sink=3, own=True, after=(1, n - 2)), _from_all(n, own=False)]


def _to_all(n: int, *, sink: int, own: bool, after: tuple[int, int] = (-1, -1)) -> Lane:
    """Send the own chunk, or the chunk of each peer, to the peer's lane `sink`."""
    lane = Lane()
    for peer in range(1, n):
        lane.step(send_to=peer, to_lane=sink, send=0 if own else peer, after=after if peer == 1 else (-1, -1))
    return lane


def _from_all(n: int, *, own: bool, reduce: bool = False, region: int = 0) -> Lane:
    """Receive into the own chunk, or the chunk of each peer; the peer that sends first stands first."""
    lane = Lane()
    for distance in range(1, n):
        peer = n - distance
        lane.step(receive_from=peer, receive=region * n + (0 if own else peer), reduce=reduce)
    return lane


def _from_root(n: int, *, in_parts: bool) -> Plans:
    root = Lane()
    for member in range(1, n):
        root.step(send_to=member, send=member if in_parts else 0)
    leaves = (Lane().step(receive_from=0, receive=member if in_parts else 0) for member in range(1, n))
    return each_its_own(n if in_parts else 1, [[root], *([leaf] for leaf in leaves)])


def _to_root(n: int, *, in_parts: bool) -> Plans:
    root = Lane()
    for member in range(1, n):
        root.step(receive_from=member, receive=member if in_parts else 0, reduce=not in_parts)
    leaves = (Lane().step(send_to=0, send=member if in_parts else 0) for member in range(1, n))
    return each_its_own(n if in_parts else 1, [[root], *([leaf] for leaf in leaves)])
