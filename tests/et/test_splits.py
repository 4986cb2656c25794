"""Split sizes of all-to-alls: written as lists, read as lists or as PyTorch's text."""

import pytest

from nadi import et


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
