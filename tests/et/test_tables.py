"""Tables of blocks, tables that are written, and their summaries."""

import re

import pytest
from hypothesis import given, strategies as st

from nadi import et
from nadi.et.schema import Node
from tests.budgets import bounded
from tests.et.alike import check_alike

OWN = 3
MINE = et.attribute("mine", "string_list", ["x", "12"])


@st.composite
def blocks(draw):
    rows = []
    for at in range(draw(st.integers(1, 4))):
        what = draw(st.sampled_from(["comp", "mem", "coll", "send", "recv"]))
        row = {"what": what, "name": draw(st.sampled_from(["", "a", "é/b"])), "size": draw(st.integers(0, 9))}
        row |= {"word": draw(st.sampled_from(["", "x", "y"])), "peer": draw(st.sampled_from([None, 1, 2]))}
        row |= {"splits": draw(st.sampled_from([(), (1, 2)])), "attrs": draw(st.sampled_from([(), (MINE,)]))}
        row["after"] = draw(st.lists(st.sampled_from(["in", "other", *range(at)]), max_size=3))
        rows.append(row)
    return rows


def block_of(rows):
    made = et.Block()
    for row in rows:
        name, size, also = row["name"], row["size"], {"after": row["after"], "attrs": row["attrs"]}
        if row["what"] == "comp":
            made.comp(name, num_ops=size, operators=row["word"], **also)
        elif row["what"] == "mem":
            made.mem(name, et.NodeType.MEM_LOAD_NODE, size, tensor_loc=1, **also)
        elif row["what"] == "coll":
            kind = et.CollectiveCommType.ALL_TO_ALL
            made.coll(name, kind, size, group=row["word"], in_split_size=row["splits"], comm_priority=2, **also)
        elif row["what"] == "send":
            made.send(name, size, peer=row["peer"], tag=5, **also)
        else:
            made.recv(name, size, peer=row["peer"], tag=5, **also)
    return made


def message(node_id, prefix, row, stamp, deps):
    name, size, also = prefix + row["name"], row["size"], {"deps": deps, "attrs": row["attrs"]}
    if row["what"] == "comp":
        words = [et.attribute("operators", "string", row["word"])] if row["word"] else []
        return et.comp_node(node_id, name, num_ops=size, deps=deps, attrs=[*words, *row["attrs"]])
    if row["what"] == "mem":
        return et.mem_node(node_id, name, et.NodeType.MEM_LOAD_NODE, size, tensor_loc=1, **also)
    if row["what"] == "coll":
        splits = {"in_split_size": row["splits"]} if row["splits"] else {}
        words = {"pg_name": row["word"], "comm_priority": 2, **splits}
        return et.coll_node(node_id, name, et.CollectiveCommType.ALL_TO_ALL, size, **words, **also)
    peer = stamp["peer"] if row["peer"] is None else row["peer"]
    make, ends = (et.send_node, (OWN, peer)) if row["what"] == "send" else (et.recv_node, (peer, OWN))
    return make(node_id, name, *ends, size, 5 + stamp["tag"], **also)


@bounded(100)
@given(st.data())
def test_a_table_of_blocks_is_that_of_their_messages(data):
    kinds = data.draw(st.lists(blocks(), min_size=1, max_size=3))
    made = [block_of(rows) for rows in kinds]
    columns, messages = et.TraceColumns(OWN), []
    for at in range(data.draw(st.integers(0, 6))):
        kind = data.draw(st.integers(0, len(kinds) - 1))
        stamp = {"tag": data.draw(st.integers(0, 3)), "peer": data.draw(st.integers(0, 2))}
        ports = {port for row in kinds[kind] for port in row["after"] if isinstance(port, str)}
        earlier = st.lists(st.integers(0, len(messages) - 1), max_size=2) if messages else st.just([])
        after = {port: data.draw(earlier) for port in sorted(ports)}
        first, prefix = len(messages), f"step{at}/"
        for row in kinds[kind]:
            parents = [p for a in row["after"] for p in (after[a] if isinstance(a, str) else [first + a])]
            messages.append(message(len(messages), prefix, row, stamp, parents))
        given_after = {port: rows[0] if len(rows) == 1 else rows for port, rows in after.items()}
        assert columns.stamp(made[kind], prefix, after=given_after, **stamp) == first
    assert len(columns) == len(messages)
    wanted = et.table_of(et.metadata(), messages, keep_others=True)
    table = columns.table()
    check_alike(table, wanted)
    assert [table.names[row] for row in range(len(table))] == list(wanted.names)


def test_a_table_of_blocks_is_written_as_its_messages(tmp_path):
    block = et.Block()
    norm = block.comp("norm", num_ops=8, after=["in"])
    block.send("tp:é", 9, peer=1, after=[norm])
    columns = et.TraceColumns()
    last = [columns.stamp(block, f"layer{layer}/", tag=layer) + 1 for layer in range(3)]
    columns.stamp(block, "end/", after={"in": last})
    et.write_table(tmp_path / "a.et", columns.table())
    check_alike(et.read_trace(tmp_path / "a.et"), columns.table())


def test_what_is_wrong():
    block = et.Block()
    with pytest.raises(ValueError, match="row 0 of a block, a: after row 0, expected an earlier row"):
        block.comp("a", after=[0])
    block.comp("a", after=["in"])
    columns = et.TraceColumns()
    with pytest.raises(ValueError, match="layer0/: after row 0, expected a row below 0"):
        columns.stamp(block, "layer0/", after={"in": 0})
    columns = et.TraceColumns()
    with pytest.raises(ValueError, match="layer0/: the block has no port out, expected in"):
        columns.stamp(block, "layer0/", after={"out": 0})
    columns = et.TraceColumns()
    columns.stamp(block)
    block.send("s", 1)
    with pytest.raises(ValueError, match="a block has grown from 1 rows to 2"):
        columns.stamp(block)
    columns = et.TraceColumns()
    columns.stamp(block, "p/")
    with pytest.raises(ValueError, match="p/: a send or receive without a peer"):
        columns.table()


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
            node = et.mem_node(node_id, name, et.NodeType.MEM_STORE_NODE, size, tensor_loc=1, **some)
        elif what == "coll":
            splits = {"in_split_size": [1, 2], "out_split_size": [3]} if draw(st.booleans()) else {}
            dims = draw(st.sampled_from([None, [True], [False], [False, True]]))
            group = draw(st.sampled_from(["", "tp", "7"]))
            kind = draw(st.sampled_from(list(et.CollectiveCommType)))
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
    said.type = et.NodeType.METADATA_NODE
    said.inputs.values = '["[{"pg_name": "2", "ranks": [0, 1]}]"]'
    made = [et.group_node(3, "g", "mine", [4, 2]), said]
    table = et.table_of(et.metadata(), made, keep_others=True)
    assert table.metadata_groups == {"mine": (4, 2), "2": (0, 1)}
    et.write_table(tmp_path / "a.et", table)
    check_alike(et.read_trace(tmp_path / "a.et", keep_others=True), table)


def test_more_rows_than_are_put_together_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("nadi.et.table._ROWS_AT_ONCE", 7)
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


def described(tmp_path, nodes):
    path = tmp_path / "t.0.et"
    et.write_trace(path, et.metadata(), nodes)
    return et.describe(path)


def test_collectives_are_summed_by_kind_and_group(tmp_path):
    kinds = et.CollectiveCommType
    nodes = [
        et.coll_node(1, "a", kinds.ALL_GATHER, 2**62, pg_name="2"),
        et.coll_node(2, "b", kinds.ALL_GATHER, 2**62, pg_name="2"),
        et.coll_node(3, "c", kinds.ALL_GATHER, 5),
        Node(id=4, type=et.NodeType.COMM_COLL_NODE, attr=[et.attribute("comm_type", "int64", 2)]),
        Node(id=5, type=et.NodeType.COMM_COLL_NODE, attr=[et.attribute("is_cpu_op", "bool", True)]),
    ]
    assert described(tmp_path, nodes)["collectives"] == [
        {"kind": "unnamed", "group": "", "count": 1, "bytes": 0, "missing_sizes": 1},
        {"kind": "all-gather", "group": "", "count": 2, "bytes": 5, "missing_sizes": 1},
        {"kind": "all-gather", "group": "2", "count": 2, "bytes": 2**63, "missing_sizes": 0},
    ]


def test_an_empty_trace(tmp_path):
    found = described(tmp_path, [])
    assert (found["nodes"], found["depth"], found["roots"], found["first_nodes"]) == (0, 0, 0, [])
