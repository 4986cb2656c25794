"""`nadi bench flow`."""

from nadi.studies.benchmarks.bench import run_flow_bench


def test_figures_are_those_of_the_flows():
    found = run_flow_bench(spec="leaf-spine:npus=8,hosts_per_leaf=4,rate=100Gbps", size_bytes=600_000, runs=2)
    assert found["flows"] >= 7 * 8
    assert found["flow_events"] == 2 * found["flows"]
    assert 0 < found["solver_share"] < 1
    assert 0 < found["flows_per_solution"] <= found["flows"]
