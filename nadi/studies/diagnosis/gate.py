"""The gate of `nadi diagnose --fail-below`: a least share of the expectation, or a least bus bandwidth."""

import re
from typing import NamedTuple

from nadi.errors import ConfigError
from nadi.studies.diagnosis.diagnosing import Diagnosis
from nadi.studies.diagnosis.rows import TimedRow

_FORM = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(%|GB/s)")
_MAX_SHARE = 2.0  # a threshold above twice the expectation is a mistake


class BandwidthGate(NamedTuple):
    """A threshold on the bus bandwidth of each test's largest buffer."""

    text: str  # threshold as the user wrote it
    share: float | None  # of the expected bandwidth; None = the threshold is a bandwidth
    bandwidth_Bps: float  # noqa: N815 - bytes per second; 0 = the threshold is a share

    @classmethod
    def parse(cls, text: str) -> "BandwidthGate":
        """Return the threshold of "90%" or "350GB/s"; else ConfigError.

        Args:
            text: The value of --fail-below.
        """
        match = _FORM.fullmatch(text.strip())
        number = float(match[1]) if match else 0.0
        if match is None or number <= 0 or (match[2] == "%" and number > 100 * _MAX_SHARE):
            raise ConfigError(
                f"--fail-below {text}: expected a share of the expectation or a bandwidth, as 90% or 350GB/s"
            )
        return cls(text.strip(), number / 100, 0.0) if match[2] == "%" else cls(text.strip(), None, number * 1e9)

    def failure(self, diagnosis: Diagnosis) -> str:
        """Return one line about the first test below the threshold; "" if there is none.

        Args:
            diagnosis: The diagnosis with the rows of all tests.
        """
        for log in diagnosis.logs:
            own = [row for row in diagnosis.rows if row.log is log]
            largest = max(own, key=lambda row: row.row.size_bytes, default=None)
            if largest is not None and not self._is_met(largest):
                measured, expected = (
                    largest.bus_bandwidth_Bps(time) / 1e9 for time in (largest.row.best_time_us, largest.expected_us)
                )
                place = f"{log.file}:{largest.row.line}"
                rates = f"{measured:,.2f} GB/s on the bus, {measured / expected:.1%} of the expected {expected:,.2f}"
                return f"{place}: {log.collective} of {log.gpus:,} GPUs reaches {rates}; expected at least {self.text}"
        return ""

    def _is_met(self, row: TimedRow) -> bool:
        """Return whether a row is at the threshold or above."""
        if self.share is not None:
            return row.expected_us >= self.share * row.row.best_time_us
        return row.bus_bandwidth_Bps(row.row.best_time_us) >= self.bandwidth_Bps
