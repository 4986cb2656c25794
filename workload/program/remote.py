"""Remote memory of an NPU (`tensor_loc` other than 0 in a trace): host memory, a CXL card, or a memory pool.

The model is that of ASTRA-sim 2.0 (Won et al., ISPASS 2023, section IV-C; astra-memory-analytical): an access takes the
memory's latency plus its bytes divided by the memory's bandwidth, and a memory serves one access at a time in order of
arrival. If each NPU has its own remote memory (PER_NPU_MEMORY_EXPANSION), it is a lane of the NPU.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workload.errors import WorkloadError
from workload.node_kinds import MEMORY, REMOTE_LANE
from workload.trace_sets.view import TraceView

REMOTE_KEY = '[memory] remote_bandwidth, as "64GB/s"'


@dataclass(frozen=True)
class RemoteMemory:
    """The remote memory of each NPU.

    Raises:
        WorkloadError: If the latency is negative or the bandwidth is not positive.
    """

    latency_ps: int = 0  # Latency per access in picoseconds
    # Bandwidth in bytes per second, None = unknown
    bandwidth_Bps: float | None = None  # noqa: N815 - bytes, not bits
    # Whether NPUs have a remote memory; if not, nodes that need it are refused (NO_MEMORY_EXPANSION)
    is_there: bool = True

    def __post_init__(self) -> None:
        if self.latency_ps < 0:
            raise WorkloadError(f"latency of remote memory is {self.latency_ps} ps: expected 0 or more")
        if self.bandwidth_Bps is not None and not 0 < self.bandwidth_Bps < float("inf"):
            raise WorkloadError(f"bandwidth of remote memory is {self.bandwidth_Bps}: expected a positive number")


def is_remote(view: TraceView) -> NDArray[np.bool_]:
    """Return bool[n]: nodes of kind MEMORY whose tensor is in remote memory."""
    remote: NDArray[np.bool_] = (view.kind == MEMORY) & (view.table.tensor_loc != 0)
    return remote


def lanes(view: TraceView, remote: RemoteMemory | None) -> NDArray[np.int8]:
    """Return int8[n]: lanes of a trace's nodes; with None those of the view.

    Raises:
        WorkloadError: If a node needs remote memory but NPUs have none.
    """
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
