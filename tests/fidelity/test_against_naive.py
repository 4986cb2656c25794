"""Message-level models against plain Python to the picosecond, and models in files of users and packages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import nadi
from nadi import pdes
from nadi.cli.main import main
from nadi.pdes.fidelity import fidelity
from nadi.topologies import build
from nadi.workload import KINDS as COLLECTIVES, collective_program
from tests.budgets import bounded
from tests.every import programs
from tests.fidelity.naive import MODELS, Aware, by_hand
from tests.fidelity.test_closed_forms import KINDS
from tests.pdes.cases import Traces, crowded_program, networks, workloads
from tests.pdes.compare import differences


@st.composite
def runs(draw):
    spec = draw(networks())
    model = fidelity(
        draw(st.sampled_from(KINDS)),
        endpoint_delay_ps=draw(st.sampled_from([0, 0, 1, 10_000, 3_000_000])),
        reduction_bandwidth_bps=draw(st.sampled_from([None, None, 8e12 / 0.625, 4e11, 8e9])),
        resolution_ps=draw(st.sampled_from([1, 1, 1000, 7])),
    )
    chosen = pdes.Settings(fidelity=model, seed=draw(st.integers(0, 2**31)), concurrent_collectives=draw(st.booleans()))
    return spec, draw(workloads(build(spec).npus)), chosen


def check(graph, program, chosen):
    results = pdes.run(pdes.build_world(graph, program, chosen))
    assert differences(results, by_hand(graph, program, chosen)) == []
    return results


@bounded(80)
@given(runs())
def test_random_runs_agree(case):
    spec, workload, chosen = case
    graph = build(spec)
    check(graph, workload.program(graph.npus), chosen)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_and_algorithm_agrees(collective, kind):
    graph = build("stack:dims=Ring(3)_Switch(2),rates=100Gbps_40Gbps,delays=300ns,switch_latency=50ns")
    model = fidelity(kind, endpoint_delay_ps=10_000, reduction_bandwidth_bps=8e12 / 2.5, resolution_ps=1000)
    for _, fabric, program in programs(collective, graph, 7001):
        if not program.schedules.launch_ps.any():  # the naive model has no launches and no waits of lanes
            check(fabric, program, pdes.Settings(fidelity=model))


@pytest.mark.parametrize("kind", KINDS)
def test_pools_grow(kind):
    model = fidelity(kind, endpoint_delay_ps=1000, reduction_bandwidth_bps=8e12 / 1.0)
    check(build("ring:npus=6"), crowded_program(200), pdes.Settings(fidelity=model))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_messages_and_events_are_used_again(kind):
    """A ring has a message of each NPU under way, however many steps it has."""
    npus = 64
    chosen = pdes.Settings(fidelity=fidelity(kind), record_nodes=False, record_flows=False)
    sim = pdes.build_world(build(f"ring:npus={npus}"), collective_program("all-reduce", npus, npus << 10), chosen)
    results = pdes.run(sim)
    assert results.counters["flows"] == 2 * 63 * npus
    assert sim.lps[0].world.messages.queue.fresh <= 3 * npus
    assert len(sim.lps[0].world.qps.msg_free) == 4 * npus + 2 * 63
    assert len(results.flows["src"]) == 0


class LastSenderFirst(Aware):
    def rank(self, message):
        return -message.src, message.number


class LastMessageFirst(Aware):
    def rank(self, message):
        return message.src, -message.number


@pytest.mark.parametrize("broken", [LastSenderFirst, LastMessageFirst])
def test_who_goes_first_at_one_moment_is_compared(monkeypatch, broken):
    traces = Traces(4)
    for src in range(3):
        traces.message(src, 3, 1000)
        traces.message(src, 3, 2000, tag=1)
    chosen = pdes.Settings(fidelity=fidelity("congestion_aware"))
    graph, program = build("switch:npus=4"), traces.program()
    results = check(graph, program, chosen)
    monkeypatch.setitem(MODELS, "congestion_aware", broken)
    assert differences(results, by_hand(graph, program, chosen)) != []


TOY = Path(__file__).parent / "toy" / "constant.py"
ROOT = Path(__file__).parents[2]
OWN = """
from dataclasses import dataclass, replace
from nadi.pdes.core import setting
from nadi.pdes.fidelity import OwnKeys
from tests.fidelity.toy import constant


@dataclass(frozen=True)
class Mine(OwnKeys):
    pause_ps: int = setting(1, "pause")


NETWORK = replace(constant.NETWORK, name="mine", own=Mine)
"""


@pytest.fixture
def command(capsys):
    def run(*arguments):
        capsys.readouterr()
        return main([*map(str, arguments)]), *capsys.readouterr()

    return run


def test_a_ring_takes_a_constant_time_per_step(command):
    """An all-reduce by 8 members has 14 steps of a microsecond."""
    fabric = ("-t", "ring:npus=8", "--sizes", "1MiB", "--algorithm", "ring", "--set", f"network.fidelity={TOY}")
    code, out, err = command("collective", "all-reduce", *fabric, "--json", "-q")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert row["time_ps"] == 14 * 10**6


def test_its_verbs_are_those_of_all_models():
    """`nadi.open_network` opens it: a message arrives a microsecond after it was posted."""
    network = nadi.open_network("ring:npus=8", fidelity=str(TOY))
    network.advance(5)
    network.post(0, 3, 77)
    assert [tuple(report) for report in network.advance(10**9)] == [(5, 0, False), (1000005, 0, True)]
    assert network.now_ps == 10**9


def test_others_are_still_refused(command):
    code, _, err = command("collective", "all-reduce", "-t", "ring:npus=8", "--set", "network.fidelity=constantly")
    assert code == 2
    assert "expected 'packet', 'flow', 'analytical' or 'closed-form'" in err


def test_a_model_is_short():
    """CONTRIBUTING.md and docs/explanation/fidelity.md promise fewer than 80 lines."""
    assert len(TOY.read_text().splitlines()) < 80


def test_what_it_lacks_is_refused(command, tmp_path):
    """Nothing but its declaration makes it run on one worker, without faults, and without keys of packets."""
    on_it = ("--fidelity", TOY, "--set", "network.mtu=1KiB")
    run = ("run", "--model", "gpt3-125m", "--plan", "dp4,gb4", "--cluster", "small-a100", *on_it, "-q")
    code, _, err = command(*run, "--workers", "2", "--out", tmp_path / "out")
    assert code == 0, err
    assert "[network] mtu (needs [network] fidelity = " in err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["network"], summary["switches"], summary["threads"]) == ("constant", "none", 1)
    assert "mtu" not in summary["config"]["network"]
    assert command("report", tmp_path / "out")[0] == 0
    code, _, err = command(*run, *(f"--set=faults.0.{key}" for key in ("npu=0", "at=0s", "slowdown=2")))
    assert code == 2
    assert err.startswith("nadi: error: [[faults]]: found with a [network] fidelity without faults; expected")


ENTRIES = """
[nadi.network_model]
mine = mine
bad = nothing_here
flow = mine
[nadi.command]
worse = nothing_here
"""


@pytest.mark.slow
def test_a_package_has_keys_of_its_own(tmp_path):
    """Its name and keys are known to all run files; what is wrong in another is told to who names that."""
    (tmp_path / "mine.py").write_text(OWN)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    on_it = ("collective", "all-reduce", "-t", "ring:npus=8", "--sizes", "1MiB", "--algorithm", "ring", "--json", "-q")
    commands = [
        ("net", "fidelities", "--json"),
        (*on_it, "--set", "network.fidelity=mine", "--set", "network.pause=3us"),
        (*on_it, "--set", "network.fidelity=bad"),
        (*on_it, "--set", "network.fidelity=flow"),
        ("--help",),
        ("worse",),
    ]
    script = "import json, sys; from tests.parallel.on_call import called; "
    script += "json.dump([called(words) for words in json.loads(sys.argv[1])], sys.stdout)"
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands)],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    listed, own, bad, twice, usage, worse = json.loads(done.stdout)
    models = {model["fidelity"]: model for model in json.loads(listed[1])}
    assert models["mine"]["refused_faults"] is None
    assert models["mine"]["keys"] == ["endpoint_delay", "fidelity", "pause", "reduction_bandwidth"]
    assert json.loads(own[1])["rows"][0]["time_ps"] == 14 * 10**6, own
    for (code, _, err), name, complaint in (
        (bad, "bad", "ModuleNotFoundError: No module"),
        (twice, "flow", "found in Nadi and package mine"),
    ):
        (line,) = err.splitlines()
        assert (code, f"network model {name!r}" in line, complaint in line) == (2, True, True), line
    assert (usage[0], " worse " in usage[1], " doctor " in usage[1]) == (0, False, True)
    assert "ModuleNotFoundError: No module named 'nothing_here'" in worse[2]
