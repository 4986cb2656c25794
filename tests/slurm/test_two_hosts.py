"""MPI between two hosts, over TCP."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm import hosts

MPIEXEC = Path(sys.executable).parent / "mpiexec.hydra"
ALL_REDUCE = """
import os, sys
import numpy as np
from nadi.launcher import connect
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
        pytest.skip("no MPICH beside Python")
    if why := hosts.missing():
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
