import json

import pytest

from nadi import et
from nadi.et.schema import Node
from tests.nonempty import nonempty


def test_a_group_file(tmp_path):
    path = tmp_path / "groups.json"
    path.write_text('{"1": [0, 1, 2], "22": [5, 3]}')
    assert et.read_groups(path) == {"1": (0, 1, 2), "22": (5, 3)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ('{"1": [0, 1]', "delimiter"),
        ("[[0, 1]]", r"found \[\[0, 1\]\], expected an object like"),
        ('{"1": [0], "2": [1], "1": [1]}', 'group "1" occurs twice'),
        ('{"1": 3}', 'group "1": found 3, expected a list of NPUs'),
        ('{"1": []}', r'group "1": found \[\], expected a list of NPUs'),
        ('{"1": [0, "1"]}', 'group "1": member "1", expected an NPU number from 0'),
        ('{"1": [0, 1.0]}', 'group "1": member 1.0, expected an NPU number from 0'),
        ('{"1": [true]}', 'group "1": member true, expected an NPU number from 0'),
        ('{"1": [-1]}', 'group "1": member -1, expected an NPU number from 0'),
        ('{"1": [4, 5, 4]}', 'group "1": NPU 4 occurs twice, expected each member once'),
        ('{"0": [0, 1]}', 'group "0": that name always means all NPUs'),
        ('{"": [0, 1]}', 'group "": that name always means all NPUs'),
        ("[" * 100000, "groups.json: "),
    ],
)
def test_wrong_group_files(tmp_path, text, message):
    path = tmp_path / "groups.json"
    path.write_text(text)
    with pytest.raises(et.TraceError, match=message) as caught:
        et.read_groups(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


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
