"""SimAI's topology text: made here, and the project's own files where they are at hand."""

import pytest

from nadi import topologies

TEXT = """6 2 2 2 5 H100
2 3 4 5
0 2 2880Gbps 0.000025ms 0
1 3 2880Gbps 0.000025ms 0
0 4 400Gbps 0.0005ms 0
1 5 400Gbps 0.0005ms 0
4 5 100Gbps 0.001ms 0
"""


def build(tmp_path, text, **arguments):
    path = tmp_path / "net"
    path.write_text(text)
    return topologies.build({"name": "simai", "path": str(path), **arguments}) if arguments else topologies.build(path)


def test_nodes_and_links(tmp_path):
    graph = build(tmp_path, TEXT)
    assert (graph.npus, graph.nodes, graph.links) == (2, 6, 10)
    assert graph.node_kind.tolist() == [0, 0, 2, 2, 1, 1]
    assert [graph.node_name(node) for node in (2, 3, 4, 5)] == ["nvswitch 2", "nvswitch 3", "switch 4", "switch 5"]
    route = topologies.route(graph, 0, 1)
    assert graph.link_rate_bps[route].tolist() == [400 * 10**9, 100 * 10**9, 400 * 10**9]
    assert graph.link_delay_ps[route].tolist() == [500_000, 1_000_000, 500_000]
    assert graph.host.tolist() == [0, 0]


def test_switch_latencies(tmp_path):
    graph = build(tmp_path, TEXT, switch_latency="300ns", nvswitch_latency="50ns")
    assert graph.node_latency_ps.tolist() == [0, 0, 50_000, 50_000, 300_000, 300_000]


def test_the_short_header_and_switches_before_the_gpus(tmp_path):
    graph = build(tmp_path, "4 1 3\n0\n0 1 100Gbps 1us 0\n0 2 100Gbps 1us 0\n\n3 0 200Gbps 1us 0.0\n")
    assert (graph.npus, graph.nodes) == (3, 4)
    assert graph.node_name(3) == "switch 0"
    assert graph.link_rate_bps[topologies.route(graph, 0, 2)].tolist() == [100 * 10**9, 200 * 10**9]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "6 2 2 2 5 H100",
            "6 2 2",
            (
                "line 2: 4 different switches of 4 entries; "
                "expected 2 numbers below 6, 0 NVSwitches and 2 switches of the header"
            ),
        ),
        (
            "6 2 2 2 5 H100",
            "hello world",
            (
                "line 1: 'hello world' is no header; "
                "expected: nodes gpus_per_server nvswitches switches links gpu_type, or nodes switches links"
            ),
        ),
        ("6 2 2 2 5 H100", "6 0 2 2 5 H100", "line 1: gpus_per_server = 0; expected 1 or more"),
        (
            "2 3 4 5",
            "2 3 4 9",
            (
                "line 2: 3 different switches of 4 entries; "
                "expected 4 numbers below 6, 2 NVSwitches and 2 switches of the header"
            ),
        ),
        ("2 2 5 H100", "2 2 6 H100", "5 links found; expected 6 of the header"),
        ("0 4 400Gbps", "0 6 400Gbps", "line 5: node 6; expected a number below 6"),
        ("0 4 400Gbps", "0 4 0Gbps", "line 5: rate '0Gbps' is zero; expected more than 0"),
        (
            "0 4 400Gbps 0.0005ms 0",
            "0 4 400Gbps 0",
            "line 5: '0 4 400Gbps 0'; expected: source destination rate delay error_rate",
        ),
        (
            "0 4 400Gbps 0.0005ms 0",
            "0 4 400Gbps 0.0005ms 0.1",
            "line 5: error rate 0.1; expected 0, as links that lose packets are not modelled",
        ),
        ("0 4 400Gbps 0.0005ms 0", "0 4 400Gbps 0.0005ms x", "line 5: could not convert string to float: 'x'"),
        (
            "4 5 100Gbps",
            "4 0 100Gbps",
            "no path of switches from npu 0 to npu 1; expected a connected network, as NPUs carry no transit",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(old, new, complaint, tmp_path):
    assert old in TEXT
    with pytest.raises(topologies.TopologyError) as error:
        build(tmp_path, TEXT.replace(old, new))
    assert str(error.value) == f"{tmp_path / 'net'}: {complaint}"


def test_what_follows_the_links_of_the_header_is_not_read(tmp_path):
    """As in ns-3; files of HPCC and of ConWeave end in a description of the form."""
    behind = "\n\nFirst line: nodes, switches, links\nsrc0 dst0 rate delay error_rate\n...\n"
    graph = build(tmp_path, f"4 1 3\n3\n0 3 1Gbps 1us 0\n\n1 3 1Gbps 1us 0\n2 3 1Gbps 1us 0{behind}")
    assert (graph.npus, graph.links) == (3, 6)
    [remark] = graph.remarks
    assert remark.startswith(f"{tmp_path / 'net'}: 3 lines are not read, from line 8 on ('First line: nodes, switches,")
    assert remark.endswith("behind the 3 links of the header")
    assert topologies.extent(tmp_path / "net").cables == 3
    graph = build(tmp_path, TEXT + "5 2 1Gbps 1us 0\n")
    assert "1 line is not read, from line 8 on" in graph.remarks[0]
    assert (graph.links, build(tmp_path, TEXT).remarks) == (10, ())


def test_numbers_of_the_file(tmp_path):
    graph = build(tmp_path, "5 1 4\n1\n1 0 1Gbps 1us 0\n1 2 1Gbps 1us 0\n1 3 1Gbps 1us 0\n1 4 1Gbps 1us 0\n")
    assert graph.numbers == (0, 2, 3, 4, 1)
    text = "7 2 2 1 8 H100\n0 1 2\n" + "".join(f"{a} {b} 1Gbps 1us 0\n" for a in range(3, 7) for b in (0, 1))
    graph = build(tmp_path, text.replace("2 1 8", "2 1 9") + "3 2 1Gbps 1us 0\n")
    assert graph.numbers == (3, 4, 5, 6, 0, 2)  # NVSwitches 0 and 1 are one


@pytest.mark.parametrize(
    ("gpu_type", "model"), [("H100", "h100"), ("H800", "h100"), ("A800", "a100"), ("b200", "b200"), ("NONE", "")]
)
def test_the_gpu_type_selects_the_constants_of_nccl(tmp_path, gpu_type, model):
    graph = build(tmp_path, TEXT.replace("H100", gpu_type))
    assert (graph.accelerator, graph.remarks) == (model, ())


def test_an_unknown_gpu_type_is_named(tmp_path):
    graph = build(tmp_path, TEXT.replace("H100", "X1"))
    assert graph.accelerator == ""
    assert "gpu_type 'X1' is unknown: NCCL's constants follow from the rate of NVLink" in graph.remarks[0]


def test_an_empty_and_a_binary_file(tmp_path):
    with pytest.raises(topologies.TopologyError, match="line 1: '' is no header"):
        build(tmp_path, "")
    (tmp_path / "net").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(topologies.TopologyError, match="not a text"):
        topologies.build(tmp_path / "net")


@pytest.mark.parametrize(
    ("name", "switches", "rails"),
    [
        ("Spectrum-X_8g_8gps_400Gbps_H100", {"nvswitch": 1, "switch": 9}, True),
        ("Spectrum-X_128g_8gps_400Gbps_H100", {"nvswitch": 16, "switch": 9}, True),
        ("DCN+SingleToR_128g_8gps_400Gbps_H100", {"nvswitch": 16, "switch": 10}, False),
    ],
)
def test_files_of_simai(shared_data, name, switches, rails, tmp_path):
    path = shared_data / "simai" / name
    nodes, per_server, nvswitches, count, links, _ = path.read_text().split("\n", 1)[0].split()
    graph = topologies.build(path)
    assert graph.nodes == int(nodes)
    assert graph.links == 2 * int(links)
    assert graph.npus == int(nodes) - int(nvswitches) - int(count)
    assert topologies.describe(graph)["switches"] == switches
    assert (graph.node_kind == topologies.NVSWITCH).sum() == int(nvswitches)
    assert graph.host.tolist() == [npu // int(per_server) for npu in range(graph.npus)]
    for npu in range(graph.npus):
        assert graph.node_kind[graph.link_dst[graph.out_links(npu)]].tolist() == [2, 1]
    assert len(topologies.route(graph, 0, 7)) == 2
    if graph.npus > 8:
        assert len(topologies.route(graph, 0, 8)) == 2
        assert len(topologies.route(graph, 0, 9)) == (4 if rails else 2)
    topologies.write_toml(graph, tmp_path / "net.toml")
    again = topologies.build(tmp_path / "net.toml")
    assert (again.link_src == graph.link_src).all()
    assert (again.link_rate_bps == graph.link_rate_bps).all()


FOUR = "5 1 5\n0\n" + "".join(f"{gpu} 0 {gpu}00Gbps 1us 0\n" for gpu in (1, 2, 3, 4)) + "0 2 700Gbps 1us 0\n"


def test_logical_dimensions_are_those_of_the_first_gpus(tmp_path):
    """GPUs 1 and 2 of four, the second with two links."""
    graph = build(tmp_path, FOUR, dims="2x1")
    assert (graph.npus, graph.nodes, graph.dims, graph.switch_names) == (2, 3, (2, 1), ("switch 0",))
    assert sorted(graph.link_rate_bps[::2]) == [10**11, 2 * 10**11, 7 * 10**11]
    assert build(tmp_path, FOUR, dims="2x2").dims == (2, 2)
    assert build(tmp_path, FOUR).dims == (4,)
    with pytest.raises(topologies.TopologyError, match="dims 3x2 for 4 GPUs; expected at most as many"):
        build(tmp_path, FOUR, dims="3x2")


def test_the_last_of_parallel_links(tmp_path):
    graph = build(tmp_path, FOUR, parallel_links="last")
    assert sorted(graph.link_rate_bps[::2]) == [10**11, 3 * 10**11, 4 * 10**11, 7 * 10**11]
    assert build(tmp_path, FOUR).links == 10
    with pytest.raises(topologies.TopologyError, match="parallel_links"):
        build(tmp_path, FOUR, parallel_links="first")
