"""What the engine takes, by its fields (docs/reference/interfaces.md), and how arrays are called in annotations."""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # when it runs, anything that has their fields will do
    from topologies import Graph
    from workload import Program, Schedules
else:
    Graph = Program = Schedules = Any

Array = NDArray[Any]
"""Of a type that the code around it tells."""
Rows = Any
"""A recarray of a kind of row (pdes.core.rows): NumPy's types know no names of words."""
Record = Any
"""One row, likewise."""
Bools = NDArray[np.bool_]
Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


class Framing(Protocol):
    """Of Settings, what says how long packets are on a link."""

    @property
    def header_bytes(self) -> int: ...
    @property
    def ack_bytes(self) -> int: ...
    @property
    def nvlink_framing(self) -> bool: ...
