"""Types of the engine's inputs by their fields (docs/reference/interfaces.md), and array types for annotations."""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # at run time, any object with their fields works
    from nadi.topologies import Graph
    from nadi.workload import Program, Schedules
else:
    Graph = Program = Schedules = Any

Array = NDArray[Any]  # array of a type that the surrounding code defines
Rows = Any  # a recarray of a kind of row (pdes.core.rows); NumPy's types do not know the names of words
Record = Any  # one row of such a recarray
Bools = NDArray[np.bool_]
Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


class Framing(Protocol):
    """The settings that determine the lengths of packets on a link."""

    @property
    def header_bytes(self) -> int: ...
    @property
    def ack_bytes(self) -> int: ...
    @property
    def nvlink_framing(self) -> bool: ...
