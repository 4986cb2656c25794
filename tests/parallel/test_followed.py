"""Optical switches that follow phases: commands find the same begins of epochs on any workers, and after a restart."""

import json

import pytest

from nadi import et
from nadi.cli.main import main
from tests.features.restarting import STOPPED, run_in_parts
from tests.optical.common import LEAVES
from tests.optical.test_phases import FOLLOWS, NPUS, ORDERS, RINGS, WORDS
from tests.parallel.test_command import SAME, WAYS, summary

KEPT = ("digest", "finish_time_ps", "flows", "packets", "lost_packets")
# detours over leaves while packets wait for no circuit, losses, and timeouts
LOSES = {"in_flight": "drop", "drain": "500ns", "controller_delay": "2us"}


def written(folder):
    """A run file of five phases, whose NPUs compute between these for different times."""
    for npu in range(NPUS):
        nodes = []
        for number in range(5):
            word = WORDS[number % 2]
            before = [2 * number] if number else []
            nodes.append(et.coll_node(2 * number + 1, "sum", 0, 1 << 16, pg_name=word, deps=before))
            micros = 3 + (npu * 5 + number) % 7
            nodes.append(et.comp_node(2 * number + 2, "c", duration_micros=micros, deps=[2 * number + 1]))
        et.write_trace(folder / f"trace.{npu}.et", et.metadata(), nodes)
    groups = {word: list(order) for word, order in zip(WORDS, ORDERS, strict=True)}
    (folder / "groups.json").write_text(json.dumps(groups))
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in (RINGS | FOLLOWS | LOSES).items())
    run = folder / "run.toml"
    run.write_text(
        f'[workload]\ntraces = "trace"\ngroups = "groups.json"\n[topology]\nspec = "{LEAVES.format(NPUS)}"\n'
        f'[network]\nrto = "200us"\nmax_retries = 40\n[[optical]]\n{keys}\n'
    )
    return run


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("followed")
    run = written(folder)
    assert main(["run", str(run), "-q", "--out", str(folder / "out")]) == 0
    found = summary(folder / "out")
    assert found["lost_packets"] > 0
    return run, found


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("other weights", "other method")])
def test_results_are_the_same(nadi, alone, tmp_path, way):
    run, said = alone
    ranks, *options = WAYS[way]
    done = nadi(ranks, "run", run, "--out", tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr
    found = summary(tmp_path / "out")
    assert {name: found[name] for name in SAME} == {name: said[name] for name in SAME}
    assert "epochs follow phases: 4 of 4 begins are found" in done.stderr


def test_a_run_that_stops_finds_its_epochs_again(alone, tmp_path):
    run, said = alone
    stops, code = run_in_parts(run, tmp_path / "parts", ("--set", "engine.checkpoint=1h"))
    assert (code, stops > 0) == (0, True), STOPPED
    found = summary(tmp_path / "parts")
    assert {name: found[name] for name in KEPT} == {name: said[name] for name in KEPT}
