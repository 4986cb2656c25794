"""Clusters in run files and on the command line: what a name sets, and what wins over it."""

import json
import re
import tomllib

import pytest

from nadi import pdes, topologies
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import collective_config, load_config
from nadi.configuration.sections import NetworkSection, SystemSection
from nadi.errors import ConfigError
from nadi.simulation import network_settings as fabric
from nadi.simulation.assembly.reading import WorkReader
from nadi.simulation.network_settings import network_settings
from nadi.topologies.clusters import clusters, find
from nadi.workload.compute.gpu import find_gpu
from tests.docs.pages import DOCS, blocks
from tests.network_sections import network_section
from tests.nonempty import nonempty

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
    fabric.fitted(topologies.build(name), network_settings(network))
    assert network.window == (2 << 20 if rule == "ecmp" else 0)  # 0 = "auto"
    if rule != "ecmp":
        network = network_section([*given, "network.window=2MiB"], name)
        with pytest.raises(ConfigError, match="window: 2048 packets; expected at most 512"):
            fabric.fitted(topologies.build(name), network_settings(network))


@pytest.mark.parametrize("name", clusters())
def test_every_cluster_makes_a_run_file(name, config):
    found = config(f'[topology]\ncluster = "{name}"\ngpus = 64\n')
    cluster = find(name)
    written = tomllib.loads(
        f"[network]\n{''.join(f'{k} = {json.dumps(v)}{chr(10)}' for k, v in cluster.network.items())}"
    )
    own = NetworkSection.model_validate(written["network"])
    assert found.network == own
    assert {key: getattr(own, key) for key in cluster.network} != dict.fromkeys(cluster.network)
    assert found.system == SystemSection.model_validate(cluster.system)
    graph = topologies.build(found.topology.source())
    settings = fabric.fitted(graph, network_settings(found.network, found.system))  # buffers hold what PFC needs
    assert isinstance(settings, pdes.Settings)
    assert graph.npus == 64


@pytest.mark.parametrize("name", clusters())
def test_windows_and_buffers_are_large_enough_for_the_whole_cluster(name):
    graph = topologies.build(f"{name}:gpus={find(name).most_gpus}")
    settings = fabric.fitted(graph, network_settings(network_section([], name)))
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
    model = WorkReader.of(found).compute_model(serves=False)
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('cluster = "selen"', "[topology] cluster: unknown cluster 'selen'; did you mean 'selene'?"),
        ('cluster = "selene"\ngpus = 9', "[topology]: gpus = 9 of selene; expected 1 to 8, or a multiple of 8"),
        ('cluster = "selene"\ngpus = 0', "[topology] gpus: found 0"),
        ('cluster = "selene"\ngpus = "many"', "[topology] gpus: found 'many'"),
        (
            'cluster = "selene"\nspec = "ring:npus=4"',
            "[topology]: found spec and cluster of spec, name, file and cluster",
        ),
        ('spec = "ring:npus=4"\ngpus = 4', "[topology]: gpus is set without cluster"),
        ("cluster = 3", "[topology] cluster: found 3"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text, words, config):
    with pytest.raises(ConfigError) as error:
        config(f"[topology]\n{text}\n")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_list_of_clusters(nadi):
    shown = nadi("topology", "clusters")
    assert shown.code == 0
    lines = shown.out.splitlines()
    for name, cluster in nonempty(clusters().items()):
        line = next(line for line in lines if f" {name} " in line)
        assert cluster.summary in line
        assert cluster.source in line
    document = nadi("topology", "clusters", "--json").document
    selene = next(one for one in document if one["name"] == "selene")
    assert (selene["gpus"], selene["most_gpus"], selene["gpu"], selene["gpus_per_host"]) == (4480, 4480, "a100", 8)


def test_commands_take_a_cluster_for_a_topology(nadi, tmp_path):
    shown = nadi("topology", "show", "selene:gpus=64", "--json")
    assert shown.document["switches"] == {"nvswitch": 8, "leaf": 8, "spine": 80, "core": 28}
    assert nadi("topology", "build", "small-a100:gpus=16", "-o", tmp_path / "small.toml").code == 0
    assert topologies.build(tmp_path / "small.toml").npus == 16
    wrong = nadi("topology", "show", "selene:gpus=65")
    assert (wrong.code, wrong.out) == (2, "")
    assert "nearest: 64 and 72" in wrong.err


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
    done = nadi("collective", "all-reduce", "-t", f"{name}:gpus={gpus}", "--sizes", "1MiB", "--json", "--quiet")
    assert done.code == 0, done.err
    (row,) = done.document["rows"]
    ratio = row["time_ps"] / row["closed_form_ps"]
    assert 0.99 < ratio < slowest


def test_all_reduces_of_tpus_have_about_the_published_bandwidth(nadi):
    """cloud.google.com/tpu/docs/v4: 1.1 PB/s for 4,096 chips, 268 GB/s each, of 300 GB/s that their six links send."""
    done = nadi("collective", "all-reduce", "-t", "tpu-v4:gpus=64", "--sizes", "16MiB", "--json", "--quiet")
    (row,) = done.document["rows"]
    assert row["busbw_Bps"] == pytest.approx(268e9, rel=0.12)


def test_names_are_offered_by_the_shell():
    from nadi.cli.options import topology_names

    assert topology_names("sel") == ["selene"]


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
    found = nadi("run", *SMALL, "--cluster", mine, "-q")
    assert found.code == 0, found.err
    assert found.document["config"]["network"]["header"] == "70B"
    assert found.document["config"]["compute"]["gpu"] == "h100"
    listed = nadi("run", *SMALL, "--cluster", "dgx-h100-superpod:rate=100Gbps", "-q").document
    slower = nadi("run", *SMALL, "--cluster", "dgx-h100-superpod:rate=50Gbps", "-q").document
    assert found.document["finish_time_ps"] == pytest.approx(listed["finish_time_ps"], rel=0.02), "but for delays"
    assert slower["finish_time_ps"] > 1.1 * listed["finish_time_ps"]
    plans = nadi(
        "plan",
        *SMALL[:2],
        "--plan",
        "tp4,dp4,gb16,seq256,mb1",
        "--cluster",
        mine,
        "--gpus",
        16,
        "--confirm",
        0,
        "--json",
    )
    [answer] = plans.document["answers"].values()
    assert answer["cluster"] == "mine"
    assert nadi("topology", "show", f"{mine}:gpus=16", "--json").document["npus"] == 16


@pytest.mark.usefixtures("mine")
def test_the_file_of_a_run_files_cluster_lies_beside_the_run_file(nadi, tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text(
        '[workload]\nmodel = "gpt3-125m"\nplan = "tp4,dp4,gb16,seq256"\n'
        '[topology]\ncluster = "mine.toml:rate=400Gbps"\n'
    )
    monkeypatch.chdir("/")
    found = nadi("run", tmp_path / "run.toml", "--fidelity", "closed-form", "--out", tmp_path / "out", "-q", "--json")
    assert found.code == 0, found.err
    assert nadi("explain", tmp_path / "out", "--json").code == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deeper").mkdir()
    run = (tmp_path / "run.toml").rename(tmp_path / "deeper" / "run.toml")
    assert nadi("run", run, "--cluster", "mine.toml", "--fidelity", "closed-form", "-q").code == 0


def test_what_is_wrong_with_a_cluster_is_one_line(nadi, mine, tmp_path):
    (tmp_path / "odd.toml").write_text('gpu = "h100"\ngpus = 8\n[fabric]\nname = "ring"\n')
    (tmp_path / "text.toml").write_text("no = = toml")
    for cluster, said in (
        (tmp_path / "none.toml", "none.toml: No such file or directory; expected the file of a cluster"),
        (tmp_path / "odd.toml", "odd.toml: gpus_per_host: missing"),
        (tmp_path / "text.toml", "text.toml: no TOML"),
        (f"{mine}:rate", "'rate' is no key=value"),
        (f"{mine}:gpus=3.5", "gpus: '3.5' is not a count"),
        (f"{mine}:colour=red", "colour: unknown key"),
        (f"{mine}:nics_per_host=3", "gpus_per_host = 8; expected a multiple of nics_per_host = 3"),
        (f"{mine}:oversubscription=3", "oversubscription = 3 needs 0.666667 spines; expected a whole number"),
        (f"{mine}:oversubscription=2,spines=2", "both spines and oversubscription are given; expected one of them"),
        ("selene:gpus=x", "selene: gpus: 'x' is not a count"),
    ):
        found = nadi("run", *SMALL[:-1], "--cluster", cluster, "-q")
        assert (found.code, found.err.count("\n")) == (2, 1), found.err
        assert said in found.err
