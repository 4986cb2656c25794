"""All that NCCL decides for a collective of a size: algorithm, protocol, channels, and into how many chunks."""

from typing import NamedTuple

from workload.nccl import tuning
from workload.nccl.generations import Generation, generations
from workload.nccl.hosts import hosts_of
from workload.nccl.overrides import overrides_of
from workload.nccl.protocols import PROTOCOLS, Protocol
from workload.nccl.trees import tree
from workload.shape import Shape

MOST_CHANNELS = 32
MOST_SLICES = max(protocol.slices for protocol in PROTOCOLS.values())
MOST_STEPS = 1024
"""Of a lane. Where a buffer would take more, its chunks grow beyond what NCCL's buffers hold."""
PLANNED = "planned"
"""Pacing: a channel drives no more than the part of NVLink that NCCL plans for it."""
PACINGS = (PLANNED, "none")


class Way(NamedTuple):
    """What is decided; sizes of one way have one plan.

    Attributes:
        algorithm: ring or tree.
        protocol: ll, ll128 or simple.
        channels: that are used.
        pieces: loops over the buffer of a ring that goes round, chunks of a channel else.
        slices: in which a chunk of a ring moves.
        shares: a channel of a ring or chain drives 1 / shares of its port's line rate.
    """

    algorithm: str
    protocol: str
    channels: int
    pieces: int
    slices: int
    shares: int

    @property
    def transport(self) -> Protocol:
        """The protocol itself."""
        return PROTOCOLS[self.protocol]

    @property
    def number(self) -> int:
        """A number that no other way of the same shares has."""
        names = tuple(PROTOCOLS)
        kind = names.index(self.protocol) * 2 + (self.algorithm == tuning.TREE)
        count = (self.pieces * (MOST_CHANNELS + 1) + self.channels) * MOST_SLICES + self.slices - 1
        return count * len(names) * 2 + kind


def way_of(
    kind: str,
    shape: Shape,
    size_bytes: int,
    *,
    algo: str,
    proto: str,
    channels: int,
    generation: str,
    overrides: str,
    pacing: str,
) -> Way:
    """What is decided for a size; the parameters are those of workload.collectives.nccl.

    Raises:
        WorkloadError: overrides that are none.
    """
    for part in reversed(overrides_of(overrides)):
        if part.fits(size_bytes):
            algo, proto = part.algorithm, part.protocol
    made = generations()[generation]
    most = channels or _channels(shape, made.channels)
    algorithm, protocol = tuning.best(kind, shape, size_bytes, made, most, algo, proto)
    used = channels or _used(most, size_bytes, PROTOCOLS[protocol], shape.members if algorithm == tuning.RING else 1)
    shares = _shares(shape, made) if pacing == PLANNED and algorithm == tuning.RING else 1
    way = Way(algorithm, protocol, used, 1, 1, shares)
    way = way._replace(slices=_slices(kind, shape, size_bytes, way))
    return way._replace(pieces=_pieces(kind, shape, size_bytes, way))


def _shares(shape: Shape, generation: Generation) -> int:
    """In one host NCCL plans all channels for an equal part of NVLink, also where fewer are used.

    What it plans between hosts depends on how its search matches NICs with NVLinks; the NIC is the slower of them.
    """
    return generation.channels if len(set(shape.host)) == 1 else 1


def _slices(kind: str, shape: Shape, size_bytes: int, way: Way) -> int:
    """Of a chunk, 1 where a lane would get too many steps. With several loops chunks are large."""
    steps = tuning.ring_steps(kind, shape.members)
    slices = way.transport.slices_of(kind, size_bytes / (way.channels * shape.members))
    return slices if way.algorithm == tuning.RING and steps * slices <= MOST_STEPS else 1


def _channels(shape: Shape, inside: int) -> int:
    """Of a group: two for each rail, as NCCL doubles its rings for bandwidth; in one host the generation's number."""
    hosts = hosts_of(shape)
    rails = max(len(own) for own in hosts)
    return inside if len(hosts) == 1 else min(2 * rails, MOST_CHANNELS)


def _used(most: int, size_bytes: int, protocol: Protocol, members: int) -> int:
    """Channels that have enough to do: with LL in a ring each thread for each member."""
    least_bytes = protocol.threads * protocol.thread_bytes * (members if protocol.name == "ll" else 1)
    return max(1, min(most, size_bytes // least_bytes))


def _pieces(kind: str, shape: Shape, size_bytes: int, way: Way) -> int:
    chunk_bytes = way.transport.chunk_bytes(kind)
    if way.algorithm == tuning.TREE:
        return _tree_chunks(shape, size_bytes, way)
    if kind in {"broadcast", "reduce"}:
        return max(1, min(-(-size_bytes // (way.channels * chunk_bytes)), MOST_STEPS))
    loops = -(-size_bytes // (way.channels * shape.members * chunk_bytes))
    return max(1, min(loops, MOST_STEPS // (tuning.ring_steps(kind, shape.members) * way.slices)))


def _tree_chunks(shape: Shape, size_bytes: int, way: Way) -> int:
    """Of a channel: a slot each, but smaller ones where a tree of this depth would not be filled."""
    depth = max(tree(shape, channel, way.channels).depth for channel in {0, way.channels - 1})
    chunk_bytes, share_bytes = way.transport.slot_bytes, -(-size_bytes // way.channels)
    while share_bytes < depth * chunk_bytes and chunk_bytes // 2 >= way.transport.least_bytes:
        chunk_bytes //= 2
    return max(1, min(-(-share_bytes // chunk_bytes), MOST_STEPS))
