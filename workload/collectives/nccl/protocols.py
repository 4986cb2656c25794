"""The three ways in which NCCL moves a chunk.

LL stores 4 bytes of data and 4 of flag together, so the receiver polls the data itself. LL128 does that with 8 bytes of
flag for every 128. Simple moves plain data and posts a flag when a whole slice is there. A connection has a buffer of
NCCL_STEPS = 8 slots; a ring's chunk fills one slot, with Simple four for the kinds that go round, where it moves in two
slices of two slots, none smaller than a 32nd of that (*_CHUNKSTEPS, *_SLICESTEPS, NCCL_LL_* and NCCL_LL128_* in
src/include/collectives.h and src/include/device.h of NCCL; src/device/prims_simple.h).
"""

from typing import NamedTuple

from inputs.units import KIB

_ONE_SLOT = frozenset({"broadcast", "reduce"})
_SLICES_OF_LEAST = 32
"""The least slice is such a part of a full one."""


class Protocol(NamedTuple):
    """A protocol.

    Attributes:
        name: as in NCCL_PROTO.
        wire: (numerator, denominator), bytes on the wire per byte of data.
        slot_bytes: data that a slot of the connection's buffer holds.
        slots: of a ring's chunk.
        slices: in which such a chunk moves.
        least_bytes: down to this chunks of a tree are halved for the sake of pipelining.
        threads: of a channel.
        thread_bytes: a channel is only used if each of its threads has as much data.
    """

    name: str
    wire: tuple[int, int]
    slot_bytes: int
    slots: int
    slices: int
    least_bytes: int
    threads: int
    thread_bytes: int

    def chunk_bytes(self, kind: str) -> int:
        """The most that one step of a channel moves."""
        return self.slot_bytes * (1 if kind in _ONE_SLOT else self.slots)

    def slices_of(self, kind: str, chunk_bytes: float) -> int:
        """In how many slices a chunk of a ring moves."""
        least_bytes = self.slot_bytes * self.slots / self.slices / _SLICES_OF_LEAST
        return 1 if kind in _ONE_SLOT or chunk_bytes <= least_bytes else self.slices


LL = Protocol("ll", (2, 1), 512 * 8 * 8, 1, 1, 4 * KIB, 512, 8)
LL128 = Protocol("ll128", (16, 15), 640 * 120 * 8 * 15 // 16, 1, 1, 16 * KIB, 640, 8)
SIMPLE = Protocol("simple", (1, 1), 512 * KIB, 4, 2, 32 * KIB, 512, 64)

PROTOCOLS = {protocol.name: protocol for protocol in (LL, LL128, SIMPLE)}
