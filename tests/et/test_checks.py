"""Checks of traces and group files beside those of tests/records/transcripts/trace-checks.txt."""

import json
import random

import pytest

from nadi import et
from nadi.et.checking.finding import SEVERITIES
from nadi.et.checks import all_checks, deadlocks
from nadi.et.schema import Node
from tests.et.checked import checked
from tests.nonempty import nonempty

REDUCE = et.CollectiveCommType.ALL_REDUCE


@pytest.fixture
def found_in(tmp_path):
    """Check traces given as lists of nodes, NPU after NPU; gives (check, severity, count, text of the examples)."""

    def check(*nodes_of_npu, **more):
        return said(checked(tmp_path, written(tmp_path, nodes_of_npu), **more))

    return check


def written(folder, nodes_of_npu):
    files = [folder / f"t.{npu}.et" for npu in range(len(nodes_of_npu))]
    for file, nodes in zip(files, nodes_of_npu, strict=True):
        et.write_trace(file, et.metadata(), nodes)
    return files


def said(report):
    return [
        (s.check, s.severity, s.count, " | ".join(str(e).split("t.", 1)[-1] for e in s.examples)) for s in report.groups
    ]


def test_every_check_has_what_the_folder_asks_for():
    assert len(all_checks()) == 14
    for module in nonempty(all_checks().values()):
        assert module.LOOKS_FOR
        assert issubclass(module.TraceCheck, et.checking.Check)


def test_a_file_that_is_cut_off_is_told_and_nobody_is_blamed_for_what_it_holds(tmp_path):
    own = [
        [
            et.send_node(1, "to", npu, 1 - npu, 8),
            et.recv_node(2, "from", 1 - npu, npu, 8),
            et.coll_node(3, "y", REDUCE, 8),
        ]
        for npu in (0, 1)
    ]
    files = written(tmp_path, own)
    files[1].write_bytes(files[1].read_bytes()[:-3])
    (found,) = said(checked(tmp_path, files))
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
def test_nodes_that_make_no_sense_are_told(found_in, wrong, says):
    (found,) = found_in([wrong])
    assert found[:3] == ("framing", "error", 1)
    assert says in found[3]


def test_sizes_that_are_missing_or_zero(found_in):
    missing = et.coll_node(2, "y", REDUCE, 1)
    missing.attr.remove(next(a for a in missing.attr if a.name == "comm_size"))
    own = [et.coll_node(1, "x", REDUCE, 0), missing, et.mem_node(3, "m", et.NodeType.MEM_LOAD_NODE, 0)]
    own += [et.send_node(4, "s", 0, 1, 0), et.coll_node(5, "b", et.CollectiveCommType.BARRIER, 0)]
    other = [et.coll_node(1, "x", REDUCE, 0), missing, et.recv_node(3, "r", 0, 1, 0)]
    other += [et.coll_node(5, "b", et.CollectiveCommType.BARRIER, 0)]
    found = found_in(own, other)
    assert [f[:3] for f in found] == [
        ("sizes", "error", 2),
        ("sizes", "error", 2),
        ("sizes", "warning", 1),
        ("sizes", "warning", 2),
    ]
    assert "node 1: all-reduce, expected its bytes" in found[0][3]
    assert "node 3: mem load" in found[2][3]


def test_messages_with_wrong_ends(found_in):
    own = [et.send_node(1, "a", 0, 0, 8), et.send_node(2, "b", 0, 9, 8), et.send_node(3, "c", 1, 1, 8)]
    own.append(Node(id=4, name="d", type=et.NodeType.COMM_SEND_NODE, attr=[et.attribute("comm_size", "int64", 8)]))
    found = [f for f in found_in(own, [et.recv_node(1, "c", 0, 1, 8)]) if f[0] == "peers"]
    assert [f[1:3] for f in found] == [("error", 1)] * 4
    texts = [f[3] for f in found]
    assert any("node 1: comm_src 0, comm_dst 0, expected another peer" in t for t in texts)
    assert any("node 2: comm_src 0, comm_dst 9, but the traces are of 2 NPUs" in t for t in texts)
    assert any("node 3: comm_src 1, comm_dst 1, but NPU 0 runs it" in t for t in texts)
    assert any("node 4: comm_dst is missing" in t for t in texts)


def test_messages_of_shared_traces_shift(found_in):
    """A ring of four NPUs with one trace, written for NPU 1."""
    ring = [et.send_node(1, "s", 1, 2, 8), et.recv_node(2, "r", 0, 1, 8)]
    found = found_in(ring, users=[[1, 2]], examples=[1], npus=4)
    assert [f[:3] for f in found] == [("messages", "error", 2), ("ranks", "warning", 2)]
    assert "NPU 0 to NPU 1, tag 0: 0 sends (0 B), but 1 receives" in found[0][3]
    assert "NPU 2 to NPU 3, tag 0: 1 sends" in found[0][3]


def test_families_mean_for_each_npu_its_own_group(found_in):
    families = {"tp": ((0, 1), (2, 3))}
    one, other = ([et.coll_node(1, "x", REDUCE, size, pg_name="tp")] for size in (8, 16))
    assert found_in(one, other, users=[[0, 1], [2, 3]], families=families) == []
    found = found_in(one, other, users=[[0, 2], [1, 3]], families=families)
    assert [f[:3] for f in found] == [("collectives", "error", 2)]


def test_examples_are_bounded_and_counts_are_not(found_in):
    (found,) = found_in([et.comp_node(i, "x", duration_micros=1, deps=[10**6 + i]) for i in range(1000)])
    assert found[:3] == ("dangling", "error", 1000)
    assert found[3].count(" | ") == 99


def test_real_traces_are_clean_or_have_what_is_known_of_them(shared_data):
    def folder(name, prefix, npus, groups=None):
        files = [shared_data / name / f"{prefix}.{npu}.et" for npu in range(npus)]
        members = et.read_groups(shared_data / name / groups) if groups else {}
        return checked(shared_data / name, files, groups=members)

    for found in (
        folder("chakra/gpt_fsdp8", "workload", 8, "workload.json"),
        folder("chakra/dense_dp2tp2pp2", "workload", 8, "workload.json"),
        folder("chakra/microbenchmarks/all_to_all/16npus_1MB", "all_to_all", 16),
    ):
        assert found.is_clean
        assert {sort.severity for sort in found.groups} <= set(SEVERITIES[1:])
    assert folder("chakra/gpt_fsdp8", "workload", 8).count("error") > 0  # without its group file


@pytest.fixture
def looked(tmp_path):
    """Check traces given as lists of nodes; gives count and examples of deadlocks, with nothing else found wrong."""

    def check(*nodes_of_trace, **more):
        sorts = checked(tmp_path, written(tmp_path, nodes_of_trace), **more).groups
        assert {sort.check for sort in sorts} <= {"deadlocks"}
        return [(sort.severity, sort.count, [str(example) for example in sort.examples]) for sort in sorts]

    return check


def reduce(node, group, deps=()):
    return et.coll_node(node, f"in {group}", REDUCE, 8, pg_name=group, deps=deps)


def work(node, deps=()):
    return et.comp_node(node, "work", duration_micros=1, deps=deps)


BOTH = {"a": (0, 1), "b": (0, 1)}
THREE = {"a": (0, 1), "b": (1, 2), "c": (0, 1, 2)}


def test_a_ring_of_a_shared_trace_waits_unless_somebody_begins(looked):
    def passes(npu):
        return [et.recv_node(1, "r", npu - 1, npu, 8), et.send_node(2, "s", npu, npu + 1, 8, deps=[1])]

    first, last = [et.send_node(1, "s", 0, 1, 8)], [et.recv_node(1, "r", 4, 5, 8)]
    assert looked(first, passes(1), last, users=[[0], [1, 2, 3, 4], [5]], examples=[-1, 1, -1]) == []
    around = [et.recv_node(1, "r", 5, 0, 8), et.send_node(2, "s", 0, 1, 8, deps=[1])]
    closed = [et.recv_node(1, "r", 4, 5, 8), et.send_node(2, "s", 5, 0, 8, deps=[1])]
    ((_, count, (told,)),) = looked(around, passes(1), closed, users=[[0], [1, 2, 3, 4], [5]], examples=[-1, 1, -1])
    assert count == 1
    assert told.count(" -> ") == 12


def test_groups_of_a_family_wait_each_by_itself(looked):
    families = {"x": ((0, 1), (2, 3)), "y": ((0, 1), (2, 3))}
    usual, crossed = [reduce(1, "x"), reduce(2, "y", [1])], [reduce(1, "y"), reduce(2, "x", [1])]
    assert looked(usual, crossed, users=[[0, 1], [2, 3]], families=families) == []
    ((_, count, told),) = looked(usual, crossed, users=[[0, 2], [1, 3]], families=families)
    assert count == 2
    assert ["NPU 0" in text for text in told] != ["NPU 2" in text for text in told]


def ends(traces, groups):
    """Whether all traces come to their end, carried out node by node."""
    done = [set() for _ in traces]
    sent, going = set(), True
    while going:
        ready = [
            [n for n in nodes if n.id not in did and all(d in did for d in n.data_deps)]
            for nodes, did in zip(traces, done, strict=True)
        ]
        finished = []
        for npu, nodes in enumerate(ready):
            for node in nodes:
                kind, key = node.name.split()[0], node.name.split()[1]
                together = all(any(n.name == node.name for n in ready[m]) for m in groups.get(key, ()))
                if kind in {"work", "send"} or (kind == "receive" and key in sent) or (kind == "in" and together):
                    finished.append((npu, node))
        for npu, node in finished:
            done[npu].add(node.id)
            if node.name.startswith("send"):
                sent.add(node.name.split()[1])
        going = bool(finished)
    return all(len(did) == len(nodes) for did, nodes in zip(done, traces, strict=True))


def random_traces(seed):
    """Nodes of three NPUs in random order, most of them after one before; a collective of each group, two messages."""
    rng = random.Random(seed)  # noqa: S311 - a test
    items = [[("in", name) for name, members in THREE.items() if npu in members] for npu in range(3)]
    for tag in range(2):
        source, target = rng.sample(range(3), 2)
        items[source].append(("send", source, target, tag))
        items[target].append(("receive", source, target, tag))
    traces = []
    for some in items:
        rng.shuffle(some)
        nodes = []
        for number, (kind, *said) in enumerate(some, 1):
            deps = [rng.randint(1, number - 1)] if number > 1 and rng.random() < 0.7 else []
            if kind == "in":
                nodes.append(reduce(number, said[0], deps))
            else:
                make = et.send_node if kind == "send" else et.recv_node
                source, target, tag = said
                nodes.append(make(number, f"{kind} {tag}", source, target, 8, tag, deps=deps))
        traces.append(nodes)
    return traces


def test_random_traces_have_a_deadlock_where_they_do_not_come_to_their_end(looked):
    outcomes = []
    for seed in range(60):
        traces = random_traces(seed)
        outcomes.append(ends(traces, THREE))
        assert (looked(*traces, groups=THREE) == []) == outcomes[-1], seed
    assert 15 < sum(outcomes) < 45


def test_more_than_fits_is_not_looked_for_and_told(looked, monkeypatch):
    monkeypatch.setattr(deadlocks, "_MAX_EDGES", 3)
    crossed = [reduce(1, "a"), reduce(2, "b", [1])], [reduce(1, "b"), reduce(2, "a", [1])]
    ((severity, _, (told,)),) = looked(*crossed, groups=BOTH)
    assert (severity, told) == ("note", "more than 3 nodes and dependencies")


def test_a_group_file(tmp_path):
    path = tmp_path / "groups.json"
    path.write_text('{"1": [0, 1, 2], "22": [5, 3]}')
    assert et.read_groups(path) == {"1": (0, 1, 2), "22": (5, 3)}


def test_a_group_file_that_cannot_be_read(tmp_path):
    with pytest.raises(et.TraceError, match=r"groups\.json: No such file"):
        et.read_groups(tmp_path / "groups.json")
    (tmp_path / "binary.json").write_bytes(b'{"\xff": [0]}')
    with pytest.raises(et.TraceError, match=r"binary\.json: 'utf-8' codec"):
        et.read_groups(tmp_path / "binary.json")


def test_the_real_group_files(shared):
    paths = sorted((shared / "data" / "chakra").glob("*/workload.json"))
    assert len(paths) == 2
    for path in paths:
        groups = et.read_groups(path)
        assert groups == {name: tuple(npus) for name, npus in json.loads(path.read_text()).items()}
        for trace in nonempty(path.parent.glob("*.et")):
            assert set(et.read_trace(trace).group_names) <= {"", *groups}


def metadata_groups(node):
    return et.table_of(et.metadata(), [node]).metadata_groups


def test_groups_of_a_metadata_node_by_attributes():
    assert metadata_groups(et.group_node(1, "g", "3", [2, 0])) == {"3": (2, 0)}
    assert metadata_groups(et.group_node(1, "g", "0", [0, 1])) == {}


@pytest.mark.parametrize("form", ["[['{}']]", "['{}']", "[[{}]]"])
def test_groups_of_pytorch(form):
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4},
        {"pg_name": "1", "ranks": [0, 2]},
        {"pg_name": "2", "ranks": []},
    ]
    node = Node(id=1, name="## process_group:init ##", type=et.NodeType.METADATA_NODE)
    node.inputs.values = form.format(json.dumps(groups))
    assert metadata_groups(node) == {"1": (0, 2), "2": ()}


@pytest.mark.parametrize("values", ["", "[]", '["text"]', '[["[{\\"pg_name\\": \\"1\\", \\"ra"]]', "}][{"])
def test_other_metadata_defines_no_groups(values):
    node = Node(id=1, name="other", type=et.NodeType.METADATA_NODE)
    node.inputs.values = values
    assert metadata_groups(node) == {}


def test_a_wrong_process_group_is_an_error():
    node = Node(id=4, type=et.NodeType.METADATA_NODE)
    node.inputs.values = '[[{"pg_name": 1, "ranks": [0]}]]'
    with pytest.raises(et.TraceError, match=r"node 4: process group .*expected pg_name"):
        metadata_groups(node)
    node = Node(id=4, type=et.NodeType.METADATA_NODE, attr=[
        et.attribute("pg_name", "string", "1"), et.attribute("ranks", "string", "0,1"),
    ])  # fmt: skip
    with pytest.raises(et.TraceError, match="node 4: attribute ranks is string_val '0,1', expected a list of integers"):
        metadata_groups(node)


def test_a_group_file_of_many_brackets_is_one_line(tmp_path):
    (tmp_path / "groups.json").write_text("[" * 100_000)
    with pytest.raises(et.TraceError, match=r"^\S+groups\.json: .*$"):
        et.read_groups(tmp_path / "groups.json")
