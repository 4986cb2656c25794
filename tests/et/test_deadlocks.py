"""NPUs that wait for each other for ever: found with their cycle, and not where everything runs."""

import random

import numpy as np
import pytest

from nadi import et
from nadi.et.checking.check import Sources
from nadi.et.checks import check_traces, deadlocks

REDUCE = et.CollectiveCommType.ALL_REDUCE


@pytest.fixture
def looked(tmp_path):
    """Check traces given as lists of nodes; gives count and examples of deadlocks, with nothing else found wrong."""

    def check(*nodes_of_trace, users=None, examples=None, groups=None, families=None):
        files = []
        for trace, nodes in enumerate(nodes_of_trace):
            files.append(tmp_path / f"t.{trace}.et")
            et.write_trace(files[-1], et.metadata(), nodes)
        users = users or [[npu] for npu in range(len(files))]
        sources = Sources(
            tmp_path,
            tuple(files),
            tuple(np.array(some) for some in users),
            tuple(examples or [-1] * len(files)),
            sum(map(len, users)),
            groups or {},
            families or {},
        )
        sorts = check_traces(sources).groups
        assert {sort.check for sort in sorts} <= {"deadlocks"}
        return [(sort.severity, sort.count, [str(example) for example in sort.examples]) for sort in sorts]

    return check


def reduce(node, group, deps=()):
    return et.coll_node(node, f"in {group}", REDUCE, 8, pg_name=group, deps=deps)


def work(node, deps=()):
    return et.comp_node(node, "work", duration_micros=1, deps=deps)


BOTH = {"a": (0, 1), "b": (0, 1)}
THREE = {"a": (0, 1), "b": (1, 2), "c": (0, 1, 2)}


def test_collectives_of_two_groups_in_crossed_order(looked):
    mine = [reduce(1, "a"), work(2, [1]), reduce(3, "b", [2])]
    crossed = [reduce(1, "b"), reduce(2, "a", [1])]
    ((severity, count, (told,)),) = looked(mine, crossed, groups=BOTH)
    assert (severity, count) == ("error", 1)
    a, b = '(all-reduce of 8 B, group "a")', '(all-reduce of 8 B, group "b")'
    around = [f"NPU 0 node 1 {a}", f"NPU 1 node 2 {a}", f"NPU 1 node 1 {b}", f"NPU 0 node 3 {b}", "NPU 0 node 2 (work)"]
    assert told.endswith(f"t.0.et: node 1: each waits for the next: {' -> '.join(around)} -> NPU 0 node 1")


def test_crossed_order_without_dependencies_or_the_same_order_with_them_is_none(looked):
    assert looked([reduce(1, "a"), reduce(2, "b")], [reduce(1, "b"), reduce(2, "a")], groups=BOTH) == []
    assert looked(*[[reduce(1, "a"), reduce(2, "b", [1])]] * 2, groups=BOTH) == []


def test_receives_before_sends_and_a_collective_between(looked):
    def receive(npu, deps=(), node=1):
        return et.recv_node(node, "r", 1 - npu, npu, 8, deps=deps)

    def send(npu, deps=(), node=2):
        return et.send_node(node, "s", npu, 1 - npu, 8, deps=deps)

    ((_, _, (told,)),) = looked(*([receive(npu), send(npu, [1])] for npu in (0, 1)))
    assert "NPU 0 node 1 (receive from NPU 1) -> NPU 1 node 2 (send to NPU 0) -> NPU 1 node 1 (receive from" in told
    assert looked([receive(0), send(0, [1])], [send(1, node=1), receive(1, [1], node=2)]) == []
    mixed = [[receive(0), reduce(3, "a", [1])], [reduce(3, "a"), send(1, [3])]]
    ((_, _, (told,)),) = looked(*mixed, groups=BOTH)
    assert 'NPU 1 node 2 (send to NPU 0) -> NPU 1 node 3 (all-reduce of 8 B, group "a") -> NPU 0 node 3' in told


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
