"""`nadi trace`: check, convert, select and collect; tests/records/transcripts has what is printed."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from nadi import et
from nadi.et.pytorch import convert
from nadi.et.selection import FEATURES, choose, coverage, features
from nadi.workload import TraceSet, write_set
from tests.headings import unexplained
from tests.nonempty import nonempty


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
    nadi.ok("workload", "megatron", *spread, "-o", tmp_path / "set")
    nadi.ok("trace", "merge", tmp_path / "set", "-o", tmp_path / "m.et.gz")
    nadi.ok("trace", "split", tmp_path / "m.et.gz", "-o", tmp_path / "back")
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


REDUCE = et.CollectiveCommType.ALL_REDUCE


def test_a_mended_trace_is_what_a_run_that_is_not_strict_makes_of_it(nadi, write_run, tmp_path):
    nodes = [
        et.comp_node(1, "a", duration_micros=5, ctrl_deps=[2, 77], attrs=[et.attribute("scope", "string", "kept")]),
        et.comp_node(2, "b", duration_micros=7, deps=[1, 99]),
        et.coll_node(3, "c", REDUCE, 1 << 16, deps=[2]),
    ]
    run = write_run([nodes] * 4)
    loose = nadi("run", run, "--set", "workload.strict=false", "--json").document
    nadi.ok("trace", "check", tmp_path / "trace", "--fix", "-o", tmp_path / "out")
    mended = nadi("run", run, "--set", f'workload.traces="{tmp_path / "out" / "trace"}"', "--json").document
    assert mended["digest"] == loose["digest"]
    assert et.read_messages(tmp_path / "out" / "trace.0.et")[1][0].attr[-1].string_val == "kept"


def test_a_trace_set_is_checked_for_every_npu(nadi, tmp_path):
    block = et.Block()
    block.coll("x", REDUCE, 64, group="tp")
    block.send("s", 8, peer=1)
    columns = et.TraceColumns(npu=0)
    columns.stamp(block)
    families = {"tp": ((0, 1), (2, 3))}
    traces = TraceSet([columns.table()], np.zeros(4, np.int32), np.zeros(1, np.int32), families)
    write_set(tmp_path / "set", traces)
    outcome = nadi("trace", "check", tmp_path / "set", "--json")
    sorts = {(f["check"], f["severity"]): f["count"] for f in outcome.document["findings"]}
    assert (outcome.code, sorts) == (2, {("messages", "error"): 3, ("peers", "error"): 1})
    assert nadi("trace", "check", tmp_path / "set", "--fix", "-o", tmp_path / "out").code == 2
    assert (tmp_path / "out" / "traces.json").read_bytes() == (tmp_path / "set" / "traces.json").read_bytes()


def test_the_kind_is_found_and_all_is_reported(nadi, tmp_path):
    traces = tmp_path / "in"
    traces.mkdir()
    for npu in range(2):
        et.write_trace(traces / f"a.{npu}.et", et.metadata(), [et.comp_node(1, "x")])
    said = nadi("trace", "convert", traces, "-o", tmp_path / "out", "--prefix", "b", "--json").document
    assert (said["from"], said["to"], said["npus"], said["files"]) == ("chakra", "chakra", 2, ["b.0.et", "b.1.et"])
    assert (tmp_path / "out" / "b.1.et").read_bytes() == (traces / "a.1.et").read_bytes()
    shown = nadi("trace", "convert", traces, "-o", tmp_path / "table", "--prefix", "b").out
    assert "b.0.et .. b.1.et (2 files)" in shown


def test_a_trace_set_is_converted_as_its_traces_for_each_npu_are(nadi, tmp_path):
    traces, plain = tmp_path / "set", tmp_path / "plain"
    nadi.ok("workload", "megatron", "--model", "gpt3-125m", "--plan", "tp2,pp2,dp2,gb4", "-o", traces)
    nadi.ok("trace", "expand", traces, "-o", plain)
    for to in ("chakra", "json"):
        said = nadi("trace", "convert", traces, "-o", tmp_path / to, "--to", to, "--json").document
        assert (said["from"], said["npus"]) == ("chakra", 8)
        wanted = plain
        if to != "chakra":
            wanted = tmp_path / f"{to}-of-plain"
            nadi.ok("trace", "convert", plain, "-o", wanted, "--to", to)
        names = sorted(file.name for file in wanted.iterdir())
        assert sorted(file.name for file in (tmp_path / to).iterdir()) == names
        assert len(names) == 9  # with groups.json
        assert all((tmp_path / to / name).read_bytes() == (wanted / name).read_bytes() for name in names)


LAYERS = """HYBRID_TRANSFORMER model_parallel_NPU_group: 2
2
a -1 5000 ALLREDUCE 65536 5000 ALLREDUCE 65536 4000 ALLREDUCE 131072 0
b -1 7000 ALLREDUCE 65536 7000 ALLREDUCE 65536 6000 ALLREDUCE 131072 0
"""


@pytest.fixture
def finish(nadi, write_run):
    run = write_run([], text='[system.collectives]\nall-reduce = "ring"\n')

    def of(prefix):
        text = [f'workload.traces="{prefix}"']
        groups = prefix.parent / "groups.json"
        text += [f'workload.groups="{groups}"'] * groups.is_file()
        outcome = nadi.ok("run", run, *(word for setting in text for word in ("--set", setting)), "--json")
        return outcome.document["finish_time_ps"]

    return of


def converted(nadi, source, out, *more):
    nadi.ok("trace", "convert", source, "-o", out, *more)
    return out


def test_layers_become_json_and_goal_and_chakra_again_and_all_take_as_long(nadi, finish, tmp_path):
    (tmp_path / "x.txt").write_text(LAYERS)
    first = converted(nadi, tmp_path / "x.txt", tmp_path / "et", "--from", "astra-sim:npus=4")
    json = converted(nadi, first, tmp_path / "json", "--to", "json")
    again = converted(nadi, json, tmp_path / "again")
    goal = converted(nadi, first, tmp_path / "goal", "--to", "goal")
    messages = converted(nadi, goal / "trace.goal", tmp_path / "messages")
    for folder in (first, again, messages):
        nadi.ok("trace", "check", folder, "--strict")
    for npu in range(4):
        assert (again / f"trace.{npu}.et").read_bytes() == (first / f"trace.{npu}.et").read_bytes()
    as_collectives = finish(first / "trace")
    assert finish(again / "trace") == as_collectives
    computing_ps = sum(int(line.split()[i]) for line in LAYERS.splitlines()[2:] for i in (2, 5, 8)) * 1000
    assert as_collectives > computing_ps
    # ring steps by messages in place of a ring: they have the same sizes and the same order
    assert finish(messages / "trace") == pytest.approx(as_collectives, rel=0.02)


def test_a_collective_alone_takes_as_long_as_the_same_one_of_a_chakra_trace(nadi, finish, tmp_path):
    (tmp_path / "x.txt").write_text("MICRO\n1\nconv1 -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1048576 5\n")
    made = converted(nadi, tmp_path / "x.txt", tmp_path / "made", "--from", "astra-sim:npus=4")
    (tmp_path / "own").mkdir()
    for npu in range(4):
        node = et.coll_node(0, "x", et.CollectiveCommType.ALL_REDUCE, 1048576)
        et.write_trace(tmp_path / "own" / f"trace.{npu}.et", et.metadata(), [node])
    assert finish(made / "trace") == finish(tmp_path / "own" / "trace")


SCRIPT = Path(__file__).parents[2] / "scripts" / "train_example.py"
KINDS = et.CollectiveCommType


def collected(nadi, folder, *options, steps="3"):
    pytest.importorskip("torch", reason="no PyTorch (extra pytorch)")
    command = [sys.executable, SCRIPT, "--ranks", "2", *options]
    outcome = nadi("trace", "collect", "-o", folder, "--steps", steps, "--", *command)
    assert (outcome.code, outcome.err) == (0, "")
    assert {file.name for file in folder.iterdir()} == {
        f"{kind}.rank{rank}.json" for kind in ("host", "kineto") for rank in (0, 1)
    }
    return folder


def counts(table):
    kinds, many = np.unique(table.comm_type[table.comm_type >= 0], return_counts=True)
    return dict(zip(kinds.tolist(), many.tolist(), strict=True))


def measured_us(recorded, step):
    """How long each rank's step took, as Kineto has it."""
    found = []
    for rank in (0, 1):
        events = json.loads((recorded / f"kineto.rank{rank}.json").read_text())["traceEvents"]
        found += [event["dur"] for event in events if event.get("name") == f"ProfilerStep#{step}"]
    return found


def simulated_us(nadi, traces, fabric="fully-connected:npus=2,rate=10Gbps,delay=50us"):
    """How long each rank takes from when it begins."""
    run = traces.parent / "run.toml"
    run.write_text(f'[workload]\ntraces = "{traces.name}/trace"\n[topology]\nspec = "{fabric}"\n')
    nadi.ok("run", run, "--out", traces / "results", "-q")
    rows = pq.read_table(traces / "results" / "nodes.parquet", columns=["npu", "name", "finish_ps"]).to_pylist()
    took = []
    for rank in (0, 1):
        own = [row for row in rows if row["npu"] == rank]
        begin = max((row["finish_ps"] for row in own if row["name"].startswith("(ranks")), default=0)
        took.append((max(row["finish_ps"] for row in own) - begin) / 1e6)
    return took


def reproduced(nadi, tmp_path, *options, steps=(3, 4)):
    """Record steps 3 and 4, convert, check and simulate them; every rank must take as long as it did, within 10 %."""
    recorded = collected(nadi, tmp_path / "recorded", "--steps", "6", *options, steps="3-4")
    for step in nonempty(steps):
        traces = tmp_path / f"traces{step}"
        said = nadi("trace", "convert", recorded, "-o", traces, "--from", f"pytorch:step={step}", "--json").document
        assert [rank["lost"] for rank in said["report"]["ranks"]] == [{}, {}]
        found = nadi("trace", "check", traces, "--json").document
        wrong = [sort for sort in found["findings"] if sort["severity"] != "note" and sort["check"] != "clocks"]
        assert wrong == []
        assert found["warnings"] <= 1  # each process of a busy machine may set Kineto's clock a little differently
        assert simulated_us(nadi, traces) == pytest.approx(measured_us(recorded, step), rel=0.1)
    return [et.read_trace(tmp_path / f"traces{steps[-1]}" / f"trace.{rank}.et") for rank in (0, 1)]


@pytest.mark.slow
def test_a_step_of_data_parallel_training_takes_as_long_simulated(nadi, tmp_path):
    tables = reproduced(nadi, tmp_path, "--batch", "4")
    assert [counts(table) for table in tables] == [{KINDS.ALL_REDUCE: 2}] * 2
    assert tables[0].comm_size[tables[0].comm_type >= 0].sum() == 2_112_512  # a float for each weight
    slow = "fully-connected:npus=2,rate=50Mbps,delay=50us"  # 338 ms for them
    assert min(simulated_us(nadi, tmp_path / "traces4", slow)) > 300_000


@pytest.mark.slow
def test_a_step_of_sharded_training_takes_as_long_simulated(nadi, tmp_path):
    tables = reproduced(nadi, tmp_path, "--parallel", "fsdp", "--batch", "4")
    for table in nonempty(tables):
        # four parts gathered forward, three of them once more backward; gloo reduces as it can
        found = counts(table)
        assert found[KINDS.ALL_GATHER] >= 7
        assert found.get(KINDS.ALL_REDUCE, 0) + found.get(KINDS.REDUCE_SCATTER, 0) == 4
    assert counts(tables[0]) == counts(tables[1])


@pytest.mark.slow
def test_a_step_of_tensor_parallel_training_takes_as_long_simulated(nadi, tmp_path):
    for table in nonempty(reproduced(nadi, tmp_path, "--parallel", "tp", "--batch", "4", steps=(4,))):
        rows = np.flatnonzero(table.comm_type == KINDS.ALL_REDUCE)
        assert table.comm_size[rows].tolist() == [4 * 64 * 128 * 4] * 4  # two layers, forward and backward
        waited_for = {int(parent) for parent in table.dep}
        assert waited_for >= set(rows.tolist())


@pytest.mark.parametrize(
    ("script", "says"), [("raise SystemExit(3)", "has ended with code 3"), ("pass", "no step was recorded")]
)
def test_what_cannot_be_collected_is_one_line(nadi, tmp_path, script, says):
    outcome = nadi("trace", "collect", "-o", tmp_path / "out", "--", sys.executable, "-c", script)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert says in outcome.err


def test_the_api_records_the_steps_that_it_is_told(tmp_path):
    torch = pytest.importorskip("torch", reason="no PyTorch (extra pytorch)")
    from nadi.et.pytorch import collect

    with collect(tmp_path, steps=[1, 2]) as steps:
        for _ in range(4):
            torch.ones(8).sum()
            steps.step()
    made = convert([tmp_path], "1")
    assert "aten::ones" in list(made.tables[0].names)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["host.rank0.json", "kineto.rank0.json"]
    with pytest.raises(ValueError, match="expected consecutive numbers from 1 on"), collect(tmp_path, steps=[0]):
        pass


def test_a_run_that_ends_before_its_step_leaves_nothing(tmp_path):
    pytest.importorskip("torch", reason="no PyTorch (extra pytorch)")
    from nadi.et.pytorch import collect

    with collect(tmp_path, steps=[2]) as steps:
        steps.step()
    assert list(tmp_path.iterdir()) == []


TALK = (et.CollectiveCommType.ALL_REDUCE, et.CollectiveCommType.ALL_TO_ALL, et.CollectiveCommType.ALL_GATHER)


def write_trace(path, family, draw):
    """A chain of compute and collectives, by its family short and talkative, long and busy, or wide."""
    generator = np.random.default_rng((family, draw))
    steps, micros, size = ((20, 10, 1 << 24), (60, 900, 1 << 14), (30, 100, 1 << 19))[family]
    nodes, last = [], []
    for step in range(steps + int(generator.integers(3))):
        of_step = 2 * step
        time = micros + int(generator.integers(micros // 10 + 1))
        nodes.append(et.comp_node(of_step, "work", duration_micros=time, deps=last if family < 2 else []))
        nodes.append(
            et.coll_node(of_step + 1, "talk", TALK[family], size + int(generator.integers(100)), deps=[of_step])
        )
        last = [of_step + 1]
    et.write_trace(path, et.metadata(), nodes)


@pytest.fixture
def planted(tmp_path):
    """30 traces of the first family, 20 of the second, 10 of the third, in no order."""
    numbers = np.random.default_rng(7).permutation(60)
    for number, family in zip(numbers.tolist(), [0] * 30 + [1] * 20 + [2] * 10, strict=True):
        write_trace(tmp_path / f"family{family}.{number}.et", family, number)
    return tmp_path


def test_planted_clusters_are_found(nadi, planted):
    said = nadi.ok("trace", "select", planted, "-k", 3, "--json").document
    assert [(row["path"].split("family")[1][0], row["items"]) for row in said["chosen"]] == [
        ("0", 30),
        ("1", 20),
        ("2", 10),
    ]
    assert [row["weight"] for row in said["chosen"]] == pytest.approx([30 / 60, 20 / 60, 10 / 60])
    assert said["coverage"]["within"] == 1
    assert said["coverage"]["mean"] < 0.5 * said["coverage"]["random_mean"]
    for means in nonempty(said["means"].values()):
        assert means["chosen"] == pytest.approx(means["all"], rel=0.06)


def test_fewer_than_there_are_clusters_cover_less(nadi, planted):
    two, three = (nadi("trace", "select", planted, "-k", k, "--json").document["coverage"] for k in (2, 3))
    assert two["mean"] > 2 * three["mean"]
    assert two["within"] == pytest.approx(50 / 60)
    assert two["farthest"] > 1 > three["farthest"]


def test_it_is_said_in_words(nadi, planted):
    found = nadi.ok("trace", "select", planted, "-k", 3)
    assert "3 of 60" in found.out
    assert "50.0%" in found.out
    assert "within 0.5" in found.out


def test_traces_of_a_set_count_for_their_npus(nadi, tmp_path):
    """Two distinct traces, of 6 and of 2 NPUs; and folders as wholes."""
    for name, families in (("one", (0, 1)), ("other", (2, 2))):
        folder = tmp_path / name
        folder.mkdir()
        for npu, family in zip((0, 6), families, strict=True):
            write_trace(folder / f"t.npu{npu}.et", family, npu)
        traces = [
            {"file": "t.npu0.et", "example": 0, "npus": [0, 1, 2, 3, 4, 5]},
            {"file": "t.npu6.et", "example": 6, "npus": [6, 7]},
        ]
        for trace in traces:
            trace["nodes"] = len(et.read_trace(folder / trace["file"]))
        said = {"version": 1, "npus": 8, "traces": traces, "families": {}}
        (folder / "traces.json").write_text(json.dumps(said))
    found = nadi("trace", "select", tmp_path / "one", "-k", 2, "--json").document
    assert [row["weight"] for row in found["chosen"]] == [0.75, 0.25]
    found = nadi(
        "trace", "select", tmp_path / "one", tmp_path / "other", "-k", 2, "--each", "folder", "--json"
    ).document
    assert {row["path"] for row in found["chosen"]} == {str(tmp_path / "one"), str(tmp_path / "other")}


def test_clusters_against_every_choice():
    """Of 9 points in three heaps no three stand for all better; a point that is there often is the middle."""
    rows = np.zeros((9, len(FEATURES)))
    rows[:, 0] = [0, 0.1, 0.2, 10, 10.1, 10.2, 20, 20.1, 20.2]
    many = np.array([1, 1, 1, 1, 1, 9, 1, 1, 1.0])
    choice = choose(rows, many, 3)
    assert sorted(choice.chosen.tolist()) == [1, 5, 7]
    places = choice.places[:, 0]
    best = min(
        np.average(np.abs(places[:, None] - places[[a, b, c]]).min(axis=1), weights=many)
        for a in range(9)
        for b in range(a)
        for c in range(b)
    )
    assert coverage(choice, 0.5).mean == pytest.approx(best)


def test_more_than_differ_are_not_chosen():
    rows = np.zeros((5, len(FEATURES)))
    rows[3:, 0] = 4
    choice = choose(rows, np.ones(5), 4)
    assert sorted(choice.chosen.tolist()) == [0, 3]
    assert choice.distance.tolist() == [0] * 5
    assert choice.weights.tolist() == [0.6, 0.4]


def test_features_say_what_a_trace_is(tmp_path):
    nodes = [et.comp_node(0, "a", duration_micros=7), et.coll_node(1, "b", TALK[1], 1 << 20, deps=[0])]
    et.write_trace(tmp_path / "t.0.et", et.metadata(), [*nodes, et.comp_node(2, "c", duration_micros=7, deps=[0, 1])])
    found = dict(zip(FEATURES, features(et.read_trace(tmp_path / "t.0.et")).tolist(), strict=True))
    assert found["nodes"] == 2
    assert found["share of COMP_NODE"] == pytest.approx(2 / 3)
    assert found["bytes in all-to-all"] == 1
    assert found["microseconds at 50%"] == 3
    assert found["depth by nodes"] == 1
    assert found["fan-in"] == 1
    assert found["largest fan-in"] == pytest.approx(np.log2(3))
    assert found["bytes"] == pytest.approx(20, abs=1e-5)
