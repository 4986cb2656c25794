"""How large a network will be, told by its parameters, or the text of its file, before anything is built."""

from collections.abc import Iterable
from typing import NamedTuple

_NPU_BYTES, _SWITCH_BYTES, _CABLE_BYTES = 100, 400, 220
_ENTRY_BYTES = 7.5
_DIMENSION_CABLE_BYTES = 480
"""Peaks while networks of 10^4 to 10^6 nodes and cables were built, 2026-11-22."""
_TEXT_FACTOR = 10
"""And, of networks in files, 6 to 15 times the text: its lines, numbers and tables."""


class Extent(NamedTuple):
    """Counts of a network.

    Attributes:
        npus: NPUs.
        switches: switches.
        cables: cables.
        homes: switches that have NPUs, to each of which a routing table has a way from each switch; 0 where packets
            are routed by dimensions.
        text_bytes: of the file that says it.
    """

    npus: int
    switches: int
    cables: int
    homes: int = 0
    text_bytes: int = 0

    @property
    def nodes(self) -> int:
        """NPUs and switches."""
        return self.npus + self.switches

    @property
    def peak_bytes(self) -> int:
        """About the most memory that building it takes."""
        of_cable = _CABLE_BYTES if self.homes else _DIMENSION_CABLE_BYTES
        table = _ENTRY_BYTES * self.switches * self.homes
        text = _TEXT_FACTOR * self.text_bytes
        return int(_NPU_BYTES * self.npus + _SWITCH_BYTES * self.switches + of_cable * self.cables + table + text)


def of_cables(npus: int, switches: int, cables: Iterable[tuple[int, int, int]], text_bytes: int) -> Extent:
    """Of a file's cables: its ends, numbers that only a switch has being npus or more, and how many there are."""
    count, homes = 0, set()
    for a, b, side_by_side in cables:
        count += side_by_side
        if (a < npus) != (b < npus):
            homes.add(max(a, b))
    return Extent(npus, switches, count, len(homes), text_bytes)
