"""A file in the folder of message-level models is all that a new one needs: run files take its name."""

import json
import os
import subprocess
import sys
from pathlib import Path

TOY = Path(__file__).parent / "toy"
ROOT = Path(__file__).parents[2]
CODE = """
import pdes.messages.fidelity as fidelity
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


def test_others_are_still_refused_and_all_are_named():
    done = nadi("collective", "all-reduce", "-t", "ring:npus=8", "--set", "network.fidelity=constantly")
    assert done.returncode == 2
    assert "expected 'packet', 'flow', 'analytical', 'constant' or 'closed-form'" in done.stderr
