"""What traces and files bring along, schedules and split sizes, on two ranks: the digest and the files of one."""

import json

import numpy as np
import pytest

from nadi import et
from nadi.workload import collectives
from nadi.workload.collectives.custom import to_msccl
from tests import needs
from tests.workload import msccl_files

NPUS = 8
SPEC = "ring:npus=8,rate=100Gbps,delay=1us"
MATRIX = np.random.default_rng(4).integers(0, 9, (NPUS, NPUS)) * 512
HALVES = {"low": [0, 2, 4, 6], "high": [1, 3, 5, 7]}


def run_file(folder, nodes_of_npu, algorithms):
    for npu in range(NPUS):
        et.write_trace(folder / f"trace.{npu}.et", et.metadata(), nodes_of_npu(npu))
    (folder / "groups.json").write_text(json.dumps(HALVES))
    table = "".join(f'{kind} = "{algorithm}"\n' for kind, algorithm in algorithms.items())
    run = folder / "run.toml"
    run.write_text(
        f'[workload]\ntraces = "trace"\ngroups = "groups.json"\n[topology]\nspec = "{SPEC}"\n'
        f"[system.collectives]\n{table}"
    )
    return run


def same_on_two_ranks(nadi, run):
    """Runs alone and on two ranks; the digest of both."""
    digests = set()
    for ranks in (None, 2):
        out = run.parent / f"out.{ranks}"
        done = nadi(ranks, "run", run, "--out", out, "-q")
        assert done.returncode == 0, done.stderr
        digests.add(json.loads((out / "summary.json").read_text())["digest"])
    alone, two = ((run.parent / f"out.{ranks}" / "collectives.parquet").read_bytes() for ranks in (None, 2))
    assert alone == two
    (digest,) = digests
    return digest


def write_algorithms(folder):
    """An all-reduce and an all-gather as MSCCL's XML, an all-to-all as Chakra traces."""
    (folder / "ring.xml").write_text(msccl_files.fused_ring(NPUS))
    own = to_msccl(collectives.plan("all-gather", "ring", NPUS), "all-gather", "ring")
    (folder / "gather.xml").write_text(own)
    for me in range(NPUS):
        others = [p for p in range(NPUS) if p != me]
        sends = [et.send_node(p, "s", me, p, 512) for p in others]
        receives = [et.recv_node(NPUS + p, "r", p, me, 512) for p in others]
        et.write_trace(folder / f"swap.{me}.et", et.metadata(), sends + receives)


@needs.ranks
def test_algorithms_of_files(nadi, tmp_path):
    write_algorithms(tmp_path)
    kinds = et.CollectiveCommType

    def nodes(npu):  # noqa: ARG001 - all alike
        return [
            et.coll_node(1, "a", kinds.ALL_REDUCE, 40_000),
            et.coll_node(2, "b", kinds.ALL_GATHER, 5000, deps=[1]),
            et.coll_node(3, "c", kinds.ALL_TO_ALL, 4096, deps=[2]),
        ]

    algorithms = {
        "all-reduce": "custom:file=ring.xml",
        "all-gather": "custom:file=gather.xml",
        "all-to-all": "custom:file=swap,size=4KiB",
    }
    same_on_two_ranks(nadi, run_file(tmp_path, nodes, algorithms))


@needs.ranks
@pytest.mark.parametrize("algorithm", ["direct", "pairwise"])
def test_split_sizes(nadi, tmp_path, algorithm):
    """One all-to-all of all, and one of each half, whose members are on both ranks."""
    kind = et.CollectiveCommType.ALL_TO_ALL

    def nodes(npu):
        half = HALVES["high" if npu % 2 else "low"]
        part, column = MATRIX[npu, half], MATRIX[half, npu]
        return [
            et.coll_node(1, "a", kind, int(MATRIX[npu].sum()), in_split_size=MATRIX[npu].tolist()),
            et.coll_node(
                *(2, "b", kind, int(part.sum())),
                in_split_size=part.tolist(),
                out_split_size=column.tolist(),
                pg_name="high" if npu % 2 else "low",
                deps=[1],
            ),
        ]

    same_on_two_ranks(nadi, run_file(tmp_path, nodes, {"all-to-all-v": algorithm}))


@needs.ranks
def test_members_on_other_ranks_that_disagree(nadi, tmp_path):
    kind = et.CollectiveCommType.ALL_TO_ALL
    columns = MATRIX.T.copy()
    columns[6, 1] += 512

    def nodes(npu):
        row, column = MATRIX[npu].tolist(), columns[npu].tolist()
        return [et.coll_node(1, "a", kind, sum(row), in_split_size=row, out_split_size=column)]

    run = run_file(tmp_path, nodes, {})
    for ranks in (None, 2):
        done = nadi(ranks, "run", run, "--out", tmp_path / "out", "-q")
        assert done.returncode == 2
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("nadi: error")]
        assert line.endswith(
            f"trace.6.et: node 1: out_split_size says {columns[6, 1]} B from member 1, expected the {MATRIX[1, 6]} B "
            "of its in_split_size"
        )
