"""A file in the folder of message-level models is all that a new one needs: run files take its name."""

import json
import os
import subprocess
import sys
from pathlib import Path

TOY = Path(__file__).parent / "toy"
ROOT = Path(__file__).parents[2]
CODE = """
import pdes.fidelity as fidelity
fidelity.__path__.append({toy!r})
import sys
sys.argv = ["nadi", *{arguments!r}]
from nadi.cli.main import entry_point
entry_point()
"""


def nadi(*arguments):
    code = CODE.format(toy=str(TOY), arguments=[*arguments])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


def test_a_ring_takes_a_constant_time_per_step():
    """An all-reduce by 8 members has 14 steps of a microsecond."""
    fabric = ("-t", "ring:npus=8", "--sizes", "1MiB", "--algorithm", "ring", "--set", "network.fidelity=constant")
    done = nadi("collective", "all-reduce", *fabric, "--json", "-q")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["time_ps"] == 14 * 10**6


def test_its_verbs_are_those_of_all_models():
    """`nadi.open_network` opens it: a message arrives a microsecond after it was posted."""
    code = CODE.format(toy=str(TOY), arguments=[]).split("import sys")[0]
    code += """
import nadi
network = nadi.open_network("ring:npus=8", fidelity="constant")
network.advance(5)
network.post(0, 3, 77)
print([tuple(report) for report in network.advance(10**9)], network.now_ps)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "[(5, 0, False), (1000005, 0, True)] 1000000000\n", done.stderr


def test_others_are_still_refused_and_all_are_named():
    done = nadi("collective", "all-reduce", "-t", "ring:npus=8", "--set", "network.fidelity=constantly")
    assert done.returncode == 2
    assert "expected 'packet', 'flow', 'analytical', 'constant' or 'closed-form'" in done.stderr


def test_a_model_is_short():
    """CONTRIBUTING.md and docs/explanation/fidelity.md promise fewer than 80 lines."""
    assert len((TOY / "constant.py").read_text().splitlines()) < 80


def test_it_is_listed_and_takes_no_keys_of_others():
    done = nadi("net", "fidelities", "--json")
    assert done.returncode == 0, done.stderr
    listed = {model["fidelity"]: model for model in json.loads(done.stdout)}
    assert listed["constant"]["refused_faults"] is None
    assert listed["constant"]["keys"] == ["endpoint_delay", "fidelity", "reduction_bandwidth"]


def test_what_it_lacks_is_refused(tmp_path):
    """Nothing but its declaration makes it run on one worker, without faults, and without keys of packets."""
    on_it = ("--set", "network.fidelity=constant", "--set", "network.mtu=1KiB")
    run = ("run", "--model", "gpt3-125m", "--plan", "dp4,gb4", "--cluster", "small-a100", *on_it, "-q")
    done = nadi(*run, "--workers", "2", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "[network] mtu (needs [network] fidelity = " in done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["network"], summary["switches"], summary["threads"]) == ("constant", "none", 1)
    assert "mtu" not in summary["config"]["network"]
    done = nadi(*run, "--set", "faults.0.npu=0", "--set", "faults.0.at=0s", "--set", "faults.0.slowdown=2")
    assert done.returncode == 2
    assert done.stderr.startswith("nadi: error: [[faults]]: found with a [network] fidelity without faults; expected")
