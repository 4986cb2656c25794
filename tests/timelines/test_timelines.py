"""Timelines of traces and of runs are what Perfetto's own messages read."""

import numpy as np
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given, strategies as st

import nadi as package
from nadi import et
from nadi.errors import OutputError
from nadi.insight.link_load import _sent, link_load
from nadi.reports.perfetto import MAX_TRACKS, Slice, perfetto_trace, write_lane
from nadi.reports.timelines import write_run_timeline, write_trace_timeline
from tests.budgets import bounded
from tests.cli.conftest import nadi  # noqa: F401 - a fixture
from tests.et.measured_ranks import ranks_of, timed
from tests.nonempty import nonempty

pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


class Read:
    """Tracks by uuid, and events with their names, as Perfetto reads a file."""

    def __init__(self, path):
        self.trace = pb2.Trace.FromString(path.read_bytes())
        self.tracks, names, keys = {}, {}, {}
        self.events = []
        for packet in nonempty(self.trace.packet):
            parts = (packet, packet.track_descriptor, packet.track_event, packet.interned_data)
            assert not any(len(UnknownFieldSet(part)) for part in parts)
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            names.update({entry.iid: entry.name for entry in packet.interned_data.event_names})
            keys.update({entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names})
            if packet.HasField("track_event"):
                event = packet.track_event
                assert event.track_uuid in self.tracks
                said = {
                    keys[note.name_iid]: getattr(note, note.WhichOneof("value")) for note in event.debug_annotations
                }
                name = names[event.name_iid] if event.name_iid else ""
                self.events.append((event.track_uuid, packet.timestamp, event.type, name, said, event))

    def spans(self):
        """(process, lane, begin, end, name, flows) of all slices; those of a track are nested or apart."""
        open_ = {}
        for track, time, kind, name, _, event in self.events:
            stack = open_.setdefault(track, [])
            if kind == BEGIN:
                stack.append((time, name, [*event.flow_ids, *event.terminating_flow_ids]))
            elif kind == END:
                begin, own, flows = stack.pop()
                lane = self.tracks[track]
                process = self.tracks[lane.parent_uuid].process.process_name if lane.parent_uuid else ""
                yield process, lane.name, begin, time, own, flows
        assert not any(open_.values())

    def slices(self):
        return sorted(span[:5] for span in self.spans())

    def counters(self):
        found = {}
        for track, _, kind, *_, event in self.events:
            if kind == COUNTER:
                value = event.double_counter_value or event.counter_value
                found.setdefault(self.tracks[track].name, []).append(value)
        return found


def check_order(read):
    last = {}
    for track, time, *_ in read.events:
        assert time >= last.get(track, 0)
        last[track] = time


def test_every_kind_of_packet(tmp_path):
    path = tmp_path / "t.perfetto-trace"
    with perfetto_trace(path) as trace:
        process = trace.process("NPU 7", 8, rank=7)
        track = trace.track("compute", process, rank=2)
        counter = trace.counter("queue", "bytes", process)
        trace.begin(track, 10, "gemm", {"flops": 2**40, "share": 0.5, "text": "é", "less": -3}, flows=[5])
        trace.end(track, 2**40)
        trace.begin(track, 2**40, "gemm", ended_flows=[5])
        trace.end(track, 2**40 + 1)
        trace.instant(track, 2**41, "here")
        trace.count(counter, 3, -7)
        trace.count(counter, 4, 0.25)
    read = Read(path)
    descriptors = list(read.tracks.values())
    assert (descriptors[0].process.pid, descriptors[0].process.process_name) == (8, "NPU 7")
    assert [d.name for d in descriptors[1:]] == ["compute", "queue"]
    assert [d.parent_uuid for d in descriptors[1:]] == [descriptors[0].uuid] * 2
    assert descriptors[2].counter.unit_name == "bytes"
    assert read.slices() == [("NPU 7", "compute", 10, 2**40, "gemm"), ("NPU 7", "compute", 2**40, 2**40 + 1, "gemm")]
    assert read.events[0][4] == {"flops": 2**40, "share": 0.5, "text": "é", "less": -3}
    assert list(read.events[0][5].flow_ids) == list(read.events[2][5].terminating_flow_ids) == [5]
    assert [event[5].counter_value for event in read.events[-2:]] == [-7, 0]
    assert read.events[-1][5].double_counter_value == 0.25
    assert len({packet.trusted_packet_sequence_id for packet in read.trace.packet}) == 1
    assert read.trace.packet[0].sequence_flags == 1  # cleared
    names = [entry.name for packet in read.trace.packet for entry in packet.interned_data.event_names]
    assert names == ["gemm", "here"]  # each once
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_nothing_is_left_of_a_timeline_that_fails(tmp_path):
    def fail(trace):
        trace.track("x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), perfetto_trace(tmp_path / "t") as trace:
        fail(trace)
    assert list(tmp_path.iterdir()) == []
    with (
        pytest.raises(OutputError, match="a folder; expected a file to write the timeline to"),
        perfetto_trace(tmp_path),
    ):
        pass
    with pytest.raises(OutputError, match="No such file"), perfetto_trace(tmp_path / "no" / "t"):
        pass


@bounded(100)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=20))
def test_slices_that_overlap_get_tracks_of_their_own(tmp_path_factory, spans):
    path = tmp_path_factory.mktemp("lanes") / "t"
    slices = [Slice(begin, begin + length, f"{i}", {}) for i, (begin, length) in enumerate(spans)]
    with perfetto_trace(path) as trace:
        assert write_lane(trace, "lane", trace.process("p", 1), slices) == 0
    read = Read(path)
    check_order(read)
    assert sorted(found[2:] for found in read.slices()) == sorted(slice_[:3] for slice_ in slices)


def test_lanes_have_so_many_tracks_at_most(tmp_path):
    slices = [Slice(i, 1000 + i, "x", {}) for i in range(MAX_TRACKS + 5)]
    with perfetto_trace(tmp_path / "t") as trace:
        assert write_lane(trace, "lane", trace.process("p", 1), slices) == 5
    assert len(Read(tmp_path / "t").slices()) == MAX_TRACKS


def test_recorded_times_by_lane_with_arrows(tmp_path):
    ranks = ranks_of(
        [
            timed(et.comp_node(0, "op", is_cpu_op=True), 1000, 20),
            timed(et.comp_node(1, "inner", is_cpu_op=True), 1005, 5),
            timed(et.send_node(2, "s", 0, 1, 64, 3), 1010, 10),
        ],
        [timed(et.recv_node(0, "r", 0, 1, 64, 3), 1012, 9), timed(et.coll_node(1, "x", 0, 8), 1030, 4)],
    )
    shown = write_trace_timeline(tmp_path / "t", ranks)
    assert shown[:4] == (2, 0, "evenly spaced", 5)
    assert (shown.flows, shown.times, shown.notes()) == (1, "recorded", [])
    read = Read(tmp_path / "t")
    check_order(read)
    assert read.slices() == [
        ("NPU 0", "host", 0, 20_000, "op"),
        ("NPU 0", "host", 5_000, 10_000, "inner"),
        ("NPU 0", "sends", 10_000, 20_000, "s"),
        ("NPU 1", "collectives", 30_000, 34_000, "x"),
        ("NPU 1", "receives", 12_000, 21_000, "r"),
    ]
    by_name = {name: event for _, _, _, name, _, event in read.events if name}
    assert list(by_name["s"].flow_ids) == list(by_name["r"].terminating_flow_ids) != []
    said = next(said for *_, name, said, _ in read.events if name == "x")
    assert said == {"id": "1", "comm_size": 8, "kind": "all-reduce", "group": "all NPUs"}


def test_without_starts_nodes_start_as_dependencies_allow(tmp_path):
    nodes = [et.comp_node(0, "a", duration_micros=3), et.comp_node(1, "b", duration_micros=4, deps=[0])]
    shown = write_trace_timeline(tmp_path / "t", ranks_of(nodes))
    assert shown.times == "by dependencies"
    assert [found[2:] for found in Read(tmp_path / "t").slices()] == [(0, 3000, "a"), (3000, 7000, "b")]
    shown = write_trace_timeline(tmp_path / "t", ranks_of([et.comp_node(0, "a"), et.comp_node(1, "b", deps=[0])]))
    read = Read(tmp_path / "t")
    assert [found[2:] for found in read.slices()] == [(0, 1000, "a"), (1000, 2000, "b")]
    assert [name for *_, kind, name, _, _ in read.events if kind == INSTANT] == shown.notes()
    assert "no times are recorded" in shown.notes()[0]


def test_large_traces_are_bounded_and_say_so(tmp_path):
    many = [timed(et.comp_node(i, f"c{i}"), 1 + 10 * i, 9 if i % 100 == 0 else 2) for i in range(1000)]
    shown = write_trace_timeline(tmp_path / "t", ranks_of(*[many] * 4), max_slices=20)
    assert (shown.npus, shown.npus_left_out) == (1, 3)
    assert shown.slices <= 2 * 20 + 1
    slices = Read(tmp_path / "t").slices()
    assert len(slices) == shown.slices
    assert sum(name.startswith("c") for *_, name in slices) == 20
    assert {f"c{i}" for i in range(0, 1000, 100)} <= {name for *_, name in slices}
    aggregated = sum(int(name.split()[0]) for *_, name in slices if not name.startswith("c"))
    assert aggregated == shown.aggregated == 980
    assert len(shown.notes()) == 2


MODEL = {"model": "gpt3-125m", "plan": "tp2,pp2,dp2,gb4"}


@pytest.fixture(scope="module")
def run():
    return package.simulate(workload=MODEL, topology={"cluster": "selene"}, network={"mtu": "16KiB"})


@pytest.fixture(scope="module")
def packets(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("timeline") / "run.perfetto-trace"
    shown = write_run_timeline(path, run)
    return shown, Read(path)


def test_every_node_is_a_slice_of_its_npu(run, packets):
    shown, found = packets
    nodes = run.nodes.to_pandas()
    nodes = nodes[nodes.kind != "noop"]
    expected = sorted(
        zip("NPU " + nodes.npu.astype(str), nodes.name, nodes.start_ps // 1000, nodes.finish_ps // 1000, strict=True)
    )
    assert sorted((npu, name, begin, end) for npu, _, begin, end, name in found.slices()) == expected
    assert shown.slices == len(expected)
    lanes = {lane for npu, lane, *_ in found.slices() if npu == "NPU 0"}
    assert {"compute", "tp collectives", "dp collectives", "pp sends", "pp receives"} <= lanes


def test_arrows_join_sends_and_their_receives(packets):
    shown, found = packets
    ends = {}
    for npu, lane, begin, end, name, flows in found.spans():
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
    counters = found.counters()
    assert len(counters) == shown.counters > 0
    load = link_load(run, 16, 1000)
    for link, share in nonempty(zip(load.link.tolist(), load.share, strict=True)):
        name = f"{run.links['src'][link]} → {run.links['dst'][link]}"
        assert max(counters[name]) == pytest.approx(100 * share.max(), abs=0.02)


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
    outcome = nadi.ok("timeline", run.folder, "-o", out, "--npus", "0,4", "--most-slices", "100")
    assert "short nodes are merged with their neighbours" in outcome.out
    document = nadi("timeline", run.folder, "-o", out, "--npus", "0,4", "--most-slices", "100", "--json").document
    assert document["npus"] == 2
    assert document["slices"] <= 500
    for wrong in ("x", "99"):
        outcome = nadi.refuse("timeline", run.folder, "-o", out, "--npus", wrong)
