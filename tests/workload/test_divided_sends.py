"""Messages over several NICs: a program whose sends are divided, against one built part by part, and back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.et import comp_node, metadata, recv_node, send_node, table_of
from nadi.inputs.limits import MAX_EQUAL_MESSAGES
from nadi.topologies import build
from nadi.workload import CollectiveSettings, ComputeModel, WorkloadError, build_program
from nadi.workload.node_kinds import SEND
from nadi.workload.program.program import divided, joined
from nadi.workload.program.sends import _check_numbers
from nadi.workload.shape import stripes_between
from nadi.workload.trace_sets.trace_set import TraceView
from tests.budgets import bounded
from tests.pdes.test_places import GBPS, planes

KIB = 1024


@st.composite
def traces(draw):
    """Nodes of four NPUs, computation and messages in a random order with random parents, and NICs of one NPU."""
    nodes = [[] for _ in range(4)]

    def parents(npu):
        return draw(st.lists(st.sampled_from(range(len(nodes[npu]))), unique=True, max_size=3)) if nodes[npu] else []

    for _ in range(draw(st.integers(1, 12))):
        src, dst = draw(st.permutations(range(4)))[:2]
        size, tag = draw(st.sampled_from([0, 1, 3, 1000, 7 * KIB])), draw(st.integers(0, 1))
        if draw(st.booleans()):
            nodes[src].append(comp_node(len(nodes[src]), "c", duration_micros=1, deps=parents(src)))
        deps = parents(src), parents(dst)
        nodes[src].append(send_node(len(nodes[src]), "s", src, dst, size, tag, deps=deps[0]))
        nodes[dst].append(recv_node(len(nodes[dst]), "r", src, dst, size, tag, deps=deps[1]))
    return nodes, draw(st.sampled_from([(400,), (200, 200), (300, 100), (100, 100, 100)]))


def program_of(nodes, graph, **settings):
    tables = [table_of(metadata(), own, f"t.{npu}.et") for npu, own in enumerate(nodes)]
    npus = len(nodes)
    return build_program(
        tables, range(npus), npus, {}, ComputeModel("trace"), CollectiveSettings(**settings), fabric=graph
    )


def by_hand(program, npu):
    """Rows of an NPU of the divided program, in plain Python: (whole row, kind, bytes, peer, tag, seq), parents."""
    trace = program.trace_of_npu[npu]
    begin, end = program.trace_ptr[trace : trace + 2].tolist()
    parts = program.node_parts[begin:end].tolist()
    first = [sum(parts[:row]) for row in range(len(parts) + 1)]
    rows, parents = [], [set() for _ in range(first[-1])]
    for row in range(len(parts)):
        at = begin + row
        kind, size, peer, tag, seq = (
            int(getattr(program, f"node_{name}")[at]) for name in ("kind", "bytes", "peer", "tag", "seq")
        )
        for part in range(parts[row]):
            cut = [size * p // parts[row] for p in (part, part + 1)]
            number = seq * parts[row] + part if kind in {3, 4} else seq
            rows.append((row, kind, cut[1] - cut[0], peer, tag, number))
            for child in program.child[program.child_ptr[at] : program.child_ptr[at + 1]].tolist():
                for of_child in range(first[child], first[child + 1]):
                    parents[of_child].add(first[row] + part)
    return rows, parents


@bounded(200)
@given(traces())
def test_a_divided_program_is_the_one_of_plain_python(case):
    nodes, nics = case
    program = program_of(nodes, planes(4, *(rate * GBPS for rate in nics), hosts=4))
    stripes = {1: 1, 2: 4 if nics == (300, 100) else 2, 3: 3}[len(nics)]
    is_message = program.node_kind >= SEND
    assert set(program.node_parts[is_message].tolist()) <= {stripes}
    assert set(program.node_parts[~is_message].tolist()) <= {1}
    cut = divided(program)
    assert (cut is program) == (stripes == 1 or not is_message.any())
    for npu in range(4):
        rows, parents = by_hand(program, npu)
        trace = cut.trace_of_npu[npu]
        begin, end = cut.trace_ptr[trace : trace + 2].tolist()
        whole = cut.whole_row[begin:end].tolist() if len(cut.whole_row) else list(range(end - begin))
        columns = (getattr(cut, f"node_{name}")[begin:end].tolist() for name in ("kind", "bytes", "peer", "tag", "seq"))
        assert list(zip(whole, *columns, strict=True)) == rows
        found = [set() for _ in rows]
        for row in range(len(rows)):
            for child in cut.child[cut.child_ptr[begin + row] : cut.child_ptr[begin + row + 1]].tolist():
                assert row not in found[child]
                found[child].add(row)
        assert found == parents
        assert cut.node_deps[begin:end].tolist() == [len(own) for own in parents]
        keys = cut.recv_key[cut.recv_ptr[trace] : cut.recv_ptr[trace + 1]]
        assert np.all(keys[1:] > keys[:-1])
        received = cut.recv_node[cut.recv_ptr[trace] : cut.recv_ptr[trace + 1]].tolist()
        assert sorted(received) == [row for row, (_, kind, *_) in enumerate(rows) if kind == SEND + 1]


@bounded(100)
@given(traces(), st.integers(0, 2**32 - 1))
def test_rows_are_joined_as_in_plain_python(case, seed):
    nodes, nics = case
    program = program_of(nodes, planes(4, *(rate * GBPS for rate in nics), hosts=4))
    cut, random = divided(program), np.random.default_rng(seed)
    lengths = np.diff(cut.trace_ptr)[cut.trace_of_npu]
    lengths[random.integers(4)] = 0  # as of an NPU of another rank
    ptr = np.append(0, np.cumsum(lengths))
    start = random.integers(0, 9, ptr[-1])
    finish = np.where(random.integers(4, size=ptr[-1]) == 0, -1, start + random.integers(0, 9, ptr[-1]))
    found = joined(program, ptr, start, finish)
    at = 0
    for npu in range(4):
        rows = by_hand(program, npu)[0] if lengths[npu] else []
        wholes = dict.fromkeys(row[0] for row in rows)
        own = [[i for i, row in enumerate(rows, int(ptr[npu])) if row[0] == whole] for whole in wholes]
        assert found[0][npu] == at
        for parts in own:
            assert found[1][at] == min(start[parts])
            assert found[2][at] == (max(finish[parts]) if min(finish[parts]) >= 0 else -1)
            at += 1
    assert found[0][4] == at == len(found[1]) == len(found[2])


@pytest.mark.parametrize(
    ("spec", "pairs", "stripes"),
    [
        ("alibaba-hpn:gpus=32", [(0, 1), (0, 8), (9, 24)], [1, 2, 2]),
        ("dgx-h100:npus=16", [(0, 1), (0, 8)], [1, 1]),
        ("torus:sizes=4x4", [(0, 1), (0, 5)], [1, 1]),
        ("mi300x-8", [(0, 7), (3, 4)], [1, 1]),
    ],
)
def test_stripes_are_those_of_the_nics_that_lead_there(spec, pairs, stripes):
    graph = build(spec)
    src, dst = np.array(pairs).T
    assert stripes_between(graph, src, dst).tolist() == stripes


def test_messages_stay_whole_if_the_settings_say_so():
    nodes = [[send_node(0, "s", 0, 1, KIB, 0)], [recv_node(0, "r", 0, 1, KIB, 0)]]
    graph = planes(2, 200 * GBPS, 200 * GBPS)
    assert program_of(nodes, graph, divides_sends=False).node_parts.tolist() == [1, 1]
    assert program_of(nodes, graph).node_parts.tolist() == [2, 2]


def test_too_many_messages_of_a_tag_are_refused():
    view = TraceView(table_of(metadata(), [send_node(7, "s", 0, 1, KIB, 0)], "t.0.et"))
    view.messages = replace(view.messages, seq=np.array([MAX_EQUAL_MESSAGES // 4]))
    with pytest.raises(WorkloadError, match=r"t\.0\.et: node 7: message 262,144 of this peer and tag, in 4 parts"):
        _check_numbers(view, np.array([4]))
    view.messages.seq[:] -= 1
    _check_numbers(view, np.array([4]))
