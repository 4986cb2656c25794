"""Guards of outboxes that processes share, queues at boundaries, and what is recorded of each worker."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from nadi.pdes import RunError, Settings, build_world, fidelity, run, workers
from nadi.pdes.parallel import Layout, Processes, run_divided
from nadi.pdes.workers.processes import Ranks, _transferable
from nadi.topologies import build
from nadi.workload import collective_program, pairs_program

COLUMNS = ["worker", "rank", "packet_hops", "events", "working_s", "waiting_s", "windows"]
FLOATS = {"working_s", "waiting_s"}
TURN_S = 0.05
"""Of another program on the core of a worker, which then begins later than the first or goes on when that is done."""


def plausible(results, workers):
    """Rows of so many workers, whose sums are those of the run."""
    found, counters = results.workers, results.counters
    assert sorted(found) == sorted(COLUMNS)
    assert {name for name, column in found.items() if column.dtype == np.float64} == FLOATS
    assert all(column.dtype == np.int64 for name, column in found.items() if name not in FLOATS)
    assert found["worker"].tolist() == list(range(workers))
    assert found["packet_hops"].sum() == counters["packet_hops"]
    assert found["events"].sum() == counters["events"]
    assert found["windows"].tolist() == [counters["windows"]] * workers
    assert found["working_s"].min() > 0
    assert found["waiting_s"].min() >= 0
    both_s = found["working_s"] + found["waiting_s"]
    assert both_s.max() <= 1.05 * results.wall_s + TURN_S
    return both_s


def divided(owner, npus=16, size=200_000, delay="1us"):
    graph = build(f"leaf-spine:npus={npus},hosts_per_leaf=4,spines=2,rate=100Gbps,delay={delay}")
    owner = owner(graph.nodes)
    return graph, collective_program("all-to-all", npus, size), Settings(), owner


@pytest.mark.parametrize("lps", [1, 3])
def test_one_worker_works_all_the_time(lps):
    """Half of the time at least, also where other processes take turns with it: a run of tens of milliseconds."""
    results = run(build_world(*divided(lambda nodes: np.arange(nodes) * lps // nodes, size=4_000_000)))
    both_s = plausible(results, 1)
    assert results.workers["waiting_s"].tolist() == [0.0]
    assert results.workers["rank"].tolist() == [0]
    assert both_s[0] >= 0.5 * results.wall_s


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(threads):
    results = run(build_world(*divided(lambda nodes: np.arange(nodes) % 6)), threads=threads)
    plausible(results, threads)
    assert results.workers["waiting_s"].sum() > 0


def in_processes(graph, program, settings, owner):
    return run_divided(Layout(graph, settings, owner), program, settings, Processes(int(owner.max()) + 1))


def test_processes():
    results = in_processes(*divided(lambda nodes: np.arange(nodes) * 3 // nodes))
    plausible(results, 3)
    assert results.workers["rank"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("idle", [0, 1])
def test_who_has_little_to_do_waits(idle):
    """One of two workers has a single NPU of 64, and works less and waits longer than the other.

    Windows are long, so that others on the machine keep both waiting for a small part of the time only.
    """
    parts = divided(lambda nodes: np.where(np.arange(nodes) == 5, idle, 1 - idle), 64, 40_000_000, "50us")
    results = in_processes(*parts)
    plausible(results, 2)
    hops, working_s, waiting_s = (results.workers[name] for name in ("packet_hops", "working_s", "waiting_s"))
    assert 20 * hops[idle] < hops[1 - idle]
    assert 2 * working_s[idle] < working_s[1 - idle]
    assert waiting_s[idle] > waiting_s[1 - idle]


def test_nothing_is_recorded_where_there_are_no_windows():
    graph = build("switch:npus=4")
    program = pairs_program([1, 2, 3, 0], 1000)
    assert run(build_world(graph, program, Settings(fidelity=fidelity.fidelity("congestion_unaware")))).workers == {}


def test_a_defect_of_a_rank_or_process_is_a_short_line():
    """Errors of Numba's compiler have pages, which the command would print as one line."""
    long = TypeError("Failed in nopython mode pipeline\n" + "no implementation found\n" * 400)
    try:
        raise long
    except TypeError as error:
        of_process = str(_transferable(error, 3))
    communicator = SimpleNamespace(Barrier=lambda: None, Get_rank=lambda: 3)
    with pytest.raises(RunError) as of_rank, Ranks.windows(SimpleNamespace(_communicator=communicator)):
        raise long
    for text in (of_process, str(of_rank.value)):
        assert "3: TypeError: Failed in nopython mode pipeline" in text
        assert len(text) < 500
        assert "\n" not in text


OVERWRITTEN = "LP 1: memory of array outbox was overwritten 0 bytes behind its end"
ON_RANKS = """
import sys
from mpi4py import MPI
from nadi.pdes import RunError
from nadi.pdes.workers.processes import Ranks
from tests.parallel import test_workers as shared

run = shared.workers.WorkerPool.run
if sys.argv[1] == "damaged":
    shared.workers.WorkerPool.run = lambda pool: shared.run_and_write(pool, run)
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
    run = workers.WorkerPool.run
    monkeypatch.setattr(workers.WorkerPool, "run", lambda workers: run_and_write(workers, run))
    with pytest.raises(RunError, match=f"^{OVERWRITTEN}"):
        simulate(Processes(2))


def test_of_ranks(python, tmp_path):
    errors = tmp_path / "errors"
    assert python(2, "-c", ON_RANKS, "whole", errors).returncode == 0
    assert not errors.exists()
    assert python(2, "-c", ON_RANKS, "damaged", errors, timeout=60).returncode != 0
    assert OVERWRITTEN in errors.read_text()


RUN = """
[workload]
model = "gpt3-125m"
plan = "tp4,sp,dp4,gb16,mb1,zero1,seq64"
[topology]
spec = "rail-fat-tree:npus=16,gpus_per_host=4,rails=1,hosts_per_unit=1,spines=2,accelerator=h100"
[compute]
gpu = "h100"
"""


def test_packets_cross_in_order_where_some_wait_for_later_windows(nadi, tmp_path):
    """Queues are deeper than the windows that an outbox spans, and windows are much longer than cells.

    A packet that found room in the outbox used to overtake those that waited on its link; at the other end they then
    waited out of order, and came too late.
    """
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    found = [nadi(None, "run", file, "--json", "-q", *more) for more in ((), ("--workers", 2))]
    assert [outcome.returncode for outcome in found] == [0, 0], found[1].stderr
    serial, parallel = (json.loads(outcome.stdout)["digest"] for outcome in found)
    assert serial == parallel
