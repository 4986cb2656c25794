"""`nadi trace merge, split, slice, reduce, graph, timeline, stats`: what they print, and what they refuse."""

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


def test_the_page_of_the_imbalance(nadi, traces, tmp_path):
    from nadi.reports.pages.imbalance import by_collective, by_kind

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
