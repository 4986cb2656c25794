"""Levels of fidelity: what becomes of sizes and times."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from et.errors import TraceError
from et.obfuscation.secret import SecretKey

Int64 = NDArray[np.int64]

_JITTER = 0.005
_BUCKETS_PER_OCTAVE = 4
_MAX_OCTAVES = 2.0
_FLAT = {"bytes": 1 << 16, "micros": 10, "flops": 10**9}
_LARGEST = 2**62


@dataclass(frozen=True)
class Level:
    """What becomes of the numbers of a trace. Structure stays at every level, names and shapes go at every level.

    Attributes:
        name: as users choose it.
        meaning: one line.
        has_start_times: start times stay, counted from the first one of all traces.
        jitter: each distinct number is multiplied by a secret factor from 1 - jitter to 1 + jitter.
        is_bucketed: numbers become the nearest of four an octave.
        is_scaled: all sizes are multiplied by a secret factor from 1/4 to 4, and all times and operations by another.
        is_flat: all numbers of a kind are the same.
    """

    name: str
    meaning: str
    has_start_times: bool = False
    jitter: float = 0.0
    is_bucketed: bool = False
    is_scaled: bool = False
    is_flat: bool = False

    @property
    def keeps_numbers(self) -> bool:
        """Sizes and times stay as they are."""
        return not (self.jitter or self.is_bucketed or self.is_scaled or self.is_flat)


LEVELS = {
    level.name: level
    for level in (
        Level("full", "sizes and times as they are: the simulated time stays", has_start_times=True),
        Level("near", "each distinct size and time is up to 0.5 % off, by the key", jitter=_JITTER),
        Level("coarse", "sizes and times are rounded to four steps an octave, up to 9 % off", is_bucketed=True),
        Level("scaled", "as coarse, and all sizes and all times by secret factors", is_bucketed=True, is_scaled=True),
        Level("structure", "all sizes are 64 KiB, all times 10 microseconds", is_flat=True),
    )
}


def level_of(name: str) -> Level:
    """A level by its name.

    Raises:
        TraceError: there is none of that name.
    """
    if name not in LEVELS:
        raise TraceError(f"fidelity {name!r}: expected one of {', '.join(LEVELS)}")
    return LEVELS[name]


def hidden(level: Level, secret: SecretKey, column: str, unit: str, values: Int64) -> Int64:
    """Numbers in disguise: equal ones stay equal, 0 and absent ones (below 0) stay as they are, others stay above 0.

    Args:
        level: of fidelity.
        secret: the key.
        column: what the numbers are, "comm_size".
        unit: bytes, micros or flops.
        values: int64[n].
    """
    distinct, row = np.unique(values, return_inverse=True)
    found = [_hidden(level, secret, column, unit, value) if value > 0 else value for value in distinct.tolist()]
    return np.array(found, np.int64)[row].reshape(values.shape)


def _hidden(level: Level, secret: SecretKey, column: str, unit: str, value: int) -> int:
    if level.keeps_numbers:
        return value
    if level.is_flat:
        return _FLAT[unit]
    number = float(value)
    if level.is_bucketed:
        number = float(2 ** (round(_BUCKETS_PER_OCTAVE * np.log2(number)) / _BUCKETS_PER_OCTAVE))
    if level.is_scaled:
        of_all = "sizes" if unit == "bytes" else "times"
        number *= 2 ** (_MAX_OCTAVES * (2 * secret.fraction("scale", of_all) - 1))
    number *= 1 + level.jitter * (2 * secret.fraction(column, value) - 1)
    return min(max(round(number), 1), _LARGEST)
