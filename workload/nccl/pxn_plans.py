"""All-to-all: everybody sends to everybody, and between hosts over the NPU that has the receiver's rail (PXN).

Without PXN a message to another host leaves by the sender's own NIC and changes rails in the fabric. With it, the
sender's host has a member on the rail of each receiver; all of the host give it their chunks for that receiver over
NVLink, and it sends them on as one message (NCCL 2.12, "PXN"). A receiver on whose rail the host has nobody is sent to
directly.

Scratch regions hold the runs of chunks: those that a member passes on, and those that come for it where the sending
host's members are not numbered in a row, from where they are copied into the output.
"""

from collections import Counter
from typing import NamedTuple

from workload.nccl.hops import hop_ps, lane_ps, link_ps
from workload.nccl.hosts import Hosts, hosts_of
from workload.nccl.ways import MOST_CHANNELS, Way
from workload.plans.extent import Extent
from workload.plans.plan import Lane, Plans, each_its_own, everyone_alike
from workload.shape import Shape

_SCRATCH = 2
"""The first scratch region; 0 is the input, 1 the output."""

_MOST_RELAYED = 2048
"""Members whose messages are relayed: their number squared is that of the steps."""

_LANES_BESIDE_RUNS = 6
"""Of a member: straight, relayed, runs passed on, own sends to the host and to others, copies."""

_PEER = 0
"""Lane that takes what comes straight; the next one takes what relays send."""


class _Routes(NamedTuple):
    """Who relays what.

    Attributes:
        hosts: members of each, in order of their numbers.
        relay: of each host, by receiver: the member that relays to it, -1 = each sends by itself.
        runs: of each member, the receivers it relays to.
    """

    hosts: Hosts
    relay: tuple[tuple[int, ...], ...]
    runs: tuple[tuple[int, ...], ...]


def plan(shape: Shape, way: Way, *, pxn: bool) -> Plans:
    """Sends by themselves, one lane for each channel, and what relays need."""
    if not pxn or not _relays(shape):
        return _direct(shape, way)
    routes = _routes(shape)
    in_a_run = max(len(own) for own in routes.hosts)
    most_runs = max(len(runs) for runs in routes.runs)
    regions = _SCRATCH + 1 + -(-most_runs // (shape.members // in_a_run))
    lanes = (_member(shape, way, routes, member) for member in range(shape.members))
    return each_its_own(shape.members, lanes, regions=regions, launch_ps=way.launch_ps)


def extent(shape: Shape, *, pxn: bool) -> Extent:
    """Steps and lanes of `plan`."""
    n = shape.members
    if not pxn or not _relays(shape):
        return Extent(2 * (n - 1), min(MOST_CHANNELS, n - 1) + 1)
    hosts = hosts_of(shape)
    steps, runs = 0, 0
    on_place = Counter(shape.place)
    for own in hosts:
        places = {shape.place[m] for m in own}
        relayed = sum(on_place[place] for place in places) - len(own)
        members = tuple(sorted(own))
        in_a_row = members == tuple(range(members[0], members[0] + len(own)))
        steps += relayed * (2 * (len(own) - 1) + 3 + (0 if in_a_row else len(own)))
        steps += 2 * len(own) * (n - len(own) - relayed) + 2 * len(own) * (len(own) - 1)
        runs += relayed
    return Extent(steps, runs + _LANES_BESIDE_RUNS * n, n)


def closed_form(shape: Shape, size_bytes: int, way: Way, *, pxn: bool) -> float:
    """An estimate: launch, the hops, and what the busiest link takes; with relays the first run's gathering before."""
    n, counts = shape.members, [shape.host.count(host) for host in sorted(set(shape.host))]
    chunk_bytes = size_bytes / n
    near, far = min(counts), n - min(counts)
    inside = hop_ps(shape, way, between_hosts=False) if max(counts) > 1 else 0
    between = hop_ps(shape, way, between_hosts=True) if far else 0
    outside_ps = link_ps(shape, far * chunk_bytes, way, between_hosts=True)
    if not pxn or not _relays(shape):
        inside_ps = link_ps(shape, (max(counts) - 1) * chunk_bytes, way, between_hosts=False)
        return way.launch_ps + max(inside + inside_ps, between + outside_ps)
    inside_ps = link_ps(shape, (near - 1 + far * (near - 1) / near) * chunk_bytes, way, between_hosts=False)
    first_ps = inside + link_ps(shape, near * chunk_bytes, way, between_hosts=False)
    return way.launch_ps + max(inside + inside_ps, first_ps + between + outside_ps)


def _relays(shape: Shape) -> bool:
    """Whether there are several hosts, and one of them has several members; not for more than a table has room for."""
    return 1 < len(set(shape.host)) < shape.members <= _MOST_RELAYED


def _routes(shape: Shape) -> _Routes:
    hosts = tuple(tuple(sorted(own)) for own in hosts_of(shape))
    rail = [{shape.place[m]: m for m in own} for own in hosts]
    relay = tuple(
        tuple(-1 if shape.host[d] == h else rail[h].get(shape.place[d], -1) for d in range(shape.members))
        for h in range(len(hosts))
    )
    runs = tuple(tuple(d for d in range(shape.members) if relay[shape.host[m]][d] == m) for m in range(shape.members))
    return _Routes(hosts, relay, runs)


def _direct(shape: Shape, way: Way) -> Plans:
    """Alike for all: the next, the next but one, ..., dealt out to lanes; the last lane takes what comes.

    NCCL gives each peer channels of its own as far as there are some, however small the messages.
    """
    n = shape.members
    channels = min(MOST_CHANNELS, n - 1)
    several, near = len(set(shape.host)) > 1, len(set(shape.host)) < n
    waits = [lane_ps(shape, way, between_hosts=b) for b, there in ((False, near), (True, several)) if there]
    lanes = [Lane(latency_ps=min(waits), wire=way.transport.wire) for _ in range(channels)]
    for distance in range(1, n):
        lanes[(distance - 1) % channels].step(send_to=distance, to_lane=channels, send=distance)
    sink = Lane()
    for distance in range(1, n):
        sink.step(receive_from=n - distance, receive=n + n - distance)
    return everyone_alike(n, n, [*lanes, sink], regions=2, launch_ps=way.launch_ps)


def _member(shape: Shape, way: Way, routes: _Routes, member: int) -> list[Lane]:
    """What comes straight, what relays send, a lane for each run it gathers, runs passed on, own sends, copies."""
    runs, own = routes.runs[member], routes.hosts[shape.host[member]]
    straight, relayed = Lane(), Lane()
    copies = Lane()
    for host, others in enumerate(routes.hosts):
        via = routes.relay[host][member]
        if via < 0:
            for sender in others:
                if sender != member:
                    straight.step(receive_from=sender, receive=shape.members + sender)
        else:
            _take_run(shape.members, relayed, copies, via, others)
    gathers = [_gather(shape.members, own, member, number) for number in range(len(runs))]
    passes = Lane(latency_ps=lane_ps(shape, way, between_hosts=True), wire=way.transport.wire)
    for number, receiver in enumerate(runs):
        first = _run_at(shape.members, len(own), number)
        passes.copy(receiver, to=first + own.index(member))
        after = (2 + number, len(own) - 2) if len(own) > 1 else (-1, -1)
        passes.step(send_to=receiver, to_lane=_PEER + 1, send=first, send_count=len(own), after=after)
    return [straight, relayed, *gathers, passes, *_own_sends(shape, way, routes, member), _after(copies, relayed)]


def _run_at(members: int, length: int, number: int) -> int:
    """Where a run that is passed on begins, behind the region of arrivals; it does not go over a region's end."""
    region, place = divmod(number, members // length)
    return (_SCRATCH + 1 + region) * members + place * length


def _take_run(members: int, relayed: Lane, copies: Lane, via: int, senders: tuple[int, ...]) -> None:
    """A run from a relay goes into the output where its senders are numbered in a row, else over scratch."""
    first, count = senders[0], len(senders)
    if senders == tuple(range(first, first + count)):
        relayed.step(receive_from=via, receive=members + first, receive_count=count)
        return
    at = _SCRATCH * members + sum(step.recv_count for step in relayed.steps)
    relayed.step(receive_from=via, receive=at, receive_count=count)
    for i, sender in enumerate(senders):
        copies.copy(at + i, to=members + sender)


def _after(copies: Lane, relayed: Lane) -> Lane:
    """The copies, once all runs are here."""
    if copies.steps:
        copies.begin_after(_PEER + 1, len(relayed.steps) - 1)
    return copies


def _gather(members: int, own: tuple[int, ...], member: int, number: int) -> Lane:
    """Chunks of the others of the host for the receiver of a run."""
    lane = Lane()
    first = _run_at(members, len(own), number)
    for i, peer in enumerate(own):
        if peer != member:
            lane.step(receive_from=peer, receive=first + i)
    return lane


def _own_sends(shape: Shape, way: Way, routes: _Routes, member: int) -> list[Lane]:
    """To the host's members, to relays, and straight to receivers without one: a lane inside, one to other hosts."""
    n, host = shape.members, shape.host[member]
    near = Lane(latency_ps=lane_ps(shape, way, between_hosts=False), wire=way.transport.wire)
    far = Lane(latency_ps=lane_ps(shape, way, between_hosts=True), wire=way.transport.wire)
    for distance in range(1, n):
        receiver = (member + distance) % n
        via = routes.relay[host][receiver]
        if shape.host[receiver] == host:
            near.step(send_to=receiver, to_lane=_PEER, send=receiver)
        elif via < 0:
            far.step(send_to=receiver, to_lane=_PEER, send=receiver)
        elif via != member:
            near.step(send_to=via, to_lane=2 + routes.runs[via].index(receiver), send=receiver)
    return [near, far]
