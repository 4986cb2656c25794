"""`nadi explain`: critical paths that are known by hand, what bound them, and gains beside real runs."""

import numpy as np
import pytest

import nadi as package
from nadi import et
from nadi.et import CollectiveCommType
from nadi.insight.explanation import explain, what_if
from nadi.insight.explanation.contention import contention
from nadi.insight.explanation.critical_path import MessagesOfPath, critical_path, npus_of_path
from nadi.insight.explanation.run_events import events_of_run
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.costs import ClosedFormCosts, CollectiveCosts
from nadi.workload.node_kinds import RECV, SEND

US = 10**6
NETWORK = '[network]\nmtu = "4KiB"\n'
FABRIC = (
    'name = "leaf-spine"\nparams = {{ leaves = {}, hosts_per_leaf = {}, spines = 1, rate = "{}", delay = "500ns" }}'
)


def compute(number, micros, *after):
    return et.comp_node(number, f"compute{number}", duration_micros=micros, deps=after)


@pytest.fixture
def ran(write_run, tmp_path):
    def run(nodes, rate="100Gbps", more=NETWORK, leaves=1, name="out"):
        fabric = FABRIC.format(leaves, len(nodes) // leaves, rate)
        return package.simulate(write_run(nodes, more, fabric), out=tmp_path / name)

    return run


def pieces_of(run):
    found = events_of_run(run)
    return found, critical_path(run, found)


def what_ifs(run):
    found = events_of_run(run)
    return what_if(run, found, contention(run, found, []))


def test_a_late_member_is_on_the_path(ran):
    """NPU 2 computes for 500 us, the others for 100; the all-reduce follows, then NPU 0 alone computes."""
    nodes = []
    for npu in range(4):
        own = [compute(1, 500 if npu == 2 else 100)]
        own.append(et.coll_node(2, "sum", CollectiveCommType.ALL_REDUCE, 1 << 20, deps=[1]))
        nodes.append([*own, compute(3, 50, 2)] if npu == 0 else own)
    run = ran(nodes)
    found, pieces = pieces_of(run)
    assert [(piece.what, int(found.npu[piece.node])) for piece in pieces] == [
        ("compute", 2),
        ("collective", 0),
        ("compute", 0),
    ]
    assert [piece.time_ps for piece in pieces[::2]] == [500 * US, 50 * US]
    assert sum(piece.time_ps for piece in pieces) == run.finish_time_ps
    assert npus_of_path(found, pieces) == [2, 0]


def test_a_large_message_is_bound_by_its_slowest_link(write_run, tmp_path):
    """4 MiB over links of 100 Gb/s; the first is of 25 Gb/s."""
    nodes = [
        [compute(1, 10), et.send_node(2, "give", 0, 1, 4 << 20, deps=[1])],
        [et.recv_node(1, "get", 0, 1, 4 << 20)],
        [compute(1, 5)],
    ]
    fabric = tmp_path / "fabric.toml"
    rest = '[[links]]\nrate = "100Gbps"\ndelay = "1us"\ncables = [[1, 3], [2, 3]]\n'
    first = '[[links]]\nrate = "25Gbps"\ndelay = "1us"\ncables = [[0, 3]]\n'
    fabric.write_text('npus = 3\n[[switches]]\nlatency = "0ns"\n' + first + rest)
    run = package.simulate(write_run(nodes, NETWORK, f'file = "{fabric}"'), out=tmp_path / "out")
    document = explain(run)
    assert [row["what"] for row in document["by_what"]] == ["message", "compute"]
    assert document["by_what"][0]["bound"] == "rate of npu 0 → switch 0 (25 Gb/s)"
    assert document["npus"] == [0, 1]


def test_many_small_steps_are_bound_by_latency(ran):
    nodes = [[et.coll_node(1, "sum", CollectiveCommType.ALL_REDUCE, 64)] for _ in range(4)]
    (row,) = explain(ran(nodes))["by_what"]
    assert row["bound"].startswith("latency")
    assert row["share"] == 1.0


def test_others_in_the_way_are_a_queue(ran):
    """NPUs 1 to 3 send to NPU 0 at once: the last of them waits for the port to it."""
    size = 1 << 20
    nodes = [[et.recv_node(src, f"get{src}", src, 0, size) for src in (1, 2, 3)]]
    nodes += [[et.send_node(1, "give", src, 0, size)] for src in (1, 2, 3)]
    (row,) = explain(ran(nodes))["by_what"]
    assert row["what"] == "message"
    assert "others in the way" in row["bound"]
    assert row["bound"].endswith("queue of leaf 0 → npu 0")


def test_a_node_that_waits_for_its_lane_follows_it(ran):
    """Both are ready at once and take turns on the accelerator."""
    found, pieces = pieces_of(ran([[compute(1, 30), compute(2, 20)]]))
    assert [piece.time_ps for piece in pieces] == [30 * US, 20 * US]
    assert [int(found.row[piece.node]) for piece in pieces] == [0, 1]


def program(seed, compute_factor=1.0):
    """Four NPUs that compute one thing after another, and share collectives and messages behind that.

    What computes waits for the share of one to three turns before, so that communication is hidden in part. Which of
    two nodes takes a lane first, or how much two communications are in each other's way, does not depend on how fast
    anything is: where it does, a faster link may even make a run longer (Graham 1969), and re-weighting cannot tell.
    """
    draw = np.random.default_rng(seed)
    nodes = [[] for _ in range(4)]
    kinds = (CollectiveCommType.ALL_REDUCE, CollectiveCommType.ALL_GATHER, CollectiveCommType.REDUCE_SCATTER)
    for turn in range(8):
        number, micros = 1 + 3 * turn, 11 * draw.integers(3, 40, 4)
        size, kind, is_message = int(draw.integers(1 << 17, 1 << 22)), kinds[draw.integers(3)], draw.random() < 0.3
        far = int(draw.integers(1, 4))
        after = [number, number - 1, number - 2] if turn else [number]
        before = [number - 3, *([number - 3 * far + 2] if turn >= far else [])] if turn else []
        for npu, own in enumerate(nodes):
            own.append(compute(number, round(micros[npu] * compute_factor), *before))
            if is_message:
                own.append(et.send_node(number + 1, "give", npu, (npu + 1) % 4, size, number, deps=after))
                own.append(et.recv_node(number + 2, "get", (npu - 1) % 4, npu, size, number, deps=after))
            else:
                own.append(et.coll_node(number + 1, "share", kind, size // 16 * 16, deps=after))
                own.append(et.comp_node(number + 2, "nothing", deps=[number + 1]))
    return nodes


@pytest.mark.parametrize("seed", range(4))
def test_gains_are_those_of_real_runs(ran, seed, monkeypatch):
    """Links, GPUs and collectives 10 % faster: what is told is within a fifth of what a run with them saves."""
    run = ran(program(seed))
    answers = {answer.key: answer for answer in what_ifs(run)}
    for key, faster in (
        ("tier leaf and npu", ran(program(seed), rate="110Gbps", name="links")),
        ("gpu", ran(program(seed, 1 / 1.1), name="gpus")),
    ):
        real = run.finish_time_ps - faster.finish_time_ps
        told = run.finish_time_ps - answers[key].finish_time_ps
        assert real > 0
        assert told == pytest.approx(real, rel=0.2), key

    closed = '[network]\nfidelity = "closed-form"\n'
    before = ran(program(seed), more=closed, name="before")
    told = {answer.key: answer for answer in what_ifs(before)}
    of_collectives = CollectiveCosts.of_collectives
    slow = {key: told[key] for key in told if key.startswith("collectives ") and key != "collectives messages"}

    def quicker(*arguments):
        costs = of_collectives(*arguments)
        return ClosedFormCosts(np.round(costs.time_ps / 1.1).astype(np.int64), costs.is_simulated)

    monkeypatch.setattr(CollectiveCosts, "of_collectives", quicker)
    after = ran(program(seed), more=closed, name="after")
    real = before.finish_time_ps - after.finish_time_ps
    together = sum(before.finish_time_ps - answer.finish_time_ps for answer in slow.values())
    assert together == pytest.approx(real, rel=0.2)


def test_the_command_prints_and_gives_json(ran, nadi):
    run = ran(program(3))
    assert "composition of the critical path" in nadi("explain", run.folder).out
    document = nadi("explain", run.folder, "--json").document
    assert sum(row["time_ps"] for row in document["by_what"]) == pytest.approx(run.finish_time_ps)
    assert sum(row["share"] for row in document["by_bound"]) == pytest.approx(1)


def test_moments_are_told_again_to_the_picosecond(ran):
    run = ran(program(5))
    found = events_of_run(run)
    times, nodes = found.dag.times(), len(found.npu)
    assert np.array_equal(times[:nodes], found.start_ps)
    assert np.array_equal(times[nodes : 2 * nodes], found.finish_ps)


def test_what_cannot_be_explained_is_one_line(nadi, write_run, tmp_path):
    run = write_run(program(1), '[output]\nnodes = "none"\n', FABRIC.format(1, 4, "100Gbps"))
    nadi.ok("run", run, "--out", tmp_path / "out", "-q")
    assert "no nodes.parquet" in nadi.refuse("explain", tmp_path / "out").err


STEP = {"model": "gpt3-125m", "plan": "tp2,pp2,dp2,gb4"}


@pytest.fixture(scope="module")
def of_all_and_of_classes(tmp_path_factory):
    """A step of closed forms, with the nodes of all NPUs and with those of one of each class."""
    runs = []
    for most_rows in (None, 1):
        with pytest.MonkeyPatch.context() as patch:
            if most_rows:
                patch.setattr(running, "MAX_ROWS", most_rows)
            out = tmp_path_factory.mktemp("step") / "out"
            network = {"fidelity": "closed-form"}
            runs.append(package.simulate(workload=STEP, topology={"cluster": "selene"}, network=network, out=out))
    return runs


def test_one_npu_of_each_class_explains_the_run(of_all_and_of_classes):
    """As the nodes of all NPUs do: the path by what it is made of, and every gain."""
    whole, classes = (explain(run) for run in of_all_and_of_classes)
    assert len(of_all_and_of_classes[0].nodes) > len(of_all_and_of_classes[1].nodes)
    assert classes["stand_for_others"] > whole["stand_for_others"]
    assert set(classes["npus"]) <= set(of_all_and_of_classes[1].npus["represented_by"].to_pylist())
    for key in ("finish_time_ps", "pieces", "by_what", "by_bound", "what_if"):
        assert classes[key] == whole[key], key


def test_sends_of_npus_that_others_stand_for_are_found(of_all_and_of_classes):
    """Each receive of a kept NPU has its send among the kept nodes, which ends in time."""
    found = events_of_run(of_all_and_of_classes[1])
    receives = np.flatnonzero(found.node_kind == RECV)
    assert len(receives)
    assert (found.node_kind[found.sender[receives]] == SEND).all()
    assert (found.start_ps[found.sender[receives]] < found.finish_ps[receives]).all()


def test_messages_off_the_path_are_not_kept(ran):
    """Of two collectives after each other on disjoint NPUs only what is on the path is read."""
    run = ran([[et.coll_node(1, "sum", CollectiveCommType.ALL_REDUCE, 1 << 20)] for _ in range(4)])
    of_none = MessagesOfPath(run, [(0, 7)], [(0, 1)])
    assert not len(of_none.of_collective(0, 0)["src"])
    kept = MessagesOfPath(run, [(0, 0)], [])
    assert len(kept.of_collective(0, 0)["src"]) == len(run.flows)
    assert not len(kept.between(0, 1, 0.0)["src"])


def test_groups_alike_are_told_by_those_that_stand_for_them(tmp_path, monkeypatch):
    """NPU 0 shares with 3 and 1 with 2: 2 does what 0 does, and 3 what 1 does, which computes for longer."""
    for npu in range(4):
        own = [compute(1, 200 if npu in {1, 3} else 100)]
        own.append(et.coll_node(2, "sum", CollectiveCommType.ALL_REDUCE, 1 << 20, pg_name=f"{npu in {1, 2}}", deps=[1]))
        et.write_trace(tmp_path / f"trace.{npu}.et", et.metadata(), [*own, compute(3, 50, 2)])
    (tmp_path / "groups.json").write_text('{"False": [0, 3], "True": [1, 2]}')
    monkeypatch.setattr(running, "MAX_ROWS", 1)
    run = package.simulate(
        workload={"traces": str(tmp_path / "trace"), "groups": str(tmp_path / "groups.json")},
        topology={"spec": "leaf-spine:npus=4,hosts_per_leaf=4,spines=1"},
        network={"fidelity": "closed-form"},
        out=tmp_path / "out",
    )
    assert run.npus["represented_by"].to_pylist() == [0, 1, 0, 1]
    found, pieces = pieces_of(run)
    assert [piece.what for piece in pieces] == ["compute", "collective", "compute"]
    assert int(found.npu[pieces[0].node]) == 1
    assert pieces[0].time_ps == 200 * US
    assert sum(piece.time_ps for piece in pieces) == run.finish_time_ps
