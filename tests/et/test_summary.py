import io
import json

from rich.console import Console

from nadi import et
from nadi.et.schema import Node
from nadi.reports.text.trace import trace_report


def described(tmp_path, nodes):
    path = tmp_path / "t.0.et"
    et.write_trace(path, et.metadata(), nodes)
    return et.describe(path)


def test_the_summary_of_a_small_trace(tmp_path, small_trace):
    found = described(tmp_path, small_trace[1])
    assert json.loads(json.dumps(found)) == found
    first = found.pop("first_nodes")
    assert found == {
        "path": str(tmp_path / "t.0.et"),
        "version": "0.0.4",
        "nodes": 7,
        "node_types": {
            "METADATA_NODE": 1, "MEM_LOAD_NODE": 1, "MEM_STORE_NODE": 1, "COMP_NODE": 1, "COMM_SEND_NODE": 1,
            "COMM_RECV_NODE": 1, "COMM_COLL_NODE": 1,
        },
        "cpu_ops": 0,
        "dependencies": 8,
        "dangling_dependencies": 0,
        "dropped_control_dependencies": 0,
        "control_cycle": "",
        "roots": 1,
        "depth": 6,
        "compute_micros": 12,
        "num_ops": 1 << 40,
        "tensor_bytes": (1 << 33) + 8192,
        "collectives": [{"kind": "all-reduce", "group": "7", "count": 1, "bytes": 1 << 20, "missing_sizes": 0}],
        "sends": {"count": 1, "bytes": 65536, "missing_sizes": 0},
        "receives": {"count": 1, "bytes": 65536, "missing_sizes": 0},
        "metadata_groups": {"7": [0, 2]},
    }  # fmt: skip
    assert len(first) == 7
    assert first[6] == {"id": 7, "name": "store", "type": "MEM_STORE_NODE", "duration_micros": 0, "parents": [4, 6]}


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


def test_the_summary_on_a_terminal(tmp_path, small_trace):
    _, nodes = small_trace
    nodes[2].name = "mat[bold]mul[/]"
    console = Console(file=io.StringIO(), width=120)
    console.print(trace_report(described(tmp_path, nodes)))
    text = console.file.getvalue()
    for expected in ("t.0.et", "COMM_SEND_NODE", "1,048,576", "all-reduce", "mat[bold]mul[/]", "4 6"):
        assert expected in text
