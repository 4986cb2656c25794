"""Links with credits: the engine against the naive model, and what credits must show."""

from functools import cache

import pytest
from hypothesis import given

from nadi.pdes import build_world, run
from tests.budgets import bounded
from tests.fabric.cases import Scenario, credit_scenarios, star
from tests.fabric.compare import check, owners, same
from tests.fabric.test_against_naive import ADAPTIVE, BASE, CABLES, CROWD, EACH, EVEN, LONG, ROW


@bounded(40)
@given(credit_scenarios())
def test_random_runs_agree(scenario):
    found = check(*scenario.build(), lps=scenario.lps)
    assert found.reference.unfinished() == []
    assert found.reference.count["dropped_packets"] == 0
    assert found.reference.count["bytes_sent"] == found.reference.count["bytes_received"]


ONE_PACKET = {"virtual_lanes": 2, "lane_buffer_bytes": 1024, "credit_unit_bytes": 64}
WEIGHTS = {"virtual_lanes": 4, "lane_buffer_bytes": 4000, "lane_weights": (1, 20, 40, 80), "high_lanes": 1}
RUNS = {
    "even": Scenario(star(5, delay=100_000), EVEN, ONE_PACKET, BASE),
    "all to all": Scenario(star(5, [100, 100, 100, 50, 25], 1000), EACH, ONE_PACKET, BASE | {"window_bytes": 20_000}),
    "row": Scenario(ROW, CROWD, WEIGHTS, BASE | {"p2p_class": 3}),
    "returned late": Scenario(ROW, CROWD, WEIGHTS | {"credit_return_bytes": 3000}, BASE | {"p2p_class": 2}),
    "high, limited": Scenario(CABLES, EACH, WEIGHTS | {"high_limit_bytes": 0}, BASE | {"p2p_class": 3}),
    "control": Scenario(ROW, CROWD, WEIGHTS, BASE, (("rtt",), 1.0)),
    "adaptive": Scenario(CABLES, LONG, ONE_PACKET, ADAPTIVE | {"window_bytes": 60_000}),
}


@cache
def agreed(name):
    parts = RUNS[name].build()
    return parts, check(*parts)


@pytest.mark.parametrize("name", RUNS)
def test_fixed_runs_agree_on_any_partition(name):
    (graph, program, chosen), found = agreed(name)
    assert found.results.links["paused_ps"].max() > 0
    for lps in (2, 3):
        owner = owners(graph, lps, chosen.seed)
        assert same(found.results, run(build_world(graph, program, chosen, owner))) == []
