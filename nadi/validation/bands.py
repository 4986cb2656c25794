"""Bands: between which times a measurement lies, given a predicted one, by the measured cases of its class.

A case has a ratio, its measured time over the predicted one. Of n ratios in ascending order a band goes from the k-th
to the (n + 1 - k)-th, where k is the whole part of 0.05 (n + 1), and at least 1. If the next measurement is as likely
to have any rank among these n as another (the same kind of machine and software), it lies in the band with a
probability of 1 - 2k / (n + 1): about 90 % from 19 cases on, and less with fewer, where the band goes from the smallest
to the largest ratio (split conformal prediction: Lei et al., JASA 113, 2018). Small and large buffers have bands of
their own. scripts/validation.py writes bands.json from its recorded results.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BANDS = Path(__file__).with_name("bands.json")
LARGE_BYTES = 32 << 20
"""Size in bytes from which a buffer is large: acceptance tests measure bandwidths, which launches no longer hide."""
TAIL = 0.05  # fraction of the cases below the band, and above it
_SMALLEST_CASES = 3  # number of cases below which they say nothing about the spread


@dataclass(frozen=True)
class RatioBand:
    """The band of the ratios of measured to predicted times."""

    cases: int  # number of measured cases
    low: float  # smallest ratio of the band
    high: float  # largest ratio of the band
    coverage: float  # probability that the ratio of a further case of the same kind is in the band


def band_of(ratios: Sequence[float]) -> RatioBand | None:
    """Return the band of measured over predicted times; None if there are fewer than three.

    Args:
        ratios: The ratio of each measured case.
    """
    count = len(ratios)
    if count < _SMALLEST_CASES:
        return None
    rank = max(1, int(TAIL * (count + 1)))
    ordered = sorted(ratios)
    low, high = ordered[rank - 1], ordered[count - rank]
    return RatioBand(count, round(low, 4), round(high, 4), round(1 - 2 * rank / (count + 1), 4))


@cache
def _bands() -> dict[str, dict[str, RatioBand]]:
    """Return the bands by the name of the class, and by "small" and "large"."""
    known = json.loads(BANDS.read_text(encoding="utf-8"))
    return {name: {size: RatioBand(**band) for size, band in bands.items()} for name, bands in known.items()}


def ratio_band(class_name: str, size_bytes: int) -> RatioBand | None:
    """Return the band of a class for a size of the buffer; None if too few cases were measured.

    Args:
        class_name: The name of the class of a question.
        size_bytes: The size of the whole buffer in bytes.
    """
    return _bands().get(class_name, {}).get(size_name(size_bytes))


def size_name(size_bytes: int) -> str:
    """Return "small" or "large", the name of a size in bands.json.

    Args:
        size_bytes: The size of the whole buffer in bytes.
    """
    return "large" if size_bytes >= LARGE_BYTES else "small"
