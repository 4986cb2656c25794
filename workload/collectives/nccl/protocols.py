"""The three protocols with which NCCL moves a chunk.

LL stores 4 bytes of data with 4 bytes of flag, so that the receiver polls the data itself. LL128 does that with 8 bytes
of flag per 128. Simple moves plain data and posts a flag for each complete slice. A connection has a buffer of
NCCL_STEPS = 8 slots. A ring's chunk fills one slot, except with Simple in kinds that go round the ring: there it fills
four slots and moves in two slices of two slots, none smaller than 1/32 of that (*_CHUNKSTEPS, *_SLICESTEPS, NCCL_LL_*
and NCCL_LL128_* in src/include/collectives.h and src/include/device.h of NCCL; src/device/prims_simple.h).
"""

from typing import NamedTuple

from nadi.inputs.units import KIB

_ONE_SLOT = frozenset({"broadcast", "reduce"})
_SLICES_OF_LEAST = 32  # ratio of a full slice to the smallest one


class Protocol(NamedTuple):
    """A protocol."""

    name: str  # name as in NCCL_PROTO, in lower case
    wire: tuple[int, int]  # (numerator, denominator) of bytes on the wire per byte of data
    slot_bytes: int  # data bytes of a slot of the connection's buffer
    slots: int  # number of slots of a ring's chunk
    slices: int  # number of slices of such a chunk
    least_bytes: int  # minimum chunk of a tree, to which chunks are halved to fill the pipeline
    threads: int  # number of threads of a channel
    thread_bytes: int  # minimum data per thread for a channel to be used

    def wire_bytes(self, data_bytes: float) -> float:
        """Return the bytes on the wire of some data, not rounded."""
        return data_bytes * self.wire[0] / self.wire[1]

    def chunk_bytes(self, kind: str) -> int:
        """Return the maximum bytes that one step of a channel moves."""
        return self.slot_bytes * (1 if kind in _ONE_SLOT else self.slots)

    def slices_of(self, kind: str, chunk_bytes: float) -> int:
        """Return the number of slices of a ring's chunk."""
        least_bytes = self.slot_bytes * self.slots / self.slices / _SLICES_OF_LEAST
        return 1 if kind in _ONE_SLOT or chunk_bytes <= least_bytes else self.slices


LL = Protocol("ll", (2, 1), 512 * 8 * 8, 1, 1, 4 * KIB, 512, 8)
LL128 = Protocol("ll128", (16, 15), 640 * 120 * 8 * 15 // 16, 1, 1, 16 * KIB, 640, 8)
SIMPLE = Protocol("simple", (1, 1), 512 * KIB, 4, 2, 32 * KIB, 512, 64)

PROTOCOLS = {protocol.name: protocol for protocol in (LL, LL128, SIMPLE)}
