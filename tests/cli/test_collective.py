"""`nadi collective`: its table, who wins where, its files, and what it refuses."""

import json
import math
import re
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from nadi.launching import progress as progress_module
from nadi.studies.collectives import measuring
from nadi.studies.collectives.page import CollectiveSweep, band_edges, sweep_figure, sweep_table, winners
from nadi.workload import WorkloadError, algorithms_of, collective_program
from tests.headings import unexplained
from tests.nonempty import nonempty

RING = "ring:npus={},rate=100Gbps,delay=1us"
PS_PER_BYTE = 80
HEADER = 82
DELAY_PS = 10**6


def wire_ps(size_bytes):
    """A message at 100 Gb/s in packets of 4 KiB."""
    return (size_bytes + HEADER * max(1, math.ceil(size_bytes / 4096))) * PS_PER_BYTE


def times(document, algorithm):
    return {row["bytes"]: row["time_ps"] for row in document["rows"] if row["algorithm"] == algorithm}


def test_a_ring_takes_what_its_closed_form_says(nadi):
    arguments = ("-t", RING.format(8), "--sizes", "8:8MiB:x32", "--json", "-q")
    for kind, steps, factor in (("all-reduce", 14, 14 / 8), ("all-gather", 7, 7 / 8), ("reduce-scatter", 7, 7 / 8)):
        document = nadi("collective", kind, *arguments, "--algorithm", "ring").document
        assert [row["bytes"] for row in document["rows"]] == [8 * 32**i for i in range(5)]
        for row in nonempty(document["rows"]):
            by_hand_ps = steps * (DELAY_PS + wire_ps(row["bytes"] // 8))
            assert row["time_ps"] == pytest.approx(by_hand_ps, rel=1e-3)
            assert row["closed_form_ps"] == pytest.approx(by_hand_ps, rel=1e-3)
            assert row["busbw_Bps"] == pytest.approx(factor * row["bytes"] / by_hand_ps * 1e12, rel=1e-3)


@pytest.mark.parametrize("size", [1, 8, 1000, 12_345])
def test_sizes_that_members_do_not_divide(nadi, size):
    document = nadi("collective", "all-reduce", "-t", RING.format(16), "--sizes", size, "--json", "-q").document
    by_hand_ps = 30 * (DELAY_PS + wire_ps(math.ceil(size / 16)))
    assert document["rows"][0]["closed_form_ps"] == pytest.approx(by_hand_ps, rel=1e-9)
    assert document["rows"][0]["time_ps"] == pytest.approx(by_hand_ps, rel=1e-3)


def test_direct_wins_while_hops_count_and_the_ring_once_bytes_do(nadi):
    """On a ring of 16, direct messages go 8 links far at most, twice; the ring's steps 30 links one after another.

    But half of direct's bytes cross the middle, S n/4 in each of two phases over two links, where the ring sends each
    NPU's 2(n-1)/n S over a link of its own.
    """
    arguments = ("-t", RING.format(16), "--sizes", "64B,1MiB", "--algorithm", "ring,direct", "--json", "-q")
    document = nadi("collective", "all-reduce", *arguments).document
    direct, ring = times(document, "direct"), times(document, "ring")
    assert direct[64] == pytest.approx(2 * 8 * DELAY_PS, rel=0.02)
    assert ring[64] == pytest.approx(30 * DELAY_PS, rel=0.02)
    assert direct[1 << 20] > 2 * (16 / 4) * (1 << 20) / 2 * PS_PER_BYTE
    assert ring[1 << 20] < 1.3 * 30 / 16 * (1 << 20) * PS_PER_BYTE
    small, large = document["winners"]
    assert small == {
        "algorithm": "direct",
        "from_bytes": 64,
        "to_bytes": 64,
        "least_lead": pytest.approx(ring[64] / direct[64]),
        "most_lead": pytest.approx(ring[64] / direct[64]),
    }
    assert (large["algorithm"], large["from_bytes"], large["to_bytes"]) == ("ring", 1 << 20, 1 << 20)
    arguments = ("-t", RING.format(16), "--sizes", "64B:1MiB:x128", "--algorithm", "ring,direct", "-q")
    shown = nadi("collective", "all-reduce", *arguments).out
    words = [" ".join(line.split()[:5]) for line in shown[shown.index("\nfastest") :].splitlines()]
    assert "direct 64 B 8 KiB" in words
    assert "ring 1 MiB 1 MiB" in words


def timed(algorithm, size_bytes, time_ps):
    return SimpleNamespace(algorithm=algorithm, bytes=size_bytes, time_ps=time_ps)


def test_a_program_that_was_made_to_be_checked_is_the_one_that_is_run(nadi, monkeypatch):
    usual, made = measuring.CollectiveCase.program, []

    def counted(*arguments):
        made.append(arguments[2:])
        return usual(*arguments)

    monkeypatch.setattr(measuring.CollectiveCase, "program", counted)
    nadi("collective", "all-reduce", "-t", "ring:npus=4", "--sizes", "64KiB", "--algorithm", "ring,direct", "--json")
    assert made == [("ring", 65536), ("direct", 65536), ("direct", 65536)]


def test_each_size_has_its_own_time_in_any_order(nadi):
    arguments = ["collective", "all-reduce", "-t", "ring:npus=4", "--algorithm", "ring", "--json", "--sizes"]
    times = [
        {row["bytes"]: row["time_ps"] for row in nadi(*arguments, sizes).document["rows"]}
        for sizes in ("1MiB,4MiB,2MiB", "4MiB,2MiB,1MiB", "2MiB,1MiB,4MiB")
    ]
    assert times[0] == times[1] == times[2]
    assert len(set(times[0].values())) == 3


def test_winners():
    rows = [timed("a", 4, 30), timed("b", 1, 20), timed("a", 1, 10), timed("b", 4, 10), timed("a", 2, 10)]
    rows += [timed("b", 2, 15), timed("a", 3, 20), timed("b", 3, 20)]
    assert winners(rows) == [("a", 1, 3, 1.0, 2.0), ("b", 4, 4, 3.0, 3.0)]
    assert winners(rows[:1]) == [("a", 4, 4, None, None)]
    assert winners([]) == []


SWITCHES_REDUCE = ["in-network", "nvls", "nvls-sharp", "nvls-tree"]
"""Of all-reduce; on a ring there are none."""


def test_json_holds_what_was_asked_for(nadi):
    arguments = ("-t", RING.format(4), "--sizes", "8:32:x2", "--set", "network.mtu=1KiB", "--seed", 3)
    document = nadi("collective", "all-reduce", *arguments, "--algorithm", "all", "--json").document
    assert (document["kind"], document["npus"], document["seed"]) == ("all-reduce", 4, 3)
    assert document["network"]["mtu"] == "1KiB"
    reasons = {each["algorithm"]: each["reason"] for each in document["left_out"]}
    assert sorted(reasons) == sorted([*SWITCHES_REDUCE, "nccl"])
    assert all("in-network reduction" in reasons[name] for name in nonempty(SWITCHES_REDUCE))
    assert reasons["nccl"].startswith("has the times of GPU kernels, which the others have only on")
    for row in nonempty(document["rows"]):
        assert set(row) == set(measuring.SweepRow._fields)
        assert row["ratio"] == pytest.approx(row["time_ps"] / row["closed_form_ps"])
        assert 0 < row["mean_link"] <= row["busiest_link"] <= 1
        assert 0 < row["bound_ps"] <= row["time_ps"]


def rows_of(nadi, *arguments):
    outcome = nadi.ok("collective", "all-reduce", "-t", RING.format(4), "--sizes", "64KiB", "--json", "-q", *arguments)
    return outcome.document["rows"]


def test_several_algorithms_are_one_table(nadi):
    several = rows_of(nadi, "--algorithm", "direct", "--algorithm", "ring:channels=2,bidirectional=true")
    assert [row["algorithm"] for row in several] == ["direct", "ring:channels=2,bidirectional=true"]
    assert several == rows_of(nadi, "--algorithm", "direct,ring:channels=2,bidirectional=true")


@pytest.mark.parametrize(
    ("override", "arguments"),
    [
        ("topology.params.npus=6", ("-t", RING.format(6))),
        ("system.dataset_splits=2", ("--algorithm", "ring:dataset_splits=2")),
        ("system.collectives.all-reduce=direct", ("--algorithm", "direct")),
    ],
)
def test_system_and_topology_as_a_run_has_them(nadi, override, arguments):
    """Each says the same as what the command has of its own."""
    found = rows_of(nadi, "--set", override)
    assert found == rows_of(nadi, *arguments)
    assert found != rows_of(nadi)


def test_the_system_layer_counts(nadi):
    """All messages are asked for first: the two control messages take their time."""
    assert rows_of(nadi, "--set", "system.rendezvous=1")[0]["time_ps"] > rows_of(nadi)[0]["time_ps"]


def test_the_busiest_link_of_a_ring_carries_transit(nadi):
    """Of 5 NPUs every link carries data one and two NPUs far, 3 messages; acknowledgements may come after the end."""
    arguments = ("-t", RING.format(5), "--sizes", 5 * 4096, "--json", "-q")
    (row,) = nadi("collective", "all-to-all", *arguments, "--algorithm", "direct").document["rows"]
    assert row["bound_ps"] == 3 * (4096 + HEADER) * PS_PER_BYTE - 3 / 2 + DELAY_PS
    assert row["bound_ps"] < row["time_ps"]


def test_a_packets_size_counts(nadi):
    arguments = ("-t", RING.format(4), "--sizes", "4MiB", "--json", "-q")
    usual, short = (
        nadi("collective", "all-reduce", *arguments, "--set", f"network.mtu={mtu}").document["rows"][0]["time_ps"]
        for mtu in ("4KiB", "1KiB")
    )
    assert short - usual == pytest.approx(6 * 3 * 256 * HEADER * PS_PER_BYTE)


def test_a_barrier_is_one_row(nadi, tmp_path):
    document = nadi(
        "collective", "barrier", "-t", RING.format(4), "--sizes", "8:1KiB:x2", "--json", "-q", "-o", tmp_path
    ).document
    (row,) = document["rows"]
    assert (row["bytes"], row["busbw_Bps"]) == (0, 0)
    assert row["time_ps"] > 0
    assert "data-plot=" not in (tmp_path / "collective.html").read_text().partition("<script>")[0]


def test_files_hold_the_rows(nadi, tmp_path):
    out = tmp_path / "new" / "folder"
    arguments = ("-t", RING.format(4), "--sizes", "1KiB,64KiB", "--algorithm", "all", "-o", out)
    outcome = nadi("collective", "all-reduce", *arguments, "--json")
    assert outcome.err.endswith(f"results: {out}\n")
    table = pq.read_table(out / "collective.parquet")
    rows = outcome.document["rows"]
    for column in nonempty(set(measuring.SweepRow._fields) & set(table.column_names)):
        assert table[column].to_pylist() == [row[column] for row in rows], column
    assert set(table["topology"].to_pylist()) == {RING.format(4)}
    assert set(table["parameters"].to_pylist()) == {""}
    best = {size: min(row["time_ps"] for row in rows if row["bytes"] == size) for size in (1024, 65_536)}
    assert table["fastest"].to_pylist() == [row["time_ps"] == best[row["bytes"]] for row in rows]
    assert json.loads(table.schema.metadata[b"nadi"])["network"]["mtu"] == "4KiB"
    page = (out / "collective.html").read_text()
    assert unexplained(page) == []
    assert page.count(" data-plot=") == 1
    assert len(page) > 1 << 20  # with plotly itself
    assert 'src="http' not in page
    for row in nonempty(rows):
        assert f">{row['algorithm']}</td><td>{row['time_ps'] / 1e6:,.3f} µs</td>" in page
    for size in ("1 KiB", "64 KiB"):
        assert len(re.findall(f"<tr><td[^>]*>{size}</td>", page)) == 1
        assert f'"{size}"' in page  # on the axis
    assert sorted(path.name for path in out.iterdir()) == ["collective.html", "collective.parquet"]


def row(algorithm, size_bytes, time_ps, closed_ps):
    speed = size_bytes / time_ps * 1e12
    measured = (size_bytes, time_ps, speed, 1.5 * speed, closed_ps)
    return measuring.SweepRow("all-reduce", algorithm, "", "packet", *measured, True, 1.0, 1.0, 0.5, 0.5, 1, "")


def test_the_picture():
    rows = [row("a", 100, 10**6, 5e5), row("a", 10_000, 4 * 10**6, 4e6)]
    rows += [row("b:x=1", 100, 2 * 10**6, 1e6), row("b:x=1", 10_000, 10**6, 1e6)]
    sweep = CollectiveSweep("all-reduce", "ring", 4, {}, 1, rows, [])
    assert band_edges(sweep) == [(100.0, pytest.approx(1000.0), "a"), (pytest.approx(1000.0), 10_000.0, "b:x=1")]
    drawn = sweep_figure(sweep)
    shown = {(trace.name, trace.yaxis): (list(trace.x), list(trace.y), trace.line.dash) for trace in drawn.data}
    assert shown["a", "y"] == ([100, 10_000], pytest.approx([0.15, 3.75]), None)
    assert shown["a, closed form", "y"] == ([100, 10_000], pytest.approx([0.3, 3.75]), "dash")
    assert shown["b:x=1", "y2"] == ([100, 10_000], [2.0, 1.0], None)
    assert shown["b:x=1, closed form", "y2"] == ([100, 10_000], [1.0, 1.0], "dash")
    assert (drawn.layout.xaxis.type, drawn.layout.xaxis2.type, drawn.layout.yaxis2.type) == ("log", "log", "log")
    assert {(shape.x0, round(shape.x1)) for shape in drawn.layout.shapes} == {(100, 1000), (1000, 10_000)}


def test_many_algorithms_look_different():
    rows = [row(f"a{number:02}", size, 10**6, 5e5) for number in range(30) for size in (100, 10_000)]
    drawn = sweep_figure(CollectiveSweep("all-reduce", "ring", 4, {}, 1, rows, []))
    looks = [(t.line.color, t.line.dash, t.marker.symbol) for t in drawn.data if t.yaxis == "y"]
    assert len(set(looks)) == len(looks) == 60


def test_the_table_goes_by_size_and_the_fastest_stands_first():
    rows = [row("a", 1 << 30, 3 * 10**9, 1e9), row("a", 1 << 16, 10**6, 1e6)]
    rows += [row("b", 1 << 30, 2 * 10**9, 1e9), row("b", 1 << 16, 10**6, 1e6)]
    table = sweep_table(CollectiveSweep("all-reduce", "ring", 4, {}, 1, rows, []))
    assert [line[:4] for line in table.rows] == [
        ("1 GiB", "b", "2.000 ms", "fastest"),
        ("", "a", "3.000 ms", "1.500"),
        ("64 KiB", "a", "1.000 µs", "fastest"),
        ("", "b", "1.000 µs", "1.000"),
    ]
    alone = sweep_table(CollectiveSweep("all-reduce", "ring", 4, {}, 1, rows[:2], []))
    assert [line[:3] for line in alone.rows] == [("1 GiB", "a", "3.000 ms"), ("64 KiB", "a", "1.000 µs")]
    assert "vs fastest" not in [column.heading for column in alone.columns]


def test_all_leaves_out_what_only_other_switches_can(nadi):
    """A plain switch sums up nothing; one that is named is taken to, and an NVSwitch does."""
    arguments = ("collective", "all-reduce", "--sizes", "64KiB", "-q", "--json")
    plain = nadi(*arguments, "-t", "switch:npus=4", "--algorithm", "all")
    done = {each["algorithm"] for each in plain.document["rows"]}
    assert done.isdisjoint(SWITCHES_REDUCE)
    assert {band["algorithm"] for band in plain.document["winners"]} <= done
    assert "in-network, nvls (switch 0 is not an NVSwitch, and the fabric does not declare that it reduces" in plain.err
    assert plain.err.count("\n") == 1
    named = nadi(*arguments, "-t", "switch:npus=4", "--algorithm", "nvls,in-network").document
    assert [each["algorithm"] for each in named["rows"]] == ["nvls", "in-network"]
    inside = nadi(*arguments, "-t", "rail-optimised:npus=4,gpus_per_host=4", "--algorithm", "all").document
    assert {"nvls", "in-network"} <= {each["algorithm"] for each in inside["rows"]}


def test_all_leaves_out_nvls_where_the_machine_has_none(nadi):
    arguments = ("collective", "all-gather", "--sizes", "64KiB", "-q", "--json", "--algorithm", "all")
    old, new = (nadi(*arguments, "-t", f"{machine}:npus=8") for machine in ("dgx-a100", "dgx-h100"))
    done = [{each["algorithm"] for each in outcome.document["rows"]} for outcome in (old, new)]
    assert done[1] - done[0] == {"nvls", "in-network"}
    assert "nvswitch 0 belongs to A100 GPUs, which have no NVLink SHARP" in old.err
    assert "nvls" not in new.err


def test_an_interrupted_sweep_leaves_nothing(nadi, tmp_path, monkeypatch):
    usual, calls = measuring.run_program, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return usual(*arguments)

    monkeypatch.setattr(measuring, "run_program", interrupted)
    outcome = nadi("collective", "all-reduce", "-t", RING.format(4), "--sizes", "1:4:x2", "-o", tmp_path / "out", "-q")
    assert (outcome.code, len(calls)) == (130, 2)
    assert [*tmp_path.iterdir()] == []


def refusing(name, why):
    """A collective_program in which an algorithm refuses, or all do."""

    def program(kind, npus, size_bytes, algorithm, fabric, most_bytes):
        if name in {algorithm, "all"}:
            raise WorkloadError(why)
        return collective_program(kind, npus, size_bytes, algorithm, fabric, most_bytes)

    return program


def test_all_leaves_out_what_refuses(nadi, monkeypatch):
    monkeypatch.setattr("nadi.workload.collective_program", refusing("direct", "direct of 4 members: expected 5"))
    arguments = ("collective", "all-reduce", "-t", RING.format(4), "--sizes", "1KiB", "-q")
    outcome = nadi.ok(*arguments, "--algorithm", "all", "--json")
    assert outcome.err.startswith("nadi: skipped: direct (direct of 4 members: expected 5); in-network, nvls (")
    assert all(name in outcome.err for name in SWITCHES_REDUCE)
    assert outcome.err.count("\n") == 1
    rest = [name for name in algorithms_of("all-reduce") if name not in {"direct", "nccl", *SWITCHES_REDUCE}]
    assert [row["algorithm"] for row in outcome.document["rows"]] == rest
    assert outcome.document["left_out"][0] == {"algorithm": "direct", "reason": "direct of 4 members: expected 5"}
    assert sorted(each["algorithm"] for each in outcome.document["left_out"][1:]) == sorted([*SWITCHES_REDUCE, "nccl"])
    named = nadi(*arguments, "--algorithm", "ring,direct")
    assert named == (2, "", "nadi: error: direct of 4 members: expected 5\n")


def test_all_where_none_is_left(nadi, monkeypatch):
    monkeypatch.setattr("nadi.workload.collective_program", refusing("all", "too few"))
    outcome = nadi.refuse("collective", "barrier", "-t", RING.format(4), "--algorithm", "all", "-q")
    assert outcome.err == "nadi: error: --algorithm all: no algorithm performs barrier here; dissemination: too few\n"


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_formulas_are_marked(nadi, monkeypatch, most):
    monkeypatch.setattr("nadi.simulation.closed_forms.isolated._MAX_PACKETS", most)
    arguments = ("collective", "all-reduce", "-t", RING.format(4), "--sizes", "1KiB", "-q")
    (row,) = nadi(*arguments, "--json").document["rows"]
    assert row["closed_form_played"] == (most > 1)
    assert f"  {'' if most > 1 else '~'}{row['closed_form_ps'] / 1e6:,.3f} µs  " in nadi(*arguments).out


def test_progress_says_which_row(nadi, monkeypatch):
    monkeypatch.setattr(progress_module, "LINE_EVERY_S", 0.0)
    arguments = ("-t", RING.format(4), "--sizes", "1KiB,2KiB", "--algorithm", "ring,direct")
    said = [line for line in nadi("collective", "all-reduce", *arguments).err.splitlines() if "simulated" not in line]
    rows = ("1 of 4: ring, 1KiB", "2 of 4: ring, 2KiB", "3 of 4: direct, 1KiB", "4 of 4: direct, 2KiB")
    assert said == [f"nadi: row {row}{part}" for row in rows for part in ("", ", on an idle network")]


def test_workers_give_the_same_rows(nadi):
    arguments = ("collective", "all-reduce", "-t", RING.format(8), "--sizes", "4KiB", "--algorithm", "all", "--json")
    alone = nadi(*arguments, "-q").document
    assert nadi(*arguments, "-q", "--workers", 2).document == alone
