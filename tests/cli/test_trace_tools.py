"""`nadi trace merge, split, slice, reduce, graph, timeline, stats`: what they print, and what they refuse."""

import re

import pytest

from nadi import et
from tests.headings import unexplained


@pytest.fixture
def traces(tmp_path):
    """Two NPUs, two steps: compute, an uneven all-to-all of both; a group file beside them."""
    kind = et.CollectiveCommType.ALL_TO_ALL
    for npu in range(2):
        nodes = []
        for step in range(2):
            first = 3 * step
            nodes += [
                et.comp_node(first, f"step{step}/a", duration_micros=10, num_ops=100, deps=[first - 1] if step else []),
                et.comp_node(first + 1, f"step{step}/call", is_cpu_op=True, deps=[first]),
                et.coll_node(first + 2, f"step{step}/ep", kind, 1000 + 500 * npu * step, pg_name="4", deps=[first + 1]),
            ]
        et.write_trace(tmp_path / f"t.{npu}.et.gz", et.metadata(), nodes)
    (tmp_path / "groups.json").write_text('{"4": [0, 1]}')
    return tmp_path / "t"


def contents(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_merge_and_split(nadi, traces, tmp_path):
    merged = nadi("trace", "merge", traces, "-o", tmp_path / "all.et")
    assert (merged.code, merged.err) == (0, "")
    assert merged.out == (
        f"{tmp_path}/all.et: 12 nodes of 2 traces, with groups.json; "
        f"`nadi trace split {tmp_path}/all.et -o DIR` makes them again\n"
    )
    assert nadi("trace", "show", tmp_path / "all.et", "--json").document["nodes"] == 12
    again = nadi("trace", "split", tmp_path / "all.et", "-o", tmp_path / "back", "--json")
    assert again.document["files"] == ["t.0.et.gz", "t.1.et.gz", "groups.json"]
    back = contents(tmp_path / "back")
    assert back == {name: (tmp_path / name).read_bytes() for name in back}  # Nadi's own gzip is the same again
    refused = nadi("trace", "split", tmp_path / "t.0.et.gz", "-o", tmp_path / "no")
    assert refused.code == 2
    assert re.fullmatch(r"nadi: error: .*t\.0\.et\.gz: a trace of one NPU, expected a master trace.*\n", refused.err)
    assert not (tmp_path / "no").exists()


def test_merge_and_split_of_a_trace_set(nadi, tmp_path):
    spread = ("--model", "gpt3-125m", "--plan", "tp2,pp2,dp2,mb1,gb4")
    assert nadi("workload", "megatron", *spread, "-o", tmp_path / "set").code == 0
    assert nadi("trace", "merge", tmp_path / "set", "-o", tmp_path / "m.et.gz").code == 0
    assert nadi("trace", "split", tmp_path / "m.et.gz", "-o", tmp_path / "back").code == 0
    assert contents(tmp_path / "back") == contents(tmp_path / "set")
    said = nadi("trace", "stats", tmp_path / "set", "--json").document
    assert (said["ranks"], said["traces"]) == (8, 2)
    shown = nadi("trace", "timeline", tmp_path / "set", "-o", tmp_path / "t.perfetto-trace", "--json").document
    assert (shown["npus"], shown["flows"] > 0) == (8, True)
    reduced = nadi("trace", "reduce", tmp_path / "set", "-o", tmp_path / "less", "--json").document
    nodes = [trace["nodes"] for trace in nadi("trace", "show", tmp_path / "less", "--json").document["traces"]]
    assert nodes == [one["kept"] for one in reduced.values()]
    assert nadi("trace", "slice", tmp_path / "set", "-o", tmp_path / "x", "--steps", 0).code == 2


def test_slice(nadi, traces, tmp_path):
    done = nadi("trace", "slice", traces, "-o", tmp_path / "out", "--steps", "1")
    assert done.code == 0, done.err
    assert sorted(contents(tmp_path / "out")) == ["groups.json", "t.0.et.gz", "t.1.et.gz"]
    table = et.read_trace(tmp_path / "out" / "t.1.et.gz")
    assert list(table.names) == ["step1/a", "step1/call", "step1/ep"]
    assert re.search(r"t\.0\.et\.gz +6 +3 ", done.out)
    one = ("--npus", "1", "--partners", "drop")
    said = nadi("trace", "slice", traces, "-o", tmp_path / "one", *one, "--json").document
    assert [(one["file"], one["kept"], one["without_partners"]) for one in said] == [("t.1.et.gz", 4, 2)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--steps", "x"), r"--steps x: found 'x'; expected numbers and ranges, as 0-7,16"),
        (("--nodes", "5-3"), r"--nodes 5-3: found the range 5-3; expected one that ascends, as 0-7"),
        (("--npus", "7"), r"--npus 7: no trace in .*t is of these; expected some of its 2 NPUs"),
        (("--npus", "0-99999999"), r"--npus: found more than 16,777,216 numbers; expected fewer"),
        (("--npus", "0"), r"collective 0 of group \"4\" has a partner in .*t\.1\.et\.gz, which is not selected"),
        (("--steps", "9"), r"no node matches the selection, expected one or more"),
    ],
)
def test_slices_that_are_refused(nadi, traces, tmp_path, arguments, complaint):
    done = nadi("trace", "slice", traces, "-o", tmp_path / "out", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert re.search(complaint, done.err)
    assert not (tmp_path / "out").exists()


def test_reduce(nadi, traces, tmp_path):
    done = nadi("trace", "reduce", traces, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert re.search(r"t\.0\.et\.gz +6 +4 +2 +0 +5 +3 +0", done.out)
    assert list(et.read_trace(tmp_path / "out" / "t.0.et.gz").names) == ["step0/a", "step0/ep", "step1/a", "step1/ep"]
    assert nadi("trace", "reduce", tmp_path / "none", "-o", tmp_path / "x").code == 2


@pytest.mark.parametrize("ending", ["svg", "dot", "graphml"])
def test_graph(nadi, traces, tmp_path, ending):
    out = tmp_path / f"g.{ending}"
    done = nadi("trace", "graph", traces, "-o", out, "--name", "*/a", "--name", "*/ep", "--most", 5)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == f"{out}: 5 nodes, 3 arrows"
    assert "  7 nodes are not shown" in done.out
    assert "step0/ep" in out.read_text()


def test_graphs_that_are_refused(nadi, traces, tmp_path):
    done = nadi("trace", "graph", traces, "-o", tmp_path / "g.png")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "found '.png'; expected .svg, .dot or .graphml" in done.err
    assert nadi("trace", "graph", traces, "-o", tmp_path / "g.svg", "--around", 99).code == 2
    assert not (tmp_path / "g.svg").exists()


def test_timeline(nadi, traces, tmp_path):
    out = tmp_path / "t.perfetto-trace"
    done = nadi("trace", "timeline", traces, "-o", out)
    assert done.out.splitlines() == [
        f"{out}: 12 slices on 2 NPUs, 0 arrows; open it in ui.perfetto.dev",
        "  no starts are recorded: nodes start as soon as their dependencies allow, whatever their lane",
    ]
    assert nadi("trace", "timeline", traces, "-o", tmp_path / "no" / "t").code == 2


def test_stats(nadi, traces, tmp_path):
    done = nadi("trace", "stats", traces)
    assert done.code == 0, done.err
    assert re.search(r"all-to-all +4 +4 +4\.50 kB", done.out)
    assert " NPU 0   - \n NPU 1   + \n" in done.out  # of the one that is uneven
    assert (
        '1 collectives are uneven; the largest deviation: all-to-all 1 of 4 ("step1/ep"), 20.0% from the mean'
        in done.out
    )
    assert "critical path across ranks: 20 µs, 4 nodes" in done.out
    found = nadi("trace", "stats", traces, "--json").document
    assert found["sizes_by_collective"]["deviation"] == [[0.0, -0.2], [0.0, 0.2]]
    assert nadi("trace", "stats", traces, "-o", tmp_path / "x.txt").code == 2


def test_the_page_of_the_imbalance(nadi, traces, tmp_path):
    from nadi.reports.pages.traces import by_collective, by_kind

    done = nadi("trace", "stats", traces, "-o", tmp_path / "x.html", "--json")
    (collectives,) = by_collective(done.document["sizes_by_collective"])
    (kinds,) = by_kind(done.document["bytes_by_rank"])
    drawn = [plot.figure.data[0] for plot in (collectives, kinds)]
    assert collectives.description == "1 collectives have members with unequal sizes."
    assert kinds.description == "The most uneven is NPU 0: all-to-all, -11.1% of the mean."
    assert [list(row) for row in drawn[0].z] == [[0, -0.2], [0, 0.2]]
    assert [row[0] for row in drawn[1].z] == pytest.approx([-1 / 9, 1 / 9], abs=1e-6)
    assert drawn[0].customdata[0][1] == "all-to-all 1 of 4: step1/ep"
    assert (tmp_path / "x.html").stat().st_size > 10_000
    assert unexplained((tmp_path / "x.html").read_text()) == []
