"""Runs that count periods in which nothing new happens: every result is what it is if each packet is simulated."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st, target

import nadi
from nadi.pdes import Faults, LinkFault, NpuFault, build_world, run
from nadi.pdes.core import packet
from nadi.pdes.core.state import TELEMETRY_CLASS_SHIFT
from nadi.pdes.network.balancing import balancing
from nadi.pdes.nic.congestion.hpcc import HpccState
from nadi.pdes.parallel import Layout, Processes, StoppedError, run_divided
from nadi.pdes.reuse import recurrence
from nadi.pdes.reuse_kernels import quiescent
from nadi.pdes.reuse_kernels.periods import Period, continuation, marks
from nadi.pdes.reuse_kernels.quiescent import controlled, words_at_rest
from nadi.pdes.wire import entropy
from nadi.topologies import build, route, with_source_routes
from nadi.workload import ComputeModel, build_program
from tests.budgets import bounded
from tests.features.restarting import often
from tests.parallel.fingerprint import differing, outcome
from tests.parallel.test_cuts import checkpoints_of
from tests.pdes.cases import Traces
from tests.reuse.test_replay import GROUPS, IGNORED, SETTINGS, SHARED, both, program_of, settings_with

TURNS = 12


@pytest.fixture(autouse=True)
def _look_at_every_moment(monkeypatch):
    monkeypatch.setattr(recurrence, "HOPS_OF_MOMENT", 0)
    monkeypatch.setattr(recurrence, "HOPS_OF_NPU", 0)


def last_of(traces, npus):
    return {npu: (len(traces.nodes[npu]) - 1,) if traces.nodes[npu] else () for npu in npus}


def pipeline(turns=TURNS, odd_turn=None, size=300_000, tag_by_turn=True, domain="a", micros=30, traces=None):
    """Stages 0 to 7 and 8 to 15: work, a collective inside each host, and messages to the other host and back."""
    traces = traces or Traces(16)
    for turn in range(turns):
        for first, other, group in ((0, 8, "a"), (8, 0, "b")):
            for npu in range(first, first + 8):
                if first or turn:
                    traces.receive(npu + other - first, npu, size, tag=2 * turn * tag_by_turn + (first == 0),
                                   deps=last_of(traces, [npu])[npu])  # fmt: skip
                traces.compute(npu, micros + (turn == odd_turn and npu == 3), deps=last_of(traces, [npu])[npu])
            if domain:
                traces.collective(GROUPS[group], 0, 3 << 20, group=group, deps=last_of(traces, GROUPS[group]))
            for npu in range(first, first + 8):
                if first == 0 or turn < turns - 1:
                    traces.send(npu, npu + other - first, size, deps=last_of(traces, [npu])[npu],
                                tag=2 * (turn + (first > 0)) * tag_by_turn + (first > 0))  # fmt: skip
    return traces


@cache
def by_packets():
    """Return the fabric and the program of a pipeline, and its results if each packet is simulated."""
    graph, program = program_of(pipeline())
    return graph, program, run(build_world(graph, program, SETTINGS))


@pytest.mark.parametrize("tag_by_turn", [True, False])
def test_micro_batches_of_a_pipeline(tag_by_turn):
    """Messages have a tag for each micro-batch, or numbers of one tag."""
    found = both(*program_of(pipeline(tag_by_turn=tag_by_turn)), SETTINGS)
    assert found.reuse["repeated_periods"] >= 4
    assert found.reuse["repeated_hops"] > 0.3 * found.counters["packet_hops"]
    assert found.simulated_hops < 0.7 * found.counters["packet_hops"]


DROPPING = SHARED | {"buffer": "300kB", "pfc": False}
TRIMMING = DROPPING | {"trimming": True, "delivery": "rud"}
# Buffers, marks, rates and windows belong to the state, and telemetry with its times and bytes since the moment.
CONTROLLED = {
    "shared buffers": (SHARED, 15),
    "credits": ({"switch": "credits", "virtual_lanes": 2, "p2p_class": 1, "lane_buffer": "20kB"}, 15),
    "dcqcn": (SHARED | {"congestion_control": "dcqcn"}, 15),
    "timely": ({"congestion_control": "timely"}, 15),
    "swift": ({"congestion_control": "swift"}, 10),
    "drops": (DROPPING, 15),
    "receiver credits": (TRIMMING | {"receiver_credits": True, "oversubscription": 2.0, "ack_every": "16KiB"}, 10),
    "sleek": (DROPPING | {"delivery": "rud", "sleek": True}, 10),
    "hpcc": (SHARED | {"congestion_control": "hpcc"}, 15),
    "a timer longer than micro-batches": (DROPPING | {"rto": "1ms"}, 15),
}


@pytest.mark.parametrize("name", CONTROLLED)
def test_micro_batches_with_buffers_and_congestion_control(name):
    network, periods = CONTROLLED[name]
    found = both(*program_of(pipeline(24)), settings_with(**network))
    assert periods <= found.reuse["repeated_periods"] <= 24 * (periods > 0)


MARKED = SHARED | {"ecn": True, "ecn_kmin": "20kB", "ecn_kmax": "200kB", "buffer": "40MB"}
SWIFT = {"congestion_control": "swift", "congestion": {"ai_packets": 1000}}  # windows grow back in a message


@pytest.mark.parametrize("network", [MARKED | {"congestion_control": "dcqcn"}, SWIFT])
def test_congestion_long_ago_is_forgotten(network):
    """An incast cuts rates and windows of queue pairs, most of which send nothing afterwards, before a pipeline."""
    traces = Traces(16)
    for npu in range(8, 16):
        traces.message(npu, 0, 3_000_000, tag=1000)
    found = both(*program_of(pipeline(24, micros=20_000, traces=traces)), settings_with(**network))
    assert found.reuse["repeated_periods"] >= 10


@pytest.mark.parametrize("network", [{}, {"entropy": "mrc"}, {"entropy": "reps", "delivery": "rud"}])
def test_micro_batches_over_source_routes(network):
    graph, program = program_of(pipeline(24))
    ends = [(npu, (npu + 8) % 16) for npu in range(16)]
    paths = {
        pair: [graph.link_dst[route(graph, *pair, choose)][:-1].tolist() for choose in (min, max, min)] for pair in ends
    }
    found = both(with_source_routes(graph, paths), program, settings_with(**network, routing="source"))
    assert 4 <= found.reuse["repeated_periods"] <= 24


HPCC = SHARED | {"congestion_control": "hpcc"}
SMALL_WINDOWS = HPCC | {"congestion": {"eta": 0.3}}  # windows settle below their maximum, and so depend on telemetry


def with_telemetry(graph, program, chosen, owner=None):
    """Return the results of a run with HPCC, and what its queue pairs know at the end, by their ends."""
    sim, known = build_world(graph, program, chosen, owner), {}
    results = run(sim, threads=len(sim.lps))
    for lp in sim.lps:
        _, rows = controlled(lp.world, HpccState)
        for qp, row in zip(lp.world.qps.qp[: int(lp.world.net.ctl.queue_pairs)], rows, strict=False):
            ends = int(lp.part.nodes[qp.npu]), packet.destination(int(qp.w1)), int(qp.connection)
            if qp.controlled:
                known[ends] = [row[name].tolist() for name in ("wc_bytes", "u", "hops", "last")]
                # additive steps are forgotten once the window is the initial one
                is_below = row.wc_bytes < lp.world.net.const.base_rtt_ps / row.line_ps_per_byte
                known[ends].append(int(row.inc_stage * is_below))
    return results, known


def both_with_telemetry(graph, program, chosen, owner=None):
    """Return the results with reuse; they and the telemetry that queue pairs keep are those of the run without."""
    wanted, known_to_others = with_telemetry(graph, program, chosen)
    found, known = with_telemetry(graph, program, replace(chosen, reuse=True), owner)
    assert set(differing(outcome(found), outcome(wanted))) <= IGNORED
    assert known == known_to_others
    return found


def test_telemetry_across_its_wrapped_times():
    """Times in telemetry wrap after 70 s: those of queue pairs are 8 s old when they are used again."""
    found = both_with_telemetry(*program_of(pipeline(56, micros=4_000_000, domain="")), settings_with(**SMALL_WINDOWS))
    assert found.reuse["repeated_periods"] >= 4
    assert found.finish_time_ps > 2 << TELEMETRY_CLASS_SHIFT


@pytest.mark.parametrize(("rule", "periods"), [("ecmp", 2), ("adaptive", 0)])
def test_telemetry_of_links_of_several_lps(rule, periods):
    """Switches and NPUs are in LPs of their own, so telemetry is of other LPs' links; only ECMP has one path."""
    graph, program = on_leaves(pipeline(24, domain=""), "leaf-spine:npus=16,hosts_per_leaf=1,spines=2")
    chosen = replace(settings_with(**HPCC, load_balancing=rule), nvlink_framing=False)
    owner = np.where(graph.node_kind == 0, np.arange(graph.nodes) // 8, 2)
    for lps in (None, owner):
        found = both_with_telemetry(graph, program, chosen, lps)
        assert found.reuse["repeated_periods"] >= periods
        assert found.reuse["repeated_periods"] == 0 or periods


PLANES = "multi-plane:npus=16,planes=8,nics_per_leaf=4,gpus_per_host=8,spines=4"
MRC = {
    **SHARED,
    "pfc": False,
    "trimming": True,
    "ecn_kmin": "3400B",
    "ecn_kmax": "13600B",
    "ecn_pmax": 1.0,
    "entropy": "mrc",
    "paths": 64,
    "nic_ports": "all",
    "congestion_control": "nscc",
    "rto": "50us",  # less than a micro-batch takes: a timer that waits is part of the state
}


@pytest.mark.parametrize(
    "network", [{}, {"congestion_control": "dctcp"}, {"entropy": "reps"}, {"entropy": "oblivious"}]
)
def test_micro_batches_on_planes(network):
    """Turns of paths, penalties, windows and delays begin anew after a pause, so each micro-batch is like the first."""
    found = both(*on_leaves(pipeline(24), PLANES), settings_with(**MRC | network))
    # 15 of 24 micro-batches or more; a period may have several, with one quiescent moment that is long enough
    assert 15 / 24 <= found.reuse["repeated_hops"] / found.counters["packet_hops"] < 1


@pytest.mark.parametrize("denied", ["plane 2", "path 5"])
def test_micro_batches_with_denied_paths(denied):
    """The paths left are uneven, so that messages of one stage end at different times: a tick joins these."""
    chosen = settings_with(**MRC, denied_paths=[denied])
    found = both(*on_leaves(pipeline(24), PLANES), replace(chosen, tick_ps=1_000_000))
    assert 15 <= found.reuse["repeated_periods"] <= 24


MODEL = """layers = 4
hidden = 4096
heads = 32
vocab = 50257
sequence = 2048
global_batch = 1024
"""


LARGE = """layers = 16
hidden = 8192
heads = 64
vocab = 512
sequence = 512
global_batch = 1024
"""


@pytest.mark.full
def test_a_step_on_planes(tmp_path):
    """Messages between stages come beside all-reduces over NVLink, now and then in the same picosecond."""
    (tmp_path / "model.toml").write_text(MODEL, "utf-8")
    spec = "multi-plane:npus=16,planes=8,nics_per_leaf=8,gpus_per_host=8,accelerator=h100,nvlink_rate=3600Gbps"
    digests = set()
    for engine in ({}, {"workers": 2}, {"reuse": "off"}):
        run = nadi.simulate(
            topology={"spec": spec},
            workload={"model": str(tmp_path / "model.toml"), "plan": "tp8,pp2,mb1,gb12"},
            network=MRC | {"paths": 256, "delivery": "rud", "rto": "262us", "load_balancing": "entropy"},
            system={"tick": "1us"},
            compute={"gpu": "h100"},
            engine=engine,
        )
        digests.add(run.summary["digest"])
        assert engine.get("reuse") or run.summary["reuse"]["repeated_periods"] > 0
    assert len(digests) == 1


@pytest.mark.slow
def test_switches_that_sum_only_at_the_end(tmp_path):
    """With sequence parallelism NVSwitches sum once, after the micro-batches: what they wait for does not matter."""
    (tmp_path / "model.toml").write_text(LARGE, "utf-8")
    runs = [
        nadi.simulate(
            topology={"spec": "dgx-h100:npus=16"},
            workload={"model": str(tmp_path / "model.toml"), "plan": "tp8,pp2,mb1,gb24,sp"},
            system={"tick": "1us"},
            compute={"gpu": "h100"},
            engine=engine,
        )
        for engine in ({}, {"workers": 2}, {"reuse": "off"})
    ]
    assert len({run.summary["digest"] for run in runs}) == 1
    assert [run.summary["reuse"]["repeated_periods"] for run in runs[:2]] == [19, 19]


def oversubscribed(**network):
    """Return what `both` takes of a pipeline whose messages share two cables of one spine."""
    graph, program = on_leaves(pipeline(24), OVERSUBSCRIBED)
    return graph, program, replace(settings_with(**SHARED | network), nvlink_framing=False)


def test_marks_and_queues_of_periods_are_counted():
    case = oversubscribed(ecn=True, ecn_kmin="20kB", ecn_kmax="200kB", ecn_pmax=0.2)
    found, wanted = both(*case), run(build_world(*case))
    assert found.reuse["repeated_periods"] >= 2
    assert found.counters["marked_packets"] == wanted.counters["marked_packets"] > 1000
    # over time they are those of the noted period, to a column
    for name, how in ("bytes", np.maximum), ("packets", np.add):
        of_links = []
        for results in (found, wanted):
            rows = results.queues if name == "bytes" else results.marks
            of_link = np.zeros(case[0].links, np.int64)
            how.at(of_link, rows["link"], rows[name])
            of_links.append(of_link)
            assert rows["time_ps"].max() < results.finish_time_ps
        assert np.array_equal(*of_links)
        assert of_links[0].any()


CONGESTED = TRIMMING | {"buffer": "1MB", "ecn_kmin": "20kB", "ecn_kmax": "200kB", "load_balancing": "entropy"}


@pytest.mark.parametrize("rule", ["reps", "mrc", "oblivious"])
def test_marked_and_trimmed_packets_of_paths_are_counted(rule):
    """Eight queue pairs share two cables; turns and penalties of paths return after each message."""
    graph, program = on_leaves(pipeline(24, micros=1000), OVERSUBSCRIBED)
    chosen = settings_with(**CONGESTED, ecn=True, entropy=rule, paths=64)
    found = both(graph, program, replace(chosen, nvlink_framing=False, tick_ps=1_000_000))
    assert found.reuse["repeated_periods"] >= 4
    assert found.counters["marked_packets"] > 50
    assert found.counters["trimmed_packets"] > 10_000


def test_pauses_of_periods_are_counted():
    """Messages of one stage to one host; the buffer holds a part of them."""
    case = oversubscribed(buffer="3MB")
    found = both(*case[:2], replace(case[2], tick_ps=1_000_000))
    assert found.counters["pause_frames"] > 100
    assert found.reuse["repeated_periods"] >= 2


@pytest.mark.parametrize("network", [{}, SHARED | {"congestion_control": "dcqcn"}])
def test_words_of_a_state_are_integers(monkeypatch, network):
    """As floats, times with 2^60 added would be equal that differ by a hundred picoseconds."""
    found = []

    def recorded(*arguments):
        found.append(words_at_rest(*arguments))
        return found[-1]

    monkeypatch.setattr(quiescent, "words_at_rest", recorded)
    run(build_world(*by_packets()[:2], replace(settings_with(**network), reuse=True)))
    assert {each.dtype for each in found if each is not None} == {np.dtype(np.int64)}


def test_what_differs_ends_the_repetition():
    found = both(*program_of(pipeline(odd_turn=8)), SETTINGS)
    assert 2 <= found.reuse["repeated_periods"] < 8


@pytest.mark.parametrize("records", [{"record_flows": False}, {"record_replayed": False}])
def test_messages_need_no_rows(records):
    graph, program, wanted = by_packets()
    found = run(build_world(graph, program, replace(SETTINGS, reuse=True, **records)))
    assert found.reuse["repeated_periods"] >= 4
    flows = {name for name in outcome(found) if name.startswith("flows ")}
    assert set(differing(outcome(found), outcome(wanted))) <= IGNORED | flows


# Where messages wait for each other, times settle only sometimes: with ECMP after some turns, every two of which recur.
RECUR = {("switch", "ecmp"): 3, ("switch", "adaptive"): 3, ("switch", "spray"): 3, ("leaf-spine", "ecmp"): 2}
RECUR |= {("switch", "oblivious"): 3, ("switch", "mixed"): 3}


@pytest.mark.parametrize("spec", ["switch:npus=16", "leaf-spine:npus=16,hosts_per_leaf=4,spines=2", "torus:sizes=4x4"])
@pytest.mark.parametrize("rule", ["ecmp", "adaptive", "spray", "oblivious", "mixed"])
def test_fabrics_without_domains(spec, rule):
    graph = build(spec)
    groups = {name: GROUPS[name] for name in "ab"}
    program = build_program(pipeline().tables(), range(16), 16, groups, ComputeModel("trace"), fabric=graph)
    by = {"entropy": entropy.entropy_rule(rule)} if rule in entropy.names() else {"load_balancing": balancing(rule)}
    chosen = replace(SETTINGS, **by, selective_repeat=rule != "ecmp", nvlink_framing=False)
    found = both(graph, program, chosen)
    assert found.reuse["repeated_periods"] >= RECUR.get((spec.partition(":")[0], rule), 0)


OVERSUBSCRIBED = "leaf-spine:npus=16,hosts_per_leaf=8,spines=1,uplinks=2,rate=100Gbps"


def on_leaves(traces, spec="leaf-spine:npus=16,hosts_per_leaf=4,spines=2"):
    graph = build(spec)
    return graph, build_program(traces.tables(), range(16), 16, GROUPS, ComputeModel("trace"), fabric=graph)


def iterations(turns=TURNS):
    """Work, a collective across the hosts, and an optimiser that uses a collective inside each."""
    traces = Traces(16)
    for _ in range(turns):
        for npu in range(16):
            traces.compute(npu, 50 + npu % 3, deps=last_of(traces, [npu])[npu])
        traces.collective(range(16), 0, 1 << 20, deps=last_of(traces, range(16)))
        for npu in range(16):
            traces.memory(npu, 7, deps=last_of(traces, [npu])[npu])
        for group in ("a", "b"):
            traces.collective(GROUPS[group], 7, 1 << 18, group=group, deps=last_of(traces, GROUPS[group]))
    return traces


def test_iterations():
    found = both(*program_of(iterations(), **{"all-reduce": "ring"}), SETTINGS)
    assert found.reuse["repeated_periods"] >= 2


def test_slowed_computation_beside_collectives():
    found = both(*by_packets()[:2], replace(SETTINGS, compute_slowdown=1.3))
    assert found.reuse["repeated_periods"] >= 4


@pytest.mark.parametrize("at_ps", [0, 1])
def test_a_slow_gpu_and_a_slow_link(at_ps):
    """Periods recur where they are slow from the begin on; later changes happen at a time."""
    graph, program, _ = by_packets()
    link = int(np.flatnonzero((graph.link_src == 2) & (graph.node_kind[graph.link_dst] != 2))[0])
    slow = Faults((LinkFault((link,), at_ps, rate_bps=10**11),), (NpuFault(3, at_ps, slowdown=1.3),))
    found = both(graph, program, replace(SETTINGS, faults=slow))
    assert (found.reuse["repeated_periods"] >= 4) == (at_ps == 0)
    assert found.reuse["episodes_replayed"] > 0


def test_several_lps_of_one_process():
    graph, program, wanted = by_packets()
    owner = (np.arange(graph.nodes) >= 8).astype(np.int64)
    for switch in np.flatnonzero(graph.node_kind == 2).tolist():  # NVSwitches, and aggregators with them
        joined = graph.link_dst[graph.link_src == switch]
        owner[switch] = owner[joined] = owner[joined.min()]
    chosen = replace(SETTINGS, reuse=True)
    for threads in (1, 2):
        found = run(build_world(graph, program, chosen, owner), threads=threads)
        assert set(differing(outcome(found), outcome(wanted))) <= IGNORED
        assert found.reuse["repeated_periods"] >= 4
    divided = run_divided(Layout(graph, chosen, owner), program, chosen, Processes(2))
    assert divided.digest == wanted.digest
    assert divided.reuse["repeated_periods"] == found.reuse["repeated_periods"]


@pytest.mark.parametrize(
    "other",
    [
        {"queue_pairs": "message"},
        {"rendezvous_bytes": 1000},
        {"concurrent_collectives": True},
        {"record_nodes": False},
        {"collectives_in_flight": 1},
    ],
)
def test_other_settings_simulate_everything(other):
    found = run(build_world(*program_of(pipeline(6)), replace(SETTINGS, reuse=True, **other)))
    assert found.reuse["repeated_periods"] == 0


@st.composite
def periodic(draw):
    """Traces that repeat a stretch of random work, with something else in between now and then."""
    traces = Traces(16)
    stretch = [
        (
            draw(st.sampled_from(["compute", "collective", "collective", "message", "memory"])),
            draw(st.lists(st.integers(0, 15), min_size=2, max_size=2, unique=True)),
            draw(st.sampled_from([1, 3, 10, 100])),
            draw(st.sampled_from([1, 5000, 300_000])),
            draw(st.sampled_from(sorted(GROUPS))),
            draw(st.sampled_from([0, 0, 2, 6, 7])),
            draw(st.integers(0, 2)),
        )
        for _ in range(draw(st.integers(1, 7)))
    ]
    odd = draw(st.sets(st.integers(0, TURNS - 1), max_size=2))
    by_turn = draw(st.booleans())
    for turn in range(TURNS):
        for number, (what, ends, micros, size, group, kind, waits) in enumerate(stretch):
            last = {npu: (len(own) - 1 - waits,) if len(own) > waits else () for npu, own in enumerate(traces.nodes)}
            if what == "compute":
                traces.compute(ends[0], micros + (turn in odd), deps=last[ends[0]])
            elif what == "memory":
                traces.memory(ends[0], micros, deps=last[ends[0]])
            elif what == "message":
                tag = number + len(stretch) * turn * by_turn
                traces.message(*ends, size, tag=tag, deps=(last[ends[0]], last[ends[1]]))
            else:
                traces.collective(GROUPS[group], kind, size, group=group, deps=last)
    return traces


MARKING = SHARED | {"ecn": True, "ecn_kmin": "10kB", "ecn_kmax": "100kB", "ecn_pmax": 0.2}
NETWORKS = [
    {},
    MARKING | {"congestion_control": "dcqcn"},
    SHARED | {"buffer": "400kB"},
    {"congestion_control": "swift"},
    HPCC,
    HPCC | {"buffer": "60kB", "pfc": False, "trimming": True, "load_balancing": "ecmp"},
    SHARED | {"buffer": "60kB", "pfc": False, "trimming": True, "congestion_control": "nscc"},
    MARKING | {"buffer": "60kB", "pfc": False},
    {"switch": "credits", "lane_buffer": "20kB"},
]


@pytest.mark.slow
@bounded(36)
@given(
    periodic(),
    st.sampled_from([1.0, 1.3]),
    st.sampled_from([0, 70_000, 1_000_000]),
    st.sampled_from(NETWORKS),
    st.booleans(),
)
def test_random_periods(traces, slowdown, tick_ps, network, is_oversubscribed):
    assume(any(traces.nodes))
    case = on_leaves(traces, OVERSUBSCRIBED) if is_oversubscribed else program_of(traces)
    chosen = replace(settings_with(**network), compute_slowdown=slowdown, tick_ps=tick_ps)
    found = both(*case, replace(chosen, nvlink_framing=chosen.nvlink_framing and not is_oversubscribed))
    target(float(found.reuse["repeated_periods"]))


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_a_run_that_is_stopped_and_continues(tmp_path, calls):
    """A cut may come while a period is noted; what is not saved are the notes and the moments seen."""
    graph, program, wanted = by_packets()
    results, stops = None, 0
    while results is None:
        checkpoints = checkpoints_of(tmp_path, stops, calls if stops < 3 else 10**9)
        try:
            with often():
                results = run(build_world(graph, program, replace(SETTINGS, reuse=True)), checkpoints=checkpoints)
        except StoppedError:
            stops += 1
    assert stops > 0
    assert set(differing(outcome(results), outcome(wanted))) <= IGNORED


def test_a_period_ends_where_rows_differ():
    """Counted by hand: 12 turns of three rows; the first row has no parent, and that of turn 8 another duration."""
    traces = Traces(2)
    for turn in range(TURNS):
        for npu in range(2):
            traces.compute(npu, 5 + (turn == 8), deps=last_of(traces, [npu])[npu])
        for src, dst in ((0, 1), (1, 0)):
            last = last_of(traces, range(2))
            traces.message(src, dst, 100, tag=turn, deps=(last[src], last[dst]))
    program = traces.program()
    rows = np.full(2, 3)
    for first, periods in ((0, 0), (1, 6), (2, 5), (7, 0), (8, 0), (9, 1), (10, 0), (11, 0)):
        assert continuation(program, Period(first * rows, rows, (first + 1) * rows)).periods == periods
    assert continuation(program, Period(rows, rows - [0, 1], 2 * rows)).periods == 0
    assert continuation(program, Period(rows, rows, 3 * rows)).periods == 5
    assert marks(program, 0).tolist() == list(range(1, 36, 3))


NEAR = replace(SETTINGS, nvlink_framing=False, selective_repeat=True)


@pytest.mark.parametrize("rule", ["adaptive", "spray"])
def test_fast_forward_is_within_its_bound(rule):
    graph, program = on_leaves(pipeline(40))
    chosen = replace(NEAR, load_balancing=balancing(rule))
    wanted = run(build_world(graph, program, chosen))
    found = run(build_world(graph, program, replace(chosen, reuse=True, fast_forward=0.01)))
    assert found.reuse["near_periods"] >= 20
    assert found.simulated_hops < 0.4 * wanted.counters["packet_hops"]
    off_ps = abs(found.finish_time_ps - wanted.finish_time_ps)
    assert 0 < off_ps <= found.reuse["near_error_ps"] < 0.01 * wanted.finish_time_ps
    for name in ("packet_hops", "flows", "trace_nodes", "payload_bytes"):
        assert found.counters[name] == wanted.counters[name]
    sent = [results.links["tx_bytes"].sum() for results in (found, wanted)]
    assert sent[0] == sent[1]
    assert len(found.flows["src"]) == len(wanted.flows["src"])
    ends = found.node_finish_ps[found.npu_node_ptr[1:] - 1] / wanted.node_finish_ps[wanted.npu_node_ptr[1:] - 1]
    assert np.abs(ends - 1).max() < 0.01


@pytest.mark.parametrize("threads", [1, 2])
def test_fast_forward_is_the_same_in_several_lps(threads):
    graph, program = on_leaves(pipeline(20))
    chosen = replace(NEAR, load_balancing=balancing("spray"), reuse=True, fast_forward=0.01)
    wanted = run(build_world(graph, program, chosen))
    owner = np.where(graph.node_kind == 0, np.arange(graph.nodes) // 8, np.arange(graph.nodes) % 2)
    found = run(build_world(graph, program, chosen, owner), threads=threads)
    assert found.reuse["near_periods"] == wanted.reuse["near_periods"] >= 8
    assert set(differing(outcome(found), outcome(wanted))) <= IGNORED


def test_what_is_near_stays_exact_where_it_recurs():
    graph, program, wanted = by_packets()
    found = run(build_world(graph, program, replace(SETTINGS, reuse=True, fast_forward=0.05)))
    assert found.reuse["near_periods"] == 0
    assert found.digest == wanted.digest


def test_work_that_grows_is_not_taken_to_be_alike():
    """Each turn takes 3 % longer than the one before."""
    traces = Traces(2)
    for turn in range(30):
        for npu in range(2):
            traces.compute(npu, int(100 * 1.03**turn), deps=last_of(traces, [npu])[npu])
        for src, dst in ((0, 1), (1, 0)):
            last = last_of(traces, range(2))
            traces.message(src, dst, 5000, tag=turn, deps=(last[src], last[dst]))
    program, graph = traces.program(), build("switch:npus=2")
    found = run(build_world(graph, program, replace(NEAR, reuse=True, fast_forward=0.01)))
    assert found.reuse["near_periods"] == found.reuse["repeated_periods"] == 0
