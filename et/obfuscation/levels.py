"""Levels of fidelity: the treatment of sizes and times."""

from dataclasses import dataclass

import numpy as np

from et.arrays import Int64
from et.errors import TraceError
from et.obfuscation.secret import SecretKey

# Choices of Nadi; docs/explanation/synthetic-traces.md measures their effect.
_JITTER = 0.005
_BUCKETS_PER_OCTAVE = 4
_MAX_OCTAVES = 2.0  # a scale factor is from 2^-2 to 2^2
_FLAT = {"bytes": 1 << 16, "micros": 10, "flops": 10**9}
_LARGEST = 2**62  # of a replaced number, below the maximum of int64


@dataclass(frozen=True)
class Level:
    """Treatment of the numbers of a trace. Every level keeps the structure and hides names and shapes."""

    name: str  # name by which users choose the level
    meaning: str  # description in one line
    has_start_times: bool = False  # whether start times are kept, counted from the first one of all traces
    jitter: float = 0.0  # maximum relative deviation from 1 of the secret factor of each distinct number
    is_bucketed: bool = False  # whether numbers are rounded to the nearest of four per octave
    is_scaled: bool = False  # whether sizes, and times and operations, are multiplied by secret factors of 1/4 to 4
    is_flat: bool = False  # whether all numbers of a kind become the same

    @property
    def keeps_numbers(self) -> bool:
        """Whether sizes and times are kept."""
        return not (self.jitter or self.is_bucketed or self.is_scaled or self.is_flat)


LEVELS = {
    level.name: level
    for level in (
        Level("full", "sizes and times are kept, and so is the simulated time", has_start_times=True),
        Level("near", "each distinct size and time changes by up to 0.5 %, depending on the key", jitter=_JITTER),
        Level("coarse", "sizes and times are rounded to four steps per octave, up to 9 % off", is_bucketed=True),
        Level(
            "scaled",
            "as coarse, with all sizes and all times multiplied by secret factors",
            is_bucketed=True,
            is_scaled=True,
        ),
        Level("structure", "all sizes become 64 KiB, all times 10 microseconds", is_flat=True),
    )
}


def level_of(name: str) -> Level:
    """Return a level by its name; raise TraceError if no level has this name."""
    if name not in LEVELS:
        raise TraceError(f"fidelity {name!r}: expected one of {', '.join(LEVELS)}")
    return LEVELS[name]


def hidden(level: Level, secret: SecretKey, column: str, unit: str, values: Int64) -> Int64:
    """Return the replacements of numbers: equal ones stay equal, and positive ones positive; 0 and less are kept.

    The numbers belong to a column, such as "comm_size", in bytes, micros or flops.
    """
    distinct, row = np.unique(values, return_inverse=True)
    found = [_hidden(level, secret, column, unit, value) if value > 0 else value for value in distinct.tolist()]
    return np.array(found, np.int64)[row].reshape(values.shape)


def _hidden(level: Level, secret: SecretKey, column: str, unit: str, value: int) -> int:
    """Return the replacement of one positive number, as `hidden` does."""
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
