"""One function lists the files that a configuration reads, for sweeps and summary.json."""

import json
import shutil
import sys
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import nadi.energy
from nadi import et
from nadi.configuration.input_files import files_read
from nadi.configuration.named_files import naming_keys
from nadi.configuration.run_config import RunConfig
from nadi.configuration.run_file import load_config
from nadi.configuration.values import Section
from nadi.et.files import npu_of
from nadi.topologies import build, write_toml
from nadi.workload import TraceSet, compute, write_set
from nadi.workload.generators import models
from tests.running import simulate
from tests.workload import msccl_files

ALL_REDUCE = et.CollectiveCommType.ALL_REDUCE
STAR = "5 1 0 1 4 A100\n4\n" + "".join(f"{npu} 4 100Gbps 1us 0\n" for npu in range(4))
NO_FILES = {
    "workload": {"trace_set"},
    "jobs": {"trace_set", "name", "start"},
    "serving": {"prompt", "generate"},
    "topology": {"graph"},
    "network": {"congestion", "flows"},
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
        assert nadi("run", run, *overrides, "-q", "--out", inputs_of / "earlier").code == 0
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
        assert nadi("sweep", sweep, "-o", tmp_path / "out", "-q").code == 0
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
        outcome = nadi("run", "--set", f"topology.spec=simai:path={inputs_of}/net.txt",
                       "--set", f"workload.traces={inputs_of}/plain", "--json", "-q")  # fmt: skip
        assert outcome.code == 0, outcome
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


def test_commands_name_what_is_not_read_of_a_topology(nadi, tmp_path):
    path = tmp_path / "topo.xml"
    gpus = "".join(f'<pci busid="{i}" class="0x0302"><gpu dev="{i}" sm="90"><c2c bw="1"/></gpu></pci>' for i in "01")
    path.write_text(f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>')
    sentence = f"nadi: {path}: elements that are not read: <c2c> (2)\n"
    done = nadi("topology", "show", path)
    assert (done.code, done.err) == (0, sentence)
    assert nadi("topology", "build", path, "-o", tmp_path / "x.toml").err.startswith(sentence)
    assert sentence in nadi("collective", "all-reduce", "-t", path, "--sizes", "1KiB", "-q").err
