"""`nadi timeline DIR`: read back with Perfetto's own protocol buffers."""

import numpy as np
import pytest

import nadi as package
from nadi.insight.link_load import _sent, link_load
from tests.cli.conftest import nadi  # noqa: F401 - a fixture
from tests.nonempty import nonempty

protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

MODEL = {"model": "gpt3-125m", "plan": "tp2,pp2,dp2,gb4"}


@pytest.fixture(scope="module")
def run():
    return package.simulate(workload=MODEL, topology={"cluster": "selene"}, network={"mtu": "16KiB"})


@pytest.fixture(scope="module")
def packets(run, tmp_path_factory):
    from nadi.reports.run_timeline import write_run_timeline

    path = tmp_path_factory.mktemp("timeline") / "run.perfetto-trace"
    shown = write_run_timeline(path, run)
    trace = protos.Trace()
    trace.ParseFromString(path.read_bytes())
    return shown, trace.packet


def read(packets):
    """Slices as (NPU, lane, name, begin, end, flows), and counters by name."""
    tracks, names, slices, open_ones, counters = {}, {}, [], {}, {}
    for packet in packets:
        for entry in packet.interned_data.event_names:
            names[entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            flows = [*event.flow_ids, *event.terminating_flow_ids]
            open_ones.setdefault(event.track_uuid, []).append((names[event.name_iid], packet.timestamp, flows))
        elif event.type == event.TYPE_SLICE_END:
            name, begin, flows = open_ones[event.track_uuid].pop()
            track = tracks[event.track_uuid]
            npu = tracks[track.parent_uuid].process.process_name
            slices.append((npu, track.name, name, begin, packet.timestamp, flows))
        elif event.type == event.TYPE_COUNTER:
            value = event.double_counter_value or event.counter_value
            counters.setdefault(tracks[event.track_uuid].name, []).append((packet.timestamp, value))
    assert not any(open_ones.values())
    return slices, counters


def test_every_node_is_a_slice_of_its_npu(run, packets):
    shown, found = packets
    slices, _ = read(found)
    nodes = run.nodes.to_pandas()
    nodes = nodes[nodes.kind != "noop"]
    expected = sorted(
        zip("NPU " + nodes.npu.astype(str), nodes.name, nodes.start_ps // 1000, nodes.finish_ps // 1000, strict=True)
    )
    assert sorted((npu, name, begin, end) for npu, _, name, begin, end, _ in slices) == expected
    assert shown.slices == len(expected)
    lanes = {lane for npu, lane, *_ in slices if npu == "NPU 0"}
    assert {"compute", "tp collectives", "dp collectives", "pp sends", "pp receives"} <= lanes


def test_arrows_join_sends_and_their_receives(packets):
    shown, found = packets
    ends = {}
    for npu, lane, name, begin, end, flows in read(found)[0]:
        for flow in flows:
            ends.setdefault(flow, []).append((lane, npu, name, begin, end))
    assert len(ends) == shown.flows > 0
    for pair in ends.values():
        (receive, send) = sorted(pair)
        assert (receive[0], send[0]) == ("pp receives", "pp sends")
        assert send[1] != receive[1]
        assert send[3] <= receive[4]


def test_counters_are_the_links_load(run, packets):
    shown, found = packets
    _, counters = read(found)
    assert len(counters) == shown.counters > 0
    load = link_load(run, 16, 1000)
    for link, share in nonempty(zip(load.link.tolist(), load.share, strict=True)):
        name = f"{run.links['src'][link]} → {run.links['dst'][link]}"
        assert max(value for _, value in counters[name]) == pytest.approx(100 * share.max(), abs=0.02)


def test_load_sums_to_what_messages_carry(run):
    """All bytes of the messages over a link, whatever the stretches."""
    load = link_load(run, 4, 37)
    flows = run.flows.to_pandas()
    link = int(load.link[0])
    src, dst = run.links["src"][link].as_py(), run.links["dst"][link].as_py()
    rate = run.links["rate_bps"][link].as_py()
    carried = (load.share[0] * np.diff(load.edges_ps)).sum() / 1e12 * rate / 8
    if src.startswith("npu"):
        assert carried <= flows[flows.src == int(src.split()[1])].bytes.sum() * (1 + 1e-9)
    assert carried <= run.links["tx_bytes"][link].as_py()
    assert carried > 0.5 * run.links["tx_bytes"][link].as_py(), (src, dst)


def test_bytes_are_spread_evenly():
    start, finish, size = np.array([0.0, 25.0]), np.array([100.0, 75.0]), np.array([100.0, 50.0])
    edges, rate = np.linspace(0, 100, 5), size / (finish - start)
    assert np.diff(_sent(start, rate, edges) - _sent(finish, rate, edges)) == pytest.approx([25, 50, 50, 25])


def test_the_command_is_bounded_and_says_what_it_leaves_out(run, nadi, tmp_path):  # noqa: F811
    out = tmp_path / "run.perfetto-trace"
    outcome = nadi("timeline", run.folder, "-o", out, "--npus", "0,4", "--most-slices", "100")
    assert outcome.code == 0
    assert "short nodes are merged with their neighbours" in outcome.out
    document = nadi("timeline", run.folder, "-o", out, "--npus", "0,4", "--most-slices", "100", "--json").document
    assert document["npus"] == 2
    assert document["slices"] <= 500
    for wrong in ("x", "99"):
        outcome = nadi("timeline", run.folder, "-o", out, "--npus", wrong)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
