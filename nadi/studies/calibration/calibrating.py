"""A calibration from rows to fitted constants: fit to two thirds of the rows, check on the third that is held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nadi.errors import ConfigError
from nadi.inputs.arrays import Float64, Int64
from nadi.inputs.errors import NadiError
from nadi.launching.progress import NoProgress, Progress
from nadi.studies.calibration.constants import CONSTANTS, STEP_CONSTANTS, WIRE, Factors, SiteConstant, cited
from nadi.studies.calibration.fitting import Fitter, alike, borne
from nadi.studies.calibration.model import SiteFabric, SiteModel, spec_of
from nadi.studies.calibration.rows import RowSet, read_rows
from nadi.studies.calibration.site_keys import cluster_tree, gpu_of, with_collectives
from nadi.studies.calibration.steps import StepModel, StepSet, cited_step, gpu_with, read_steps
from nadi.workload.collectives.nccl.generations import AUTO, generation_of
from nadi.workload.shape import shape_of

_ROUNDS = 6  # times that formulas are corrected by exact times where the fit has arrived
_TILT_WIRE = 0.8  # factor on the rate of NICs at which the formulas' slope is measured
_NEAR = 0.002  # largest error of corrected formulas with which no further round is needed
_DIGITS = 3  # decimals of values in the written file: a tenth of a percent, a microsecond
_GPUS_OF_SERVERS = 8  # largest number of GPUs of a server; NVLink domains with more are racks
_FAR = 5.0  # distance from the fit, in scatters, from which a row is named
_FAR_RATIO = 0.25  # and the same as a share of its time
_DECISIVE = 0.8  # share of what rows say about a constant that the named rows have together


class CalibrationRefusedError(NadiError, RuntimeError):
    """Nothing is written, because the rows do not bear a fit."""


@dataclass(frozen=True)
class FittedConstant:
    """A constant after a calibration."""

    constant: SiteConstant
    cited: str  # cited value with its unit
    value: float  # factor on the cited value, or milliseconds
    uncertainty: (
        float  # standard deviation of its coordinate: of a factor as a share of it, of milliseconds in the unit
    )
    why: str  # the rows that decide it, or why it stays

    @property
    def name(self) -> str:
        """Name that users read."""
        return self.constant.name

    @property
    def is_fitted(self) -> bool:
        """Whether its value differs from the cited one."""
        return self.value != self.constant.default

    @property
    def shown_uncertainty(self) -> str:
        """The uncertainty as a share or in milliseconds."""
        return self.constant.deviation_shown(self.uncertainty)


@dataclass(frozen=True)
class ErrorsOfRows:
    """Relative errors of predicted times of some rows."""

    rows: int
    mean: float  # mean absolute error
    worst: float  # largest absolute error
    bias: float  # mean signed error; above 0 = predictions are too slow


@dataclass(frozen=True)
class Calibration:
    """Constants of a site, fitted to its collectives, or to its training steps."""

    cluster: str  # cluster as the user wrote it
    rows: RowSet | StepSet
    constants: tuple[FittedConstant, ...]
    before_us: Float64  # float64[rows], predicted times with the cluster's own constants
    after_us: Float64  # float64[rows], predicted times with the fitted constants
    scatter: float  # standard deviation of the fitted rows' log times around the fit
    far: tuple[tuple[str, float], ...]  # place of each row that no fit reaches, and its measured over predicted time

    @property
    def factors(self) -> Factors:
        """The values of fitted constants by name."""
        return {each.name: each.value for each in self.constants if each.is_fitted}

    def errors(self, *, after: bool, held_out: bool) -> ErrorsOfRows:
        """Return the errors of the rows that are fitted or held out.

        Args:
            after: Whether with the fitted constants; else with the cluster's own.
            held_out: Whether of the rows that are held out; else of those that are fitted.
        """
        which = np.array(self.rows.is_held_out) == held_out
        measured = np.array(self.rows.measured_us)[which]
        error = (self.after_us if after else self.before_us)[which] / measured - 1
        return ErrorsOfRows(len(error), float(np.abs(error).mean()), float(np.abs(error).max()), float(error.mean()))

    def refusal(self) -> str:
        """Return in one line why nothing should be written; "" if the constants predict held-out rows better."""
        noun = self.rows.noun
        if not self.factors:
            return f"the {noun} bear no constant; expected {noun} whose errors a constant explains"
        before, after = (self.errors(after=after, held_out=True).mean for after in (False, True))
        if after >= before:
            found = f"held-out {noun} err by {after:.1%} with the fitted constants and by {before:.1%} without"
            return f"{found}; expected less"
        return ""


def calibrate(cluster: str, rows: RowSet, progress: Progress | NoProgress | None = None) -> Calibration:
    """Return the constants of a site's collectives.

    Args:
        cluster: The cluster as users write it: a name or file, or a machine.
        rows: The measured rows.
        progress: The display that names the current step; None = none.
    """
    shown = progress or NoProgress()
    fabrics = {gpus: SiteFabric(spec_of(cluster, gpus)) for gpus in sorted({row.gpus for row in rows.rows})}
    for gpus, kind in sorted({(row.gpus, row.kind) for row in rows.rows}):
        fabrics[gpus].algorithm(kind)  # refuses one that is not NCCL's
    _check_hosts(fabrics, rows)
    model = SiteModel(fabrics, rows.rows)
    shown.begin(f"times of {len(rows.rows)} rows")
    before_us = at_us = model.exact_us(None)
    if any(fabrics[row.gpus].has_factors(row.kind) for row in rows.rows):
        at_us = model.exact_us({})
    model.anchored(at_us, {})
    if any(len(set(fabric.graph.host)) > 1 for fabric in fabrics.values()):
        model.tilted(model.exact_us({WIRE: _TILT_WIRE}), _TILT_WIRE)
    largest = fabrics[max(fabrics)]
    settings = largest.settings
    # no NIC is faster than with headers of one byte
    fastest = (settings.mtu_bytes + settings.header_bytes) / (settings.mtu_bytes + 1)
    constants = [each._replace(high=min(each.high, fastest)) if each.name == WIRE else each for each in CONSTANTS]
    generation = generation_of(
        AUTO, largest.graph.accelerator, shape_of(largest.graph, range(largest.graph.npus)).lines_bps[0]
    )
    cited_values = [cited(each.name, generation, settings) for each in CONSTANTS]
    return _fitted(cluster, rows, model, constants, cited_values, before_us, shown)


def calibrate_steps(
    cluster: str,
    steps: StepSet,
    collectives: Calibration | None = None,
    progress: Progress | NoProgress | None = None,
) -> Calibration:
    """Return the constants of a site's training steps: the time of its hosts, and rates of its GPUs.

    Args:
        cluster: The cluster as users write it: a name or file, or a machine.
        steps: The measured steps.
        collectives: Constants of collectives that were fitted before; None = those of the cluster.
        progress: The display that names the current step; None = none.
    """
    shown = progress or NoProgress()
    tree = cluster_tree(cluster, steps.gpus)
    gpu, sections = gpu_of(tree), {}
    if collectives is not None and not collectives.refusal():
        sections = with_collectives({}, cluster, collectives.rows.gpus, collectives.factors)
    model = StepModel(cluster, sections | {"compute": {**tree.get("compute", {}), "gpu": gpu}}, steps.rows)
    shown.begin(f"times of {len(steps.rows)} steps")
    before_us = model.exact_us(None)
    model.anchored(before_us if gpu_with(gpu, {}) == gpu else model.exact_us({}), {})
    cited_values = [cited_step(each.name, gpu) for each in STEP_CONSTANTS]
    return _fitted(cluster, steps, model, STEP_CONSTANTS, cited_values, before_us, shown)


def _fitted(
    cluster: str,
    rows: RowSet | StepSet,
    model: SiteModel | StepModel,
    constants: Sequence[SiteConstant],
    cited_values: Sequence[str],
    before_us: Float64,
    progress: Progress | NoProgress,
) -> Calibration:
    """Return the constants that two thirds of the rows bear; the model is anchored at the cited values."""
    fitter = Fitter(model, constants, rows.measured_us, rows.together)
    is_used = ~np.array(rows.is_held_out)
    for number in range(_ROUNDS):
        progress.begin(f"fit {number + 1} of {_ROUNDS}")
        active, reasons = borne(fitter, is_used)
        fitted = fitter.fit(active, is_used)
        rounded = {name: round(value, _DIGITS) for name, value in fitter.factors(fitted.at).items()}
        values = {each.name: rounded[each.name] for each in constants if rounded[each.name] != each.default}
        by_formula = model.log_us(values, np.ones(len(rows.rows), np.bool_))
        at_us = model.exact_us(values)
        if np.abs(np.log(at_us) - by_formula).max() < _NEAR:
            break
        model.anchored(at_us, values)
    used = np.flatnonzero(is_used)
    same = alike(fitter, active, is_used)
    deviations = fitter.deviations(fitted, is_used)
    why = {
        number: rows.named(used[_deciding(fitted.slopes, fitted.weights, active, number)].tolist())
        + _or_others([constants[other].name for other in same[number]])
        for number in active
    }
    found = tuple(
        FittedConstant(
            constant,
            cited_values[number],
            values.get(constant.name, constant.default),
            float(deviations[number]) if number in active else constant.prior,
            why[number] if constant.name in values else reasons.get(number, "the rows give the cited value"),
        )
        for number, constant in enumerate(constants)
    )
    far = _far(rows, at_us, fitted.scatter)
    return Calibration(cluster, rows, found, before_us, at_us, fitted.scatter, far)


def calibrate_site(
    cluster: str, logs: Sequence[Path], tables: Sequence[Path], progress: Progress | NoProgress | None = None
) -> list[Calibration]:
    """Return the constants of a site's collectives, of its steps, or of both; ConfigError without measurements.

    Args:
        cluster: The cluster as users write it: a name or file, or a machine.
        logs: Files with the output of nccl-tests.
        tables: Tables of measured steps.
        progress: The display that names the current step; None = none.
    """
    if not logs and not tables:
        raise ConfigError("found no measurements; expected --log with nccl-tests' output, or --trace with steps")
    rows, steps = read_rows(logs) if logs else None, read_steps(tables) if tables else None
    found = [] if rows is None else [calibrate(cluster, rows, progress)]
    if steps is not None:
        found.append(calibrate_steps(cluster, steps, found[0] if found else None, progress))
    return found


def _check_hosts(fabrics: dict[int, SiteFabric], rows: RowSet) -> None:
    """Raise ConfigError if a test ran on another number of hosts than the cluster has for its GPUs."""
    for file, gpus, hosts in rows.hosts:
        domains = len(set(fabrics[gpus].graph.host.tolist())) if gpus in fabrics else hosts
        # a rack is one host to NCCL, and several to the list of ranks
        if hosts != domains and gpus // domains <= _GPUS_OF_SERVERS:
            found = f"found {gpus} GPUs on {hosts} hosts, where {fabrics[gpus].spec} has {domains}"
            raise ConfigError(f"{file}: {found}; expected a cluster with the servers that were measured")


def _or_others(names: Sequence[str]) -> str:
    """Return in words which constants explain the rows as well."""
    return f"; the rows do not tell it from {' or '.join(names)}" if names else ""


def _far(rows: RowSet | StepSet, predicted_us: Float64, scatter: float) -> tuple[tuple[str, float], ...]:
    """Return the places of rows that the fit does not reach, with measured over predicted time."""
    ratios = np.array(rows.measured_us) / predicted_us
    is_far = (np.abs(np.log(ratios)) > _FAR * scatter) & (np.abs(np.log(ratios)) > np.log1p(_FAR_RATIO))
    return tuple((rows.rows[place].place, float(ratios[place])) for place in np.flatnonzero(is_far))


def _deciding(slopes: Float64, weights: Float64, active: list[int], number: int) -> Int64:
    """Return the rows that say most about a constant, beside what the other constants explain."""
    root = np.sqrt(weights)
    own = root * slopes[:, number]
    others = root[:, None] * slopes[:, [other for other in active if other != number]]
    if others.shape[1]:
        own = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
    share = own**2 / np.sum(own**2)
    by_share = np.argsort(-share, kind="stable")
    count = int(np.searchsorted(np.cumsum(share[by_share]), _DECISIVE)) + 1
    return by_share[:count].astype(np.int64)
