"""Run files: values, defaults and overrides; and the files that a configuration reads."""

import json
import shutil
import sys
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import nadi.energy
from nadi import et
from nadi.configuration.input_files import files_read
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import load_config
from nadi.configuration.sections import NetworkSection
from nadi.configuration.values import Section, naming_keys
from nadi.et.files import npu_of
from nadi.inputs.units import parse_flops
from nadi.pdes.construction.fabric import rto_ps
from nadi.pdes.construction.settings import SharedBuffer
from nadi.simulation.network_settings import fitted, network_settings
from nadi.topologies import build, write_toml
from nadi.workload import TraceSet, compute, write_set
from nadi.workload.generators import models
from tests.network_sections import network_section
from tests.running import simulate
from tests.workload import msccl_files

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
    assert chosen == SharedBuffer(10**6, True, 0.5, 3000, 2000, True, 1000, 2000, 1.0, class_weights=(3, 1))


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


def test_set_replaces_values(load):
    config = load(LEAST, "network.window=1MiB", "engine.seed=7", "system.collectives.all-reduce=direct", "output.dir=o")
    assert config.network.window == 1 << 20
    assert config.engine.seed == 7
    assert config.system.collectives == {"all-reduce": "direct"}
    assert config.output.dir.name == "o"
    assert network_section(["network.mtu=1KiB"]).mtu == 1024


@given(st.floats(1e-3, 1e6), st.sampled_from(["", "k", "M", "G", "T", "P"]))
def test_compute_rates(number, prefix):
    rate = parse_flops(f"{number}{prefix}FLOPS")
    assert rate == pytest.approx(number * 1000.0 ** " kMGTP".index(prefix or " "))


ALL_REDUCE = et.CollectiveCommType.ALL_REDUCE
STAR = "5 1 0 1 4 A100\n4\n" + "".join(f"{npu} 4 100Gbps 1us 0\n" for npu in range(4))
NO_FILES = {
    "optical": {"ports", "phases"},
    "workload": {"trace_set"},
    "jobs": {"trace_set", "name", "start"},
    "serving": {"prompt", "generate", "software"},
    "topology": {"graph"},
    "network": {"classes", "congestion", "denied_paths", "flows", "tiers"},
    "compute": {"efficiency"},
    "engine": {"checkpoint", "fast_forward", "reuse"},
    "faults": {"link", "switch", "npu"},
    "traffic": {"arrivals"},
}
"""Keys whose values are texts, or hold some, and never name a file."""

_opened: list[Path] | None = None


def _note(event, arguments):
    if event == "open" and _opened is not None and isinstance(arguments[0], (str, bytes)):
        _opened.append(Path(arguments[0] if isinstance(arguments[0], str) else arguments[0].decode()))


sys.addaudithook(_note)


def opened_in(folder, act):
    """Paths below a folder that Python opens while `act` runs, without those of results."""
    global _opened  # noqa: PLW0603 - an audit hook cannot be taken away
    _opened = []
    try:
        act()
        found = _opened
    finally:
        _opened = None
    return {path for path in (Path(path).absolute() for path in found) if folder in path.parents}


def holds_text(annotation):
    """Whether values of an annotation may be free texts or paths, or hold some."""
    if annotation in (str, Path):
        return True
    inner = getattr(annotation, "__args__", ())
    is_literal = str(annotation).startswith("typing.Literal")
    return not is_literal and any(holds_text(each) for each in inner)


def sections_of(model):
    """The models of the sections of a run file and of the sections in them, by name."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in kinds:
            if hasattr(kind, "model_fields"):
                yield name, kind
                yield from (inner for inner in sections_of(kind) if issubclass(inner[1], Section))


def test_each_key_that_may_name_a_file_says_whether_it_does():
    undecided, wrong = [], []
    for name, section in sections_of(RunConfig):
        names_files = set(naming_keys(section))
        texts = {key for key, field in section.model_fields.items() if holds_text(field.annotation)}
        undecided += [f"{name}.{key}" for key in texts - names_files - NO_FILES.get(name, set())]
        wrong += [f"{name}.{key}" for key in names_files & NO_FILES.get(name, set())]
    assert not undecided, (
        f"{undecided}: declare in nadi/configuration/sections.py that it names files (NamesFiles), or list it here"
    )
    assert not wrong


@pytest.fixture
def inputs_of(tmp_path, step):
    """Files of every kind that a run file can name."""
    root = tmp_path / "in"
    root.mkdir()
    for npu in range(4):
        et.write_trace(root / f"t.{npu}.et", et.metadata(), [*step, et.coll_node(9, "g", ALL_REDUCE, 64, pg_name="7")])
        (root / "plain").mkdir(exist_ok=True)
        shutil.copy(root / f"t.{npu}.et", root / "plain" / f"x.{npu}.et")
        nodes, last = [], []
        for k in range(6):
            nodes.append(et.send_node(2 * k, "s", npu, (npu + 1) % 4, 16384, deps=last))
            nodes.append(et.recv_node(2 * k + 1, "r", (npu - 1) % 4, npu, 16384, deps=[2 * k]))
            last = [2 * k + 1]
        et.write_trace(root / f"c.{npu}.et", et.metadata(), nodes)
    for folder in (root, root / "plain"):
        (folder / "groups.json").write_text('{"7": [0, 1, 2, 3]}')
    write_set(root / "set", TraceSet.of([et.read_trace(root / f"c.{npu}.et") for npu in range(4)], {}))
    (root / "net.txt").write_text(STAR)
    write_toml(build(str(root / "net.txt")), root / "net.toml")
    (root / "ring.xml").write_text(msccl_files.fused_ring(4), encoding="utf-8")
    of_gpus, of_models = (Path(module.__file__).parent for module in (compute, models))
    shutil.copy(of_gpus / "gpus" / "a100.toml", root / "gpu.toml")
    shutil.copy(of_gpus / "gpus" / "h100.toml", root / "other.toml")
    shutil.copy(of_gpus / "tables" / "h100.csv", root / "table.csv")
    rows = [line for line in (root / "table.csv").read_text().splitlines() if not line.startswith("#")]
    (root / "plain.csv").write_text("\n".join(rows) + "\n")
    pq.write_table(pyarrow.csv.read_csv(root / "plain.csv"), root / "table.parquet")
    shutil.copy(of_models / "gpt3-125m.toml", root / "model.toml")
    shutil.copy(Path(nadi.energy.__file__).with_name("table.toml"), root / "energy.toml")
    return root


FABRIC = {"topology.spec": "ring:npus=4"}
TRACES = {"workload.traces": "t", "workload.groups": "groups.json"}
MODEL = {"workload.model": "model.toml", "workload.plan": "tp2,dp2,gb4", "network.fidelity": "closed-form"}
CASES = {
    "prefix and groups": TRACES | FABRIC,
    "folder of plain traces": {"workload.traces": "plain"} | FABRIC,
    "trace set": {"workload.traces": "set"} | FABRIC,
    "one file": {"workload.traces": "plain/x.0.et", "workload.groups": "groups.json"} | FABRIC,
    "spec is a path": TRACES | {"topology.spec": "net.txt"},
    "spec with a path": TRACES | {"topology.spec": "simai:path=net.txt"},
    "spec of a file": TRACES | {"topology.spec": "file:path=net.toml"},
    "params": TRACES | {"topology.name": "simai", "topology.params.path": "net.txt"},
    "file": TRACES | {"topology.file": "net.toml"},
    "MSCCL": TRACES | FABRIC | {"system.collectives.all-reduce": "custom:file=ring.xml"},
    "Chakra": TRACES | FABRIC | {"system.collectives.all-reduce": "custom:file=c,size=64KiB"},
    "model and GPU": MODEL | FABRIC | {"compute.gpu": "gpu.toml"},
    "tables": MODEL
    | FABRIC
    | {"compute.gpu": "gpu.toml", "compute.scale_from": "other.toml", "compute.tables": ["table.csv", "table.parquet"]},
    "energy": TRACES | FABRIC | {"energy.table": "energy.toml"},
    "weights": TRACES | FABRIC | {"engine.weights": "earlier"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_opens_the_files_that_are_listed_and_no_others(nadi, inputs_of, monkeypatch, case):
    keys = CASES[case]
    run = inputs_of / "run.toml"
    run.write_text("[network]\n")
    if case == "weights":
        overrides = [text for key, value in (TRACES | FABRIC).items() for text in ("--set", f"{key}={value}")]
        nadi.ok("run", run, *overrides, "-q", "--out", inputs_of / "earlier")
    overrides = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    listed = {file.absolute() for entry in files_read(load_config(run, overrides)) for file in entry.files}

    def act():
        simulate(load_config(run, overrides))

    monkeypatch.setattr("nadi.simulation.resolving.files_read", lambda *_, **__: [])  # which opens them, too
    opened = opened_in(inputs_of, act) - {run}
    # pyarrow opens Parquet files of results itself
    assert opened | {file for file in listed if file.name == "links.parquet"} == listed
    named = {path for value in keys.values() for path in ([value] if isinstance(value, str) else value)}
    assert len(listed) >= sum((inputs_of / path).exists() for path in named)


@pytest.mark.usefixtures("points_here")
def test_a_sweep_simulates_again_when_a_file_has_changed(nadi, inputs_of, tmp_path):
    (inputs_of / "run.toml").write_text(
        '[workload]\ntraces = "t"\ngroups = "groups.json"\n[topology]\nspec = "simai:path=net.txt"\n'
        '[system.collectives]\nall-reduce = "custom:file=c,size=64KiB"\n'
    )
    sweep = inputs_of / "sweep.toml"
    sweep.write_text('run = "run.toml"\n[values]\n"network.mtu" = ["4KiB"]\n')

    def swept():
        nadi.ok("sweep", sweep, "-o", tmp_path / "out", "-q")
        (row,) = pq.read_table(tmp_path / "out" / "sweep.parquet").to_pylist()
        return row["run"], row["finish_time_ps"]

    first = swept()
    assert swept() == first
    (inputs_of / "net.txt").write_text(STAR.replace("100Gbps", "1Gbps"))
    slow = swept()
    assert slow[0] != first[0]
    assert slow[1] > 10 * first[1]
    (inputs_of / "net.txt").write_text(STAR)
    assert swept() == first


def test_the_summary_has_the_files_and_their_hashes(nadi, inputs_of):
    def files():
        outcome = nadi.ok("run", "--set", f"topology.spec=simai:path={inputs_of}/net.txt",
                       "--set", f"workload.traces={inputs_of}/plain", "--json", "-q")  # fmt: skip
        return outcome.document["files"]

    before = files()
    assert [(entry["key"], entry["path"], entry["files"]) for entry in before] == [
        ("workload.traces", str(inputs_of / "plain"), 5),
        ("topology.spec", str(inputs_of / "net.txt"), 1),
    ]
    assert before[1]["bytes"] == len(STAR)
    (inputs_of / "net.txt").write_text(STAR.replace("1us", "2us"))
    after = files()
    assert after[0] == before[0]
    assert after[1]["sha256"] != before[1]["sha256"]


def test_a_sweep_hashes_a_file_once(inputs_of, monkeypatch):
    config = load_config(None, [f"workload.traces={inputs_of}/plain", f"topology.spec={inputs_of}/net.txt"])
    known = {}
    first = files_read(config, known)
    monkeypatch.setattr(
        "nadi.configuration.input_files.inputs.pieces", lambda file: pytest.fail(f"{file} is read again")
    )
    assert files_read(config, known) == first


def test_ranks_hash_their_own_traces_and_list_the_same(inputs_of):
    config = load_config(None, [f"workload.traces={inputs_of}/plain", f"topology.spec={inputs_of}/net.txt"])
    of_ranks = []

    def exchange(own):
        of_ranks.append(own)
        return of_ranks

    def opens(rank):
        return lambda file: npu_of(file) is None or npu_of(file) % 2 == rank

    part = files_read(config, exchange=exchange, may_open=opens(0))
    whole = files_read(config, exchange=exchange, may_open=opens(1))
    assert [sum(name.endswith(".et") for name in own) for own in of_ranks] == [2, 2]
    assert whole == files_read(config) != part
