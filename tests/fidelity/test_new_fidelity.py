"""A model of the network in a file of the user's, or in an installed package: run files take its name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nadi
from nadi.cli.main import main

TOY = Path(__file__).parent / "toy" / "constant.py"
ROOT = Path(__file__).parents[2]
OWN = """
from dataclasses import dataclass, replace
from nadi.pdes.core.inputs import setting
from nadi.pdes.fidelity.contract import OwnKeys
from tests.fidelity.toy import constant


@dataclass(frozen=True)
class Mine(OwnKeys):
    pause_ps: int = setting(1, "pause")


NETWORK = replace(constant.NETWORK, name="mine", own=Mine)
"""


@pytest.fixture
def command(capsys):
    """Run a command in this process; gives its exit code, standard output and standard error."""

    def run(*arguments):
        capsys.readouterr()
        return main([*map(str, arguments)]), *capsys.readouterr()

    return run


def test_a_ring_takes_a_constant_time_per_step(command):
    """An all-reduce by 8 members has 14 steps of a microsecond."""
    fabric = ("-t", "ring:npus=8", "--sizes", "1MiB", "--algorithm", "ring", "--set", f"network.fidelity={TOY}")
    code, out, err = command("collective", "all-reduce", *fabric, "--json", "-q")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert row["time_ps"] == 14 * 10**6


def test_its_verbs_are_those_of_all_models():
    """`nadi.open_network` opens it: a message arrives a microsecond after it was posted."""
    network = nadi.open_network("ring:npus=8", fidelity=str(TOY))
    network.advance(5)
    network.post(0, 3, 77)
    assert [tuple(report) for report in network.advance(10**9)] == [(5, 0, False), (1000005, 0, True)]
    assert network.now_ps == 10**9


def test_others_are_still_refused(command):
    code, _, err = command("collective", "all-reduce", "-t", "ring:npus=8", "--set", "network.fidelity=constantly")
    assert code == 2
    assert "expected 'packet', 'flow', 'analytical' or 'closed-form'" in err


def test_a_model_is_short():
    """CONTRIBUTING.md and docs/explanation/fidelity.md promise fewer than 80 lines."""
    assert len(TOY.read_text().splitlines()) < 80


def test_what_it_lacks_is_refused(command, tmp_path):
    """Nothing but its declaration makes it run on one worker, without faults, and without keys of packets."""
    on_it = ("--fidelity", TOY, "--set", "network.mtu=1KiB")
    run = ("run", "--model", "gpt3-125m", "--plan", "dp4,gb4", "--cluster", "small-a100", *on_it, "-q")
    code, _, err = command(*run, "--workers", "2", "--out", tmp_path / "out")
    assert code == 0, err
    assert "[network] mtu (needs [network] fidelity = " in err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["network"], summary["switches"], summary["threads"]) == ("constant", "none", 1)
    assert "mtu" not in summary["config"]["network"]
    assert command("report", tmp_path / "out")[0] == 0
    code, _, err = command(*run, *(f"--set=faults.0.{key}" for key in ("npu=0", "at=0s", "slowdown=2")))
    assert code == 2
    assert err.startswith("nadi: error: [[faults]]: found with a [network] fidelity without faults; expected")


ENTRIES = """
[nadi.network_model]
mine = mine
bad = nothing_here
flow = mine
[nadi.command]
worse = nothing_here
"""


@pytest.mark.slow
def test_a_package_has_keys_of_its_own(tmp_path):
    """Its name and keys are known to all run files; what is wrong in another is told to who names that."""
    (tmp_path / "mine.py").write_text(OWN)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    on_it = ("collective", "all-reduce", "-t", "ring:npus=8", "--sizes", "1MiB", "--algorithm", "ring", "--json", "-q")
    commands = [
        ("net", "fidelities", "--json"),
        (*on_it, "--set", "network.fidelity=mine", "--set", "network.pause=3us"),
        (*on_it, "--set", "network.fidelity=bad"),
        (*on_it, "--set", "network.fidelity=flow"),
        ("--help",),
        ("worse",),
    ]
    script = "import json, sys; from tests.parallel.on_call import called; "
    script += "json.dump([called(words) for words in json.loads(sys.argv[1])], sys.stdout)"
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands)],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    listed, own, bad, twice, usage, worse = json.loads(done.stdout)
    models = {model["fidelity"]: model for model in json.loads(listed[1])}
    assert models["mine"]["refused_faults"] is None
    assert models["mine"]["keys"] == ["endpoint_delay", "fidelity", "pause", "reduction_bandwidth"]
    assert json.loads(own[1])["rows"][0]["time_ps"] == 14 * 10**6, own
    for (code, _, err), name, complaint in (
        (bad, "bad", "ModuleNotFoundError: No module"),
        (twice, "flow", "found in Nadi and package mine"),
    ):
        (line,) = err.splitlines()
        assert (code, f"network model {name!r}" in line, complaint in line) == (2, True, True), line
    assert (usage[0], " worse " in usage[1], " doctor " in usage[1]) == (0, False, True)
    assert "ModuleNotFoundError: No module named 'nothing_here'" in worse[2]
