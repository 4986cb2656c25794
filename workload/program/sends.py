"""Sends and receives of traces: their parts over several NICs, and NCCL's delays, bytes on the wire, and rates.

A message is divided into as many parts as its sender's NICs share by their rates (workload.program.program).

NCCL sends the messages if it runs the run's all-to-alls, which consist of sends and receives. A send uses the
communicator of the group that its node names, or else that of all NPUs, like PyTorch's default process group. For all
sends, link rates and the time of the fabric's path (a part of NCCL's hop) are those between neighbours
(workload.shape), so that NPUs with the same work share a trace.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np

from nadi.inputs.arrays import Int32, Int64
from nadi.inputs.limits import MAX_EQUAL_MESSAGES
from nadi.topologies import Graph
from nadi.workload import collectives
from nadi.workload.collectives import AlgorithmChoice
from nadi.workload.collectives.nccl.point_to_point import Communicator, MessageTransport, message
from nadi.workload.errors import WorkloadError
from nadi.workload.program.choosing import CollectiveSettings
from nadi.workload.program.program import NO_CHANNELS, Channels, TraceRows
from nadi.workload.shape import GroupShape, has_parallel_ports, shape_of, stripes_between
from nadi.workload.trace_sets.trace_set import AS_WRITTEN, Families, TraceView, group_of_npu

_PLACES = 3
INSIDE, BETWEEN, PLAIN = range(_PLACES)
"""Places of a send's peer: on the sender's host, on another host, or one of both NPUs is in no communicator."""


_MAX_PARTS = 32  # of a message
_CONNECTIONS = 64  # that two NPUs may have (pdes.core.packet)
_WAYS = 7  # counts of channels that NCCL's messages have connections for: 1, 2, 4 to 64


class Ways:
    """The ways of messages so far, which are rows of `Channels`: each has a row per part."""

    def __init__(self) -> None:
        """Begin without any."""
        self._first: dict[tuple[int, float, bool, int], int] = {}  # first row of each way
        self.count = 0  # of rows

    def first_row(self, connection: int, shares: float, parts: int, *, between_hosts: bool) -> int:
        """Return the row of the first part of a way; the others follow.

        Args:
            connection: The number of the first part's connection between the two NPUs; the others' numbers follow.
            shares: The number of shares in which the line rate is cut; each part uses one of its port's.
            parts: The number of parts of a message.
            between_hosts: Whether the two NPUs are of different hosts.
        """
        key = connection, shares, between_hosts, parts
        if key not in self._first:
            self._first[key] = self.count
            self.count += parts
        return self._first[key]

    def channels(self) -> Channels:
        """Return connection, shares of the line rate and whether between hosts, of each row."""
        if not self._first:
            return NO_CHANNELS
        rows = [(first + part, shares, far) for first, shares, far, parts in self._first for part in range(parts)]
        connection, shares, between_hosts = zip(*rows, strict=True)
        return Channels(np.array(connection, np.int8), np.array(shares, np.float64), np.array(between_hosts, np.bool_))


class MessageAlone(NamedTuple):
    """A message between two NPUs."""

    wire_bytes: int  # bytes on the wire
    wait_ps: int  # time before it is posted in picoseconds
    shares: float  # divisor of the port's rate that gives the rate of each part; 1 = all of it
    parts: int  # messages that it is divided into, over as many NICs by their shares


class SendColumns:
    """Computation of the columns of sends, given the run's algorithms and the members of groups and families."""

    # Without a fabric messages take the time of their path only. `npus` are the NPUs in a communicator: all except
    # memory nodes.

    def __init__(
        self,
        settings: CollectiveSettings,
        fabric: Graph | None,
        communicator_npus: Int64,
        named_groups: Mapping[str, tuple[int, ...]],
        families: Families,
        placement: Int32 | None = None,
        ways: Ways | None = None,
    ) -> None:
        """Prepare the columns of sends.

        Args:
            settings: The settings of collectives: algorithms and the meaning of sizes.
            fabric: The fabric as a graph of nodes and links; None = unknown.
            communicator_npus: The NPUs in the communicator of all, int64[]: all except memory nodes.
            named_groups: The members of each named group.
            families: The groups of each family by name.
            placement: The NPU of each rank of a job, int32[ranks]; then all numbers, also communicator_npus, are ranks.
                None = NPUs.
            ways: The ways of messages of other jobs, to which this job's are added; None = no others.
        """
        self._choice = _choice(settings)
        self._placement = placement
        self._host = np.zeros(0, np.int32) if fabric is None else fabric.host
        if placement is not None:
            self._host = self._host[placement]
        self._fabric, self._npus, self._named, self._families = fabric, communicator_npus, named_groups, families
        self._is_member = np.zeros(len(self._host), np.bool_)
        self._is_member[communicator_npus if fabric else []] = True
        self._group_of: dict[str, Int32] = {}  # int32[npus] by name of a family: group of each NPU in it
        self._communicators: dict[tuple[int, ...], int] = {}
        self._known: list[tuple[GroupShape, Communicator]] = []
        self._proto = str(dict(self._choice.parameters)["proto"]) if self._choice else ""
        self._ways = Ways() if ways is None else ways
        self._divides = settings.divides_sends and fabric is not None and has_parallel_ports(fabric)

    @property
    def _are_plain(self) -> bool:
        """Whether messages take the time of their path only."""
        return self._choice is None or self._fabric is None or len(self._npus) < 2

    def patterns(self, view: TraceView, npus: Int64) -> tuple[Int64, Int64]:
        """Return what the columns of a trace's messages depend on, for k NPUs that run it.

        The results are int64[patterns, messages], a number that `fill` reads, and int64[k], the pattern of each NPU.

        Args:
            view: The view of the trace: its rows by kind, in topological order.
            npus: The k NPUs that run the trace, int64[k].
        """
        if self._are_plain and not self._divides:
            return np.full((1, len(view.messages.row)), PLAIN * _MAX_PARTS), np.zeros(len(npus), np.int64)
        messages = view.messages
        columns = messages.peer.astype(np.int64), view.table.group[messages.row], messages.is_send.astype(np.int64)
        # Messages with equal peer, group and direction have equal patterns: look each kind up once per NPU
        kinds, of_message = np.unique(np.stack(columns), axis=1, return_inverse=True)
        shift = np.zeros(len(npus), np.int64) if view.example == AS_WRITTEN else npus - view.example
        # int64[k, kinds]: one row per NPU; a trace shared by several NPUs has the peers of its example, shifted
        peers = kinds[0][None, :] + shift[:, None]
        own = np.broadcast_to(npus[:, None], peers.shape)
        # Place and parts - 1 in one number, which `fill` takes apart again
        words = self._places(view, kinds, peers, own) * _MAX_PARTS
        if self._divides:
            sends = np.broadcast_to(kinds[2] == 1, peers.shape)
            words += self._parts(np.where(sends, own, peers), np.where(sends, peers, own)) - 1
        patterns, pattern = np.unique(words, axis=0, return_inverse=True)
        return patterns[:, of_message.reshape(-1)], pattern.reshape(-1)

    def _places(self, view: TraceView, kinds: Int64, peers: Int64, own: Int64) -> Int64:
        """Return the places of messages: INSIDE, BETWEEN or PLAIN + _PLACES x the communicator's number.

        Receives are PLAIN. kinds: int64[3, m], peer in the trace, group and whether they are sent; peers and own:
        int64[k, m], the ends of each message for k NPUs.
        """
        if self._are_plain:
            return np.full(peers.shape, PLAIN)
        host = self._host
        places = np.where(host[peers] != host[own], BETWEEN, INSIDE)
        places[~(self._is_member[peers] & self._is_member[own])] = PLAIN
        is_send = kinds[2] == 1
        for group in np.unique(kinds[1][is_send]).tolist():
            mine = is_send & (kinds[1] == group)
            places[:, mine] += _PLACES * self._communicators_of(view, group, own[:, 0])[:, None]
        places[:, ~is_send] = PLAIN
        return places

    def _parts(self, src: Int64, dst: Int64) -> Int64:
        """Return int64[k, m], the parts of messages between ranks; src, dst: int64[k, m]."""
        ends = np.stack([src.reshape(-1), dst.reshape(-1)])
        pairs, of_message = np.unique(ends, axis=1, return_inverse=True)
        npus = pairs if self._placement is None else self._placement[pairs].astype(np.int64)
        parts = np.minimum(stripes_between(cast("Graph", self._fabric), npus[0], npus[1]), _MAX_PARTS)
        return parts[of_message.reshape(-1)].reshape(src.shape)

    def _communicators_of(self, view: TraceView, group_row: int, npus: Int64) -> Int64:
        """Return int64[k]: communicator numbers of a trace's group (by its row in the trace) for the NPUs `npus`."""
        name = view.table.group_names[group_row]
        if name in self._families:
            if name not in self._group_of:
                self._group_of[name] = group_of_npu(self._families[name], len(self._is_member))
            place = self._group_of[name][npus]
            used, of_npu = np.unique(place, return_inverse=True)
            members = [self._families[name][at] if at >= 0 else () for at in used.tolist()]
            return np.array([self._number(each) for each in members], np.int64)[of_npu.reshape(-1)]
        known = self._named.get(name) or view.table.metadata_groups.get(name, ())
        return np.full(len(npus), self._number(known))

    def _number(self, members: Sequence[int]) -> int:
        """Return the number of the communicator of NPUs, () = all; equal counts per host share a communicator."""
        chosen = np.array(members, np.int64) if len(members) > 1 else self._npus
        if np.any((chosen < 0) | (chosen >= len(self._is_member))):  # checks of groups name it if a collective uses it
            chosen = self._npus
        # Groups of 8 and 8 members on two hosts have the same times, whichever hosts these are
        counts = tuple(sorted(np.unique(self._host[chosen], return_counts=True)[1].tolist()))
        if counts not in self._communicators:
            self._communicators[counts] = len(self._known)
            self._known.append(self._communicator(counts))
        return self._communicators[counts]

    @cached_property
    def _fabrics_shape(self) -> GroupShape:
        npus = self._npus if self._placement is None else self._placement[self._npus]
        return shape_of(cast("Graph", self._fabric), npus)

    def _communicator(self, members_of_hosts: tuple[int, ...]) -> tuple[GroupShape, Communicator]:
        """Return the communicator of a group with these members per host, and its shape on the fabric."""
        chosen = cast("AlgorithmChoice", self._choice)
        shape = self._fabrics_shape._replace(
            members=sum(members_of_hosts),
            host=tuple(host for host, count in enumerate(members_of_hosts) for _ in range(count)),
            place=tuple(place for count in members_of_hosts for place in range(count)),
        )
        make = chosen.module.communicator  # type: ignore[attr-defined]  # `_choice` checks it
        return shape, make(shape, **dict(chosen.parameters))

    def alone(self, src: int, dst: int, size_bytes: int) -> MessageAlone:
        """Return how a message travels, by the communicator of all NPUs.

        Args:
            src: The number of the sending NPU.
            dst: The number of the receiving NPU.
            size_bytes: The size of the message in bytes.
        """
        parts = int(self._parts(np.array([[src]]), np.array([[dst]]))[0, 0]) if self._divides else 1
        place = PLAIN
        if not self._are_plain:
            place = _PLACES * self._number(()) + (BETWEEN if self._host[src] != self._host[dst] else INSIDE)
        wire_bytes, wait_ps, channel = self._send(size_bytes, place, parts)
        shares = float(self._ways.channels().shares[channel]) if channel >= 0 else 1.0
        return MessageAlone(wire_bytes, wait_ps, shares, parts)

    def fill(self, rows: TraceRows, view: TraceView, pattern: Int64) -> TraceRows:
        """Return the rows of a trace with the columns of its messages.

        Args:
            rows: The rows of the trace.
            view: The view of the trace: its rows by kind, in topological order.
            pattern: What the columns of each message depend on, int64[messages]: one row of `patterns`.
        """
        places, parts = pattern // _MAX_PARTS, pattern % _MAX_PARTS + 1
        is_sent = (places % _PLACES != PLAIN) | ((parts > 1) & view.messages.is_send)
        at = view.messages.row[is_sent]
        if parts.max(initial=1) > 1:
            rows = rows._replace(parts=rows.parts.copy())
            rows.parts[view.messages.row] = parts
            _check_numbers(view, parts)
        if not len(at):
            return rows
        rows = rows._replace(bytes=rows.bytes.copy(), duration_ps=rows.duration_ps.copy(), channel=rows.channel.copy())
        columns = rows.bytes[at], places[is_sent], parts[is_sent]
        kinds, kind = np.unique(np.stack(columns), axis=1, return_inverse=True)
        of_kinds = [self._send(*each) for each in kinds.T.tolist()]
        of_sends = np.array(of_kinds, np.int64).reshape(-1, 3)[kind.reshape(-1)]
        rows.bytes[at], rows.duration_ps[at], rows.channel[at] = of_sends.T
        return rows

    def _send(self, size_bytes: int, place: int, parts: int) -> tuple[int, int, int]:
        """Return bytes on the wire, picoseconds before they are posted, and row of `channels`, -1 = at line rate."""
        # place: a number as of `_places`.
        if place % _PLACES == PLAIN:
            return size_bytes, 0, -1 if parts == 1 else self._ways.first_row(0, 1.0, parts, between_hosts=True)
        (shape, group), far = self._known[place // _PLACES], place % _PLACES == BETWEEN
        sent: MessageTransport = message(group, size_bytes, between_hosts=far, proto=self._proto)
        wire = sent.transport.wire
        shares = sent.shares(shape, between_hosts=far, is_divided=parts > 1)
        channel = -1
        if shares > 1 and parts == 1:
            channel = self._ways.first_row(sent.connection, shares, 1, between_hosts=far)
        elif parts > 1:
            way = sent.channels.bit_length() - 1 if shares > 1 else 0
            if parts * _WAYS > _CONNECTIONS:  # not enough for connections at the rates of channels
                way, shares = 0, 1.0
            channel = self._ways.first_row(way * parts, shares, parts, between_hosts=far)
        wait_ps = sent.base_ps + sent.wait_ps(shape, between_hosts=far)
        return -(-size_bytes * wire[0] // wire[1]), wait_ps, channel


def _check_numbers(view: TraceView, parts: Int64) -> None:
    """Refuse more messages of a peer and tag than their parts have numbers for; parts: int64[messages]."""
    messages = view.messages
    wrong = np.flatnonzero((messages.seq + 1) * parts > MAX_EQUAL_MESSAGES)
    if len(wrong):
        row, of = int(messages.row[wrong[0]]), int(parts[wrong[0]])
        raise WorkloadError(
            f"{view.node(row)}: message {messages.seq[wrong[0]]:,} of this peer and tag, in {of} parts over as many "
            f"NICs; expected at most {MAX_EQUAL_MESSAGES // of:,} messages of a tag"
        )


def _choice(settings: CollectiveSettings) -> AlgorithmChoice | None:
    """Return the algorithm of all-to-alls if it defines the times of sends and receives, else None."""
    if "all-to-all" not in settings.algorithm:  # the default is not NCCL's
        return None
    chosen = collectives.choose("all-to-all", settings.algorithm_of("all-to-all"))
    return chosen if hasattr(chosen.module, "communicator") else None
