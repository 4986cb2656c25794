"""Row pointers of compressed sparse rows."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pointers(counts: ArrayLike) -> NDArray[np.int64]:
    """Return int64[n+1]: the start of each of n consecutive runs with the given lengths, and the end of the last."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
