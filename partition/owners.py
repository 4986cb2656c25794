"""The assignment of nodes to parts, its lookahead, and its predicted quality: balance, cut and speed-up."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nadi.inputs.arrays import Float64, Int32, Int64
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.partition.methods import DEFAULT_METHOD, Clusters, cluster, method as find_method
from nadi.partition.weights import PartitionError, TrafficWeights, uniform
from nadi.topologies import Graph

NO_CUT_PS = 2**62  # lookahead of a single part, where no link is cut


SMALLEST_BYTES = 66  # default size of the smallest packet: below the wire size of any packet with the engine's defaults


class Partition(NamedTuple):
    """A fabric divided among parts."""

    # int32[nodes], part of each node, 0 .. parts-1; as far as possible, part p has the NPUs around (p + 1/2) / parts
    owner: Int32
    parts: int  # number of parts; none is empty
    method: str  # name of the method
    lookahead_ps: int  # minimum reach of a cut link; NO_CUT_PS if no link is cut


def partition(
    graph: Graph,
    parts: int,
    *,
    method: str = DEFAULT_METHOD,
    weights: TrafficWeights | None = None,
    smallest_bytes: int = SMALLEST_BYTES,
    keep_hosts: bool = True,
) -> Partition:
    """Divide a fabric into parts; equal input gives an equal result.

    Raises PartitionError: the method is unknown or fails, or parts is less than one or more than the clusters.

    Args:
        graph: The fabric (`Graph`).
        parts: Number of parts, one or more.
        method: Name of one of partition.methods.
        weights: Expected work of nodes and links; None = `uniform`.
        smallest_bytes: Size of the smallest packet on the wire in bytes, for the reach of links.
        keep_hosts: Whether a server's inner links, and links of NPUs to their only switch, are never cut.
    """
    assign = find_method(method).assign
    if parts < 1:
        raise PartitionError(f"{parts} parts; expected 1 or more")
    if parts == 1:
        return Partition(np.zeros(graph.nodes, np.int32), 1, method, NO_CUT_PS)
    link_reach_ps = reach_ps(graph, smallest_bytes)
    clusters = cluster(graph, parts, weights or uniform(graph), link_reach_ps, keep_hosts=keep_hosts)
    if parts > clusters.number:
        what = "switches with their NPUs, or servers, that stay together" if keep_hosts else "nodes"
        raise PartitionError(
            f"{graph.name}: {parts} parts; expected at most {clusters.number}, as it has no more {what}"
        )
    # a method may leave a part empty, but each must have work
    part = _without_empty(assign(graph, clusters, parts), clusters, parts)
    # methods number the parts in any order; here they get the order of their NPUs
    owner = _by_npu(graph, part[clusters.of_node], parts)
    cut = owner[graph.link_src] != owner[graph.link_dst]
    return Partition(owner, parts, method, int(link_reach_ps[cut].min(initial=NO_CUT_PS)))


def reach_ps(graph: Graph, smallest_bytes: int) -> Int64:
    """Return int64[links], the time in ps after which sending at one end affects the other: delay and smallest packet.

    Args:
        graph: The fabric (`Graph`).
        smallest_bytes: Size of the smallest packet on the wire in bytes.
    """
    # 66 bytes at 400 Gb/s are 1.32 ns: beside 500 ns of cable a little more lookahead, but for free
    sending_ps = smallest_bytes * PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps
    return graph.link_delay_ps + (sending_ps + 0.5).astype(np.int64)


def _without_empty(assignment: Int32, clusters: Clusters, parts: int) -> Int32:
    """Return an assignment, int32[clusters], whose empty parts get the heaviest clusters of the heaviest parts."""
    assignment = assignment.copy()
    for empty in np.flatnonzero(np.bincount(assignment, minlength=parts) == 0).tolist():
        several = np.bincount(assignment, minlength=parts) > 1
        load = np.where(several, np.bincount(assignment, clusters.weight, minlength=parts), -1)
        inside = np.flatnonzero(assignment == np.argmax(load))
        assignment[inside[np.argmax(clusters.weight[inside])]] = empty
    return assignment


def _by_npu(graph: Graph, part_of_node: Int32, parts: int) -> Int32:
    """Return int32[nodes], parts numbered by their mean NPU; those without NPUs come last, by their first node."""
    # mean number of a part's NPUs; np.maximum avoids 0 / 0 for parts without, which `np.where` below puts last
    npus = np.bincount(part_of_node[: graph.npus], minlength=parts)
    mean = np.bincount(part_of_node[: graph.npus], np.arange(graph.npus), minlength=parts) / np.maximum(npus, 1)
    first = np.full(parts, graph.nodes)
    np.minimum.at(first, part_of_node, np.arange(graph.nodes))
    order = np.lexsort((first, np.where(npus > 0, mean, np.inf)))
    number = np.empty(parts, np.int32)
    number[order] = np.arange(parts)
    return number[part_of_node]


# Predicted quality of a partition: balance, cut, and speed-up.


MEAN_PACKET_BYTES = 2132  # mean of a full packet of 4096 + 82 bytes and its acknowledgement of 86


@dataclass(frozen=True, eq=False)
class PartitionReport:
    """Figures of a partition."""

    method: str  # name of the method
    parts: int  # number of parts
    npus: Int64  # [parts] number of NPUs of each part
    switches: Int64  # [parts] number of other nodes of each part
    events: Int64  # [parts] expected number of packets that arrive at each part's nodes
    share: Float64  # [parts] share of all events
    balance: float  # events of the busiest part over the mean; 1 is best
    cut_links: int  # number of directed links between parts
    cut_packets: int  # number of packets that cross from one part into another
    cut_share: float  # share of the packets over all links that cross
    lookahead_ps: int  # minimum reach of a cut link, NO_CUT_PS if no link is cut
    duration_ps: int  # simulated time during which the fabric is busy
    duration_is_given: bool  # whether the duration was known; else it is the busiest link's time, the minimum
    windows: int  # number of synchronisations, at most one per lookahead of the duration
    least_events_per_window: float  # mean events per window of the part with the fewest events
    mean_events_per_window: float  # of all parts
    speed_up: float  # predicted speed-up over one part

    def as_dict(self) -> dict[str, object]:
        """Return all figures as plain values, for JSON; a lookahead without a cut is None."""
        plain: dict[str, object] = {
            name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()
        }
        return plain | {"lookahead_ps": None if self.lookahead_ps == NO_CUT_PS else self.lookahead_ps}


def report(
    graph: Graph,
    partition: Partition,
    weights: TrafficWeights,
    *,
    duration_ps: int | None = None,
    hop_ns: float = 50.0,
    sync_us: float = 15.0,
    mean_packet_bytes: float = MEAN_PACKET_BYTES,
) -> PartitionReport:
    """Assess a partition of a fabric.

    The predicted speed-up is total hop / (busiest hop + windows sync): the time of all events, over the time of the
    busiest part's events and the synchronisation of every window. It assumes a core per part, and ignores that parts
    may be busy at different times, so it is an upper bound for uneven traffic.

    Args:
        graph: The fabric (`Graph`).
        partition: Division of the fabric to assess.
        weights: Expected work of nodes and links.
        duration_ps: Simulated time in ps during which the fabric is busy, as windows skip the rest; None = the time
            that the busiest link needs for its packets (latency and waiting lengthen a run, and so increase its
            windows).
        hop_ns: Wall time in ns to simulate one event.
        sync_us: Wall time in microseconds of a window's synchronisation.
        mean_packet_bytes: Mean size of a packet on the wire in bytes, for the duration.
    """
    owner, parts = partition.owner, partition.parts
    npus = np.bincount(owner[: graph.npus], minlength=parts)
    events = np.zeros(parts, np.int64)
    np.add.at(events, owner, weights.node)
    total, busiest = int(events.sum()), int(events.max())
    cut = owner[graph.link_src] != owner[graph.link_dst]
    cut_packets = int(weights.link[cut].sum())
    given = duration_ps is not None
    if duration_ps is None:
        sending_ps = weights.link * (mean_packet_bytes * PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps)
        duration_ps = int(sending_ps.max(initial=0.0))
    # without a cut no part waits for another
    windows = math.ceil(duration_ps / partition.lookahead_ps) if cut.any() else 0
    needed_ns = busiest * hop_ns + windows * sync_us * 1e3
    return PartitionReport(
        method=partition.method,
        parts=parts,
        npus=npus,
        switches=np.bincount(owner, minlength=parts) - npus,
        events=events,
        share=events / max(total, 1),
        balance=busiest * parts / total if total else 1.0,
        cut_links=int(cut.sum()),
        cut_packets=cut_packets,
        cut_share=cut_packets / max(int(weights.link.sum()), 1),
        lookahead_ps=partition.lookahead_ps,
        duration_ps=duration_ps,
        duration_is_given=given,
        windows=windows,
        least_events_per_window=int(events.min()) / max(windows, 1),
        mean_events_per_window=total / parts / max(windows, 1),
        speed_up=total * hop_ns / needed_ns if needed_ns else 1.0,
    )
