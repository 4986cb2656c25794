"""Statistics over the traces of all NPUs: mixes, sizes by rank, arrivals, overlap, the critical path.

`Rank` is the trace of one NPU; `statistics` returns all statistics as values that JSON can hold.
"""

from et.statistics.describing import statistics
from et.statistics.ranks import Rank

__all__ = ["Rank", "statistics"]
