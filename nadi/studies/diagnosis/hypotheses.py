"""How well each cause explains rows: its effects on them by severity and place, their likelihood, and the posterior."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nadi.inputs.errors import InputError
from nadi.insight.benchmark_logs import BenchmarkLog
from nadi.studies.diagnosis.causes import CAUSES, Cause
from nadi.studies.diagnosis.evidence import EXCLUDED, REPORTED, factors, has_fast_nics
from nadi.studies.diagnosis.likelihood import (
    Floats,
    Noise,
    Rows,
    covariance,
    log_density,
    marginal,
    posterior,
    unknown_covariance,
)
from nadi.studies.diagnosis.places import NicsOfRow, rows_met
from nadi.studies.diagnosis.rows import TimedRow, latency_sd, place_of
from nadi.studies.diagnosis.simulating import HEALTHY, Simulator, WhatIf

HEALTHY_NAME, UNKNOWN_NAME = "healthy", "none of these"
_PRIOR_HEALTHY = 0.5  # of all logs; the causes and "none of these" share the rest equally
_DENSE = 13  # severities at which the likelihood of a share of a rate is evaluated
_SMALLEST_EFFECT = 0.01  # change of ln(time) below which rows do not show a cause
_ALIKE_SDS = (
    1.0  # distance of two predictions, in standard deviations of the noise, up to which rows show no difference
)
_SMALLEST_ALIKE = 0.01  # probability from which a cause is named beside another one that looks alike


@dataclass(frozen=True)
class Hypothesis:
    """A cause, "healthy" or "none of these", with its probability."""

    name: str
    title: str
    probability: float
    severity: float | None = None  # most probable severity; None = there is none
    place: str = ""  # name of the host or device where the cause is; "" = everywhere, or not known
    look: str = ""  # where to look for it on the cluster
    told: bool = False  # whether NCCL's lines in the logs, or a matrix of paths, say so
    alike: tuple[str, ...] = ()  # names of causes whose times these rows do not separate from this one's

    def document(self) -> dict[str, Any]:
        """Return the hypothesis for --json."""
        fields = ("name", "title", "probability", "severity", "place", "look", "told", "alike")
        return {name: getattr(self, name) for name in fields}

    def what_if(self) -> WhatIf:
        """Return the change that the hypothesis means, at its most probable severity."""
        causes = [cause for cause in CAUSES if cause.name == self.name]
        return causes[0].what_if(self.severity or 1.0) if causes else HEALTHY


class _Effects(NamedTuple):
    """What a cause does to n rows, at s severities and places."""

    severities: Sequence[float]
    log_ratio: Floats  # float64[s, n], ln(time with the cause / healthy time)
    covariance: Floats | None = None  # float64[s, n, n], of the same where the severity differs between rows or tests
    places: Sequence[str] = ()  # names of the places; () = everywhere
    weights: Sequence[float] = ()  # numbers of places; () = all are one


class Evidence:
    """The rows of logs, and how well hypotheses explain them."""

    def __init__(
        self, simulator: Simulator, logs: Sequence[BenchmarkLog], timed: Sequence[TimedRow], noise: Noise
    ) -> None:
        """Begin with no hypothesis; the arguments are the simulator, all tests, the rows to explain, and the noise."""
        self._simulator = simulator
        self._logs = [row.log for row in timed]
        self._places = [place_of(simulator, row.log, row.row.size_bytes) for row in timed]
        tests = [place._replace(size_bytes=0, nccl=()) for place in self._places]
        self._rows = Rows(
            test=np.array([tests.index(test) for test in tests]),
            run=np.array([next(k for k, log in enumerate(logs) if log is row.log) for row in timed]),
            octave=np.log2([row.row.size_bytes for row in timed]),
            latency_sd=np.array([latency_sd(simulator, place) for place in self._places]),
            observed=np.log([row.ratio for row in timed]),
        )
        self._covariance = covariance(self._rows, noise)
        self._factors = factors(simulator, logs)
        fast = {id(log): has_fast_nics(simulator, log) for log in logs}
        self._nics = [
            NicsOfRow(
                simulator.fabric_of(HEALTHY, place).graph.npus_per_nic, fast[id(log)], simulator.relays_sends(place)
            )
            for log, place in zip(self._logs, self._places, strict=True)
        ]
        self._healthy_us = np.array([simulator.time_us(HEALTHY, place) for place in self._places])

    def hypotheses(self) -> tuple[list[Hypothesis], list[str]]:
        """Return all hypotheses, the most probable first, and the causes that would change none of the rows."""
        effects, unseen = {}, []
        for cause in CAUSES:
            found = self._effects_of(cause)
            if found is None or np.abs(found.log_ratio).max() < _SMALLEST_EFFECT:
                unseen.append(cause.name)
            elif self._factors.get(cause.name) != EXCLUDED:
                effects[cause.name] = found
        prior = (1 - _PRIOR_HEALTHY) / (len(effects) + 1)
        observed = self._rows.observed
        logs = {
            HEALTHY_NAME: log_density(observed, self._covariance),
            UNKNOWN_NAME: log_density(observed, self._covariance + unknown_covariance(self._rows)),
        }
        priors = {HEALTHY_NAME: _PRIOR_HEALTHY, UNKNOWN_NAME: prior}
        best: dict[str, int] = {}
        for name, each in effects.items():
            logs[name], best[name] = self._explained(each)
            priors[name] = prior * self._factors.get(name, 1.0)
        probabilities = posterior([logs[name] for name in logs], [priors[name] for name in logs])
        by_name = dict(zip(logs, probabilities.tolist(), strict=True))
        predicted = {name: effects[name].log_ratio[best[name]] for name in effects}
        answers = [
            Hypothesis(HEALTHY_NAME, "the cluster does what Nadi predicts", by_name[HEALTHY_NAME]),
            Hypothesis(UNKNOWN_NAME, "a cause that is not in the list", by_name[UNKNOWN_NAME]),
        ]
        for cause in CAUSES:
            if cause.name in effects:
                found = effects[cause.name]
                alike = self._alike(cause.name, predicted, by_name)
                answers.append(self._hypothesis(cause, by_name[cause.name], found, best[cause.name], alike))
        return sorted(answers, key=lambda each: -each.probability), unseen

    def _hypothesis(
        self, cause: Cause, probability: float, effects: _Effects, best: int, alike: tuple[str, ...]
    ) -> Hypothesis:
        """Return the hypothesis of a cause with its texts."""
        severity = effects.severities[best]
        title = cause.title.format(severity=cause.severity_text(severity))
        place = effects.places[best] if effects.places else ""
        title = f"{title} (at {place})" if place else title
        told = self._factors.get(cause.name) == REPORTED
        return Hypothesis(cause.name, title, probability, severity, place, cause.look, told, alike)

    def _alike(self, name: str, predicted: Mapping[str, Floats], by_name: Mapping[str, float]) -> tuple[str, ...]:
        """Return the further causes that predict nearly the same times; predicted: float64[n] by name of the cause."""
        factor = np.linalg.cholesky(self._covariance)
        return tuple(
            other
            for other, times in predicted.items()
            if other != name
            and by_name[other] >= _SMALLEST_ALIKE
            and float(np.linalg.norm(np.linalg.solve(factor, times - predicted[name]))) <= _ALIKE_SDS
        )

    def _explained(self, effects: _Effects) -> tuple[float, int]:
        """Return the logarithm of the likelihood over severities and places, and the most probable one's number."""
        logs = [
            log_density(
                self._rows.observed - ratio,
                self._covariance if effects.covariance is None else self._covariance + effects.covariance[k],
            )
            for k, ratio in enumerate(effects.log_ratio)
        ]
        weights = effects.weights or [1.0] * len(logs)
        return marginal(logs, weights), int(np.argmax(logs + np.log(weights)))

    def _effects_of(self, cause: Cause) -> _Effects | None:
        """Simulate a cause at its severities; None if the cluster cannot have it."""
        severities = list(cause.severities)
        worst = self._log_ratios(cause, severities[-1])
        if worst is not None and np.abs(worst).max() < _SMALLEST_EFFECT:
            return None  # milder ones show even less
        ratios = {each: ratio for each in severities if (ratio := self._log_ratios(cause, each)) is not None}
        if not ratios:
            return None
        severities, known = list(ratios), np.stack(list(ratios.values()))
        if cause.varies:
            return self._random(cause, severities, known)
        if cause.is_share and len(severities) > 1:
            dense = np.linspace(math.log(severities[0]), math.log(severities[-1]), _DENSE)
            ascending = np.log(severities[::-1])
            columns = [np.interp(dense, ascending, known[::-1, row]) for row in range(known.shape[1])]
            severities, known = np.exp(dense).tolist(), np.stack(columns, axis=1)
        slow = cause.what_if(severities[0]).slow
        if not cause.is_local or slow is None:
            return _Effects(severities, known)
        met = rows_met(slow.place, self._logs, self._nics)
        if not met:
            return None
        places = [each.name for each in met for _ in severities]
        weights = [float(each.weight) for each in met for _ in severities]
        return _Effects(
            severities * len(met), np.concatenate([known * each.mask for each in met]), None, places, weights
        )

    def _random(self, cause: Cause, severities: Sequence[float], known: Floats) -> _Effects:
        """Return the effects of a cause whose severity is another one in each row, or in each test.

        known: float64[s, n], ln(time with the cause / healthy time) at each severity.
        """
        same = self._rows.run[:, None] == self._rows.run[None, :]
        if cause.varies == "test":  # any of the severities, which are seeds
            return _Effects(severities[:1], known.mean(axis=0)[None], (np.cov(known, rowvar=False) * same)[None])
        # each row has a severity between none and the worst
        all_rows = np.concatenate([np.zeros((1, known.shape[1])), known])
        upto = [all_rows[: k + 2] for k in range(len(known))]
        means = np.stack([effects.mean(axis=0) for effects in upto])
        return _Effects(severities, means, np.stack([np.diag(effects.var(axis=0)) for effects in upto]))

    def _log_ratios(self, cause: Cause, severity: float) -> Floats | None:
        """Return float64[n], ln(time with a cause / healthy time) of all rows; None if the cluster cannot have it.

        Smaller tests that cannot have it, such as fewer NICs for one GPU of a host, do not meet it.
        """
        what_if, ratios = cause.what_if(severity), np.zeros(len(self._places))
        largest = max(place.gpus for place in self._places)
        for row, place in enumerate(self._places):
            try:
                ratios[row] = math.log(self._simulator.time_us(what_if, place) / self._healthy_us[row])
            except InputError:
                if place.gpus == largest:
                    return None
        return ratios
