"""The size of a network, determined from its parameters or the text of its file, before it is built."""

from collections.abc import Iterable
from typing import NamedTuple

_NPU_BYTES, _SWITCH_BYTES, _CABLE_BYTES = 100, 400, 220
_ENTRY_BYTES = 7.5
# Peak memory per item while networks of 10^4 to 10^6 nodes and cables were built, measured 2026-11-22
_DIMENSION_CABLE_BYTES = 480
# Further peak memory per byte of a network's file, for its lines, numbers and tables; measured 6 to 15
_TEXT_FACTOR = 10


class Extent(NamedTuple):
    """Counts of a network."""

    npus: int  # number of NPUs
    switches: int  # number of switches
    cables: int  # number of cables
    # number of switches with NPUs: columns of the routing table, which has a row per switch; 0 with dimension routing
    homes: int = 0
    text_bytes: int = 0  # size in bytes of the file that describes the network

    @property
    def nodes(self) -> int:
        """Number of NPUs and switches."""
        return self.npus + self.switches

    @property
    def peak_bytes(self) -> int:
        """Approximate peak memory of building the network, in bytes."""
        cable_bytes = _CABLE_BYTES if self.homes else _DIMENSION_CABLE_BYTES
        table = _ENTRY_BYTES * self.switches * self.homes
        text = _TEXT_FACTOR * self.text_bytes
        return int(_NPU_BYTES * self.npus + _SWITCH_BYTES * self.switches + cable_bytes * self.cables + table + text)


def of_cables(npus: int, switches: int, cables: Iterable[tuple[int, int, int]], text_bytes: int) -> Extent:
    """Return the extent of a file's network of `npus` NPUs and `switches` switches; text_bytes: size of the file.

    cables: ends of each cable, where switches have numbers of npus or more, and the count of parallel cables.
    """
    count, homes = 0, set()
    for a, b, parallel in cables:
        count += parallel
        if (a < npus) != (b < npus):
            homes.add(max(a, b))
    return Extent(npus, switches, count, len(homes), text_bytes)
