"""Runs at closed forms: the kernel against plain Python, folded against unfolded, and against packets."""

from contextlib import nullcontext
from fractions import Fraction
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import pdes
from nadi.configuration.sections import NetworkSection
from nadi.launching.progress import NoProgress
from nadi.pdes.core.state import INF, LANES
from nadi.pdes.npu.trace import KIND_COLLECTIVE, KIND_MEMORY
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.advancing.equivalence import classes_of, lay_out, pairs_of
from nadi.simulation.closed_forms.advancing.run import MessageTimes, digests_of, run_closed_form
from nadi.simulation.closed_forms.collective import ClosedForm
from nadi.simulation.closed_forms.costs import PLANNER_EFFORT, RUN_EFFORT, CollectiveCosts, Curve, CurveSource
from nadi.simulation.network_settings import network_settings
from nadi.simulation.run import run_program
from nadi.topologies import build
from nadi.workload import CollectiveSettings, ComputeModel, build_program
from nadi.workload.collectives.algorithms import nccl
from nadi.workload.generators.models import Model
from nadi.workload.generators.training.generator import data_parallel_plan, generate_for_all
from nadi.workload.node_kinds import MEMORY_LANE
from tests.budgets import bounded
from tests.closed_forms import at_closed_forms
from tests.fidelity.naive_closed_form import Simulator
from tests.pdes.cases import COLLECTIVES, KIND_OF, Traces, workloads

SETTINGS = network_settings(NetworkSection(fidelity="closed-form"))
PACKETS = network_settings(NetworkSection())


def cost(*key):
    """Any time from 1 to 4 us, of few values, so that things happen at one moment."""
    return 1_000_000 * (1 + hash(key) % 4)


def times_of(folded, *, by_place, **more):
    """ClassTimes at `cost`, which looks at groups and peers only with by_place."""
    c, m = folded.collectives, folded.messages
    collective_ps = costs(c.schedule, c.group * by_place, c.bytes)
    hold_ps = costs(m.src * by_place, m.dst * by_place, m.bytes)
    messages = MessageTimes(hold_ps, 2 * hold_ps, 3 * hold_ps)
    return run_closed_form(folded, collective_ps, messages, pdes.Settings(**more))


def costs(*columns):
    return np.array([cost(*row) for row in zip(*(column.tolist() for column in columns), strict=True)], np.int64)


def every_row(folded, times):
    found = []
    for c in folded.classes.class_of_npu.tolist():
        own = slice(int(times.row_ptr[c]), int(times.row_ptr[c + 1]))
        found += zip(times.start_ps[own].tolist(), times.finish_ps[own].tolist(), strict=True)
    return found


def with_launches(program, launch_ps):
    """Schedules that begin so much later."""
    schedules = program.schedules
    return program._replace(schedules=schedules._replace(launch_ps=schedules.launch_ps + launch_ps))


@st.composite
def slow_spells(draw, npus):
    """An NPU, from when to when (ps) it is slow, and its factor."""
    begin = draw(st.sampled_from([0, 0, 1_500_000, 4_000_000]))
    end = draw(st.sampled_from([INF, begin + 2_500_000]))
    return draw(st.integers(0, npus - 1)), begin, end, draw(st.sampled_from([1.1, 2.0, 3.14]))


@bounded(120)
@given(st.data(), st.integers(2, 7), st.booleans(), st.booleans())
def test_random_runs_agree_with_plain_python(data, npus, concurrent, own_ports):
    program = with_launches(data.draw(workloads(npus)).program(npus), data.draw(st.sampled_from([0, 300_001])))
    copied = (program.node_kind == KIND_COLLECTIVE) & (np.arange(len(program.node_kind)) % 3 == 0)
    program = program._replace(node_lane=np.where(copied, MEMORY_LANE, program.node_lane).astype(np.int8))
    slowdown = data.draw(st.sampled_from([Fraction(1), Fraction("1.138"), Fraction(2), Fraction("7.013")]))
    slow = data.draw(st.lists(slow_spells(npus), max_size=2, unique_by=lambda spell: spell[0]))
    faults = [pdes.NpuFault(*spell) for spell in slow]
    remote = (program.node_kind == KIND_MEMORY) & (np.arange(len(program.node_kind)) % 2 == 0)
    program = program._replace(node_lane=np.where(remote, LANES - 1, program.node_lane).astype(np.int8))
    pairs = pairs_of(program)
    groups, ways = np.arange(len(program.group_ptr) - 1), np.arange(len(pairs.npu))
    port = (pairs.place * own_ports).astype(np.int32)
    paces = np.zeros(npus, np.int64)
    paces[[spell[0] for spell in slow]] = range(1, len(slow) + 1)
    folded = lay_out(program, classes_of(program, pairs, groups, ways, paces), pairs, groups, ways, port)
    more = {
        "concurrent_collectives": concurrent,
        "compute_slowdown": float(slowdown),
        "faults": pdes.Faults(npus=tuple(faults)),
    }
    times = times_of(folded, by_place=True, **more)

    def message(src, dst, size):
        hold = cost(src, dst, size)
        return hold, 2 * hold, 3 * hold

    def port_of(_src, dst):
        return dst if own_ports else 0

    naive = Simulator(
        program, cost, message, port_of, concurrent=concurrent, slowdown=slowdown, slow=slow,
        launch=lambda schedule: int(program.schedules.launch_ps[schedule]),
    ).run()  # fmt: skip
    assert every_row(folded, times) == [(row.start, row.finish) for npu in naive.npus for row in npu.rows]


@st.composite
def folding_programs(draw):
    """Traces that many NPUs share: groups of neighbours, of strides and of all, and messages round rings."""
    width, groups = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    npus = width * groups
    traces = Traces(npus)
    near = {f"near{g}": tuple(range(g * width, (g + 1) * width)) for g in range(groups)}
    far = {f"far{w}": tuple(range(w, npus, width)) for w in range(width)}
    odd = draw(st.one_of(st.none(), st.integers(0, npus - 1)))
    for step in range(draw(st.integers(1, 6))):
        what, deps = draw(st.sampled_from(["compute", "near", "far", "all", "ring"])), draw(st.booleans())
        after = {npu: (len(traces.nodes[npu]) - 1,) if deps and traces.nodes[npu] else () for npu in range(npus)}
        if what == "compute":
            for npu in range(npus):
                traces.compute(npu, 1 + (npu == odd), cpu=step % 2 == 1, deps=after[npu])
        elif what in ("near", "far"):
            for name, members in (near if what == "near" else far).items():
                traces.collective(members, 0, 1000 + step % 2, group=name, deps=after)
        elif what == "all":
            traces.collective(range(npus), 2, 500, deps=after)
        elif npus > 1:
            for npu in range(npus):
                traces.message(npu, (npu + 1) % npus, 100, tag=step, deps=(after[npu], after[(npu + 1) % npus]))
    return traces.program(near | far)


@bounded(120)
@given(folding_programs(), st.booleans())
def test_folded_runs_are_those_of_every_npu(program, concurrent):
    pairs = pairs_of(program)
    groups, ways = np.zeros(len(program.group_ptr) - 1, np.int64), np.zeros(len(pairs.npu), np.int64)
    port = np.zeros(len(pairs.npu), np.int32)
    folded = lay_out(program, classes_of(program, pairs, groups, ways), pairs, groups, ways, port)
    whole = lay_out(
        program, classes_of(program, pairs, groups, ways, np.arange(program.npus)), pairs, groups, ways, port
    )
    more = {"concurrent_collectives": concurrent, "compute_slowdown": 1.5}
    found, expected = (times_of(each, by_place=False, **more) for each in (folded, whole))
    assert every_row(folded, found) == every_row(whole, expected)
    assert digests_of(found, folded.program, folded.classes) == digests_of(expected, whole.program, whole.classes)
    assert found.finish_time_ps == expected.finish_time_ps


class Pipeline(Traces):
    """A pipeline with tensor groups, and data groups at the end: tensor fastest, then data, then stages."""

    def __init__(self, tp, pp, dp, micros=3):
        super().__init__(tp * pp * dp)
        self.sizes, self.micros, self.last = (tp, dp, pp), micros, [()] * (tp * pp * dp)
        first = range(0, tp * pp * dp, tp)
        self.groups = {f"tp{npu}": tuple(range(npu, npu + tp)) for npu in first}
        self.groups |= {
            f"dp{p}.{t}": tuple(range(p * tp * dp + t, (p + 1) * tp * dp, tp)) for p in range(pp) for t in range(tp)
        }
        for micro in range(micros):
            for npu in first:
                self.stage(micro, npu, self.groups[f"tp{npu}"])
        for name, members in self.groups.items():
            if name.startswith("dp"):
                self.collective(members, 0, 1 << 20, name, dict(enumerate(self.last)))

    def stage(self, micro, first, members):
        tp, dp, pp = self.sizes
        stage = first // (tp * dp)
        for npu in members:
            if stage > 0:
                self.last[npu] = (self.receive(npu - tp * dp, npu, 4096, micro, self.last[npu]),)
            self.last[npu] = (self.compute(npu, 5, deps=self.last[npu]),)
        self.collective(members, 0, 1 << 16, f"tp{first}", dict(enumerate(self.last)))
        for npu in members:
            self.last[npu] = (len(self.nodes[npu]) - 1,)
            if stage < pp - 1:
                self.send(npu, npu + tp * dp, 4096, micro, self.last[npu])


def every_npu_apart():
    """Runs in this context have a class for each NPU."""
    return patch.object(running, "_paces", lambda npus, _: np.arange(npus))


def run_at(graph, traces, *, fold=True, algorithms=None):
    """ClassProgram and Results at closed forms."""
    how, groups = CollectiveSettings(algorithms or {}), getattr(traces, "groups", {})
    program = build_program(
        traces.tables(), range(graph.npus), graph.npus, groups, ComputeModel("trace"), how, fabric=graph
    )
    with nullcontext() if fold else every_npu_apart():
        return at_closed_forms(graph, program, SETTINGS, how)


@pytest.mark.parametrize(
    ("spec", "classes"),
    [
        ("rail-optimised:npus=48,gpus_per_host=4,hosts_per_rail_leaf=12,spines=2", 4),
        ("leaf-spine:leaves=12,hosts_per_leaf=4,spines=4", 4),
        ("switch:npus=48", 4),
        ("torus:sizes=4x12", 4),
    ],
)
def test_npus_of_a_stage_are_one_class(spec, classes):
    """TP4 PP4 DP3: four stages, whatever the fabric, as long as all members of a kind stand alike on it."""
    traces = Pipeline(4, 4, 3)
    graph = build(spec)
    folded, found = run_at(graph, traces)
    _, expected = run_at(graph, traces, fold=False)
    assert len(folded.classes.example) == classes
    assert found.digest == expected.digest
    assert np.array_equal(found.node_finish_ps, expected.node_finish_ps)
    assert {name: column.tolist() for name, column in found.flows.items()} == {
        name: column.tolist() for name, column in expected.flows.items()
    }


def test_schedules_of_shapes_that_are_the_same_fold(monkeypatch):
    """NCCL plans for each shape, and the first and the second GPU of all hosts have shapes of their own."""
    traces, nccl = Pipeline(4, 2, 4), {"all-reduce": "nccl"}
    graph = build("rail-optimised:npus=32,gpus_per_host=4,hosts_per_rail_leaf=8,spines=2")
    folded, found = run_at(graph, traces, algorithms=nccl)
    monkeypatch.setattr(running, "_with_shared_traces", lambda program: program)
    apart, expected = run_at(graph, traces, fold=False, algorithms=nccl)
    assert len(folded.classes.example) == 2
    assert len(np.unique(apart.program.trace_of_npu)) == 2  # schedules with equal plans are one
    assert found.digest == expected.digest
    assert np.array_equal(found.node_finish_ps, expected.node_finish_ps)


def test_npus_on_unlike_hosts_are_not_one_class():
    """Groups of four on leaves of three stand in three ways: 3 and 1, 2 and 2, 1 and 3 under a leaf."""
    traces = Pipeline(4, 1, 3)
    graph = build("leaf-spine:leaves=4,hosts_per_leaf=3,spines=2")
    folded, found = run_at(graph, traces)
    _, expected = run_at(graph, traces, fold=False)
    assert folded.classes.example.tolist() == [0, 4, 8]
    assert found.digest == expected.digest


def test_pipeline_bubble_is_exact():
    """p equal stages and m micro-batches take m + p - 1 turns where messages take no time beside them."""
    stages, micros, turn_us = 4, 8, 1000
    traces = Traces(stages)
    last = [()] * stages
    for m in range(micros):
        for p in range(stages):
            deps = last[p]
            if p > 0:
                deps = (*deps, traces.receive(p - 1, p, 0, m))
            last[p] = (traces.compute(p, turn_us, deps=deps),)
            if p < stages - 1:
                traces.send(p, p + 1, 0, m, last[p])
    graph = build("ring:npus=4,rate=400Gbps,delay=0ns")
    folded, found = run_at(graph, traces)
    hop_ps = CollectiveCosts(graph, SETTINGS).of_messages(folded.messages).total_ps.max()
    turn_ps = turn_us * 1_000_000
    assert found.finish_time_ps == (micros + stages - 1) * turn_ps + (stages - 1) * hop_ps
    ideal = micros * turn_ps
    assert (found.finish_time_ps - (stages - 1) * hop_ps - ideal) / ideal == (stages - 1) / micros


def test_messages_of_one_port_follow_one_another():
    traces = Traces(3)
    for tag in range(3):
        traces.message(0, 1, 1 << 20, tag)
    traces.message(2, 1, 1 << 20)
    _, found = run_at(build("switch:npus=3,rate=100Gbps,delay=1us"), traces)
    flows = sorted(zip(found.flows["src"].tolist(), found.flows["finish_ps"].tolist(), strict=True))
    ends = [finish for src, finish in flows if src == 0]
    serial = (1 << 20) // 4096 * (4096 + 82) * 80
    assert np.diff(ends).tolist() == [serial, serial]
    assert [finish for src, finish in flows if src == 2] == ends[:1]  # nobody waits at the receiver


RAILS = "rail-optimised:npus=16,gpus_per_host=8,hosts_per_rail_leaf=2,spines=2"
ALONE = [
    *((kind, "", "switch:npus=16,rate=400Gbps,delay=500ns") for kind in COLLECTIVES),
    *((kind, "nccl", RAILS) for kind in COLLECTIVES if KIND_OF[kind] in nccl.KINDS),
]


@pytest.mark.parametrize(("kind", "algorithm", "spec"), ALONE)
def test_a_collective_alone_takes_what_packets_take(kind, algorithm, spec):
    traces, graph = Traces(16), build(spec)
    traces.collective(range(16), kind, 1 << 20)
    how = {KIND_OF[kind]: algorithm} if algorithm else {}
    folded, found = run_at(graph, traces, algorithms=how)
    packets = run_program(graph, folded.program, PACKETS, NoProgress())
    assert found.finish_time_ps == pytest.approx(packets.finish_time_ps, rel=0.05)


def test_a_step_takes_about_what_packets_take():
    traces = Pipeline(4, 2, 2, micros=4)
    graph = build("rail-optimised:npus=16,gpus_per_host=4,hosts_per_rail_leaf=4,spines=2")
    _, found = run_at(graph, traces)
    expected = pdes.run(pdes.build_world(graph, traces.program(traces.groups), PACKETS))
    assert found.finish_time_ps == pytest.approx(expected.finish_time_ps, rel=0.05)


@pytest.mark.parametrize(
    ("size_bytes", "is_told"), [(450 << 20, False), (1000 << 20, True), (2000 << 20, True), (9000 << 20, False)]
)
def test_large_sizes_are_told_by_smaller_ones(size_bytes, is_told):
    """A curve of latency and rate with a kink; below 50 MiB it goes another way. 256 MiB are quickly played."""
    asked = []

    def time_of(size, kink=64 << 20):
        return 5e6 + size * 20.0 + max(0, kink - size) * 3.0

    def play(size):
        asked.append(size)
        return ClosedForm(time_of(size), is_simulated=True)

    wrong = ClosedForm(1.0, is_simulated=False)
    quick = RUN_EFFORT.max_quick_packets * 256
    ask = CurveSource(
        lambda size: "slow" if size < 50 << 20 else "fast",
        lambda size: size / 256,
        play,
        lambda _: wrong,
        lambda _: wrong,
        has_formula=True,
    )
    found = Curve(ask, is_exact=False).at(size_bytes)
    assert max((size for size in asked if size != size_bytes), default=0) <= quick
    assert found.is_simulated == (size_bytes in asked)
    if is_told:
        assert found.time_ps == pytest.approx(time_of(size_bytes), rel=0.01)
        assert not found.is_simulated
    else:
        assert found in (wrong, ClosedForm(time_of(size_bytes), is_simulated=True))


def test_sizes_below_a_knee_do_not_tell_what_is_above():
    """Up to 400 MiB latencies hide the bytes: eight times the largest size that is played."""

    def time_of(size):
        return max(1e9 + size * 0.1, size * 2.6)

    def form_of(size, *, is_simulated):
        return ClosedForm(time_of(size) * (1.0 if is_simulated else 0.8), is_simulated)

    play, formula = partial(form_of, is_simulated=True), partial(form_of, is_simulated=False)
    source = CurveSource(lambda _: "", lambda size: size / 256, play, formula, formula, has_formula=True)
    assert Curve(source, is_exact=False).at(2 << 30) == formula(2 << 30)
    assert Curve(source._replace(has_formula=False), is_exact=False).at(2 << 30).time_ps < 0.3 * time_of(2 << 30)


def test_sizes_between_played_ones_are_read_off_only_where_their_neighbours_agree():
    played = []

    def curve(time_of):
        def play(size):
            played.append(size)
            return ClosedForm(time_of(size), is_simulated=True)

        return Curve(CurveSource(lambda _: "", lambda _: 1.0, play, play, play, has_formula=True), is_exact=False)

    straight, stepped = curve(lambda size: 1000 + 2.5 * size), curve(lambda size: 1000.0 * (1 + (size > 1250)))
    for each in (straight, stepped):
        for size in (800, 1000, 1500, 2000):
            each.at(size)
    played.clear()
    assert straight.at(1200) == ClosedForm(4000.0, is_simulated=False)
    assert straight.at(900) == ClosedForm(3250.0, is_simulated=True)
    assert stepped.at(1200) == ClosedForm(1000.0, is_simulated=True)
    assert played == [900, 1200]


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter"])
def test_curves_of_nccl_are_within_one_percent_of_what_is_played(kind):
    graph = build("rail-optimised:npus=32,gpus_per_host=8,hosts_per_rail_leaf=4,spines=2")
    members, program = np.arange(0, 32, 8), Traces(32).program()
    quick, exact = (CollectiveCosts(graph, SETTINGS).curve(program, kind, "nccl", members) for _ in "12")
    for exponent in np.arange(21, 24.01, 0.25).tolist():
        quick.at(round(2**exponent))
    between = [round(2**exponent) for exponent in (22.1, 22.4, 23.1, 23.3)]
    told = [quick.at(size) for size in between]
    assert not all(each.is_simulated for each in told)
    expected = [exact.simulate(size).time_ps for size in between]
    assert [each.time_ps for each in told] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter"])
def test_curves_of_plans_do_not_depend_on_what_was_asked_before(kind):
    graph = build("rail-optimised:npus=32,gpus_per_host=8,hosts_per_rail_leaf=4,spines=2")
    members, program = np.arange(0, 32, 8), Traces(32).program()
    sizes = [300_000, 5_000_000, 17_000_000, 23_000_000, 200_000_000]
    told = []
    for order in (sizes, sizes[::-1]):
        curve = CollectiveCosts(graph, SETTINGS, PLANNER_EFFORT).curve(program, kind, "nccl", members)
        told.append({size: curve.at(size).time_ps for size in order})
    assert told[0] == told[1]
    exact = CollectiveCosts(graph, SETTINGS).curve(program, kind, "nccl", members)
    expected = [exact.simulate(size).time_ps for size in sizes]
    assert [told[0][size] for size in sizes] == pytest.approx(expected, rel=0.01)


def test_a_step_of_a_transformer_takes_what_packets_take():
    """All-reduces of gradients beside the backward pass, by `nadi workload transformer`."""
    model = Model(name="gpt", layers=2, hidden=256, heads=4, vocab=1024, sequence=1024)
    plan = data_parallel_plan(8, 8, 2, 1 << 20, 1, recompute=False)
    (table,) = generate_for_all(model, plan).traces
    graph, how = build("leaf-spine:leaves=2,hosts_per_leaf=4,spines=4,uplinks=4"), CollectiveSettings({})
    compute = ComputeModel("roofline", peak_flops=1e14, memory_bandwidth_Bps=1e12)
    program = build_program([table], [0] * 8, 8, {}, compute, how, fabric=graph)
    folded, found = at_closed_forms(graph, program, SETTINGS, how)
    expected = pdes.run(pdes.build_world(graph, program, PACKETS))
    assert len(folded.classes.example) == 1
    assert found.finish_time_ps == pytest.approx(expected.finish_time_ps, rel=0.05)
