"""Sends and receives of traces with NCCL's times: delay before a message, bytes on the wire, and rate.

NCCL sends the messages if it runs the run's all-to-alls, which consist of sends and receives. A send uses the
communicator of the group that its node names, or else that of all NPUs, like PyTorch's default process group. For all
sends, link rates and the time of the fabric's path (a part of NCCL's hop) are those between neighbours
(workload.shape), so that NPUs with the same work share a trace.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import cast

import numpy as np

from nadi.inputs.arrays import Int32, Int64, Mask
from nadi.topologies import Graph
from nadi.workload import collectives
from nadi.workload.collectives import AlgorithmChoice
from nadi.workload.collectives.nccl.point_to_point import Communicator, MessageTransport, message
from nadi.workload.node_kinds import SEND
from nadi.workload.program.assembling import TraceRows
from nadi.workload.program.choosing import CollectiveSettings
from nadi.workload.program.program import NO_CHANNELS, Channels
from nadi.workload.shape import GroupShape, shape_of
from nadi.workload.trace_sets.trace_set import AS_WRITTEN, Families, TraceView, group_of_npu

_PLACES = 3
INSIDE, BETWEEN, PLAIN = range(_PLACES)
"""Places of a send's peer: on the sender's host, on another host, or one of both NPUs is in no communicator."""


Ways = dict[tuple[int, float, bool], int]  # Number of each row of `Channels`


def channels_of(ways: Ways) -> Channels:
    """Return connection, shares of the line rate and whether between hosts, of each kind of send.

    Args:
        ways: The row of each kind of send in the result, by these three.
    """
    if not ways:
        return NO_CHANNELS
    connection, shares, between_hosts = zip(*ways, strict=True)
    return Channels(np.array(connection, np.int8), np.array(shares, np.float64), np.array(between_hosts, np.bool_))


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
        ways: "Ways | None" = None,
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
            ways: The kinds of sends of other jobs, to which this job's are added; None = no others.
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
        self._ways: Ways = {} if ways is None else ways

    @property
    def are_plain(self) -> bool:
        """Whether messages take the time of their path only."""
        return self._choice is None or self._fabric is None or len(self._npus) < 2

    def channels(self) -> Channels:
        """Return connection, shares of the line rate and whether between hosts, of each kind of send used so far."""
        return channels_of(self._ways)

    def places(self, view: TraceView, npus: Int64) -> tuple[Int64, Int64]:
        """Return the places and communicators of a trace's sends, for the NPUs that run it.

        The results are int64[patterns, sends], INSIDE, BETWEEN or PLAIN + _PLACES x the communicator's number, of each
        send; and int64[k], the pattern of each NPU.

        Args:
            view: The view of the trace: its rows by kind, in topological order.
            npus: The k NPUs that run the trace, int64[k].
        """
        host = self._host
        is_send = _is_send(view)
        columns = view.p2p_peer[is_send].astype(np.int64), view.table.group[view.p2p_rows[is_send]].astype(np.int64)
        # Sends with equal peer and group have equal places: look each kind up once per NPU
        kinds, of_send = np.unique(np.stack(columns), axis=1, return_inverse=True)
        shift = np.zeros(len(npus), np.int64) if view.example == AS_WRITTEN else npus - view.example
        peers, own = kinds[0][None, :] + shift[:, None], npus[:, None]
        places = np.where(host[peers] != host[own], BETWEEN, INSIDE)
        places[~(self._is_member[peers] & self._is_member[own])] = PLAIN
        for group in np.unique(kinds[1]).tolist():
            places[:, kinds[1] == group] += _PLACES * self._communicators_of(view, group, npus)[:, None]
        patterns, pattern = np.unique(places, axis=0, return_inverse=True)
        return patterns[:, of_send.reshape(-1)], pattern.reshape(-1)

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

    def alone(self, src: int, dst: int, size_bytes: int) -> tuple[int, int, float]:
        """Return bytes on the wire, delay in ps and `shares` of a message by the communicator of all NPUs.

        Args:
            src: The number of the sending NPU.
            dst: The number of the receiving NPU.
            size_bytes: The size of the message in bytes.
        """
        if self.are_plain:
            return size_bytes, 0, 1.0
        host = self._host
        place = _PLACES * self._number(()) + (BETWEEN if host[src] != host[dst] else INSIDE)
        wire_bytes, wait_ps, channel = self._send(size_bytes, place)
        return wire_bytes, wait_ps, float(self.channels().shares[channel]) if channel >= 0 else 1.0

    def fill(self, rows: TraceRows, view: TraceView, places: Int64) -> TraceRows:
        """Return the rows of a trace with the columns of its sends.

        Args:
            rows: The rows of the trace.
            view: The view of the trace: its rows by kind, in topological order.
            places: The place and communicator of each send, int64[sends]: one of the patterns of `places`.
        """
        is_nccls = places % _PLACES != PLAIN
        at = view.p2p_rows[_is_send(view)][is_nccls]
        rows = rows._replace(bytes=rows.bytes.copy(), duration_ps=rows.duration_ps.copy(), channel=rows.channel.copy())
        kinds, kind = np.unique(np.stack([rows.bytes[at], places[is_nccls]]), axis=1, return_inverse=True)
        of_kinds = [self._send(*each) for each in kinds.T.tolist()]
        of_sends = np.array(of_kinds, np.int64).reshape(-1, 3)[kind.reshape(-1)]
        rows.bytes[at], rows.duration_ps[at], rows.channel[at] = of_sends.T
        return rows

    def _send(self, size_bytes: int, place: int) -> tuple[int, int, int]:
        """Return bytes on the wire, picoseconds before they are posted, and row of `channels`, -1 = at line rate."""
        # place: a number as of `places`.
        (shape, group), far = self._known[place // _PLACES], place % _PLACES == BETWEEN
        sent: MessageTransport = message(group, size_bytes, between_hosts=far, proto=self._proto)
        wire = sent.transport.wire
        shares = sent.shares(shape, between_hosts=far)
        channel = -1
        if shares > 1:
            channel = self._ways.setdefault((sent.connection, shares, far), len(self._ways))
        wait_ps = sent.base_ps + sent.wait_ps(shape, between_hosts=far)
        return -(-size_bytes * wire[0] // wire[1]), wait_ps, channel


def _choice(settings: CollectiveSettings) -> AlgorithmChoice | None:
    """Return the algorithm of all-to-alls if it defines the times of sends and receives, else None."""
    if "all-to-all" not in settings.algorithm:  # the default is not NCCL's
        return None
    chosen = collectives.choose("all-to-all", settings.algorithm_of("all-to-all"))
    return chosen if hasattr(chosen.module, "communicator") else None


def _is_send(view: TraceView) -> Mask:
    """Return bool[p]: which rows of messages are sends."""
    is_send: Mask = view.kind[view.p2p_rows] == SEND
    return is_send
