import json

import pytest

from nadi import et
from nadi.et.schema import Node
from tests.nonempty import nonempty


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
