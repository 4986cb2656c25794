"""Run files: values, defaults, overrides, and what is said of mistakes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import load_config
from nadi.configuration.sections import NetworkSection
from nadi.errors import ConfigError
from nadi.inputs.units import parse_flops
from nadi.pdes.construction.fabric import rto_ps
from nadi.pdes.construction.settings import SharedBuffer
from nadi.simulation.network_settings import fitted, network_settings
from nadi.topologies import build
from tests.network_sections import network_section

LEAST = '[workload]\ntraces = "t/x"\n[topology]\nspec = "ring:npus=4"\n'


@pytest.fixture
def load(tmp_path):
    def load(text, *overrides):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return load_config(path, overrides)

    return load


def test_only_traces_and_topology_are_required(load, tmp_path):
    config = load(LEAST)
    assert config.workload.traces == tmp_path / "t/x"
    assert config.topology.source() == "ring:npus=4"
    assert config.network == NetworkSection()
    assert config.network.mtu == 4096
    assert config.network.window == 0


def test_values_carry_units(load):
    config = load(
        LEAST + '[network]\nmtu = "1KiB"\nwindow = "1MB"\nqueue_limit = "64KiB"\nrto = "50us"\n'
        '[compute]\npeak_flops = "312TFLOPS"\n[memory]\nbandwidth = "2.04TB/s"\nlatency = "100ns"\n'
    )
    assert config.network.mtu == 1024
    assert config.network.window == 10**6
    assert config.network.queue_limit == 65536
    assert config.network.rto == 50 * 10**6
    assert config.compute.peak_flops == 312e12
    assert config.memory.bandwidth == 8 * 2040 * 10**9
    assert config.memory.latency == 10**5


def test_settled_values_can_be_read_again(load):
    config = load(LEAST + '[network]\nwindow = "1MiB"\n[compute]\npeak_flops = "312TFLOPS"\n')
    assert RunConfig.model_validate(config.settled()) == config
    assert config.settled()["network"]["window"] == "1MiB"
    assert config.settled()["network"]["queue_limit"] == "unlimited"


@pytest.mark.parametrize(
    ("text", "switch"),
    [
        ("", "output-queued"),
        ('switch = "auto"', "output-queued"),
        ('congestion_control = "none"\ncnp_interval = "4us"', "output-queued"),
        ('buffer = "1MB"', "shared-buffer"),
        ("pfc = false", "shared-buffer"),
        ('switch = "auto"\necn = true', "shared-buffer"),
        ("class_weights = [3, 1]", "shared-buffer"),
        ('discipline = "weighted"', "shared-buffer"),
        ('congestion_control = "dctcp"\ncongestion = { g = 0.1 }', "shared-buffer"),
        ('congestion_control = "timely"\nswitch = "output-queued"', "output-queued"),
        ("pfc = false\ntrimming = true\necn = false", "shared-buffer"),
    ],
)
def test_switches_share_a_buffer_where_a_key_asks_for_it(load, text, switch):
    config = load(f"{LEAST}[network]\n{text}\n")
    assert config.network.switch == switch
    assert RunConfig.model_validate(config.settled()) == config
    shared = config.network.switch == "shared-buffer"
    settled = config.settled()["network"]
    assert ("buffer" in settled) == shared
    assert ("ecn_kmin" in settled) == bool(config.network.ecn)
    assert ("pfc_headroom" in settled) == bool(config.network.pfc)


def test_defaults_of_shared_buffers_are_those_of_the_engine():
    assert network_settings(network_section(["network.switch=shared-buffer"])).switch == SharedBuffer()
    assert network_settings(network_section([])).switch is None
    given = {
        "buffer": "1MB", "pfc": "true", "pfc_alpha": 0.5, "pfc_headroom": "3kB", "pfc_resume_offset": "2kB",
        "ecn_kmin": "1kB", "ecn_kmax": "2kB", "ecn_pmax": 1, "class_weights": "[3, 1]",
    }  # fmt: skip
    chosen = network_settings(network_section([f"network.{key}={value}" for key, value in given.items()])).switch
    assert chosen == SharedBuffer(10**6, True, 0.5, 3000, 2000, True, 1000, 2000, 1.0, False, (3, 1))


@pytest.mark.parametrize("given", [{"switch": "shared-buffer", "buffer": "1MB"}, {"buffer": "1MB"}])
def test_pfc_and_ecn_are_on_where_a_buffer_is_shared(given):
    """As docs/how-to/incast.md says."""
    network = network_section([f"network.{key}={value}" for key, value in given.items()])
    assert (network.pfc, network.ecn) == (True, True)
    assert network_section([]).pfc is None


def test_a_buffer_that_may_drop_has_a_timeout():
    graph = build("switch:npus=4,rate=100Gbps,delay=1us")
    for text, dropping in (("pfc=true", False), ("pfc=false", True), ("pfc_headroom=9kB", True)):
        settings = fitted(graph, network_settings(network_section([f"network.{text}"])))
        assert (rto_ps(graph, settings) > 0) == dropping
    given = network_section(["network.pfc=false", "network.rto=7us"])
    assert rto_ps(graph, fitted(graph, network_settings(given))) == 7_000_000


def test_a_topology_by_name_or_file(load, tmp_path):
    by_name = LEAST.replace('spec = "ring:npus=4"', 'name = "ring"\nparams = { npus = 4, rate = "100Gbps" }')
    assert load(by_name).topology.source() == {"name": "ring", "npus": 4, "rate": "100Gbps"}
    by_file = LEAST.replace("spec", "file").replace("ring:npus=4", "net.toml")
    assert load(by_file).topology.source() == str(tmp_path / "net.toml")
    (tmp_path / "net.toml").touch()
    assert load(by_file.replace("file =", "spec =")).topology.source() == str(tmp_path / "net.toml")


def test_what_the_system_layer_is_told(load):
    assert load(LEAST).system.phases_per_dimension == 0
    assert load(LEAST).settled()["system"]["phases_per_dimension"] == "unlimited"
    config = load(LEAST, "system.splits=4", "system.dimension_order=themis", "system.phases_per_dimension=2")
    assert (config.system.splits, config.system.dimension_order) == (4, "themis")
    assert config.system.phases_per_dimension == 2
    assert RunConfig.model_validate(config.settled()) == config


def test_the_system_layer_waits_and_slows_down_if_told(load):
    system = load(LEAST).system
    assert (system.rendezvous, system.collectives_in_flight, system.compute_slowdown) == (0, 0, None)
    sizes = ("system.rendezvous=64KiB", "system.rendezvous_control=8KiB")
    config = load(LEAST, *sizes, "system.collectives_in_flight=2", "system.compute_slowdown=1.5")
    settings = network_settings(config.network, config.system)
    assert (settings.rendezvous_bytes, settings.rendezvous_control_bytes) == (65536, 8192)
    assert (settings.collectives_in_flight, settings.compute_slowdown) == (2, 1.5)
    assert RunConfig.model_validate(config.settled()) == config


@pytest.mark.parametrize("fidelity", ["analytical", "closed-form"])
def test_other_fidelities_have_no_such_system_layer(load, fidelity):
    config = load(LEAST, f"network.fidelity={fidelity}", "system.rendezvous=1", "system.collectives_in_flight=1")
    assert network_settings(config.network, config.system) == network_settings(config.network)


def test_set_reaches_entries_of_lists(load):
    """A number names an entry, and the next number adds one."""
    first = ("faults.0.at=0s", "faults.0.npu=3", "faults.0.slowdown=1.1")
    (fault,) = load(LEAST, *first).faults
    assert (fault.npu, fault.slowdown, fault.at) == (3, 1.1, 0)
    text = f'{LEAST}\n[[faults]]\nat = "1ms"\nlink = 0\nrate = "1Gbps"\n'
    faults = load(text, "faults.0.rate=2Gbps", "faults.1.at=0s", "faults.1.npu=0", "faults.1.slowdown=2").faults
    assert [(fault.rate, fault.slowdown) for fault in faults] == [(2_000_000_000, None), (None, 2.0)]
    whole = load(text, 'faults.0={at = "0s", npu = 1, slowdown = 3}').faults
    assert [fault.npu for fault in whole] == [1]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("faults.1.npu=3", "--set faults.1.npu=3: found '1' as a number of a list; expected 0"),
        ("faults.-1.npu=3", "--set faults.-1.npu=3: found '-1' as a number of a list; expected 0"),
        ("faults.first.npu=3", "found 'first' as a number of a list; expected 0"),
        ("faults.00.npu=3", "found '00' as a number of a list; expected 0"),
        (f"faults.{'9' * 5000}.npu=3", "as a number of a list; expected 0"),
        ("faults.0.slow=2", "[faults.0] slow: unknown key; nearest known key: slowdown"),
        ("faults=3", "--set faults=3: expected section.key=value"),
        ("network.mtu.0.x=3", "[network] mtu"),
    ],
)
def test_set_says_what_is_wrong_with_an_entry(load, override, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        load(LEAST, override)
    assert "\n" not in str(error.value)


def test_set_replaces_values(load):
    config = load(LEAST, "network.window=1MiB", "engine.seed=7", "system.collectives.all-reduce=direct", "output.dir=o")
    assert config.network.window == 1 << 20
    assert config.engine.seed == 7
    assert config.system.collectives == {"all-reduce": "direct"}
    assert config.output.dir.name == "o"
    assert network_section(["network.mtu=1KiB"]).mtu == 1024


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[network]\nwindw = 1", "[network] windw: unknown key; nearest known key: window"),
        ("[network]\nmut = 1\nmtu = -4", "[network] mut: unknown key; nearest known key: mtu"),
        ("[netwrok]\nmtu = 1", "[netwrok]: unknown key; nearest known key: network"),
        ("[network]\nmtu = '4q'", "[network] mtu: '4q' is not a size; expected a number >= 0 and a unit"),
        ("[network]\nmtu = 0", "[network] mtu: 0 is zero; expected more than 0"),
        ("[network]\nwindow = 0", "[network] window: 0 is zero; expected more than 0 or 'auto'"),
        ("[network]\nfidelity = 'fluid'", "[network] fidelity: found 'fluid'; expected 'packet'"),
        ("[system]\nsplits = 0", "[system] splits: found 0; expected 1 to 1024"),
        ("[system]\nscheduling = 'best'", "[system] scheduling: found 'best'; expected 'fifo', 'lifo' or 'priority'"),
        (
            "[system]\nphases_per_dimension = 0",
            "[system] phases_per_dimension: 0 is zero; expected more than 0 or 'unlimited'",
        ),
        (
            "[system]\nrendezvous = 0",
            "[system] rendezvous: 0 is zero; expected more than 0 or 'unlimited'",
        ),
        (
            "[system]\nrendezvous_control = '0B'",
            "[system] rendezvous_control: '0B' is zero; expected more than 0",
        ),
        (
            "[system]\ncollectives_in_flight = 1.5",
            "[system] collectives_in_flight: 1.5; expected a whole number from 1 to 1048576",
        ),
        ("[system]\ncompute_slowdown = 0.9", "[system] compute_slowdown: found 0.9; expected 1 to 1000"),
        ("[system]\ncompute_slowdown = inf", "[system] compute_slowdown: found inf; expected 1 to 1000"),
        ("[system]\ncompute_slowdown = nan", "[system] compute_slowdown: found nan; expected"),
        ("[network]\nack = -1", "[network] ack: -1 is not a size; expected a number >= 0 and a unit"),
        ("[memory]\nbandwidth = '0GB/s'", "[memory] bandwidth: rate '0GB/s' is zero; expected more than 0"),
        ("[compute]\npeak_flops = 3e14", "[compute] peak_flops: 300000000000000.0 is not a compute rate"),
        ("[compute]\nmodel = 'fast'", "[compute] model: found 'fast'; expected 'auto', 'trace' or 'roofline'"),
        ("[system]\ncollectives = 3", "[system] collectives: found 3; expected a valid dictionary"),
        ("[output]\ndir = 3", "[output] dir: 3 is not a path; expected text"),
        ("[network", "no TOML"),
        ("network = 3", "[topology] network: unknown key; nearest known key:"),
        ("params = 5", "[topology] params: found 5; expected a valid dictionary"),
    ],
)
def test_mistakes_are_one_line_with_file_section_and_key(load, text, complaint):
    with pytest.raises(ConfigError, match=re.escape(complaint)) as caught:
        load(LEAST + text)
    assert re.match(r"\S+run\.toml: ", str(caught.value))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", ": is empty, expected a run file (TOML with [workload] and [topology])"),
        ("# nothing", "[workload]: missing; expected this section"),
        ('[topology]\nspec = "ring:npus=4"', "[workload]: missing; expected this section"),
        (LEAST.replace("traces", "groups"), "[workload]: found neither of traces and model; expected one of them"),
        (LEAST + 'file = "x"', "[topology]: found spec and file of spec, name, file and cluster; expected exactly one"),
        (LEAST.replace("spec", "#"), "[topology]: found none of spec, name, file and cluster; expected exactly one"),
        (
            LEAST.replace("spec", "file") + "params = { npus = 4 }",
            "[topology]: params are set beside file; expected name or spec beside them",
        ),
    ],
)
def test_what_is_missing(load, text, complaint):
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(text)


@pytest.mark.parametrize("override", ["x", "seed=3", "engine.seed.x=3", "=3", "engine.=3", "a.b=3", "engine.seed=-1"])
def test_wrong_overrides(load, override):
    with pytest.raises(ConfigError) as caught:
        load(LEAST + "[engine]\nseed = 1", override)
    assert "\n" not in str(caught.value)


def test_only_network_can_be_set_without_a_run_file():
    with pytest.raises(ConfigError, match=re.escape("--set engine.seed=1: expected network")):
        network_section(["engine.seed=1"])
    with pytest.raises(ConfigError, match=re.escape("[network] mut: unknown key; nearest known key: mtu")):
        network_section(["network.mut=1"])


@given(st.floats(1e-3, 1e6), st.sampled_from(["", "k", "M", "G", "T", "P"]))
def test_compute_rates(number, prefix):
    rate = parse_flops(f"{number}{prefix}FLOPS")
    assert rate == pytest.approx(number * 1000.0 ** " kMGTP".index(prefix or " "))
