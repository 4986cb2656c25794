"""Nodes as messages and as columns: builders, schema, attributes of every type, and split sizes."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from nadi import et
from nadi.et.schema import VALUE_TYPES, AttributeProto, GlobalMetadata, IOInfo, Node, RawNode, Tensor
from tests.et.parents import parents_of
from tests.nonempty import nonempty

COLL, COMP = et.NodeType.COMM_COLL_NODE, et.NodeType.COMP_NODE
INTEGER_KINDS = (
    "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64",
)  # fmt: skip


def table_of(*nodes):
    return et.table_of(et.metadata(), nodes)


def node_with(*attrs, node_type=COMP):
    return Node(id=7, name="n", type=node_type, attr=[et.attribute(*a) for a in attrs])


def test_every_column_of_a_small_trace(tmp_path, small_trace):
    path = tmp_path / "small.0.et"
    et.write_trace(path, *small_trace)
    table = et.read_trace(path)
    assert (table.path, table.version, len(table)) == (str(path), "0.0.4", 7)
    assert list(table.names) == ["groups", "load", "matmul", "grads", "to 1", "from 1", "store"]
    expected = {
        "node_id": [1, 2, 3, 4, 5, 6, 7],
        "type": [1, 2, 4, 7, 5, 6, 3],
        "is_cpu_op": [False] * 7,
        "start_time_micros": [0] * 7,
        "duration_micros": [0, 0, 12, 0, 0, 0, 0],
        "num_ops": [-1, -1, 1 << 40, -1, -1, -1, -1],
        "tensor_size": [-1, 4096, 1 << 33, -1, -1, -1, 4096],
        "tensor_loc": [0, 1, 0, 0, 0, 0, 0],
        "comm_type": [-1, -1, -1, 0, -1, -1, -1],
        "comm_size": [-1, -1, -1, 1 << 20, 65536, 65536, -1],
        "comm_src": [-1, -1, -1, -1, 0, 1, -1],
        "comm_dst": [-1, -1, -1, -1, 1, 0, -1],
        "comm_tag": [-1, -1, -1, -1, 9, 9, -1],
        "comm_priority": [0, 0, 0, 3, 0, 0, 0],
        "group": [1, 0, 0, 1, 0, 0, 0],
        "involved_dim": [-1] * 7,
        "dep_ptr": [0, 0, 1, 2, 3, 4, 6, 8],
        "dep": [0, 1, 2, 2, 2, 4, 3, 5],
    }
    for name, values in expected.items():
        assert getattr(table, name).tolist() == values, name
    assert table.group_names == ("", "7")
    assert table.metadata_groups == {"7": (0, 2)}
    assert (table.dangling, table.dropped_control) == (0, 0)


def test_columns_have_the_types_of_the_contract_and_cannot_be_written():
    table = table_of(et.comp_node(1, "a"))
    types = {
        "node_id": np.uint64, "type": np.int8, "is_cpu_op": np.bool_, "start_time_micros": np.int64,
        "duration_micros": np.int64, "num_ops": np.int64, "tensor_size": np.int64, "tensor_loc": np.int8,
        "comm_type": np.int8, "comm_size": np.int64, "comm_src": np.int32, "comm_dst": np.int32,
        "comm_tag": np.int32, "comm_priority": np.int32, "group": np.int32, "involved_dim": np.int32,
        "dep_ptr": np.int64, "dep": np.int32,
    }  # fmt: skip
    for name, dtype in types.items():
        column = getattr(table, name)
        assert column.dtype == dtype, name
        assert not column.flags.writeable, name


def test_a_trace_without_nodes():
    table = table_of()
    assert (len(table), len(table.names), table.dep_ptr.tolist()) == (0, 0, [0])
    assert et.topological_order(table).tolist() == []


def test_names_of_any_script_and_from_the_end():
    table = table_of(et.comp_node(1, "größe"), et.comp_node(2, ""), et.comp_node(3, "層"))
    assert [table.names[0], table.names[1], table.names[-1]] == ["größe", "", "層"]
    with pytest.raises(IndexError):
        table.names[3]


@pytest.mark.parametrize("kind", INTEGER_KINDS)
@pytest.mark.parametrize(
    "name", ["num_ops", "tensor_size", "tensor_loc", "comm_size", "comm_src", "comm_dst", "comm_tag", "comm_priority"]
)
def test_every_integer_type_converts(name, kind):
    assert getattr(table_of(node_with((name, kind, 100))), name).tolist() == [100]


@pytest.mark.parametrize("kind", INTEGER_KINDS)
def test_every_integer_type_converts_for_kinds_and_flags(kind):
    node = node_with(("comm_type", kind, 6), ("is_cpu_op", kind, 1), ("comm_size", "bool", True), node_type=COLL)
    table = table_of(node)
    assert table.comm_type.tolist() == [et.CollectiveCommType.ALL_TO_ALL]
    assert table.is_cpu_op.tolist() == [True]
    assert table.comm_size.tolist() == [1]


@pytest.mark.parametrize(
    ("attributes", "node_type", "column", "value"),
    [
        ([("num_ops", "double", 2.0**40)], COMP, "num_ops", 2**40),
        ([("involved_dim", "bool_list", [True, False, True])], COMP, "involved_dim", 0b101),
        ([("involved_dim", "int32_list", [1, 0, 1])], COMP, "involved_dim", 0b101),
        ([("involved_dim", "bool_list", [])], COMP, "involved_dim", -1),
        ([("involved_dim", "bool_list", [False])], COMP, "involved_dim", 0),
        ([("comm_tag", "int32", 1), ("comm_tag", "int32", 2)], COMP, "comm_tag", 2),
        ([("comm_type", "int64", 77)], et.NodeType.COMM_SEND_NODE, "comm_type", -1),
        ([("comm_type", "int64", 0)], COLL, "comm_size", -1),
        ([("is_cpu_op", "bool", True)], COLL, "comm_type", -1),
    ],
)
def test_unusual_attributes_have_their_value(attributes, node_type, column, value):
    assert getattr(table_of(node_with(*attributes, node_type=node_type)), column).tolist() == [value]


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        (("comm_size", "string", "1048576"), "attribute comm_size is string_val '1048576', expected an integer"),
        (("comm_size", "bytes", b"1"), "attribute comm_size is bytes_val b'1', expected an integer"),
        (("comm_size", "double", 0.5), "attribute comm_size is double_val 0.5, expected an integer"),
        (("comm_size", "double", float("inf")), "attribute comm_size is double_val inf, expected an integer"),
        (("comm_size", "int64_list", [1]), "attribute comm_size is int64_list, expected an integer"),
        (("comm_size", "int64", -1), "attribute comm_size is -1, expected an integer from 0 to"),
        (("comm_size", "uint64", 2**63), "attribute comm_size is 9223372036854775808, expected an integer from 0"),
        (("comm_dst", "int64", 2**31), "attribute comm_dst is 2147483648, expected an integer from 0 to 2147483647"),
        (("tensor_loc", "int32", 128), "attribute tensor_loc is 128, expected an integer from -128 to 127"),
        (("is_cpu_op", "string", "true"), "attribute is_cpu_op is string_val 'true', expected an integer"),
        (("pg_name", "int64", 3), "attribute pg_name is int64_val 3, expected a string"),
        (("involved_dim", "bool", True), "attribute involved_dim is bool_val True, expected a list of booleans"),
        (("involved_dim", "string_list", ["1"]), "attribute involved_dim is string_list, expected a list of bool"),
        (("involved_dim", "bool_list", [True] * 32), "attribute involved_dim has 32 values, expected at most 31"),
    ],
)
def test_wrong_kinds_and_ranges_are_errors(attribute, message):
    with pytest.raises(et.TraceError) as caught:
        table_of(node_with(attribute))
    assert str(caught.value).startswith(f"<memory>: node 7: {message}")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        *((Node(id=7, type=kind), f"node type {kind}, expected 1 to 7") for kind in (0, 8, -1, 1000)),
        *(
            (
                node_with(("comm_type", "int64", kind), ("is_cpu_op", "bool", cpu), node_type=COLL),
                f"comm_type {kind}, ex",
            )
            for kind in (-1, 10, 255, 2**40)
            for cpu in (False, True)
        ),
        (node_with(node_type=COLL), "a collective without comm_type"),
        (Node(id=7, type=COMP, attr=[AttributeProto(name="comm_size")]), "attribute comm_size has no value"),
        (Node(id=7, type=COMP, duration_micros=2**63), "duration_micros is 9223372036854775808, expected less than 2"),
    ],
)
def test_nodes_that_make_no_sense_are_errors(node, message):
    with pytest.raises(et.TraceError, match=f"node 7: {message}"):
        table_of(et.comp_node(1, "a"), node)
    assert len(table_of(Node(id=7, type=COMP, attr=[AttributeProto(name="outputs")]))) == 1


def test_group_0_is_all_npus():
    nodes = [et.coll_node(i, "a", et.CollectiveCommType.BARRIER, 0, pg_name=p) for i, p in enumerate(["0", "", "5"])]
    table = table_of(*nodes)
    assert table.group_names == ("", "5")
    assert table.group.tolist() == [0, 0, 1]


def test_a_duplicate_id_is_an_error(write_nodes):
    with pytest.raises(et.TraceError, match=r"trace\.0\.et: node 4: the id occurs twice"):
        et.read_trace(write_nodes((4, []), (9, []), (4, [])))


def test_a_dangling_dependency_is_an_error_or_dropped_and_counted(write_nodes):
    path = write_nodes((1, [99, 2]), (2, [98]), (3, [1]))
    with pytest.raises(et.TraceError, match="node 1: depends on node 99, which the file lacks") as caught:
        et.read_trace(path)
    assert caught.value.exit_code == 2
    table = et.read_trace(path, strict=False)
    assert table.dangling == 2
    assert table.dep_ptr.tolist() == [0, 1, 1, 2]
    assert table.dep.tolist() == [1, 0]


def test_a_name_that_is_not_utf_8_is_an_error(tmp_path):
    path = tmp_path / "t.et"
    path.write_bytes(b"\x00" + b"\x07\x08\x05\x12\x01\xff\x18\x04")
    for read in (et.read_messages, et.read_trace):
        with pytest.raises(et.TraceError, match=r"t\.et: (byte 1|node 5): .*"):
            read(path)


def test_ids_of_64_bits():
    table = table_of(et.comp_node(2**64 - 1, "a"), et.comp_node(0, "b", deps=[2**64 - 1]))
    assert table.node_id.tolist() == [2**64 - 1, 0]
    assert table.dep.tolist() == [0]


def test_unpacked_dependencies_are_read_too(tmp_path):
    path = tmp_path / "t.et"
    path.write_bytes(
        b"\x00" + b"\x04\x08\x01\x18\x04" + b"\x04\x08\x02\x18\x04" + b"\x08\x08\x03\x18\x04\x28\x01\x28\x02"
    )
    table = et.read_trace(path)
    assert (table.dep_ptr.tolist(), table.dep.tolist()) == ([0, 0, 0, 2], [0, 1])


NAIVE_COLUMNS = {"num_ops": -1, "tensor_size": -1, "comm_size": -1, "comm_tag": -1, "comm_priority": 0, "is_cpu_op": 0}


@st.composite
def traces(draw):
    """Nodes in any order, each depending on nodes of lower rank, with some attributes of any integer type."""
    ids = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12, unique=True))
    nodes = []
    for rank, node_id in enumerate(ids):
        parents = st.lists(st.sampled_from(ids[:rank]), max_size=4) if rank else st.just([])
        attrs = [
            et.attribute(name, draw(st.sampled_from(INTEGER_KINDS)), draw(st.integers(0, 3)))
            for name in draw(st.lists(st.sampled_from(sorted(NAIVE_COLUMNS)), unique=True))
        ]
        nodes.append(
            Node(id=node_id, name=str(rank), type=COMP, data_deps=draw(parents), ctrl_deps=draw(parents), attr=attrs)
        )
    return draw(st.permutations(nodes))


@given(traces())
def test_tables_agree_with_a_naive_reading_of_the_messages(nodes):
    table = table_of(*nodes)
    rows = {node.id: row for row, node in enumerate(nodes)}
    for row, node in nonempty(enumerate(nodes)):
        values = {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}
        for name, absent in NAIVE_COLUMNS.items():
            found = getattr(table, name)[row]
            assert found == (bool(values.get(name)) if name == "is_cpu_op" else values.get(name, absent))
        assert parents_of(table, row) == sorted({rows[i] for i in (*node.data_deps, *node.ctrl_deps)})
        assert table.names[row] == node.name


def kinds(node):
    return {attribute.name: attribute.WhichOneof("value") for attribute in node.attr}


def test_attributes_have_the_types_that_astra_sim_reads(small_trace):
    _, (group, load, comp, coll, send, recv, _) = small_trace
    assert kinds(group) == {"is_cpu_op": "bool_val", "pg_name": "string_val", "ranks": "int32_list"}
    assert kinds(load) == {"is_cpu_op": "bool_val", "tensor_size": "uint64_val", "tensor_loc": "int32_val"}
    assert kinds(comp) == {"is_cpu_op": "bool_val", "num_ops": "int64_val", "tensor_size": "uint64_val"}
    assert kinds(coll) == {
        "is_cpu_op": "bool_val", "comm_type": "int64_val", "comm_size": "int64_val", "comm_priority": "int32_val",
        "pg_name": "string_val",
    }  # fmt: skip
    peers = {
        "is_cpu_op": "bool_val", "comm_size": "int64_val", "comm_src": "int32_val", "comm_dst": "int32_val",
        "comm_tag": "int32_val",
    }  # fmt: skip
    assert kinds(send) == kinds(recv) == peers


def test_what_is_not_given_is_not_written():
    assert kinds(et.comp_node(1, "a")) == {"is_cpu_op": "bool_val"}
    assert "pg_name" not in kinds(et.coll_node(1, "a", et.CollectiveCommType.BARRIER, 0))


def test_further_attributes_and_dimensions():
    node = et.coll_node(1, "a", et.CollectiveCommType.BARRIER, 0, involved_dim=[True, False, True],
                        attrs=[et.attribute("stream", "int64", 20)])  # fmt: skip
    assert kinds(node)["involved_dim"] == "bool_list"
    assert kinds(node)["stream"] == "int64_val"
    assert et.table_of(et.metadata(), [node]).involved_dim.tolist() == [0b101]


def test_values_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="range"):
        et.send_node(1, "a", 0, 2**31, 1)
    with pytest.raises(TypeError):
        et.comp_node(1, "a", num_ops="many")
    with pytest.raises(ValueError, match="expected MEM_LOAD_NODE or MEM_STORE_NODE"):
        et.mem_node(1, "a", et.NodeType.COMP_NODE, 1)


def numbers(message_class):
    return {field.name: field.number for field in message_class.DESCRIPTOR.fields}


def test_field_numbers_are_chakras():
    assert numbers(GlobalMetadata) == {"version": 1, "attr": 2}
    assert numbers(IOInfo) == {"values": 1, "shapes": 2, "types": 3}
    assert list(numbers(Tensor)) == ["tensor_id", "storage_id", "offset", "num_elem", "elem_bytes", "device"]
    assert numbers(Node) == {
        "id": 1, "name": 2, "type": 3, "ctrl_deps": 4, "data_deps": 5, "start_time_micros": 6, "duration_micros": 7,
        "inputs": 8, "outputs": 9, "attr": 10,
    }  # fmt: skip
    assert numbers(RawNode) == numbers(Node)
    assert Node.DESCRIPTOR.full_name == "ChakraProtoMsg.Node"


def test_attribute_values_stand_at_odd_numbers_and_their_lists_at_even_ones():
    found = numbers(AttributeProto)
    assert (found.pop("name"), found.pop("doc_string")) == (1, 2)
    assert len(VALUE_TYPES) == 15
    assert found == {
        "double_val": 3, "float_val": 5, "int32_val": 7, "int64_val": 9, "uint32_val": 11, "uint64_val": 13,
        "sint32_val": 15, "sint64_val": 17, "fixed32_val": 19, "fixed64_val": 21, "sfixed32_val": 23,
        "sfixed64_val": 25, "bool_val": 27, "string_val": 29, "bytes_val": 31,
        "double_list": 4, "float_list": 6, "int32_list": 8, "int64_list": 10, "uint32_list": 12, "uint64_list": 14,
        "sint32_list": 16, "sint64_list": 18, "fixed32_list": 20, "fixed64_list": 22, "sfixed32_list": 24,
        "sfixed64_list": 26, "bool_list": 28, "string_list": 30, "bytes_list": 32,
    }  # fmt: skip


def test_enums_are_chakras():
    assert [t.name for t in et.NodeType] == [
        "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
        "COMM_RECV_NODE", "COMM_COLL_NODE",
    ]  # fmt: skip
    assert [t.name for t in et.CollectiveCommType] == [
        "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER",
        "REDUCE_SCATTER_BLOCK", "BARRIER",
    ]  # fmt: skip
    assert list(et.NodeType) == list(range(8))
    assert list(et.CollectiveCommType) == list(range(10))


# encoded by hand from protobuf's encoding rules: key = number << 3 | wire type, lists of numbers packed
@pytest.mark.parametrize(
    ("kind", "value", "encoded"),
    [
        ("int32", -1, "38 ff ff ff ff ff ff ff ff ff 01"),
        ("int64", 300, "48 ac 02"),
        ("sint64", -2, "88 01 03"),
        ("fixed32", 1, "9d 01 01 00 00 00"),
        ("bool", True, "d8 01 01"),
        ("string", "ab", "ea 01 02 61 62"),
        ("double", 1.0, "19 00 00 00 00 00 00 f0 3f"),
        ("bool_list", [True, False], "e2 01 04 0a 02 01 00"),
        ("bytes_list", [b"x", b""], "82 02 05 0a 01 78 0a 00"),
        ("int64_list", [], "52 00"),
    ],
)
def test_attributes_have_the_bytes_of_the_wire_format(kind, value, encoded):
    assert et.attribute("n", kind, value).SerializeToString() == b"\x0a\x01n" + bytes.fromhex(encoded)


def test_a_node_has_the_bytes_of_the_wire_format():
    node = Node(id=5, name="a", type=et.NodeType.COMP_NODE, ctrl_deps=[1], data_deps=[2, 300], duration_micros=7)
    assert node.SerializeToString() == bytes.fromhex("08 05 12 01 61 18 04 22 01 01 2a 03 02 ac 02 38 07")


def test_an_unknown_kind_of_attribute_is_refused():
    with pytest.raises(ValueError, match="int128"):
        et.attribute("n", "int128", 1)


def read(*attributes):
    node = et.coll_node(0, "a", et.CollectiveCommType.ALL_TO_ALL, 8, attrs=attributes)
    return et.table_of(et.metadata(), [node], "a.et")


def test_what_is_written_is_read(tmp_path):
    nodes = [
        et.coll_node(0, "a", et.CollectiveCommType.ALL_TO_ALL, 8, in_split_size=[3, 5], out_split_size=[2, 0]),
        et.coll_node(1, "b", et.CollectiveCommType.ALL_TO_ALL, 8),
        et.coll_node(2, "c", et.CollectiveCommType.ALL_TO_ALL, 2, in_split_size=[2, 0], out_split_size=[3, 5]),
    ]
    et.write_trace(tmp_path / "a.et", et.metadata(), nodes)
    table = et.read_trace(tmp_path / "a.et")
    assert table.split_sizes == ((), (3, 5), (2, 0))
    assert table.in_split_size.tolist() == [1, 0, 2]
    assert table.out_split_size.tolist() == [2, 0, 1]
    assert et.read_messages(tmp_path / "a.et")[1] == nodes


@pytest.mark.parametrize("text", ["[3, 5]", "[3,5]", " [ 3, 5 ] "])
def test_text_reads_as_a_list(text):
    table = read(et.attribute("in_split_size", "string", text))
    assert [table.split_sizes[i] for i in table.in_split_size] == [(3, 5)]


@pytest.mark.parametrize(("kind", "value"), [("string", "[]"), ("int64_list", [])])
def test_an_empty_list_is_none(kind, value):
    assert read(et.attribute("in_split_size", kind, value)).in_split_size.tolist() == [0]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("string", "[1, 2, ...]", "is string_val '[1, 2, ...]', expected a list of integers from 0"),
        ("string", "1, 2", "is string_val '1, 2', expected a list of integers from 0"),
        ("string", "[-1, 2]", "is string_val '[-1, 2]', expected a list of integers from 0"),
        ("int32_list", [4, -1], f"has -1, expected integers from 0 to {2**63 - 1}"),
        ("uint64_list", [2**63], f"has {2**63}, expected integers from 0 to {2**63 - 1}"),
        ("double_list", [0.5], "is double_list, expected a list of integers"),
        ("int64", 3, "is int64_val 3, expected a list of integers"),
    ],
)
def test_what_is_no_list_is_refused(kind, value, text):
    with pytest.raises(et.TraceError) as error:
        read(et.attribute("out_split_size", kind, value))
    assert str(error.value) == f"a.et: node 0: attribute out_split_size {text}"
