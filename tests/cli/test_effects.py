"""Keys and faults that cannot matter in a run are named in one warning, and do change nothing."""

import json

import pytest

from nadi import et, topologies
from nadi.configuration.effects import CONDITIONS, Effects
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.simulation.network_settings import network_settings
from tests.cli.test_config import sections_of
from tests.running import simulate

LEAF_SPINE = "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=1us"
VALUES = {
    "workload.framework": "fsdp",
    "workload.strict": False,
    "workload.all_gather_size": "total",
    "output.alone": True,
    "output.without_faults": True,
    "output.sample": "1us",
    "serving.prompt_tokens": 64,
    "serving.seed": 9,
    "system.scheduling": "lifo",
    "system.tick": "700ns",
    "system.collectives_in_flight": 1,
    "system.rendezvous": "1KiB",
    "system.rendezvous_control": "1KiB",
    "network.congestion_aware": False,
    "network.collectives": "coupled",
    "network.send_latency": "3us",
    "network.acknowledged": True,
    "network.resolution": "1us",
    "network.mtu": "1KiB",
    "network.header": "200B",
    "network.ack": "300B",
    "network.window": "8KiB",
    "network.queue_limit": "20KiB",
    "network.cut_through": True,
    "network.rto": "3us",
    "network.max_retries": 2,
    "network.max_resends": 2,
    "network.detection_time": "1us",
    "network.nvlink_framing": False,
    "network.nvlink": "closed-form",
    "network.flows": ["p2p"],
    "network.p2p_share": 0.5,
    "network.switch": "shared-buffer",
    "network.buffer": "100KiB",
    "network.pfc": False,
    "network.pfc_alpha": 0.01,
    "network.pfc_headroom": "9KiB",
    "network.pfc_resume_offset": "1KiB",
    "network.ecn": False,
    "network.ecn_kmin": "1kB",
    "network.ecn_kmax": "500kB",
    "network.ecn_pmax": 1.0,
    "network.ecn_by_rate": {"100Gbps": ["1kB", "2kB", 1.0]},
    "network.ecn_by_class": {"0": ["1kB", "2kB", 1.0]},
    "network.pfc_classes": [1],
    "network.pfc_rising_classes": 2,
    "network.classes": {"p2p": 1},
    "network.trimming": True,
    "network.discipline": "weighted",
    "network.class_weights": [3, 1],
    "network.p2p_class": 1,
    "network.virtual_lanes": 2,
    "network.lane_buffer": "9KiB",
    "network.credit_unit": "32B",
    "network.credit_return": "4KiB",
    "network.credit_frame": "84B",
    "network.lane_weights": [3],
    "network.high_lanes": 1,
    "network.high_limit": "0B",
    "network.queue_pairs": "message",
    "network.congestion_control": "timely",
    "network.congestion": {"g": 0.5},
    "network.cnp_interval": "1ns",
    "network.cnp_delay": "1us",
    "network.load_balancing": "spray",
    "network.flowlet_gap": "1ns",
    "network.grade_thresholds": ["4KiB", "8KiB", "64KiB"],
    "network.entropy": "oblivious",
    "network.routing": "valiant",
    "network.routing_delay": "1us",
    "network.delivery": "rud",
    "network.ack_every": "9KiB",
    "network.sleek": True,
    "network.receiver_credits": True,
    "network.credit_window": "9KiB",
    "network.oversubscription": 2.0,
    "network.ecn_last_hop": False,
    "network.trim_threshold": "20KiB",
    "network.trim_last_hop": 1.5,
    "network.trim_share": 0.25,
    "network.trimmed_size": "64B",
    "network.tiers": {"leaf": {"latency": "300ns"}},
    "network.paths": 4,
    "network.denied_paths": ["path 1"],
    "network.source_routes": "paths.toml",
    "network.nic_ports": "all",
    "network.selective_repeat": True,
    "network.reorder": 1,
    "compute.peak_flops": "1TFLOPS",
    "compute.gpu": "h100",
    "compute.tables": ["h100"],
    "compute.vendor_tables": False,
    "compute.scale_from": "h100",
    "compute.efficiency": {"gemm": 0.1},
    "compute.pace": "alone",
    "memory.latency": "1us",
    "memory.bandwidth": "1GB/s",
    "memory.remote_sharers": 2,
    "engine.reuse": "off",
    "engine.fast_forward": "1%",
    "engine.backend": "processes",
    "engine.workers": 2,
    "engine.share_memory": False,
    "engine.lps_per_worker": 2,
    "engine.partitioner": "blocks",
    "engine.weights": "fabric",
    "engine.checkpoint": "1h",
}
"""Of each key with a condition, a value that is not its default."""
SHARED = {"network.switch": "shared-buffer"}
LONGER = {"workload.plan": "tp2,dp2,gb4", "workload.model": "gpt3-125m", "topology.spec": "ring:npus=4"}
CONTEXTS = {
    "packets": {},
    "packets that were lost": {"network.queue_limit": "20KiB", "network.rto": "50us"},
    "shared buffers": SHARED | {"network.buffer": "2MiB"},
    "credits": {"network.switch": "credits", "network.lane_buffer": "20KiB"},
    "without PFC and ECN": SHARED | {"network.pfc": False, "network.ecn": False, "network.buffer": "2MiB"},
    "message level": {"network.fidelity": "analytical"},
    "closed forms": {"network.fidelity": "closed-form"},
    "durations of traces": {"compute.model": "trace", "compute.gpu": "a100", "compute.tables": ["h100"]},
    "durations of traces alone": {"compute.model": "trace"},
    "times of a GPU": {"compute.gpu": "a100"},
    "served": LONGER
    | {
        "workload.plan": "tp2",
        "workload.framework": "inference",
        "serving.chunk": 64,
        "serving.generate": "4",
        "compute.gpu": "a100",
        "network.fidelity": "closed-form",
    },
}


def as_overrides(keys):
    """As --set takes them: TOML."""

    def toml(value):
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
        return json.dumps(value)

    return [f"{key}={toml(value)}" for key, value in keys.items()]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """All NPUs send to each other, with compute nodes of a duration, of num_ops and of tensor_size."""
    folder = tmp_path_factory.mktemp("traces")
    for npu in range(8):
        nodes = [
            et.comp_node(1, "timed", duration_micros=3),
            et.coll_node(2, "all", et.CollectiveCommType.ALL_TO_ALL, 1 << 17, deps=[1]),
            et.send_node(3, "s", npu, (npu + 4) % 8, 100_000),
            et.recv_node(4, "r", (npu + 4) % 8, npu, 100_000),
            et.coll_node(5, "grads", et.CollectiveCommType.ALL_REDUCE, 1 << 16, deps=[2]),
            et.coll_node(6, "again", et.CollectiveCommType.ALL_REDUCE, 1 << 16, deps=[2]),
        ]
        et.write_trace(folder / f"t.{npu}.et", et.metadata(), nodes)
    return folder / "t"


@pytest.fixture
def config_of(traces):
    def load(*keys):
        given = {name: value for each in keys for name, value in each.items()}
        if "workload.model" not in given:
            given = {"workload.traces": str(traces), "topology.spec": LEAF_SPINE} | given
        return load_config(None, as_overrides(given))

    return load


def test_each_key_says_when_it_matters():
    # what faults and optical switches do, they do whatever other keys say
    always = {"faults", "optical"}
    keys = {name: set(section.model_fields) for name, section in sections_of(RunConfig) if name not in always}
    assert {name: set(conditions) for name, conditions in CONDITIONS.items()} == keys
    conditioned = {f"{name}.{key}" for name, of in CONDITIONS.items() for key, needs in of.items() if needs}
    of_jobs = {key for key in conditioned if key.startswith(("jobs.", "traffic."))}  # see tests/cli/test_jobs.py
    assert conditioned - of_jobs == set(VALUES)


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_is_called_without_effect_has_none(config_of, context):
    """One run changes all keys that stay without effect beside each other, each other key has a run of its own."""
    given = CONTEXTS[context]

    def lack_effect(keys):
        try:
            config = config_of(given, keys)
            network_settings(config.network, config.system)
        except ConfigError:  # as of tables without a GPU, or parameters of another congestion control
            return False
        return set(Effects(config).keys()) >= {"[{}] {}".format(*key.split(".")) for key in keys}

    together, alone = {}, []
    for key, value in VALUES.items():
        if key in given or (key.startswith("serving") and context != "served") or not lack_effect({key: value}):
            continue
        if lack_effect(together | {key: value}):
            together[key] = value
        else:
            alone.append({key: value})
    assert len(together) > 5
    digest = simulate(config_of(given)).results.digest
    for keys in (together, *alone):
        assert simulate(config_of(given, keys)).results.digest == digest, keys


def test_the_seed_matters_at_closed_forms(config_of):
    """By it, packets that come to a node at the same moment are put in order."""
    given = {
        "network.fidelity": "closed-form",
        "topology.spec": "dgx-h100:npus=8",
        "system.collectives.all-reduce": "double-binary-tree",
    }
    assert Effects(config_of(given, {"engine.seed": 2})).without().sentence() == ""
    assert len({simulate(config_of(given, {"engine.seed": seed})).results.digest for seed in (1, 2, 7)}) > 1


CLOSED = {"network.fidelity": "closed-form"}
RATED = {"compute.peak_flops": "1TFLOPS", "memory.bandwidth": "1TB/s"}
EXAMPLES = [
    *((CLOSED, key) for key in ("load_balancing", "queue_limit", "congestion_control", "class_weights", "rto")),
    *((CLOSED, key) for key in ("selective_repeat", "cnp_interval", "system.rendezvous")),
    *(({"network.fidelity": "analytical"}, key) for key in ("mtu", "system.collectives_in_flight")),
    *(({}, key) for key in ("resolution", "flowlet_gap", "cnp_interval", "detection_time", "reorder", "congestion")),
    *(({}, key) for key in ("system.rendezvous_control", "system.scheduling", "workload.framework")),
    ({"network.ecn": False}, "ecn_kmin"),
    ({"network.pfc": False}, "pfc_headroom"),
    ({"network.switch": "output-queued"}, "buffer"),
    ({"network.switch": "shared-buffer"}, "queue_limit"),
    (RATED, "compute.gpu"),
    (RATED | {"compute.gpu": "h100"}, "compute.pace"),
]


@pytest.mark.parametrize(("given", "key"), EXAMPLES)
def test_one_warning_names_it(nadi, traces, given, key):
    name = key if "." in key else f"network.{key}"
    keys = {"workload.traces": str(traces), "topology.spec": LEAF_SPINE} | given
    without = nadi("run", *(f"--set={text}" for text in as_overrides(keys)), "--json", "-q")
    outcome = nadi.ok("run", *(f"--set={text}" for text in as_overrides(keys | {name: VALUES[name]})), "--json", "-q")
    (warning,) = outcome.document["warnings"]
    section, last = name.split(".")
    assert warning.startswith("without effect here: ")
    assert f"[{section}] {last} (needs " in warning
    assert outcome.document["digest"] == without.document["digest"]
    if section != "compute":  # which depends on the traces
        assert f"nadi: without effect here: [{section}] {last} (needs " in outcome.err


def test_what_a_cluster_sets_is_not_named_by_the_user(config_of):
    config = config_of({"topology.spec": "llama3-24k:gpus=16", "network.fidelity": "closed-form"})
    assert config.network.switch == "shared-buffer"
    assert Effects(config).without().sentence() == ""


def test_values_of_keys_without_effect_are_checked(nadi, traces):
    keys = {"workload.traces": str(traces), "topology.spec": LEAF_SPINE, "network.ecn": False, "network.ecn_kmin": "x"}
    assert "[network] ecn_kmin" in nadi.refuse("run", *(f"--set={text}" for text in as_overrides(keys)), "-q").err


FAULTS = """
[[faults]]
link = "npu 0 - leaf 0"
added_latency = "0us"
at = "1us"
[[faults]]
link = "npu 1 - leaf 0"
rate = "100Gbps"
at = "1us"
[[faults]]
npu = 3
slowdown = 1.0
at = "1us"
[[faults]]
link = "npu 2 - leaf 0"
rate = "50Gbps"
at = "2s"
"""


def test_faults_without_effect_are_named(nadi, traces, tmp_path):
    run = tmp_path / "run.toml"
    run.write_text(f'[workload]\ntraces = "{traces}"\n[topology]\nspec = "{LEAF_SPINE}"\n{FAULTS}')
    (warning,) = nadi("run", run, "--json", "-q").document["warnings"]
    assert "[faults.0] (added_latency is 0)" in warning
    assert "[faults.1] (the rate is 100Gbps without it)" in warning
    assert "[faults.2] (slowdown is 1)" in warning
    assert "[faults.3] (it begins at 2s, the run ends at " in warning
    run.write_text(run.read_text().replace("0us", "5us").replace('100Gbps"\nat', '10Gbps"\nat'))
    (warning,) = nadi("run", run, "--json", "-q").document["warnings"]
    assert "[faults.0]" not in warning
    assert "[faults.1]" not in warning


@pytest.mark.usefixtures("points_here")
def test_a_sweep_names_what_matters_in_no_point(nadi, traces, tmp_path):
    (tmp_path / "run.toml").write_text(
        f'[workload]\ntraces = "{traces}"\n[topology]\nspec = "{LEAF_SPINE}"\n'
        '[network]\nflowlet_gap = "1us"\ncnp_interval = "1us"\nrto = "1ms"\n'
    )
    sweep = tmp_path / "sweep.toml"
    sweep.write_text('run = "run.toml"\n[values]\n"network.fidelity" = ["packet", "closed-form"]\n')
    outcome = nadi("sweep", sweep, "-o", tmp_path / "out", "-q")
    (line,) = [line for line in outcome.err.splitlines() if "without effect" in line]
    assert line.startswith("nadi: without effect in all 2 runs: [network] cnp_interval (needs ")
    assert "flowlet_gap" in line
    assert "rto" not in line


def test_a_collective_names_them(nadi):
    outcome = nadi("collective", "all-reduce", "-t", "ring:npus=4", "--set", "network.flowlet_gap=1us", "-q")
    assert outcome.err == 'nadi: without effect here: [network] flowlet_gap (needs load_balancing = "flowlet")\n'


@pytest.mark.parametrize(
    ("fidelity", "spec", "matters"),
    [
        ("flow", "switch:npus=4", False),
        ("closed-form", "switch:npus=4", False),
        ("packet", "switch:npus=4", True),
        ("flow", "leaf-spine:leaves=2,hosts_per_leaf=2,spines=2", True),
        ("flow", "ring:npus=4", True),
    ],
)
def test_a_seed_without_a_random_choice(fidelity, spec, matters):
    sections = {"workload": {"traces": "none"}, "topology": {"spec": spec}, "network": {"fidelity": fidelity}}
    config = RunConfig.model_validate(sections | {"engine": {"seed": 5}}).with_named({"engine.seed"})
    said = Effects(config, graph=topologies.build(spec)).without().sentence()
    assert ("[engine] seed (needs packets, or several equally short ways" in said) != matters
