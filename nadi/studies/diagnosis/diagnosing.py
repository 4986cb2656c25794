"""From logs of benchmarks to a diagnosis: healthy or not, the causes that fit, and what separates the first two."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nadi.errors import ConfigError
from nadi.inputs.errors import InputError
from nadi.insight.benchmark_logs import SEND_RECEIVE, BenchmarkLog, BenchmarkRow, NcclInfo, read_logs
from nadi.insight.node_times import bus_factor
from nadi.studies.diagnosis.causes import CAUSES, Cause
from nadi.studies.diagnosis.likelihood import (
    FAR_LATENCY_SD,
    LATENCY_SD,
    Floats,
    Noise,
    Rows,
    covariance,
    log_density,
    marginal,
    posterior,
    unknown_covariance,
)
from nadi.studies.diagnosis.simulating import HEALTHY, Simulator, TimedCollective, WhatIf
from nadi.validation import ErrorBar, collective_question, error_bars
from nadi.workload import KINDS
from nadi.workload.collectives import ON_NVSWITCHES

HEALTHY_NAME, UNKNOWN_NAME = "healthy", "none of these"
_PRIOR_HEALTHY = 0.5  # of all logs; the causes and "none of these" share the rest equally
_TOLD_OFF = 20.0  # factor on the prior of a cause that NCCL itself reports: it is there, whether or not it matters
_MAX_ROWS = 16  # rows of all tests together that hypotheses are simulated for
_LARGEST_BYTES = 1 << 30  # size up to which hypotheses are simulated: larger buffers take as much per byte
_MIN_ROWS = 4  # rows of each test that are simulated, if it has so many
_DENSE = 13  # severities at which the likelihood of a share of a rate is evaluated
_WITHOUT_CASES = 0.15  # mean error where validation has no measured case: that of the worst classes of NCCL
_SMALLEST_EFFECT = 0.01  # change of ln(time) below which rows do not show a cause
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
    def is_healthy(self) -> bool:
        """Return whether the measured time is no longer than the band of healthy times."""
        return math.log(self.ratio) <= _BAND_SDS * self.sd

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
            "longest_healthy_us": self.expected_us * math.exp(_BAND_SDS * self.sd),
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


@dataclass(frozen=True)
class Hypothesis:
    """A cause, "healthy" or "none of these", with its probability."""

    name: str
    title: str
    probability: float
    severity: float | None  # most probable severity; None = there is none
    look: str  # where to look for it on the cluster
    told: bool  # whether NCCL's lines in the logs say so

    def document(self) -> dict[str, Any]:
        """Return the hypothesis for --json."""
        return {name: getattr(self, name) for name in ("name", "title", "probability", "severity", "look", "told")}


@dataclass(frozen=True)
class NextMeasurement:
    """A measurement that separates two hypotheses."""

    kind: str
    gpus: int
    size_bytes: int
    settings: str  # variables of NCCL, "" = none
    names: tuple[str, str]  # of the two hypotheses
    times_us: tuple[float, float]  # predicted with the first and with the second hypothesis
    sds: float  # difference of ln(time) in standard deviations of the noise

    def document(self) -> dict[str, Any]:
        """Return the measurement for --json."""
        fields = ("kind", "gpus", "settings", "names", "times_us", "sds")
        return {"bytes": self.size_bytes, **{name: getattr(self, name) for name in fields}}


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


def diagnose(cluster: str, logs: Sequence[BenchmarkLog]) -> Diagnosis:
    """Diagnose logs of benchmarks of one cluster.

    Args:
        cluster: Name or file of the cluster, or specification of a topology.
        logs: Tests with at least one row, of known numbers of GPUs.

    Raises:
        ConfigError, TopologyError, WorkloadError: The cluster is wrong, or does not suit the logs.
    """
    simulator = Simulator(cluster)
    for log in logs:
        _check(simulator, log)
    bars = [_bar(simulator, log) for log in logs]
    timed = [
        _timed(simulator, log, row, _noise(bar))
        for log, bar in zip(logs, bars, strict=True)
        for row in log.rows
        if row.size_bytes > 0 and row.best_time_us > 0
    ]
    chosen = [timed[index] for index in _spread(timed, logs)]
    if not chosen:
        raise ConfigError(f"{logs[0].file}: no row with a size and a time; expected some")
    noise = _noise(max(bars, key=lambda bar: _noise(bar).shared))
    evidence = _Evidence(simulator, logs, chosen, noise)
    hypotheses, unseen = evidence.hypotheses()
    measurement = _separating(simulator, logs, noise, {each.name: _what_if(each) for each in _named(hypotheses)})
    unique = error_bars(_question(simulator, log) for log in logs)
    return Diagnosis(cluster, timed, hypotheses, unseen, measurement, unique, logs)


def _named(hypotheses: Sequence[Hypothesis]) -> Sequence[Hypothesis]:
    """Return the two most probable hypotheses that say what the simulator has to run."""
    return [each for each in hypotheses if each.name != UNKNOWN_NAME][:2]


def _check(simulator: Simulator, log: BenchmarkLog) -> None:
    """Refuse a log that the cluster cannot have, or whose collective has no times; ConfigError."""
    place = f"{log.file}:{log.rows[0].line}"
    if log.collective not in {*KINDS, SEND_RECEIVE}:
        expected = "sizes by pair, which the log does not have; leave it out"
        raise ConfigError(f"{place}: {log.collective}; expected {expected}")
    if not log.gpus:
        raise ConfigError(f"{place}: no number of GPUs; expected lines '# Rank 0 ...' above the rows, or --gpus")
    if log.gpus == 1:
        raise ConfigError(f"{place}: 1 GPU, which communicates with nobody; expected 2 or more")
    hosts = simulator.hosts(log.gpus)
    if log.hosts is not None and log.hosts != hosts:
        found = f"{log.gpus} GPUs of {log.hosts} host{'s' * (log.hosts > 1)}"
        raise ConfigError(f"{place}: {found}; expected {hosts}, as the cluster has them")


def _question(simulator: Simulator, log: BenchmarkLog) -> Any:  # noqa: ANN401 - Question is not offered by name
    """Return the question of a log's times, by whose class errors are counted."""
    place = TimedCollective(log.collective, log.gpus, log.rows[0].size_bytes)
    return collective_question(simulator.fabric((), log.gpus, 1).graph, simulator.algorithm(HEALTHY, place))


def _bar(simulator: Simulator, log: BenchmarkLog) -> ErrorBar:
    """Return the error bar of a log's times."""
    return error_bars([_question(simulator, log)])[0]


def _noise(bar: ErrorBar) -> Noise:
    """Return the noise of a class of questions."""
    return Noise.of_class(_WITHOUT_CASES if bar.errors is None else bar.errors.mean)


def _timed(simulator: Simulator, log: BenchmarkLog, row: BenchmarkRow, noise: Noise) -> TimedRow:
    """Return a row beside the time that is predicted for a healthy cluster."""
    place = TimedCollective(log.collective, log.gpus, row.size_bytes)
    sd = math.sqrt(noise.shared**2 + noise.test**2 + noise.row**2 + _latency_sd(simulator, place) ** 2)
    return TimedRow(log, row, simulator.time_us(HEALTHY, place), sd)


def _latency_sd(simulator: Simulator, place: TimedCollective) -> float:
    """Return the standard deviation of ln(time) for latencies: of the share that a nearly empty buffer takes, too."""
    empty = place._replace(size_bytes=min(place.size_bytes, _EMPTY_BYTES))
    share = min(1.0, simulator.time_us(HEALTHY, empty) / simulator.time_us(HEALTHY, place))
    return share * (LATENCY_SD if simulator.hosts(place.gpus) == 1 else FAR_LATENCY_SD)


def _spread(rows: Sequence[TimedRow], logs: Sequence[BenchmarkLog]) -> list[int]:
    """Return the rows for which hypotheses are simulated: of each test some, evenly over its sizes, with both ends."""
    most = max(_MIN_ROWS, _MAX_ROWS // len(logs))
    chosen = []
    for log in logs:
        own = sorted((i for i, row in enumerate(rows) if row.log is log), key=lambda i: rows[i].row.size_bytes)
        own = [i for i in own if rows[i].row.size_bytes <= _LARGEST_BYTES] or own[:1]
        chosen += sorted({own[round(k)] for k in np.linspace(0, len(own) - 1, min(most, len(own)))}) if own else []
    return chosen


class _Effects(NamedTuple):
    """What a cause does to n rows at s severities."""

    severities: Sequence[float]
    log_ratio: Floats  # float64[s, n], ln(time with the cause / healthy time)
    covariance: Floats  # float64[s, n, n], covariance of the same where the severity differs between rows or tests


class _Evidence:
    """The rows of logs, and how well hypotheses explain them."""

    def __init__(
        self, simulator: Simulator, logs: Sequence[BenchmarkLog], timed: Sequence[TimedRow], noise: Noise
    ) -> None:
        """Begin with no hypothesis; the arguments are the simulator, all tests, the rows to explain, and the noise."""
        self._simulator = simulator
        self._places = [TimedCollective(row.log.collective, row.log.gpus, row.row.size_bytes) for row in timed]
        self._rows = Rows(
            test=np.array([logs.index(row.log) for row in timed]),
            octave=np.log2([row.row.size_bytes for row in timed]),
            latency_sd=np.array([_latency_sd(simulator, place) for place in self._places]),
            observed=np.log([row.ratio for row in timed]),
        )
        self._covariance = covariance(self._rows, noise)
        self._told = _told([log.nccl for log in logs if log.nccl is not None])
        self._effects: dict[str, _Effects] = {}

    def hypotheses(self) -> tuple[list[Hypothesis], list[str]]:
        """Return all hypotheses, the most probable first, and the causes that would change none of the rows."""
        count = len(self._places)
        nothing = _Effects((1.0,), np.zeros((1, count)), np.zeros((1, count, count)))
        causes, unseen = [], []
        for cause in CAUSES:
            effects = self._effects_of(cause)
            if effects is None or np.abs(effects.log_ratio).max() < _SMALLEST_EFFECT:
                unseen.append(cause.name)
            elif self._told.get(cause.name) is not True:  # NCCL says that it has what the cause takes away
                self._effects[cause.name] = effects
                causes.append(cause)
        prior = (1 - _PRIOR_HEALTHY) / (len(causes) + 1)
        unknown = self._covariance + unknown_covariance(self._rows)
        found: list[tuple[str, float, float | None, float]] = [
            (HEALTHY_NAME, self._explained(nothing)[0], None, _PRIOR_HEALTHY)
        ]
        found += [(UNKNOWN_NAME, log_density(self._rows.observed, unknown), None, prior)]
        for cause in causes:
            factor = _TOLD_OFF if self._told.get(cause.name) is False else 1.0
            found.append((cause.name, *self._explained(self._effects[cause.name]), prior * factor))
        probabilities = posterior([each[1] for each in found], [each[3] for each in found])
        by_name = {cause.name: cause for cause in causes}
        answers = [
            self._hypothesis(by_name.get(name), name, float(probability), severity)
            for (name, _, severity, _), probability in zip(found, probabilities, strict=True)
        ]
        return sorted(answers, key=lambda each: -each.probability), unseen

    def _hypothesis(self, cause: Cause | None, name: str, probability: float, severity: float | None) -> Hypothesis:
        """Return a hypothesis with its texts."""
        if cause is None:
            titles = {
                HEALTHY_NAME: "the cluster does what Nadi predicts",
                UNKNOWN_NAME: "a cause that is not in the list",
            }
            return Hypothesis(name, titles[name], probability, None, "", told=False)
        title = cause.title.format(severity=cause.severity_text(severity if severity is not None else 1.0))
        return Hypothesis(name, title, probability, severity, cause.look, self._told.get(name) is False)

    def _explained(self, effects: _Effects) -> tuple[float, float]:
        """Return the logarithm of the likelihood over all severities, and the most probable severity."""
        logs = [
            log_density(self._rows.observed - effects.log_ratio[k], self._covariance + effects.covariance[k])
            for k in range(len(effects.severities))
        ]
        return marginal(logs), effects.severities[int(np.argmax(logs))]

    def _effects_of(self, cause: Cause) -> _Effects | None:
        """Simulate a cause at its severities; None if the cluster cannot have it."""
        severities = list(cause.severities)
        worst = self._log_ratios(cause, severities[-1])
        if worst is not None and np.abs(worst).max() < _SMALLEST_EFFECT:
            return None  # milder ones show even less
        ratios = [ratio for severity in severities if (ratio := self._log_ratios(cause, severity)) is not None]
        if len(ratios) < len(severities):
            severities = [each for each in severities if self._log_ratios(cause, each) is not None]
        if not ratios:
            return None
        known = np.stack(ratios)
        if cause.varies:
            return self._random(cause, severities, known)
        if cause.is_share and len(severities) > 1:
            dense = np.linspace(math.log(severities[0]), math.log(severities[-1]), _DENSE)
            ascending = np.log(severities[::-1])
            columns = [np.interp(dense, ascending, known[::-1, row]) for row in range(known.shape[1])]
            severities, known = np.exp(dense).tolist(), np.stack(columns, axis=1)
        if cause.is_local:
            masks = self._places_met()
            severities, known = severities * len(masks), np.concatenate([known * mask for mask in masks])
        return _Effects(severities, known, np.zeros((len(known), known.shape[1], known.shape[1])))

    def _places_met(self) -> list[Floats]:
        """Return float64[n] of 0 and 1, several times: the rows that meet a cause at one place, by where that may be.

        Tests of fewer GPUs have the place, or they do not; so do the few GPUs that send to other hosts in a shift.
        """
        gpus = np.array([place.gpus for place in self._places])
        is_most, is_shift = gpus == gpus.max(), np.array([place.kind == SEND_RECEIVE for place in self._places])
        masks = [np.ones(len(gpus), np.bool_), is_most, ~is_shift, is_most & ~is_shift]
        return [np.array(mask, np.float64) for mask in {tuple(mask.tolist()): None for mask in masks}]

    def _random(self, cause: Cause, severities: Sequence[float], known: Floats) -> _Effects:
        """Return the effects of a cause whose severity is another one in each row, or in each test.

        known: float64[s, n], ln(time with the cause / healthy time) at each severity.
        """
        same = self._rows.test[:, None] == self._rows.test[None, :]
        if cause.varies == "test":  # any of the severities, which are seeds
            return _Effects(severities[:1], known.mean(axis=0)[None], (np.cov(known, rowvar=False) * same)[None])
        # each row has a severity between none and the worst
        all_rows = np.concatenate([np.zeros((1, known.shape[1])), known])
        upto = [all_rows[: k + 2] for k in range(len(known))]
        means = np.stack([effects.mean(axis=0) for effects in upto])
        return _Effects(severities, means, np.stack([np.diag(effects.var(axis=0)) for effects in upto]))

    def _log_ratios(self, cause: Cause, severity: float) -> Floats | None:
        """Return float64[n], ln(time with a cause / healthy time) of all rows; None if the cluster cannot have it."""
        what_if = cause.what_if(severity)
        try:
            changed = [self._simulator.time_us(what_if, place) for place in self._places]
        except InputError:
            return None
        return np.log(changed) - np.log([self._simulator.time_us(HEALTHY, place) for place in self._places])


def _what_if(hypothesis: Hypothesis) -> WhatIf:
    """Return the change that a hypothesis means, at its most probable severity."""
    causes = [cause for cause in CAUSES if cause.name == hypothesis.name]
    return causes[0].what_if(hypothesis.severity or 1.0) if causes else HEALTHY


def _told(infos: Sequence[NcclInfo]) -> Mapping[str, bool]:
    """Return by cause what NCCL's lines say: True = what the cause takes away is there, False = it is not."""
    told: dict[str, bool] = {}
    for info in infos:
        for name, value in (("nvls-off", info.nvls), ("gdr-off", info.gpu_direct)):
            if value is not None:
                told[name] = value and told.get(name, True)
        for variable, off, name in (("NCCL_NVLS_ENABLE", "0", "nvls-off"), ("NCCL_PXN_DISABLE", "1", "pxn-off")):
            if info.settings.get(variable) == off:
                told[name] = False
    return told


_SIZES_BYTES = (1 << 16, 1 << 24, 1 << 30)
_SETTINGS = {"": (), "NCCL_ALGO=Ring": ("algo=ring",), "NCCL_NVLS_ENABLE=0": ("nvls=false",)}


def _separating(
    simulator: Simulator, logs: Sequence[BenchmarkLog], noise: Noise, what_ifs: Mapping[str, WhatIf]
) -> NextMeasurement | None:
    """Return the measurement, not in the logs, whose times with two changes differ most in units of noise."""
    names = tuple(what_ifs)
    if len(names) < 2:
        return None
    gpus_of_host = int(np.bincount(simulator.fabric((), logs[0].gpus, 1).graph.host[: logs[0].gpus]).max())
    most = max(log.gpus for log in logs)
    numbers = sorted({gpus for gpus in (gpus_of_host, 2 * gpus_of_host, most) if 1 < gpus <= most})
    seen = {(log.collective, log.gpus) for log in logs}
    kinds = ("all-reduce", "all-gather", "all-to-all", "broadcast", SEND_RECEIVE)
    best: NextMeasurement | None = None
    for kind, gpus, size_bytes, settings in product(kinds, numbers, _SIZES_BYTES, _SETTINGS):
        if ((kind, gpus) in seen and not settings) or (settings and kind != "all-reduce"):
            continue
        place = TimedCollective(kind, gpus, size_bytes)
        if settings and not simulator.algorithm(HEALTHY, place).startswith(ON_NVSWITCHES):
            continue
        try:
            first, second = (
                simulator.time_us(each._replace(nccl=(*each.nccl, *_SETTINGS[settings])), place)
                for each in what_ifs.values()
            )
        except InputError:
            continue
        sd = math.hypot(noise.test, noise.row, _latency_sd(simulator, place))
        sds = abs(math.log(first / second)) / sd
        if best is None or sds > best.sds:
            best = NextMeasurement(kind, gpus, size_bytes, settings, (names[0], names[1]), (first, second), sds)
    return best if best is not None and best.sds >= 1 else None
