"""Runs that count periods within long messages: every result is what it is if each packet is simulated."""

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from nadi.configuration.sections import NetworkSection
from nadi.pdes import Faults, LinkFault, build_world, run
from nadi.pdes.parallel import StoppedError
from nadi.pdes.reuse import recurrence
from nadi.pdes.reuse.within_messages import cells_of, guessed_period_ps
from nadi.simulation.assembly import engine_inputs
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build
from nadi.workload import KINDS, CollectiveSettings, ComputeModel, build_program
from nadi.workload.collectives import defaults_on
from tests.features.restarting import often
from tests.parallel.fingerprint import differing, outcome
from tests.parallel.test_cuts import checkpoints_of
from tests.pdes.cases import Traces
from tests.reuse import test_replay
from tests.reuse.test_replay import IGNORED, both

LEAVES = "leaf-spine:npus=8,hosts_per_leaf=4,spines=2,rate=200Gbps"
MIB = 1 << 20
BROADCAST = KINDS.index("broadcast")  # it is not replayed
SHARED = {"switch": "shared-buffer", "buffer": "1MB"}


@pytest.fixture(autouse=True)
def _look_after_every_window(monkeypatch):
    monkeypatch.setattr(recurrence, "HOPS_OF_MOMENT", 0)
    monkeypatch.setattr(recurrence, "HOPS_OF_NPU", 0)


def settings_with(**network):
    return network_settings(NetworkSection.model_validate(network))


def program_on(spec, traces, groups):
    graph = build(spec)
    how = CollectiveSettings(defaults_on(graph))
    program = build_program(
        traces.tables(), range(graph.npus), graph.npus, groups, ComputeModel("trace"), how, fabric=graph
    )
    graph, program, _ = engine_inputs(graph, program)
    return graph, program


def rings(spec=LEAVES, micros=None, **sizes):
    """All-reduces of groups, named by their members, of some MiB each, all at once or after a computation."""
    traces, groups = Traces(build(spec).npus), {}
    for number, (name, size) in enumerate(sizes.items()):
        groups[name] = [int(digit) for digit in name[1:]]
        deps = {npu: (traces.compute(npu, micros * number),) for npu in groups[name]} if micros and number else {}
        traces.collective(groups[name], 0, size * MIB, group=name, deps=deps)
    return program_on(spec, traces, groups)


def last_row(traces, npu):
    return (len(traces.nodes[npu]) - 1,) if traces.nodes[npu] and npu != 3 else ()


def share_counted(found):
    return 1 - found.simulated_hops / found.counters["packet_hops"]


@pytest.mark.parametrize(
    ("network", "mib", "share"),
    [
        ({}, 32, 0.9),
        ({"cut_through": True}, 32, 0.9),
        ({"window": "64kB", "mtu": "2kB"}, 32, 0),
        pytest.param(SHARED, 4096, 0.8, marks=pytest.mark.slow),
    ],
)
def test_rings(network, mib, share):
    """With a shared buffer, switches count ties of all their ports, which return after 4,096 of them."""
    found = both(*rings(g01234567=mib), settings_with(**network))
    assert share_counted(found) > share


def test_rings_of_different_sizes_at_once():
    assert share_counted(both(*rings(g012=16, g345=24, g67=9), settings_with())) > 0.8


def test_a_ring_that_another_one_disturbs():
    """The second begins while the first is in its steady state, on the same NPUs; ports take turns then."""
    assert share_counted(both(*rings(g0123=48, g01=16, micros=300), settings_with())) > 0.5


def test_computations_end_within_messages():
    traces = Traces(8)
    for npu in range(8):
        for micros in (100, 7, 350):
            traces.compute(npu, micros + npu, deps=(len(traces.nodes[npu]) - 1,) if traces.nodes[npu] else ())
    traces.collective(range(8), 0, 32 * MIB, group="all")
    assert share_counted(both(*program_on(LEAVES, traces, {"all": list(range(8))}), settings_with())) > 0.5


def test_messages_to_one_receiver():
    """Packets of two senders wait at its port and take turns there; with pauses while the buffer is small."""
    traces = Traces(8)
    for src in (1, 2):
        traces.message(src, 0, 8 * MIB, tag=src)
    program = program_on(LEAVES, traces, {})
    assert share_counted(both(*program, settings_with())) > 0.5
    both(*program, settings_with(switch="shared-buffer", buffer="300kB"))


@pytest.mark.parametrize("tick_ps", [0, 1_000_000])
@pytest.mark.parametrize("is_nccl", [False, True])
def test_rails_between_hosts_with_nvlinks(tick_ps, is_nccl):
    """While a rail exchanges, collectives inside a host are replayed, or send packets in short cells."""
    traces = Traces(16)
    traces.collective(test_replay.GROUPS["rail"], 0, 64 * MIB, group="rail")
    for micros in (50, 300, 20):
        deps = {npu: (traces.compute(npu, micros, deps=last_row(traces, npu)),) for npu in range(8) if npu != 3}
        traces.collective([2, 4, 5], 0, 3 * MIB, group="three", deps=deps)
        traces.collective([0, 1], BROADCAST, 100_000, group="pair", deps=deps)
    groups = test_replay.GROUPS | {"three": [2, 4, 5]}
    how = CollectiveSettings(defaults_on(test_replay.GRAPH) if is_nccl else {})
    tables, compute = traces.tables(), ComputeModel("trace")
    program = build_program(tables, range(16), 16, groups, compute, how, fabric=test_replay.GRAPH)
    graph, program, _ = engine_inputs(test_replay.GRAPH, program)
    chosen = replace(test_replay.settings_with(load_balancing="ecmp"), tick_ps=tick_ps)
    found = both(graph, program, chosen)
    assert found.reuse["episodes_replayed"] > 0
    assert (found.reuse["repeated_periods"] > 100) != is_nccl


def test_lost_packets_and_timeouts():
    traces = Traces(8)
    for src in (1, 2, 4):
        traces.message(src, 0, 4 * MIB, tag=src)
    found = both(*program_on(LEAVES, traces, {}), settings_with(queue_limit="20kB"))
    assert found.counters["dropped_packets"] > 0


def test_sequence_numbers_that_wrap():
    """Packets carry 24 bits of them; a message of 20 million packets takes that long only if it is simulated."""
    traces = Traces(2)
    traces.message(0, 1, 20_000_000 * 512)
    graph, program = program_on("switch:npus=2,rate=200Gbps", traces, {})
    found = run(build_world(graph, program, replace(settings_with(mtu="512B"), reuse=True)))
    assert found.counters["packet_hops"] == 4 * 20_000_000
    assert found.simulated_hops < 200_000


@pytest.mark.parametrize("at_ps", [0, 200_000_000])
def test_a_link_that_is_slow(at_ps):
    """Streams of different rates recur together after their common period; a change on the way happens at a time."""
    graph, program = rings(g0123=32)
    slow = Faults((LinkFault((0, 1), at_ps, rate_bps=10**11),))
    both(graph, program, replace(settings_with(), faults=slow))


def resumed(sim_of, folder, calls, threads=1):
    """Results of a run that stops up to three times and continues, and the stops; sim_of: builds the run.

    calls: looks for a stop between two stops.
    """
    results, stops = None, 0
    while results is None:
        checkpoints = checkpoints_of(folder, stops, calls if stops < 3 else 10**9)
        try:
            with often() if stops < 3 else contextlib.nullcontext():
                results = run(sim_of(), checkpoints=checkpoints, threads=threads)
        except StoppedError:
            stops += 1
    return results, stops


def dealt(graph, program, chosen, lps):
    """A run that counts periods, whose nodes are dealt out one by one to logical processes."""
    return build_world(graph, program, replace(chosen, reuse=True), owner=np.arange(graph.nodes) % lps)


@pytest.mark.parametrize("lps", [1, 3])
@pytest.mark.parametrize("calls", [1, 4, 9])
def test_stopped_and_resumed(tmp_path, calls, lps):
    """A cut may come while a period is sought, when cells have another length."""
    graph, program = rings(g012=8, g345=12)
    wanted = run(build_world(graph, program, settings_with()))
    results, stops = resumed(lambda: dealt(graph, program, settings_with(), lps), tmp_path, calls, min(2, lps))
    assert stops > 0
    assert set(differing(outcome(results), outcome(wanted))) <= IGNORED


@pytest.mark.parametrize("lps", [2, 3])
@pytest.mark.parametrize(("network", "mib"), [({}, 8), ({"cut_through": True}, 8), (SHARED, 8)])
def test_several_logical_processes(lps, network, mib):
    """Nodes are dealt out one by one, so that packets and acknowledgements of each pair cross between processes."""
    graph, program = rings(g01234567=mib)
    owner = np.arange(graph.nodes) % lps
    found = both(graph, program, settings_with(**network), where={"owner": owner}, threads=1 + (network == {}))
    alone = run(build_world(graph, program, replace(settings_with(**network), reuse=True)))
    assert (found.reuse["repeated_periods"] > 100) == (alone.reuse["repeated_periods"] > 100)


@st.composite
def mixes(draw):
    """Long messages, rings and computations at random."""
    traces = Traces(8)
    groups = {}
    for number in range(draw(st.integers(1, 5))):
        what = draw(st.sampled_from(["compute", "message", "message", "collective", "collective"]))
        npus = draw(st.permutations(range(8)))
        last = [(len(own) - 1,) if own and draw(st.booleans()) else () for own in traces.nodes]
        if what == "compute":
            traces.compute(npus[0], draw(st.sampled_from([1, 50, 300])), deps=last[npus[0]])
        elif what == "message":
            size = draw(st.sampled_from([5000, MIB, 3 * MIB + 1]))
            traces.message(*npus[:2], size, tag=number, deps=(last[npus[0]], last[npus[1]]))
        else:
            members = groups.setdefault(f"g{number}", npus[: draw(st.integers(2, 8))])
            size, kind = draw(st.sampled_from([MIB, 6 * MIB + 4])), draw(st.sampled_from([0, 0, 2, 6, 7]))
            traces.collective(members, kind, size, group=f"g{number}", deps=dict(enumerate(last)))
    return traces, groups


NETWORKS = [
    {},
    {"window": "64kB", "mtu": "2kB"},
    {"queue_limit": "50kB"},
    {"cut_through": True},
    SHARED,
    SHARED | {"buffer": "100kB", "pfc": False},
]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    mixes(),
    st.sampled_from(NETWORKS),
    st.sampled_from([0, 1_000_000]),
    st.sampled_from([200, 77]),
    st.integers(1, 3),
    st.sampled_from([0, 0, 1, 5]),
)
def test_random_programs(mix, network, tick_ps, rate_gbps, lps, calls):
    """Any number of logical processes; stopped after some looks and continued if `calls` is above 0."""
    traces, groups = mix
    spec = f"leaf-spine:npus=8,hosts_per_leaf=4,spines=2,rate={rate_gbps}Gbps"
    graph, program = program_on(spec, traces, groups)
    chosen = replace(settings_with(**network), tick_ps=tick_ps)
    if calls:
        with tempfile.TemporaryDirectory() as folder:
            found, _ = resumed(lambda: dealt(graph, program, chosen, lps), Path(folder), calls, min(2, lps))
    else:
        found = run(dealt(graph, program, chosen, lps), threads=min(2, lps))
    assert set(differing(outcome(found), outcome(run(build_world(graph, program, chosen))))) <= IGNORED


def test_guesses_of_periods():
    regular = [(5 + 3 * i, 700 + 300 * i) for i in range(6)]
    assert guessed_period_ps(regular) == 300
    assert guessed_period_ps([(i, i * i) for i in range(6)]) == 0
    assert guessed_period_ps([(5, 700)] * 6) == 0
    assert cells_of(300, 1000) == (900, 900)
    assert cells_of(2500, 1000) == (2500, 625)
    assert cells_of(101, 50) is None
