"""Optical switches whose epochs follow phases of the workload, against runs whose epochs begin at times."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.configuration.optical import OpticalSection
from nadi.errors import ConfigError
from nadi.launching.progress import NoProgress
from nadi.pdes import RunError, Settings, SharedBuffer
from nadi.pdes.construction.faults import NO_FAULTS
from nadi.pdes.fidelity import fidelity
from nadi.simulation.assembly.workload_phases import phases_of
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.followed_epochs import FollowedEpochs
from nadi.simulation.mixed_fidelity import coupled_collectives
from nadi.workload import CollectiveSettings, alone
from tests.budgets import bounded
from tests.optical.common import LEAVES, US, WIDE, followed, optical_fabric, simulate, wire_ps
from tests.pdes.cases import Traces

NPUS, SIZE_BYTES, DELAY, DARK = 8, 1 << 18, 5 * US, 20 * US
ORDERS = (range(NPUS), [3 * i % NPUS for i in range(NPUS)])
WORDS = ("a", "b")
SWITCHES = {"output": {}, "shared": {"switch": SharedBuffer(buffer_bytes=64_000_000)}}
KINDS = {
    "held": {"in_flight": "hold", "routes": "direct"},
    "held, other routes": {"in_flight": "hold"},
    "dropped": {"in_flight": "drop"},
    "drained": {"in_flight": "drop", "drain": "3us"},
}


def ring(members):
    return [(2 * a, 2 * b + 1) for a, b in zip(members, [*members[1:], members[0]], strict=True)]


RINGS = {
    "ports": [f"leaf {leaf}" for leaf in range(NPUS) for _ in range(2)],
    "rate": "100Gbps",
    "delay": "1us",
    "matchings": [ring(order) for order in ORDERS],
    "dark": "20us",
}
FOLLOWS = {"phases": list(WORDS), "controller_delay": "5us"}


def reduces(phases, skewed=0):
    """All-reduces one after another, each on the ring of its phase, with 15 us between; NPUs may compute longer."""
    traces, before = Traces(NPUS), {}
    for number, phase in enumerate(phases):
        members = list(ORDERS[phase])
        traces.collective(members, 0, SIZE_BYTES, WORDS[phase], before)
        pauses = {npu: 15 + skewed * (npu * 7 % 5) for npu in members}
        before = {npu: (traces.compute(npu, pauses[npu], deps=(2 * number,)),) for npu in members}
    return traces.program({word: list(order) for word, order in zip(WORDS, ORDERS, strict=True)})


def last_end(results, number):
    """When the last NPU ends collective `number` of `reduces`."""
    return int(results.node_finish_ps[results.npu_node_ptr[:-1] + 2 * number].max())


def timed(phases, begins, **more):
    """The section whose epochs begin at times, which a section of phases amounts to."""
    matchings = [RINGS["matchings"][phase] for phase in phases]
    return RINGS | more | {"matchings": matchings, "at": [f"{at}ps" for at in begins]}


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_epochs_begin_when_phases_have_ended(switch, kind):
    """The naive way: of a program without the phases after it, the end of each phase is known."""
    phases = [0, 1, 0, 1]
    settings = SWITCHES[switch] | WIDE | {"rto_ps": 100 * US, "max_retries": 40}
    begins = [0]
    for number in range(1, len(phases) + 1):
        section = timed(phases[:number], begins, **KINDS[kind])
        graph, faults = optical_fabric(LEAVES.format(NPUS), section)
        expected = simulate(graph, reduces(phases[:number]), faults=faults, **settings)
        begins.append(last_end(expected, number - 1) + DELAY)
    _, found, results, runs = followed(LEAVES.format(NPUS), reduces(phases), RINGS | FOLLOWS | KINDS[kind], **settings)
    own, wanted = (each.circuits.circuits for each in (found.faults, faults))
    assert {each.cable: each.lit for each in own} == {each.cable: each.lit for each in wanted}
    assert (results.digest, results.finish_time_ps) == (expected.digest, expected.finish_time_ps)
    assert 2 <= runs <= 2 * len(phases) + 3
    assert results.counters["dropped_packets"] == 0 or "drop" in KINDS[kind]["in_flight"]


def test_each_phase_takes_as_long_as_alone_and_the_change():
    phases, begin = [0, 1, 1, 0], 0
    held = RINGS | FOLLOWS | KINDS["held"]
    _, _, results, _ = followed(LEAVES.format(NPUS), reduces(phases), held, **WIDE)
    at_leaf = wire_ps(100) + US
    for number, phase in enumerate(phases):
        section = RINGS | {"matchings": [RINGS["matchings"][phase]]}
        graph, faults = optical_fabric(LEAVES.format(NPUS), section)
        lasts = last_end(simulate(graph, reduces([phase]), faults=faults, **WIDE), 0)
        if number and phase != phases[number - 1]:
            # what is sent first waits at its leaf for the light
            begin = last_end(results, number - 1) + DELAY + DARK - at_leaf
        elif number:
            begin = last_end(results, number - 1) + 15 * US
        # on a ring alone, the last packet waits for an acknowledgement on its way
        assert 0 <= begin + lasts - last_end(results, number) <= (number > 0) * wire_ps(100, 86)


def test_a_switch_may_wait_until_the_next_phase_has_begun():
    phases = [0, 1]
    held = RINGS | FOLLOWS | KINDS["held"] | {"trigger": "begin"}
    _, found, results, _ = followed(LEAVES.format(NPUS), reduces(phases, skewed=9), held, **WIDE)
    starts = results.node_start_ps[results.npu_node_ptr[:-1] + 2]
    ends = results.node_finish_ps[results.npu_node_ptr[:-1]]
    assert starts.max() - ends.max() > 20 * US
    begins = {lit[0][0] for lit in (each.lit for each in found.faults.circuits.circuits)}
    assert begins == {0, int(starts.max()) + DELAY + DARK}


@pytest.mark.parametrize("collectives", ["steps", "coupled"])
def test_flows_follow_phases_too(collectives):
    phases = [0, 1, 0]
    held = RINGS | FOLLOWS | KINDS["held"]
    by_flow = {"fidelity": fidelity("flow", collectives=collectives)}
    program = reduces(phases)
    if collectives == "coupled":
        graph, _ = optical_fabric(LEAVES.format(NPUS), RINGS | {"at": ["0s", "1ms"]})
        costs = CollectiveCosts(graph, Settings(**by_flow))
        by_flow["coupled"] = coupled_collectives(program, costs, CollectiveSettings())
    _, _, results, runs = followed(LEAVES.format(NPUS), program, held, **by_flow)
    begins = [0, *(last_end(results, number) + DELAY for number in range(2))]
    again, faults = optical_fabric(LEAVES.format(NPUS), timed(phases, begins, **KINDS["held"]))
    expected = simulate(again, program, faults=faults, **by_flow)
    assert (results.digest, results.finish_time_ps) == (expected.digest, expected.finish_time_ps)
    assert runs == 2
    _, _, by_packets, _ = followed(LEAVES.format(NPUS), program, held, **WIDE)
    assert abs(results.finish_time_ps / by_packets.finish_time_ps - 1) < 0.02


def test_an_epoch_begins_when_the_change_before_it_is_over():
    """Phases that need no circuit end at once."""
    traces = Traces(2)
    for number in range(4):
        traces.collective([0, 1], 0, 64, WORDS[number % 2], dict.fromkeys((0, 1), (number - 1,) if number else ()))
    program = traces.program({word: [0, 1] for word in WORDS})
    spec = "leaf-spine:leaves=2,hosts_per_leaf=1,spines=1,rate=100Gbps,delay=1us"
    pair = {"ports": ["leaf 0", "leaf 1"], "rate": "100Gbps", "matchings": [[[0, 1]], []], "dark": "40us"}
    _, found, _, _ = followed(spec, program, pair | FOLLOWS, rto_ps=10**9)
    ((_, first), (second, third)) = found.faults.circuits.circuits[0].lit
    packet = wire_ps(100) + 1
    assert second == first + 2 * 40 * US + packet
    # the light of the third phase lasts for a packet
    assert third == second + packet


def test_a_phase_that_is_over_with_the_one_before_it_is_passed_over():
    """Both collectives of a are under way together, and the trace has one of b between them, which is over before."""
    traces = Traces(2)
    for group, size in (("a", 1 << 20), ("b", 64), ("a", 1 << 21)):
        traces.collective([0, 1], 0, size, group)
    program = traces.program({word: [0, 1] for word in WORDS})
    spec = "leaf-spine:leaves=2,hosts_per_leaf=1,spines=1,rate=100Gbps,delay=1us"
    pair = {"ports": ["leaf 0", "leaf 1"], "rate": "100Gbps", "matchings": [[[0, 1]], []], "dark": "40us"}
    _, found, _, _ = followed(spec, program, pair | FOLLOWS)
    assert phases_of(program, [["a"], ["b"]], alone).order == (0, 1, 0)
    assert found.faults.circuits.circuits[0].lit == ((0, 1 << 62),)


def test_a_run_stops_whose_phase_waits_for_circuits_that_do_not_come_back():
    """The last all-reduce belongs to no phase, and needs the ring of the first one."""
    traces, before = Traces(NPUS), {}
    for number, (phase, word) in enumerate([(0, "a"), (1, "b"), (0, "c")]):
        traces.collective(list(ORDERS[phase]), 0, SIZE_BYTES, word, before)
        before = {npu: (traces.compute(npu, 15, deps=(2 * number,)),) for npu in range(NPUS)}
    program = traces.program({"a": list(ORDERS[0]), "b": list(ORDERS[1]), "c": list(ORDERS[0])})
    with pytest.raises(RunError, match="npu 7 row 4: collective 0 of group 3"):
        followed(LEAVES.format(NPUS), program, RINGS | FOLLOWS | KINDS["held"], **WIDE)


class Invented:
    """Reports of an invented run: each is a time after the one before it, and depends on all earlier changes."""

    def __init__(self, gaps, wrong):
        self.gaps, self.wrong = gaps, wrong

    def of(self, changes):
        """The reports of a run with these changes, after the first of which that comes early all may be wrong."""
        found, last = [], 0
        for number, gap in enumerate(self.gaps):
            at = last + gap
            found.append(at)
            if changes[number] < at:
                # the circuits have changed before the phase was over
                found[-1] += self.wrong[number]
            # a phase ends at a time after its circuits are there
            last = max(changes[number], found[-1]) if changes[number] != at else at
        return tuple(found)

    def truth(self):
        return tuple(np.cumsum(self.gaps).tolist())


@bounded(300)
@given(
    st.lists(st.tuples(st.integers(1, 1 << 42), st.integers(1, 1 << 40)), min_size=0, max_size=12),
    st.booleans(),
)
def test_the_search_finds_the_only_run_that_agrees_with_itself(phases, has_timers):
    invented = Invented([gap for gap, _ in phases], [wrong for _, wrong in phases])
    runs = []
    switches = SimpleNamespace(circuits=lambda _, reports: tuple(reports), trigger="end")
    order = SimpleNamespace(
        order=tuple(range(len(phases) + 1)), reports_ps=lambda results, _trigger, _exchange: results.reports
    )
    epochs = FollowedEpochs(switches, order, lambda circuits: circuits)
    settings = Settings(faults=NO_FAULTS, fidelity=fidelity("packet" if has_timers else "flow"))

    def simulated(asked):
        runs.append(asked.faults)
        return SimpleNamespace(reports=invented.of(asked.faults), counters={"timeouts": 0})

    found, results = epochs.find(settings, simulated, alone, NoProgress())
    assert found == results.reports == invented.truth()
    assert len(runs) <= 2 * len(phases) + 15


REFUSED = {
    "neither": ({"matchings": [[[0, 1]], []]}, "found none; expected exactly one of slot"),
    "both": ({"phases": ["a", "b"], "at": ["0s", "1us"]}, "found at and phases; expected exactly one"),
    "too few": ({"phases": ["a"]}, "2 matchings and 1 phases"),
    "twice": ({"phases": ["a", ["b", "a"]]}, "'a' in 2 phases"),
    "empty": ({"phases": ["a", []]}, "a phase without a group"),
    "rotor": ({"phases": ["a"], "matchings": "rotor"}, "rotor and 1 phases"),
    "alone": ({"at": ["0s", "1us"], "trigger": "begin"}, "trigger is set without phases"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_sections_that_contradict_themselves_are_refused(name):
    keys, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        OpticalSection.model_validate(
            {"ports": ["leaf 0", "leaf 1"], "rate": "1Gbps", "matchings": [[[0, 1]], []]} | keys
        )


def test_a_delay_shorter_than_a_packet_is_refused():
    with pytest.raises(ConfigError, match="controller_delay: found 100ns; expected at least"):
        followed(LEAVES.format(NPUS), reduces([0, 1]), RINGS | FOLLOWS | {"controller_delay": "100ns"})


def test_switches_that_follow_other_phases_are_refused():
    other = RINGS | FOLLOWS | {"phases": ["b", "a"]}
    with pytest.raises(ConfigError, match=r"\[optical.1\] phases: found others than in \[optical.0\]"):
        followed(LEAVES.format(NPUS), reduces([0, 1]), RINGS | FOLLOWS, other)


def test_unknown_groups_and_npus_with_other_phases_are_refused():
    with pytest.raises(ConfigError, match='phases: found "c"; expected some of p2p, all, tp'):
        phases_of(reduces([0, 1]), [["a"], ["c"]], alone)
    traces = Traces(4)
    traces.collective([0, 1], 0, 64, "a")
    traces.collective([2, 3], 0, 64, "b")
    program = traces.program({"a": [0, 1], "b": [2, 3]})
    with pytest.raises(ConfigError, match="the one after 0 others differs: npu 0 has a and npu 2 has b"):
        phases_of(program, [["a"], ["b"]], alone)
    # NPUs without any phase follow
    found = phases_of(program, [["a"], ["p2p"]], alone)
    assert found.order == (0,)
    assert [rows.npus.tolist() for rows in found.traces] == [[0, 1]]


def test_messages_are_a_phase():
    traces = Traces(2)
    traces.message(0, 1, 4096)
    traces.collective([0, 1], 0, 64, "a")
    traces.message(1, 0, 4096, 1)
    found = phases_of(traces.program({"a": [0, 1]}), [["p2p"], ["a"]], alone)
    assert found.order == (0, 1, 0)
