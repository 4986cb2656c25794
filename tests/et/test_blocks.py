"""Blocks that are stamped make the table of the messages that a plain builder makes one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi import et
from nadi.et import CollectiveCommType, NodeType
from tests.budgets import bounded
from tests.et.alike import check_alike

OWN = 3
MINE = et.attribute("mine", "string_list", ["x", "12"])


@st.composite
def blocks(draw):
    """Rows of a block as dicts: what, name, arguments, after."""
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
    """The rows as a Block."""
    made = et.Block()
    for row in rows:
        name, size, also = row["name"], row["size"], {"after": row["after"], "attrs": row["attrs"]}
        if row["what"] == "comp":
            made.comp(name, num_ops=size, operators=row["word"], **also)
        elif row["what"] == "mem":
            made.mem(name, NodeType.MEM_LOAD_NODE, size, tensor_loc=1, **also)
        elif row["what"] == "coll":
            kind = CollectiveCommType.ALL_TO_ALL
            made.coll(name, kind, size, group=row["word"], in_split_size=row["splits"], comm_priority=2, **also)
        elif row["what"] == "send":
            made.send(name, size, peer=row["peer"], tag=5, **also)
        else:
            made.recv(name, size, peer=row["peer"], tag=5, **also)
    return made


def message(node_id, prefix, row, stamp, deps):
    """The row as a message."""
    name, size, also = prefix + row["name"], row["size"], {"deps": deps, "attrs": row["attrs"]}
    if row["what"] == "comp":
        words = [et.attribute("operators", "string", row["word"])] if row["word"] else []
        return et.comp_node(node_id, name, num_ops=size, deps=deps, attrs=[*words, *row["attrs"]])
    if row["what"] == "mem":
        return et.mem_node(node_id, name, NodeType.MEM_LOAD_NODE, size, tensor_loc=1, **also)
    if row["what"] == "coll":
        splits = {"in_split_size": row["splits"]} if row["splits"] else {}
        words = {"pg_name": row["word"], "comm_priority": 2, **splits}
        return et.coll_node(node_id, name, CollectiveCommType.ALL_TO_ALL, size, **words, **also)
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
