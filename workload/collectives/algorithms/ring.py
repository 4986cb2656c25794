"""Ring: every member sends to the next member and receives from the previous one.

All-reduce is a reduce-scatter and then an all-gather (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009); the buffer is cut into n chunks and a step moves one. Broadcast and reduce are open
rings: pipelined chains from the root or towards it.

All-to-all relays the data for the k-th next member over the k - 1 members between, one message at a time, like
ASTRA-sim's "ring". It needs no links but those of a ring; on other fabrics it is so slow against `direct` that users
must name it.

Parallel rings share the work: `channels` of them, and as many in the other direction if `bidirectional`, each move
their share of every chunk.
"""

from itertools import pairwise

import numpy as np

from nadi.inputs.units import PS_PER_S
from nadi.workload.collectives.plans.extent import PlanExtent, of_chains
from nadi.workload.collectives.plans.plan import NONE, Lane, Plans, each_its_own, everyone_alike
from nadi.workload.collectives.plans.rings_and_trees import add_chain_steps, add_ring_steps
from nadi.workload.errors import WorkloadError

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "all-to-all")
NAMED_ONLY = ("all-to-all",)
PARAMETERS = {"channels": 1, "bidirectional": False}
LIMITS = {"channels": (1, 64)}

CHAIN_CHUNKS = 16  # pieces in a chain's pipeline: 1/16 of the buffer fills each hop


def plan(kind: str, members: int, channels: int = 1, bidirectional: bool = False) -> Plans:
    """Return each member's steps, a lane per channel and direction.

    The steps are 2(n-1) for all-reduce, n-1 for its halves, n(n-1)/2 for all-to-all, at most CHAIN_CHUNKS + 1 for
    chains. Raises WorkloadError: a chain that is bidirectional.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        channels: The number of parallel rings or chains, each with an equal share of every chunk.
        bidirectional: Whether as many rings run in the other direction; chains cannot.
    """
    if kind in {"broadcast", "reduce"}:
        if bidirectional:
            raise WorkloadError(f"algorithm 'ring:bidirectional=true' for {kind}: expected false, as it is a chain")
        return _chain(members, channels, outwards=kind == "broadcast")
    rings = _rings(channels, bidirectional=bidirectional)
    lanes = [_ring_lane(kind, members, rings, share, backwards=share >= channels) for share in range(rings)]
    return everyone_alike(members, members * rings, lanes, regions=3 if kind == "all-to-all" else 1)


def extent(kind: str, members: int, channels: int = 1, bidirectional: bool = False) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        channels: The number of parallel rings or chains, each with an equal share of every chunk.
        bidirectional: Whether as many rings run in the other direction; chains cannot.
    """
    if kind in {"broadcast", "reduce"}:
        return of_chains(members, channels, CHAIN_CHUNKS)
    rings = _rings(channels, bidirectional=bidirectional)
    return PlanExtent(rings * _steps(kind, members), rings)


def closed_form(
    kind: str,
    members: int,
    size_bytes: int,
    latency_ps: float,
    bytes_per_s: float,
    channels: int = 1,
    bidirectional: bool = False,
) -> float:
    """Return 2(n-1)(a + S/nB) for all-reduce, half of it for its halves; (n-2+k)(a + S/kB) for chains of k chunks.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        size_bytes: The size of the whole buffer S in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
        channels: The number of parallel rings or chains, each with an equal share of every chunk.
        bidirectional: Whether as many rings run in the other direction; chains cannot.
    """
    # All-to-all takes n(n-1)/2 (a + S/nB). A chain's chunks do not wait for the latency, which therefore counts only
    # n-1 times. With c rings the messages of a step follow each other: with b = S/ncB and s steps it takes a + cb +
    # (s-1) max(a + b, cb).
    if kind in {"broadcast", "reduce"}:
        chunks = CHAIN_CHUNKS * channels
        # The last chunk leaves after all others, and each member but the two ends forwards it once more
        chunk_ps = size_bytes / chunks / bytes_per_s * PS_PER_S
        return (members - 1) * latency_ps + (members - 2 + chunks) * chunk_ps
    rings = _rings(channels, bidirectional=bidirectional)
    steps = _steps(kind, members)
    chunk_ps = size_bytes / (members * rings) / bytes_per_s * PS_PER_S
    step_ps = max(latency_ps + chunk_ps, rings * chunk_ps)
    return (steps - 1) * step_ps + latency_ps + rings * chunk_ps


def _rings(channels: int, *, bidirectional: bool) -> int:
    return 2 * channels if bidirectional else channels


def _steps(kind: str, members: int) -> int:
    """Return the number of steps of a ring."""
    return {"all-reduce": 2 * (members - 1), "all-to-all": members * (members - 1) // 2}.get(kind, members - 1)


def _ring_lane(kind: str, members: int, ring_count: int, ring_number: int, *, backwards: bool) -> Lane:
    """Return the lane of one of several parallel rings, which moves its share of each member's chunk."""
    if kind != "all-to-all":
        return add_ring_steps(
            Lane(), ring_number, kind, members, ring_count, np.array(ring_number), direction=-1 if backwards else 1
        )

    def member(distance: int) -> int:
        """Return the relative number of the member `distance` places on in the direction of the ring."""
        return (-distance if backwards else distance) % members

    lane, chunks = Lane(), members * ring_count
    scratch = 2 * chunks + ring_number
    for k in range(1, members):  # the data for the k-th next member moves k hops, through a scratch region
        own, last = (member(distance) * ring_count + ring_number for distance in (k, -k))
        for send, receive in pairwise([own, *[scratch] * (k - 1), chunks + last]):
            lane.step(send_to=member(1), to_lane=ring_number, send=send, receive_from=member(-1), receive=receive)
    return lane


def _chain(members: int, channels: int, *, outwards: bool) -> Plans:
    """Return plans of a chain from member 0 to the last (outwards), or back; each channel moves CHAIN_CHUNKS chunks."""

    def links(member: int) -> list[Lane]:
        """Return the lanes of a `member` by its number, one per channel; NONE is a missing neighbour."""
        before, after = (member - 1, member + 1) if outwards else (member + 1, member - 1)
        before, after = (peer if 0 <= peer < members else NONE for peer in (before, after))
        lanes = [Lane() for _ in range(channels)]
        for channel, lane in enumerate(lanes if members > 1 else ()):
            chunks = range(channel * CHAIN_CHUNKS, (channel + 1) * CHAIN_CHUNKS)
            add_chain_steps(lane, channel, before, after, chunks, reduce=not outwards and before != NONE)
        return lanes

    return each_its_own(CHAIN_CHUNKS * channels, (links(member) for member in range(members)))
