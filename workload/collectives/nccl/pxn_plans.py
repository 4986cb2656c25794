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

from nadi.inputs.arrays import Int64
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.workload.collectives.nccl.channel_orders import hosts_of
from nadi.workload.collectives.nccl.host_threads import peers_ps
from nadi.workload.collectives.nccl.point_to_point import Communicator, MessageTransport, message
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import AT_ONCE, Lane, Plans, each_its_own, everyone_alike
from nadi.workload.collectives.uneven import Units
from nadi.workload.shape import GroupShape

_SCRATCH = 2  # first scratch region; region 0 is the input, region 1 the output
_MAX_TABLED = 2048  # maximum number of members with a plan per member: the number of steps grows with its square
_MAX_SENDING_LANES = 32  # maximum number of lanes for a member's sends of one kind, so that their waits overlap
_LANES_BESIDE_SENDS = 4  # a member's other lanes: direct receives, receives from relays, its own block, copies
_MAX_CHUNK = 1 << 31  # bound on chunk numbers, which are int32 in the tables
_DIRECT, _FROM_RELAYS, _FIRST_RUN = range(3)  # lanes: direct messages, messages from relays, the first collected run


class SendGroup(NamedTuple):
    """A group whose members send to each other."""

    shape: GroupShape  # shape of the group
    communicator: Communicator  # NCCL's communicator of the group
    proto: str  # the user's protocol, or "auto"
    pxn: bool  # whether the user allows relays

    @property
    def relays(self) -> bool:
        """Whether relays take part: with PXN, for several hosts, at least one of them with several members."""
        return self.pxn and 1 < len(set(self.shape.host)) < self.shape.members

    def message(self, size_bytes: float, *, between_hosts: bool) -> MessageTransport:
        """Return the transport of a message.

        Args:
            size_bytes: The size of the message in bytes.
            between_hosts: Whether sender and receiver are in different hosts.
        """
        peers = self.shape.members - 1
        return message(self.communicator, size_bytes, between_hosts=between_hosts, proto=self.proto, peers=peers)

    def threads_ps(self, size_bytes: float) -> int:
        """Return what a CPU's thread takes for a NIC's messages to all other hosts beyond their data, in picoseconds.

        A relay's messages to a receiver are one message of its thread (NCCL groups up to 8 to one NIC, "PXN").

        Args:
            size_bytes: The mean size of a block in bytes.
        """
        host = self.communicator.host
        hosts, per_host = host.plan.hosts, host.plan.per_host
        if hosts == 1:
            return 0
        if self.relays:
            # Own blocks are on the wire while those of the other members come in, whose sends take turns on lanes that
            # each wait for a hop: the data that pass meanwhile hide nothing of the thread's time
            turns = -(-(hosts - 1) * (per_host - 1) // _MAX_SENDING_LANES)
            waits_ps = turns * self.message(size_bytes, between_hosts=False).wait_ps(self.shape, between_hosts=False)
            return peers_ps(host, hosts - 1, size_bytes * (per_host - 1), waits_ps)
        return peers_ps(host, host.members - per_host, size_bytes, 0)


class Blocks:
    """The chunks that each member has for each other."""

    # sent: int64[n, n], chunks from member (row) to member (column); chunks: number of chunks of a region, which holds
    # the fullest input or output; chunk_bytes: size of a chunk, a fraction for equal parts of some buffers.

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


class RelayedRun(NamedTuple):
    """The blocks of a host's members that a relay collects for one receiver."""

    receiver: int  # member that receives the run
    begins: tuple[int, ...]  # first chunk in the relay's scratch space of each member's block, in the order of the host
    chunks: int  # number of chunks of all blocks


class _Routes(NamedTuple):
    """The relays of all hosts."""

    hosts: tuple[tuple[int, ...], ...]  # members of each host in ascending order
    relay: tuple[tuple[int, ...], ...]  # member that relays, by host and receiver; -1 = each member sends directly
    receivers: tuple[tuple[int, ...], ...]  # receivers to which each member relays


class _Job(NamedTuple):
    """The inputs of all members' lanes."""

    group: SendGroup
    blocks: Blocks  # blocks to send
    routes: _Routes  # relays of all hosts
    copies_own: bool  # whether members copy their block for themselves, which all-to-alls of equal blocks do not
    launch_ps: int  # time from when the collective is ready until the kernel's first sends
    # transports by the arguments of `transport`: all pairs of members ask for few different ones
    transports: dict[tuple[int, bool, bool], MessageTransport]

    def transport(self, count: int, *, between_hosts: bool, to_relay: bool) -> MessageTransport:
        """Return the transport of a block.

        Args:
            count: The number of chunks of the block.
            between_hosts: Whether its sender and receiver are in different hosts.
            to_relay: Whether it goes over NVLink to a relay, by the protocol that goes on between hosts.
        """
        key = count, between_hosts, to_relay
        if key not in self.transports:
            size_bytes = count * self.blocks.chunk_bytes
            found = self.group.message(size_bytes, between_hosts=between_hosts)
            if to_relay:
                found = self.group._replace(proto=found.protocol).message(size_bytes, between_hosts=False)
            self.transports[key] = found
        return self.transports[key]

    def lane(self, transport: MessageTransport, *, between_hosts: bool, is_paced: bool) -> Lane:
        """Return a lane for sends by a transport.

        Args:
            transport: The protocol, channels and rate of a message.
            between_hosts: Whether sender and receiver are in different hosts.
            is_paced: Whether the sends use the rate of their channels; else that of the port.
        """
        wait_ps = transport.wait_ps(self.group.shape, between_hosts=between_hosts) + transport.base_ps - self.launch_ps
        return transport.lane(self.group.shape, wait_ps, between_hosts=between_hosts, is_paced=is_paced)


def plan(group: SendGroup, size_bytes: int) -> Plans:
    """Return plans of an all-to-all of equal blocks.

    Args:
        group: The group whose members send to each other.
        size_bytes: The size of the whole buffer in bytes.
    """
    n = group.shape.members
    if len(set(group.shape.host)) == 1 or n > _MAX_TABLED:
        return _alike(group, size_bytes)
    return _each_its_own(group, Blocks(np.ones((n, n), np.int64), n, size_bytes / n), copies_own=False)


def plan_uneven(group: SendGroup, cut: Units) -> Plans:
    """Return plans of an all-to-all with a number of bytes for each pair.

    Args:
        group: The group whose members send to each other.
        cut: The bytes of each pair of members as whole numbers of a common unit.
    """
    return _each_its_own(group, Blocks(cut.sent, cut.chunks, cut.unit_bytes), copies_own=True)._replace(uneven=True)


def extent(group: SendGroup) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        group: The group whose members send to each other.
    """
    shape, relays = group.shape, group.relays
    n = shape.members
    if len(set(shape.host)) == 1 or n > _MAX_TABLED:
        return PlanExtent(2 * (n - 1), min(_MAX_SENDING_LANES, n - 1) + 1)
    steps = lanes = 0
    on_place = Counter(shape.place)
    for own in hosts_of(shape):
        relayed = sum(on_place[place] for place in {shape.place[m] for m in own}) - len(own) if relays else 0
        straight = n - len(own) - relayed
        in_a_row = max(own) - min(own) == len(own) - 1
        steps += relayed * (2 * (len(own) - 1) + 3 + (0 if in_a_row else len(own)))
        steps += 2 * len(own) * (straight + len(own) - 1)
        for member in own:
            runs = on_place[shape.place[member]] - 1 if relays else 0
            sending = (len(own) - 1, straight, relayed - runs, runs)
            lanes += _LANES_BESIDE_SENDS + runs + sum(min(_MAX_SENDING_LANES, sends) for sends in sending)
    return PlanExtent(steps, lanes, n)


def closed_form(group: SendGroup, size_bytes: int) -> float:
    """Return an estimate in picoseconds: launch, hops, the busiest link and, with relays, collecting the first run.

    Args:
        group: The group whose members send to each other.
        size_bytes: The size of the whole buffer in bytes.
    """
    shape, n = group.shape, group.shape.members
    counts = shape.host_members
    block_bytes = size_bytes / n
    near, far = min(counts), n - min(counts)
    inside, between = (group.message(block_bytes, between_hosts=is_far) for is_far in (False, True))

    def begins_ps(transport: MessageTransport, path_ps: int) -> int:
        """Return the ps until data of a first message by a `transport` flows, over a path with latency `path_ps`."""
        return transport.base_ps + max(transport.hop_ps, path_ps)

    def port_ps(transport: MessageTransport, blocks: float, rate_bps: int) -> float:
        """Return the ps that `blocks` of a `transport` take on links of `rate_bps` bit/s; 0 = no link."""
        wire_bytes = transport.transport.wire_bytes(blocks * block_bytes)
        return wire_bytes * PS_PER_BYTE_AT_1_BPS / rate_bps if rate_bps else 0.0

    def sends_ps(transport: MessageTransport, blocks: float, rate_bps: int) -> float:
        """Return `port_ps` for `blocks` and `rate_bps`, but at least the ps of one send at its channels' rate."""
        one_send_ps = transport.transport.wire_bytes(block_bytes) / transport.gb_per_s * 1e3 if blocks else 0.0
        return max(port_ps(transport, blocks, rate_bps), one_send_ps)

    near_ps: float = begins_ps(inside, shape.inside_ps) if max(counts) > 1 else 0
    if not far:
        return near_ps + sends_ps(inside, n - 1, shape.inside_bps)
    threads_ps = group.threads_ps(block_bytes)
    near_ps += threads_ps
    far_ps = begins_ps(between, shape.outside_ps) + threads_ps
    if not group.relays:
        near_ps += sends_ps(inside, max(counts) - 1, shape.inside_bps)
        return max(near_ps, far_ps + sends_ps(between, far, shape.outside_bps))
    relaying = group._replace(proto=between.protocol).message(block_bytes, between_hosts=False)
    inside_ps = port_ps(inside, near - 1 + far * (near - 1) / near, shape.inside_bps)
    first_ps = max(relaying.hop_ps, shape.inside_ps) + port_ps(relaying, near, shape.inside_bps)
    return max(near_ps + inside_ps, first_ps + far_ps + port_ps(between, far, shape.outside_bps))


def _alike(group: SendGroup, size_bytes: int) -> Plans:
    """Return one plan for all members: sends in order of distance over several lanes; the last lane receives."""
    # It serves one host, and groups that are too large for a plan per member; in the latter all messages have the
    # transport of those between hosts, and use their ports' whole rate.
    shape, n = group.shape, group.shape.members
    several = len(set(shape.host)) > 1
    transport = group.message(size_bytes / n, between_hosts=several)
    count = min(_MAX_SENDING_LANES, n - 1)
    wait_ps = transport.wait_ps(shape, between_hosts=several)
    lanes = [transport.lane(shape, wait_ps, between_hosts=several, is_paced=not several) for _ in range(count)]
    sink = Lane()
    for distance in range(1, n):
        lanes[(distance - 1) % count].step(send_to=distance, to_lane=count, send=distance)
        sink.step(receive_from=n - distance, receive=n + n - distance)
    launch_ps = transport.base_ps + group.threads_ps(size_bytes / n)
    return everyone_alike(n, n, [*lanes, sink], regions=2, launch_ps=launch_ps)


def _each_its_own(group: SendGroup, blocks: Blocks, *, copies_own: bool) -> Plans:
    """Return a plan per member; copies_own: whether members copy their own block to the output."""
    routes = _routes(group)
    members = range(group.shape.members)
    runs = [_runs(blocks, routes, group.shape.host[member], member) for member in members]
    ends = [begin for own in runs for run in own for begin in run.begins]
    regions = _SCRATCH + 1 + (max(ends) // blocks.chunks - _SCRATCH if ends else 0)
    if ends and regions * blocks.chunks >= _MAX_CHUNK:  # blocks have no common divisor of any size: no room for relays
        return _each_its_own(group._replace(pxn=False), blocks, copies_own=copies_own)
    launch_ps = min((transport.base_ps for transport in _transports(group, blocks)), default=0)
    job = _Job(group, blocks, routes, copies_own, launch_ps, {})
    launch_ps += group.threads_ps(float(blocks.sent.mean()) * blocks.chunk_bytes)
    return each_its_own(
        blocks.chunks, (_member(job, runs[member], member) for member in members), regions=regions, launch_ps=launch_ps
    )


def _transports(group: SendGroup, blocks: Blocks) -> Iterator[MessageTransport]:
    """Yield the transport of each size of message, inside a host and between hosts."""
    host = np.array(group.shape.host)
    is_far = host[:, None] != host[None, :]
    others = ~np.eye(len(host), dtype=np.bool_) & (blocks.sent > 0)
    for far in (False, True):
        for count in np.unique(blocks.sent[others & (is_far == far)]).tolist():
            yield group.message(count * blocks.chunk_bytes, between_hosts=far)


def _routes(group: SendGroup) -> _Routes:
    """Return the relays of a group: members on the receiver's rail in the sender's host."""
    shape, members = group.shape, range(group.shape.members)
    hosts = tuple(tuple(sorted(own)) for own in hosts_of(shape))
    on_rail = [{shape.place[m]: m for m in own} if group.relays else {} for own in hosts]
    # A member of the sender's host on the receiver's rail, unless both are in the same host
    relay = tuple(
        tuple(-1 if shape.host[d] == h else on_rail[h].get(shape.place[d], -1) for d in members)
        for h in range(len(hosts))
    )
    return _Routes(hosts, relay, tuple(tuple(d for d in members if relay[shape.host[m]][d] == m) for m in members))


def _runs(blocks: Blocks, routes: _Routes, host: int, member: int) -> list[RelayedRun]:
    """Return the runs that a member of a host relays, consecutive in its scratch space; none crosses a region's end."""
    # blocks: chunks that each member has for each other; routes: relays of all hosts.
    runs: list[RelayedRun] = []
    begin = (_SCRATCH + 1) * blocks.chunks
    for receiver in routes.receivers[member]:
        counts = blocks.sent[list(routes.hosts[host]), receiver]
        count = int(counts.sum())
        # A run is one message, which must be one range of chunks within a region
        if begin % blocks.chunks + count > blocks.chunks:
            begin += blocks.chunks - begin % blocks.chunks
        runs.append(RelayedRun(receiver, tuple((begin + np.cumsum(counts) - counts).tolist()), count))
        begin += count
    return runs


def _member(job: _Job, runs: Sequence[RelayedRun], member: int) -> list[Lane]:
    """Return a member's lanes: direct and relayed receives, one per run to collect; then sends, own block, copies."""
    routes, blocks = job.routes, job.blocks
    own = routes.hosts[job.group.shape.host[member]]
    straight, relayed, copies, own_copy = Lane(), Lane(), Lane(), Lane()
    for host, senders in enumerate(routes.hosts):
        relay = routes.relay[host][member]
        if relay >= 0:
            _receive_run(blocks, relayed, copies, relay, senders, member)
        else:
            _receive_blocks(blocks, straight, senders, member, blocks.output[list(senders), member].tolist(), member)
    gathers = [Lane() for _ in runs]
    for lane, run in zip(gathers, runs, strict=True):
        _receive_blocks(blocks, lane, own, run.receiver, run.begins, member)
    own_chunks = int(blocks.sent[member, member])
    if job.copies_own and own_chunks:
        own_copy.copy(int(blocks.input[member, member]), to=int(blocks.output[member, member]), count=own_chunks)
    if copies.steps:
        copies.begin_after(_FROM_RELAYS, len(relayed.steps) - 1)
    forwards = _forwards(job, own, runs, gathers, member)
    return [straight, relayed, *gathers, *forwards, *_own_sends(job, member), own_copy, copies]


def _receive_blocks(
    blocks: Blocks, lane: Lane, senders: Sequence[int], receiver: int, begins: Sequence[int], member: int
) -> None:
    """Add the receives of the senders' blocks for a receiver at a member; begins: first chunk of each block there."""
    for sender, begin in zip(senders, begins, strict=True):
        count = int(blocks.sent[sender, receiver])
        if sender != member and count:
            lane.step(receive_from=sender, receive=begin, receive_count=count)


def _receive_run(
    blocks: Blocks, relayed: Lane, copies: Lane, relay: int, senders: tuple[int, ...], member: int
) -> None:
    """Receive a run from a relay, in the output if its senders are numbered consecutively, else in scratch space."""
    # blocks: chunks of each pair; relayed, copies: lanes that receive and that copy; senders: of the run; member:
    # receiver.
    # A relay sends the blocks of a run without gaps, and the output has blocks in the order of senders: a run of
    # senders 4 to 7 fits into it as it comes, one of 4 and 6 does not.
    first, counts = senders[0], blocks.sent[list(senders), member].tolist()
    if not sum(counts):
        return
    if senders == tuple(range(first, first + len(senders))):
        relayed.step(receive_from=relay, receive=int(blocks.output[first, member]), receive_count=sum(counts))
        return
    begin = _SCRATCH * blocks.chunks + sum(step.recv_count for step in relayed.steps)
    relayed.step(receive_from=relay, receive=begin, receive_count=sum(counts))
    for sender, count in zip(senders, counts, strict=True):
        if count:
            copies.copy(begin, to=int(blocks.output[sender, member]), count=count)
        begin += count


def _forwards(
    job: _Job, host_members: tuple[int, ...], runs: Sequence[RelayedRun], gather_lanes: Sequence[Lane], member: int
) -> list[Lane]:
    """Return lanes of a relay, `member`, that forward its runs, each as soon as its gather lane has it complete."""
    lanes: list[Lane] = []
    blocks, sent = job.blocks, 0
    for number, run in enumerate(runs):
        if not run.chunks:
            continue
        if len(lanes) < _MAX_SENDING_LANES:
            lanes.append(
                job.lane(
                    job.group.message(run.chunks * blocks.chunk_bytes, between_hosts=True),
                    between_hosts=True,
                    is_paced=False,
                )
            )
        lane = lanes[sent % _MAX_SENDING_LANES]
        sent += 1
        mine = int(blocks.sent[member, run.receiver])
        if mine:
            lane.copy(int(blocks.input[member, run.receiver]), to=run.begins[host_members.index(member)], count=mine)
        last = len(gather_lanes[number].steps) - 1
        after = (_FIRST_RUN + number, last) if last >= 0 else AT_ONCE
        lane.step(send_to=run.receiver, to_lane=_FROM_RELAYS, send=run.begins[0], send_count=run.chunks, after=after)
    return lanes


def _own_sends(job: _Job, member: int) -> list[Lane]:
    """Return a member's sends to its host's members, to relays, and directly to receivers without; nearest first."""
    blocks, routes, host = job.blocks, job.routes, job.group.shape.host
    n, relays, host_of_member = len(host), routes.relay[host[member]], host[member]
    counts, begins = blocks.sent[member].tolist(), blocks.input[member].tolist()
    lanes_of_kind: dict[tuple[str, bool, bool, int], list[Lane]] = {}
    sends: Counter[tuple[str, bool, bool, int]] = Counter()
    for distance in range(1, n):
        receiver = (member + distance) % n
        relay, count = relays[receiver], counts[receiver]
        if relay == member or not count:
            continue
        relayed, is_far = relay >= 0, host_of_member != host[receiver]
        transport = job.transport(count, between_hosts=is_far, to_relay=relayed)
        far = is_far and not relayed  # to relays over NVLink, on channels of each receiver
        # Lanes have one protocol, rate and wait each; sends of a kind take turns on up to _MAX_SENDING_LANES of them
        kind = transport.protocol, far, relayed, transport.channels
        lanes = lanes_of_kind.setdefault(kind, [])
        if len(lanes) < _MAX_SENDING_LANES:
            lanes.append(job.lane(transport, between_hosts=far, is_paced=not relayed))
        lane = lanes[sends[kind] % _MAX_SENDING_LANES]
        sends[kind] += 1
        to, to_lane = receiver, _DIRECT
        if relayed:
            to, to_lane = relay, _FIRST_RUN + routes.receivers[relay].index(receiver)
        lane.step(send_to=to, to_lane=to_lane, send=begins[receiver], send_count=count)
    return [lane for lanes in lanes_of_kind.values() for lane in lanes]
