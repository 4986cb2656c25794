"""Transcripts of the smaller commands."""

import json

import numpy as np
import pytest

from nadi import et, topologies, workload
from nadi.launching.progress import NoProgress
from nadi.studies.benchmarks import scaling
from nadi.studies.benchmarks.scaling import joint_rate
from nadi.studies.collectives.options import parse_sizes
from tests.nonempty import nonempty


def test_topology_list(nadi):
    outcome = nadi("topology", "list")
    assert outcome.code == 0
    for name in nonempty(topologies.topologies()):
        assert f"\n{name}: " in f"\n{outcome.out}"
    assert {row["name"] for row in nadi("topology", "list", "--json").document} == set(topologies.topologies())


def test_topology_show(nadi):
    outcome = nadi("topology", "show", "fat-tree:k=4,rate=100Gbps,delay=1us")
    assert outcome.code == 0
    for text in ("NPUs                16", "8 leaf, 8 spine, 4 core", "48 of 100 Gb/s", "delay of a cable    1 µs"):
        assert text in outcome.out
    assert nadi("topology", "show", "ring:npus=8", "--json").document["npus"] == 8


def test_topology_build_can_be_run(nadi, write_run, step, tmp_path):
    path = tmp_path / "net.toml"
    outcome = nadi("topology", "build", "ring:npus=4,rate=100Gbps,delay=1us", "-o", path)
    assert outcome == (0, f"{path}: 4 NPUs, 4 nodes, 4 cables\n", "")
    by_spec = nadi("run", write_run([step] * 4), "--json", "-q").document
    by_file = nadi("run", write_run([step] * 4, topology='file = "net.toml"'), "--json", "-q").document
    assert by_file["digest"] == by_spec["digest"]


def test_trace_show(nadi, write_run, step, tmp_path):
    write_run([step])
    outcome = nadi("trace", "show", tmp_path / "trace.0.et")
    assert outcome.code == 0
    for text in ("all-reduce", "131,072", "COMM_COLL_NODE", "backward"):
        assert text in outcome.out
    assert nadi("trace", "show", tmp_path / "trace.0.et", "--json").document["nodes"] == 4


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


def test_workload_transformer(nadi, tmp_path):
    outcome = nadi("workload", "transformer", "--npus", 2, "--layers", 1, "-o", tmp_path / "t", "--prefix", "gpt")
    assert outcome.code == 0
    assert outcome.out.startswith(f"{tmp_path / 't' / 'gpt'}.<npu>.et: 2 traces, ")
    assert len(et.read_trace(tmp_path / "t" / "gpt.1.et")) > 5


def test_collective_table(nadi):
    outcome = nadi("collective", "all-reduce", "-t", "ring:npus=4,rate=100Gbps,delay=1us", "--sizes", "4KiB:16KiB:x4")
    assert outcome.code == 0
    lines = [line.split() for line in outcome.out.splitlines() if " ring " in line]
    # 6 steps of 1 KiB, then of 4 KiB, each with a header of 82 bytes, at 80 ps a byte and 1 us
    assert [" ".join(line[:5]) for line in lines] == ["4 KiB ring 6.531 µs", "16 KiB ring 8.005 µs"]
    assert [line[-3] for line in lines] == ["1.0000", "1.0000"]
    # each link carries 6 of them, and is free of acknowledgements, which go round the other way
    assert [" ".join(line[-2:]) for line in lines] == ["1.531 µs", "3.005 µs"]


LEFT_OUT = {"nvls-tree", "nvls-sharp", "nvls", "in-network"}
"""Algorithms that want NPUs in hosts, or switches that reduce."""


def test_collective_json(nadi):
    arguments = ("-t", "switch:npus=4", "--sizes", "1KiB,1MiB", "--algorithm", "all", "--json", "-q")
    document = nadi("collective", "all-reduce", *arguments).document
    algorithms = [name for name in workload.algorithms_of("all-reduce") if name not in LEFT_OUT]
    assert [(row["algorithm"], row["bytes"]) for row in document["rows"]] == [
        (algorithm, size) for algorithm in algorithms for size in (1024, 1 << 20)
    ]
    for row in nonempty(document["rows"]):
        assert set(row) >= {"algorithm", "bytes", "time_ps", "algbw_Bps", "busbw_Bps", "closed_form_ps"}
        assert row["algbw_Bps"] == pytest.approx(row["bytes"] / row["time_ps"] * 1e12)
        assert row["busbw_Bps"] == pytest.approx(1.5 * row["algbw_Bps"])


@pytest.mark.parametrize("kind", workload.KINDS)
def test_collective_does_every_kind(nadi, kind):
    outcome = nadi("collective", kind, "-t", "switch:npus=3", "--sizes", "3KiB", "--algorithm", "all", "--json", "-q")
    assert len(outcome.document["rows"]) == len(set(workload.algorithms_of(kind)) - LEFT_OUT)


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
    outcome = nadi("doctor")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert {line.split(":")[0].split(maxsplit=1)[1] for line in lines} >= {"Python", "JIT", "cores", "memory", "MPI"}
    assert all(line.startswith(("ok  ", "warn")) for line in nonempty(lines))
    assert {check["what"] for check in json.loads(nadi("doctor", "--json").out)["checks"]} >= {"kernel cache"}


def test_two_side_by_side_are_done_when_both_are():
    """1,000 packet-hops each; the better round takes 4 s, though each alone was once done in 2 s."""
    figures = [{"packet_hops": 1000, "walls_s": walls} for walls in ([2.0, 4.0], [5.0, 2.0])]
    assert joint_rate(figures) == 2000 / 4


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

    monkeypatch.setattr(scaling, "run_side_by_side", pretended)
    found = scaling.measure_pairs("permutation", NoProgress())
    rows = {row["workers"]: row for row in found["rows"]}
    assert found["capacity"] == 1
    assert rows["serial"]["of_turns"] == [50, 100 / 3, 25]
    assert rows["2 serial side by side"]["packet_hops_per_s"] == 200 / 4
    assert rows["2 MPI ranks"]["share"] == 2 / 2.5
    assert rows["2 threads"]["share"] == pytest.approx(2 / 3)
    assert rows["2 MPI ranks, by messages"]["share"] == 0.5
    assert rows["2 threads"]["waiting"] == 0.1
