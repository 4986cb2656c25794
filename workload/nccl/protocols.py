"""The three ways in which NCCL moves a chunk.

LL stores 4 bytes of data and 4 of flag together, so the receiver polls the data itself. LL128 does that with 8 bytes of
flag for every 128. Simple moves plain data and posts a flag when a whole slice is there. A connection has a buffer of
NCCL_STEPS = 8 slots; a ring's chunk fills one slot, with Simple four for the kinds that go round (*_CHUNKSTEPS,
NCCL_LL_* and NCCL_LL128_* in src/include/collectives.h and src/include/device.h of NCCL).
"""

from typing import NamedTuple

KIB = 1024
_ONE_SLOT = frozenset({"broadcast", "reduce"})


class Protocol(NamedTuple):
    """A protocol.

    Attributes:
        name: as in NCCL_PROTO.
        wire: (numerator, denominator), bytes on the wire per byte of data.
        slot_bytes: data that a slot of the connection's buffer holds.
        slots: of a ring's chunk.
        least_bytes: down to this chunks of a tree are halved for the sake of pipelining.
        threads: of a channel.
        thread_bytes: a channel is only used if each of its threads has as much data.
    """

    name: str
    wire: tuple[int, int]
    slot_bytes: int
    slots: int
    least_bytes: int
    threads: int
    thread_bytes: int

    def chunk_bytes(self, kind: str) -> int:
        """The most that one step of a channel moves."""
        return self.slot_bytes * (1 if kind in _ONE_SLOT else self.slots)


LL = Protocol("ll", (2, 1), 512 * 8 * 8, 1, 4 * KIB, 512, 8)
LL128 = Protocol("ll128", (16, 15), 640 * 120 * 8 * 15 // 16, 1, 16 * KIB, 640, 8)
SIMPLE = Protocol("simple", (1, 1), 512 * KIB, 4, 32 * KIB, 512, 64)

PROTOCOLS = {protocol.name: protocol for protocol in (LL, LL128, SIMPLE)}
