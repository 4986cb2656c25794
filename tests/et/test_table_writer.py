"""A table is written as protobuf writes the messages that it was read from."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi import et
from nadi.et import CollectiveCommType, NodeType
from tests.budgets import bounded
from tests.et.alike import check_alike

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)


@st.composite
def nodes(draw):
    """Nodes of all types as et.schema makes them, with ids that jump."""
    made, ids = [], []
    for _ in range(draw(st.integers(0, 8))):
        node_id = draw(
            st.sampled_from([0, 1, 127, 128, 300, 2**14, 2**32, 2**63, 2**64 - 1]).filter(lambda i: i not in ids)
        )
        some = {"deps": draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []}
        some["deps"].sort(key=ids.index)
        name, size = draw(TEXT), draw(st.sampled_from([0, 1, 127, 128, 2**40]))
        if draw(st.booleans()):
            some["attrs"] = [et.attribute("inputs", "string_list", ["x", "7"]), et.attribute("mine", "int32", -3)]
        what = draw(st.sampled_from(["comp", "mem", "coll", "send", "recv"]))
        if what == "comp":
            operators = et.attribute("operators", "string", draw(st.sampled_from(["gemm 1x2x3 bf16", "o" * 4000])))
            node = et.comp_node(node_id, name, num_ops=size, is_cpu_op=draw(st.booleans()), **some)
            if draw(st.booleans()):
                node.attr.insert(2, operators)
            node.duration_micros, node.start_time_micros = draw(st.integers(0, 2**62)), draw(st.sampled_from([0, 5]))
        elif what == "mem":
            node = et.mem_node(node_id, name, NodeType.MEM_STORE_NODE, size, tensor_loc=1, **some)
        elif what == "coll":
            splits = {"in_split_size": [1, 2], "out_split_size": [3]} if draw(st.booleans()) else {}
            dims = draw(st.sampled_from([None, [True], [False], [False, True]]))
            group = draw(st.sampled_from(["", "tp", "7"]))
            kind = draw(st.sampled_from(list(CollectiveCommType)))
            more = {"pg_name": group, "comm_priority": draw(st.sampled_from([None, 5, -7])), "involved_dim": dims}
            node = et.coll_node(node_id, name, kind, size, **more, **splits, **some)
        else:
            make = et.send_node if what == "send" else et.recv_node
            node = make(node_id, name, draw(st.integers(0, 3)), 2**31 - 1, size, draw(st.sampled_from([0, 9])), **some)
        ids.append(node_id)
        made.append(node)
    return made


@bounded(150)
@given(nodes())
def test_the_bytes_are_those_of_the_messages(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("written")
    et.write_trace(folder / "a.et", et.metadata(), made)
    table = et.table_of(et.metadata(), made, keep_others=True)
    et.write_table(folder / "b.et", table)
    assert (folder / "b.et").read_bytes() == (folder / "a.et").read_bytes()
    check_alike(et.read_trace(folder / "b.et", keep_others=True), table)


def test_other_attributes_are_dropped_unless_kept(tmp_path):
    made = [et.comp_node(0, "c", attrs=[et.attribute("mine", "string", "x")])]
    et.write_table(tmp_path / "a.et", et.table_of(et.metadata(), made))
    assert [a.name for a in et.read_messages(tmp_path / "a.et")[1][0].attr] == ["is_cpu_op"]
    et.write_table(tmp_path / "a.et", et.table_of(et.metadata(), made, keep_others=True))
    assert [a.name for a in et.read_messages(tmp_path / "a.et")[1][0].attr] == ["is_cpu_op", "mine"]


def test_groups_of_metadata_nodes_stay(tmp_path):
    said = et.comp_node(5, "## process_group:init ##")
    said.type = NodeType.METADATA_NODE
    said.inputs.values = '["[{"pg_name": "2", "ranks": [0, 1]}]"]'
    made = [et.group_node(3, "g", "mine", [4, 2]), said]
    table = et.table_of(et.metadata(), made, keep_others=True)
    assert table.metadata_groups == {"mine": (4, 2), "2": (0, 1)}
    et.write_table(tmp_path / "a.et", table)
    check_alike(et.read_trace(tmp_path / "a.et", keep_others=True), table)


def test_more_rows_than_are_put_together_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("nadi.et.table_writer._ROWS_AT_ONCE", 7)
    made = [et.comp_node(i, f"node {i}", num_ops=i % 3, deps=range(max(i - 3, 0), i)) for i in range(50)]
    made[20:20] = [et.group_node(100, "g", "mine", [0])]
    et.write_trace(tmp_path / "a.et", et.metadata(), made)
    et.write_table(tmp_path / "b.et", et.table_of(et.metadata(), made))
    assert (tmp_path / "b.et").read_bytes() == (tmp_path / "a.et").read_bytes()


def test_gzipped(tmp_path):
    table = et.table_of(et.metadata(), [et.comp_node(0, "c")])
    et.write_table(tmp_path / "a.et.gz", table)
    check_alike(et.read_trace(tmp_path / "a.et.gz"), table)


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(et.TraceError, match="expected a place to write a trace to"):
        et.write_table(tmp_path / "gone" / "a.et", et.table_of(et.metadata(), []))


def test_operators_are_a_string():
    node = et.comp_node(7, "c", attrs=[et.attribute("operators", "int32", 4)])
    with pytest.raises(et.TraceError, match=re.escape("node 7: attribute operators is int32_val 4, expected a string")):
        et.table_of(et.metadata(), [node])


def test_traces_of_others(shared_data, tmp_path):
    files = sorted((shared_data / "chakra").rglob("*.0.et"))[:12]
    assert files
    for file in files:
        table = et.read_trace(file, strict=False, keep_others=True)
        et.write_table(tmp_path / "a.et", table)
        check_alike(et.read_trace(tmp_path / "a.et", keep_others=True), table)
