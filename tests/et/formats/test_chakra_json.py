import gzip
import json

import pytest
from google.protobuf import json_format

import et
from et.formats import format_of, formats
from et.schema import Node

JSON, CHAKRA = formats()["json"], formats()["chakra"]


@pytest.fixture
def nodes():
    return [
        et.group_node(0, "groups", "7", [0, 2]),
        et.mem_node(2, "load", et.NodeType.MEM_LOAD_NODE, 4096, tensor_loc=1, deps=[0]),
        et.comp_node(3, "mat mul", duration_micros=12, num_ops=1 << 60, tensor_size=1 << 33, deps=[2]),
        et.coll_node(
            4, "g", et.CollectiveCommType.ALL_REDUCE, 1 << 20, pg_name="7", involved_dim=[True, False, True], deps=[3]
        ),
        et.send_node(5, "to 1", 0, 1, 65536, 9, deps=[3], attrs=[et.attribute("mine", "double_list", [0.5, 2])]),
    ]


def jsonized(metadata, nodes, **options):
    """What Chakra's jsonizer writes."""
    return "".join(json_format.MessageToJson(message, **options) for message in (metadata, *nodes))


def test_what_is_written_is_what_protobuf_writes(tmp_path, nodes):
    et.write_trace(tmp_path / "a.0.et", et.metadata("0.0.4"), nodes)
    JSON.write(CHAKRA.read([tmp_path / "a.0.et"], {}), tmp_path, "b", {})
    found = [json.loads(line) for line in (tmp_path / "b.0.json").read_text().splitlines()]
    assert found[0] == {"version": "0.0.4"}
    for line, node in zip(found[1:], nodes, strict=True):
        assert json_format.ParseDict(line, Node()) == node
        assert line == json_format.MessageToDict(node)


@pytest.mark.parametrize("options", [{}, {"preserving_proto_field_name": True}, {"use_integers_for_enums": True}])
def test_what_chakra_writes_becomes_the_trace_that_it_was_made_of(tmp_path, nodes, options):
    et.write_trace(tmp_path / "a.0.et", et.metadata("0.0.4"), nodes)
    text = jsonized(et.metadata("0.0.4"), nodes, **options)
    as_list = "[" + jsonized(et.metadata("0.0.4"), nodes, **options).replace("\n}{", "\n},{") + "]"
    (tmp_path / "c.0.json").write_text(text)
    (tmp_path / "c.1.json.gz").write_bytes(gzip.compress(as_list.encode()))
    if not options.get("use_integers_for_enums"):
        assert format_of(tmp_path / "c.0.json") is format_of(tmp_path / "c.1.json.gz") is JSON
    (tmp_path / "out").mkdir()
    traces = JSON.read([tmp_path / "c.0.json", tmp_path / "c.1.json.gz"], {})
    CHAKRA.write(traces, tmp_path / "out", "d", {})
    for npu in (0, 1):
        assert (tmp_path / "out" / f"d.{npu}.et").read_bytes() == (tmp_path / "a.0.et").read_bytes()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no object in it"),
        ('{"version": "1"} {"id": "x", "type": "COMP_NODE"}', "object 1: .*, expected a Chakra node"),
        ('{"id": "1", "type": "COMP_NODE"}', "found a Node, expected a GlobalMetadata first"),
        ('{"version": "1"} {"id": "1", "type": "NO_NODE"}', "expected a Chakra node"),
        ('{"version": "1"} {"id": "1", "nonsense": 3}', "nonsense"),
        ('{"version": "1"} {"id": "1", "type": "COMP_NODE", "attr": 3}', "attr is 3, expected a list"),
        ('{"version": "1"} {"id": "1", "type": "COMP_NODE"', "character 17: "),
        ('{"version": "1"} 3', "found 3, expected an object"),
        ('[{"version": "1"}', "the list ends otherwise"),
        ('{"version": "1"} {"id": "1", "type": "COMP_NODE", "dataDeps": ["4"]}', "node 1: depends on node 4"),
        ("[" * 100_000, "character 1"),
    ],
)
def test_wrong_files_are_told(tmp_path, text, says):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(et.TraceError, match=says) as raised:
        list(JSON.read([tmp_path / "x.json"], {}).tables.values())
    assert str(raised.value).startswith(f"{tmp_path / 'x.json'}: ")
    assert "\n" not in str(raised.value)
