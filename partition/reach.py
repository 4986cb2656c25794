"""Reach: how soon what leaves one end of a link can matter at the other. The least reach of a cut is its lookahead."""

import numpy as np
from numpy.typing import NDArray

from inputs.units import PS_PER_BYTE_AT_1_BPS
from topologies.graph import Graph

SMALLEST_BYTES = 66
"""Unless a run says more exactly: less than any packet of the engine's defaults has on the wire."""


def reach_ps(graph: Graph, smallest_bytes: int) -> NDArray[np.int64]:
    """int64[links]: propagation delay, and the time that the smallest packet takes to be sent.

    Args:
        graph: the fabric.
        smallest_bytes: of the smallest packet on the wire.
    """
    sending_ps = smallest_bytes * PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps
    return graph.link_delay_ps + (sending_ps + 0.5).astype(np.int64)
