"""Bands of nadi.validation, beside the measured cases that they are made of."""

import json
import sys
from collections.abc import Iterator

import pytest

from nadi.validation import ratio_band, size_name
from nadi.validation.bands import BANDS, band_of
from tests.docs.pages import ROOT
from tests.nonempty import nonempty

sys.path.insert(0, str(ROOT / "scripts"))  # for the modules beside the script
from validation_groups import RECORDED, Case, cases_by_class, class_bands


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    return cases_by_class(json.loads(RECORDED.read_text(encoding="utf-8")))


def of_sizes(cases: dict[str, list[Case]]) -> Iterator[tuple[str, str, list[Case]]]:
    for name, sizes in nonempty(json.loads(BANDS.read_text(encoding="utf-8")).items()):
        for size in sizes:
            yield name, size, [case for case in cases[name] if size_name(case.size_bytes) == size]


def test_the_file_is_what_the_recorded_cases_make(cases):
    assert json.loads(BANDS.read_text(encoding="utf-8")) == class_bands(cases)


def test_measured_times_are_in_their_band_as_often_as_it_says(cases):
    for name, size, own in of_sizes(cases):
        band = ratio_band(name, own[0].size_bytes)
        inside = sum(band.low <= case.ratio * (1 + 1e-9) and case.ratio <= band.high * 1.0001 for case in own)
        assert inside / len(own) >= band.coverage - 0.01, (name, size)


def machine(case: Case) -> str:
    named = case.group.tables or "topology" in case.row
    return case.row["what"].partition(",")[0] if named else case.group.name


def test_bands_hold_for_machines_that_are_not_among_their_cases(cases):
    """The figures of docs/how-to/expect.md: a band of all other machines contains most of a machine's rows."""
    found = {}
    for name, size, own in of_sizes(cases):
        inside = total = 0
        for one in {machine(case) for case in own}:
            band = band_of([case.ratio for case in own if machine(case) != one])
            rows = [case.ratio for case in own if machine(case) == one]
            if band is not None:
                inside, total = inside + sum(band.low <= ratio <= band.high for ratio in rows), total + len(rows)
        found[name, size] = inside, total
    for key in (("NCCL in one host", "small"), ("NCCL in one host", "large"), ("NCCL over hosts", "large")):
        inside, total = found[key]
        assert inside / total > 0.8, found
