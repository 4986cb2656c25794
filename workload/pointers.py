"""Where runs of rows begin and end: the row pointers of compressed sparse rows."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pointers(counts: ArrayLike) -> NDArray[np.int64]:
    """int64[n+1]: where each of n runs of so many rows begins, and where the last ends."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
