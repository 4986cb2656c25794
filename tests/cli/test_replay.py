"""`nadi trace replay`: every kind of operation is done by ranks of MPI and of gloo, in an order that cannot hang."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nadi import et
from nadi.studies.replay.player import play, read_traces, steps_of
from tests import needs
from tests.nonempty import nonempty

KIND = et.CollectiveCommType
SIZE = 24_000
COLLECTIVES = [kind for kind in KIND if kind is not KIND.REDUCE_SCATTER_BLOCK]


def nodes_of(rank, ranks):
    """All kinds over all ranks, then in the group "back", then an uneven all-to-all and a ring of messages."""
    nodes = [et.comp_node(1, "forward", duration_micros=2000)]
    for number, kind in enumerate(COLLECTIVES, 10):
        nodes.append(et.coll_node(number, f"all {kind.name}", kind, SIZE, deps=[nodes[-1].id]))
    if rank in {0, ranks - 1}:
        for number, kind in enumerate(COLLECTIVES, 30):
            nodes.append(et.coll_node(number, f"back {kind.name}", kind, SIZE, pg_name="back", deps=[1]))
    sent = [1 + (rank + member) % 3 for member in range(ranks)]
    came = [1 + (rank + member) % 3 for member in range(ranks)]
    uneven = {"in_split_size": [4 * size for size in sent], "out_split_size": [4 * size for size in came]}
    nodes.append(et.coll_node(60, "uneven", KIND.ALL_TO_ALL, 4 * sum(sent), deps=[nodes[-1].id], **uneven))
    nodes.append(et.send_node(61, "to the next", rank, (rank + 1) % ranks, 4096, 3, deps=[60]))
    nodes.append(et.recv_node(62, "from before", (rank - 1) % ranks, rank, 4096, 3, deps=[60]))
    nodes.append(et.comp_node(63, "end", duration_micros=10, deps=[61, 62]))
    return nodes


def write(folder, ranks):
    """Traces and the file of groups; the prefix."""
    for rank in range(ranks):
        et.write_trace(folder / f"trace.{rank}.et", et.metadata(), nodes_of(rank, ranks))
    (folder / "groups.json").write_text(f'{{"back": [{ranks - 1}, 0]}}')
    return folder / "trace"


ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).parent / "mpiexec"
TIMEOUT_S = 240


def replayed(launcher, *arguments):
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("NADI_DEBUG", "PMI"))}
    command = [*launcher, sys.executable, "-m", "nadi", "trace", "replay", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=usual | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def check(found, out, ranks):
    """All operations are there, and the measured traces hold times of them all."""
    counts = {}
    for row in nonempty(found["operations"]):
        counts[row["kind"]] = counts.get(row["kind"], 0) + row["count"]
        assert row["transfer_ps"] > 0
    names = {kind.name.lower().replace("_", "-") for kind in COLLECTIVES}
    assert counts == dict.fromkeys(names, 2) | {"all-to-all": 3, "send": ranks, "recv": ranks}
    for rank in range(ranks):
        table = et.read_trace(out / f"trace.{rank}.et")
        is_done = table.type >= et.NodeType.COMM_SEND_NODE
        assert (table.duration_micros[is_done] > 0).all()
        first, last = np.flatnonzero(is_done)[[0, -1]]
        assert table.start_time_micros[first] < table.start_time_micros[last]


@pytest.mark.slow
@pytest.mark.busy
@needs.ranks
def test_over_mpi_by_three_ranks(nadi, tmp_path):
    """Beside a simulation of the same traces."""
    prefix, run = write(tmp_path, 3), tmp_path / "run.toml"
    run.write_text(
        '[workload]\ntraces = "trace"\ngroups = "groups.json"\n[network]\nfidelity = "analytical"\n'
        '[topology]\nspec = "ring:npus=3,rate=8Gbps,delay=1us"\n'
    )
    nadi.ok("run", run, "--out", tmp_path / "out", "-q")
    arguments = [prefix, "--groups", tmp_path / "groups.json", "-o", tmp_path / "real", "--against", tmp_path / "out"]
    done = replayed([MPIEXEC, "-n", "3"], *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    check(found, tmp_path / "real", 3)
    assert found["against"]["collectives"]["count"] == 2 * len(COLLECTIVES) + 1
    assert found["against"]["messages"]["count"] == 3
    assert "compute" not in {row["kind"] for row in found["against"]["kinds"]}


@pytest.mark.slow
@pytest.mark.busy
def test_over_gloo_by_two_ranks_that_sleep(tmp_path):
    pytest.importorskip("torch")
    prefix = write(tmp_path, 2)
    arguments = [prefix, "--over", "gloo", "--ranks", "2", "--groups", tmp_path / "groups.json", "--compute", "sleep"]
    done = replayed([], *arguments, "-o", tmp_path / "real", "--json")
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout), tmp_path / "real", 2)
    table = et.read_trace(tmp_path / "real" / "trace.0.et")
    assert table.duration_micros[0] >= 2000
    after = table.start_time_micros[1] - table.start_time_micros[0]
    assert after >= 2000


class Recorder:
    """Operations are done when they are asked for the second time; keeps their order."""

    def __init__(self):
        self.begun = []

    def begin(self, operation):
        self.begun.append(operation)
        return [0]

    def is_done(self, asked):
        asked[0] += 1
        return asked[0] > 1


@pytest.mark.parametrize("rank", range(3))
def test_operations_begin_in_the_order_of_the_trace(tmp_path, rank):
    traces, program = read_traces(
        write(tmp_path, 3), 3, tmp_path / "groups.json", strict=True, all_gather_size="contribution"
    )
    steps, recorder = steps_of(rank, traces, program), Recorder()
    times = play(steps, recorder, sleeps=False)
    assert len(recorder.begun) == len(steps.operations)
    kinds = [operation.kind for operation in recorder.begun if len(operation.members) == 3]
    assert kinds == [kind.name.lower().replace("_", "-") for kind in COLLECTIVES] + ["all-to-all"]
    uneven = next(operation for operation in recorder.begun if operation.send_bytes)
    assert uneven.send_bytes == tuple(4 * (1 + (rank + member) % 3) for member in range(3))
    assert uneven.recv_bytes == uneven.send_bytes  # the matrix is symmetric
    ends = times.start_ns + times.duration_ns
    rows = np.repeat(np.arange(len(steps.table)), np.diff(steps.table.dep_ptr))
    assert len(rows) > 0
    assert (times.start_ns[rows] >= ends[steps.table.dep]).all()


@pytest.mark.parametrize(("options", "says"), [(("--ranks", 3, "--groups"), "no trace"), (("--ranks", 2), "back")])
def test_traces_and_groups_that_lack_ranks_are_one_line(nadi, tmp_path, options, says):
    groups = [tmp_path / "groups.json"] * (options[-1] == "--groups")
    assert says in nadi.refuse("trace", "replay", write(tmp_path, 2), "--over", "gloo", *options, *groups).err
