"""`nadi collective`: closed forms alone, and the predicted duration of long rows."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.studies.collectives import measuring
from nadi.studies.collectives.measuring import MIN_MEASURED_WORK, MeasuredRow, Pace, calibration_sizes
from tests.nonempty import nonempty

RING = "ring:npus={},rate=100Gbps,delay=1us"


def test_closed_forms_alone_simulate_nothing(nadi, monkeypatch):
    """The same closed forms and bounds as beside a simulation, and bandwidths by them."""
    arguments = ("collective", "all-reduce", "-t", RING.format(4), "--sizes", "1KiB,1MiB", "--algorithm", "ring,direct")
    beside = nadi(*arguments, "-q", "--json").document["rows"]
    monkeypatch.setattr(measuring, "run_program", None)
    for fidelity in (("--fidelity", "closed-form"), ("--set", "network.fidelity=closed-form")):
        alone = nadi(*arguments, *fidelity, "--json").document
        assert alone["network"]["fidelity"] == "closed-form"
        for row, other in zip(alone["rows"], nonempty(beside), strict=True):
            for key in ("algorithm", "bytes", "closed_form_ps", "closed_form_played", "bound_ps"):
                assert row[key] == other[key]
            assert row["time_ps"] == round(row["closed_form_ps"])
            assert row["algbw_Bps"] == pytest.approx(row["bytes"] / row["time_ps"] * 1e12)
            assert (row["packet_hops"], row["digest"]) == (0, "")
    (heading,) = (
        line for line in nadi(*arguments, "--fidelity", "closed-form", "-q").out.splitlines() if "algbw" in line
    )
    assert "closed form" in heading
    assert "ratio" not in heading
    assert " time" not in heading


def test_a_fidelity_is_that_of_a_run_file(nadi):
    arguments = ("collective", "all-reduce", "-t", RING.format(4), "--sizes", "64KiB", "-q", "--json")
    by_option = nadi(*arguments, "--fidelity", "analytical").document
    assert by_option == nadi(*arguments, "--set", "network.fidelity=analytical").document
    assert by_option["network"]["fidelity"] == "analytical"


def test_the_pace_of_rows_predicts_longer_ones():
    pace = Pace()
    assert (pace.seconds(1e9), pace.needs_calibration(1e9), pace.needs_calibration(1e6)) == (None, True, False)
    pace.add(MeasuredRow(work=1e3, simulation_s=0.5, total_s=9.0))
    assert pace.seconds(1e9) is None
    pace.add(MeasuredRow(work=1e6, simulation_s=2.0, total_s=2.5))
    assert pace.seconds(1e9) == pytest.approx(2.5 + 2.0 * 999)
    pace.add(MeasuredRow(work=3e6, simulation_s=3.0, total_s=3.5))
    assert pace.seconds(1e9) == pytest.approx(3.5 + (1e9 - 3e6) / 2e6)
    assert not pace.needs_calibration(1e9)


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 20), st.floats(1e-3, 1e6))
def test_a_calibration_is_a_small_part_of_its_row(size, least_work, work_per_byte):
    sizes = calibration_sizes(lambda part: max(least_work, part * work_per_byte), size)
    row_work = max(least_work, size * work_per_byte)
    for part in sizes:
        assert MIN_MEASURED_WORK <= max(least_work, part * work_per_byte) <= 0.05 * row_work
    if least_work < MIN_MEASURED_WORK and row_work >= 50 * MIN_MEASURED_WORK and work_per_byte <= MIN_MEASURED_WORK:
        assert sizes


@pytest.mark.parametrize(("sizes", "expected"), [("256KiB", [1]), ("128KiB,256KiB", [1, 2])])
def test_a_long_row_is_announced_before_it_runs(nadi, monkeypatch, sizes, expected):
    """Also with -q. The first row is predicted from a calibration, further ones from those before."""
    monkeypatch.setattr(measuring, "LONG_S", 0.0)
    monkeypatch.setattr("nadi.studies.collectives.measuring.MIN_MEASURED_WORK", 20.0)
    arguments = ("collective", "all-reduce", "-t", RING.format(4), "--sizes", sizes, "--set", "network.mtu=1KiB", "-q")
    outcome = nadi(*arguments)
    lines = outcome.err.splitlines()
    assert len(lines) == len(expected)
    for line, row in zip(lines, nonempty(expected), strict=True):
        assert re.fullmatch(rf"nadi: row {row} of {len(expected)}: ring, \d+KiB: about \d+ s", line)
    monkeypatch.setattr(measuring, "LONG_S", 60.0)
    assert nadi(*arguments).err == ""
