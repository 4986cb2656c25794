"""Fabrics, traces and algorithms that are values give the runs that files of them give."""

import io
import sys
import types
from pathlib import Path

import networkx as nx
import pytest

import nadi as package
from nadi import et, topologies, workload
from nadi.launching import progress as telling
from nadi.workload.collectives import custom

SPEC = "leaf-spine:npus=4,hosts_per_leaf=2,spines=1,rate=100Gbps,delay=1us"
CLOSED = {"fidelity": "closed-form"}
ALL_REDUCE = et.CollectiveCommType.ALL_REDUCE


def nodes(npu):
    """A computation, a message around the ring, and all-reduces of all and of two."""
    return [
        et.comp_node(1, "compute", duration_micros=3),
        et.send_node(2, "send", npu, (npu + 1) % 4, 5000, deps=[1]),
        et.recv_node(3, "receive", (npu - 1) % 4, npu, 5000),
        et.coll_node(4, "all", ALL_REDUCE, 1 << 16, deps=[2, 3]),
        et.coll_node(5, "two", ALL_REDUCE, 1 << 12, deps=[4], pg_name=f"g{npu % 2}"),
    ]


GROUPS = {"g0": [0, 2], "g1": [1, 3]}


@pytest.fixture(scope="module")
def fabric():
    return topologies.build(SPEC)


@pytest.fixture(scope="module")
def tables():
    return [et.table_of(et.metadata(), nodes(npu)) for npu in range(4)]


@pytest.fixture(scope="module")
def run(fabric, tables):
    return package.simulate(topology=fabric, workload=tables, groups=GROUPS)


def test_values_give_what_files_give(run, fabric, tables, tmp_path):
    workload.write_set(tmp_path / "set", workload.TraceSet.of(tables, GROUPS))
    topologies.write_toml(fabric, tmp_path / "fabric.toml")
    from_files = package.simulate(
        topology={"file": tmp_path / "fabric.toml"}, workload={"traces": tmp_path / "set"}, out=tmp_path / "out"
    )
    assert from_files.digest == run.digest
    assert from_files.nodes.equals(run.nodes)
    assert package.simulate(topology=SPEC, workload=tables, groups=GROUPS).digest == run.digest


def test_workers_share_values(run, fabric, tables):
    two = package.simulate(topology=fabric, workload=tables, groups=GROUPS, engine={"workers": 2})
    assert two.digest == run.digest


def test_the_run_has_the_values_and_its_folder_has_words(run, fabric):
    assert run.graph is fabric
    assert run.work.program.npus == 4
    assert run.summary["config"]["topology"] == {"graph": f"{fabric.name}, made in Python", "params": {}}
    assert run.summary["config"]["workload"]["trace_set"] == "4 traces, made in Python"
    other = package.Run(run.folder)
    assert other.digest == run.digest
    assert other.nodes.equals(run.nodes)
    with pytest.raises(package.ConfigError, match=r"graph: .*made in Python; no file holds it"):
        _ = other.graph


def test_commands_say_what_they_lack(run, nadi, tmp_path):
    page = tmp_path / "page.html"
    assert nadi("report", run.folder, "-o", page).code == 0
    assert "The fabric cannot be drawn" in page.read_text()
    explained = nadi("explain", run.folder)
    assert explained.code == 2
    assert "made in Python; no file holds" in explained.err
    assert len(explained.err.strip().splitlines()) == 1
    assert nadi("timeline", run.folder, "-o", tmp_path / "t.perfetto-trace").code == 0


def test_fewer_traces_than_npus_leave_the_others_idle(fabric):
    made = et.table_of(et.metadata(), [et.comp_node(1, "compute", duration_micros=3)])
    run = package.simulate(topology=fabric, workload=[made, None, made], network=CLOSED)
    assert run.npus["idle_ps"].to_pylist() == [0, 3_000_000, 0, 3_000_000]
    everybody = package.simulate(topology=fabric, workload=made, network=CLOSED)
    assert everybody.npus["idle_ps"].to_pylist() == [0] * 4
    assert package.simulate({"topology": {"spec": SPEC}}, workload=made, network=CLOSED).digest == everybody.digest


def test_generated_traces_are_those_of_a_model_and_a_plan(fabric):
    more = {"compute": {"gpu": "h100"}, "network": CLOSED, "topology": fabric}
    made = package.generate("gpt3-125m", "tp2,dp2")
    named = package.simulate(workload={"model": "gpt3-125m", "plan": "tp2,dp2"}, **more)
    assert package.simulate(workload=made, **more).digest == named.digest


def ring(members):
    lane = workload.Lane()
    for k in range(members - 1):
        lane.step(send_to=1, send=-k % members, receive_from=members - 1, receive=(-k - 1) % members)
    return workload.everyone_alike(members, chunks=members, lanes=[lane])


def star_of(members):
    """Everybody sends its own chunk to everybody else, each with plans of its own."""
    lanes = [
        [
            workload.Lane().step(
                send_to=(me + k) % members, to_lane=k - 1, send=me, receive_from=(me - k) % members,
                receive=(me - k) % members,
            )
            for k in range(1, members)
        ]
        for me in range(members)
    ]  # fmt: skip
    return workload.each_its_own(members, lanes)


@pytest.mark.parametrize(("plans", "algorithm"), [(ring(4), "ring"), (star_of(4), "direct")])
def test_own_plans_run_as_the_algorithm_that_they_are(fabric, plans, algorithm):
    table = et.table_of(et.metadata(), [et.coll_node(1, "g", et.CollectiveCommType.ALL_GATHER, 1 << 14)])
    own = package.simulate(topology=fabric, workload=table, schedules={"all-gather": plans})
    usual = package.simulate(topology=fabric, workload=table, system={"collectives": {"all-gather": algorithm}})
    assert own.finish_time_ps == usual.finish_time_ps
    assert own.config.system.collectives["all-gather"].startswith("custom:plans=")


def test_equal_plans_have_equal_names_and_others_have_others():
    assert custom.keep(ring(4), "all-gather") == custom.keep(ring(4), "all-gather")
    assert custom.keep(ring(4), "all-gather") != custom.keep(ring(5), "all-gather")


def test_plans_that_do_something_else_are_refused(fabric, tables):
    for kind, plans in (("all-reduce", ring(4)), ("all-gather", star_of(4)._replace(chunks=8))):
        with pytest.raises(workload.WorkloadError, match=f"plans of 4 members: no {kind}"):
            package.simulate(topology=fabric, workload=tables, groups=GROUPS, schedules={kind: plans})
    table = et.table_of(et.metadata(), [et.coll_node(1, "g", et.CollectiveCommType.ALL_GATHER, 1 << 14)])
    with pytest.raises(workload.WorkloadError, match="3 members, expected 4 as the group"):
        package.simulate(topology=fabric, workload=table, schedules={"all-gather": ring(3)})
    with pytest.raises(workload.WorkloadError, match="only that process has them"):
        package.simulate(topology=fabric, workload=table, system={"collectives": {"all-gather": "custom:plans=00"}})


WRONG = [
    ({"topology": 5}, "topology: found a int"),
    ({"workload": []}, "traces of 0 NPUs"),
    ({"workload": ["a.et"]}, "trace of NPU 0: found a str, expected a TraceTable"),
    ({"groups": {"g0": [0, 9], "g1": [1, 3]}}, "group 'g0': members"),
    ({"groups": {"0": [0]}}, "group '0': always all NPUs"),
    ({"workload": {"trace_set": "x", "traces": "y"}, "groups": None}, "traces is set beside trace_set"),
    ({"workload": {"trace_set": 5}, "groups": None}, "expected a TraceSet"),
    ({"workload": {"trace_set": "x"}, "groups": None}, "trace_set: x; no file holds them"),
    ({"topology": {"graph": "x"}}, "graph: x; no file holds it"),
    ({"topology": {"graph": "x", "params": {"a": 1}}}, "params are set beside graph"),
    ({"topology": "ring:npus=2,rate=1Gbps,delay=1us"}, "traces of 4 NPUs; expected at most 2"),
    ({"workload": {"traces": "x"}}, "groups: found beside a mapping"),
    ({"workload": None}, "groups: found without traces"),
    ({"schedules": {"all-reduce": "ring"}}, "schedules: all-reduce: found a str"),
    ({"topology": nx.DiGraph()}, "a directed graph"),
]


@pytest.mark.parametrize(("more", "said"), WRONG)
def test_what_is_wrong_is_one_line(fabric, tables, more, said):
    with pytest.raises(ValueError, match=said) as caught:
        package.simulate(**{"topology": fabric, "workload": tables, "groups": GROUPS, **more})
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_run_files_cannot_name_values(nadi, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(f'[workload]\ntrace_set = "mine"\n[topology]\nspec = "{SPEC}"\n')
    said = nadi("run", file)
    assert said.code == 2
    assert "no file holds them" in said.err


def test_a_notebook_gets_one_line_written_anew(monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(telling, "_REWRITE_EVERY_S", 0.0)
    stream = io.StringIO()
    with telling.progress(stream=stream) as shown:
        shown.begin("a long first line")
        shown.begin("second")
        shown.say("a word")
        shown.begin("third")
    assert stream.getvalue() == (
        "\rnadi: a long first line\rnadi: second           \nnadi: a word\n\rnadi: third\n"
    )  # fmt: skip


def test_types_are_shipped():
    assert Path(package.__file__).with_name("py.typed").is_file()
