"""From logs of benchmarks to a diagnosis: healthy or not, the causes that fit, and what separates the first two."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nadi.errors import ConfigError
from nadi.insight.benchmark_logs import BenchmarkLog, read_logs
from nadi.studies.diagnosis.hypotheses import UNKNOWN_NAME, Evidence, Hypothesis
from nadi.studies.diagnosis.next_measurement import NextMeasurement, separating
from nadi.studies.diagnosis.rows import TimedRow, bar_of, check, noise_of, question_of, spread, timed
from nadi.studies.diagnosis.simulating import Simulator
from nadi.validation import ErrorBar, error_bars


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of logs of one cluster."""

    cluster: str
    rows: Sequence[TimedRow]
    hypotheses: Sequence[Hypothesis]  # the most probable first
    unseen: Sequence[str]  # names of causes that would not change these rows
    measurement: NextMeasurement | None  # None = nothing that was tried separates the first two
    error_bars: Sequence[ErrorBar]
    logs: Sequence[BenchmarkLog]

    def document(self) -> dict[str, Any]:
        """Return the document of --json."""
        return {
            "cluster": self.cluster,
            "verdict": self.hypotheses[0].name,
            "hypotheses": [each.document() for each in self.hypotheses],
            "unseen": list(self.unseen),
            "measurement": None if self.measurement is None else self.measurement.document(),
            "rows": [row.document() for row in self.rows],
            "error_bars": [bar.document() for bar in self.error_bars],
        }


def read(paths: Sequence[Path], gpus: int = 0) -> tuple[BenchmarkLog, ...]:
    """Return the tests of logs.

    Args:
        paths: Files with the output of benchmarks.
        gpus: Number of GPUs of tests that do not show it; 0 = they all do.

    Raises:
        ConfigError: A file cannot be read, has no row, or a row that is wrong.
    """
    return tuple(log if log.gpus else replace(log, gpus=gpus) for log in read_logs(paths))


def diagnose(cluster: str, logs: Sequence[BenchmarkLog], simulator: Simulator | None = None) -> Diagnosis:
    """Diagnose logs of benchmarks of one cluster.

    Args:
        cluster: Name or file of the cluster, or specification of a topology.
        logs: Tests with at least one row, of known numbers of GPUs.
        simulator: The cluster's simulator with times of other diagnoses; None = a new one.

    Raises:
        ConfigError, TopologyError, WorkloadError: The cluster is wrong, or does not suit the logs.
    """
    simulator = simulator or Simulator(cluster)
    for log in logs:
        check(simulator, log)
    bars = [bar_of(simulator, log) for log in logs]
    rows = [
        timed(simulator, log, row, noise_of(bar))
        for log, bar in zip(logs, bars, strict=True)
        for row in log.rows
        if row.size_bytes > 0 and row.best_time_us > 0
    ]
    chosen = [rows[index] for index in spread(rows, logs)]
    if not chosen:
        raise ConfigError(f"{logs[0].file}: no row with a size and a time; expected some")
    noise = noise_of(max(bars, key=lambda bar: noise_of(bar).shared))
    hypotheses, unseen = Evidence(simulator, logs, chosen, noise).hypotheses()
    # what the simulator can run: the first two, whatever is between them
    first = [each for each in hypotheses if each.name != UNKNOWN_NAME][:2]
    what_ifs, places = {each.name: each.what_if() for each in first}, {each.name: each.place for each in first}
    measurement = separating(simulator, logs, noise, what_ifs, places)
    unique = error_bars(question_of(simulator, log) for log in logs)
    return Diagnosis(cluster, rows, hypotheses, unseen, measurement, unique, logs)
