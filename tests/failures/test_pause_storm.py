"""A NIC that pauses the links to it for ever ([[faults]] pause_storm): what waits for it, and what does not."""

import json

import pyarrow.parquet as pq
import pytest

from nadi import et
from tests.cli.conftest import nadi, write_run  # noqa: F401 - fixtures

FABRIC = 'spec = "leaf-spine:npus=8,hosts_per_leaf=4,spines=1,rate=100Gbps,uplink_rate=100Gbps"'
PAUSING = '[network]\nswitch = "shared-buffer"\nbuffer = "500kB"\n'
STORM = '[[faults]]\nat = "10us"\nnpu = 0\npause_storm = true\n'
SIZE = 2_000_000


def nodes(*pairs):
    """Messages of SIZE from the first of each pair to the second."""
    of_npu = [[] for _ in range(8)]
    for src, dst in pairs:
        of_npu[src].append(et.send_node(len(of_npu[src]) + 1, "s", src, dst, SIZE))
        of_npu[dst].append(et.recv_node(len(of_npu[dst]) + 1, "r", src, dst, SIZE))
    return of_npu


def test_traffic_that_avoids_the_nic_is_as_without(nadi, write_run, tmp_path):  # noqa: F811
    digests = []
    for faults in ("", STORM):
        run = write_run(nodes((4, 1), (2, 5)), PAUSING + faults, FABRIC)
        outcome = nadi("run", run, "--out", tmp_path / f"out{len(digests)}", "-q")
        assert outcome.code == 0, outcome.err
        digests.append(json.loads((tmp_path / f"out{len(digests)}" / "summary.json").read_text())["digest"])
    assert digests[0] == digests[1]


def test_a_pause_that_lasts_counts_to_the_end_of_the_run(nadi, write_run, tmp_path):  # noqa: F811
    """Storms last: the link to the NIC is paused from the storm's frame, the only one, until the end."""
    assert nadi("run", write_run(nodes((4, 1)), PAUSING + STORM, FABRIC), "--out", tmp_path / "out", "-q").code == 0
    finish_ps = json.loads((tmp_path / "out" / "summary.json").read_text())["finish_time_ps"]
    links, pauses = (pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() for name in ("links", "pauses"))
    (begin_ps,) = (pause["time_ps"] for pause in pauses)
    assert 10_000_000 <= begin_ps < 11_000_000
    assert {link["dst"]: link["paused_ps"] for link in links if link["paused_ps"]} == {"npu 0": finish_ps - begin_ps}


def test_pauses_spread_to_messages_that_share_links_with_those_that_wait(nadi, write_run):  # noqa: F811
    """NPUs 4 and 5 send over the one uplink of their leaf, which packets for NPU 0 fill; 2 to 3 stay below leaf 0."""
    outcome = nadi("run", write_run(nodes((4, 0), (5, 1), (2, 3)), PAUSING + STORM, FABRIC), "-q")
    assert outcome.code == 1
    assert "pause storms: npu 0" in outcome.err
    waiting = [line.split(":")[0].strip() for line in outcome.err.splitlines() if " row " in line]
    assert {line.split(" row")[0] for line in waiting} == {"npu 0", "npu 1", "npu 4", "npu 5"}


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        (STORM, "[faults.0] pause_storm: nothing pauses links here; expected [network] pfc = true"),
        (PAUSING + "pfc = false\n" + STORM, "[faults.0] pause_storm: nothing pauses links here"),
        (PAUSING + STORM + 'until = "20us"\n', "expected none, as a pause storm does not end"),
        ('[network]\nfidelity = "flow"\n' + STORM, "[faults.0] pause_storm: nothing pauses links at this level"),
        (PAUSING + STORM.replace("true", "false"), "[faults.0] pause_storm: found False"),
        (PAUSING + STORM.replace("npu = 0", 'link = "npu 0 - leaf 0"'), "found pause_storm for a link"),
    ],
)
def test_storms_that_make_no_sense_are_refused(nadi, write_run, sections, complaint):  # noqa: F811
    outcome = nadi("run", write_run(nodes((4, 0)), sections, FABRIC), "-q")
    assert outcome.code == 2
    assert complaint in outcome.err
