"""Clusters, machines and GPUs in run files and on the command line: what a name sets, and what wins over it."""

import json
import re
import tomllib

import pytest

from nadi import et, pdes, topologies
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import collective_config, load_config
from nadi.configuration.sections import NetworkSection, SystemSection
from nadi.errors import ConfigError
from nadi.inputs import plug_ins
from nadi.simulation import network_settings as fabric
from nadi.simulation.assembly.reading import WorkReader
from nadi.topologies.clusters import clusters, find
from nadi.workload.collectives import choose, defaults_on
from nadi.workload.collectives.nccl.generations import generations
from nadi.workload.compute import (
    IN_STEPS,
    ComputeTimes,
    Efficiencies,
    Measurement,
    find_gpu,
    parse_operators,
    write_table,
)
from tests.docs.pages import DOCS, blocks
from tests.network_sections import network_section

LEAST = '[workload]\ntraces = "x"\n'


@pytest.fixture
def config(tmp_path):
    def load(text, *overrides):
        path = tmp_path / "run.toml"
        path.write_text(LEAST + text)
        return load_config(path, overrides)

    return load


@pytest.mark.parametrize("name", ["dgx-h100-superpod:gpus=16", "selene:gpus=16", "deepseek-h800:gpus=16"])
@pytest.mark.parametrize("rule", ["adaptive", "spray", "ecmp"])
def test_small_packets_fit_the_window_of_a_cluster(name, rule):
    """The cluster's window, 512 packets of 4 KiB, gives way where selective repeat keeps fewer bytes; a named one is
    refused."""
    given = [f"network.load_balancing={rule}", "network.mtu=1KiB"]
    network = network_section(given, name)
    fabric.fitted(topologies.build(name), fabric.network_settings(network))
    assert network.window == (2 << 20 if rule == "ecmp" else 0)  # 0 = "auto"
    if rule != "ecmp":
        network = network_section([*given, "network.window=2MiB"], name)
        with pytest.raises(ConfigError, match="window: 2048 packets; expected at most 512"):
            fabric.fitted(topologies.build(name), fabric.network_settings(network))


@pytest.mark.parametrize("name", clusters())
def test_every_cluster_makes_a_run_file(name, config):
    found = config(f'[topology]\ncluster = "{name}"\ngpus = 64\n')
    cluster = find(name)
    own = NetworkSection.model_validate(
        tomllib.loads("".join(f"{k} = {json.dumps(v)}\n" for k, v in cluster.network.items()))
    )
    assert found.network == own
    assert {key: getattr(own, key) for key in cluster.network} != dict.fromkeys(cluster.network)
    assert found.system == SystemSection.model_validate(cluster.system)
    graph = topologies.build(found.topology.source())
    settings = fabric.fitted(graph, fabric.network_settings(found.network, found.system))  # buffers hold what PFC needs
    assert isinstance(settings, pdes.Settings)
    assert graph.npus == 64


@pytest.mark.parametrize("name", clusters())
def test_windows_and_buffers_are_large_enough_for_the_whole_cluster(name):
    graph = topologies.build(f"{name}:gpus={find(name).most_gpus}")
    settings = fabric.fitted(graph, fabric.network_settings(network_section([], name)))
    way = topologies.route(graph, 0, graph.npus - 1)
    round_trip_ps = 2 * int(graph.link_delay_ps[way].sum()) + 2 * len(way) * 150_000
    needed = int(graph.link_rate_bps[way].min()) / 8 * round_trip_ps / 1e12
    assert settings.window_bytes == 0 or settings.window_bytes >= needed


def test_what_the_run_file_says_wins(config):
    text = '[topology]\ncluster = "alibaba-hpn"\ngpus = 16\n[network]\nload_balancing = "spray"\n'
    plain, other = config(text), config(text, "network.buffer=32MB", "network.congestion.g=0.5")
    assert (plain.network.load_balancing, plain.network.congestion_control) == ("spray", "dcqcn")
    assert (plain.network.buffer, other.network.buffer) == (165_000_000, 32_000_000)
    assert other.network.congestion == {"g": 0.5}
    collectives = config('[topology]\ncluster = "tpu-v4"\n', "system.collectives.all-reduce=ring").system.collectives
    assert collectives["all-reduce"] == "ring"
    assert collectives["all-gather"] == find("tpu-v4").collectives["all-gather"]


@pytest.mark.parametrize("name", clusters())
def test_the_accelerator_is_known_to_the_compute_model(name, config):
    text = f'[topology]\ncluster = "{name}"\ngpus = 8\n'
    found = config(text)
    model = WorkReader.of(found).compute_model(serves=False, npus=8)
    assert model.times is not None
    assert found.compute.gpu == find(name).gpu
    assert find(name).host.pcie_rate == 8 * find_gpu(found.compute.gpu).host_link_Bps
    assert config(text, "compute.gpu=v100").compute.gpu == "v100"
    mine = config(text, "compute.peak_flops=1TFLOPS").compute
    assert (mine.gpu, mine.peak_flops) == (None, 1e12)


@pytest.mark.parametrize(
    ("override", "without"),
    [
        ("network.switch=output-queued", {"buffer", "pfc", "ecn", "pfc_alpha"}),
        ("network.pfc=false", {"pfc_headroom", "pfc_resume_offset"}),
        ("network.ecn=false", {"ecn_kmin", "ecn_kmax", "ecn_pmax"}),
        ("network.fidelity=analytical", {"buffer", "load_balancing"}),
    ],
)
def test_what_another_choice_does_not_have_is_left_out(override, without, config):
    network = config('[topology]\ncluster = "alibaba-hpn"\ngpus = 16\n', override).network
    assert not without & set(network.model_dump(exclude_none=True))


@pytest.mark.parametrize("name", clusters())
def test_closed_forms_are_of_the_packets_of_the_cluster(name, config):
    """Headers, acknowledgements and windows are the cluster's, and not those of fabrics without a name."""
    text = f'[topology]\ncluster = "{name}"\ngpus = 8\n'
    by_packets, by_forms = config(text).network, config(text, "network.fidelity=closed-form").network
    assert by_forms == by_packets.model_copy(update={"fidelity": "closed-form"})


def test_another_congestion_control_has_parameters_of_its_own(monkeypatch, config):
    named = find("alibaba-hpn").model_copy(
        update={"network": {"congestion_control": "dcqcn", "congestion": {"g": 0.25}}}
    )
    monkeypatch.setattr("nadi.configuration.run_file.find", lambda _name: named)
    text = '[topology]\ncluster = "alibaba-hpn"\ngpus = 16\n'
    assert config(text).network.congestion == {"g": 0.25}
    assert config(text, "network.congestion_control=hpcc").network.congestion == {}


@pytest.mark.parametrize("topology", ['spec = "llama3-24k:gpus=16"', 'name = "llama3-24k"\nparams = {gpus = 16}'])
def test_a_cluster_is_named_by_spec_and_name_too(topology, config):
    found = config(f"[topology]\n{topology}\n")
    assert found.network.pfc is True
    assert topologies.build(found.topology.source()).npus == 16


def test_the_settled_config_is_a_run_file_again(config):
    found = config('[topology]\ncluster = "llama3-24k"\ngpus = 64\nparams = {units_per_pod = 2, spines = 2}\n')
    settled = found.settled()
    assert settled["topology"]["cluster"] == "llama3-24k"
    assert settled["network"]["buffer"] == "113MB"
    again = RunConfig.model_validate(settled)
    assert again == found
    graph = topologies.build(again.topology.source())
    assert topologies.describe(graph)["switches"]["core"] == 28


def test_collectives_of_a_cluster_run_with_its_settings():
    assert network_section([], "llama3-24k:gpus=16").pfc is True
    assert network_section(["network.pfc=false"], "llama3-24k:gpus=16").pfc is False
    assert network_section([], "ring:npus=4") == NetworkSection()
    own = collective_config("tpu-v4:gpus=64", []).system.collectives
    assert own["all-reduce"].startswith("grid")
    assert "broadcast" not in own
    assert collective_config("ring:npus=4", []).system.collectives == {}


@pytest.mark.parametrize(
    ("name", "gpus", "slowest"),
    [
        ("alibaba-hpn", 16, 1.35),  # two ports by hash
        ("deepseek-h800", 16, 1.01),
        ("dgx-h100-superpod", 16, 1.01),
        ("dgx-h200-superpod", 16, 1.01),
        ("dgx-b200-superpod", 16, 1.01),
        ("llama3-24k", 32, 1.5),  # ECMP by hash
        ("selene", 16, 1.01),
        ("small-a100", 32, 1.01),
        ("tpu-v4", 64, 1.01),
    ],
)
def test_an_all_reduce_takes_what_its_closed_form_says(name, gpus, slowest, nadi):
    done = nadi.ok("collective", "all-reduce", "-t", f"{name}:gpus={gpus}", "--sizes", "1MiB", "--json", "--quiet")
    (row,) = done.document["rows"]
    ratio = row["time_ps"] / row["closed_form_ps"]
    assert 0.99 < ratio < slowest


def test_all_reduces_of_tpus_have_about_the_published_bandwidth(nadi):
    """cloud.google.com/tpu/docs/v4: 1.1 PB/s for 4,096 chips, 268 GB/s each, of 300 GB/s that their six links send."""
    done = nadi("collective", "all-reduce", "-t", "tpu-v4:gpus=64", "--sizes", "16MiB", "--json", "--quiet")
    (row,) = done.document["rows"]
    assert row["busbw_Bps"] == pytest.approx(268e9, rel=0.12)


MINE = """
gpu = "h100"
gpus_per_host = 8
gpus = 64
[fabric]
name = "rail-fat-tree"
accelerator = "h100"
nics_per_host = 4
rate = "200Gbps"
hosts_per_unit = 4
oversubscription = 2
[network]
header = "70B"
"""
SMALL = ("--model", "gpt3-125m", "--plan", "tp4,dp4,gb16,seq256", "--fidelity", "closed-form", "--json")


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


def test_the_page_about_clusters_shows_what_the_command_prints(nadi, tmp_path, monkeypatch):
    """tests/docs/test_how_to.py runs the other commands of the page."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "how-to" / "my-cluster.md").read_text()
    [text] = (block.text for block in blocks("toml") if block.page == "docs/how-to/my-cluster.md")
    (tmp_path / "my-cluster.toml").write_text(text)
    [line] = re.findall(r"^    nadi (topology show .*)$", page, re.MULTILINE)
    [shown] = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    printed = nadi(*line.split()).out
    assert {" ".join(row.split()) for row in shown.splitlines()} <= {
        " ".join(row.split()) for row in printed.splitlines()
    }


def test_a_cluster_is_a_file_or_a_name_with_parameters(nadi, mine):
    """Plan and run say of a file what they say of a listed cluster with the same values."""
    found = nadi.ok("run", *SMALL, "--cluster", mine, "-q")
    assert found.document["config"]["network"]["header"] == "70B"
    assert found.document["config"]["compute"]["gpu"] == "h100"
    listed = nadi("run", *SMALL, "--cluster", "dgx-h100-superpod:rate=100Gbps", "-q").document
    slower = nadi("run", *SMALL, "--cluster", "dgx-h100-superpod:rate=50Gbps", "-q").document
    assert found.document["finish_time_ps"] == pytest.approx(listed["finish_time_ps"], rel=0.02), "but for delays"
    assert slower["finish_time_ps"] > 1.1 * listed["finish_time_ps"]
    plan = ("--plan", "tp4,dp4,gb16,seq256,mb1", "--cluster", mine, "--gpus", 16, "--confirm", 0, "--json")
    [answer] = nadi("plan", *SMALL[:2], *plan).document["answers"].values()
    assert answer["cluster"] == "mine"
    assert nadi("topology", "show", f"{mine}:gpus=16", "--json").document["npus"] == 16


@pytest.mark.usefixtures("mine")
def test_the_file_of_a_run_files_cluster_lies_beside_the_run_file(nadi, tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text(
        '[workload]\nmodel = "gpt3-125m"\nplan = "tp4,dp4,gb16,seq256"\n'
        '[topology]\ncluster = "mine.toml:rate=400Gbps"\n'
    )
    monkeypatch.chdir("/")
    nadi.ok("run", tmp_path / "run.toml", "--fidelity", "closed-form", "--out", tmp_path / "out", "-q", "--json")
    nadi.ok("explain", tmp_path / "out", "--json")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deeper").mkdir()
    run = (tmp_path / "run.toml").rename(tmp_path / "deeper" / "run.toml")
    nadi.ok("run", run, "--cluster", "mine.toml", "--fidelity", "closed-form", "-q")


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
    outcome = nadi.ok("collective", "all-reduce", "-t", "dgx-h100:npus=4", "--sizes", "64KiB,64MiB", "-q", "--json")
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
        return nadi.ok("run", run, "-q", "--json", *more).document["finish_time_ps"]

    assert sent() == sent("--set", "network.nvlink_framing=true") > sent("--set", "network.nvlink_framing=false")


PRODUCT = "gemm 2048x4608x12288 bf16"
OPERATOR = parse_operators(PRODUCT)[0]


@pytest.fixture
def write_compute(write_run):
    """A run of one compute node with these operators on each of 4 NPUs, and a [compute] section."""

    def write(section, text=PRODUCT, pace="alone"):
        node = et.comp_node(1, "op", attrs=[et.attribute("operators", "string", text)])
        return write_run([[node]] * 4, f'[compute]\n{section}\npace = "{pace}"\n[output]\ndir = "out"\n')

    return write


def end_ps(nadi, run):
    nadi.ok("run", run)
    return json.loads((run.parent / "out" / "summary.json").read_text())["finish_time_ps"]


def test_a_run_takes_as_long_as_its_operators_on_the_gpu(nadi, write_compute):
    assert end_ps(nadi, write_compute('gpu = "a100"')) == ComputeTimes(find_gpu("a100")).time_ps(OPERATOR)
    assert end_ps(nadi, write_compute('gpu = "h100"')) == ComputeTimes(find_gpu("h100")).time_ps(OPERATOR)
    half = ComputeTimes(find_gpu("h100"), efficiencies=Efficiencies(gemm=0.4)).time_ps(OPERATOR)
    assert end_ps(nadi, write_compute('gpu = "h100"\nefficiency = { gemm = 0.4 }')) == half


def test_operators_of_a_step_are_slower_than_alone(nadi, write_compute):
    text = f"{PRODUCT}; norm 2048x12288 bf16"
    product, norm = (ComputeTimes(find_gpu("a100")).time_ps(operator) for operator in parse_operators(text))
    expected = round(product / IN_STEPS.products) + round(norm / IN_STEPS.others)
    assert end_ps(nadi, write_compute('gpu = "a100"', text, "step")) == pytest.approx(expected, abs=2)
    assert end_ps(nadi, write_compute('gpu = "a100"', text)) == product + norm


def test_tables_and_gpus_are_found_from_the_run_file(nadi, write_compute, tmp_path):
    write_table(tmp_path / "mine.csv", [Measurement("a100", OPERATOR, 777_000_000)])
    assert end_ps(nadi, write_compute('gpu = "a100"\ntables = ["mine.csv"]')) == 777_000_000
    scaled = round(777_000_000 * 312 / 989.4)
    assert end_ps(nadi, write_compute('gpu = "h100"\ntables = ["mine.csv"]\nscale_from = "a100"')) == scaled
    (tmp_path / "own.toml").write_text(plug_ins.own_files("GPU")["a100"].read_text().replace('"a100"', '"own"', 1))
    assert end_ps(nadi, write_compute('gpu = "own.toml"')) == ComputeTimes(find_gpu("a100")).time_ps(OPERATOR)


def test_operators_need_a_gpu(nadi, write_compute):
    ran = nadi.refuse("run", write_compute('model = "auto"'))
    assert "trace.0.et: node 1: operators are given but no GPU that does them" in ran.err


def test_times_of_aicb_become_a_table(nadi, tmp_path):
    (tmp_path / "aiob.txt").write_text(
        "train_iter:1\natten_linear:\n    time_gpu_avg: 349\nother:\n    time_gpu_avg: 1\n"
    )
    model = ("--gpu", "a100", "--hidden", 4096, "--heads", 32, "--vocab", 50304, "--seq", 2048)
    made = nadi("workload", "operator-times", tmp_path / "aiob.txt", "-o", tmp_path / "t.csv", *model)
    assert made.out == f"{tmp_path / 't.csv'}: 1 operators of a100; left out: other\n"
    assert "a100,gemm,2048x4096x4096,bf16,349000000,AICB aiob.txt," in (tmp_path / "t.csv").read_text()


def test_the_example_of_aicb_is_read(nadi, tmp_path, shared_data):
    text = shared_data / "simai" / "aiob_kernel_times_example.txt"
    model = ("--gpu", "a100", "--hidden", 4096, "--heads", 32, "--vocab", 50304, "--seq", 2048, "--parameters", 10**9)
    made = nadi("workload", "operator-times", text, "-o", tmp_path / "t.csv", *model)
    assert made.out == f"{tmp_path / 't.csv'}: 10 operators of a100\n"


def test_a_cluster_brings_its_gpu_unless_a_rate_is_given(nadi, write_run):
    node = et.comp_node(1, "op", num_ops=10**12, attrs=[et.attribute("operators", "string", PRODUCT)])
    h100 = ComputeTimes(find_gpu("h100"), pace=IN_STEPS).time_ps(OPERATOR)
    a100 = ComputeTimes(find_gpu("a100"), pace=IN_STEPS).time_ps(OPERATOR)
    for section, expected in (("", h100), ('gpu = "a100"', a100), ('peak_flops = "1TFLOPS"', 10**12)):
        text = f'[compute]\n{section}\n[output]\ndir = "out"\n'
        run = write_run([[node]] * 8, text, 'cluster = "dgx-h100-superpod"\ngpus = 8')
        assert end_ps(nadi, run) == expected
