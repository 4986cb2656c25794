import pytest

from nadi import et
from nadi.et.schema import VALUE_TYPES, AttributeProto, GlobalMetadata, IOInfo, Node, RawNode, Tensor


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
