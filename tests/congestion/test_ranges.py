"""What parameters of congestion controls may be: bounds are checked, and defaults are within them."""

import importlib
import math

import pytest

from nadi.pdes import RunError
from nadi.pdes.core.state import INF
from nadi.pdes.nic import congestion

ALL = [(name, own, parameter) for name in congestion.names() for own, parameter in congestion.parameters(name).items()]
OF_THE_ISSUE = [
    ("dctcp", {"g": -1}, "dctcp: g is -1; expected 0 to 1"),
    ("hpcc", {"eta": -1}, "hpcc: eta is -1; expected 0.01 to 1"),
    ("dcqcn", {"min_rate_bps": -5}, "dcqcn: min_rate_bps is -5; expected 1e+06 to 1e+15"),
    ("dcqcn", {"MIN_RATE": 0.5}, "dcqcn: MIN_RATE is 0.5; expected 1 to 1e+09"),
    ("dcqcn", {"rp_timer_ps": 0.5}, "dcqcn: rp_timer_ps is 0.5; expected 0, or 1 to 1e+18"),
    ("dcqcn", {"fast_recovery_times": 1.5}, "expected a whole number from 0 to 1e+06"),
    ("swift", {"fs_range_ps": -2}, "swift: fs_range_ps is -2; expected -1, or 0 to 1e+18"),
    ("swift", {"fs_min_cwnd_packets": 100}, "fs_min_cwnd_packets is 100; expected less than fs_max_cwnd_packets, 100"),
    ("timely", {"t_high_ps": 1e6}, "timely: t_low_ps is 5e+07; expected less than t_high_ps, 1e+06"),
]


@pytest.mark.parametrize(("name", "values", "text"), OF_THE_ISSUE)
def test_what_they_cannot_be_is_refused_in_their_own_units(name, values, text):
    with pytest.raises(RunError) as error:
        congestion.control(name, values)
    assert text in str(error.value)


@pytest.mark.parametrize(("name", "own", "parameter"), ALL)
def test_defaults_and_ends_are_allowed_and_nothing_beyond(name, own, parameter):
    allowed = parameter.range
    least, most = allowed.minimum, allowed.maximum
    assert least < most <= INF
    assert allowed.allows(parameter.default)
    assert congestion.control(name).values
    for value in (least, most):
        assert allowed.allows(value)
    for value in (math.nan, math.inf, -math.inf, most * 1.01, least - 1e-9 * max(1.0, abs(least))):
        assert not allowed.allows(value) or value == allowed.special
    with pytest.raises(RunError, match=own):
        congestion.control(name, {own: most * 2})


@pytest.mark.parametrize("name", [name for name in congestion.names() if name != "none"])
def test_ascending_names_parameters(name):
    module = importlib.import_module(f"nadi.pdes.nic.congestion.{name}")
    assert {each for pair in getattr(module, "ASCENDING", ()) for each in pair} <= {*module.PARAMETERS}
