"""What `import nadi` offers: runs, plans and findings; fabrics, traces and plans may be values."""

import io
import json
import subprocess
import sys
import types
from pathlib import Path

import networkx as nx
import pytest

import nadi as package
from nadi import et, topologies, workload
from nadi.configuration.run_config import RunConfig
from nadi.launching import progress as telling
from nadi.simulation import schemas
from nadi.workload.collectives import custom

MODEL = {"model": "gpt3-125m", "plan": "tp2,pp2,dp2,gb4", "framework": "megatron"}
FABRIC = {"cluster": "selene"}


@pytest.fixture(scope="module")
def run():
    return package.simulate(workload=MODEL, topology=FABRIC, network={"fidelity": "closed-form"})


def test_a_run_has_what_the_command_writes(run, nadi, tmp_path):
    words = f"run --model {MODEL['model']} --plan {MODEL['plan']} --cluster {FABRIC['cluster']}".split()
    nadi.ok(*words, "--fidelity", "closed-form", "--out", tmp_path / "out", "-q")
    other = package.Run(tmp_path / "out")
    assert other.digest == run.digest
    assert other.finish_time_ps == run.finish_time_ps > 0
    assert other.collectives.equals(run.collectives)
    assert other.steps.equals(run.steps)
    assert "8 NPUs on selene" in repr(run)


def test_columns_of_steps_add_up_to_the_run(run):
    assert run.steps.schema == schemas.STEPS.arrow()
    times = run.steps.to_pandas().drop(columns="npu")
    assert (times.sum(axis=1) == run.finish_time_ps).all()


def test_fabric_and_program_are_made_again(run):
    assert run.graph.links == run.summary["links"]
    assert run.work.program.npus == 8
    assert isinstance(run.config, RunConfig)


def test_results_without_a_folder_go_with_the_run():
    folder = (
        made := package.simulate({"workload": MODEL, "topology": FABRIC}, network={"fidelity": "closed-form"})
    ).folder
    assert folder.is_dir()
    del made
    assert not folder.exists()


def test_values_beside_a_run_file_take_the_place_of_its_own(tmp_path, run):
    file = tmp_path / "run.toml"
    text = '[workload]\nmodel = "gpt3-125m"\nplan = "tp2,pp2,dp2,gb8"\n[topology]\ncluster = "selene"\n'
    file.write_text(text + '[network]\nfidelity = "closed-form"\n')
    assert package.simulate(file, workload={"plan": MODEL["plan"]}).digest == run.digest


@pytest.mark.parametrize("wrong", [{"network": {"mtus": 1}}, {"topology": {"cluster": "selen"}}])
def test_what_is_wrong_is_one_line(wrong):
    with pytest.raises(ValueError, match="nadi run: ") as caught:
        package.simulate({"workload": MODEL, "topology": FABRIC}, **wrong)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(package.ConfigError, match="expected results of `nadi run --out`"):
        package.Run(tmp_path)


@pytest.fixture(scope="module")
def message_run():
    """Eight NPUs whose all-reduce crosses leaves, message by message."""
    return package.simulate(
        workload={"model": "gpt3-125m", "plan": "dp8,gb8,seq128"},
        topology={"spec": "leaf-spine:npus=8,hosts_per_leaf=4,oversubscription=2"},
        compute={"gpu": "h100"},
        network={"fidelity": "analytical"},
    )


def test_plan_gives_the_answer_of_the_command(nadi):
    options = {"framework": "fsdp", "reserve": "4GiB", "confirm": 0, "tokens": 1e12}
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    about = "--model", "gpt3-125m", "--cluster", "selene", "--gpus", 2, "--plan", "gb4"
    [answer] = nadi("plan", *about, *words, "--json", "-q").document["answers"].values()
    assert package.plan("gpt3-125m", "selene", 2, "gb4", **options) == answer
    assert answer["framework"] == "fsdp"
    assert [row["step_s"] for row in answer["rows"]] == sorted(row["step_s"] for row in answer["rows"])


def test_plan_keeps_the_default_reserve_of_the_command(nadi):
    about = "--model", "gpt3-125m", "--cluster", "selene", "--gpus", 2, "--plan", "gb2", "--confirm", 0
    [answer] = nadi("plan", *about, "--json", "-q").document["answers"].values()
    assert package.plan("gpt3-125m", "selene", 2, "gb2", confirm=0) == answer


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpus", 0), ("gpus", 2**20 + 1), ("gpus", 2.5), ("confirm", -1), ("tokens", float("nan")), ("workers", 0)],
)
def test_plan_refuses_numbers_that_the_command_refuses(name, value):
    with pytest.raises(package.ConfigError, match=f"{name}: found {value}; expected a"):
        package.plan(**{"model": "gpt3-125m", "cluster": "selene", "gpus": 8, name: value})


def test_collective_gives_the_document_of_the_command(nadi, tmp_path):
    fabric = "leaf-spine:npus=4,hosts_per_leaf=2"
    words = "--sizes", "4KiB:16KiB:x2", "--algorithm", "ring,direct", "--set", "network.mtu=1KiB", "--seed", 7
    said = nadi("collective", "all-gather", "-t", fabric, *words, "--json", "-q").document
    sizes, keys = "4KiB:16KiB:x2", {"mtu": "1KiB"}
    made = package.collective("all-gather", fabric, sizes, "ring,direct", network=keys, seed=7, out=tmp_path / "made")
    assert json.loads(json.dumps(made)) == said
    assert [row["algorithm"] for row in made["rows"]] == ["ring"] * 3 + ["direct"] * 3
    assert (tmp_path / "made" / "collective.html").is_file()
    formulas = package.collective("all-gather", fabric, "4KiB", ["ring", "direct"], fidelity="closed-form")
    assert [row["time_ps"] for row in formulas["rows"]] == [row["closed_form_ps"] for row in formulas["rows"]]


REFUSED = [
    (lambda: package.plan("gpt3-125m", "selen", 8), "selen"),
    (lambda: package.plan("gpt3-125m", "selene", 8, framework="inference"), "framework"),
    (lambda: package.collective("all-gathr", "switch:npus=4"), "all-gathr"),
    (lambda: package.collective("all-gather", "switch:npus=4", network={"mtv": 1}), "mtv"),
    (lambda: package.collective("all-gather", "switch:npus=4", workers=0), "workers: found 0; expected a"),
]


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_functions_refuse_what_commands_refuse(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_sweep_refuses_a_wrong_key(tmp_path):
    (tmp_path / "sweep.toml").write_text('[grid]\n"network.mtu" = [1, 2]\n')
    with pytest.raises(package.ConfigError, match="grid: unknown key"):
        package.sweep(tmp_path / "sweep.toml", tmp_path / "out")


@pytest.mark.slow
def test_sweep_gives_the_rows_of_the_command(nadi, tmp_path):
    (tmp_path / "run.toml").write_text(
        '[workload]\nmodel = "gpt3-125m"\nplan = "dp2,gb2"\n[topology]\ncluster = "selene"\n'
        '[network]\nfidelity = "closed-form"\n'
    )
    file = tmp_path / "sweep.toml"
    file.write_text('run = "run.toml"\n[values]\n"topology.params.rate" = ["100Gbps", "fast"]\n')
    failed = package.sweep(file, tmp_path / "out")
    assert failed[0]["error"] is None
    assert "fast" in failed[1]["error"]
    file.write_text('run = "run.toml"\n[values]\n"topology.params.rate" = ["100Gbps", "200Gbps"]\n')
    rows = package.sweep(file, tmp_path / "out")
    assert [row["topology.params.rate"] for row in rows] == ["100Gbps", "200Gbps"]
    assert [row["error"] for row in rows] == [None, None]
    assert json.loads(json.dumps(rows)) == nadi("sweep", file, "-o", tmp_path / "out", "--json", "-q").document
    assert package.Run(tmp_path / "out" / rows[0]["run"]).finish_time_ps > 0
    assert package.sweep(file, tmp_path / "out", shard="0/2") == []


@pytest.mark.parametrize("name", ["explain", "net"])
def test_findings_are_those_of_the_command(nadi, message_run, name):
    """Of a Run, of a folder as a path and as text."""
    said = nadi(name, message_run.folder, "--json").document
    function = getattr(package, name)
    for run in (message_run, message_run.folder, str(message_run.folder)):
        assert json.loads(json.dumps(function(run))) == said


def test_explain_takes_how_much_faster(message_run):
    twice, slightly = (package.explain(message_run, faster)["what_if"] for faster in (2, 1.1))
    assert max(one["gain"] for one in twice) > max(one["gain"] for one in slightly) > 0
    with pytest.raises(package.ConfigError, match=r"faster: found 0\.5; expected a number from 1 to 100"):
        package.explain(message_run, 0.5)


def test_compare_gives_the_document_of_the_command(nadi, run, message_run):
    said = nadi("compare", run.folder, message_run.folder, "--json").document
    assert json.loads(json.dumps(package.compare(run, message_run.folder))) == said
    with pytest.raises(package.ConfigError, match="found 1 runs; expected 2 to 20"):
        package.compare(run)


@pytest.mark.parametrize("name", ["explain", "net"])
def test_findings_of_a_folder_without_results_are_refused(tmp_path, name):
    with pytest.raises(package.ConfigError, match=str(tmp_path)):
        getattr(package, name)(tmp_path)


HEAVY = {"numba", "pyarrow", "numpy", "pandas", "pydantic", "rich", "networkx"}
HEAVY |= {"nadi.pdes", "nadi.et", "nadi.topologies", "nadi.workload"}


def test_importing_is_light_and_lists_what_the_package_offers():
    """dir(nadi) is what a notebook completes; no name of it imports anything heavy by being listed."""
    code = f"import sys, nadi; print(*dir(nadi)); print({HEAVY} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    names, heavy = done.stdout.splitlines()
    assert (names.split(), heavy) == (sorted(package.__all__), "set()"), done.stderr
    assert {"Run", "simulate", "slowdown"} <= set(package.__all__)
    assert all(callable(getattr(package, name)) for name in package.__all__ if name != "__version__")


def test_a_run_is_a_table_in_a_notebook(run):
    html = run._repr_html_()
    assert html.startswith("<table>")
    assert "8 NPUs on selene" in html
    copy = package.Run(run.folder)
    copy.summary["topology"] = "<script>"
    assert "<script>" not in copy._repr_html_()


def test_slowdown_is_that_of_the_command(nadi):
    traffic = {"sizes": "hadoop", "load": 0.5, "duration": "100us"}
    runs = [
        package.simulate(workload={"traffic": traffic | {"seed": seed}}, topology="switch:npus=4,rate=100Gbps")
        for seed in (1, 2)
    ]
    rows = package.slowdown(*runs)
    assert json.loads(json.dumps(rows)) == nadi("net", "slowdown", *(run.folder for run in runs), "--json").document
    assert rows[0]["messages"] == sum(len(run.flows) for run in runs)
    assert [row["group"] for row in package.slowdown(*runs, by="workload.traffic.seed") if not row["from_bytes"]] == [
        "1",
        "2",
    ]
    with pytest.raises(package.ConfigError, match="found no runs"):
        package.slowdown()


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
def made_run(fabric, tables):
    return package.simulate(topology=fabric, workload=tables, groups=GROUPS)


def test_values_give_what_files_give(made_run, fabric, tables, tmp_path):
    workload.write_set(tmp_path / "set", workload.TraceSet.of(tables, GROUPS))
    topologies.write_toml(fabric, tmp_path / "fabric.toml")
    from_files = package.simulate(
        topology={"file": tmp_path / "fabric.toml"}, workload={"traces": tmp_path / "set"}, out=tmp_path / "out"
    )
    assert from_files.digest == made_run.digest
    assert from_files.nodes.equals(made_run.nodes)
    assert package.simulate(topology=SPEC, workload=tables, groups=GROUPS).digest == made_run.digest


def test_workers_share_values(made_run, fabric, tables):
    two = package.simulate(topology=fabric, workload=tables, groups=GROUPS, engine={"workers": 2})
    assert two.digest == made_run.digest


def test_the_run_has_the_values_and_its_folder_has_words(made_run, fabric):
    assert made_run.graph is fabric
    assert made_run.work.program.npus == 4
    assert made_run.summary["config"]["topology"] == {"graph": f"{fabric.name}, made in Python", "params": {}}
    assert made_run.summary["config"]["workload"]["trace_set"] == "4 traces, made in Python"
    other = package.Run(made_run.folder)
    assert other.digest == made_run.digest
    assert other.nodes.equals(made_run.nodes)
    with pytest.raises(package.ConfigError, match=r"graph: .*made in Python; no file holds it"):
        _ = other.graph


def test_commands_say_what_they_lack(made_run, nadi, tmp_path):
    page = tmp_path / "page.html"
    nadi.ok("report", made_run.folder, "-o", page)
    assert "The fabric cannot be drawn" in page.read_text()
    explained = nadi.refuse("explain", made_run.folder)
    assert "made in Python; no file holds" in explained.err
    assert len(explained.err.strip().splitlines()) == 1
    nadi.ok("timeline", made_run.folder, "-o", tmp_path / "t.perfetto-trace")


def test_fewer_traces_than_npus_leave_the_others_idle(fabric):
    made = et.table_of(et.metadata(), [et.comp_node(1, "compute", duration_micros=3)])
    made_run = package.simulate(topology=fabric, workload=[made, None, made], network=CLOSED)
    assert made_run.npus["idle_ps"].to_pylist() == [0, 3_000_000, 0, 3_000_000]
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
def test_a_wrong_value_is_one_line(fabric, tables, more, said):
    with pytest.raises(ValueError, match=said) as caught:
        package.simulate(**{"topology": fabric, "workload": tables, "groups": GROUPS, **more})
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


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
