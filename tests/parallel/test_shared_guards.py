"""A write past an outbox in memory that processes or MPI ranks share is noticed by the process that owns it."""

import numpy as np
import pytest

from nadi.pdes import Processes, RunError, Settings, run_divided
from nadi.pdes.construction.layout import Layout
from nadi.pdes.workers import worker_pool
from nadi.topologies import build
from nadi.workload import collective_program

OVERWRITTEN = "LP 1: memory of array outbox was overwritten 0 bytes behind its end"
ON_RANKS = """
import sys
from mpi4py import MPI
from nadi.pdes import RunError
from nadi.pdes.workers.ranks import Ranks
from tests.parallel import test_shared_guards as shared

run = shared.worker_pool.WorkerPool.run
if sys.argv[1] == "damaged":
    shared.worker_pool.WorkerPool.run = lambda pool: shared.run_and_write(pool, run)
try:
    shared.simulate(Ranks(MPI.COMM_WORLD))
except RunError as error:
    with open(sys.argv[2], "a") as file:  # mpiexec may end before it has passed on what an aborting rank wrote
        file.write(f"rank {MPI.COMM_WORLD.Get_rank()}: {error}")
    MPI.COMM_WORLD.Abort(1)
"""


def simulate(mailbox):
    graph = build("leaf-spine:leaves=2,spines=2,hosts_per_leaf=2")
    program = collective_program("all-reduce", 4, 1 << 14)
    layout = Layout(graph, Settings(), np.array([0, 0, 1, 1, 0, 1, 0, 1]))
    return run_divided(layout, program, Settings(), mailbox)


def run_and_write(workers, run):
    """Run to the end, then write a word behind the outbox of LP 1 and look again."""
    run(workers)
    for lp in workers.sim.lps:
        if lp.part.number == 1:
            outbox = lp.world.net.outbox
            np.lib.stride_tricks.as_strided(outbox, (len(outbox) + 1,))[-1] = 1
    workers._check_guards()


def test_of_processes(monkeypatch):
    assert simulate(Processes(2)).finish_time_ps > 0
    run = worker_pool.WorkerPool.run
    monkeypatch.setattr(worker_pool.WorkerPool, "run", lambda workers: run_and_write(workers, run))
    with pytest.raises(RunError, match=f"^{OVERWRITTEN}"):
        simulate(Processes(2))


def test_of_ranks(python, tmp_path):
    errors = tmp_path / "errors"
    assert python(2, "-c", ON_RANKS, "whole", errors).returncode == 0
    assert not errors.exists()
    assert python(2, "-c", ON_RANKS, "damaged", errors, timeout=60).returncode != 0
    assert OVERWRITTEN in errors.read_text()
