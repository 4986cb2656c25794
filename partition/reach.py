"""Reach: the time after which sending at one end of a link can affect the other; a cut's minimum is its lookahead."""

import numpy as np
from numpy.typing import NDArray

from inputs.units import PS_PER_BYTE_AT_1_BPS
from topologies.graph import Graph

SMALLEST_BYTES = 66  # default size of the smallest packet: below the wire size of any packet with the engine's defaults


def reach_ps(graph: Graph, smallest_bytes: int) -> NDArray[np.int64]:
    """Return int64[links]: propagation delay, plus the transmission time of the smallest packet.

    Args:
        graph: Graph of the fabric.
        smallest_bytes: Wire size of the smallest packet in bytes.
    """
    sending_ps = smallest_bytes * PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps
    return graph.link_delay_ps + (sending_ps + 0.5).astype(np.int64)
