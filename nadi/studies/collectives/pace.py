"""Wall time that a row of `nadi collective` takes, predicted from the pace of rows that have run on this machine."""

from collections.abc import Callable
from typing import NamedTuple

from nadi import pdes

# Minimum work of a row from which its pace is taken, in packet-hops or messages: about a tenth of a second, far more
# than the resolution of clocks, and far less than the minute from which a prediction is needed
MIN_MEASURED_WORK = 300_000.0
LONG_S = 60.0  # predicted wall times above this many seconds are printed, also without progress
_CALIBRATION_SHARE = 0.05  # maximum work of a calibration as a share of the row that it is for
# Number of times by which a calibration shrinks a size at most: halvings of the largest size that users can give
_MAX_HALVINGS = 63
_FACTORS = (32, 8, 2)  # factors from the smaller to the larger size of a calibration, the first that is possible


class MeasuredRow(NamedTuple):
    """Work and wall time of a row that has run; rows are ordered by work."""

    work: float  # packet-hops, or messages at message level
    simulation_s: float  # wall time of its simulation in seconds
    total_s: float  # wall time of the row in seconds, with set-up and closed form, without compilation


class Pace:
    """Pace of the rows so far of one algorithm, and the prediction of further ones."""

    def __init__(self) -> None:
        """Begin without any row."""
        self._rows: list[MeasuredRow] = []  # the two rows with the most work, the largest last

    def add(self, row: MeasuredRow) -> None:
        """Add a row that has run; rows of little work do not predict long ones."""
        if row.work >= MIN_MEASURED_WORK and all(row.work != other.work for other in self._rows):
            self._rows = sorted([*self._rows, row])[-2:]

    def seconds(self, work: float) -> float | None:
        """Return the predicted wall time of a row with this work; None if no row has shown the pace.

        The prediction is on the line through two rows, as long simulations have less overhead per packet than short
        ones, or proportional to one row.
        """
        if not self._rows:
            return None
        first, last = self._rows[0], self._rows[-1]
        per_work_s = last.simulation_s / last.work
        if last.work > first.work and last.simulation_s > first.simulation_s:
            # the slope between two rows leaves out what every row takes
            per_work_s = (last.simulation_s - first.simulation_s) / (last.work - first.work)
        return max(last.total_s + per_work_s * (work - last.work), 0.0)

    def needs_calibration(self, work: float) -> bool:
        """Return whether a row with this work should be preceded by a calibration."""
        return not self._rows and work * _CALIBRATION_SHARE >= MIN_MEASURED_WORK


def calibration_sizes(work_of_size: Callable[[int], float], size_bytes: int) -> list[int]:
    """Return sizes whose rows show the pace, size_bytes / 2^k: the smallest that does, and a larger one if possible.

    Together they take a small share of the work of `size_bytes`; the list is empty if even the smallest takes more.
    work_of_size: function from a size in bytes to the work of its row.
    """
    row_work, found = work_of_size(size_bytes), 0
    low, high = 0, _MAX_HALVINGS
    while low <= high:  # bisection: work does not grow when the size shrinks
        halvings = (low + high) // 2
        smaller = size_bytes >> halvings
        if smaller and work_of_size(smaller) >= MIN_MEASURED_WORK:
            found, low = smaller, halvings + 1
        else:
            high = halvings - 1
    larger = next((found * factor for factor in _FACTORS if work_of_size(found * factor) <= share(row_work)), found)
    return sorted({found, larger}) if found and work_of_size(found) <= share(row_work) else []


def share(row_work: float) -> float:
    """Return the maximum work of a row's calibration."""
    return _CALIBRATION_SHARE * row_work


def measured(work: float, results: pdes.Results, total_s: float) -> MeasuredRow:
    """Return work and time of a finished row; total_s: wall time of the row in seconds."""
    # compilation happens once: further rows of the algorithm do not pay for it
    return MeasuredRow(work, results.wall_s, max(total_s - results.compile_s, results.wall_s))
