"""`nadi bench flow` and `nadi bench coupled`."""

import pytest

from nadi.errors import ConfigError
from nadi.studies.benchmarks.bench import run_coupled_bench, run_flow_bench


def test_figures_are_those_of_the_flows():
    found = run_flow_bench(spec="leaf-spine:npus=8,hosts_per_leaf=4,rate=100Gbps", size_bytes=600_000, runs=2)
    assert found["flows"] >= 7 * 8
    assert found["flow_events"] == 2 * found["flows"]
    assert 0 < found["solver_share"] < 1
    assert 0 < found["flows_per_solution"] <= found["flows"]


def test_figures_of_coupled_flows():
    """Two groups of 64, four all-to-alls each, and 64 rings of two."""
    found = run_coupled_bench(spec="leaf-spine:npus=128,hosts_per_leaf=16,rate=100Gbps", size_bytes=1 << 20, runs=2)
    assert found["flows"] == 4 * 2 + 64
    assert found["messages"] == 4 * 2 * 64 * 63 + 64 * 2 * 2
    assert 0 < found["solver_share"] < 1
    with pytest.raises(ConfigError, match="has 8 NPUs; expected a multiple of 64"):
        run_coupled_bench(spec="switch:npus=8")
