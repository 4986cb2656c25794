"""Random runs with faults together with selective repeat, spraying and congestion control, against what must hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.pdes import LinkFault, Settings, build_world, run
from nadi.pdes.construction.settings import SharedBuffer
from nadi.pdes.network import balancing
from nadi.pdes.nic import congestion
from nadi.topologies import build
from tests.budgets import bounded
from tests.fabric import scenarios as sc
from tests.failures.common import cable, faults_of, of_switch
from tests.parallel.fingerprint import fingerprint

NPUS, LEAVES, SPINES = 6, 3, 3
CONTROLS = {"none": {}, "hpcc": {}, "dcqcn": {"cnp_interval_ps": 4 * sc.US}}
GRAPH = build(f"leaf-spine:leaves={LEAVES},hosts_per_leaf=2,spines={SPINES},rate=100Gbps,delay=500ns")


@st.composite
def link_faults(draw):
    """Of uplinks and spines, all over before 300 us but rates and errors."""
    faults = []
    at, lasts = st.integers(0, 60 * sc.US), st.integers(1, 200 * sc.US)
    for spine in draw(st.sets(st.integers(0, SPINES - 1), min_size=1, max_size=2)):
        node, leaf = NPUS + LEAVES + spine, NPUS + draw(st.integers(0, LEAVES - 1))
        begin = draw(at)
        kind = draw(st.sampled_from(["spine", "down", "error_rate", "rate_bps"]))
        if kind in {"spine", "down"}:
            links = of_switch(GRAPH, node) if kind == "spine" else cable(GRAPH, leaf, node)
            faults.append(LinkFault(links, begin, begin + draw(lasts), down=True))
        else:
            value = draw(st.sampled_from([0.01, 0.1] if kind == "error_rate" else [10**10, 4 * 10**10]))
            faults.append(LinkFault(cable(GRAPH, leaf, node), begin, **{kind: value}))
    return faults


@st.composite
def runs(draw):
    """Messages, settings, and the owner of each node where two share the run."""
    count = draw(st.integers(2, 12))
    src = [draw(st.integers(0, NPUS - 1)) for _ in range(count)]
    dst = [(a + draw(st.integers(1, NPUS - 1))) % NPUS for a in src]
    sizes = [draw(st.sampled_from([1, 5000, 60_000, 400_000])) for _ in src]
    sent = sc.messages(src, dst, sizes, [draw(st.integers(0, 30 * sc.US)) for _ in src])
    name = draw(st.sampled_from(sorted(CONTROLS)))
    pfc = draw(st.booleans())
    settings = Settings(
        switch=SharedBuffer(
            pfc=pfc, buffer_bytes=1_000_000 if pfc else 120_000, trimming=not pfc and draw(st.booleans())
        ),
        congestion_control=congestion.control(name),
        load_balancing=balancing.balancing(draw(st.sampled_from(["ecmp", "spray", "adaptive"]))),
        selective_repeat=True,
        reorder_packets=draw(st.sampled_from([0, 8, 64])),
        window_bytes=draw(st.sampled_from([40_000, 200_000])),
        rto_ps=draw(st.sampled_from([60, 150])) * sc.US,
        max_retries=1000,
        seed=draw(st.integers(0, 1000)),
        faults=faults_of(GRAPH, draw(link_faults()), detection_ps=draw(st.sampled_from([0, 5, 80])) * sc.US),
        **CONTROLS[name],
    )
    owner = np.array([draw(st.integers(0, 1)) for _ in range(GRAPH.nodes)])
    owner[:2] = 0, 1
    return sent, settings, owner


@bounded(120)
@given(runs())
def test_all_arrives_nothing_is_left_and_any_division_gives_the_same(drawn):
    sent, settings, owner = drawn
    program = sc.program(NPUS, sent)
    sim = build_world(GRAPH, program, settings)
    results = run(sim)
    count, links = results.counters, results.links
    sc.check_all_arrived(results, program, settings)
    assert len(results.flows["src"]) == len(sent.src)
    assert (results.flows["finish_ps"] > results.flows["start_ps"]).all()
    assert count["packet_hops"] == links["tx_packets"].sum() - count["lost_packets"]
    assert count["dropped_packets"] == links["dropped_packets"].sum()
    gate, pool = sim.lps[0].world.net.gate, sim.lps[0].world.net.pool
    for word in ("paused", "asked", "mask", "queued_bytes", "in_bytes", "held_bytes"):
        assert not gate[word].any(), word
    assert not any(pool[word].any() for word in ("used_bytes", "ports", "asked"))
    wanted = fingerprint(results)
    assert fingerprint(run(build_world(GRAPH, program, settings, owner))) == wanted
    assert fingerprint(run(build_world(GRAPH, program, settings, owner), threads=2)) == wanted


@pytest.mark.parametrize("control", sorted(CONTROLS))
@pytest.mark.parametrize("balance", ["ecmp", "spray", "adaptive"])
def test_a_dead_spine_with_every_control(balance, control):
    """Losses are found by timeouts where packets may overtake; only what was lost, or late, is sent again."""
    sent = sc.messages(np.arange(NPUS), (np.arange(NPUS) + 2) % NPUS, 2_000_000)
    dead = LinkFault(of_switch(GRAPH, GRAPH.nodes - 1), 30 * sc.US, down=True)
    settings = Settings(
        switch=SharedBuffer(),
        congestion_control=congestion.control(control),
        load_balancing=balancing.balancing(balance),
        selective_repeat=True,
        reorder_packets=0,
        window_bytes=200_000,
        rto_ps=400 * sc.US,
        faults=faults_of(GRAPH, [dead], detection_ps=10 * sc.US),
        **CONTROLS[control],
    )
    program = sc.program(NPUS, sent)
    results = run(build_world(GRAPH, program, settings))
    sc.check_all_arrived(results, program, settings)
    count = results.counters
    assert 0 < count["lost_packets"] == count["dropped_packets"]
    assert count["timeouts"] > 0
    assert count["retransmitted_packets"] <= NPUS * (200_000 // sc.MTU + 1) * 2
    spine = list(of_switch(GRAPH, GRAPH.nodes - 1))
    assert results.links["dropped_packets"][spine].sum() == count["lost_packets"]
