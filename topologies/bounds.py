"""What numbers may be, and why: bounds of the quantities that users write, in one place.

The engine counts time in int64 picoseconds, of which half (2^62) stands for never; all else follows from that and from
the words that a packet, a link and a message are packed into (pdes/core/packet.py, pdes/core/state.py).
"""

from typing import NamedTuple


class Bounds(NamedTuple):
    """The least and the most that a number may be."""

    least: int
    most: int


LONGEST_PS = 10**18
"""Of one duration or moment that is given, 11.6 days: four of them are less than never."""
LONGEST_DELAY_PS = 10**12
"""Of a link or a switch, 1 s: round trips over many links stay below what timeouts and packets can hold."""
LONGEST_TIMEOUT_PS = 10**15
"""Of a timer of the transport, 1000 s: doubled six times it is less than LONGEST_PS."""
LINK_RATE_BPS = Bounds(10**6, 10**15)
"""A packet of 65,535 bytes takes 0.5 s on the slowest, and of 82 bytes two thirds of a picosecond on the fastest."""
MEMORY_RATE_BPS = Bounds(10**6, 10**18)
"""Of the memory of an NPU; wafers have 1.7 * 10^17."""
MOST_BYTES = 2**46 - 1
"""Of one message or collective, 64 TiB: what the counter of a link holds."""
MOST_NODES = 2**22 - 1
MOST_CABLES = 2**21 - 1
"""Nodes and directed links have 22 bits each in the engine."""


def beyond(value: int, bounds: Bounds) -> bool:
    """Whether a number is out of bounds."""
    return not bounds.least <= value <= bounds.most
