"""Likelihoods of hypotheses about measured times, and their posterior.

All quantities are natural logarithms of times: an observation is ln(measured / predicted for a healthy cluster), a
hypothesis predicts ln(time with the cause / healthy time). What remains is normally distributed with errors of several
kinds: one of all rows (the model's rates), one of each test, those of latencies, and one of each row. So a wrong scale
of a few percent is no evidence for any cause, and neither is a site whose NICs take longer for a message.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.arrays import Int64

Floats = NDArray[np.float64]

SD_PER_MEAN = float(np.sqrt(np.pi / 2))
"""Standard deviation of a normal distribution over its mean absolute value."""
MIN_ROW_SD = 0.02  # repeated runs of nccl-tests differ by about 2 %
_TEST_SHARE, _ROW_SHARE = 0.5, 0.5  # standard deviations of a test and of a row, as shares of that of the class
# Launches differ between sites: 1 KiB takes 38 us on one cloud's B200 and 45 us on another's H200. Messages between
# hosts differ more. The bands of measured cases (nadi.validation) count where they are wider than this
LATENCY_SD, FAR_LATENCY_SD = 0.2, 0.5  # smallest standard deviations of ln(latency), in a host and between hosts
# What these calibrations leave, a tenth of the time: sizes near each other err alike, by the protocol that NCCL takes
_PROTOCOL_SHARE, _PROTOCOL_OCTAVES = 0.3, 2.0  # as a share of a latency's standard deviation; sizes in powers of two
_SINGLE_SHARE = 0.2  # the same of each row alone
_UNKNOWN_SD = 0.7  # a cause that is in no catalogue may double times
_UNKNOWN_OCTAVES = 3.0  # sizes over which the effect of such a cause is similar, in powers of two


class Noise(NamedTuple):
    """Standard deviations of errors of ln(time)."""

    shared: float  # of all rows together
    test: float  # of all rows of a test
    row: float  # of each row

    @classmethod
    def of_class(cls, mean_error: float) -> "Noise":
        """Return the noise of a class of questions.

        Args:
            mean_error: Mean absolute relative error of the class in validation.
        """
        sd = SD_PER_MEAN * mean_error
        return cls(sd, _TEST_SHARE * sd, max(MIN_ROW_SD, _ROW_SHARE * sd))


class Rows(NamedTuple):
    """n rows of measurements."""

    test: Int64  # int64[n], number of the collective on as many GPUs: repeated tests have the same
    run: Int64  # int64[n], number of the test: repeated tests differ
    octave: Floats  # float64[n], log2 of the size in bytes
    latency_sd: Floats  # float64[n], standard deviation of ln(time) for that of latencies
    observed: Floats  # float64[n], ln(measured time / healthy prediction)


def covariance(rows: Rows, noise: Noise) -> Floats:
    """Return float64[n, n], the covariance of the errors of rows.

    Args:
        rows: Measured rows beside the predictions of a healthy cluster.
        noise: Standard deviations of their errors.
    """
    same_test = rows.test[:, None] == rows.test[None, :]
    near = _PROTOCOL_SHARE**2 * same_test * np.exp(-_octaves(rows) / _PROTOCOL_OCTAVES)
    single = same_test & (_octaves(rows) == 0)  # what the prediction misses, repeated tests miss alike
    return np.asarray(
        noise.shared**2
        + noise.test**2 * same_test
        + np.outer(rows.latency_sd, rows.latency_sd) * (1 + near + _SINGLE_SHARE**2 * single)
        + (noise.row**2 - MIN_ROW_SD**2) * single
        + MIN_ROW_SD**2 * np.eye(len(rows.observed))
    )


def _octaves(rows: Rows) -> Floats:
    """Return float64[n, n], how far the sizes of rows are from each other, in powers of two."""
    return np.asarray(np.abs(rows.octave[:, None] - rows.octave[None, :]))


def unknown_covariance(rows: Rows) -> Floats:
    """Return float64[n, n], the covariance of the effect of a cause that no catalogue has.

    Args:
        rows: Measured rows beside the predictions of a healthy cluster.
    """
    same_test = rows.run[:, None] == rows.run[None, :]
    return np.asarray(_UNKNOWN_SD**2 * np.exp(-_octaves(rows) / _UNKNOWN_OCTAVES) * same_test)


def log_density(residual: Floats, covariances: Floats) -> float:
    """Return the logarithm of a normal density with mean 0.

    Args:
        residual: float64[n], observed less predicted values of a normal distribution with mean 0.
        covariances: float64[n, n], their covariance.
    """
    factor = np.linalg.cholesky(covariances)
    white = np.linalg.solve(factor, residual)
    n = len(residual)
    return float(-0.5 * white @ white - np.log(np.diag(factor)).sum() - 0.5 * n * np.log(2 * np.pi))


def marginal(log_likelihoods: Sequence[float], weights: Sequence[float]) -> float:
    """Return the logarithm of the mean likelihood over severities and places.

    Args:
        log_likelihoods: Logarithm of the likelihood of each.
        weights: Weight of each, such as its number of places.
    """
    logs = np.asarray(log_likelihoods) + np.log(np.asarray(weights))
    return float(np.logaddexp.reduce(logs) - np.log(np.sum(weights)))


def posterior(log_evidence: Sequence[float], prior: Sequence[float]) -> Floats:
    """Return the probability of each hypothesis.

    Args:
        log_evidence: Logarithm of the likelihood of each hypothesis.
        prior: Probability of each before the measurement.
    """
    logs = np.asarray(log_evidence) + np.log(np.asarray(prior))
    return np.exp(logs - np.logaddexp.reduce(logs))
