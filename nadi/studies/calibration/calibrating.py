"""A calibration from rows to fitted constants: fit to two thirds of the rows, check on the third that is held out."""

from dataclasses import dataclass

import numpy as np

from nadi.errors import ConfigError
from nadi.inputs.arrays import Float64
from nadi.inputs.errors import NadiError
from nadi.launching.progress import NoProgress, Progress
from nadi.studies.calibration.constants import CONSTANTS, NAMES, WIRE, Factors, cited
from nadi.studies.calibration.fitting import Fitter, alike, borne
from nadi.studies.calibration.model import SiteFabric, SiteModel
from nadi.studies.calibration.rows import RowSet, SiteRow
from nadi.terminal import size_text
from nadi.topologies import names_cluster, parse_spec
from nadi.topologies.machines import is_machine
from nadi.workload.collectives.nccl.generations import AUTO, generation_of
from nadi.workload.shape import shape_of

_ROUNDS = 6  # times that formulas are corrected by exact times where the fit has arrived
_TILT_WIRE = 0.8  # factor on the rate of NICs at which the formulas' slope is measured
_NEAR = 0.002  # largest error of corrected formulas with which no further round is needed
_DIGITS = 3  # decimals of factors in the written file, a tenth of a percent
_GPUS_OF_SERVERS = 8  # largest number of GPUs of a server; NVLink domains with more are racks
_FAR = 5.0  # distance from the fit, in scatters, from which a row is named
_FAR_RATIO = 0.25  # and the same as a share of its time
_DECISIVE = 0.8  # share of what rows say about a constant that the named rows have together


class CalibrationRefusedError(NadiError, RuntimeError):
    """Nothing is written, because the rows do not bear a fit."""


@dataclass(frozen=True)
class FittedConstant:
    """A constant after a calibration."""

    name: str
    meaning: str
    cited: str  # cited value with its unit
    factor: float  # factor on the cited value; 1 = it stays
    uncertainty: float  # standard deviation of the factor as a share of it; that of the prior if it stays
    why: str  # the rows that decide it, or why it stays


@dataclass(frozen=True)
class ErrorsOfRows:
    """Relative errors of predicted times of some rows."""

    rows: int
    mean: float  # mean absolute error
    worst: float  # largest absolute error
    bias: float  # mean signed error; above 0 = predictions are too slow


@dataclass(frozen=True)
class Calibration:
    """Constants of a site, fitted to its rows."""

    cluster: str  # cluster as the user wrote it
    rows: RowSet
    constants: tuple[FittedConstant, ...]
    before_us: Float64  # float64[rows], predicted times with the cluster's own constants
    after_us: Float64  # float64[rows], predicted times with the fitted constants
    scatter: float  # standard deviation of the fitted rows' log times around the fit
    far: tuple[tuple[str, float], ...]  # place of each row that no fit reaches, and its measured over predicted time

    @property
    def factors(self) -> Factors:
        """The factors by name, without those that are 1."""
        return {each.name: each.factor for each in self.constants if each.factor != 1.0}

    def errors(self, *, after: bool, held_out: bool) -> ErrorsOfRows:
        """Return the errors of the rows that are fitted or held out.

        Args:
            after: Whether with the fitted constants; else with the cluster's own.
            held_out: Whether of the rows that are held out; else of those that are fitted.
        """
        which = np.array(self.rows.is_held_out) == held_out
        measured = np.array([row.time_us for row in self.rows.rows])[which]
        error = (self.after_us if after else self.before_us)[which] / measured - 1
        return ErrorsOfRows(len(error), float(np.abs(error).mean()), float(np.abs(error).max()), float(error.mean()))

    def refusal(self) -> str:
        """Return in one line why nothing should be written; "" if the constants predict held-out rows better."""
        if not self.factors:
            return "the rows bear no constant; expected rows whose errors a constant explains"
        before, after = (self.errors(after=after, held_out=True).mean for after in (False, True))
        if after >= before:
            found = f"held-out rows err by {after:.1%} with the fitted constants and by {before:.1%} without"
            return f"{found}; expected less"
        return ""


def calibrate(cluster: str, rows: RowSet, progress: Progress | NoProgress | None = None) -> Calibration:
    """Return the constants of a site.

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
    high = np.full(len(CONSTANTS), np.inf)
    # no NIC is faster than with headers of one byte
    high[NAMES.index(WIRE)] = np.log((settings.mtu_bytes + settings.header_bytes) / (settings.mtu_bytes + 1))
    fitter = Fitter(model, rows.rows, high)
    is_used = ~np.array(rows.is_held_out)
    for number in range(_ROUNDS):
        shown.begin(f"fit {number + 1} of {_ROUNDS}")
        active, reasons = borne(fitter, is_used)
        fitted = fitter.fit(active, is_used)
        rounded = {name: round(factor, _DIGITS) for name, factor in fitted.factors.items()}
        factors = {name: factor for name, factor in rounded.items() if factor != 1.0}
        by_formula = model.log_us(factors, np.ones(len(rows.rows), np.bool_))
        at_us = model.exact_us(factors)
        if np.abs(np.log(at_us) - by_formula).max() < _NEAR:
            break
        model.anchored(at_us, factors)
    generation = generation_of(
        AUTO, largest.graph.accelerator, shape_of(largest.graph, range(largest.graph.npus)).lines_bps[0]
    )
    used = [row for row, held in zip(rows.rows, rows.is_held_out, strict=True) if not held]
    same = alike(fitter, active, is_used)
    why = {
        number: _decided_by(fitted.slopes, fitted.weights, active, number, used) + _or_others(same[number])
        for number in active
        if NAMES[number] in factors
    }
    constants = tuple(
        FittedConstant(
            constant.name,
            constant.meaning,
            cited(constant.name, generation, settings),
            factors.get(constant.name, 1.0),
            float(fitted.deviation[number]),
            why.get(number) or reasons.get(number, "the rows give the cited value"),
        )
        for number, constant in enumerate(CONSTANTS)
    )
    return Calibration(
        cluster, rows, constants, before_us, at_us, fitted.scatter, _far(rows.rows, at_us, fitted.scatter)
    )


def _check_hosts(fabrics: dict[int, SiteFabric], rows: RowSet) -> None:
    """Raise ConfigError if a test ran on another number of hosts than the cluster has for its GPUs."""
    for file, gpus, hosts in rows.hosts:
        domains = len(set(fabrics[gpus].graph.host.tolist())) if gpus in fabrics else hosts
        # a rack is one host to NCCL, and several to the list of ranks
        if hosts != domains and gpus // domains <= _GPUS_OF_SERVERS:
            found = f"found {gpus} GPUs on {hosts} hosts, where {fabrics[gpus].spec} has {domains}"
            raise ConfigError(f"{file}: {found}; expected a cluster with the servers that were measured")


def spec_of(cluster: str, gpus: int) -> str:
    """Return the fabric of some GPUs of a cluster, as users write it; ConfigError if it is no cluster or machine.

    Args:
        cluster: The cluster as users write it: a name or file, or a machine.
        gpus: The number of GPUs.
    """
    values = dict(parse_spec(cluster))
    name = str(values.pop("name", ""))
    key = "gpus" if names_cluster(name, values) else "npus"
    if key == "npus" and not is_machine(name):
        raise ConfigError(f"{cluster}: found a topology; expected a cluster or machine (`nadi topology clusters`)")
    others = {each: value for each, value in values.items() if each != key}
    pairs = ",".join(f"{each}={value}" for each, value in (others | {key: gpus}).items())
    return f"{name}:{pairs}"


def _or_others(numbers: list[int]) -> str:
    """Return in words which constants explain the rows as well."""
    names = " or ".join(NAMES[number] for number in numbers)
    return f"; the rows do not tell it from {names}" if names else ""


def _far(rows: tuple[SiteRow, ...], predicted_us: Float64, scatter: float) -> tuple[tuple[str, float], ...]:
    """Return the places of rows that the fit does not reach, with measured over predicted time."""
    ratios = np.array([row.time_us for row in rows]) / predicted_us
    is_far = (np.abs(np.log(ratios)) > _FAR * scatter) & (np.abs(np.log(ratios)) > np.log1p(_FAR_RATIO))
    return tuple((rows[place].place, float(ratios[place])) for place in np.flatnonzero(is_far))


def _decided_by(slopes: Float64, weights: Float64, active: list[int], number: int, rows: list[SiteRow]) -> str:
    """Return the rows that say most about a constant, beside what the other constants explain."""
    root = np.sqrt(weights)
    own = root * slopes[:, number]
    others = root[:, None] * slopes[:, [other for other in active if other != number]]
    if others.shape[1]:
        own = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
    share = own**2 / np.sum(own**2)
    by_share = np.argsort(-share, kind="stable")
    count = int(np.searchsorted(np.cumsum(share[by_share]), _DECISIVE)) + 1
    chosen = [rows[place] for place in by_share[:count]]
    by_kind: dict[str, list[int]] = {}
    for row in chosen:
        by_kind.setdefault(row.kind, []).append(row.size_bytes)
    spans = [
        f"{kind} {size_text(min(sizes))}" + (f" to {size_text(max(sizes))}" if min(sizes) < max(sizes) else "")
        for kind, sizes in by_kind.items()
    ]
    return ", ".join(spans)
