"""A SLURM of two nodes that share files and a network, and no memory: what two machines of a cluster share."""

import json
import time

import pytest

from nadi import et
from nadi.cli.main import main
from nadi.pdes.parallel import compile_all
from tests.needs import NO_MPICH
from tests.slurm import cluster, hosts
from tests.slurm.test_jobs import digest_of_one, node_tmp, ranks_of, write_script  # noqa: F401 - a fixture

DIES_S = 20


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    if why := NO_MPICH or cluster.missing() or hosts.missing():
        pytest.skip(why)
    with hosts.two_machines(tmp_path_factory.mktemp("machines")) as both:
        yield both


@pytest.fixture
def slurm(machines):
    """A cluster of both, for which all kernels are compiled."""
    compile_all()
    nodes = [cluster.Node(machine.name, machine.name, machine.address, machine.enter) for machine in machines]
    with cluster.cluster(nodes) as running:
        yield running


@pytest.mark.parametrize("launcher", ["mpiexec", "srun-pmi2"])
def test_a_run_gives_the_answer_of_one(slurm, tmp_path, run_file, node_tmp, capsys, launcher):  # noqa: F811
    script, out = tmp_path / "job.sbatch", tmp_path / "two"
    write_script(capsys, run_file, "--nodes", 2, "--launcher", launcher, "--out", out, "-o", script)
    log = tmp_path / "log"
    job = slurm.submit("--output", log, script, cwd=tmp_path, environ=node_tmp | hosts.ONLY_TCP)
    assert slurm.states(job) == {"COMPLETED"}, log.read_text()
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["ranks"], summary["settled"]["teams"]) == (2, 2)
    assert summary["digest"] == digest_of_one(run_file, tmp_path / "one", capsys)


def test_a_node_that_dies_ends_the_job(slurm, machines, tmp_path, run_file, node_tmp, capsys):  # noqa: F811
    for trace in (run_file.parent / "traces").glob("*.et"):
        et.write_trace(trace, et.metadata(), [et.coll_node(1, "grads", et.CollectiveCommType.ALL_REDUCE, 1 << 44)])
    script, out, log = tmp_path / "job.sbatch", tmp_path / "two", tmp_path / "log"
    write_script(capsys, run_file, "--nodes", 2, "--time", "00:30:00", "--force", "--out", out, "-o", script)
    options = ("--no-requeue", "--output", log, script)
    done = slurm.run("sbatch", "--parsable", *options, cwd=tmp_path, environ=node_tmp | hosts.ONLY_TCP)
    job = done.stdout.strip()

    def simulates():
        return main(["watch", str(out), "--once", "--json"]) == 0 and '"simulating"' in capsys.readouterr().out

    assert slurm.until(simulates, 60), log.read_text()
    begun = time.monotonic()
    machines[1].die()
    assert slurm.until(lambda: not ranks_of(run_file), DIES_S), log.read_text()
    # SLURM completes the job when it gives the node up
    assert slurm.until(lambda: slurm.states(job) <= {"COMPLETING", "FAILED", "NODE_FAIL"}, DIES_S), log.read_text()
    assert time.monotonic() - begun < DIES_S
    said = log.read_text()
    assert "node node2 does not answer" in said
    assert "node1 does not answer" not in said
    assert not out.exists()
