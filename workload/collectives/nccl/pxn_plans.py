"""All-to-all: every member sends to every other, between hosts over the NPU on the receiver's rail (PXN).

Without PXN a message to another host leaves by the sender's own NIC and changes rails in the fabric. With PXN, the
sender's host has a member on the rail of each receiver, the relay: all members of the host send it their blocks for
that receiver over NVLink, and it forwards them as one message (NCCL 2.12, "PXN"). A receiver without a relay in the
sender's host gets its blocks directly.

Blocks have equal sizes, or a size per pair of members (all-to-all-v) with the same kind of plan. Each message has the
protocol, channels and rate that NCCL gives a send of its size (workload.collectives.nccl.point_to_point). Relays
forward many sends at once, whose channels fill the whole NIC.

Scratch regions hold the runs of blocks that a member relays, and those that arrive for it from a host whose members are
not numbered consecutively; the latter are copied into the output.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inputs.units import PS_PER_BYTE_AT_1_BPS
from workload.collectives.nccl.point_to_point import Communicator, MessageTransport, message
from workload.collectives.nccl.rings import Hosts, hosts_of
from workload.collectives.plans.extent import PlanExtent
from workload.collectives.plans.plan import AT_ONCE, Lane, Plans, each_its_own, everyone_alike
from workload.collectives.uneven.all_to_all_v import Units
from workload.shape import Shape

Int64 = NDArray[np.int64]

_SCRATCH = 2  # first scratch region; region 0 is the input, region 1 the output

_MAX_TABLED = 2048  # maximum number of members with a plan per member: the number of steps grows with its square

# Maximum number of lanes over which a member's sends of one kind are distributed, so that their waits overlap
_MAX_SENDING_LANES = 32

_LANES_BESIDE_SENDS = 4  # a member's other lanes: direct receives, receives from relays, its own block, copies

_MAX_CHUNK = 1 << 31  # bound on chunk numbers, which are int32 in the tables

_PEER = 0  # lane that receives direct messages; the next lane receives from relays


class Blocks:
    """The chunks that each member has for each other.

    Args:
        sent: int64[n, n], chunks from member (row) to member (column).
        chunks: Number of chunks of a region, which holds the fullest input or output.
        chunk_bytes: Size of a chunk; a fraction for equal parts of some buffers.
    """

    def __init__(self, sent: Int64, chunks: int, chunk_bytes: float) -> None:
        self.sent, self.chunks, self.chunk_bytes = sent, chunks, chunk_bytes

    @cached_property
    def input(self) -> Int64:
        """int64[n, n]: first chunk of the block for each receiver (column) in a sender's input."""
        return np.cumsum(self.sent, axis=1) - self.sent

    @cached_property
    def output(self) -> Int64:
        """int64[n, n]: first chunk of the block of each sender (row) in a receiver's output, region 1."""
        return self.chunks + np.cumsum(self.sent, axis=0) - self.sent

    def count(self, sender: int, receiver: int) -> int:
        """Return the number of chunks of a block."""
        return int(self.sent[sender, receiver])


class RelayBlocks(NamedTuple):
    """A run: the blocks of a host's members that a relay collects for one receiver."""

    receiver: int  # member that receives the run
    begins: tuple[int, ...]  # first chunk in the relay's scratch space of each member's block, in the order of the host
    chunks: int  # number of chunks of all blocks


class _Routes(NamedTuple):
    """The relays of all hosts."""

    hosts: Hosts  # members of each host in ascending order
    relay: tuple[tuple[int, ...], ...]  # member that relays, by host and receiver; -1 = each member sends directly
    runs: tuple[tuple[int, ...], ...]  # receivers to which each member relays


class _Job(NamedTuple):
    """The inputs of all members' lanes."""

    shape: Shape  # shape of the group
    group: Communicator  # communicator of the group
    blocks: Blocks  # blocks to send
    routes: _Routes  # relays of all hosts
    proto: str  # the user's protocol, or "auto"
    is_uneven: bool  # whether blocks have unequal sizes
    launch_ps: int = 0  # time from when the collective is ready until the kernel's first sends

    def send_of(self, sender: int, receiver: int, count: int) -> tuple[MessageTransport, bool]:
        """Return the transport of a message, and whether it leaves the host."""
        far = self.shape.host[sender] != self.shape.host[receiver]
        return message(self.group, count * self.blocks.chunk_bytes, between_hosts=far, proto=self.proto), far

    def wait_ps(self, transport: MessageTransport, *, far: bool) -> int:
        """Return the time from when a step is ready until its send is posted."""
        return transport.wait_ps(self.shape, between_hosts=far) + transport.base_ps - self.launch_ps


def plan(shape: Shape, group: Communicator, size_bytes: int, *, pxn: bool, proto: str) -> Plans:
    """Return plans of an all-to-all of equal blocks; pxn: whether relays take part; proto: a protocol or "auto"."""
    n = shape.members
    several = len(set(shape.host)) > 1
    if not several or n > _MAX_TABLED:
        return _alike(shape, group, size_bytes, several=several, proto=proto)
    blocks = Blocks(np.ones((n, n), np.int64), n, size_bytes / n)
    return _each_its_own(shape, group, blocks, pxn=pxn, proto=proto, is_uneven=False)


def plan_uneven(shape: Shape, group: Communicator, cut: Units, *, pxn: bool, proto: str) -> Plans:
    """Return plans of an all-to-all with a number of bytes per pair; cut: the sizes in units, the rest as in `plan`."""
    blocks = Blocks(cut.sent, cut.chunks, cut.unit_bytes)
    plans = _each_its_own(shape, group, blocks, pxn=pxn, proto=proto, is_uneven=True)
    return plans._replace(uneven=True)


def extent(shape: Shape, *, pxn: bool) -> PlanExtent:
    """Return the number of steps and lanes of `plan`."""
    n = shape.members
    if len(set(shape.host)) == 1 or n > _MAX_TABLED:
        return PlanExtent(2 * (n - 1), min(_MAX_SENDING_LANES, n - 1) + 1)
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
            lanes += _LANES_BESIDE_SENDS + runs + sum(min(_MAX_SENDING_LANES, sends) for sends in sending)
    return PlanExtent(steps, lanes, n)


def closed_form(shape: Shape, group: Communicator, size_bytes: int, *, pxn: bool, proto: str) -> float:
    """Return an estimate in picoseconds: launch, hops, the busiest link and, with relays, collecting the first run."""
    n, counts = shape.members, [shape.host.count(host) for host in sorted(set(shape.host))]
    chunk_bytes = size_bytes / n
    near, far = min(counts), n - min(counts)
    inside = message(group, chunk_bytes, between_hosts=False, proto=proto)
    between = message(group, chunk_bytes, between_hosts=True, proto=proto)

    def port_ps(sent: MessageTransport, blocks: float, rate_bps: int) -> float:
        wire = sent.transport.wire
        return blocks * chunk_bytes * wire[0] / wire[1] * PS_PER_BYTE_AT_1_BPS / rate_bps if rate_bps else 0.0

    def sends_ps(sent: MessageTransport, blocks: float, rate_bps: int) -> float:
        wire = sent.transport.wire
        sends_alone_ps = chunk_bytes * wire[0] / wire[1] / sent.gbps * 1e3 if blocks else 0.0
        return max(port_ps(sent, blocks, rate_bps), sends_alone_ps)

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


def _begins_ps(shape: Shape, transport: MessageTransport, *, far: bool) -> int:
    """Return launch and hop of an empty message in picoseconds."""
    return transport.base_ps + max(transport.hop_ps, shape.outside_ps if far else shape.inside_ps)


def _relays(shape: Shape) -> bool:
    """Return whether there are several hosts, at least one of them with several members."""
    return 1 < len(set(shape.host)) < shape.members


def _alike(shape: Shape, group: Communicator, size_bytes: int, *, several: bool, proto: str) -> Plans:
    """Return one plan for all members: sends in order of distance over several lanes; the last lane receives.

    It serves one host, and groups that are too large for a plan per member; in the latter all messages have the
    transport of those between hosts, and use their ports' whole rate.
    """
    n = shape.members
    transport = message(group, size_bytes / n, between_hosts=several, proto=proto)
    count = min(_MAX_SENDING_LANES, n - 1)
    wait_ps = transport.wait_ps(shape, between_hosts=several)
    lanes = [transport.lane(shape, wait_ps, between_hosts=several, paced=not several) for _ in range(count)]
    for distance in range(1, n):
        lanes[(distance - 1) % count].step(send_to=distance, to_lane=count, send=distance)
    sink = Lane()
    for distance in range(1, n):
        sink.step(receive_from=n - distance, receive=n + n - distance)
    return everyone_alike(n, n, [*lanes, sink], regions=2, launch_ps=transport.base_ps)


def _each_its_own(
    shape: Shape, group: Communicator, blocks: Blocks, *, pxn: bool, proto: str, is_uneven: bool
) -> Plans:
    """Return a plan per member."""
    routes = _routes(shape, relays=pxn and _relays(shape))
    runs = [_runs(blocks, routes, shape.host[member], member) for member in range(shape.members)]
    ends = [begin for own in runs for run in own for begin in run.begins]
    regions = _SCRATCH + 1 + (max(ends) // blocks.chunks - _SCRATCH if ends else 0)
    if ends and regions * blocks.chunks >= _MAX_CHUNK:  # blocks have no common divisor of any size: no room for relays
        return _each_its_own(shape, group, blocks, pxn=False, proto=proto, is_uneven=is_uneven)
    job = _Job(shape, group, blocks, routes, proto, is_uneven)
    job = job._replace(launch_ps=min((transport.base_ps for transport in _kinds(job)), default=0))
    lanes = (_member(job, runs[member], member) for member in range(shape.members))
    return each_its_own(blocks.chunks, lanes, regions=regions, launch_ps=job.launch_ps)


def _kinds(job: _Job) -> Iterator[MessageTransport]:
    """Yield the transport of each size of message, inside a host and between hosts."""
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
    """Return the runs that a member relays, consecutive in its scratch space; none crosses the end of a region."""
    own = routes.hosts[host]
    runs: list[RelayBlocks] = []
    at = (_SCRATCH + 1) * blocks.chunks
    for receiver in routes.runs[member]:
        counts = blocks.sent[list(own), receiver]
        count = int(counts.sum())
        if at % blocks.chunks + count > blocks.chunks:
            at += blocks.chunks - at % blocks.chunks
        runs.append(RelayBlocks(receiver, tuple((at + np.cumsum(counts) - counts).tolist()), count))
        at += count
    return runs


def _member(job: _Job, runs: Sequence[RelayBlocks], member: int) -> list[Lane]:
    """Return a member's lanes: direct and relayed receives, one per run to collect; then sends, own block, copies."""
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
    if copies.steps:
        copies.begin_after(_PEER + 1, len(relayed.steps) - 1)
    return [*lanes, copies]


def _take_run(blocks: Blocks, relayed: Lane, copies: Lane, via: int, senders: tuple[int, ...], member: int) -> None:
    """Receive a run from a relay, in the output if its senders are numbered consecutively, else in scratch space."""
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


def _gather(blocks: Blocks, own: tuple[int, ...], run: RelayBlocks, member: int) -> Lane:
    """Return a lane that receives the blocks of the host's other members for the receiver of a run."""
    lane = Lane()
    for peer, begin in zip(own, run.begins, strict=True):
        if peer != member and blocks.count(peer, run.receiver):
            lane.step(receive_from=peer, receive=begin, receive_count=blocks.count(peer, run.receiver))
    return lane


def _passes(
    job: _Job, own: tuple[int, ...], runs: Sequence[RelayBlocks], gathers: Sequence[Lane], member: int
) -> list[Lane]:
    """Return lanes that forward the runs of a relay, each as soon as it is complete."""
    lanes: list[Lane] = []
    blocks, passed = job.blocks, 0
    for number, run in enumerate(runs):
        if not run.chunks:
            continue
        if len(lanes) < _MAX_SENDING_LANES:
            transport, _ = job.send_of(member, run.receiver, run.chunks)
            lanes.append(transport.lane(job.shape, job.wait_ps(transport, far=True), between_hosts=True, paced=False))
        lane = lanes[passed % _MAX_SENDING_LANES]
        passed += 1
        mine = blocks.count(member, run.receiver)
        if mine:
            lane.copy(int(blocks.input[member, run.receiver]), to=run.begins[own.index(member)], count=mine)
        last = len(gathers[number].steps) - 1
        after = (2 + number, last) if last >= 0 else AT_ONCE
        lane.step(send_to=run.receiver, to_lane=_PEER + 1, send=run.begins[0], send_count=run.chunks, after=after)
    return lanes


def _own_sends(job: _Job, member: int) -> list[Lane]:
    """Return the sends to the host's members, to relays, and directly to receivers without one; the nearest first."""
    n, host, blocks, routes = job.shape.members, job.shape.host[member], job.blocks, job.routes
    dealt: dict[tuple[str, bool, bool, int], list[Lane]] = {}
    sends: Counter[tuple[str, bool, bool, int]] = Counter()
    for distance in range(1, n):
        receiver = (member + distance) % n
        via, count = routes.relay[host][receiver], blocks.count(member, receiver)
        if via == member or not count:
            continue
        transport, far = job.send_of(member, receiver, count)
        relayed = via >= 0
        if relayed:  # over NVLink, by the protocol that goes on between hosts, on channels of each receiver
            transport, far = (
                message(job.group, count * blocks.chunk_bytes, between_hosts=False, proto=transport.protocol),
                False,
            )
        key = transport.protocol, far, relayed, transport.channels
        lanes = dealt.setdefault(key, [])
        if len(lanes) < _MAX_SENDING_LANES:
            lanes.append(
                transport.lane(job.shape, job.wait_ps(transport, far=far), between_hosts=far, paced=not relayed)
            )
        lane = lanes[sends[key] % _MAX_SENDING_LANES]
        sends[key] += 1
        at = int(blocks.input[member, receiver])
        if relayed:
            to_lane = 2 + routes.runs[via].index(receiver)
            lane.step(send_to=via, to_lane=to_lane, send=at, send_count=count)
        else:
            lane.step(send_to=receiver, to_lane=_PEER, send=at, send_count=count)
    return [lane for lanes in dealt.values() for lane in lanes]


def _own_block(job: _Job, member: int) -> Lane:
    """Return a lane that copies a member's block for itself, if blocks have unequal sizes."""
    blocks, lane = job.blocks, Lane()
    count = blocks.count(member, member) if job.is_uneven else 0
    if count:
        lane.copy(int(blocks.input[member, member]), to=int(blocks.output[member, member]), count=count)
    return lane
