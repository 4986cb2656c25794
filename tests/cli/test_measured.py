"""`nadi compare --measured`: times of a run, written into its traces and perturbed as we know, are found again."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.insight import accuracy
from nadi.insight.measured import estimate_clocks, read_beside
from tests.nonempty import nonempty

RING = 'spec = "ring:npus=4,rate=8Gbps,delay=1us"'
ANALYTICAL = '[network]\nfidelity = "analytical"\n'
SIZE = 4_000_000
"""Four chunks of 1 MB at 1 byte/ns: all is whole microseconds, which traces hold."""


def program(npu, npus=4):
    """Compute of another length on each NPU, two all-reduces, an all-gather of pairs, and messages around the ring."""
    reduce, gather = et.CollectiveCommType.ALL_REDUCE, et.CollectiveCommType.ALL_GATHER
    pair = "even" if npu < npus // 2 else "odd"
    return [
        et.comp_node(11, "forward", duration_micros=100 + 10 * npu),
        et.coll_node(12, "sum", reduce, SIZE, deps=[11]),
        et.coll_node(13, "gather", gather, SIZE, pg_name=pair, deps=[12]),
        et.send_node(14, "send", npu, (npu + 1) % npus, 1_000_000, deps=[13]),
        et.recv_node(15, "receive", (npu - 1) % npus, npu, 1_000_000, deps=[13]),
        et.coll_node(16, "sum again", reduce, 2 * SIZE, deps=[14, 15]),
        et.comp_node(17, "update", duration_micros=40, deps=[16]),
    ]


@pytest.fixture
def finished(nadi, write_run, tmp_path):
    def run(out="out", topology=RING):
        (tmp_path / "groups.json").write_text('{"even": [0, 1], "odd": [2, 3]}')
        text = ANALYTICAL
        file = write_run([program(npu) for npu in range(4)], text, topology)
        file.write_text(file.read_text().replace("[workload]\n", '[workload]\ngroups = "groups.json"\n'))
        nadi.ok("run", file, "--out", tmp_path / out, "-q")
        return tmp_path / out

    return run


def times_of(run):
    table = pq.read_table(run / "nodes.parquet").to_pydict()
    return {
        (npu, node): (start, finish - start)
        for npu, node, start, finish in zip(
            table["npu"], table["node_id"], table["start_ps"], table["finish_ps"], strict=True
        )
    }


def measured(run, prefix, times, base=1_700_000_000_000_000):
    """Write traces of the run with these times in microseconds, as of an epoch."""
    prefix.parent.mkdir(exist_ok=True)
    for npu in range(4):
        metadata, nodes = et.read_messages(run.parent / f"trace.{npu}.et")
        for node in nodes:
            start, duration = times[npu, node.id]
            node.start_time_micros, node.duration_micros = base + round(start), round(duration)
        et.write_trace(f"{prefix}.{npu}.et", metadata, nodes)
    return prefix


def micros(times):
    return {key: (start / 1e6, duration / 1e6) for key, (start, duration) in times.items()}


def test_waiting_that_a_converter_has_taken_out_of_durations_counts(nadi, finished, tmp_path):
    run = finished()
    whole = measured(run, tmp_path / "whole" / "trace", micros(times_of(run)))
    (tmp_path / "short").mkdir()
    waited = []
    for npu in range(4):
        metadata, nodes = et.read_messages(tmp_path / "whole" / f"trace.{npu}.et")
        for node in nodes:
            if node.name == "sum":
                waited.append(30 - 10 * npu)  # for NPU 3, which computes longest
                node.start_time_micros += waited[-1]
                node.duration_micros -= waited[-1]
                node.attr.append(et.attribute("wait_micros", "int64", waited[-1]))
        et.write_trace(tmp_path / "short" / f"trace.{npu}.et", metadata, nodes)
    assert waited == [30, 20, 10, 0]
    said = [nadi("compare", "--measured", run, of, "--json").document for of in (whole, tmp_path / "short" / "trace")]
    assert said[0] | {"traces": ""} == said[1] | {"traces": ""}


def test_spans_are_those_of_trace_stats(nadi, write_run, tmp_path):
    """Also where the host works before and after, and where a converter has taken waiting out."""
    nodes = [
        [
            et.comp_node(1, "host", duration_micros=70, is_cpu_op=True),
            et.comp_node(2, "work", duration_micros=20, deps=[1]),
            et.coll_node(3, "sum", et.CollectiveCommType.ALL_REDUCE, SIZE, deps=[2]),
            et.comp_node(4, "after", duration_micros=500 + npu, is_cpu_op=True, deps=[3]),
        ]
        for npu in range(4)
    ]
    run = tmp_path / "out"
    nadi.ok("run", write_run(nodes, ANALYTICAL, RING), "--out", run, "-q")
    traces = measured(run, tmp_path / "real" / "trace", micros(times_of(run)))
    for npu in range(4):
        metadata, timed = et.read_messages(f"{traces}.{npu}.et")
        timed[0].start_time_micros, timed[0].duration_micros = timed[0].start_time_micros - 1000, 900
        timed[2].attr.append(et.attribute("wait_micros", "int64", 10))
        et.write_trace(f"{traces}.{npu}.et", metadata, timed)
    compared = nadi("compare", "--measured", run, traces, "--json").document["rank_rows"]
    listed = nadi("trace", "stats", traces, "--json").document["overlap"]
    assert [row["measured_span_ps"] for row in compared] == [row["span_micros"] * 10**6 for row in listed]
    assert all(row["span_micros"] > 1500 for row in nonempty(listed))


def test_a_runs_own_times_have_no_error(nadi, finished, tmp_path):
    run = finished()
    times = times_of(run)
    assert all(start % 10**6 == duration % 10**6 == 0 for start, duration in nonempty(times.values()))
    traces = measured(run, tmp_path / "real" / "trace", micros(times))
    found = nadi("compare", "--measured", run, traces, "--json").document
    assert found["nodes"] == {"compared": 28, "without_trace": 0, "not_in_traces": 0, "without_time": 0}
    assert found["collectives"]["count"] == 4
    assert found["ranks"]["count"] == 4
    spreads = [found["collectives"], found["ranks"], *found["kinds"], *found["sizes"], *found["groups"]]
    for spread in [*spreads, *found["pairs"]]:
        assert (spread["median"], spread["p95"], spread["worst"]) == (0, 0 if spread["count"] >= 20 else None, 0)
    assert found["worst"] == []
    for row in nonempty(found["rank_rows"]):
        assert row["clock_offset_micros"] == row["measured_begin_micros"] == 0
        for what in ("span", "compute", "transfer", "wait"):
            assert row[f"measured_{what}_ps"] == row[f"simulated_{what}_ps"]
    assert sum(row["measured_wait_ps"] for row in found["rank_rows"]) > 0


def test_known_perturbations_are_the_errors(nadi, finished, tmp_path):
    """The second all-reduce takes 10 % less than simulated, compute of NPU 2 twice as long."""
    run = finished()
    times = micros(times_of(run))
    for npu in range(4):
        start, duration = times[npu, 16]
        times[npu, 16] = start, round(duration * 0.9)
    times[2, 17] = times[2, 17][0], 80
    traces = measured(run, tmp_path / "real" / "trace", times)
    found = nadi("compare", "--measured", run, traces, "--json").document
    sizes = {(row["kind"], row["bytes"]): row for row in found["sizes"]}
    assert sizes["all-reduce", 2 * SIZE]["median"] == pytest.approx(1 / 0.9 - 1, abs=1e-3)
    assert sizes["all-reduce", SIZE]["worst"] == 0
    assert found["collectives"]["worst"] == pytest.approx(1 / 0.9 - 1, abs=1e-3)
    kinds = {row["kind"]: row for row in found["kinds"]}
    assert kinds["compute"]["worst"] == -0.5
    assert kinds["compute"]["median"] == 0
    assert kinds["send"]["worst"] == 0
    assert [(row["npu"], row["node_id"]) for row in found["worst"][1:]] == [(2, 17)]
    assert found["worst"][0]["kind"] == "all-reduce"
    least = nadi("compare", "--measured", run, traces, "--json", "--worst", "1").document
    assert least["worst"] == found["worst"][:1]


def test_waiting_is_no_transfer(finished, tmp_path):
    """A rank that is late by 300 µs makes the others wait as long: transfers have no error, waiting has."""
    run = finished()
    times = micros(times_of(run))
    last = min(range(4), key=lambda npu: times[npu, 16][1])
    for npu in {0, 1, 2, 3} - {last}:
        start, duration = times[npu, 16]
        times[npu, 16] = start - 300, duration + 300
    nodes = read_beside(run, measured(run, tmp_path / "real" / "trace", times))
    instances = accuracy.joint_operations(nodes, nodes.collective)
    assert np.array_equal(instances.measured_ps, instances.simulated_ps)
    again = np.unique(nodes.collective[nodes.node_id == 16])
    more = instances.measured_wait_ps - instances.simulated_wait_ps
    assert np.array_equal(more, np.where(instances.number == again, 300 * 10**6, 0))


def test_a_slowed_link_shows_up(nadi, finished, tmp_path):
    """Measured on a ring in which the cable of NPUs 0 and 1 is slower: their group is the furthest off."""
    file = tmp_path / "slow.toml"
    slow = finished("slow", f'file = "{slowed(file)}"')
    times = micros(times_of(slow))
    run = finished("out")
    found = nadi("compare", "--measured", run, measured(run, tmp_path / "real" / "trace", times), "--json").document
    groups = {row["name"]: row for row in found["groups"]}
    assert groups["odd"]["worst"] == pytest.approx(0, abs=1e-3)
    assert groups["even"]["median"] == pytest.approx(-0.5, abs=0.01)
    assert found["groups"][0]["name"] == "even"
    assert (found["pairs"][0]["src"], found["pairs"][0]["dst"]) == (0, 1)
    assert found["pairs"][0]["median"] == pytest.approx(-0.5, abs=0.01)
    assert [row["worst"] for row in found["pairs"][1:]] == pytest.approx([0, 0, 0], abs=0.01)


def slowed(file):
    """A ring of four, the cable of NPUs 0 and 1 at half the rate."""
    head = 'npus = 4\ndims = [4]\nstack = "Ring(4)"\nhost = [0, 1, 2, 3]\n'
    links = '[[links]]\nrate = "{}"\ndelay = "1us"\ncables = {}\n'
    file.write_text(head + links.format("4Gbps", [[0, 1]]) + links.format("8Gbps", [[1, 2], [2, 3], [3, 0]]))
    return file.name


def test_clocks_are_found_by_what_ranks_did_together(finished, tmp_path):
    run = finished()
    ahead = np.array([0.0, 12_345.0, -77.0, 5.0])
    times = {(npu, node): (start + ahead[npu], d) for (npu, node), (start, d) in micros(times_of(run)).items()}
    times[3, 12] = times[3, 12][0], times[3, 12][1] + 400  # one delay is none of the clock's
    times[1, 11] = times[1, 11][0] - 500, times[1, 11][1] + 500
    nodes = read_beside(run, measured(run, tmp_path / "real" / "trace", times))
    clocks = estimate_clocks(nodes)
    assert clocks.offset_micros == pytest.approx(ahead, abs=0.5)  # half of what traces count in
    assert clocks.reference.tolist() == [0, 0, 0, 0]
    began = [row["measured_begin_micros"] for row in accuracy.accuracy_document(nodes, clocks)["rank_rows"]]
    assert began == pytest.approx([500, 0, 500, 500], abs=1)


def test_traces_without_starts_have_durations_only(nadi, finished, tmp_path):
    run = finished()
    times = {key: (0, duration) for key, (_, duration) in micros(times_of(run)).items()}
    found = nadi("compare", "--measured", run, measured(run, tmp_path / "real" / "trace", times, 0), "--json").document
    assert found["ranks"] is None
    assert found["clocks"] == {"ranks": 0, "residual_p95_micros": None}
    assert {row["clock_offset_micros"] for row in found["rank_rows"]} == {None}
    assert found["collectives"]["worst"] == 0


def test_tables_and_page(nadi, finished, tmp_path):
    run = finished()
    times = micros(times_of(run))
    times[2, 17] = times[2, 17][0], 80
    traces = measured(run, tmp_path / "real" / "trace", times)
    outcome = nadi.ok("compare", "--measured", run, traces, "-o", tmp_path / "accuracy")
    for words in ("4: median error +0.00 %".replace(" %", "%"), "all-reduce", "4 MB", "even", "update", "-50.00%"):
        assert words in outcome.out
    page = (tmp_path / "accuracy" / "measured.html").read_text()
    assert "update" in page
    assert "plotly" in page
    assert (tmp_path / "accuracy" / "measured.json").is_file()


def test_what_is_wrong_is_one_line(nadi, finished, tmp_path):
    run = finished()

    def complaint(*arguments):
        return nadi.refuse("compare", *arguments).err

    assert "found 1 runs; expected 2 to 20" in complaint(run)
    assert "expected results of `nadi run --out`" in complaint("--measured", tmp_path / "none")
    assert "3 paths" in complaint("--measured", run, run, run)
    assert "no traces" in complaint("--measured", run, tmp_path / "none")
    for npu in range(4):
        et.write_trace(tmp_path / f"bare.{npu}.et", et.metadata(), [et.comp_node(11, "forward")])
        et.write_trace(tmp_path / f"other.{npu}.et", et.metadata(), [et.comp_node(99, "a", duration_micros=1)])
    assert "no node has a duration" in complaint("--measured", run, tmp_path / "bare")
    assert "no node of the run" in complaint("--measured", run, tmp_path / "other")
    swapped = [
        et.coll_node(16, "sum again", et.CollectiveCommType.ALL_REDUCE, SIZE),
        et.coll_node(12, "sum", et.CollectiveCommType.ALL_REDUCE, SIZE, deps=[16]),
    ]
    for node in swapped:
        node.duration_micros = 1
    for npu in range(4):
        et.write_trace(tmp_path / f"swapped.{npu}.et", et.metadata(), swapped)
    assert "is another collective in the run" in complaint("--measured", run, tmp_path / "swapped")
    (run / "nodes.parquet").unlink()
    assert "no nodes.parquet" in complaint("--measured", run)
