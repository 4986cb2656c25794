"""Memory that is not the NPU's own, where a trace's `tensor_loc` is not 0: of the host, of a card of CXL, of a pool.

As ASTRA-sim 2.0's remote memories (Won et al., ISPASS 2023, section IV-C; astra-memory-analytical): an access takes the
memory's latency and its bytes at the memory's bandwidth, and a memory does one access at a time, in the order in which
they come. Where each NPU has a remote memory of its own (PER_NPU_MEMORY_EXPANSION), that is a lane of the NPU.
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
    """A remote memory of each NPU.

    Attributes:
        latency_ps: of each access.
        bandwidth_Bps: bytes per second.
        is_there: False: there is none, and nodes that want it are refused (NO_MEMORY_EXPANSION).

    Raises:
        WorkloadError: a negative latency, or a bandwidth that is not positive.
    """

    latency_ps: int = 0
    bandwidth_Bps: float | None = None  # noqa: N815 - bytes, not bits
    is_there: bool = True

    def __post_init__(self) -> None:
        if self.latency_ps < 0:
            raise WorkloadError(f"latency of remote memory is {self.latency_ps} ps: expected 0 or more")
        if self.bandwidth_Bps is not None and not 0 < self.bandwidth_Bps < float("inf"):
            raise WorkloadError(f"bandwidth of remote memory is {self.bandwidth_Bps}: expected a positive number")


def is_remote(view: TraceView) -> NDArray[np.bool_]:
    """bool[n]: nodes of kind MEMORY whose tensor is not in the NPU's own memory."""
    found: NDArray[np.bool_] = (view.kind == MEMORY) & (view.table.tensor_loc != 0)
    return found


def lanes(view: TraceView, remote: RemoteMemory | None) -> NDArray[np.int8]:
    """int8[n]: lanes of a trace's nodes; without remote memory those of the view.

    Raises:
        WorkloadError: a node wants remote memory that is not there.
    """
    if remote is None:
        return view.lane
    wanted = is_remote(view)
    if np.any(wanted) and not remote.is_there:
        row = int(np.argmax(wanted))
        raise WorkloadError(
            f"{view.node(row)}: tensor_loc is {view.table.tensor_loc[row]}, expected 0 (local), "
            'or another [memory] remote than "none"'
        )
    return np.where(wanted, np.int8(REMOTE_LANE), view.lane)
