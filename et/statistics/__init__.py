"""What the traces of all NPUs say together: mixes, sizes by rank, arrivals, overlap, the critical path.

`Rank` is the trace of one NPU; `statistics` brings all together in values that JSON can hold.
"""

from et.statistics.describing import statistics
from et.statistics.ranks import Rank

__all__ = ["Rank", "statistics"]
