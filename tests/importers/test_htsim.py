"""`nadi htsim`: htsim's own matrices and trees, its published times, triggers, failures, and options."""

import pytest
from pyarrow import parquet

from nadi.errors import ConfigError
from nadi.importers.htsim import HtsimOptions, translated
from nadi.workload.generators.point_to_point.connection_matrix import flow_traces, read_connections
from tests.nonempty import nonempty

HEAD = "Nodes 8\nConnections {flows}\nTriggers {triggers}\nFailures {failures}\n"
FABRIC = "switch:npus=8,rate=100Gbps,delay=1us"


def matrix(tmp_path, *lines):
    """A matrix of these lines, with the counts that they need."""
    counts = {
        "flows": sum("->" in line for line in lines),
        "triggers": sum(line.startswith("trigger") for line in lines),
        "failures": sum(line.startswith("failure") for line in lines),
    }
    (tmp_path / "x.cm").write_text(HEAD.format(**counts) + "".join(f"{line}\n" for line in lines))
    return tmp_path / "x.cm"


def times(folder):
    """Start and finish of each message in a folder of results, in us, by sender and receiver."""
    rows = parquet.read_table(folder / "flows.parquet").to_pylist()
    return {(row["src"], row["dst"]): (row["start_ps"] / 1e6, row["finish_ps"] / 1e6) for row in rows}


def run(nadi, tmp_path, *lines, options=()):
    nadi.ok("htsim", "-tm", matrix(tmp_path, *lines), "-topo", FABRIC, "--out", tmp_path / "out", *options)
    return times(tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        ("bidir.cm", None),
        ("incast_2to1_size4194304B.cm", "fat_tree_128_4os.topo"),
        ("outcast_incast.cm", "fat_tree_128_8os.topo"),
        ("perm_1024n_1024c_0u_2000000b.cm", "leaf_spine_1024.topo"),
    ],
)
def test_their_files_run_unchanged(nadi, shared_data, name, tree):
    own = shared_data / "formats" / "htsim"
    topology = ("-topo", own / tree) if tree else ()
    outcome = nadi.ok(
        "htsim", "-tm", own / name, *topology, "-q", 50, "-ecn", 12, 37, "-end", 1000, "--json", "--quiet"
    )
    flows = sum("->" in line for line in (own / name).read_text().splitlines())
    assert f"{flows:,} flows" in outcome.err
    assert outcome.document["finish_time_ps"] > 0


def test_a_permutation_stays_the_same(shared_data):
    path = shared_data / "formats" / "htsim" / "perm_1024n_1024c_0u_2000000b.cm"
    read = read_connections(path)
    written = [line.split()[0] for line in path.read_text().splitlines() if "->" in line]
    assert [f"{flow.src}->{flow.dst}" for flow in read.flows] == written
    assert sorted(flow.src for flow in read.flows) == sorted(flow.dst for flow in read.flows) == list(range(1024))
    traces = flow_traces(read).traces
    for flow in nonempty(read.flows):
        table = traces.traces[traces.trace_of_npu[flow.src]]
        assert table.comm_dst[table.comm_dst != flow.src].tolist() == [flow.dst]


def test_starts_are_picoseconds(nadi, tmp_path):
    found = run(nadi, tmp_path, "0->1 id 1 start 2500001 size 1000", "0->2 id 2 start 0.0 size 1000")
    assert (found[0, 1][0], found[0, 2][0]) == (2.500001, 0)


@pytest.mark.parametrize(
    ("trigger", "src", "after_us"),
    [("send_done", 0, 4 + 2 * 64 * 8 / 100e3), ("recv_done", 1, 2)],
    ids=["the sender waits for the last acknowledgement", "the receiver for the bytes"],
)
def test_a_trigger_waits_for_the_whole_message(nadi, tmp_path, trigger, src, after_us):
    first = f"0->1 id 1 start 0 size 40860 {trigger}_trigger 7"
    found = run(nadi, tmp_path, first, f"{src}->2 id 2 trigger 7 size 4086", "trigger id 7 oneshot")
    sent_us = (10 + 1) * 4150 * 8 / 100e3  # ten packets, of which the last is sent twice
    assert found[src, 2][0] == pytest.approx(sent_us + after_us, abs=0.001)


def test_both_kinds_of_triggers_are_told(tmp_path):
    lines = (
        "0->1 id 1 start 0 size 5 send_done_trigger 1 recv_done_trigger 2",
        "0->2 trigger 1 size 5",
        "1->2 trigger 2 size 5",
    )
    path = matrix(tmp_path, *lines, "trigger id 1 oneshot", "trigger id 2 oneshot")
    (warning,) = translated(HtsimOptions(traffic=path, topology=FABRIC)).warnings
    assert warning.startswith("send_done_trigger fires when the last byte has left")


def test_a_barrier_waits_for_all_and_reaches_other_nodes_by_a_byte(nadi, tmp_path):
    lines = (
        "0->1 id 1 start 0 size 4086 recv_done_trigger 9",
        "2->3 id 2 start 50000000 size 4086 recv_done_trigger 9",
        "1->4 id 3 trigger 9 size 4086",
        "trigger id 9 barrier count 2",
    )
    found = run(nadi, tmp_path, *lines)
    (late,) = (times for ends, times in found.items() if ends == (3, 1))  # the message of one byte
    assert late[0] == pytest.approx(found[2, 3][1], abs=1e-6)
    assert found[1, 4][0] == pytest.approx(late[1], abs=1e-6)


def test_chains_of_triggers_run_in_order(nadi, tmp_path):
    """htsim's gen_serialn_alltoall: a node sends to the next when the one before is done."""
    ends = [1, 2, 3]
    lines = [f"0->{dst} id {dst} {'start 0' if dst == 1 else f'trigger {dst - 1}'} size 8000" for dst in ends]
    lines = [line + (f" send_done_trigger {dst}" if dst < 3 else "") for line, dst in zip(lines, ends, strict=True)]
    found = run(nadi, tmp_path, *reversed(lines), "trigger id 1 oneshot", "trigger id 2 oneshot")
    starts = [found[0, dst][0] for dst in ends]
    assert starts == sorted(starts)
    assert starts[1] > found[0, 1][1]


def test_a_failed_uplink_is_down_from_the_start(shared_data, tmp_path):
    (tmp_path / "x.cm").write_text(
        "Nodes 128\nConnections 1\nFailures 1\n0->127 id 1 start 0 size 8000\n"
        "failure switch_type AGG switch_id 5 link_id 2\n"
    )
    tree = str(shared_data / "formats" / "htsim" / "fat_tree_128_1os.topo")
    faults = translated(HtsimOptions(traffic=tmp_path / "x.cm", topology=tree)).sections["faults"]
    assert faults == [{"at": "0ps", "link": "agg 5 - core 9", "cable": 0, "state": "down"}]
    with pytest.raises(ConfigError, match="expected one"):
        translated(HtsimOptions(traffic=tmp_path / "x.cm", topology="switch:npus=128"))


def test_options_of_queues_and_windows(tmp_path):
    options = HtsimOptions(
        *(matrix(tmp_path, "0->1 id 1 start 0 size 1000"), None, FABRIC), queue_packets=50, ecn_packets=(12, 37)
    )
    network = translated(options._replace(window_packets=75, paths=1, trims=False)).sections["network"]
    assert (network["mtu"], network["header"], network["buffer"]) == (4086, "64B", "2000000000B")
    # at 25 Gb/s, from which thresholds scale with the rate of a port
    assert network["trim_threshold"] == f"{50 * 4150 // 4}B"
    assert (network["ecn_kmin"], network["ecn_kmax"]) == (f"{12 * 4150 // 4}B", f"{round(37 * 4150 / 4)}B")
    assert (network["window"], network["load_balancing"], network["trimming"]) == (f"{75 * 4086}B", "ecmp", False)
    assert network["congestion"] == {"target_qdelay_rtts": 1.0}
    usual = translated(options).sections["network"]
    assert (usual["load_balancing"], usual["congestion"]) == ("ecmp", {"target_qdelay_rtts": 0.75})
    assert (usual["entropy"], usual["paths"]) == ("mixed", 64)
    other = translated(options._replace(control="constant", strategy="ecmp_ar")).sections["network"]
    assert (other["congestion_control"], other["load_balancing"]) == ("none", "adaptive")


@pytest.mark.parametrize(("topology", "target_ps"), [("df/dragonfly", 5_485_350), ("sf/slimfly", 5_703_240)])
def test_target_delays_of_direct_networks(shared_data, topology, target_ps):
    """0.75 round trips over a detour: targetRttNs of flowsInfo.csv, which spcl's simulator writes for these files."""
    own = shared_data / "fabrics" / "spritz"
    options = HtsimOptions(next((own / topology).parent.glob("permutation*.cm")), None, str(own / f"{topology}.topo"))
    control = translated(options._replace(packet_bytes=4160)).sections["network"]["congestion"]
    assert control["target_qdelay_rtts"] * control["base_rtt_ps"] == pytest.approx(target_ps)


@pytest.mark.parametrize(("nodes", "tiers", "name"), [(16, 3, "fat-tree"), (8, 2, "leaf-spine")])
def test_a_tree_without_a_file(tmp_path, nodes, tiers, name):
    path = matrix(tmp_path, "0->1 id 1 start 0 size 1000")
    path.write_text(path.read_text().replace("Nodes 8", f"Nodes {nodes}"))
    graph = translated(HtsimOptions(traffic=path, tiers=tiers)).sections["topology"]["graph"]
    assert (graph.npus, graph.name.split(":")[0]) == (nodes, name)


PUBLISHED = {
    "200g_nscc": (44.94, 58.81),
    "400g_nscc": (24.46, 35.39),
    "800g_nscc": (14.22, 22.14),
    "200g_nscc_4_to_1": (45.07, 279.86),
}
"""Shortest and longest completion in us of htsim for 1 MB from each of 8,192 hosts to another, 128 paths."""


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["800g_nscc"])
def test_published_completion_times(nadi, shared_data, tmp_path, experiment):
    """docs/reference/peers.md has all four; the permutation is another one, so that times are near, not equal."""
    import random

    text = (shared_data / "formats" / "htsim" / "results" / f"{experiment}.txt").read_text()
    options = next(line for line in text.splitlines() if "1MB.cm" in line and "-paths 128" in line).split()
    low, high = PUBLISHED[experiment]
    assert f"FCT Spread {low:.1f}"[:14] in text
    receivers = list(range(8192))
    random.Random(1).shuffle(receivers)  # noqa: S311 - a permutation, no secret
    pairs = zip(receivers, [*receivers[1:], receivers[0]], strict=True)
    flows = [f"{src}->{dst} id {i} start 0 size 1000000" for i, (src, dst) in enumerate(pairs, 1)]
    (tmp_path / "perm.cm").write_text("\n".join(["Nodes 8192", "Connections 8192", *flows]))
    tier = "Tier {}\nDownlink_speed_Gbps 800\nRadix_Down {}\nDownlink_Latency_ns 1000\n{}"
    tiers = tier.format(0, 64, "Radix_Up 64\n") + tier.format(1, 128, "")
    (tmp_path / "net.topo").write_text(f"Nodes 8192\nTiers 2\nPodsize 8192\n{tiers}")
    given = dict(zip(options[2::2], options[3::2], strict=False))
    outcome = nadi(
        *("htsim", "-tm", tmp_path / "perm.cm", "-topo", tmp_path / "net.topo", "-paths", 128, "-sender_cc_only"),
        *("-q", given["-q"], "-ecn", *options[options.index("-ecn") + 1 :][:2], "-cwnd", 300, "--json", "--quiet"),
    )
    line = next(line for line in outcome.err.splitlines() if line.startswith("FCT spread"))
    shortest, longest = (float(word) for word in line.split()[2:5:2])
    assert shortest == pytest.approx(low, rel=0.02)
    assert longest == pytest.approx(high, rel=0.08)
