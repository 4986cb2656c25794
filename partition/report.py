"""Predicted quality of a partition: balance, cut, and speed-up."""

import math
from dataclasses import dataclass

import numpy as np

from nadi.inputs.arrays import Float64, Int64
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.partition.owners import NO_CUT_PS, Partition
from nadi.partition.weights import TrafficWeights
from nadi.topologies import Graph

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
