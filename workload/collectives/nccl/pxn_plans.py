"""All-to-all: everybody sends to everybody, and between hosts over the NPU that has the receiver's rail (PXN).

Without PXN a message to another host leaves by the sender's own NIC and changes rails in the fabric. With it, the
sender's host has a member on the rail of each receiver; all of the host give it their blocks for that receiver over
NVLink, and it sends them on as one message (NCCL 2.12, "PXN"). A receiver on whose rail the host has nobody is sent to
directly.

Blocks have one size, or another for each pair of members (all-to-all-v): the plans are the same. Each message has the
protocol, the channels and the rate that NCCL gives a send of its size (workload.collectives.nccl.point_to_point). What
relays pass
on is many sends at once, whose channels are enough for the whole NIC.

Scratch regions hold the runs of blocks: those that a member passes on, and those that come for it where the sending
host's members are not numbered in a row, from where they are copied into the output.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inputs.units import PS_PER_BYTE_AT_1_BPS
from workload.collectives.nccl.hosts import Hosts, hosts_of
from workload.collectives.nccl.point_to_point import Communicator, MessageTransport, message
from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import AT_ONCE, Lane, Plans, each_its_own, everyone_alike
from workload.collectives.uneven.all_to_all_v import Units
from workload.shape import Shape

Int64 = NDArray[np.int64]

_SCRATCH = 2
"""The first scratch region; 0 is the input, 1 the output."""

_MOST_TABLED = 2048
"""Members of a group whose plans are one for each: their number squared is that of the steps."""

_MOST_SENDING_LANES = 32
"""Over so many lanes a member's sends of one kind are dealt out, so that they wait for their hop side by side."""

_LANES_BESIDE_SENDS = 4
"""Of a member: what comes straight, what relays send, its own block, copies."""

_MOST_CHUNK = 1 << 31
"""Numbers of chunks are below: int32 in the tables."""

_PEER = 0
"""Lane that takes what comes straight; the next one takes what relays send."""


class Blocks:
    """What each member has for each, in chunks.

    Args:
        sent: int64[n, n], chunks from member (row) to member (column).
        chunks: of a region, which holds the fullest input or output.
        chunk_bytes: of a chunk; of equal parts of a buffer it may be a fraction.
    """

    def __init__(self, sent: Int64, chunks: int, chunk_bytes: float) -> None:
        self.sent, self.chunks, self.chunk_bytes = sent, chunks, chunk_bytes

    @cached_property
    def input(self) -> Int64:
        """int64[n, n]: where the block for each receiver (column) begins in a sender's input."""
        return np.cumsum(self.sent, axis=1) - self.sent

    @cached_property
    def output(self) -> Int64:
        """int64[n, n]: where the block of each sender (row) begins in a receiver's output, region 1."""
        return self.chunks + np.cumsum(self.sent, axis=0) - self.sent

    def count(self, sender: int, receiver: int) -> int:
        """Chunks of a block."""
        return int(self.sent[sender, receiver])


class RelayBlocks(NamedTuple):
    """Blocks of a host's members that a relay collects for one receiver.

    Attributes:
        receiver: whose they are.
        begins: where in the relay's scratch each member's block begins, by the order of the host.
        chunks: of all of them.
    """

    receiver: int
    begins: tuple[int, ...]
    chunks: int


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


class _Job(NamedTuple):
    """All that the lanes of members are made of.

    Attributes:
        shape: the group.
        group: its communicator.
        blocks: what is sent.
        routes: who relays.
        proto: a protocol that the user asks for, or "auto".
        is_uneven: blocks have unlike sizes.
        launch_ps: from when the collective is ready until the kernel's first sends begin.
    """

    shape: Shape
    group: Communicator
    blocks: Blocks
    routes: _Routes
    proto: str
    is_uneven: bool
    launch_ps: int = 0

    def send_of(self, sender: int, receiver: int, count: int) -> tuple[MessageTransport, bool]:
        """How a message goes, and whether it goes to another host."""
        far = self.shape.host[sender] != self.shape.host[receiver]
        return message(self.group, count * self.blocks.chunk_bytes, between_hosts=far, proto=self.proto), far

    def wait_ps(self, one: MessageTransport, *, far: bool) -> int:
        """From when a step is ready until its send is posted."""
        return one.wait_ps(self.shape, between_hosts=far) + one.base_ps - self.launch_ps


def plan(shape: Shape, group: Communicator, size_bytes: int, *, pxn: bool, proto: str) -> Plans:
    """An all-to-all of equal blocks: own sends, and what relays need.

    Args:
        shape: the members.
        group: their communicator.
        size_bytes: the whole buffer of a member.
        pxn: whether relays take part.
        proto: a protocol that the user asks for, or "auto".
    """
    n = shape.members
    several = len(set(shape.host)) > 1
    if not several or n > _MOST_TABLED:
        return _alike(shape, group, size_bytes, several=several, proto=proto)
    blocks = Blocks(np.ones((n, n), np.int64), n, size_bytes / n)
    return _each_its_own(shape, group, blocks, pxn=pxn, proto=proto, is_uneven=False)


def plan_uneven(shape: Shape, group: Communicator, cut: Units, *, pxn: bool, proto: str) -> Plans:
    """An all-to-all with another number of bytes for each pair; cut: them in units, the rest is as in `plan`."""
    blocks = Blocks(cut.sent, cut.chunks, cut.unit_bytes)
    made = _each_its_own(shape, group, blocks, pxn=pxn, proto=proto, is_uneven=True)
    return made._replace(uneven=True)


def extent(shape: Shape, *, pxn: bool) -> PlanExtent:
    """Steps and lanes of `plan`."""
    n = shape.members
    if len(set(shape.host)) == 1 or n > _MOST_TABLED:
        return PlanExtent(2 * (n - 1), min(_MOST_SENDING_LANES, n - 1) + 1)
    pxn = pxn and _relays(shape)
    steps = lanes = 0
    on_place = Counter(shape.place)
    for own in hosts_of(shape):
        relayed = sum(on_place[place] for place in {shape.place[m] for m in own}) - len(own) if pxn else 0
        straight = n - len(own) - relayed
        members = tuple(sorted(own))
        in_a_row = members == tuple(range(members[0], members[0] + len(own)))
        steps += relayed * (2 * (len(own) - 1) + 3 + (0 if in_a_row else len(own)))
        steps += 2 * len(own) * (straight + len(own) - 1)
        for member in own:
            runs = on_place[shape.place[member]] - 1 if pxn else 0
            sending = (len(own) - 1, straight, relayed - runs, runs)
            lanes += _LANES_BESIDE_SENDS + runs + sum(min(_MOST_SENDING_LANES, sends) for sends in sending)
    return PlanExtent(steps, lanes, n)


def closed_form(shape: Shape, group: Communicator, size_bytes: int, *, pxn: bool, proto: str) -> float:
    """An estimate: launch, the hops, and what the busiest link takes; with relays the first run's gathering before."""
    n, counts = shape.members, [shape.host.count(host) for host in sorted(set(shape.host))]
    chunk_bytes = size_bytes / n
    near, far = min(counts), n - min(counts)
    inside = message(group, chunk_bytes, between_hosts=False, proto=proto)
    between = message(group, chunk_bytes, between_hosts=True, proto=proto)

    def port_ps(one: MessageTransport, blocks: float, rate_bps: int) -> float:
        wire = one.transport.wire
        return blocks * chunk_bytes * wire[0] / wire[1] * PS_PER_BYTE_AT_1_BPS / rate_bps if rate_bps else 0.0

    def sends_ps(one: MessageTransport, blocks: float, rate_bps: int) -> float:
        wire = one.transport.wire
        one_ps = chunk_bytes * wire[0] / wire[1] / one.gbps * 1e3 if blocks else 0.0
        return max(port_ps(one, blocks, rate_bps), one_ps)

    near_ps: float = _begins_ps(shape, inside, far=False) if max(counts) > 1 else 0
    if not far:
        return near_ps + sends_ps(inside, n - 1, shape.inside_bps)
    far_ps = _begins_ps(shape, between, far=True)
    if not pxn or not _relays(shape):
        near_ps += sends_ps(inside, max(counts) - 1, shape.inside_bps)
        return max(near_ps, far_ps + sends_ps(between, far, shape.outside_bps))
    relaying = message(group, chunk_bytes, between_hosts=False, proto=between.protocol)
    inside_ps = port_ps(inside, near - 1 + far * (near - 1) / near, shape.inside_bps)
    first_ps = max(relaying.hop_ps, shape.inside_ps) + port_ps(relaying, near, shape.inside_bps)
    return max(near_ps + inside_ps, first_ps + far_ps + port_ps(between, far, shape.outside_bps))


def _begins_ps(shape: Shape, one: MessageTransport, *, far: bool) -> int:
    """Launch and hop of a message without bytes."""
    return one.base_ps + max(one.hop_ps, shape.outside_ps if far else shape.inside_ps)


def _relays(shape: Shape) -> bool:
    """Whether there are several hosts, and one of them has several members."""
    return 1 < len(set(shape.host)) < shape.members


def _alike(shape: Shape, group: Communicator, size_bytes: int, *, several: bool, proto: str) -> Plans:
    """One plan for all: the next, the next but one, ..., dealt out to lanes; the last lane takes what comes.

    In one host, and of groups that are too large for tables; there all messages go as those between hosts do, and take
    their ports' whole rate.
    """
    n = shape.members
    one = message(group, size_bytes / n, between_hosts=several, proto=proto)
    count = min(_MOST_SENDING_LANES, n - 1)
    wait_ps = one.wait_ps(shape, between_hosts=several)
    lanes = [one.lane(shape, wait_ps, between_hosts=several, paced=not several) for _ in range(count)]
    for distance in range(1, n):
        lanes[(distance - 1) % count].step(send_to=distance, to_lane=count, send=distance)
    sink = Lane()
    for distance in range(1, n):
        sink.step(receive_from=n - distance, receive=n + n - distance)
    return everyone_alike(n, n, [*lanes, sink], regions=2, launch_ps=one.base_ps)


def _each_its_own(
    shape: Shape, group: Communicator, blocks: Blocks, *, pxn: bool, proto: str, is_uneven: bool
) -> Plans:
    """A plan for each member."""
    routes = _routes(shape, relays=pxn and _relays(shape))
    runs = [_runs(blocks, routes, shape.host[member], member) for member in range(shape.members)]
    ends = [begin for own in runs for run in own for begin in run.begins]
    regions = _SCRATCH + 1 + (max(ends) // blocks.chunks - _SCRATCH if ends else 0)
    if ends and regions * blocks.chunks >= _MOST_CHUNK:  # blocks have no common divisor of any size: no room for relays
        return _each_its_own(shape, group, blocks, pxn=False, proto=proto, is_uneven=is_uneven)
    job = _Job(shape, group, blocks, routes, proto, is_uneven)
    job = job._replace(launch_ps=min((one.base_ps for one in _kinds(job)), default=0))
    lanes = (_member(job, runs[member], member) for member in range(shape.members))
    return each_its_own(blocks.chunks, lanes, regions=regions, launch_ps=job.launch_ps)


def _kinds(job: _Job) -> Iterator[MessageTransport]:
    """How messages of the sizes that there are go, inside a host and between hosts."""
    host = np.array(job.shape.host)
    far = host[:, None] != host[None, :]
    others = ~np.eye(len(host), dtype=np.bool_) & (job.blocks.sent > 0)
    for between in (False, True):
        for count in np.unique(job.blocks.sent[others & (far == between)]).tolist():
            size_bytes = count * job.blocks.chunk_bytes
            yield message(job.group, size_bytes, between_hosts=between, proto=job.proto)


def _routes(shape: Shape, *, relays: bool) -> _Routes:
    hosts = tuple(tuple(sorted(own)) for own in hosts_of(shape))
    rail = [{shape.place[m]: m for m in own} if relays else {} for own in hosts]
    relay = tuple(
        tuple(-1 if shape.host[d] == h else rail[h].get(shape.place[d], -1) for d in range(shape.members))
        for h in range(len(hosts))
    )
    runs = tuple(tuple(d for d in range(shape.members) if relay[shape.host[m]][d] == m) for m in range(shape.members))
    return _Routes(hosts, relay, runs)


def _runs(blocks: Blocks, routes: _Routes, host: int, member: int) -> list[RelayBlocks]:
    """The runs that a member passes on, one behind the other in its scratch; none goes over a region's end."""
    own = routes.hosts[host]
    found: list[RelayBlocks] = []
    at = (_SCRATCH + 1) * blocks.chunks
    for receiver in routes.runs[member]:
        counts = blocks.sent[list(own), receiver]
        count = int(counts.sum())
        if at % blocks.chunks + count > blocks.chunks:
            at += blocks.chunks - at % blocks.chunks
        found.append(RelayBlocks(receiver, tuple((at + np.cumsum(counts) - counts).tolist()), count))
        at += count
    return found


def _member(job: _Job, runs: Sequence[RelayBlocks], member: int) -> list[Lane]:
    """What comes straight, what relays send, a lane for each run it gathers; then its sends, its own block, copies."""
    routes, blocks, host = job.routes, job.blocks, job.shape.host[member]
    own = routes.hosts[host]
    straight, relayed, copies = Lane(), Lane(), Lane()
    for number, others in enumerate(routes.hosts):
        via = routes.relay[number][member]
        if via >= 0:
            _take_run(blocks, relayed, copies, via, others, member)
            continue
        for sender in others:
            if sender != member and blocks.count(sender, member):
                straight.step(
                    receive_from=sender,
                    receive=int(blocks.output[sender, member]),
                    receive_count=blocks.count(sender, member),
                )
    gathers = [_gather(blocks, own, run, member) for run in runs]
    passes = _passes(job, own, runs, gathers, member)
    lanes = [straight, relayed, *gathers, *passes, *_own_sends(job, member), _own_block(job, member)]
    return [*lanes, _after(copies, relayed)]


def _take_run(blocks: Blocks, relayed: Lane, copies: Lane, via: int, senders: tuple[int, ...], member: int) -> None:
    """A run from a relay goes into the output where its senders are numbered in a row, else over scratch."""
    first, counts = senders[0], [blocks.count(sender, member) for sender in senders]
    if not sum(counts):
        return
    if senders == tuple(range(first, first + len(senders))):
        relayed.step(receive_from=via, receive=int(blocks.output[first, member]), receive_count=sum(counts))
        return
    at = _SCRATCH * blocks.chunks + sum(step.recv_count for step in relayed.steps)
    relayed.step(receive_from=via, receive=at, receive_count=sum(counts))
    for sender, count in zip(senders, counts, strict=True):
        if count:
            copies.copy(at, to=int(blocks.output[sender, member]), count=count)
        at += count


def _after(copies: Lane, relayed: Lane) -> Lane:
    """The copies, once all runs are here."""
    if copies.steps:
        copies.begin_after(_PEER + 1, len(relayed.steps) - 1)
    return copies


def _gather(blocks: Blocks, own: tuple[int, ...], run: RelayBlocks, member: int) -> Lane:
    """Blocks of the others of the host for the receiver of a run."""
    lane = Lane()
    for peer, begin in zip(own, run.begins, strict=True):
        if peer != member and blocks.count(peer, run.receiver):
            lane.step(receive_from=peer, receive=begin, receive_count=blocks.count(peer, run.receiver))
    return lane


def _passes(
    job: _Job, own: tuple[int, ...], runs: Sequence[RelayBlocks], gathers: Sequence[Lane], member: int
) -> list[Lane]:
    """The runs that a relay passes on, each once all of it is here, dealt out to lanes."""
    lanes: list[Lane] = []
    blocks, passed = job.blocks, 0
    for number, run in enumerate(runs):
        if not run.chunks:
            continue
        if len(lanes) < _MOST_SENDING_LANES:
            one, _ = job.send_of(member, run.receiver, run.chunks)
            lanes.append(one.lane(job.shape, job.wait_ps(one, far=True), between_hosts=True, paced=False))
        lane = lanes[passed % _MOST_SENDING_LANES]
        passed += 1
        mine = blocks.count(member, run.receiver)
        if mine:
            lane.copy(int(blocks.input[member, run.receiver]), to=run.begins[own.index(member)], count=mine)
        last = len(gathers[number].steps) - 1
        after = (2 + number, last) if last >= 0 else AT_ONCE
        lane.step(send_to=run.receiver, to_lane=_PEER + 1, send=run.begins[0], send_count=run.chunks, after=after)
    return lanes


def _own_sends(job: _Job, member: int) -> list[Lane]:
    """To the host's members, to relays, and straight to receivers without one; the nearest first."""
    n, host, blocks, routes = job.shape.members, job.shape.host[member], job.blocks, job.routes
    dealt: dict[tuple[str, bool, bool, int], list[Lane]] = {}
    sends: Counter[tuple[str, bool, bool, int]] = Counter()
    for distance in range(1, n):
        receiver = (member + distance) % n
        via, count = routes.relay[host][receiver], blocks.count(member, receiver)
        if via == member or not count:
            continue
        one, far = job.send_of(member, receiver, count)
        relayed = via >= 0
        if relayed:  # over NVLink, by the protocol that goes on between hosts, on channels of each receiver
            one, far = message(job.group, count * blocks.chunk_bytes, between_hosts=False, proto=one.protocol), False
        key = one.protocol, far, relayed, one.channels
        lanes = dealt.setdefault(key, [])
        if len(lanes) < _MOST_SENDING_LANES:
            lanes.append(one.lane(job.shape, job.wait_ps(one, far=far), between_hosts=far, paced=not relayed))
        lane = lanes[sends[key] % _MOST_SENDING_LANES]
        sends[key] += 1
        at = int(blocks.input[member, receiver])
        if relayed:
            to_lane = 2 + routes.runs[via].index(receiver)
            lane.step(send_to=via, to_lane=to_lane, send=at, send_count=count)
        else:
            lane.step(send_to=receiver, to_lane=_PEER, send=at, send_count=count)
    return [lane for lanes in dealt.values() for lane in lanes]


def _own_block(job: _Job, member: int) -> Lane:
    """What a member has for itself is copied, where blocks have unlike sizes."""
    blocks, lane = job.blocks, Lane()
    count = blocks.count(member, member) if job.is_uneven else 0
    if count:
        lane.copy(int(blocks.input[member, member]), to=int(blocks.output[member, member]), count=count)
    return lane
