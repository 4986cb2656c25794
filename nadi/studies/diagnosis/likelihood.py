"""Likelihoods of hypotheses about measured times, and their posterior.

All quantities are natural logarithms of times: an observation is ln(measured / predicted for a healthy cluster), a
hypothesis predicts ln(time with the cause / healthy time). What remains is normally distributed with errors of several
kinds: one of all rows (the model's rates), one of each test, one of rows in which latencies dominate, and one of each
row. So a wrong scale of a few percent is no evidence for any cause.
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
# launch and latencies of NICs differ between sites: 1 KiB takes 38 us on one cloud's B200 and 45 us on another's H200
_LATENCY_SD = 0.2
_UNKNOWN_SD = 0.7  # a cause that is in no catalogue may double times
_UNKNOWN_OCTAVES = 3.0  # sizes over which the effect of such a cause is similar, in powers of two


class Noise(NamedTuple):
    """Standard deviations of errors of ln(time)."""

    shared: float  # of all rows together
    test: float  # of all rows of a test
    row: float  # of each row
    latency: float = _LATENCY_SD  # of rows in which latencies dominate, together

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

    test: Int64  # int64[n], number of the test
    octave: Floats  # float64[n], log2 of the size in bytes
    latency_share: Floats  # float64[n], share of the healthy time that is latency, 0 to 1
    observed: Floats  # float64[n], ln(measured time / healthy prediction)


def covariance(rows: Rows, noise: Noise) -> Floats:
    """Return float64[n, n], the covariance of the errors of rows.

    Args:
        rows: The rows.
        noise: Standard deviations of their errors.
    """
    same_test = rows.test[:, None] == rows.test[None, :]
    latency = noise.latency * rows.latency_share
    return (
        noise.shared**2
        + noise.test**2 * same_test
        + np.outer(latency, latency)
        + noise.row**2 * np.eye(len(rows.observed))
    )


def unknown_covariance(rows: Rows) -> Floats:
    """Return float64[n, n], the covariance of the effect of a cause that no catalogue has.

    Args:
        rows: The rows.
    """
    same_test = rows.test[:, None] == rows.test[None, :]
    distance = np.abs(rows.octave[:, None] - rows.octave[None, :]) / _UNKNOWN_OCTAVES
    return np.asarray(_UNKNOWN_SD**2 * np.exp(-distance) * same_test)


def log_density(residual: Floats, covariances: Floats) -> float:
    """Return the logarithm of a normal density with mean 0.

    Args:
        residual: float64[n], values.
        covariances: float64[n, n], their covariance.
    """
    factor = np.linalg.cholesky(covariances)
    white = np.linalg.solve(factor, residual)
    n = len(residual)
    return float(-0.5 * white @ white - np.log(np.diag(factor)).sum() - 0.5 * n * np.log(2 * np.pi))


def marginal(log_likelihoods: Sequence[float]) -> float:
    """Return the logarithm of the mean likelihood over equally probable severities.

    Args:
        log_likelihoods: Logarithm of the likelihood at each severity.
    """
    return float(np.logaddexp.reduce(log_likelihoods) - np.log(len(log_likelihoods)))


def posterior(log_evidence: Sequence[float], prior: Sequence[float]) -> Floats:
    """Return the probability of each hypothesis.

    Args:
        log_evidence: Logarithm of the likelihood of each hypothesis.
        prior: Probability of each before the measurement.
    """
    logs = np.asarray(log_evidence) + np.log(np.asarray(prior))
    return np.exp(logs - np.logaddexp.reduce(logs))
