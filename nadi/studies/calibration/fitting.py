"""Which constants the rows bear, and their values: a robust fit of log times with priors, and a search of constants.

A fit minimises sum rho((log model - log measured) / s) + sum (coordinate / prior)^2, where rho(z) is
2 (sqrt(1 + z^2) - 1). Rows far off count by their distance instead of its square, so that one bad row does not decide.
s is the scatter of the rows, which a fit estimates itself. Steps are those of Gauss and Newton with weights of the last
step.

The search begins without any constant, adds the one that predicts best rows that it has not seen, and ends where none
does so clearly. Then it takes out those that later ones have made needless. Each prediction leaves out whole sizes, of
all collectives.

The uncertainty of a constant is that of a fit in which all constants may differ from their cited values, within their
priors: what the rows cannot tell apart then counts (`deviations`). A fit of some constants alone would state what holds
if the others are exactly as cited.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from nadi.inputs.arrays import Float64
from nadi.studies.calibration.constants import Factors, SiteConstant

MIN_SCATTER = 0.01  # scatter below which rows are not trusted: clocks and repeated runs differ by a percent
FOLDS = 5  # parts of the sizes, of which one is predicted by a fit to the others
# share of its prior that a constant's uncertainty must not exceed: rows then say more than the prior does
DECIDED = 0.5
GAIN = 0.05  # share of the error of unseen rows by which a constant must lower it
MIN_EFFECT = 0.02  # relative change of a row's time per relative change of a factor that counts as an effect
_MIN_GAIN = 0.001  # and by this much: a tenth of a percent is below what a measurement can say
_ALIKE = 0.05  # share by which errors may differ of constants that rows do not tell apart
_ROWS_PER_CONSTANT = 4
_FIRST_SCATTER = 0.05
_STEP = 0.01  # step of coordinates for derivatives
_MAX_MOVE = 0.4  # largest change of a coordinate in one iteration
_ITERATIONS, _SCATTERS = 8, 2
_HALVINGS = 4
_NEAR = 2.5  # standard deviations beyond which a row counts as one at this distance in the scatter
_MAX_ERROR = 0.5  # largest log error that counts in a comparison of constants
_DONE = 1e-4
_TWO_DEVIATIONS = 0.9772  # probability of a normal distribution below two standard deviations


class RowModel(Protocol):
    """The times of rows as functions of the constants of a site."""

    def log_us(self, factors: Factors, is_used: NDArray[np.bool_]) -> Float64:
        """Return float64[used rows]: logarithms of the times in microseconds."""


@dataclass(frozen=True)
class FittedFactors:
    """Factors that fit rows, and how well these determine them."""

    at: Float64  # float64[constants], coordinates of the constants; 0 for those that are not fitted
    # float64[constants], standard deviation of each coordinate if those that are not fitted are as cited; of these, the
    # prior's
    deviation: Float64
    scatter: float  # standard deviation of the log times of rows around the fit
    slopes: Float64  # float64[rows, constants], derivative of each log time; 0 for constants that are not fitted
    weights: Float64  # float64[rows], weight of each row: 1 near the fit, less far off


class Fitter:
    """Fits of a model to measured rows."""

    def __init__(
        self, model: RowModel, constants: Sequence[SiteConstant], measured_us: Sequence[float], sizes: Sequence[int]
    ) -> None:
        """Prepare the fits.

        Args:
            model: The times of the rows at any values of the constants.
            constants: The constants that may be fitted, with their priors and limits.
            measured_us: The measured time of each row in microseconds.
            sizes: A number of each row: rows with equal numbers are left out together.
        """
        self.constants = tuple(constants)
        self._model, self._measured, self._sizes = model, np.log(measured_us), np.array(sizes)
        self._prior = np.array([constant.prior for constant in constants])
        self._low, self._high = (
            np.array([constant.coordinate(end) for constant, end in zip(constants, ends, strict=True)])
            for ends in zip(*((constant.low, constant.high) for constant in constants), strict=True)
        )

    def factors(self, at: Float64) -> Factors:
        """Return the values of the constants by name.

        Args:
            at: float64[constants], their coordinates.
        """
        return {each.name: each.value(float(x)) for each, x in zip(self.constants, at, strict=True)}

    def fit(self, active: Sequence[int], is_used: NDArray[np.bool_], begin: Float64 | None = None) -> FittedFactors:
        """Return the factors of some constants that fit some rows.

        Args:
            active: Numbers of the constants that may differ from their cited values.
            is_used: bool[rows], the rows to which to fit.
            begin: float64[constants], coordinates near the result; None = the cited values.
        """
        free = list(active)
        at = np.zeros(len(self.constants))
        at[free] = 0.0 if begin is None else begin[free]
        scatter = _FIRST_SCATTER
        for _ in range(_SCATTERS):
            at = self._minimum(at, free, is_used, scatter)
            residual = np.abs(self._residual(at, is_used))
            # 1.4826 times the median of absolute deviations is the standard deviation of a normal distribution; rows
            # within a few of these say it more exactly
            near = np.minimum(residual, _NEAR * 1.4826 * float(np.median(residual)))
            spread = np.sqrt(np.sum(near**2) / max(1, len(near) - len(free)))
            scatter = max(MIN_SCATTER, float(spread))
        residual, slopes = self._residual(at, is_used), self._slopes(at, free, is_used)
        weights = _weights(residual / scatter)
        deviation = self._prior.copy()
        deviation[free] = np.sqrt(np.diag(np.linalg.inv(self._information(slopes[:, free], weights, scatter, free))))
        return FittedFactors(at, deviation, scatter, slopes, weights)

    def deviations(self, fitted: FittedFactors, is_used: NDArray[np.bool_]) -> Float64:
        """Return float64[constants]: the uncertainty of each coordinate, whatever the other constants are.

        It is that of the fit of all constants with their priors, and what this fit differs by, in squares (the variance
        within and between models of Bayesian model averaging: Hoeting et al., Statistical Science 14, 1999). Few rows
        know their scatter badly: two deviations then mean the distance that Student's distribution gives their
        probability.

        Args:
            fitted: The fit of some constants.
            is_used: bool[rows], the rows to which they are fitted.
        """
        everything = list(range(len(self.constants)))
        whole = self.fit(everything, is_used, begin=fitted.at)
        slopes = self.slopes(is_used, fitted.at)
        matter = int(np.count_nonzero(np.abs(slopes).max(axis=0) >= MIN_EFFECT))
        information = self._information(slopes, fitted.weights, max(fitted.scatter, whole.scatter), everything)
        variance = np.diag(np.linalg.inv(information)) + (whole.at - fitted.at) ** 2
        freedom = max(1, len(slopes) - matter)
        return np.asarray(np.sqrt(variance) * stats.t.ppf(_TWO_DEVIATIONS, freedom) / stats.norm.ppf(_TWO_DEVIATIONS))

    def unseen_error(self, active: Sequence[int], is_used: NDArray[np.bool_]) -> float:
        """Return the mean absolute log error of rows that fits to the rows of other sizes predict.

        Each of these fits is a step from the fit to all rows, as they are near.

        Args:
            active: Numbers of the constants that are fitted.
            is_used: bool[rows], the rows that are fitted and predicted.
        """
        sizes = np.unique(self._sizes[is_used])
        fold_of_row = np.searchsorted(sizes, self._sizes) % FOLDS
        free, whole = list(active), self.fit(active, is_used)
        residual, slopes, fold_of_row = self._residual(whole.at, is_used), whole.slopes, fold_of_row[is_used]
        errors = []
        for fold in range(min(FOLDS, len(sizes))):
            unseen = fold_of_row == fold
            move = self._move(whole, residual[~unseen], slopes[~unseen][:, free], free)
            errors.append(np.abs(residual[unseen] + slopes[unseen][:, free] @ move))
        # a row far off is as far with every setting, and must not decide
        return float(np.mean(np.minimum(np.concatenate(errors), _MAX_ERROR)))

    def _move(self, fitted: FittedFactors, residual: Float64, slopes: Float64, free: list[int]) -> Float64:
        """Return the change of coordinates that fits some of the rows, near a fit to more of them."""
        weights, at = _weights(residual / fitted.scatter), fitted.at[free]
        gradient = slopes.T @ (weights * residual) / fitted.scatter**2 + at / self._prior[free] ** 2
        return -np.linalg.solve(self._information(slopes, weights, fitted.scatter, free), gradient)

    def slopes(self, is_used: NDArray[np.bool_], at: Float64) -> Float64:
        """Return float64[used rows, constants]: the derivatives of log times by coordinates.

        Args:
            is_used: bool[rows], the rows that are asked for.
            at: float64[constants], coordinates of the constants.
        """
        return self._slopes(at, list(range(len(self.constants))), is_used)

    def _residual(self, at: Float64, is_used: NDArray[np.bool_]) -> Float64:
        return self._model.log_us(self.factors(at), is_used) - self._measured[is_used]

    def _slopes(self, at: Float64, free: list[int], is_used: NDArray[np.bool_]) -> Float64:
        slopes = np.zeros((int(np.count_nonzero(is_used)), len(self.constants)))
        for number in free:
            # one-sided at the largest value, where a step beyond would change nothing
            ends = [max(at[number] - _STEP, self._low[number]), min(at[number] + _STEP, self._high[number])]
            low, high = (self._model.log_us(self.factors(_with(at, number, end)), is_used) for end in ends)
            slopes[:, number] = (high - low) / (ends[1] - ends[0])
        return slopes

    def _minimum(self, at: Float64, free: list[int], is_used: NDArray[np.bool_], scatter: float) -> Float64:
        """Return the coordinates at the minimum of the objective, from a point near it."""
        residual = self._residual(at, is_used)
        for _ in range(_ITERATIONS if free else 0):
            slopes, weights = self._slopes(at, free, is_used)[:, free], _weights(residual / scatter)
            gradient = slopes.T @ (weights * residual) / scatter**2 + at[free] / self._prior[free] ** 2
            move = -np.linalg.solve(self._information(slopes, weights, scatter, free), gradient)
            move = np.clip(move, -_MAX_MOVE, _MAX_MOVE)
            cost = self._cost(at, residual, scatter)
            for _ in range(_HALVINGS):
                there = at.copy()
                there[free] = np.clip(at[free] + move, self._low[free], self._high[free])
                residual_there = self._residual(there, is_used)
                if self._cost(there, residual_there, scatter) < cost:
                    break
                move = move / 2
            else:
                break
            change, at, residual = np.abs(there - at).max(), there, residual_there
            if change < _DONE:
                break
        return at

    def _information(self, slopes: Float64, weights: Float64, scatter: float, free: list[int]) -> Float64:
        return (slopes.T * weights) @ slopes / scatter**2 + np.diag(self._prior[free] ** -2.0)

    def _cost(self, at: Float64, residual: Float64, scatter: float) -> float:
        far = np.sum(2 * (np.sqrt(1 + (residual / scatter) ** 2) - 1))
        return float(far + np.sum((at / self._prior) ** 2))


def alike(fitter: Fitter, active: Sequence[int], is_used: NDArray[np.bool_]) -> dict[int, list[int]]:
    """Return by number of a fitted constant those that explain the rows as well in its place.

    Args:
        fitter: The fits of the rows.
        active: Numbers of the fitted constants.
        is_used: bool[rows], the rows to which they are fitted.
    """
    error = fitter.unseen_error(active, is_used)
    others = [number for number in range(len(fitter.constants)) if number not in active]
    found: dict[int, list[int]] = {}
    for number in active:
        rest = [each for each in active if each != number]
        without = fitter.unseen_error(rest, is_used)
        swapped = {other: fitter.unseen_error([*rest, other], is_used) for other in others}
        as_well = [other for other in others if swapped[other] < (1 + _ALIKE) * error]
        found[number] = [other for other in as_well if _is_better(swapped[other], without)]
    return found


def borne(fitter: Fitter, is_used: NDArray[np.bool_]) -> tuple[list[int], dict[int, str]]:
    """Return the numbers of the constants that rows bear, and for each other one why it stays at its cited value.

    Args:
        fitter: The fits of the rows.
        is_used: bool[rows], the rows to which constants are fitted.
    """
    numbers = range(len(fitter.constants))
    effect = np.abs(fitter.slopes(is_used, np.zeros(len(numbers)))).max(axis=0)
    reasons = {number: "no row depends on it" for number in numbers if effect[number] < MIN_EFFECT}
    open_numbers = [number for number in numbers if number not in reasons]
    active: list[int] = []
    error = fitter.unseen_error(active, is_used)
    most = int(np.count_nonzero(is_used)) // _ROWS_PER_CONSTANT
    while open_numbers:
        tried = {number: fitter.unseen_error([*active, number], is_used) for number in open_numbers}
        best = min(tried, key=lambda number: (tried[number], number))
        if not _is_better(tried[best], error) or len(active) == most:
            for number in open_numbers:
                reasons[number] = f"unseen rows err by {tried[number]:.1%} with it, {error:.1%} without"
            break
        open_numbers.remove(best)
        deviation = fitter.fit([*active, best], is_used).deviation[best]
        constant = fitter.constants[best]
        if deviation > DECIDED * constant.prior:
            left, known = (constant.deviation_shown(each) for each in (float(deviation), constant.prior))
            reasons[best] = f"rows leave it open by {left}, and it was known to {known}"
            continue
        active.append(best)
        error = tried[best]
    return _needed(fitter, active, error, is_used, reasons), reasons


def _needed(
    fitter: Fitter, active: list[int], error: float, is_used: NDArray[np.bool_], reasons: dict[int, str]
) -> list[int]:
    """Return the numbers of constants without those that later ones have made needless, whose reasons it adds."""
    while active:
        without = {
            number: fitter.unseen_error([each for each in active if each != number], is_used) for number in active
        }
        least = min(without, key=lambda number: (without[number], number))
        if _is_better(error, without[least]):
            break
        reasons[least] = f"unseen rows err by {error:.1%} with it, {without[least]:.1%} without"
        active, error = [each for each in active if each != least], without[least]
    return sorted(active)


def _is_better(error: float, other: float) -> bool:
    return error < min((1 - GAIN) * other, other - _MIN_GAIN)


def _with(at: Float64, number: int, value: float) -> Float64:
    there = at.copy()
    there[number] = value
    return there


def _weights(ratio: Float64) -> Float64:
    return 1 / np.sqrt(1 + ratio**2)
