"""Named machines, and what runs on hosts behind NVSwitches when the user names no algorithm."""

import json

import pytest

from nadi import topologies
from nadi.workload.collectives import choose, defaults_on
from nadi.workload.collectives.nccl.generations import generations


@pytest.mark.parametrize(
    ("name", "accelerator"), [("a100", "a100"), ("h100", "h100"), ("h200", "h100"), ("b200", "b200")]
)
def test_a_named_machine_says_what_its_npus_are(name, accelerator, tmp_path):
    graph = topologies.build(f"dgx-{name}:npus=16")
    assert (graph.accelerator, graph.dims) == (accelerator, (8, 2))
    assert int(graph.link_rate_bps.max()) == generations()[accelerator].nvlink_bps
    topologies.write_toml(graph, tmp_path / "made.toml")
    assert topologies.build(str(tmp_path / "made.toml")).accelerator == accelerator


def test_nccl_is_the_default_on_hosts_behind_nvswitches():
    for spec, expected in (
        ("dgx-h100:npus=8", {"nccl"}),
        ("rail-optimised:npus=4,gpus_per_host=2", {"nccl"}),
        ("rail-optimised:npus=4,gpus_per_host=1", set()),
        ("leaf-spine:npus=8,hosts_per_leaf=4", set()),
        ("ring:npus=8", set()),
    ):
        found = defaults_on(topologies.build(spec))
        assert set(found.values()) == expected, spec
        assert all(choose(kind, name) for kind, name in found.items())


def test_a_collective_needs_no_algorithms_name(nadi):
    outcome = nadi("collective", "all-reduce", "-t", "dgx-h100:npus=4", "--sizes", "64KiB,64MiB", "-q", "--json")
    assert outcome.code == 0
    ways = [row["variant"] for row in outcome.document["rows"]]
    assert ways == ["ring ll, 4 channels, h100", "ring simple, 24 channels, h100"]
    assert (
        "ring ll, 4 channels, h100"
        in nadi("collective", "all-reduce", "-t", "dgx-h100:npus=4", "--sizes", "64KiB", "-q").out
    )


def test_a_run_says_whose_constants_it_takes(nadi, write_run, step, tmp_path):
    topology = 'spec = "rail-optimised:npus=4,gpus_per_host=4,nvlink_rate=2400Gbps"'
    run = write_run([step] * 4, topology=topology)
    outcome = nadi("run", run, "-q", "--out", tmp_path / "out")
    assert "collectives: nccl with the constants of a100 (NVLinks of 2.4 Tb/s)" in outcome.out
    settled = json.loads((tmp_path / "out" / "summary.json").read_text())["settled"]
    assert settled["collectives"]["all-reduce"] == "nccl"
    named = nadi("run", run, "-q", "--set", "system.collectives.all-reduce='ring'")
    assert "nccl with" in named.out  # of the other kinds
    assert "ring" in named.out


@pytest.mark.parametrize("spec", ["dgx-h100:npus=8", "rail-optimised:npus=8"])
def test_links_of_nvswitches_are_framed_unless_told_otherwise(spec, nadi, write_run, step):
    run = write_run([step] * 8, topology=f'spec = "{spec}"')

    def sent(*more):
        outcome = nadi("run", run, "-q", "--json", *more)
        assert outcome.code == 0
        return outcome.document["finish_time_ps"]

    assert sent() == sent("--set", "network.nvlink_framing=true") > sent("--set", "network.nvlink_framing=false")
