"""Checks of traces beside those of tests/records/transcripts/trace-checks.txt: damaged, shared and real traces."""

from pathlib import Path

import numpy as np
import pytest

from nadi import et
from nadi.et.checking.finding import SEVERITIES
from nadi.et.checking.sources import Sources
from nadi.et.checks import all_checks, check_traces
from nadi.et.schema import Node
from tests.nonempty import nonempty

REDUCE = et.CollectiveCommType.ALL_REDUCE


@pytest.fixture
def checked(tmp_path):
    """Check traces given as lists of nodes, NPU after NPU; gives (check, severity, count, text of the examples)."""

    def check(*nodes_of_npu, users=None, examples=None, **more):
        files = []
        for npu, nodes in enumerate(nodes_of_npu):
            files.append(tmp_path / f"t.{npu}.et")
            et.write_trace(files[-1], et.metadata(), nodes)
        users = [[npu] for npu in range(len(files))] if users is None else users
        sources = Sources(
            path=tmp_path,
            files=tuple(files),
            users=tuple(np.array(u, np.int64) for u in users),
            examples=tuple(examples or [-1] * len(files)),
            npus=more.pop("npus", sum(map(len, users))),
            **more,
        )
        return said(check_traces(sources))

    return check


def said(report):
    return [
        (s.check, s.severity, s.count, " | ".join(str(e).split("t.", 1)[-1] for e in s.examples)) for s in report.groups
    ]


def test_every_check_has_what_the_folder_asks_for():
    assert len(all_checks()) == 14
    for module in nonempty(all_checks().values()):
        assert module.LOOKS_FOR
        assert issubclass(module.TraceCheck, et.checking.check.Check)


def test_a_file_that_is_cut_off_is_told_and_nobody_is_blamed_for_what_it_holds(checked, tmp_path):
    own = [
        [
            et.send_node(1, "to", npu, 1 - npu, 8),
            et.recv_node(2, "from", 1 - npu, npu, 8),
            et.coll_node(3, "y", REDUCE, 8),
        ]
        for npu in (0, 1)
    ]
    checked(*own)
    whole = (tmp_path / "t.1.et").read_bytes()
    (tmp_path / "t.1.et").write_bytes(whole[:-3])
    sources = Sources(tmp_path, (tmp_path / "t.0.et", tmp_path / "t.1.et"), (np.array([0]), np.array([1])), (-1, -1), 2)
    (found,) = said(check_traces(sources))
    assert found[:3] == ("framing", "error", 1)
    assert found[3].startswith("1.et: byte ")
    assert "message of " in found[3]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Node(id=1, name="x"), "node type 0, expected 1 to 7"),
        (et.comp_node(1, "x", attrs=[et.attribute("num_ops", "string", "7")]), "expected an integer"),
    ],
)
def test_nodes_that_make_no_sense_are_told(checked, wrong, says):
    (found,) = checked([wrong])
    assert found[:3] == ("framing", "error", 1)
    assert says in found[3]


def test_sizes_that_are_missing_or_zero(checked):
    missing = et.coll_node(2, "y", REDUCE, 1)
    missing.attr.remove(next(a for a in missing.attr if a.name == "comm_size"))
    own = [et.coll_node(1, "x", REDUCE, 0), missing, et.mem_node(3, "m", et.NodeType.MEM_LOAD_NODE, 0)]
    own += [et.send_node(4, "s", 0, 1, 0), et.coll_node(5, "b", et.CollectiveCommType.BARRIER, 0)]
    other = [et.coll_node(1, "x", REDUCE, 0), missing, et.recv_node(3, "r", 0, 1, 0)]
    other += [et.coll_node(5, "b", et.CollectiveCommType.BARRIER, 0)]
    found = checked(own, other)
    assert [f[:3] for f in found] == [
        ("sizes", "error", 2),
        ("sizes", "error", 2),
        ("sizes", "warning", 1),
        ("sizes", "warning", 2),
    ]
    assert "node 1: all-reduce, expected its bytes" in found[0][3]
    assert "node 3: mem load" in found[2][3]


def test_messages_with_wrong_ends(checked):
    own = [et.send_node(1, "a", 0, 0, 8), et.send_node(2, "b", 0, 9, 8), et.send_node(3, "c", 1, 1, 8)]
    own.append(Node(id=4, name="d", type=et.NodeType.COMM_SEND_NODE, attr=[et.attribute("comm_size", "int64", 8)]))
    found = [f for f in checked(own, [et.recv_node(1, "c", 0, 1, 8)]) if f[0] == "peers"]
    assert [f[1:3] for f in found] == [("error", 1)] * 4
    texts = [f[3] for f in found]
    assert any("node 1: comm_src 0, comm_dst 0, expected another peer" in t for t in texts)
    assert any("node 2: comm_src 0, comm_dst 9, but the traces are of 2 NPUs" in t for t in texts)
    assert any("node 3: comm_src 1, comm_dst 1, but NPU 0 runs it" in t for t in texts)
    assert any("node 4: comm_dst is missing" in t for t in texts)


def test_messages_of_shared_traces_shift(checked):
    """A ring of four NPUs with one trace, written for NPU 1."""
    ring = [et.send_node(1, "s", 1, 2, 8), et.recv_node(2, "r", 0, 1, 8)]
    found = checked(ring, users=[[1, 2]], examples=[1], npus=4)
    assert [f[:3] for f in found] == [("messages", "error", 2), ("ranks", "warning", 2)]
    assert "NPU 0 to NPU 1, tag 0: 0 sends (0 B), but 1 receives" in found[0][3]
    assert "NPU 2 to NPU 3, tag 0: 1 sends" in found[0][3]


def test_families_mean_for_each_npu_its_own_group(checked):
    families = {"tp": ((0, 1), (2, 3))}
    one, other = ([et.coll_node(1, "x", REDUCE, size, pg_name="tp")] for size in (8, 16))
    assert checked(one, other, users=[[0, 1], [2, 3]], families=families) == []
    found = checked(one, other, users=[[0, 2], [1, 3]], families=families)
    assert [f[:3] for f in found] == [("collectives", "error", 2)]


def test_examples_are_bounded_and_counts_are_not(checked):
    (found,) = checked([et.comp_node(i, "x", duration_micros=1, deps=[10**6 + i]) for i in range(1000)])
    assert found[:3] == ("dangling", "error", 1000)
    assert found[3].count(" | ") == 99


def test_real_traces_are_clean_or_have_what_is_known_of_them(shared_data):
    def folder(name, prefix, npus, groups=None):
        files = tuple(Path(shared_data) / name / f"{prefix}.{npu}.et" for npu in range(npus))
        users = tuple(np.array([npu]) for npu in range(npus))
        members = et.read_groups(Path(shared_data) / name / groups) if groups else {}
        return check_traces(Sources(Path(name), files, users, (-1,) * npus, npus, members))

    for found in (
        folder("chakra/gpt_fsdp8", "workload", 8, "workload.json"),
        folder("chakra/dense_dp2tp2pp2", "workload", 8, "workload.json"),
        folder("chakra/microbenchmarks/all_to_all/16npus_1MB", "all_to_all", 16),
    ):
        assert found.is_clean
        assert {sort.severity for sort in found.groups} <= set(SEVERITIES[1:])
    assert folder("chakra/gpt_fsdp8", "workload", 8).count("error") > 0  # without its group file
