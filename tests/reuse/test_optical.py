"""Reuse on fabrics with optical switches: results are those of a run that simulates each packet."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, strategies as st

from nadi.workload import CollectiveSettings, ComputeModel, build_program
from tests.budgets import bounded
from tests.optical.common import US, followed, optical_fabric
from tests.parallel.fingerprint import differing, outcome
from tests.pdes.cases import Traces
from tests.reuse.test_recurrence import _look_at_every_moment, periodic, pipeline  # noqa: F401 - a fixture
from tests.reuse.test_replay import GROUPS, IGNORED, both, settings_with

# a leaf for each NIC; its rail's other leaf is one circuit away
SPEC = "rail-fat-tree:accelerator=a100,npus=16,gpus_per_host=8,hosts_per_unit=1,spines=2,rate=100Gbps"
RAILS = [[leaf, leaf + 8] for leaf in range(8)]
CROSSED = [[leaf, 8 + (leaf + 1) % 8] for leaf in range(8)]
EPOCHS = {
    "ports": [f"leaf {leaf}" for leaf in range(16)],
    "rate": "100Gbps",
    "matchings": [RAILS, CROSSED],
    "dark": "3us",
}
SCHEDULES = {
    "one matching": EPOCHS | {"matchings": [RAILS], "dark": "0s"},
    "a change": EPOCHS | {"at": ["0s", "1ms"]},
    "slots that hold": EPOCHS | {"slot": "47us", "in_flight": "hold", "routes": "direct"},
    "slots": EPOCHS | {"slot": "47us", "in_flight": "hold"},
    "slots that drop": EPOCHS | {"slot": "47us"},
}
SETTINGS = settings_with(rto="300us", max_retries=100)


def fabric_of(schedule):
    graph, faults = optical_fabric(SPEC, SCHEDULES[schedule])
    return graph, replace(SETTINGS, faults=faults)


def program_on(graph, traces, groups=None):
    return build_program(
        traces.tables(),
        range(16),
        16,
        groups or GROUPS,
        ComputeModel("trace"),
        CollectiveSettings(),
        fabric=graph,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_collectives_of_domains_are_replayed_beside_circuits(schedule):
    """The same all-reduces in hosts, between messages over circuits, of one epoch and of several."""
    graph, settings = fabric_of(schedule)
    found = both(graph, program_on(graph, pipeline(6)), settings)
    assert found.reuse["episodes_replayed"] == 12
    assert found.reuse["episodes_simulated"] <= 4


@pytest.mark.parametrize(
    ("schedule", "tick_us"),
    [("one matching", 0), *(("slots that hold", tick_us) for tick_us in (0, 1, 94, 188)), ("slots", 94)],
)
def test_periods_recur_that_begin_at_the_same_time_of_the_schedule(schedule, tick_us):
    """Circuits that hold what is sent let work begin at the same time of each period, with or without ticks."""
    graph, settings = fabric_of(schedule)
    found = both(graph, program_on(graph, pipeline(16)), replace(settings, tick_ps=tick_us * US))
    assert settings.faults.circuits.period_ps == (schedule != "one matching") * 94 * US
    assert found.reuse["repeated_periods"] > 0


def test_periods_count_no_change_that_happens_once():
    graph, settings = fabric_of("a change")
    assert settings.faults.circuits.change
    assert not settings.faults.only_repeat
    assert both(graph, program_on(graph, pipeline(16)), settings).reuse["repeated_periods"] == 0


@pytest.mark.parametrize("kind", ["hold", "drop"])
def test_phases_are_reported_at_the_same_times_with_reuse(kind):
    """All-reduces in hosts are one phase, those between hosts another, again and again."""
    rails = {f"rail {number}": [number, number + 8] for number in range(8)}
    traces = Traces(16)
    for turn in range(6):
        for number, groups in enumerate(({name: GROUPS[name] for name in ("a", "b")}, rails)):
            for name, members in groups.items():
                deps = dict.fromkeys(members, (4 * turn + 2 * number - 1,) if turn or number else ())
                traces.collective(members, 0, 3 << 20 if number == 0 else 1 << 18, name, deps)
                for npu in members:
                    traces.compute(npu, 30, deps=(4 * turn + 2 * number,))
    program = program_on(fabric_of("one matching")[0], traces, GROUPS | rails)
    phases = {"phases": [["a", "b"], list(rails)], "controller_delay": "5us", "in_flight": kind}
    section = EPOCHS | phases | {"matchings": [CROSSED, RAILS]}
    found = [followed(SPEC, program, section, chosen=replace(SETTINGS, reuse=reuse)) for reuse in (True, False)]
    (_, first, results, _), (_, second, expected, _) = found
    assert first.faults.circuits == second.faults.circuits
    assert len(first.faults.circuits.circuits[0].lit) == 6
    assert set(differing(outcome(results), outcome(expected))) <= IGNORED
    assert results.reuse["episodes_replayed"] == 12


@pytest.mark.slow
@bounded(12)
@given(periodic(), st.sampled_from(["slots that hold", "slots", "slots that drop"]), st.sampled_from([0, 94, 376]))
def test_random_periods_beside_circuits(traces, schedule, tick_us):
    assume(any(traces.nodes))
    graph, settings = fabric_of(schedule)
    both(graph, program_on(graph, traces), replace(settings, tick_ps=tick_us * US))
