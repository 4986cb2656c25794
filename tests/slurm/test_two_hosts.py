"""MPI between two hosts, over TCP."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from nadi import et
from nadi.cli.main import main
from tests.faults import segments
from tests.needs import BIN, NO_MPICH
from tests.slurm import hosts

MPIEXEC = BIN / "mpiexec.hydra"
DRIVER = str(Path(__file__).parents[1] / "faults" / "driver.py")
"""Says often how far it is."""
LEAST_OF_A_WINDOW_BYTES = 50
ALL_REDUCE = """
import os, sys
import numpy as np
from nadi.launching.ranks import connect
world = connect(os.environ)
total = np.zeros(1 << 17, dtype=np.int64)
world.Allreduce(np.full_like(total, world.Get_rank() + 1), total)
net = os.readlink("/proc/self/ns/net")
sys.stdout.write(f"{world.Get_rank()} of {world.Get_size()} in {net}: {total[0]} {total[-1]}\\n")
"""


@pytest.fixture
def mpiexec(tmp_path):
    """How to start a rank on each of two hosts."""
    if not MPIEXEC.is_file():
        pytest.skip(f"no {MPIEXEC}")
    if why := NO_MPICH or hosts.missing():
        pytest.skip(why)
    with hosts.two_hosts(tmp_path) as command:
        yield [str(MPIEXEC) if word == "mpiexec" else word for word in command]


def test_two_hosts_reduce_over_the_cable(mpiexec):
    command = [*mpiexec, "-n", "2", sys.executable, "-c", ALL_REDUCE]
    done = subprocess.run(command, env=os.environ | hosts.ONLY_TCP, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.split(" in ")[0] for line in lines] == ["0 of 2", "1 of 2"]
    assert [line.split(": ")[1] for line in lines] == ["3 3"] * 2
    assert len({line.split(" in ")[1].split(": ")[0] for line in lines}) == 2
    assert hosts.sent_bytes(mpiexec) > 1 << 19, "less than the half that must cross went over the cable"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_on_two_hosts_gives_the_answer_of_one(mpiexec, run_file, tmp_path, capsys, threads):
    """The hosts share a kernel, so MPI would take them for one node: told not to share memory, packets go by TCP."""
    assert main(["run", str(run_file), "--out", str(tmp_path / "one"), "--quiet"]) == 0
    capsys.readouterr()
    out = tmp_path / "two"
    run = ("-m", "nadi", "run", str(run_file), "--out", str(out), "--quiet", "--workers", str(threads))
    command = [*mpiexec, "-n", "2", sys.executable, *run, "--set", "engine.share_memory=false"]
    before = hosts.sent_bytes(mpiexec)
    done = subprocess.run(command, env=os.environ | hosts.ONLY_TCP, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((folder / "summary.json").read_text()) for folder in (tmp_path / "one", out))
    assert (two["ranks"], two["threads"], two["settled"]["teams"]) == (2, threads, 2)
    assert two["digest"] == one["digest"]
    assert two["packet_hops"] == one["packet_hops"]
    assert hosts.sent_bytes(mpiexec) - before > LEAST_OF_A_WINDOW_BYTES * two["windows"]


def test_a_rank_killed_on_another_host_ends_the_run(mpiexec, run_file, tmp_path):
    for trace in (run_file.parent / "traces").glob("*.et"):
        et.write_trace(trace, et.metadata(), [et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, 1 << 44)])
    run = (DRIVER, "none", "run", str(run_file), "--out", str(tmp_path / "out"), "--set", "engine.share_memory=false")
    command = [*mpiexec, "-n", "2", sys.executable, *run]
    with subprocess.Popen(command, env=os.environ | hosts.ONLY_TCP, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "simulated" in line:
                break
        left = segments.mapped(ranks_of(run_file).values())
        os.kill(ranks_of(run_file)["1"], signal.SIGKILL)
        code = process.wait(10)
    segments.remove(left)
    assert code != 0
    assert ranks_of(run_file) == {}
    assert [*tmp_path.glob("out/*")] == []


def ranks_of(run_file):
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environ = dict(word.partition("=")[::2] for word in (process / "environ").read_text().split("\0"))
            if str(run_file) in (process / "cmdline").read_text().split("\0") and "PMI_RANK" in environ:
                found[environ["PMI_RANK"]] = int(process.name)
    return found
