"""The smaller commands, and benchmarks."""

import json

import numpy as np
import pytest

from nadi import et, workload
from nadi.launching.progress import NoProgress
from nadi.pdes.core.jit import jit_enabled
from nadi.studies.benchmarks import bench, trace_decoding
from nadi.studies.collectives.options import parse_sizes
from tests.nonempty import nonempty


def test_topology_build_can_be_run(nadi, write_run, step, tmp_path):
    path = tmp_path / "net.toml"
    outcome = nadi("topology", "build", "ring:npus=4,rate=100Gbps,delay=1us", "-o", path)
    assert outcome == (0, f"{path}: 4 NPUs, 4 nodes, 4 cables\n", "")
    by_spec = nadi("run", write_run([step] * 4), "--json", "-q").document
    by_file = nadi("run", write_run([step] * 4, topology='file = "net.toml"'), "--json", "-q").document
    assert by_file["digest"] == by_spec["digest"]


def test_trace_sets(nadi, tmp_path):
    block = et.Block()
    block.coll("tp:sum", et.CollectiveCommType.ALL_REDUCE, 64, group="tp")
    columns = et.TraceColumns()
    columns.stamp(block)
    owner, examples = np.array([0, 0, 0, 0, -1], np.int32), np.array([0], np.int32)
    traces = workload.TraceSet([columns.table()], owner, examples, {"tp": ((0, 1), (3, 2))})
    workload.write_set(tmp_path / "set", traces, "gpt")
    outcome = nadi("trace", "show", tmp_path / "set")
    for text in ("NPUs    5, 1 of them idle", "1 in files, 4 of all NPUs", "gpt.npu0.et", "tp"):
        assert text in outcome.out
    said = nadi("trace", "show", tmp_path / "set", "--json").document
    assert said["traces"] == [{"file": "gpt.npu0.et", "npus": 4, "example": 0, "nodes": 1}]
    assert said["families"] == {"tp": {"groups": 2, "fewest_members": 2, "most_members": 2}}
    plain = tmp_path / "plain"
    outcome = nadi("trace", "expand", tmp_path / "set", "-o", plain, "--prefix", "x")
    run_file = f'[workload] traces = "{plain / "x"}", groups = "{plain / "groups.json"}"'
    assert outcome == (0, f"4 traces; in a run file: {run_file}\n", "")
    assert sorted(file.name for file in plain.iterdir()) == ["groups.json", *(f"x.{npu}.et" for npu in range(4))]
    outcome = nadi("trace", "expand", plain, "-o", tmp_path / "other")
    wanted = f"{plain / 'traces.json'}: No such file or directory; expected the manifest of a trace set (JSON)"
    assert outcome == (2, "", f"nadi: error: {wanted}\n")


LEFT_OUT = {"nvls-tree", "nvls-sharp", "nvls", "in-network"}
"""Algorithms that want NPUs in hosts, or switches that reduce."""


@pytest.mark.parametrize("kind", workload.KINDS)
def test_collective_does_every_kind(nadi, kind):
    outcome = nadi("collective", kind, "-t", "switch:npus=3", "--sizes", "3KiB", "--algorithm", "all", "--json", "-q")
    without_times = LEFT_OUT | {"nccl"}  # no accelerator is named whose kernels take its time
    assert len(outcome.document["rows"]) == len(set(workload.algorithms_of(kind)) - without_times)


def test_sizes():
    assert parse_sizes("1KiB:8KiB:x2") == [1024, 2048, 4096, 8192]
    assert parse_sizes("1KiB:3KiB:+1KiB, 5B") == [1024, 2048, 3072, 5]
    assert parse_sizes("7") == [7]


def test_bench(nadi):
    arguments = ("-t", "fat-tree:k=4,rate=100Gbps,delay=1us", "--size", "64KiB", "-q")
    figures = nadi("bench", "permutation", *arguments, "--json").document
    keys = ("packet_hops", "wall_s", "packet_hops_per_s", "calibration_per_s", "ratio", "digest", "ranks", "threads")
    assert set(figures) >= {*keys, "peak_rss_bytes", "setup_s", "compile_s", "first_event_s", "npus"}
    assert figures["npus"] == 16
    assert figures["data_packets"] == figures["ack_packets"] == 16 * 16
    assert figures["ratio"] == pytest.approx(figures["packet_hops_per_s"] / figures["calibration_per_s"])
    again = nadi("bench", "permutation", *arguments, "--json", "--runs", 1).document
    assert (again["digest"], again["packet_hops"]) == (figures["digest"], figures["packet_hops"])
    other = nadi("bench", "permutation", *arguments, "--json", "--runs", 1, "--seed", 2).document
    assert other["digest"] != figures["digest"]


@pytest.mark.parametrize(("name", "packets"), [("allreduce", 16 * 30), ("pairs", 16)])
def test_bench_counts(nadi, name, packets):
    outcome = nadi("bench", name, "-t", "fat-tree:k=4", "--size", "4KiB", "--runs", 1, "--json", "-q")
    assert outcome.document["data_packets"] == packets
    assert "packet-hops/s" in nadi("bench", name, "-t", "fat-tree:k=4", "--size", "4KiB", "--runs", 1, "-q").out


def test_doctor(nadi):
    lines = nadi.ok("doctor").out.splitlines()
    assert {line.split(":")[0].split(maxsplit=1)[1] for line in lines} >= {"Python", "JIT", "cores", "memory", "MPI"}
    assert all(line.startswith(("ok  ", "warn")) for line in nonempty(lines))
    assert {check["what"] for check in json.loads(nadi("doctor", "--json").out)["checks"]} >= {"kernel cache"}


def test_two_side_by_side_are_done_when_both_are():
    """1,000 packet-hops each; the better round takes 4 s, though each alone was once done in 2 s."""
    figures = [{"packet_hops": 1000, "walls_s": walls} for walls in ([2.0, 4.0], [5.0, 2.0])]
    assert bench.joint_rate(figures) == 2000 / 4


def test_two_workers_against_one(monkeypatch):
    """Of three turns the best counts: 2 s alone, 4 s for a pair and by messages, 2.5 s for ranks, 3 s otherwise."""
    turns = iter((1.0, 1.5, 2.0))
    slower = {"now": 1.0}

    def pretended(commands):
        ranks = commands[0][2] if commands[0][1] == "-n" else "0"
        workers = "2" if ranks == "2" or "--workers" in commands[0] else "1"
        if len(commands) == 1 and ranks == "0" and workers == "1":
            slower["now"] = next(turns)
        seconds = {"1": 2.0 * len(commands), "2": 2.5 if ranks == "2" else 3.0}[workers]
        if "--no-share-memory" in commands[0]:
            assert ranks == "2"
            seconds = 4.0
        waiting = [0.1 * slower["now"], 0.5]
        figures = {"packet_hops": 100, "digest": "d", "walls_s": [seconds * slower["now"]], "waiting_shares": waiting}
        return [figures for _ in commands]

    monkeypatch.setattr(bench, "run_side_by_side", pretended)
    found = bench.measure_pairs("permutation", NoProgress())
    rows = {row["workers"]: row for row in found["rows"]}
    assert found["capacity"] == 1
    assert rows["serial"]["of_turns"] == [50, 100 / 3, 25]
    assert rows["2 serial side by side"]["packet_hops_per_s"] == 200 / 4
    assert rows["2 MPI ranks"]["share"] == 2 / 2.5
    assert rows["2 threads"]["share"] == pytest.approx(2 / 3)
    assert rows["2 MPI ranks, by messages"]["share"] == 0.5
    assert rows["2 threads"]["waiting"] == 0.1


@pytest.fixture
def of_any_size(monkeypatch):
    monkeypatch.setattr(et.decoder, "MIN_KERNEL_BYTES", 0)


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("kind", ["megatron", "pytorch"])
def test_what_is_measured_is_what_was_written(tmp_path, kind):
    path = tmp_path / "a.0.et"
    getattr(trace_decoding, f"_write_{kind}")(path, 2000)
    _, nodes = et.read_messages(path)
    found = trace_decoding.measure(str(path), 1)
    assert found["nodes"] == len(nodes) > 300
    assert min(found[f"{name}nodes_per_s"] for name in ("", "kept_", "protobuf_")) > 0
    assert found["peak_rss_bytes"] >= found["rss_before_bytes"] > 0
    if jit_enabled():
        assert et.decoder.decoded(path) is not None


def test_the_bench_of_traces(nadi, monkeypatch):
    monkeypatch.setattr(trace_decoding, "_measure_in_process", lambda path, n: trace_decoding.measure(str(path), n))
    monkeypatch.setattr(trace_decoding.run_decoding_bench, "__defaults__", (1000, 1))
    found = nadi("bench", "trace", "--runs", "1", "--json", "-q").document
    assert [row["kind"] for row in found["files"]] == ["megatron", "pytorch"]
    assert "protobuf" in nadi("bench", "trace", "--runs", "1", "-q").out
    assert trace_decoding.run_decoding_bench(NoProgress())["runs"] == 1


SMALL = {"model": "gpt3-350m", "plan": "tp8,pp2,mb1,gb2", "runs": 1}


@pytest.mark.slow
def test_figures_are_those_of_both_runs():
    found = bench.run_reuse_bench(NoProgress(), **SMALL)
    assert found["same_digest"]
    assert found["digest"] == found["digest_off"]
    assert 0 < found["episodes_simulated"] < found["episodes_replayed"]
    assert 0 < found["episode_hops"] < found["replayed_hops"] < found["packet_hops"]
    assert found["ratio"] == pytest.approx(found["off_s"] / found["exact_s"])
    assert found["record_bytes"] > 0


@pytest.mark.parametrize(("other", "code", "text"), [("a1", 0, "a1, equal"), ("b2", 1, "a1, but b2 by all packets")])
def test_digests_that_differ_end_with_code_1(nadi, monkeypatch, other, code, text):
    counts = ("runs", "packet_hops", "episodes_simulated", "episodes_replayed", "episode_hops", "replayed_hops")
    figures = dict.fromkeys((*counts, "exact_s", "off_s", "ratio", "record_bytes"), 1)
    figures |= {"model": "m", "plan": "p", "cluster": "c"}
    figures |= {"digest": "a1", "digest_off": other, "same_digest": other == "a1"}
    monkeypatch.setattr(bench, "run_reuse_bench", lambda *_, **__: figures)
    outcome = nadi("bench", "reuse", "-q")
    assert outcome.code == code
    assert text in outcome.out
