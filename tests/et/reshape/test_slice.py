"""A slice keeps what was before what, and partners together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi import et
from nadi.et.order import bridge
from nadi.et.reshape import Selection, find_files, slice_traces
from nadi.et.schema import Node
from tests.budgets import bounded


def before(parents, rows):
    """Pairs (u, v) of which v waits for u, directly or not, by plain search."""
    found = set()
    for row in rows:
        left = list(parents.get(row, ()))
        while left:
            other = left.pop()
            if (other, row) not in found:
                found.add((other, row))
                left.extend(parents.get(other, ()))
    return found


@bounded(200)
@given(st.lists(st.tuples(st.sets(st.integers(0, 30), max_size=4), st.booleans()), max_size=25), st.booleans())
def test_what_stays_waits_for_what_it_waited_for(rows, backwards):
    n = len(rows)
    ids = [n - 1 - i if backwards else i for i in range(n)]
    nodes = [
        et.comp_node(ids[i], "c", deps=[ids[d] for d in deps if d < i], ctrl_deps=[ids[d] for d in deps if d < i - 3])
        for i, (deps, _) in enumerate(rows)
    ]
    table = et.table_of(et.metadata(), nodes)
    keep = np.array([kept for _, kept in rows], np.bool_)
    bridged = bridge(table, keep)
    parents = {i: set(table.dep[table.dep_ptr[i] : table.dep_ptr[i + 1]].tolist()) for i in range(n)}
    stays = set(np.flatnonzero(keep).tolist())
    assert set(bridged.parents) == stays  # so few need no joints
    assert before(bridged.parents, stays) == {(a, b) for a, b in before(parents, stays) if a in stays}


def test_many_to_many_is_joined(tmp_path):
    nodes = [et.comp_node(i, "in", duration_micros=1) for i in range(40)]
    nodes += [et.comp_node(40, "hub", duration_micros=9, deps=range(40), attrs=[et.attribute("x", "int32", 1)])]
    nodes += [et.comp_node(41 + i, "out", deps=[40]) for i in range(40)]
    et.write_trace(tmp_path / "t.0.et", et.metadata(), nodes)
    (tmp_path / "out").mkdir()
    (said,) = slice_traces(find_files(tmp_path / "t"), tmp_path / "out", Selection(names=("in", "out")))
    table = et.read_trace(tmp_path / "out" / "t.0.et", keep_others=True)
    assert (said.kept, said.joints) == (81, 1)
    hub = table.node_id.tolist().index(40)
    assert (table.type[hub], table.duration_micros[hub]) == (et.NodeType.METADATA_NODE, 0)
    assert table.other[hub] == 0
    assert len(table.dep) == 80


@pytest.fixture
def pair(tmp_path):
    """Two NPUs, two steps each: compute, a message from 0 to 1, compute, an all-reduce of both."""
    (tmp_path / "out").mkdir()
    for npu in range(2):
        nodes = []
        for step in range(2):
            first, at = 10 * step, f"step{step}/"
            after = [first - 7] if step else []
            nodes.append(et.comp_node(first, f"{at}forward/a", duration_micros=5, deps=after))
            make = et.recv_node if npu else et.send_node
            nodes.append(make(first + 1, f"{at}forward/p2p", 0, 1, 100, 3, deps=[first]))
            nodes.append(et.comp_node(first + 2, f"{at}backward/a", duration_micros=5, ctrl_deps=[first + 1]))
            reduce_ = et.CollectiveCommType.ALL_REDUCE
            nodes.append(et.coll_node(first + 3, f"{at}grads", reduce_, 64, pg_name="1", deps=[first + 2]))
        attrs = [et.attribute("mine", "string", f"{npu}")]
        nodes[0].attr.extend(attrs)
        et.write_trace(tmp_path / f"t.{npu}.et", et.metadata("7", attrs), [et.group_node(99, "g", "1", [0, 1]), *nodes])

    def run(partners="keep", **selection):
        said = slice_traces(find_files(tmp_path / "t"), tmp_path / "out", Selection(**selection), partners)
        return said, [et.read_trace(file.path, keep_others=True) for file in find_files(tmp_path / "out")]

    return run


def test_by_step(pair, tmp_path):
    said, tables = pair(steps=frozenset([1]))
    assert [table.node_id.tolist() for table in tables] == [[99, 10, 11, 12, 13]] * 2  # definitions of groups stay
    assert [table.dep.tolist() for table in tables] == [[1, 2, 3]] * 2
    assert [one.for_partners for one in said] == [1, 1]
    metadata, _ = et.read_messages(tmp_path / "out" / "t.1.et")
    assert (metadata.version, metadata.attr[0].string_val) == ("7", "1")


def test_bytes_of_what_does_not_change_stay(pair, tmp_path):
    pair(steps=frozenset([0]))
    (_, was), (_, now) = (et.read_messages(tmp_path / where / "t.0.et") for where in (".", "out"))
    assert [node.SerializeToString() for node in now] == [node.SerializeToString() for node in was[:5]]


def test_by_name_bridges_and_ancestors_join(pair):
    _, tables = pair(names=("*/backward/*",))
    assert [table.node_id.tolist() for table in tables] == [[99, 2, 12]] * 2
    assert tables[0].dep.tolist() == [1]  # the second step's comes after the first one's
    _, tables = pair(names=("step0/backward/*",), with_ancestors=True)
    assert tables[0].node_id.tolist() == [99, 0, 1, 2]


def test_by_ids_brings_partners_or_drops_them(pair):
    said, tables = pair(ids=((0, 1),), npus=None, names=("*p2p",))
    assert [table.node_id.tolist() for table in tables] == [[99, 1]] * 2
    said, tables = pair(npus=frozenset([0]), partners="drop")
    assert tables[0].node_id.tolist() == [99, 0, 2, 10, 12]
    assert said[0].without_partners == 4
    assert tables[0].dep.tolist() == [1, 2, 3]


def test_torn_partners_are_refused(pair, tmp_path):
    with pytest.raises(et.TraceError, match=r"t\.0\.et: .* has a partner in .*t\.1\.et, which is not selected;"):
        pair(npus=frozenset([0]))
    for npu in range(2):  # only one of the two has the name
        metadata, nodes = et.read_messages(tmp_path / f"t.{npu}.et")
        nodes[2].name = f"p2p of {npu}"
        et.write_trace(tmp_path / f"t.{npu}.et", metadata, nodes)
    with pytest.raises(et.TraceError, match=r"message 0 from NPU 0 to NPU 1 with tag 3 is selected on some"):
        pair(names=("p2p of 0",), partners="refuse")
    said, tables = pair(names=("p2p of 0",))
    assert [table.node_id.tolist() for table in tables] == [[99, 1]] * 2
    assert [one.for_partners for one in said] == [1, 2]


def test_nothing_that_is_asked_for(pair):
    with pytest.raises(et.TraceError, match="no node matches the selection"):
        pair(ids=((500, 600),))


def test_steps_of_the_profiler(tmp_path):
    (tmp_path / "out").mkdir()
    nodes = [Node(id=0, name="a"), Node(id=1, name="ProfilerStep#5", start_time_micros=10, duration_micros=10)]
    nodes += [Node(id=2, name="b", start_time_micros=12), Node(id=3, name="c", start_time_micros=20)]
    for node in nodes:
        node.type = et.NodeType.COMP_NODE
    et.write_trace(tmp_path / "t.0.et", et.metadata(), nodes)
    slice_traces(find_files(tmp_path / "t"), tmp_path / "out", Selection(steps=frozenset([5])))
    assert et.read_trace(tmp_path / "out" / "t.0.et").node_id.tolist() == [1, 2]
    with pytest.raises(et.TraceError, match="no node matches the selection"):
        slice_traces(find_files(tmp_path / "t"), tmp_path / "out", Selection(steps=frozenset([6])))


def test_a_trace_without_steps(tmp_path, write_nodes):
    with pytest.raises(et.TraceError, match=r"no steps, expected names step0/\.\.\. or nodes ProfilerStep"):
        slice_traces(find_files(write_nodes((0, []))), tmp_path, Selection(steps=frozenset([0])))


def test_communications_keep_their_order(tmp_path):
    """In the file the second all-reduce stands first; the slice has them as they come."""
    (tmp_path / "out").mkdir()
    reduce_ = et.CollectiveCommType.ALL_REDUCE
    nodes = [et.coll_node(0, "x", reduce_, 8, deps=[2]), et.coll_node(1, "y", reduce_, 16), et.comp_node(2, "c")]
    for npu in range(2):
        et.write_trace(tmp_path / f"t.{npu}.et", et.metadata(), nodes)
    slice_traces(find_files(tmp_path / "t"), tmp_path / "out", Selection(names=("x", "y")))
    assert et.read_trace(tmp_path / "out" / "t.0.et").comm_size.tolist() == [16, 8]
