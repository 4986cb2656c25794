"""What all formats share, Chakra's JSON, and the memory that conversions need."""

import gzip
import json
import tracemalloc

import pytest
from google.protobuf import json_format

from nadi import et
from nadi.et.formats import chosen, format_of, formats
from nadi.et.schema import Node
from tests.nonempty import nonempty


def test_every_format_has_what_the_folder_asks_for():
    for name, module in nonempty(formats().items()):
        assert module.TITLE, name
        assert hasattr(module, "read") or hasattr(module, "write")
        assert hasattr(module, "read") == hasattr(module, "recognises")
        assert hasattr(module, "write") == hasattr(module, "names")


def test_chakra_traces_are_recognised_and_written_as_they_were_read(tmp_path):
    gather = et.coll_node(2, "y", et.CollectiveCommType.ALL_GATHER, 5, deps=[1])
    nodes = [et.comp_node(1, "x", duration_micros=3), gather]
    for npu in (0, 11):
        et.write_trace(tmp_path / f"a.{npu}.et", et.metadata(), nodes)
    (tmp_path / "groups.json").write_text('{"1": [0, 11]}')
    chakra = formats()["chakra"]
    assert format_of(tmp_path) == format_of(tmp_path / "a.11.et") == "chakra"
    traces = chakra.read([tmp_path], {})
    made = tmp_path / "made"
    made.mkdir()
    chakra.write(traces, made, "b", {})
    assert sorted(file.name for file in made.iterdir()) == sorted(chakra.names(traces, "b"))
    assert (made / "b.11.et").read_bytes() == (tmp_path / "a.11.et").read_bytes()
    assert et.read_groups(made / "groups.json") == {"1": (0, 11)}


def test_traces_of_two_sets_in_a_folder_are_refused(tmp_path):
    for name in ("a.0.et", "b.1.et"):
        et.write_trace(tmp_path / name, et.metadata(), [et.comp_node(1, "x")])
    with pytest.raises(et.TraceError, match=r"b\.1\.et: another name than a\.0\.et, expected one trace per NPU"):
        formats()["chakra"].read([tmp_path], {})


def test_what_no_format_knows_is_named(tmp_path):
    (tmp_path / "page.html").write_text("<html></html>")
    with pytest.raises(et.TraceError, match=r"page\.html: is text, expected one of: .*chakra "):
        format_of(tmp_path / "page.html")
    with pytest.raises(et.TraceError, match="no such file or folder"):
        format_of(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "--from 'nonsense': expected one of"),
        ("chakra:a=b", "found 'a=b', expected each once as option=value, of strict"),
    ],
)
def test_a_wrong_choice_says_what_there_is(text, says):
    with pytest.raises(et.TraceError, match=says):
        chosen(text, "read", "--from")
    assert chosen("chakra", "write", "--to") == ("chakra", formats()["chakra"], {})


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
    for line, node in nonempty(zip(found[1:], nodes, strict=True)):
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
        assert format_of(tmp_path / "c.0.json") == format_of(tmp_path / "c.1.json.gz") == "json"
    (tmp_path / "out").mkdir()
    traces = JSON.read([tmp_path / "c.0.json", tmp_path / "c.1.json.gz"], {})
    CHAKRA.write(traces, tmp_path / "out", "d", {})
    for npu in (0, 1):
        assert (tmp_path / "out" / f"d.{npu}.et").read_bytes() == (tmp_path / "a.0.et").read_bytes()


def graph_node(number, kind, **other):
    """A node of Chakra's JSON with `workload_graph`."""
    return {"Id": number, "Name": f"node {number}", "NodeType": int(kind), "is_cpu_op": False, **other}


def test_the_graph_of_chakras_feeder_is_read(tmp_path):
    graph = [
        graph_node(7, et.NodeType.COMP_NODE, runtime=12, num_ops=1 << 40, tensor_size=4096, data_deps=[]),
        graph_node(8, et.NodeType.COMM_COLL_NODE, comm_type=2, comm_size=1 << 20, comm_priority=3, data_deps=[7]),
        graph_node(9, et.NodeType.COMM_SEND_NODE, comm_src=0, comm_dst=1, comm_tag=5, comm_size=64, data_deps=[7, 8]),
        graph_node(10, et.NodeType.COMP_NODE, runtime=1, data_deps=[], ctrl_deps=[9], layer="mlp", depth=2),
    ]
    for npu in (0, 1):
        (tmp_path / f"w.{npu}.json").write_text(json.dumps({"workload_graph": graph}))
    assert format_of(tmp_path / "w.0.json") == format_of(tmp_path) == "json"
    traces = JSON.read([tmp_path], {})
    assert sorted(traces.tables) == [0, 1]
    (tmp_path / "out").mkdir()
    CHAKRA.write(traces, tmp_path / "out", "d", {})
    _, nodes = et.read_messages(tmp_path / "out" / "d.1.et")
    assert [(n.id, n.name, n.type, n.duration_micros, [*n.data_deps]) for n in nodes] == [
        (7, "node 7", 4, 12, []),
        (8, "node 8", 7, 0, [7]),
        (9, "node 9", 5, 0, [7, 8]),
        (10, "node 10", 4, 1, [9]),
    ]
    table = et.read_trace(tmp_path / "out" / "d.1.et")
    assert (table.num_ops[0], table.tensor_size[0]) == (1 << 40, 4096)
    assert (table.comm_type[1], table.comm_size[1]) == (et.CollectiveCommType.ALL_GATHER, 1 << 20)
    assert (table.comm_dst[2], table.comm_tag[2], table.comm_size[2]) == (1, 5, 64)
    kept = {a.name: getattr(a, a.WhichOneof("value")) for a in nodes[3].attr}
    assert kept == {"is_cpu_op": False, "layer": "mlp", "depth": 2}


def test_dependencies_that_dangle_are_dropped_where_the_option_says_so(tmp_path):
    graph = [graph_node(1, et.NodeType.COMP_NODE, runtime=1, data_deps=[5])]
    (tmp_path / "w.0.json").write_text(json.dumps({"workload_graph": graph}))
    assert JSON.read([tmp_path / "w.0.json"], {"strict": "false"}).tables[0].dangling == 1


def goal_text(npus, nodes=240):
    yield f"num_ranks {npus}\n"
    for rank in range(npus):
        lines = [f"c{i}: calc {2000 + i}\nc{i} requires c{i - 1}\n" if i else "c0: calc 5000\n" for i in range(nodes)]
        yield f"rank {rank} {{\n" + "".join(lines) + "}\n"


def peak_bytes(source, target, given, out):
    out.mkdir(parents=True)
    tracemalloc.start()
    try:
        formats()[target].write(formats()[source].read(given, {}), out, "t", {})
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["json", "goal"])
def test_memory_does_not_grow_with_the_npus(tmp_path, target):
    peaks = {}
    for npus in (4, 32):
        folder = tmp_path / str(npus)
        folder.mkdir()
        (folder / "in.goal").write_text("".join(goal_text(npus)))
        file_bytes = (folder / "in.goal").stat().st_size
        there = peak_bytes("goal", "chakra", [folder / "in.goal"], folder / "et") - file_bytes  # a piece of the text
        back = peak_bytes("chakra", target, [folder / "et"], folder / "back")
        peaks[npus] = there, back
    for few, many in nonempty(zip(peaks[4], peaks[32], strict=True)):
        assert many < 1.3 * few + 64_000, peaks
