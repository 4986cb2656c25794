"""`nadi topology compare`: a job on several fabrics, whole and with failed parts."""

import pytest

from nadi import topologies
from nadi.studies.sweeps.fabrics import are_outside

CLUSTER = """
gpu = "a100"
gpus_per_host = 1
gpus = 8
[fabric]
name = "leaf-spine"
hosts_per_leaf = 4
spines = 2
rate = "100Gbps"
"""
JOB = """
[workload.traffic]
file = "flows.csv"
[network]
load_balancing = "spray"
detection_time = "100us"
"""
BYTES = 1 << 24


@pytest.mark.usefixtures("points_here")
def test_traffic_between_leaves_on_two_and_four_spines(nadi, tmp_path):
    (tmp_path / "two.toml").write_text(CLUSTER)
    (tmp_path / "job.toml").write_text(JOB)
    flows = [f"{npu},{(npu + 4) % 8},{BYTES},0" for npu in range(8)]
    (tmp_path / "flows.csv").write_text("\n".join(["src,dst,bytes,start_ps", *flows, ""]))
    fabrics = tmp_path / "two.toml", f"{tmp_path / 'two.toml'}:spines=4"
    options = f"--run={tmp_path / 'job.toml'}", "--fidelity=flow", f"-o{tmp_path / 'out'}"
    document = nadi.ok("topology", "compare", *fabrics, *options, "--json").document
    two, four = document["fabrics"]
    # 4 x 16 MiB through 2 x 100 Gb/s; headers are 2.5 % at most
    least_ps = 4 * BYTES * 8 / 2e11 * 1e12
    assert least_ps < two["time_ps"] < 1.04 * least_ps
    assert two["time_ps"] / four["time_ps"] == pytest.approx(2, rel=0.05)
    assert two["slower_than_best"] == pytest.approx(two["time_ps"] / four["time_ps"] - 1)
    assert (two["switches"], four["switches"]) == ({"leaf": 2, "spine": 2}, {"leaf": 2, "spine": 4})
    assert (two["cables"], four["cables"]) == (12, 16)
    # a share of what a dead spine had to carry waits for 100 us; then 1 of 2, or 3 of 4, spines are left
    for fabric, left in (two, 1 / 2), (four, 3 / 4):
        failures = {row["kind"]: row for row in fabric["failures"]}
        expected_ps = fabric["time_ps"] / left
        for kind in "switch spine", "cable leaf - spine":
            assert 0.98 * expected_ps < failures[kind]["time_ps"] < 1.02 * expected_ps + 1e8
        for kind in "switch leaf", "cable npu - leaf":
            assert "has no path to" in failures[kind]["error"]
            assert failures[kind]["time_ps"] is None
    # once more, nothing that is finished runs, and the page is the same
    page = (tmp_path / "out" / "fabrics.html").read_text()
    assert "two.toml:spines=4" in page
    assert "cable leaf - spine" in page
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").glob("[!.]*/summary.json")}
    assert len(before) == 2 + sum(row["error"] is None for each in document["fabrics"] for row in each["failures"])
    assert "one part down from begin to end" in nadi.ok("topology", "compare", *fabrics, *options).out
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert (tmp_path / "out" / "fabrics.html").read_text() == page


def test_cables_of_nvswitches_are_inside_of_hosts():
    graph = topologies.build("dgx-h100-superpod:gpus=16")
    outside = are_outside(graph)
    # a GPU has a cable to the NVSwitch of its host, and one to a leaf
    assert (~outside).sum() == 16
    assert outside[(graph.link_rate_bps[::2] == 400e9)].all()


def test_a_fabric_given_twice_is_refused(nadi, tmp_path):
    words = "selene", "selene", "--model=gpt3-125m", "--plan=dp8", f"-o{tmp_path / 'out'}"
    assert (
        nadi.refuse("topology", "compare", *words).err
        == "nadi: error: found selene, selene; expected each fabric once\n"
    )
    assert not (tmp_path / "out").exists()
