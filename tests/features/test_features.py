"""A part of the feature matrix in every test run: two features at once run, or are refused in one line."""

import os
import secrets

import pytest

from nadi.configuration.run_file import load_config
from tests.budgets import FRESH
from tests.features.matrix import PLAIN, REFUSED, Matrix
from tests.features.restarting import run_and_restart, run_whole
from tests.features.running import described, is_valid, outcome, sections, warm_up, write_traces
from tests.features.values import ALWAYS, COLLECTIVE, FABRIC, FACTORS, OPTICAL, SECTIONS, choices, keys_with_values
from tests.samples import some

RUNS = some(20, 40)
"""Runs of the part, refused ones too."""
RESTARTED = some(8, 15)
"""Of these, runs that stop and continue."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    write_traces(folder)
    warm_up(folder)
    return folder


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_has_values(section):
    """Whoever adds a key adds a value of it to tests/features/values.py."""
    assert keys_with_values(section) == set(SECTIONS[section].model_fields)


@pytest.mark.parametrize(("factor", "number"), [choice for choice in choices() if choice[0] not in {*ALWAYS, OPTICAL}])
def test_values_are_not_the_default(factor, number, tmp_path):
    """With one of the models of the network at least; others may leave the key out."""
    runs = [PLAIN | {"network.fidelity": model, factor: number} for model in range(len(FACTORS["network.fidelity"]))]
    section, key = factor.split(".")
    valid = [load_config(None, sections=sections(run, tmp_path)) for run in runs if is_valid(run, tmp_path)]
    found = [config.jobs[0] if section == "jobs" else getattr(config, section) for config in valid]
    assert any(getattr(each, key) != type(each).model_fields[key].default for each in found)


@pytest.mark.slow
def test_some_pairs_of_features(folder):
    seed = secrets.randbelow(2**31) if os.environ.get(FRESH) else 0
    outcomes = []

    def tried(run):
        outcomes.append(outcome(run, folder))
        return outcomes[-1]

    matrix = Matrix(lambda run: is_valid(run, folder), tried, seed)
    matrix.cover(RUNS)
    assert [(described(run), what) for run, what in matrix.defects] == [], f"seed {seed}"
    assert "" in outcomes  # a run at least is not refused: how many, and how many pairs they have, is by chance


@pytest.mark.slow
def test_some_runs_that_stop_and_continue(folder):
    seed = secrets.randbelow(2**31) if os.environ.get(FRESH) else 1
    matrix = Matrix(
        lambda run: is_valid(run, folder),
        lambda run: outcome(run, folder, run_and_restart),
        seed,
        refusal_of=lambda run: outcome(run, folder, run_whole),
    )
    matrix.cover(RESTARTED)
    assert [(described(run), what) for run, what in matrix.defects] == [], f"seed {seed}"


def stand_in(conflicts, defect=None):
    """Nadi where these choices are refused together, and another choice is a defect."""

    def answer(run):
        for conflict in conflicts:
            if conflict.items() <= run.items():
                return f"{REFUSED}: {sorted(conflict)}"
        return "crash" if defect and defect.items() <= run.items() else ""

    return answer


@pytest.mark.parametrize("seed", range(3))
def test_all_pairs_are_tried_that_are_not_refused(seed):
    conflicts = [
        {"fabric": 1, "collective": 2},
        {"network.mtu": 0, "network.ack": 0, "workers": 1},
        {"system.splits": 0},
    ]
    tried = []
    answer = stand_in(conflicts, defect={"network.rto": 0, "workers": 2})

    def outcome_of(run):
        tried.append(dict(run))
        return answer(run)

    matrix = Matrix(lambda run: not {"network.ecn": 0, "network.pfc": 0}.items() <= run.items(), outcome_of, seed)
    pairs = matrix.left
    matrix.cover()
    assert matrix.left == 0
    ran = [run for run in tried if not answer(run).startswith(REFUSED)]
    found = {frozenset((a, b)) for run in ran for a in run.items() for b in run.items() if a[0] < b[0]}
    of_splits = len(choices()) - len(FACTORS["system.splits"])
    assert matrix.refused == of_splits + 2  # with any other choice, and two pairs that are refused or not valid
    assert len(found) >= pairs - matrix.refused
    assert all(what == "crash" for _, what in matrix.defects)
    assert matrix.defects
    # each pair of the two largest factors needs a run of its own, and all other pairs fit into these for the most part
    assert matrix.runs < 2 * len(ALWAYS[COLLECTIVE]) * len(ALWAYS[FABRIC])


def test_a_run_that_reduces_a_refusal_may_be_a_defect():
    """A stall without the choice that is refused is one: the run with both is refused first."""
    refused, stalls = {"system.splits": 0}, {"network.mtu": 0}

    def answer(run):
        if refused.items() <= run.items():
            return f"{REFUSED}: splits" if stalls.items() <= run.items() else ""
        return "exit code 1: nothing is left to happen" if stalls.items() <= run.items() else ""

    matrix = Matrix(lambda _run: True, answer)
    matrix._learn(PLAIN | refused | stalls, f"{REFUSED}: splits")
    assert {what for _, what in matrix.defects} == {"exit code 1: nothing is left to happen"}


BEGINNING = """
[workload]
traces = "../{kind}/trace"
[topology]
spec = "leaf-spine:leaves=4,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=1us"
[network]
detection_time = "5us"
rto = "40us"
max_retries = 1000
{network}
[engine]
lps_per_worker = 2
[memory]
bandwidth = "100GB/s"
"""
SHARED = 'switch = "shared-buffer"\ncongestion_control = "dcqcn"'
FAULTS = {
    "routes": ("all-to-all", "", 'link = "leaf 1 - spine 0"\nat = "20us"\nuntil = "200us"\nstate = "down"'),
    "rates": ("all-reduce", SHARED, 'link = "npu 5 - leaf 2"\nat = "10us"\nuntil = "150us"\nrate = "10Gbps"'),
    "losses": ("all-to-all", SHARED, 'link = "leaf 1 - spine 1"\nat = "1us"\nerror_rate = 0.01'),
    "delays": ("all-to-all", "", 'link = "npu 3 - leaf 1"\nat = "30us"\nuntil = "100us"\nadded_latency = "3us"'),
    "slow NPU": ("all-reduce", "", 'npu = 2\nat = "0us"\nuntil = "1ms"\nslowdown = 3.0'),
}
"""Kind of collective, more keys of [network], and the fault."""


@pytest.mark.parametrize("name", FAULTS)
def test_runs_with_faults_that_stop_and_continue(folder, capsys, name):
    """Twice at random moments, with other workers, with the same results."""
    kind, network, fault = FAULTS[name]
    own = folder / f"run {name}"
    own.mkdir()
    (own / "run.toml").write_text(f"{BEGINNING.format(kind=kind, network=network)}[[faults]]\n{fault}\n")
    assert run_and_restart(own / "run.toml") == 0
    assert "--resume continues from the checkpoint" in capsys.readouterr().err
