"""What a partition promises: balance, cut, and how much faster the run should be."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inputs.units import PS_PER_BYTE_AT_1_BPS
from partition.owners import NO_CUT_PS, Partition
from partition.weights import TrafficWeights
from topologies.graph import Graph

Int64 = NDArray[np.int64]

MEAN_PACKET_BYTES = 2132
"""Of a full packet of 4096 + 82 bytes and its acknowledgement of 86."""


@dataclass(frozen=True, eq=False)
class PartitionReport:
    """Figures of a partition.

    Attributes:
        method: how it was found.
        parts: number of parts.
        npus: int64[parts], NPUs of each part.
        switches: int64[parts], its other nodes.
        events: int64[parts], packets that are expected to arrive at its nodes.
        share: float64[parts], of all events.
        balance: events of the busiest part over the mean; 1 is best.
        cut_links: directed links between parts.
        cut_packets: packets that cross from one part into another.
        cut_share: of all packets over all links.
        lookahead_ps: least reach of a cut link, NO_CUT_PS if none is cut.
        duration_ps: simulated time in which anything is under way.
        duration_is_given: whether the duration was known; else it is the busiest link's time, the least possible.
        windows: how often the parts wait for each other, at most once for each lookahead of the duration.
        least_events_per_window: of the part with the fewest events.
        mean_events_per_window: of all parts.
        speed_up: predicted, over one part.
    """

    method: str
    parts: int
    npus: Int64
    switches: Int64
    events: Int64
    share: NDArray[np.float64]
    balance: float
    cut_links: int
    cut_packets: int
    cut_share: float
    lookahead_ps: int
    duration_ps: int
    duration_is_given: bool
    windows: int
    least_events_per_window: float
    mean_events_per_window: float
    speed_up: float

    def as_dict(self) -> dict[str, object]:
        """All figures as plain values, for JSON; a lookahead without a cut is None."""
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
    """Weigh a partition.

    The predicted speed-up is total hop / (busiest hop + windows sync): all events one after another, over those of the
    busiest part and the waiting at the end of every window. It holds where each part has a core to itself, and knows
    nothing of parts that are busy at different times, so that it is an upper bound for uneven traffic.

    Args:
        graph: the fabric.
        partition: of its nodes.
        weights: work of nodes and links.
        duration_ps: simulated time in which anything is under way, as windows jump over the rest; None = what the
            busiest link needs for its packets. Latency, and waiting for one another, make a run longer and so its
            windows more.
        hop_ns: time to simulate one event.
        sync_us: time that a window's synchronisation takes.
        mean_packet_bytes: mean size on the wire, for the duration.
    """
    owner, parts = partition.owner, partition.parts
    npus = np.bincount(owner[: graph.npus], minlength=parts)
    events = np.zeros(parts, np.int64)
    np.add.at(events, owner, weights.node)
    total, busiest = int(events.sum()), int(events.max())
    cut = owner[graph.link_src] != owner[graph.link_dst]
    cut_packets = int(weights.link[cut].sum())
    given = duration_ps is not None
    duration_ps = duration_ps if duration_ps is not None else _busiest_link_ps(graph, weights, mean_packet_bytes)
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


def _busiest_link_ps(graph: Graph, weights: TrafficWeights, packet_bytes: float) -> int:
    sending_ps = weights.link * (packet_bytes * PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps)
    return int(sending_ps.max(initial=0.0))
