"""Bounds of what users write, and their reasons, in one place.

The engine counts time in int64 picoseconds, and 2^62 means never; all bounds of times and rates follow from that
and from the words that a packet, a link and a message are packed into (pdes/core/packet.py, pdes/core/state.py).
"""

from typing import NamedTuple


class Bounds(NamedTuple):
    """The minimum and the maximum of a number."""

    minimum: int
    maximum: int


MAX_NPUS = 2**19 - 1  # NPUs of a fabric, a plan or a job: their numbers and differences of these fit into 20 bits
TAGS = 2**24  # different tags of messages
MAX_EQUAL_MESSAGES = 2**20  # messages of two NPUs with one tag, and collectives of a group, that can be told apart
PEER_BIAS = MAX_NPUS + 1  # added to a relative peer in the key of a receive, so that the key is not negative
LONGEST_PS = 10**18  # maximum of a single duration or time, 11.6 days: four of them are less than never
# Maximum delay of a link or switch, 1 s: round trips over many links stay below the limits of timeouts and packets
LONGEST_DELAY_PS = 10**12
LONGEST_TIMEOUT_PS = 10**15  # maximum of a transport timer, 1000 s: doubled six times it is less than LONGEST_PS
# Rates of links: a packet of 65,535 bytes takes 0.5 s on the slowest, one of 82 bytes 0.7 ps on the fastest
LINK_RATE_BPS = Bounds(10**6, 10**15)
MEMORY_RATE_BPS = Bounds(10**6, 10**18)  # bandwidths of an NPU's memory; wafer-scale processors have 1.7 * 10^17
MAX_BYTES = 2**46 - 1  # maximum size of a message or collective, 64 TiB: the range of a link's byte counter
MAX_NODES = 2**22 - 1
MAX_CABLES = 2**21  # nodes and directed links have 22 bits each in the engine


def beyond(value: int, bounds: Bounds) -> bool:
    """Return whether a number is out of bounds.

    Args:
        value: The number to check.
        bounds: The smallest and the largest number that is allowed.
    """
    return not bounds.minimum <= value <= bounds.maximum
