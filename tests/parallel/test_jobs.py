"""Runs of several jobs are the same on any number of threads, processes and ranks."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.simulation import schemas
from nadi.workload import TraceSet, write_set

SPEC = "leaf-spine:leaves=4,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=1us"
JOBS = """
[topology]
spec = "{spec}"
[output]
alone = true
sample = "2us"
[[jobs]]
name = "plain"
traces = "plain/t"
placement = "scattered:seed=3"
repeat = 2
start = "every:7us"
[[jobs]]
name = "set"
traces = "set"
start = "3us"
iterations = 2
[[jobs]]
name = "background"
gpus = 4
placement = "scattered"
traffic = {{ sizes = "hadoop", load = 0.5, duration = "40us", arrivals = "lognormal:sigma=1" }}
"""
WAYS = {
    "two threads": (None, "--workers", 2),
    "two processes": (None, "--workers", 2, "--backend", "processes"),
    "two ranks": (2,),
    "three ranks": (3,),
}
TABLES = (
    schemas.NODES,
    schemas.FLOWS,
    schemas.NPUS,
    schemas.COLLECTIVES,
    schemas.STEPS,
    schemas.JOB_LINKS,
    schemas.SAMPLES,
)


def write_traces(folder):
    """Write traces of four ranks, and a set of two traces of which each has two ranks."""
    gather = et.CollectiveCommType.ALL_GATHER
    for rank in range(4):
        et.write_trace(
            folder / "plain" / f"t.{rank}.et",
            et.metadata(),
            [
                et.coll_node(0, "dp:sum", et.CollectiveCommType.ALL_REDUCE, 40_000 + 4),
                et.send_node(1, "pp:on", rank, (rank + 1) % 4, 30_000, 7, deps=[0]),
                et.recv_node(2, "pp:from", (rank - 1) % 4, rank, 30_000, 7, deps=[0]),
                et.comp_node(3, "work", duration_micros=5, deps=[2]),
            ],
        )
    tables = []
    for rank in (0, 2):
        nodes = [
            et.coll_node(0, "tp:pair", gather, 9000, pg_name="tp"),
            et.send_node(1, "pp:on", rank, 2 - rank, 20_000, 1, deps=[0]),
            et.recv_node(2, "pp:back", 2 - rank, rank, 20_000, 1, deps=[0]),
        ]
        tables.append(et.table_of(et.metadata(), nodes))
    owner, examples = [0, 0, 1, 1], [0, 2]
    write_set(
        folder / "set",
        TraceSet(tables, np.array(owner, np.int32), np.array(examples, np.int32), {"tp": ((0, 1), (2, 3))}),
    )


@pytest.fixture(scope="module")
def wanted(nadi, tmp_path_factory):
    """The run file, and the results of one worker."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "plain").mkdir()
    write_traces(folder)
    (folder / "run.toml").write_text(JOBS.format(spec=SPEC))
    done = nadi(None, "run", folder / "run.toml", "--out", folder / "one", "-q")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_jobs_are_the_same_in_every_way_of_running(nadi, wanted, way):
    ranks, *options = WAYS[way]
    out = wanted / way.replace(" ", "-")
    done = nadi(ranks, "run", wanted / "run.toml", *options, "--out", out, "-q")
    assert done.returncode == 0, done.stderr
    one, other = (json.loads((folder / "summary.json").read_text()) for folder in (wanted / "one", out))
    assert other["digest"] == one["digest"]
    assert other["jobs"] == one["jobs"]
    assert [job["name"] for job in one["jobs"]] == ["plain.0", "plain.1", "set", "background"]
    for schema in TABLES:
        assert pq.read_table(out / schema.file).equals(pq.read_table(wanted / "one" / schema.file)), schema.name
