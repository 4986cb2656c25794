"""Every check of et.checks: small traces with one thing wrong, what it says, and what it does not say."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from nadi import et
from nadi.et.checking.check import Sources
from nadi.et.checking.finding import SEVERITIES
from nadi.et.checks import all_checks, check_traces
from nadi.et.schema import Node
from nadi.inputs.limits import LONGEST_PS
from tests.nonempty import nonempty

REDUCE, GATHER, EXCHANGE = (
    et.CollectiveCommType.ALL_REDUCE,
    et.CollectiveCommType.ALL_GATHER,
    et.CollectiveCommType.ALL_TO_ALL,
)


@pytest.fixture
def checked(tmp_path):
    """Check traces given as lists of nodes, NPU after NPU; gives (check, severity, count, text of the examples)."""

    def check(*nodes_of_npu, users=None, examples=None, metadata=None, **more):
        files = []
        for npu, nodes in enumerate(nodes_of_npu):
            files.append(tmp_path / f"t.{npu}.et")
            et.write_trace(files[-1], metadata or et.metadata(), nodes)
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


def times(node, start, duration):
    node.start_time_micros, node.duration_micros = start, duration
    return node


def test_every_check_has_what_the_folder_asks_for():
    assert len(all_checks()) == 14
    for module in nonempty(all_checks().values()):
        assert module.LOOKS_FOR
        assert issubclass(module.TraceCheck, et.checking.check.Check)


def test_nothing_is_said_of_traces_in_which_nothing_is_wrong(checked):
    own = [
        [
            et.group_node(1, "groups", "tp", [0, 1]),
            et.comp_node(2, "x", duration_micros=3, deps=[1]),
            et.coll_node(3, "y", REDUCE, 64, deps=[2]),
            et.coll_node(4, "z", GATHER, 64, pg_name="tp", deps=[3]),
            et.send_node(5, "to", npu, 1 - npu, 8, 3, deps=[2]),
            et.recv_node(6, "from", 1 - npu, npu, 8, 3, deps=[2]),
            et.coll_node(7, "b", et.CollectiveCommType.BARRIER, 0, deps=[5, 6]),
        ]
        for npu in (0, 1)
    ]
    assert checked(*own) == []


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


def test_all_ids_that_stand_twice(checked):
    found = checked([et.comp_node(i, "x", duration_micros=1) for i in (1, 2, 1, 3, 2, 1)])
    assert [f[:3] for f in found] == [("duplicates", "error", 3)]
    assert "place 2 " in found[0][3]
    assert "node 2: the id occurs again at place 4" in found[0][3]


def test_all_dependencies_that_dangle_data_and_control_apart(checked):
    found = checked([et.comp_node(1, "x", duration_micros=1, deps=[7, 8], ctrl_deps=[9])])
    assert [f[:3] for f in found] == [("dangling", "error", 1), ("dangling", "error", 2)]
    assert found[0][3] == "0.et: node 1: depends on node 9 (control)"
    assert found[1][3] == "0.et: node 1: depends on node 7 (data) | 0.et: node 1: depends on node 8 (data)"


def test_cycles_are_counted_and_the_path_is_a_shortest_one(checked):
    waits = {1: [3, 2], 2: [1], 3: [2], 4: [], 5: [6], 6: [7], 7: [5], 8: [8]}
    found = checked([et.comp_node(i, "x", duration_micros=1, deps=deps) for i, deps in waits.items()])
    assert [f[:3] for f in found] == [("cycles", "error", 3)]
    paths = [text.split("cycle ")[1] for text in found[0][3].split(" | ")]
    assert paths == ["1 -> 2 -> 1", "5 -> 6 -> 7 -> 5", "8 -> 8"]


def test_cycles_of_control_dependencies_are_told_as_such(checked):
    found = checked(
        [et.comp_node(1, "x", duration_micros=1, ctrl_deps=[2]), et.comp_node(2, "y", duration_micros=1, deps=[1])]
    )
    assert found == [("cycles", "error", 1, "0.et: node 1: dependency cycle 1 -> 2 -> 1")]


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


def test_computations_that_take_no_time(checked):
    own = [et.comp_node(1, "a"), et.comp_node(2, "b", is_cpu_op=True), et.comp_node(3, "c", num_ops=7, tensor_size=1)]
    own += [et.comp_node(4, "d", duration_micros=LONGEST_PS // 10**6 + 1)]
    own += [et.comp_node(5, "e", duration_micros=LONGEST_PS // 10**6)]
    found = checked(own)
    assert [f[:3] for f in found] == [
        ("durations", "error", 1),
        ("durations", "warning", 1),
        ("durations", "note", 1),
    ]
    assert "node 4: duration_micros is 1000000000001, expected 1000000000000 at most" in found[0][3]
    assert "node 1: a: no duration" in found[1][3]


def test_groups_that_nobody_knows_and_members_that_do_not_fit(checked):
    one = [et.coll_node(1, "x", REDUCE, 8, pg_name="7")]
    assert [f[:3] for f in checked(one, one)] == [("groups", "error", 2)]
    found = checked(one, one, groups={"7": (0, 5)}, groups_file="g.json")
    assert {f[:3] for f in found} == {
        ("groups", "error", 1),  # NPU 1 is no member, NPU 5 does not exist
        ("collectives", "error", 1),
    }
    assert any("NPU 1 is not one of its 2 members" in f[3] for f in found)
    assert any("member NPU 5, but the traces are of 2 NPUs" in f[3] for f in found)
    assert checked(one, [et.comp_node(1, "x", duration_micros=1)], groups={"7": (0,)})[0][:3] == ("groups", "note", 1)


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


def test_messages_without_counterpart_by_tag_count_bytes_and_order(checked):
    sends = [et.send_node(i, "s", 0, 1, size, tag) for i, (size, tag) in enumerate([(8, 1), (8, 2), (16, 2), (4, 3)])]
    takes = [et.recv_node(i, "r", 0, 1, size, tag) for i, (size, tag) in enumerate([(16, 2), (8, 2), (5, 3)])]
    (found,) = checked(sends, takes)
    assert found[:3] == ("messages", "error", 1)
    first, second, third = found[3].split(" | ")
    assert "node 0: NPU 0 to NPU 1, tag 1: 1 sends (8 B), but 0 receives (0 B)" in first
    assert second.endswith("node 0); the same sizes occur in another order")
    assert "send 0 has 8 B, but receive 0 16 B" in second
    assert "tag 3: send 0 has 4 B, but receive 0 5 B" in third


def test_messages_of_shared_traces_shift(checked):
    """A ring of four NPUs with one trace, written for NPU 1."""
    ring = [et.send_node(1, "s", 1, 2, 8), et.recv_node(2, "r", 0, 1, 8)]
    found = checked(ring, users=[[1, 2]], examples=[1], npus=4)
    assert [f[:3] for f in found] == [("messages", "error", 2), ("ranks", "warning", 2)]
    assert "NPU 0 to NPU 1, tag 0: 0 sends (0 B), but 1 receives" in found[0][3]
    assert "NPU 2 to NPU 3, tag 0: 1 sends" in found[0][3]


@pytest.mark.parametrize(
    ("mine", "others", "says"),
    [
        ([(REDUCE, 8)], [(REDUCE, 16)], "collective 0 on NPU 0 is all-reduce of 8 B, but on NPU 1 all-reduce of 16 B"),
        ([(REDUCE, 8)], [(GATHER, 8)], "is all-reduce of 8 B, but on NPU 1 all-gather of 8 B"),
        ([(REDUCE, 8), (GATHER, 8)], [(GATHER, 8), (REDUCE, 8)], "; both issue the same ones in another order"),
        ([(REDUCE, 8)] * 2, [(REDUCE, 8)], "collective 1: NPU 0 issues 2 of them, but NPU 1 1"),
        ([(REDUCE, 8)], [], "the first of 1, but member NPU 1 has a trace without one"),
    ],
)
def test_members_that_issue_other_collectives(checked, mine, others, says):
    own = [[et.coll_node(i, "x", kind, size) for i, (kind, size) in enumerate(of)] for of in (mine, others)]
    (found,) = checked(*own)
    assert found[:3] == ("collectives", "error", 1)
    assert says in found[3]


def test_a_member_without_a_trace_is_told_with_the_group(checked):
    found = checked([et.coll_node(1, "x", REDUCE, 8)], npus=3)
    assert [f[:3] for f in found] == [("collectives", "error", 1), ("ranks", "warning", 2)]
    assert "but member NPU 1 has no trace" in found[0][3]


def test_families_mean_for_each_npu_its_own_group(checked):
    families = {"tp": ((0, 1), (2, 3))}
    one, other = ([et.coll_node(1, "x", REDUCE, size, pg_name="tp")] for size in (8, 16))
    assert checked(one, other, users=[[0, 1], [2, 3]], families=families) == []
    found = checked(one, other, users=[[0, 2], [1, 3]], families=families)
    assert [f[:3] for f in found] == [("collectives", "error", 2)]


def test_split_sizes_that_do_not_add_up(checked):
    def exchange(size, sends, takes):
        return [et.coll_node(1, "x", EXCHANGE, size, in_split_size=sends, out_split_size=takes)]

    assert checked(exchange(12, [4, 8], [4, 2]), exchange(4, [2, 2], [8, 2])) == []
    (found,) = checked(exchange(12, [4, 8], [4, 2]), exchange(4, [2, 2], [7, 2]))
    assert found[:3] == ("splits", "error", 1)
    (found,) = checked(exchange(10, [1, 2], []), exchange(10, [5, 5], []))
    assert (found[:3], "in_split_size has 1 of 3 in comm_size 10" in found[3]) == (("splits", "error", 1), True)
    (found,) = checked(exchange(12, [4, 4, 4], []), exchange(10, [5, 5], []))
    assert (found[:3], "3 split sizes, but the group has 2 members" in found[3]) == (("splits", "error", 1), True)


def test_clocks_of_which_one_cannot_be_right(checked):
    def own(npu, start):
        received = times(et.recv_node(3, "r", 0, 1, 8), start + 20, 5)
        sent = times(et.send_node(3, "s", 0, 1, 8), start + 20, 5)
        return [times(et.coll_node(1, "x", REDUCE, 8), start, 10), (sent, received)[npu]]

    assert checked(own(0, 100), own(1, 108)) == []
    collective, message = checked(own(0, 150), own(1, 100))
    assert collective[:3] == message[:3] == ("clocks", "warning", 1)
    assert "collective 0: NPU 1 ends it 40 us before NPU 0 begins it" in collective[3]
    assert "message 0 is received 45 us before its send begins" in message[3]


def test_of_one_file_alone_nothing_is_said_about_its_peers(tmp_path):
    file = tmp_path / "t.0.et"
    et.write_trace(file, et.metadata(), [et.send_node(1, "s", 0, 1, 8), et.coll_node(2, "x", REDUCE, 8)])
    alone = Sources(tmp_path, (file,), (np.array([0]),), (-1,), 2**19, is_complete=False)
    assert check_traces(alone).groups == []
    assert check_traces(dataclasses.replace(alone, npus=2, is_complete=True)).count("error") == 2


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
