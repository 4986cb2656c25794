"""Bands of nadi.validation, beside the measured cases that they are made of."""

import json
import sys

import numpy as np
import pytest

from nadi.validation import ClassBands, band_of, class_bands
from nadi.validation.bands import BANDS, LATENCY_DECIDES
from tests.docs.pages import ROOT
from tests.nonempty import nonempty

sys.path.insert(0, str(ROOT / "scripts"))  # for the modules beside the script
from validation_groups import (
    GROUPS,
    RECORDED,
    SITES,
    Case,
    bands_by_class,
    bands_of_cases,
    cases_by_class,
    latency_shares,
)

RECORDS = json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    return {name: own for name, own in cases_by_class(RECORDS).items() if own[0].collective}


def are_in(bands: ClassBands, cases: list[Case]) -> list[bool]:
    """Return whether each case that has a band is in it."""
    found = []
    for case in cases:
        band = bands.at(case.latency_share)
        if band is not None:
            found.append(band.low * (1 - 1e-4) <= case.ratio <= band.high * (1 + 1e-4))
    return found


def of_part(cases: list[Case], part: str) -> list[Case]:
    return [case for case in cases if (case.latency_share >= LATENCY_DECIDES) == (part == "latency")]


def test_the_file_is_what_the_recorded_cases_make(cases):
    assert json.loads(BANDS.read_text(encoding="utf-8")) == bands_by_class(cases)


def test_recorded_shares_of_latency_are_those_of_the_code():
    quick = [group for group in GROUPS if group.name in {"nccl-hopper", "nccl-one-host", "nccl-rack", "nccl-two-hosts"}]
    for group in nonempty(quick):
        assert latency_shares(group) == pytest.approx(RECORDS[group.name]["latency_shares"], abs=0.002), group.name


def test_measured_times_are_in_their_band_as_often_as_it_says(cases):
    for name, own in nonempty(cases.items()):
        bands = class_bands(name)
        for part, band in (("latency", bands.at(1.0)), ("rate", bands.at(0.0))):
            if band is not None:
                inside = are_in(bands, of_part(own, part))
                assert np.mean(inside) >= band.coverage - 0.03, (name, part, np.mean(inside), band.coverage)


def machine(case: Case) -> str:
    named = case.group.tables or "topology" in case.row
    return case.row["what"].partition(",")[0] if named else case.group.name


def test_bands_hold_for_machines_that_are_not_among_their_cases(cases):
    """The figures of docs/how-to/expect.md: a band of all other machines contains most of a machine's rows."""
    found = {}
    for name, own in nonempty(cases.items()):
        for one in {machine(case) for case in own}:
            others = [case for case in own if machine(case) != one]
            for part in ("latency", "rate") if others else ():
                rows = of_part([case for case in own if machine(case) == one], part)
                found[name, part] = [*found.get((name, part), []), *are_in(bands_of_cases(others), rows)]
    for key in (("NCCL in one host", "latency"), ("NCCL in one host", "rate"), ("NCCL of two GPUs", "latency")):
        assert np.mean(found[key]) > 0.85, (key, np.mean(found[key]))
    for key in (("NCCL over hosts", "rate"), ("NCCL of two GPUs", "rate")):
        assert np.mean(found[key]) > 0.8, (key, np.mean(found[key]))


def test_latencies_between_hosts_have_the_spread_of_sites(cases):
    """A site that is left out has its factor in the others' band times that of the rows, in four cases of five."""
    rows = band_of([case.ratio for case in of_part(cases["NCCL over hosts"], "latency")])
    inside = 0
    for site in nonempty(SITES):
        others = band_of([other["factor"] for other in SITES if other is not site])
        band = rows.between_sites(others)
        inside += band.low <= site["factor"] <= band.high
    assert inside >= len(SITES) - 1
    bands = class_bands("NCCL over hosts")
    assert bands.at(1.0).high > 2 > bands.at(1.0, is_calibrated=True).high
