"""Plug-ins in files outside of the tree, and of an installed package: runs as with Nadi's own, or one line."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nadi.compiling import compiler
from nadi.compiling.kernel_cache import settled_folder
from nadi.configuration.input_files import files_read
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.inputs import plug_ins
from tests.features.restarting import STOPPED, after, different, often

ROOT = Path(__file__).parents[2]
RUN = """
[workload]
model = "gpt3-125m"
plan = "pp2,dp2,mb2,gb16,seq=256,{schedule}"
[topology]
spec = "{topology}:npus=4,hosts_per_leaf=2,rate=100Gbps"
[compute]
gpu = "{gpu}"
[system.collectives]
all-reduce = "{algorithm}"
reduce-scatter = "{algorithm}:bidirectional=true"
[network]
mtu = "60kB"
congestion_control = "{control}"
load_balancing = "{balancing}"
discipline = "{discipline}"
p2p_class = 1
[engine]
partitioner = "{partitioner}"
"""
OWN = {
    "schedule": ("pipeline schedule", "gpipe"),
    "topology": ("topology", "leaf-spine"),
    "gpu": ("GPU", "a100"),
    "algorithm": ("collective algorithm", "ring"),
    "control": ("congestion control", "dctcp"),
    "balancing": ("load balancing", "flowlet"),
    "discipline": ("switch discipline", "weighted"),
    "partitioner": ("partition method", "metis"),
}
OTHER = {"schedule": "1f1b", "gpu": "h100", "control": "swift", "balancing": "ecmp"}


def copied(folder, kind, name):
    """A copy of a plug-in of Nadi's own in a folder; gives its name relative to the folder of run files."""
    own = plug_ins.own_files(kind)[name]
    copy = folder / "copies" / f"copy_of_{own.name}"
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(own.read_text())
    return f"copies/{copy.name}"


def written(folder, name, **changed):
    path = folder / f"{name}.toml"
    path.write_text(RUN.format(**{key: own for key, (_, own) in OWN.items()} | changed))
    return path


def run(nadi, path, *options):
    out = path.with_suffix("")
    nadi.ok("run", path, "--out", out, "-q", *options)
    return json.loads((out / "summary.json").read_text())["digest"]


@pytest.fixture
def copies(tmp_path):
    return {key: copied(tmp_path, kind, name) for key, (kind, name) in OWN.items()}


@pytest.mark.slow
def test_copies_of_all_give_the_same_results_from_another_folder(nadi, tmp_path, copies, monkeypatch):
    own = run(nadi, written(tmp_path, "own"))
    for key, name in OTHER.items():
        if key != "gpu":
            assert run(nadi, written(tmp_path, f"other-{key}", **{key: name})) != own, key
    monkeypatch.chdir("/")
    assert run(nadi, written(tmp_path, "copies", **copies)) == own
    assert run(nadi, written(tmp_path, "threads", **copies), "--workers", 2) == own
    assert run(nadi, written(tmp_path, "processes", **copies), "--workers", 2, "--backend", "processes") == own
    assert run(nadi, written(tmp_path, "exact", **copies), "--exact") == own
    assert [path.name for path in tmp_path.rglob("__pycache__")] == []
    summary = json.loads((tmp_path / "copies" / "summary.json").read_text())
    read = {entry["key"]: entry["path"] for entry in summary["files"]}
    assert read["network.load_balancing"] == str(tmp_path / copies["balancing"])
    assert read["workload.plan"] == str(tmp_path / copies["schedule"])
    assert {"topology.spec", "system.collectives", "compute.gpu", "engine.partitioner"} <= read.keys()
    nadi.ok("report", tmp_path / "copies")


def test_a_restart_takes_the_same_files(nadi, tmp_path, copies):
    path = written(tmp_path, "parts", **copies)
    whole = written(tmp_path, "whole", **copies)
    run(nadi, whole)
    out = path.with_suffix("")
    with often(), after(2):
        assert nadi("run", path, "--out", out, "-q", "--set", "engine.checkpoint=1h").code == STOPPED
    control = tmp_path / copies["control"]
    content = control.read_text()
    control.write_text(f"{content}\n# changed\n")
    refused = nadi("run", "--resume", out, "-q")
    (line,) = refused.err.splitlines()
    assert refused.code == 2
    assert f"[network] congestion_control = {control.name}: its content differs from that of the checkpoint" in line
    control.write_text(content)
    nadi.ok("run", "--resume", out, "-q")
    assert different(out, whole.with_suffix("")) == []


def test_kernels_are_kept_by_the_content_of_their_file(nadi, tmp_path, copies, monkeypatch):
    control = tmp_path / copies["control"]

    def is_kept():
        content = hashlib.sha256(os.fsencode(control) + b"\0" + control.read_bytes()).hexdigest()[:16]
        return any(name.startswith(f"{content}.update-") for name in settled_folder().names())

    def forget():
        for name in [name for name in sys.modules if name.startswith("plug_in_")]:
            del sys.modules[name]

    path = written(tmp_path, "run", **copies)
    assert not is_kept()
    digest = run(nadi, path)
    assert is_kept()
    forget()  # as in another process
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "compiled_c_function", None)
        assert run(nadi, path) == digest
    control.write_text(f"{control.read_text()}\nMINE = 2\n")
    assert not is_kept()
    run(nadi, path)
    assert is_kept()
    (tmp_path / "beside.py").write_text("GAIN = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    control.write_text(f"import beside\n{control.read_text()}")
    run(nadi, path)
    assert not is_kept(), "an edit of the imported file would go unnoticed"


def test_a_wrong_kind_of_word_is_explained(nadi, tmp_path, copies):
    control = tmp_path / copies["control"]
    control.write_text(control.read_text().replace('word("float"', 'word("fraction"'))
    refused = nadi.refuse("run", written(tmp_path, "run", **copies), "-q")
    assert "ValueError: kind 'fraction' of the word '" in refused.err
    assert "'; expected one of time, duration, bytes, count, flag, " in refused.err


def test_a_machine_and_a_cluster(nadi, tmp_path):
    (tmp_path / "mine.toml").write_text(plug_ins.own_files("machine")["dgx-h100"].read_text())
    (tmp_path / "star.py").write_text(plug_ins.own_files("topology")["switch"].read_text())
    fabric = 'gpu = "h100"\ngpus_per_host = 1\ngpus = 8\n[fabric]\nname = "star.py"\nrate = "100Gbps"\n'
    (tmp_path / "cluster.toml").write_text(fabric)

    def shown(spec):
        document = nadi("topology", "show", spec, "--json").document
        return {key: value for key, value in document.items() if key not in {"name", "topology", "fabric"}}

    assert shown(f"{tmp_path / 'mine.toml'}:npus=16") == shown("dgx-h100:npus=16")
    assert shown(f"{tmp_path / 'cluster.toml'}:gpus=4") == shown("switch:npus=4,rate=100Gbps")


def test_a_trace_format_and_a_trace_check(nadi, write_run, step, tmp_path):
    write_run([step] * 4)
    json_format = tmp_path / "mine.py"
    json_format.write_text(plug_ins.own_files("trace format")["json"].read_text())
    given = [tmp_path / f"trace.{npu}.et" for npu in range(4)]
    nadi.ok("trace", "convert", *given, "--to", json_format, "-o", tmp_path / "own")
    nadi.ok("trace", "convert", *given, "--to", "json", "-o", tmp_path / "json")
    for npu in range(4):
        name = f"trace.{npu}.json"
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "json" / name).read_bytes()
    goal = tmp_path / "goal.py"
    goal.write_text(plug_ins.own_files("trace format")["goal"].read_text())
    schedule = tmp_path / "two.goal"
    schedule.write_text("num_ranks 2\nrank 0 {\nl1: send 9b to 1\n}\nrank 1 {\nl1: recv 9b from 0\n}\n")
    for name, options in {"recognised": (), "from": ("--from", goal)}.items():
        nadi.ok("trace", "convert", schedule, *options, "-o", tmp_path / name)
    (first, *_), (second, *_) = (sorted((tmp_path / name).glob("*.et")) for name in ("recognised", "from"))
    assert first.read_bytes() == second.read_bytes()
    (tmp_path / "all.py").write_text(CHECK)
    (finding,) = nadi("trace", "check", given[0], "--check", tmp_path / "all.py", "--json").document["findings"]
    assert (finding["check"], finding["count"]) == ("all", 1)


CHECK = """
from nadi.et.checking import Check
from nadi.et.checking.finding import NOTE, Example, Finding
LOOKS_FOR = "anything"
class TraceCheck(Check):
    def trace(self, checked):
        return [Finding(NOTE, "a trace", 1, (Example("", None, "found"),))]
"""
COMMAND = '''
import typer
def tell(model: str = typer.Argument()) -> None:
    """Say how many layers a model has."""
    from nadi.workload.generators.models import find
    typer.echo(f"{find(model).layers} layers")
'''


def test_a_command(nadi, tmp_path):
    (tmp_path / "tell.py").write_text(COMMAND)
    (tmp_path / "mine.toml").write_text(plug_ins.own_files("model")["gpt3-125m"].read_text())
    assert nadi(tmp_path / "tell.py", tmp_path / "mine.toml").out == "12 layers\n"
    (tmp_path / "other.py").write_text(COMMAND)
    refused = nadi(tmp_path / "other.py", "gpt3-125m")
    assert (refused.code, "no function of its name; expected one, register, or read" in refused.err) == (2, True)


IMPORTER = '''
import typer
from nadi.importers import TranslatedRun
from nadi.terminal import say

def read(
    npus: int = typer.Option(4, "-n", help="number of nodes"),
    queue: int = typer.Option(8, "-q", help="packets of a queue"),
) -> TranslatedRun:
    """Run files of a peer."""
    sections = {
        "workload": {"model": "gpt3-125m", "plan": f"dp{npus},gb{npus}"},
        "topology": {"spec": f"ring:npus={npus}"},
        "compute": {"gpu": "h100"},
        "network": {"flowlet_gap": "1us"},
    }
    return TranslatedRun(
        sections,
        ("queues differ",),
        overrides=(f"network.queue_limit={queue}MiB",),
        before_report=lambda run, err: say(f"{run.graph.npus} nodes", err=err),
    )
'''
RUN_OF_IMPORTER = """
[workload]
model = "gpt3-125m"
plan = "dp4,gb4"
[topology]
spec = "ring:npus=4"
[compute]
gpu = "h100"
[network]
queue_limit = "9MiB"
mtu = "60kB"
"""


def test_an_importer(nadi, tmp_path):
    """It simulates as `nadi run` does, with the options of all importers; its own -q is not --quiet."""
    (tmp_path / "peer.py").write_text(IMPORTER)
    (tmp_path / "run.toml").write_text(RUN_OF_IMPORTER)
    mtu = ("--set", "network.mtu=60kB")
    done = nadi.ok(tmp_path / "peer.py", "-q", 9, *mtu, "--out", tmp_path / "out", "--json", "--quiet")
    assert "nadi: queues differ" in done.err.splitlines()
    assert "4 nodes" in done.err.splitlines()
    assert "without effect here: [network] flowlet_gap (needs" in done.err
    assert done.document["digest"] == run(nadi, tmp_path / "run.toml")
    report = nadi(tmp_path / "peer.py", *mtu, "--set", "network.cnp_interval=1us", "--quiet")
    assert "4 nodes" in report.out.splitlines()
    assert "[network] cnp_interval (needs" in report.err
    (tmp_path / "silent.py").write_text(IMPORTER.replace("overrides=", "warns=False, overrides="))
    silent = nadi(tmp_path / "silent.py", *mtu, "--set", "network.cnp_interval=1us", "--quiet")
    assert ("flowlet_gap" in silent.err, "[network] cnp_interval (needs" in silent.err) == (False, True)
    usage = nadi(tmp_path / "peer.py", "--help").out
    assert ("packets of a queue" in usage, "-q, --quiet" in usage) == (True, False)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "    return TranslatedRun(",
            "    return ''\n    TranslatedRun(",
            "peer.py: read returned str; expected a TranslatedRun",
        ),
        ('"1us"', '"soon"', "peer.py: [network] flowlet_gap: 'soon' is not a time; expected "),
        ("def read", "def reed", "no function of its name; expected one, register, or read of an importer"),
    ],
)
def test_a_wrong_importer_is_one_line(nadi, tmp_path, old, new, complaint):
    (tmp_path / "peer.py").write_text(IMPORTER.replace(old, new))
    refused = nadi(tmp_path / "peer.py", "--quiet")
    (line,) = refused.err.splitlines()
    assert (refused.code, complaint in line) == (2, True), line


@pytest.mark.usefixtures("points_here")
def test_paths_of_a_batch_job_and_of_set_are_absolute(nadi, tmp_path, copies, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(written(tmp_path, "run"), [f"network.load_balancing={copies['balancing']}"])
    assert config.network.load_balancing == str(tmp_path / copies["balancing"])
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(f'run = "run.toml"\n[values]\n"network.load_balancing" = ["flowlet", "{copies["balancing"]}"]\n')
    nadi.ok("sweep", sweep, "--out", tmp_path / "sweep", "-q")


def test_ranks_that_read_different_contents_refuse_to_run(tmp_path, copies):
    config = load_config(written(tmp_path, "run", **copies))
    control = str(tmp_path / copies["control"])
    plug_ins.module("congestion control", control)
    (entry,) = [each for each in files_read(config) if each.path == control]
    assert [str(file) for file in entry.files] == [control]
    with pytest.raises(ConfigError, match=f"^{re.escape(control)}: ranks have read different contents; expected one"):
        files_read(config, exchange=lambda own: [own, {control: "another"}])


PACKAGE = {
    "nadi.congestion_control": ("copied", "dctcp.py", ("congestion control", "dctcp")),
    "nadi.gpu": ("h300", "h300.toml", ("GPU", "h100")),
    "nadi.command": ("tell", "tell.py", COMMAND),
    "nadi.importer": ("peer", "peer.py", IMPORTER),
}


RUN_ALL = """
import sys
from nadi.cli.main import main
for line in sys.stdin:
    assert main(line.split()) == 0, line
    print(end="\\0")
"""
"""Commands of the standard input in one process; the output of each ends with a NUL."""


@pytest.mark.slow
def test_an_installed_package(tmp_path):
    """What `pip install` of a package with entry points leaves in a folder of packages: commands list and take them."""
    site, package = tmp_path / "site", tmp_path / "site" / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    entries = ""
    for group, (name, file, own) in PACKAGE.items():
        text = own if isinstance(own, str) else plug_ins.own_files(own[0])[own[1]].read_text()
        (package / file).write_text(text)
        value = f"mine:{file}" if file.endswith(".toml") else f"mine.{Path(file).stem}"
        entries += f"[{group}]\n{name} = {value}\n"
    info = site / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}

    runs = {
        name: ("run", written(tmp_path, name, control=name), "--out", tmp_path / name) for name in ("copied", "dctcp")
    }
    commands = [
        ("--help",),
        ("peer", "-n", 4, "--json", "--quiet"),
        ("tell", "gpt3-125m"),
        ("net", "controls", "--json"),
        ("workload", "gpus", "h300"),
        *runs.values(),
    ]
    lines = "".join(f"{' '.join(map(str, command))}\n" for command in commands)
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL], input=lines, cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    help_text, peer, told, controls, gpu, *_ = done.stdout.split("\0")
    assert " tell " in help_text
    assert "Run files of a peer." in help_text
    assert json.loads(peer)["npus"] == 4
    assert told == "12 layers\n"
    assert "copied" in [control["name"] for control in json.loads(controls)]
    assert "sustained" in gpu
    digests = [json.loads((tmp_path / name / "summary.json").read_text())["digest"] for name in runs]
    assert digests[0] == digests[1]
    read = {
        each["key"]: each["path"] for each in json.loads((tmp_path / "copied" / "summary.json").read_text())["files"]
    }
    assert read["network.congestion_control"] == str(package / "dctcp.py")
