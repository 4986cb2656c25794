"""Remote memory of an NPU (`tensor_loc` other than 0 in a trace): host memory, a CXL card, or a memory pool.

The model is that of ASTRA-sim 2.0 (Won et al., ISPASS 2023, section IV-C; astra-memory-analytical): an access takes the
memory's latency plus its bytes divided by the memory's bandwidth, and a memory serves one access at a time in order of
arrival. If each NPU has its own remote memory (PER_NPU_MEMORY_EXPANSION), it is a lane of the NPU.
"""

from dataclasses import dataclass

import numpy as np

from nadi.et.arrays import Int8, Mask
from nadi.workload.errors import WorkloadError
from nadi.workload.node_kinds import MEMORY, REMOTE_LANE
from nadi.workload.trace_sets.view import TraceView

REMOTE_KEY = '[memory] remote_bandwidth, as "64GB/s"'


@dataclass(frozen=True)
class RemoteMemory:
    """The remote memory of each NPU."""

    latency_ps: int = 0  # Latency per access in picoseconds
    # Bandwidth in bytes per second, None = unknown
    bandwidth_Bps: float | None = None  # noqa: N815 - bytes, not bits
    is_there: bool = True  # Whether NPUs have one; else nodes that need it are refused (NO_MEMORY_EXPANSION)


def is_remote(view: TraceView) -> Mask:
    """Return bool[n]: nodes of kind MEMORY whose tensor is in remote memory."""
    remote: Mask = (view.kind == MEMORY) & (view.table.tensor_loc != 0)
    return remote


def lanes(view: TraceView, remote: RemoteMemory | None) -> Int8:
    """Return int8[n]: lanes of a trace's nodes; refuse nodes that need remote memory where NPUs have none."""
    if remote is None:
        return view.lane
    needed = is_remote(view)
    if np.any(needed) and not remote.is_there:
        row = int(np.argmax(needed))
        raise WorkloadError(
            f"{view.node(row)}: tensor_loc is {view.table.tensor_loc[row]}, expected 0 (local), "
            'or another [memory] remote than "none"'
        )
    return np.where(needed, np.int8(REMOTE_LANE), view.lane)
