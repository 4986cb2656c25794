"""How large a network will be, told by its parameters before anything is built."""

from typing import NamedTuple

_NPU_BYTES, _SWITCH_BYTES, _CABLE_BYTES = 100, 400, 220
_ENTRY_BYTES = 7.5
_DIMENSION_CABLE_BYTES = 480
"""Peaks while networks of 10^4 to 10^6 nodes and cables were built, 2026-11-22."""


class Extent(NamedTuple):
    """Counts of a network.

    Attributes:
        npus: NPUs.
        switches: switches.
        cables: cables.
        homes: switches that have NPUs, to each of which a routing table has a way from each switch; 0 where packets
            are routed by dimensions.
    """

    npus: int
    switches: int
    cables: int
    homes: int = 0

    @property
    def nodes(self) -> int:
        """NPUs and switches."""
        return self.npus + self.switches

    @property
    def peak_bytes(self) -> int:
        """About the most memory that building it takes."""
        of_cable = _CABLE_BYTES if self.homes else _DIMENSION_CABLE_BYTES
        table = _ENTRY_BYTES * self.switches * self.homes
        return int(_NPU_BYTES * self.npus + _SWITCH_BYTES * self.switches + of_cable * self.cables + table)
