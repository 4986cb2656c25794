"""Marking thresholds of links of exactly some rates, which those of other simulators are."""

import pytest

from nadi import et
from nadi.configuration.run_file import load_config
from tests.running import simulate

FABRIC = "leaf-spine:npus=8,leaves=2,spines=1,hosts_per_leaf=4,rate=100Gbps,uplink_rate=200Gbps,delay=1us"


def run(folder, **network):
    """An all-to-all over uplinks that are too slow, with DCQCN."""
    nodes = [et.coll_node(1, "a", et.CollectiveCommType.ALL_TO_ALL, 4 << 20)]
    et.write_trace(folder / "trace.et", et.metadata(), nodes)
    sections = {
        "workload": {"traces": str(folder / "trace.et")},
        "topology": {"spec": FABRIC},
        "network": {"congestion_control": "dcqcn", **network},
    }
    return simulate(load_config(None, sections=sections)).results


def test_the_same_thresholds_by_rate_are_the_same_run(tmp_path):
    """The defaults at 25 Gb/s, 100 and 400 kB, are four times these at 100 Gb/s and eight times at 200 Gb/s."""
    by_rate = {"100Gbps": ["400kB", "1600kB", 0.2], "200Gbps": ["800kB", "3200kB", 0.2]}
    plain, other = run(tmp_path), run(tmp_path, ecn_kmin="1kB", ecn_kmax="2kB", ecn_pmax=1.0)
    found = run(tmp_path, ecn_kmin="1kB", ecn_kmax="2kB", ecn_pmax=1.0, ecn_by_rate=by_rate)
    assert found.digest == plain.digest != other.digest


def test_other_rates_keep_the_scaled_thresholds(tmp_path):
    plain = run(tmp_path)
    assert run(tmp_path, ecn_by_rate={"100.000001Gbps": ["1kB", "2kB", 1]}).digest == plain.digest
    uplinks = run(tmp_path, ecn_by_rate={"200Gbps": ["1kB", "2kB", 1]})
    assert uplinks.counters["marked_packets"] > plain.counters["marked_packets"]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"100Gbps": ["1kB", 2]}, "expected kmin, kmax and pmax"),
        ({"100Gbps": ["2kB", "1kB", 0.2]}, "kmin 2kB above kmax 1kB"),
        ({"100Gbps": ["1kB", "2kB", 1.5]}, "found pmax 1.5; expected a number from 0 to 1"),
        ({"fast": ["1kB", "2kB", 0.5]}, "'fast' is not a rate"),
        ("x", "ecn_by_rate"),
    ],
)
def test_wrong_thresholds(tmp_path, value, complaint):
    with pytest.raises(ValueError, match=complaint):
        run(tmp_path, ecn_by_rate=value)


def test_results_hold_the_thresholds_as_users_write_them():
    sections = {"workload": {"traces": "."}, "topology": {"spec": FABRIC}}
    given = {"100Gbps": ["1kB", "2kB", 0.5]}
    config = load_config(None, sections=sections | {"network": {"ecn_by_rate": given}})
    written = config.settled()
    assert written["network"]["ecn_by_rate"] == given
    assert load_config(None, sections=written).network == config.network
