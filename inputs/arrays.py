"""Types of NumPy arrays by the type of their elements, for annotations."""

import numpy as np
from numpy.typing import NDArray

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
