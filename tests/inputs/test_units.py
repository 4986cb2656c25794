"""Values with units, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.inputs.errors import InputError
from nadi.inputs.units import format_bytes, format_rate, format_time, parse_bytes, parse_rate, parse_time


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("400Gbps", 400 * 10**9),
        ("400 Gb/s", 400 * 10**9),
        ("50GB/s", 400 * 10**9),
        ("50GiB/s", 50 * 2**30 * 8),
        ("2.5Gbps", 2_500_000_000),
        ("1.6Tbps", 1_600_000_000_000),
        ("100Mbit/s", 10**8),
        ("9600bps", 9600),
        ("1e3kbps", 10**6),
    ],
)
def test_rates(text, rate_bps):
    assert parse_rate(text) == rate_bps


@pytest.mark.parametrize(
    ("text", "time_ps"),
    [
        ("1us", 10**6),
        ("1µs", 10**6),
        ("500ns", 500_000),
        ("0.0005ms", 500_000),
        ("936.25ns", 936_250),
        ("0", 0),
        (0, 0),
        ("0ns", 0),
        ("3ps", 3),
        ("2 s", 2 * 10**12),
        (".5us", 500_000),
    ],
)
def test_times(text, time_ps):
    assert parse_time(text) == time_ps


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64KiB", 65536), ("1MB", 10**6), ("1.5GiB", 3 * 2**29), ("512B", 512), ("512", 512), (512, 512), ("0", 0)],
)
def test_sizes(text, size_bytes):
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("parse", "value", "text"),
    [
        (parse_rate, "fast", "'fast' is not a rate; expected a number and a unit, as 400Gbps or 50GB/s"),
        (parse_rate, 400, "400 is not a rate; expected a number and a unit, as 400Gbps or 50GB/s"),
        (parse_rate, "400", "'400' is not a rate; expected a number and a unit, as 400Gbps or 50GB/s"),
        (parse_rate, "-1Gbps", "'-1Gbps' is not a rate; expected a number and a unit, as 400Gbps or 50GB/s"),
        (parse_rate, "1iB/s", "'1iB/s' is not a rate; expected a number and a unit, as 400Gbps or 50GB/s"),
        (parse_rate, "0Gbps", "rate '0Gbps' is zero; expected more than 0"),
        (parse_rate, "0.1bps", "'0.1bps' is no whole number of units of 1 bit per second"),
        (parse_rate, "99999PB/s", "'99999PB/s' is too large; expected less than 2^63 times 1 bit per second"),
        (parse_time, "1", "'1' is not a time; expected a number >= 0 and a unit, as 500ns or 1us"),
        (parse_time, "-1us", "'-1us' is not a time; expected a number >= 0 and a unit, as 500ns or 1us"),
        (parse_time, False, "False is not a time; expected a number >= 0 and a unit, as 500ns or 1us"),
        (parse_time, [0], "[0] is not a time; expected a number >= 0 and a unit, as 500ns or 1us"),
        (parse_time, "0.3ps", "'0.3ps' is no whole number of units of 1 ps"),
        (parse_time, "1e20s", "'1e20s' is too large; expected less than 2^63 times 1 ps"),
        (parse_bytes, "64kb", "'64kb' is not a size; expected a number >= 0 and a unit, as 64KiB or 1MB"),
        (parse_bytes, -1, "-1 is not a size; expected a number >= 0 and a unit, as 64KiB or 1MB"),
        (parse_bytes, "1.5B", "'1.5B' is no whole number of units of 1 byte"),
    ],
)
def test_what_is_wrong_is_said(parse, value, text):
    with pytest.raises(InputError) as error:
        parse(value)
    assert str(error.value) == text
    assert error.value.exit_code == 2


@given(st.integers(1, 2**63 - 1))
def test_formatted_rates_read_back(rate_bps):
    assert parse_rate(format_rate(rate_bps)) == rate_bps


@given(st.integers(0, 2**63 - 1))
def test_formatted_times_and_sizes_read_back(value):
    assert parse_time(format_time(value)) == value
    assert parse_bytes(format_bytes(value)) == value


def test_formats_are_short():
    assert format_rate(400 * 10**9) == "400Gbps"
    assert format_rate(50 * 2**30 * 8) == "429.4967296Gbps"
    assert format_time(1_500_000) == "1.5us"
    assert format_time(0) == "0ps"
    assert format_bytes(65536) == "64KiB"
    assert format_bytes(1_500_000) == "1.5MB"
    assert format_bytes(0) == "0B"
