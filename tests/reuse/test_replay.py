"""Collectives of NVLink domains that are replayed: every result is what it is if each packet is simulated."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from nadi import pdes
from nadi.configuration.sections import NetworkSection
from nadi.pdes.construction.domains import ALL_GATHER, SYNCHRONISING
from nadi.pdes.parallel import Layout, Processes, run_divided
from nadi.pdes.reuse import Records
from nadi.simulation.assembly import engine_inputs
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build, clusters
from nadi.workload import KINDS, CollectiveSettings, ComputeModel, build_program
from nadi.workload.collectives import defaults_on
from tests.budgets import bounded
from tests.features.restarting import HOPS_OF_MOMENTS, MAX_LOOKS, reuse_pays
from tests.fidelity import test_training_steps as steps
from tests.parallel.fingerprint import differing, outcome
from tests.pdes.cases import Traces

GRAPH = build(clusters.find("dgx-h100-superpod").topology(16))
HOSTS = {"a": range(8), "b": range(8, 16)}
GROUPS = {
    **{name: list(npus) for name, npus in HOSTS.items()},
    "pair": [0, 1],
    "four": [2, 3, 4, 5],
    "overlapping": [1, 2, 6],
    "reversed": [7, 5, 3, 1],
    "across": [0, 1, 8, 9],
    "rail": [3, 11],
}
IGNORED = {"count events"}  # timers and ports' events of the domains' own worlds are others


def both(graph, program, chosen, **how):
    """The results with replay, after a check that they are those without."""
    found = pdes.run(pdes.build_world(graph, program, replace(chosen, reuse=True), **how.pop("where", {})), **how)
    wanted = pdes.run(pdes.build_world(graph, program, chosen), **how)
    assert set(differing(outcome(found), outcome(wanted))) <= IGNORED
    assert wanted.reuse.get("episodes_replayed", 0) == 0
    return found


def program_of(traces, **algorithms):
    how = CollectiveSettings({**defaults_on(GRAPH), **algorithms})
    program = build_program(traces.tables(), range(16), 16, GROUPS, ComputeModel("trace"), how, fabric=GRAPH)
    graph, program, _ = engine_inputs(GRAPH, program)
    return graph, program


def settings_with(**network):
    own = clusters.find("dgx-h100-superpod").network | network
    return network_settings(NetworkSection.model_validate(own))


SETTINGS = settings_with()
SHARED = {"switch": "shared-buffer", "buffer": "4MB"}
FABRICS = {
    "output queues": SETTINGS,
    "dcqcn": settings_with(**SHARED, congestion_control="dcqcn"),
    "hpcc": settings_with(**SHARED, congestion_control="hpcc"),
    "credits": settings_with(switch="credits", lane_buffer="20kB"),
    "swift": settings_with(congestion_control="swift"),
    "drops": settings_with(**SHARED | {"buffer": "300kB"}, pfc=False),
}


@pytest.mark.parametrize("case", steps.ON_HOSTS)
def test_steps_of_every_family_are_the_same(case):
    _, graph, program, _ = steps.set_up(case, steps.HOSTS)
    own = network_settings(NetworkSection.model_validate(clusters.find(steps.HOSTS).network))
    graph, program, _ = engine_inputs(graph, program)
    both(graph, program, own)


def repeated(kind, size, group="a", times=6, algorithm=None):
    """A collective that is repeated after computation."""
    traces = Traces(16)
    for turn in range(times):
        deps = {npu: (traces.compute(npu, 40, deps=[2 * turn - 1] if turn else ()),) for npu in GROUPS[group]}
        traces.collective(GROUPS[group], kind, size, group=group, deps=deps)
    return program_of(traces, **({KINDS[0]: algorithm} if algorithm else {}))


@pytest.mark.parametrize("algorithm", [None, "nccl"])
@pytest.mark.parametrize(("size", "simulated"), [(1, 6), (1000, 1), (100_000, 6), (3 << 20, 2)])
def test_all_reduce_is_replayed(algorithm, size, simulated):
    """Members that end one after another start one after another, which may settle at once or after many turns."""
    found = both(*repeated(0, size, algorithm=algorithm), SETTINGS)
    assert found.reuse["episodes_replayed"] == 6
    assert found.reuse["episodes_simulated"] <= simulated
    assert found.reuse["replayed_hops"] == found.counters["packet_hops"]


@pytest.mark.parametrize("kind", [2, 6, 7])
def test_other_collectives_are_replayed(kind):
    assert both(*repeated(kind, 1 << 20), SETTINGS).reuse["episodes_replayed"] == 6


def test_kinds_of_which_no_member_ends_before_all_have_started():
    names = {KINDS[kind] for kind in (*SYNCHRONISING, ALL_GATHER)}
    assert names == {"all-reduce", "all-gather", "all-to-all", "reduce-scatter", "barrier"}


@st.composite
def mixes(draw):
    """Traces of both hosts in which collectives, messages and computations meet at random."""
    traces = Traces(16)
    for _ in range(draw(st.integers(2, 12))):
        what = draw(st.sampled_from(["compute", "collective", "collective", "collective", "message"]))
        ends = draw(st.lists(st.integers(0, 15), min_size=2, max_size=2, unique=True))
        last = [(len(own) - 1,) if own and draw(st.booleans()) else () for own in traces.nodes]
        if what == "compute":
            traces.compute(ends[0], draw(st.sampled_from([1, 3, 10, 100])), deps=last[ends[0]])
        elif what == "message":
            size = draw(st.sampled_from([1, 5000, 300_000]))
            traces.message(*ends, size, tag=len(traces.nodes[ends[0]]), deps=(last[ends[0]], last[ends[1]]))
        else:
            group = draw(st.sampled_from(sorted(GROUPS)))
            kind = draw(st.sampled_from([0, 0, 0, 2, 6, 7, 5]))
            size = draw(st.sampled_from([1, 4096, 100_000, 1 << 20]))
            traces.collective(GROUPS[group], kind, size, group=group, deps=dict(enumerate(last)))
    return traces


@settings(max_examples=25, deadline=None)
@given(
    mixes(),
    st.sampled_from([None, "ring", "nccl"]),
    st.sampled_from([1.0, 1.3]),
    st.sampled_from([0, 70_000, 1_000_000]),
    st.sampled_from(sorted(FABRICS)),
)
def test_what_meets_in_a_domain_does_not_matter(traces, algorithm, slowdown, tick_ps, fabric):
    graph, program = program_of(traces, **({KINDS[0]: algorithm} if algorithm else {}))
    both(graph, program, replace(FABRICS[fabric], compute_slowdown=slowdown, tick_ps=tick_ps))


def by_host(graph):
    """An LP for each of the two hosts."""
    owner = (np.arange(graph.nodes) >= 8).astype(np.int64)
    owner[: graph.npus] = np.where(graph.host == graph.host[0], 0, 1)
    nvswitches = np.flatnonzero(graph.node_kind == 2)
    for switch in nvswitches.tolist():
        owner[switch] = owner[graph.link_dst[graph.link_src == switch].min()]
    return owner


@bounded(75)
@given(
    mixes(),
    st.sampled_from([None, "ring", "nccl"]),
    st.sampled_from([0, 70_000, 1_000_000]),
    st.sampled_from(sorted(FABRICS)),
    st.integers(0, MAX_LOOKS),
    st.sampled_from(HOPS_OF_MOMENTS),
    st.sampled_from([1, 2]),
)
def test_replay_may_end_at_any_moment(traces, algorithm, tick_ps, fabric, looks, hops, threads):
    """What is in vain depends on what ran before, so the moment is drawn."""
    graph, program = program_of(traces, **({KINDS[0]: algorithm} if algorithm else {}))
    where = {"owner": by_host(graph)} if threads == 2 else {}
    with reuse_pays(looks, hops):
        both(graph, program, replace(FABRICS[fabric], tick_ps=tick_ps), where=where, threads=threads)


def caught_up(world):
    """Whether a collective of an LP that was to be replayed has gone on as packets."""
    return int(world.net.ctl.catch_up_ps) > 0


def watched(graph, program, chosen):
    """The results with replay, as `both`, and the world of the run."""
    sim = pdes.build_world(graph, program, replace(chosen, reuse=True))
    found = pdes.run(sim)
    assert set(differing(outcome(found), outcome(pdes.run(pdes.build_world(graph, program, chosen))))) <= IGNORED
    return found, sim.lps[0].world


@pytest.mark.parametrize("slowdown", [1.0, 1.3])
@pytest.mark.parametrize("tick_ps", [0, 1_000_000])
@pytest.mark.parametrize("begin_us", [5, 60])
def test_a_replayed_collective_that_a_message_meets_goes_on_as_packets(begin_us, tick_ps, slowdown):
    """The message begins before some members have started, or while all run; a later collective is replayed again."""
    traces = Traces(16)
    traces.compute(7, 30)
    last = {7: (0,)}
    traces.collective(GROUPS["a"], 0, 8 << 20, group="a", deps=last)
    traces.compute(0, begin_us)
    traces.message(0, 1, 1 << 20, deps=((1,), ()))
    for _ in range(3):
        last = {npu: (len(traces.nodes[npu]) - 1,) for npu in GROUPS["a"]}
        for npu in GROUPS["a"]:
            traces.compute(npu, 500, deps=last[npu])
        last = {npu: (len(traces.nodes[npu]) - 1,) for npu in GROUPS["a"]}
        traces.collective(GROUPS["a"], 0, 8 << 20, group="a", deps=last)
    chosen = replace(SETTINGS, compute_slowdown=slowdown, tick_ps=tick_ps)
    found, world = watched(*program_of(traces), chosen)
    assert caught_up(world)
    assert (found.reuse["episodes_replayed"], found.reuse["episodes_disturbed"]) == (3, begin_us // 60)


def test_members_that_have_ended_do_not_end_again_as_packets():
    """A reduce-scatter's first member has ended, and begun to compute, when a message meets the others."""
    for begin_us in range(20, 60, 2):
        traces = Traces(16)
        traces.collective(GROUPS["a"], 7, 1 << 20, group="a")
        for npu in GROUPS["a"]:
            traces.compute(npu, 3, deps=(0,))
        traces.compute(0, begin_us)
        traces.message(0, 1, 1 << 20, deps=((2,), ()))
        both(*program_of(traces), SETTINGS)


def test_messages_on_other_links_of_the_domain_do_not_disturb():
    traces = Traces(16)
    traces.collective(GROUPS["four"], 0, 8 << 20, group="four")
    for turn in range(5):
        traces.message(0, 1, 1 << 20, tag=turn)
    found, world = watched(*program_of(traces), SETTINGS)
    assert not caught_up(world)
    assert found.reuse["episodes_replayed"] == 1


def test_groups_that_share_no_member_are_episodes_of_their_own():
    """They share records, whichever members they have and whenever they start; the offsets of each turn are others."""
    traces = Traces(16)
    groups = {"low": [0, 1, 2, 3], "high": [4, 5, 6, 7], "odd": [9, 11, 13, 15]}
    for turn in range(4):
        for at, (name, members) in enumerate(groups.items()):
            last = {npu: (len(traces.nodes[npu]) - 1,) if turn else () for npu in members}
            for npu in members:
                traces.compute(npu, 20 + 7 * at + turn, deps=last[npu])
            last = {npu: (len(traces.nodes[npu]) - 1,) for npu in members}
            traces.collective(members, 6, 8 << 20, group=name, deps=last)
    how = CollectiveSettings(defaults_on(GRAPH))
    program = build_program(traces.tables(), range(16), 16, groups, ComputeModel("trace"), how, fabric=GRAPH)
    found = both(GRAPH, program, SETTINGS)
    assert found.reuse["episodes_replayed"] == 12
    assert found.reuse["episodes_simulated"] <= 4


@pytest.mark.parametrize("turns", [1, 4])
def test_an_aggregator_that_takes_part_later_is_not_woken_before(turns):
    """The first collective goes by packets and without the aggregator, which waits for the next that needs it."""
    traces = Traces(16)
    for turn in range(turns):
        last = {npu: (len(traces.nodes[npu]) - 1,) if turn else () for npu in GROUPS["a"]}
        traces.message(0, 1, 300_000, tag=turn, deps=(last[0], last[1]))
        traces.collective(GROUPS["a"], 0, 4096, group="a", deps=last)
        for npu in GROUPS["a"]:
            traces.compute(npu, 200, deps=(len(traces.nodes[npu]) - 1,))
        last = {npu: (len(traces.nodes[npu]) - 1,) for npu in GROUPS["a"]}
        traces.collective(GROUPS["a"], 0, 8 << 20, group="a", deps=last)
    graph, program = program_of(traces)
    assert program.npus > 16
    found = both(graph, program, SETTINGS)
    assert found.reuse["episodes_replayed"] == turns


@pytest.mark.parametrize("turns", [1, 3])
def test_an_aggregator_that_starts_after_the_members_does_not_wait(turns):
    """Its turn in a cell comes after theirs, so that it has not started when they begin to send packets."""
    traces = Traces(16)
    for turn in range(turns):
        last = {npu: (len(traces.nodes[npu]) - 1,) if turn else () for npu in GROUPS["a"]}
        traces.message(0, 1, 1, tag=turn, deps=(last[0], last[1]))
        traces.collective(GROUPS["a"], 0, 8 << 20, group="a", deps=last)
    graph, program = program_of(traces)
    assert program.npus > 16
    both(graph, program, SETTINGS)


def test_the_launch_of_an_aggregator_is_over_when_its_members_send(monkeypatch):
    """It is told a cell after them, and a cell without packets on NVLinks is longer than these."""
    monkeypatch.setattr(Records, "is_in_vain", property(lambda records: records.simulated > 0))
    traces = Traces(16)
    traces.collective(GROUPS["a"], 0, 4096, group="a")
    for npu in GROUPS["a"]:
        traces.compute(npu, 200, deps=(0,))
    traces.collective(GROUPS["a"], 0, 8 << 20, group="a", deps=dict.fromkeys(GROUPS["a"], (1,)))
    found = both(*program_of(traces), SETTINGS)
    assert found.reuse["episodes_replayed"] == 1


def test_collectives_that_meet_are_one_episode():
    traces = Traces(16)
    traces.collective(GROUPS["pair"], 0, 8 << 20, group="pair")
    for npu in GROUPS["overlapping"]:
        traces.compute(npu, 20 + npu)
    last = {npu: (len(traces.nodes[npu]) - 1,) for npu in GROUPS["overlapping"]}
    traces.collective(GROUPS["overlapping"], 0, 1 << 20, group="overlapping", deps=last)
    found = both(*program_of(traces), SETTINGS)
    assert found.reuse["episodes_replayed"] == 1
    assert found.reuse["episodes_simulated"] > 1


@pytest.mark.parametrize("tick_ps", [0, 1000, 1_000_000])
def test_a_collective_that_starts_as_the_one_before_ends(tick_ps):
    """At NPU 1, the second of a group and one that waits for the first start together, in this order."""
    traces = Traces(16)
    for npu in GROUPS["four"]:
        traces.collective([npu], 0, 4096, group="four")
    for npu in GROUPS["overlapping"]:
        if npu != 1:
            traces.collective([npu], 7, 100_000, group="overlapping")
    traces.compute(3, 1)
    for npu in GROUPS["reversed"]:
        last = (len(traces.nodes[npu]) - 1,) if npu in (3, 5) else ()
        traces.collective([npu], 7, 1, group="reversed", deps={npu: last})
        if npu == 1:
            traces.collective([npu], 7, 100_000, group="overlapping", deps={npu: (0,)})
        traces.collective([npu], 7, 100_000, group="reversed")
    found = both(*program_of(traces), replace(SETTINGS, tick_ps=tick_ps))
    assert found.reuse["episodes_replayed"] > 0


def test_domains_of_one_kind_share_records():
    traces = Traces(16)
    for name, members in HOSTS.items():
        traces.collective(members, 0, 1 << 20, group=name)
    found = both(*program_of(traces), SETTINGS)
    assert (found.reuse["episodes_simulated"], found.reuse["episodes_replayed"]) == (1, 2)


def across_then_inside():
    """Collectives within hosts, then one across them over NVLinks, then within hosts again."""
    traces = Traces(16)
    for turn in range(3):
        for group in ("a", "b"):
            last = {npu: (len(traces.nodes[npu]) - 1,) if turn else () for npu in GROUPS[group]}
            traces.collective(GROUPS[group], 0, 1 << 20, group=group, deps=last)
        if turn == 1:
            last = {npu: (len(traces.nodes[npu]) - 1,) for npu in GROUPS["across"]}
            traces.collective(GROUPS["across"], 0, 1 << 20, group="across", deps=last)
    return program_of(traces)


def test_packets_cross_nvlinks_between_replayed_collectives():
    found = both(*across_then_inside(), SETTINGS)
    assert found.reuse["episodes_replayed"] >= 4


@pytest.mark.parametrize("threads", [1, 2])
def test_domains_in_several_lps(threads):
    graph, program = across_then_inside()
    owner = by_host(graph)
    assert both(graph, program, SETTINGS, where={"owner": owner}, threads=threads).reuse["episodes_replayed"] >= 4
    if threads == 2:
        chosen = replace(SETTINGS, reuse=True)
        found = run_divided(Layout(graph, chosen, owner), program, chosen, Processes(2))
        assert found.reuse["episodes_replayed"] >= 4
        assert set(differing(outcome(found), outcome(pdes.run(pdes.build_world(graph, program, SETTINGS))))) <= IGNORED


def test_a_domain_cut_in_two_sends_packets():
    graph, program = repeated(0, 1 << 20)
    owner = np.zeros(graph.nodes, np.int64)
    owner[0] = 1
    assert both(graph, program, SETTINGS, where={"owner": owner}).reuse["episodes_replayed"] == 0


@pytest.mark.parametrize(("nvswitches", "fewer", "replayed"), [(1, 0, 6), (2, 0, 6), (2, 1, 0)])
def test_a_domain_of_several_nvswitches_sends_packets(tmp_path, nvswitches, fewer, replayed):
    """Messages then have several paths between two NPUs, unless all NVSwitches join the same ones and are one."""
    switches = "".join(f'[[switches]]\nname = "nvs {i}"\nkind = "nvswitch"\n' for i in range(nvswitches))
    cables = [[f"npu {npu}", f"nvs {i}"] for i in range(nvswitches) for npu in range(8 - i * fewer)]
    file = tmp_path / "host.toml"
    links = f'[[links]]\nrate = "1200Gbps"\ndelay = "25ns"\ncables = {cables}\n'
    file.write_text(f'npus = 8\nhost = {[0] * 8}\naccelerator = "a100"\n{switches}{links}')
    traces = Traces(8)
    for turn in range(6):
        deps = {npu: (traces.compute(npu, 40, deps=[2 * turn - 1] if turn else ()),) for npu in GROUPS["a"]}
        traces.collective(GROUPS["a"], 0, 1 << 20, group="a", deps=deps)
    graph = build(str(file))
    how = CollectiveSettings({KINDS[0]: "nccl"})
    program = build_program(traces.tables(), range(8), 8, {"a": GROUPS["a"]}, ComputeModel("trace"), how, fabric=graph)
    assert both(graph, program, SETTINGS).reuse["episodes_replayed"] == replayed


@pytest.mark.parametrize(
    ("fault", "replayed"),
    [
        ({"at_ps": 0, "rate_bps": 10**12}, 6),
        ({"at_ps": 0, "added_latency_ps": 700_000}, 6),
        ({"at_ps": 0, "rate_bps": 10**12, "until_ps": 10**9}, 0),
        ({"at_ps": 60_000_000, "rate_bps": 10**12}, 0),
        ({"at_ps": 0, "error_rate": 1e-9}, 0),
    ],
)
def test_a_domain_whose_links_change_sends_packets(fault, replayed):
    """A link that is slow all the time makes another record; one that changes, or loses packets, none."""
    graph, program = repeated(0, 1 << 20)
    link = int(np.flatnonzero(graph.node_kind[graph.link_dst] == 2)[0])
    slow = replace(SETTINGS, faults=pdes.Faults((pdes.LinkFault((link,), **fault),)))
    assert both(graph, program, slow).reuse["episodes_replayed"] == replayed


def test_hosts_with_and_without_a_slow_link_have_records_of_their_own():
    traces = Traces(16)
    for turn in range(3):
        for host in HOSTS:
            last = dict.fromkeys(GROUPS[host], (turn - 1,) if turn else ())
            traces.collective(GROUPS[host], 6, 8 << 20, group=host, deps=last)
    graph, program = program_of(traces)
    link = int(np.flatnonzero(graph.node_kind[graph.link_dst] == 2)[0])
    slow = pdes.LinkFault((link, link ^ 1), 0, rate_bps=10**12)
    found = both(graph, program, replace(SETTINGS, faults=pdes.Faults((slow, replace(slow, rate_bps=5 * 10**10)))))
    assert found.reuse["episodes_replayed"] == 6
    begin, end = found.node_start_ps, found.node_finish_ps
    assert 5 < (end - begin)[:24].max() / (end - begin)[24:].max() < 80


def test_a_member_that_never_starts_is_named():
    traces = Traces(16)
    answer = traces.receive(9, 3, 100)
    traces.collective(GROUPS["a"], 0, 1 << 20, group="a", deps={3: (answer,)})
    traces.send(3, 9, 100, tag=1, deps=(1,))
    traces.receive(3, 9, 100, tag=1)
    traces.send(9, 3, 100, deps=(0,))
    with pytest.raises(pdes.RunError, match=r"collective 0 of group \d+ waits for members to start: 1"):
        pdes.run(pdes.build_world(*program_of(traces), replace(SETTINGS, reuse=True)))


def test_records_are_bounded():
    kept = Records(max_bytes=5000)

    class Record:
        size_bytes, hops, message_count = 2048, 7, 3

    made = []
    for episode in [1, 2, 1, 3, 1, 2]:
        kept.of(episode, lambda one: made.append(one) or Record())
    assert made == [1, 2, 3, 2]
    assert kept.size_bytes <= 5000
