"""Bands: between which times a measurement of a collective lies, given a predicted one, by measured cases of its class.

A time consists of latency (launch, and times of steps) and of data that move at a rate. Each has a band of the ratios
of measured to predicted times: that of latency from the cases of the class whose time is latency for one half or more,
that of the rate from the others. The band of a time is both, weighted by its share of latency. It is the same for
`nadi expect` and for all others that ask how far a measurement may be from a prediction.

Of n ratios in ascending order a band goes from the k-th to the (n + 1 - k)-th, where k is the whole part of
0.05 (n + 1), and at least 1. If the next measurement is as likely to have any rank among these n as another (the same
kind of machine and software), it lies in the band with a probability of 1 - 2k / (n + 1): about 90 % from 19 cases on,
and less with fewer, where the band goes from the smallest to the largest ratio (split conformal prediction: Lei et al.,
JASA 113, 2018). Between hosts, sites with equal machines differ: the ends of the band of latency are multiplied by
those of the sites' factors on it, which `nadi calibrate` found, and both probabilities count. scripts/validation.py
writes bands.json from its recorded results.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

BANDS = Path(__file__).with_name("bands.json")
LATENCY_DECIDES = 0.5  # share of latency from which a case says something about latency, and not about rates
TAIL = 0.05  # fraction of the cases below the band, and above it
_SMALLEST_CASES = 3  # number of cases below which they say nothing about the spread
_WITHIN_ONE_SD = 0.683  # probability of a normal distribution within one standard deviation


@dataclass(frozen=True)
class RatioBand:
    """The band of the ratios of measured to predicted times."""

    cases: int  # number of measured cases
    low: float  # smallest ratio of the band
    high: float  # largest ratio of the band
    coverage: float  # probability that the ratio of a further case of the same kind is in the band
    log_sd: float  # standard deviation of the ratio's logarithm around 0: the distance within which 68 % of cases are

    def between_sites(self, sites: "RatioBand") -> "RatioBand":
        """Return the band for a site that may differ by a factor of its own.

        Args:
            sites: The band of the sites' factors.
        """
        coverage = round(self.coverage * sites.coverage, 4)
        log_sd = round(float(np.hypot(self.log_sd, sites.log_sd)), 4)
        return RatioBand(self.cases, round(self.low * sites.low, 4), round(self.high * sites.high, 4), coverage, log_sd)


def band_of(ratios: Sequence[float]) -> RatioBand | None:
    """Return the band of measured over predicted times; None if there are fewer than three.

    Args:
        ratios: The ratio of each measured case.
    """
    count = len(ratios)
    if count < _SMALLEST_CASES:
        return None
    rank = max(1, int(TAIL * (count + 1)))
    ordered = sorted(ratios)
    low, high = ordered[rank - 1], ordered[count - rank]
    log_sd = float(np.quantile(np.abs(np.log(ordered)), _WITHIN_ONE_SD))
    return RatioBand(count, round(low, 4), round(high, 4), round(1 - 2 * rank / (count + 1), 4), round(log_sd, 4))


@dataclass(frozen=True)
class ClassBands:
    """The bands of a class of questions about collectives."""

    latency: RatioBand | None  # band of times that are all latency, at the cases' own sites; None = fewer than three
    rate: RatioBand | None  # band of times that are all data at a rate; None likewise
    kinds: Mapping[str, int]  # number of measured cases by kind of collective
    sites: RatioBand | None = None  # band of sites' factors on latency; None = it is that of the machine alone

    def at(self, latency_share: float, *, is_calibrated: bool = False) -> RatioBand | None:
        """Return the band of a time; None if what decides it was not measured.

        Where only one of both was measured, it stands for the other one too, whose share is smaller. Cases and
        coverage are those of what decides.

        Args:
            latency_share: The share of launch and times of steps in the predicted time, 0 to 1.
            is_calibrated: Whether the prediction has the site's own constants, so that sites do not differ.
        """
        of_site = self.latency
        if of_site is not None and self.sites is not None and not is_calibrated:
            of_site = of_site.between_sites(self.sites)
        deciding = of_site if latency_share >= LATENCY_DECIDES else self.rate
        if deciding is None:
            return None
        latency, rate = of_site or deciding, self.rate or deciding
        low, high, log_sd = (
            latency_share * of_latency + (1 - latency_share) * of_rate
            for of_latency, of_rate in (
                (latency.low, rate.low),
                (latency.high, rate.high),
                (latency.log_sd, rate.log_sd),
            )
        )
        return RatioBand(deciding.cases, low, high, deciding.coverage, log_sd)


def bands_of(cases: Sequence[tuple[str, float, float]], sites: RatioBand | None = None) -> ClassBands:
    """Return the bands of measured cases.

    Args:
        cases: The kind of collective, the share of latency in the predicted time, and the ratio of each case.
        sites: The band of sites' factors on latency between hosts; None = the cases are in one domain.
    """
    of_latency = [ratio for _, share, ratio in cases if share >= LATENCY_DECIDES]
    of_rate = [ratio for _, share, ratio in cases if share < LATENCY_DECIDES]
    kinds = [kind for kind, _, _ in cases]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return ClassBands(band_of(of_latency), band_of(of_rate), counts, sites)


@cache
def _known() -> dict[str, ClassBands]:
    """Return the bands by the name of the class."""

    def band(values: dict[str, float] | None) -> RatioBand | None:
        return None if values is None else RatioBand(**values)  # type: ignore[arg-type]  # as written

    known = json.loads(BANDS.read_text(encoding="utf-8"))
    return {
        name: ClassBands(band(each["latency"]), band(each["rate"]), each["kinds"], band(each["sites"]))
        for name, each in known.items()
    }


def class_bands(class_name: str) -> ClassBands:
    """Return the bands of a class of questions; without any if too few cases were measured.

    Args:
        class_name: The name of the class of a question.
    """
    return _known().get(class_name, ClassBands(None, None, {}))
