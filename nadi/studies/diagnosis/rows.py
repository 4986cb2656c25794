"""Rows of logs beside what Nadi predicts for a healthy cluster, and the errors that such predictions have."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from nadi.errors import ConfigError
from nadi.insight.benchmark_logs import SEND_RECEIVE, BenchmarkLog, BenchmarkRow
from nadi.insight.nccl_tests_command import MAX_CHANNELS, nccl_parameters
from nadi.insight.node_times import bus_factor
from nadi.studies.diagnosis.likelihood import FAR_LATENCY_SD, LATENCY_SD, Noise
from nadi.studies.diagnosis.simulating import HEALTHY, Simulator, TimedCollective
from nadi.validation import ErrorBar, class_bands, collective_question, error_bars
from nadi.workload import KINDS

_MAX_ROWS = 16  # rows of all tests together that hypotheses are simulated for
_LARGEST_BYTES = 1 << 30  # size up to which hypotheses are simulated: larger buffers take as much per byte
_MIN_ROWS = 4  # rows of each test that are simulated, if it has so many
_WITHOUT_CASES = 0.15  # mean error where validation has no measured case: that of the worst classes of NCCL
_BAND_SDS = 2.0  # half width of the band of healthy times in standard deviations: 95 % of healthy rows
_EMPTY_BYTES = 1024  # size whose time is all latency


@dataclass(frozen=True)
class TimedRow:
    """A row of a log beside what Nadi predicts for a healthy cluster."""

    log: BenchmarkLog
    row: BenchmarkRow
    expected_us: float  # predicted time in microseconds
    sd: float  # standard deviation of ln(time) of a healthy cluster

    @property
    def ratio(self) -> float:
        """Return the measured over the expected time."""
        return self.row.best_time_us / self.expected_us

    @property
    def longest_healthy_us(self) -> float:
        """Return the end of the band of healthy times in microseconds."""
        return self.expected_us * math.exp(_BAND_SDS * self.sd)

    @property
    def is_healthy(self) -> bool:
        """Return whether the measured time is no longer than the band of healthy times."""
        return self.row.best_time_us <= self.longest_healthy_us

    def document(self) -> dict[str, Any]:
        """Return the row for --json."""
        return {
            "file": str(self.log.file),
            "line": self.row.line,
            "kind": self.log.collective,
            "gpus": self.log.gpus,
            "bytes": self.row.size_bytes,
            "measured_us": self.row.best_time_us,
            "expected_us": self.expected_us,
            "longest_healthy_us": self.longest_healthy_us,
            "measured_busbw_Bps": self.bus_bandwidth_Bps(self.row.best_time_us),
            "expected_busbw_Bps": self.bus_bandwidth_Bps(self.expected_us),
            "is_healthy": self.is_healthy,
        }

    def bus_bandwidth_Bps(self, time_us: float) -> float:  # noqa: N802 - bytes, not bits
        """Return the bus bandwidth in bytes per second that a time means.

        Args:
            time_us: Time of the row in microseconds.
        """
        return self.row.size_bytes / time_us * 1e6 * bus_factor(self.log.collective, self.log.gpus)


def place_of(simulator: Simulator, log: BenchmarkLog, size_bytes: int) -> TimedCollective:
    """Return the measurement that a row of a log is, with what NCCL's variables in the log set.

    Args:
        simulator: Simulator of the cluster that was measured, with the times it has found so far.
        log: Log of one test, with at least one row.
        size_bytes: Size of the row in bytes.

    Raises:
        ConfigError, TopologyError, WorkloadError: The cluster cannot have the number of GPUs.
    """
    place = TimedCollective(log.collective, log.gpus, size_bytes)
    if log.hosts and log.gpus % log.hosts == 0 and simulator.hosts(place) < log.hosts:
        place = place._replace(hosts=log.hosts)  # some GPUs of each host
    settings = log.nccl.settings if log.nccl else {}
    parameters: dict[str, str] = {}
    for name, value in settings.items():
        with suppress(ConfigError):  # a list of algorithms, or one that Nadi does not have, changes no prediction
            parameters |= nccl_parameters({name: value}, log.collective, str(log.file))
    place = place._replace(nccl=tuple(f"{key}={value}" for key, value in parameters.items()))
    channels = _channels(simulator, place, settings)
    return place._replace(nccl=(*place.nccl, f"channels={channels}")) if channels else place


def _channels(simulator: Simulator, place: TimedCollective, settings: Mapping[str, str]) -> int:
    """Return the channels that variables force on a measurement; 0 = NCCL's own number."""
    least, most = (
        _count(settings, f"NCCL_{edge}_NCHANNELS") or _count(settings, f"NCCL_{edge}_CTAS") for edge in ("MIN", "MAX")
    )
    if not least and not most:
        return 0
    own = simulator.channels(place)
    # NCCL uses fewer channels for small buffers, whatever the minimum of the communicator is
    full = simulator.channels(place._replace(size_bytes=max(place.size_bytes, _LARGEST_BYTES)))
    return most if 0 < most < own else least if least > own == full else 0


def _count(settings: Mapping[str, str], name: str) -> int:
    """Return the number of channels that a variable has, at most as many as Nadi models; 0 = none."""
    text = settings.get(name, "")
    return min(int(text), MAX_CHANNELS) if text.isdecimal() and len(text) < 4 else 0


def check(simulator: Simulator, log: BenchmarkLog) -> None:
    """Refuse a log that the cluster cannot have, or whose collective has no times; ConfigError.

    Args:
        simulator: Simulator of the cluster that was measured, with the times it has found so far.
        log: Log of one test, with at least one row.
    """
    place = f"{log.file}:{log.rows[0].line}"
    if log.collective not in {*KINDS, SEND_RECEIVE}:
        expected = "sizes by pair, which the log does not have; leave it out"
        raise ConfigError(f"{place}: {log.collective}; expected {expected}")
    if not log.gpus:
        raise ConfigError(f"{place}: no number of GPUs; expected lines '# Rank 0 ...' above the rows, or --gpus")
    if log.gpus == 1:
        raise ConfigError(f"{place}: 1 GPU, which communicates with nobody; expected 2 or more")
    hosts = simulator.hosts(place_of(simulator, log, log.rows[0].size_bytes))
    if log.hosts is not None and log.hosts != hosts:
        found = f"{log.gpus} GPUs of {log.hosts} host{'s' * (log.hosts > 1)}"
        raise ConfigError(f"{place}: {found}; expected {hosts}, as the cluster has them")


def question_of(simulator: Simulator, log: BenchmarkLog) -> Any:  # noqa: ANN401 - Question is not offered by name
    """Return the question of a log's times, by whose class errors are counted.

    Args:
        simulator: Simulator of the cluster that was measured, with the times it has found so far.
        log: Log of one test, with at least one row.
    """
    return _question(simulator, place_of(simulator, log, log.rows[0].size_bytes))


def _question(simulator: Simulator, place: TimedCollective) -> Any:  # noqa: ANN401 - Question is not offered by name
    """Return the question of a measurement's time."""
    return collective_question(simulator.fabric_of(HEALTHY, place).graph, simulator.algorithm(HEALTHY, place))


def bar_of(simulator: Simulator, log: BenchmarkLog) -> ErrorBar:
    """Return the error bar of a log's times.

    Args:
        simulator: Simulator of the cluster that was measured, with the times it has found so far.
        log: Log of one test, with at least one row.
    """
    return error_bars([question_of(simulator, log)])[0]


def noise_of(bar: ErrorBar) -> Noise:
    """Return the noise of a class of questions.

    Args:
        bar: The error bar of the class.
    """
    return Noise.of_class(_WITHOUT_CASES if bar.errors is None else bar.errors.mean)


def timed(simulator: Simulator, log: BenchmarkLog, row: BenchmarkRow, noise: Noise) -> TimedRow:
    """Return a row beside the time that is predicted for a healthy cluster.

    Args:
        simulator: Simulator of the cluster that was measured, with the times it has found so far.
        log: Log of one test, with at least one row.
        row: The row of the test.
        noise: Errors of predictions of its class.
    """
    place = place_of(simulator, log, row.size_bytes)
    sd = math.sqrt(noise.shared**2 + noise.test**2 + noise.row**2 + latency_sd(simulator, place) ** 2)
    return TimedRow(log, row, simulator.time_us(HEALTHY, place), sd)


def latency_sd(simulator: Simulator, place: TimedCollective) -> float:
    """Return the standard deviation of ln(time) for latencies: of the share that a nearly empty buffer takes, too.

    Args:
        simulator: Simulator of the cluster that was measured, with the times it has found so far.
        place: The measurement.
    """
    empty = place._replace(size_bytes=min(place.size_bytes, _EMPTY_BYTES))
    share = min(1.0, simulator.time_us(HEALTHY, empty) / simulator.time_us(HEALTHY, place))
    band = class_bands(_question(simulator, place).class_name()).at(1.0)
    smallest = LATENCY_SD if simulator.hosts(place) == 1 else FAR_LATENCY_SD
    # two standard deviations, up to which a row is healthy, then end where the band of `nadi expect` does
    return share * max(smallest, math.log(band.high) / 2 if band else 0.0)


def spread(rows: Sequence[TimedRow], logs: Sequence[BenchmarkLog]) -> list[int]:
    """Return the rows for which hypotheses are simulated: of each test some, evenly over its sizes, with both ends.

    Args:
        rows: Rows of all tests.
        logs: The tests.
    """
    most = max(_MIN_ROWS, _MAX_ROWS // len(logs))
    chosen = []
    for log in logs:
        own = sorted((i for i, row in enumerate(rows) if row.log is log), key=lambda i: rows[i].row.size_bytes)
        own = [i for i in own if rows[i].row.size_bytes <= _LARGEST_BYTES] or own[:1]
        chosen += sorted({own[round(k)] for k in np.linspace(0, len(own) - 1, min(most, len(own)))}) if own else []
    return chosen
