"""One SLURM for all tests of this folder, and the small things that they run on it."""

import sys

import pytest

from nadi.cli.main import main
from tests.slurm import cluster

CONNECT = """
import os, sys
from nadi.launching import ranks
try:
    world = ranks.connect(os.environ)
except ranks.LauncherError as error:
    sys.stdout.write(f"{error}\\n" * bool(str(error)))
    sys.exit(error.exit_code)
sys.stdout.write(f"size {world.Get_size() if world else None}\\n")
"""
"""Says the size of the communicator, or why there is none."""
RUN = """
[workload]
traces = "traces/transformer"
[topology]
spec = "ring:npus=4,rate=100Gbps,delay=1us"
[compute]
peak_flops = "100TFLOPS"
[memory]
bandwidth = "1TB/s"
"""


@pytest.fixture(scope="session")
def slurm():
    """A running cluster of one node; skips where there can be none."""
    if why := cluster.missing():
        pytest.skip(why)
    with cluster.cluster() as running:
        yield running


@pytest.fixture
def connect(tmp_path):
    """A command line that connects to the launcher and says the size."""
    script = tmp_path / "connect.py"
    script.write_text(CONNECT)
    return f"{sys.executable} {script}"


@pytest.fixture
def run_file(tmp_path, capsys):
    folder = tmp_path / "a run"
    small = ["--npus=4", "--layers=1", "--hidden=64", "--heads=4", "--vocab=64", "--seq=64"]
    assert main(["workload", "transformer", *small, "-o", str(folder / "traces")]) == 0
    capsys.readouterr()
    path = folder / "tiny run.toml"
    path.write_text(RUN)
    return path
