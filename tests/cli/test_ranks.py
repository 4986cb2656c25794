"""Ranks: who started them, with how many others, and that they bring together what one rank has alone."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et, workload
from nadi.configuration.run_file import load_config
from nadi.insight import node_times, run_analysis
from nadi.launching import ranks
from nadi.launching.ranks import RankGather
from nadi.reports.run_folder import TABLES, summary, write_results
from nadi.reports.text.run import run_report
from nadi.simulation.assembly.reading import WorkReader
from nadi.terminal import console
from tests.needs import BIN, mpich, open_mpi
from tests.nonempty import nonempty
from tests.running import simulate
from tests.workload.ranks import on_ranks

HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "3"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2"}
IN_JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}
PROXY = IN_JOB | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}
STEP = IN_JOB | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}
OLD_STEP = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}

MPICH = "MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\nMPICH configure:    --with-device=ch4:ucx,ofi\n"
MPICH_PMIX = MPICH.replace("--with-device", "--with-pmix=/usr --with-device")
OPEN_MPI = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022\0"
INTEL = "Intel(R) MPI Library 2021.11 for Linux* OS\n"


@pytest.mark.parametrize(
    ("environ", "size", "variable", "rank"),
    [
        ({}, None, "", None),
        (HYDRA, 4, "PMI_SIZE", 3),
        (MPIRUN, 4, "OMPI_COMM_WORLD_SIZE", 2),
        (STEP, 4, "SLURM_STEP_NUM_TASKS", 1),
        (OLD_STEP, 4, "SLURM_NTASKS", 1),
        (STEP | HYDRA, 4, "PMI_SIZE", 3),
        (STEP | {"PMIX_RANK": "1"}, 4, "SLURM_STEP_NUM_TASKS", 1),
        (PROXY | HYDRA, 4, "PMI_SIZE", 3),
        (PROXY | MPIRUN, 4, "OMPI_COMM_WORLD_SIZE", 2),
        (IN_JOB, None, "", None),
        (IN_JOB | {"SLURM_STEP_ID": "batch"}, None, "", None),
        (IN_JOB | {"SLURM_STEP_ID": "4294967291"}, None, "", None),
        (IN_JOB | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, None, "", None),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, 1, "SLURM_STEP_NUM_TASKS", 1),
        ({"PMIX_RANK": "5"}, None, "PMIX_RANK", 5),
        ({"PMI_SIZE": "many"}, None, "PMI_SIZE", None),
        (HYDRA | {"NADI_LAUNCHER": "none"}, None, "", None),
    ],
)
def test_what_launchers_say(environ, size, variable, rank):
    assert ranks.launched_size(environ) == (size, variable)
    assert ranks.launched_rank(environ) == rank
    assert ranks.wants_mpi(environ) == (variable != "" and size != 1)


@pytest.mark.parametrize("environ", [HYDRA, MPIRUN, STEP, STEP | HYDRA])
def test_the_right_size_passes(environ):
    ranks.check(environ, 4, MPICH)


@pytest.mark.parametrize(
    ("environ", "library", "told"),
    [
        (STEP, MPICH, ["SLURM_STEP_NUM_TASKS=4", "MPICH 5.0.2 sees 1", "srun --mpi=pmi2", "inside sbatch"]),
        (STEP, OPEN_MPI, ["Open MPI v4.1.4 sees 1", "srun --mpi=pmix", "the mpiexec of Open MPI inside sbatch"]),
        (STEP, INTEL, ["Intel(R) MPI Library 2021.11", "srun --mpi=pmi2", "I_MPI_PMI_LIBRARY"]),
        (HYDRA, OPEN_MPI, ["PMI_SIZE=4", "use the mpiexec of Open MPI"]),
        (MPIRUN, MPICH_PMIX, ["OMPI_COMM_WORLD_SIZE=4", "MPICH 5.0.2"]),
    ],
)
def test_a_world_of_one_is_refused_with_the_fix(environ, library, told):
    with pytest.raises(ranks.LauncherError) as caught:
        ranks.check(environ, 1, library)
    for text in nonempty(told):
        assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)
    assert ("srun" in str(caught.value)) == ("SLURM_JOB_ID" in environ)
    assert caught.value.exit_code == 2


def test_the_mpiexec_beside_python_is_named_where_it_is_of_that_mpi(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for name in ("mpiexec", "mpichversion"):
        (tmp_path / name).touch()
    with pytest.raises(ranks.LauncherError, match=f"use {tmp_path}/mpiexec$"):
        ranks.check(MPIRUN, 1, MPICH)
    with pytest.raises(ranks.LauncherError, match=r"use the mpiexec of Open MPI$"):
        ranks.check(HYDRA, 1, OPEN_MPI)


@pytest.mark.parametrize(
    ("environ", "library", "told"),
    [
        (MPIRUN, MPICH, "started by Open MPI's mpirun, but mpi4py has loaded MPICH 5.0.2"),
        (STEP | {"PMIX_RANK": "1"}, MPICH, "started over PMIx, but mpi4py has loaded MPICH 5.0.2; use srun --mpi=pmi2"),
        (STEP, OPEN_MPI, "started by srun without PMIx, which Open MPI v4.1.4 needs; use srun --mpi=pmix"),
    ],
)
def test_what_would_end_in_mpi_init_is_refused_before(environ, library, told):
    with pytest.raises(ranks.LauncherError) as caught:
        ranks.check_library(environ, library)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("environ", "library"),
    [
        (MPIRUN, OPEN_MPI),
        (MPIRUN, MPICH_PMIX),
        (HYDRA, MPICH),
        (HYDRA, INTEL),
        (HYDRA | {"PMIX_RANK": "0"}, MPICH),
        (STEP | {"PMIX_RANK": "1"}, OPEN_MPI),
        (STEP | {"PMI_RANK": "1", "PMI_SIZE": "4"}, OPEN_MPI),
        (STEP, MPICH),
        (STEP, INTEL),
        (PROXY | MPIRUN, OPEN_MPI),
        ({}, MPICH),
    ],
)
def test_what_may_work_is_tried(environ, library):
    ranks.check_library(environ, library)


def test_alone_imports_no_mpi(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert ranks.connect({}) is None
    assert ranks.connect(IN_JOB) is None
    assert ranks.connect({"PMI_SIZE": "1", "PMI_RANK": "0"}) is None
    assert ranks.connect(HYDRA | {"NADI_LAUNCHER": "none"}) is None


def test_rank_0_says_that_mpi4py_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setattr(ranks, "_RANK_0_REPORTS_S", 0)
    with pytest.raises(ranks.LauncherError, match=r"4 processes were started \(PMI_SIZE\), but .* mpi4py mpich"):
        ranks.connect(HYDRA | {"PMI_RANK": "0"})
    with pytest.raises(ranks.LauncherError, match=r"^$"):
        ranks.connect(HYDRA)


CONNECT = """
import os, sys
from nadi.launching import ranks
try:
    world = ranks.connect(os.environ)
except ranks.LauncherError as error:
    sys.stderr.write(f"{error}\\n" if str(error) else "")
    sys.exit(error.exit_code)
sys.stdout.write(f"{world.Get_size() if world else None}\\n")
"""
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start(mpiexec, count=2, **environ):
    command = [mpiexec, "-n", str(count), sys.executable, "-c", CONNECT]
    outer = ("PMI", "OMPI", "SLURM", "HYD", "MPI4PY")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    return subprocess.run(command, env=clean | ROOT_MAY | environ, capture_output=True, text=True, timeout=60)


@mpich
@pytest.mark.parametrize(("count", "said"), [(1, "None\n"), (2, "2\n2\n")])
def test_mpich_for_real(count, said):
    done = start(BIN / "mpiexec", count)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


@mpich
def test_a_missing_library_is_said_once():
    done = start(BIN / "mpiexec", MPI4PY_LIBMPI="/no/libmpi.so")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("mpi4py finds no MPI (cannot load MPI library /no/libmpi.so") == 1


@mpich
@open_mpi
def test_mpirun_of_open_mpi_with_mpich_is_refused_once():
    done = start("mpirun.openmpi")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("started by Open MPI's mpirun, but mpi4py has loaded MPICH") == 1
    assert f"use {BIN}/mpiexec\n" in done.stderr


@mpich
@open_mpi
def test_mpiexec_of_mpich_with_open_mpi_is_refused_once():
    done = start(BIN / "mpiexec", MPI4PY_MPIABI="openmpi", MPI4PY_LIBMPI="libmpi.so.40")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("PMI_SIZE=2, but Open MPI v4")
    assert done.stderr.count("\n") == 1


SPLITS = [[0, 0, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [2, 1, 0, 1], [1, 1, 1, 1]]


@pytest.fixture
def simulation(write_run, step, tmp_path):
    """NPUs that are ready one after another, for collectives of all and of pairs, and a message."""
    (tmp_path / "groups.json").write_text('{"7": [0, 2], "8": [3, 1]}')
    nodes = [[et.comp_node(1, "forward", duration_micros=9 + npu // 2 * 3), *step[1:]] for npu in range(4)]
    for npu, name in enumerate(["7", "8", "7", "8"]):
        gather = et.coll_node(
            5, f"gather of {npu % 2}", et.CollectiveCommType.ALL_GATHER, 4096 << npu % 2, pg_name=name, deps=[2]
        )
        nodes[npu].append(gather)
    nodes[0].append(et.send_node(6, "to 3", 0, 3, 100, 5))
    nodes[3].append(et.recv_node(6, "from 0", 0, 3, 100, 5))
    nodes[3].append(et.comp_node(7, "only here", duration_micros=3, is_cpu_op=True, deps=[6]))
    run = write_run(nodes, '[system.collectives]\nall-reduce = "direct"\n')
    run.write_text(run.read_text().replace('"trace"', '"trace"\ngroups = "groups.json"'))
    return simulate(load_config(run, []))


def share_of(whole, rank_of_npu, rank, exchange):
    """What a rank has of a simulation, when pdes gives it the rows of its own NPUs and rank 0 the flows."""
    config, results = whole.config, whole.results
    own = np.array(rank_of_npu) == rank
    traces, trace_of_npu = workload.load_traces(config.workload.traces, len(own), own=own, exchange=exchange)
    program = workload.build_program(
        traces,
        trace_of_npu,
        len(own),
        et.read_groups(config.workload.groups),
        WorkReader(config, whole.graph).compute_model(serves=False, npus=whole.graph.npus),
        whole.collectives,
        exchange=exchange,
    )
    counts = np.diff(results.npu_node_ptr)
    is_own = np.repeat(own, counts)
    here = dataclasses.replace(
        results,
        npu_node_ptr=np.concatenate([[0], np.cumsum(np.where(own, counts, 0))]),
        node_start_ps=results.node_start_ps[is_own],
        node_finish_ps=results.node_finish_ps[is_own],
        flows=results.flows if rank == 0 else {name: column[:0] for name, column in results.flows.items()},
    )
    return dataclasses.replace(whole, traces=traces, trace_of_npu=trace_of_npu, program=program, results=here)


def told(console_of):
    out = console()
    with out.capture() as captured:
        out.print(console_of)
    return captured.get()


def check_equal(found, wanted):
    for field in nonempty(dataclasses.fields(wanted)):
        a, b = getattr(found, field.name), getattr(wanted, field.name)
        if field.name in {"npu_times", "collectives"}:
            for name, column in nonempty(b._asdict().items()):
                assert column.dtype == getattr(a, name).dtype
                np.testing.assert_array_equal(getattr(a, name), column, name)
        else:
            np.testing.assert_array_equal(a, b, field.name)


@pytest.mark.parametrize("rank_of_npu", SPLITS)
@pytest.mark.parametrize(("most_rows", "most_packets"), [(7, 1 << 21), (4_000_000, 200)])
def test_ranks_find_and_write_what_one_does(simulation, rank_of_npu, most_rows, most_packets, tmp_path, monkeypatch):
    monkeypatch.setattr(node_times, "_MAX_ROWS", most_rows)  # of a block
    monkeypatch.setattr(run_analysis, "_MAX_PACKETS", most_packets)  # that are played for closed forms
    wanted = run_analysis.analyse(simulation)
    whole, merged = tmp_path / "whole", tmp_path / "merged"
    whole.mkdir()
    merged.mkdir()
    write_results(simulation, wanted, whole)

    def work(rank, exchange):
        def gather(value):
            values = exchange(value)
            return values if rank == 0 else None

        own = share_of(simulation, rank_of_npu, rank, exchange)
        parts = gather(run_analysis.analyse_rank(own, exchange))
        found = parts and run_analysis.merge_ranks(own, parts)
        write_results(own, found, merged if rank == 0 else None, RankGather(exchange, gather))
        return found, own

    n = max(rank_of_npu) + 1
    outcomes = on_ranks(n, work)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    found, own = outcomes[0]
    assert [others for others, _ in outcomes[1:]] == [None] * (n - 1)
    check_equal(found, wanted)
    assert told(run_report(own, found, 1.0)) == told(run_report(simulation, wanted, 1.0))
    for table in nonempty(TABLES):
        one, several = (pq.ParquetFile(folder / f"{table}.parquet") for folder in (whole, merged))
        assert several.schema_arrow == one.schema_arrow, table
        assert several.read().to_pylist() == one.read().to_pylist(), table
        assert several.num_row_groups == one.num_row_groups == (1 if table != "nodes" or most_rows > 7 else 3), table
    one, several = (json.loads((folder / "summary.json").read_text()) for folder in (whole, merged))
    assert (one.pop("ranks"), several.pop("ranks")) == (1, n)
    assert several.pop("peak_rss_bytes") >= n * 0.9 * one.pop("peak_rss_bytes") > 0
    assert several == one


def test_a_summary_counts_ranks_and_adds_their_memory(simulation):
    found = summary(simulation, [5, 7])
    assert (found["ranks"], found["peak_rss_bytes"]) == (2, 12)
    assert summary(simulation)["ranks"] == 1
