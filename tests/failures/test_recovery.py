"""Faults beside selective repeat, spraying, congestion control and reductions in switches; goodput without a spine."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

import nadi
from nadi import et
from nadi.pdes import LinkFault, RunError, Settings, build_world, run
from nadi.pdes.construction.settings import SharedBuffer
from nadi.pdes.network import balancing
from nadi.pdes.nic import congestion
from nadi.topologies import build
from tests.budgets import bounded
from tests.fabric import scenarios as sc
from tests.failures.common import cable, faults_of, of_switch
from tests.parallel.fingerprint import fingerprint
from tests.pdes import naive

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


SUM = et.CollectiveCommType.ALL_REDUCE
MIB = 1 << 20
CABLE = {"link": "npu 0 - leaf 0", "state": "down"}
BACK = {"at": "400us", "until": "900us"}


def traces():
    """Two all-reduces inside hosts of eight GPUs, then one between the hosts, for each of 16 GPUs."""
    for npu in range(16):
        nodes = [
            et.coll_node(1, "inside", SUM, 8 * MIB, pg_name="tp" + str(npu // 8)),
            et.coll_node(2, "inside again", SUM, 8 * MIB, deps=[1], pg_name="tp" + str(npu // 8)),
            et.coll_node(3, "between", SUM, 32 * MIB, deps=[2], pg_name="dp" + str(npu % 8)),
            et.coll_node(4, "at the end", SUM, 8 * MIB, deps=[3], pg_name="tp" + str(npu // 8)),
        ]
        yield et.table_of(et.metadata(), nodes)


def ran(fidelity="packet", faults=(), **network):
    tp = {f"tp{host}": list(range(8 * host, 8 * host + 8)) for host in range(2)}
    dp = {f"dp{rail}": [rail, rail + 8] for rail in range(8)}
    return nadi.simulate(
        topology={"cluster": "dgx-h100-superpod", "gpus": 16},
        workload=list(traces()),
        groups=tp | dp,
        network={"fidelity": fidelity, "detection_time": "50us", **network},
        faults=list(faults),
    )


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_a_cable_that_comes_back_costs_the_time_it_was_down(fidelity):
    """It is down from 0.4 to 0.9 ms in an exchange of 0.75 ms; what NVSwitches reduce before is as fast as ever.

    What the threads of the hosts do for messages meanwhile does not wait for the cable.
    """
    whole, failed = ran(fidelity), ran(fidelity, [CABLE | BACK])
    assert 350 < (failed.finish_time_ps - whole.finish_time_ps) / 1e6 < 2000
    inside = [[float(row["finish_ps"]) for row in run.collectives.to_pylist()[:2]] for run in (whole, failed)]
    assert inside[0] == inside[1]


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_a_gpu_without_its_nic_says_so(fidelity):
    with pytest.raises(RunError, match=r"npu (0|8) has no path to npu (0|8) since leaf 0 went down at 0.1 ms"):
        ran(fidelity, [{"at": "100us", "switch": "leaf 0", "state": "down"}], rto="50us")


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_a_gpu_without_the_switch_that_reduces_says_so(fidelity):
    with pytest.raises(RunError, match=r"no path to the reduction in nvswitch 1 since nvswitch 1 went down at 0.01 ms"):
        ran(fidelity, [{"at": "10us", "switch": "nvswitch 1", "state": "down"}], rto="50us")


HOSTS, SHARES_SPINES = 8, 4
BYTES_PER_PS = 1e9 / 8e12
NIC, UPLINK = 100 * BYTES_PER_PS, 200 * BYTES_PER_PS
SHARED = SharedBuffer(buffer_bytes=256 * 10**6, ecn=False)
DETECTION = 50 * sc.US


def leaf_spine(leaves, delay):
    """Leaves with as much rate up as down: 8 NPUs at 100 Gb/s, 4 spines at 200 Gb/s."""
    return build(
        f"leaf-spine:leaves={leaves},hosts_per_leaf={HOSTS},spines={SHARES_SPINES},rate=100Gbps,uplink_rate=200Gbps,"
        f"delay={delay}"
    )


def last_spine_dies(graph, at_ps):
    return faults_of(graph, [LinkFault(of_switch(graph, graph.nodes - 1), at_ps, down=True)], detection_ps=DETECTION)


def goodput(results, src, begin_ps, end_ps, mtu_bytes):
    """Bytes on the wire per ps of each sender in a stretch of time."""
    wire = (mtu_bytes + sc.HEADER) / mtu_bytes
    return sc.shares(results.flows, begin_ps, end_ps, src) / (end_ps - begin_ps) * wire


def spread_shares(src, dst, spines):
    """Where packets are spread evenly: all uplinks of a leaf are as one link, and so are those down to it."""
    ack = sc.ACK / (sc.MTU + sc.HEADER)
    weight, capacity = [], []
    for size, rate in ((1, NIC), (HOSTS, spines * UPLINK)):
        ends = (src // size, dst // size)
        for node in np.unique(np.concatenate(ends)):
            for data, acks in (ends, ends[::-1]):
                weight.append((data == node) + (acks == node) * ack)
                capacity.append(rate)
    weight = np.array(weight)
    return sc.water_fill(weight, capacity, weight >= 1)


LEVELS = ([*range(8), 8, 9, 16, 17, 18, 19, *range(24, 31)], [*range(8, 16), 16, 17, 24, 24, 25, 26, *range(7)])
"""Source and destination: eight and seven flows for the uplinks of leaves 0 and 3, two into 24, the rest alone."""


@pytest.mark.parametrize("balance", ["spray", "adaptive"])
@pytest.mark.parametrize(
    ("ends", "switch"), [(LEVELS, SHARED), ((range(8), range(8, 16)), None)], ids=["levels-shared", "alike-plain"]
)
def test_packets_over_all_paths(balance, ends, switch):
    """Each flow. Acknowledgements pass data at a shared buffer; elsewhere long queues on their way hold windows up."""
    graph, (src, dst) = leaf_spine(4, "500ns"), (np.array(column) for column in ends)
    died, end = 3 * sc.MS, 6 * sc.MS
    whole, residual = (spread_shares(src, dst, spines) for spines in (SHARES_SPINES, SHARES_SPINES - 1))
    sent = sc.streams(src, dst, 100_000, (whole * end * 1.1 / 100_000).astype(int) + 1)
    chosen = {"window_bytes": 1_000_000, "selective_repeat": True, "reorder_packets": 0, "rto_ps": 400 * sc.US}
    results, _ = sc.simulate(graph, sent, balance=balance, switch=switch, faults=last_spine_dies(graph, died), **chosen)
    assert results.counters["lost_packets"] > 500
    before, after = (goodput(results, src, *window, sc.MTU) for window in ((sc.MS, died), (4 * sc.MS, end)))
    assert after == pytest.approx(residual, rel=0.03)
    assert after.sum() / before.sum() == pytest.approx(residual.sum() / whole.sum(), rel=0.03)
    assert len({round(share / NIC, 1) for share in residual}) == (4 if switch else 1)
    assert residual.sum() < 0.86 * whole.sum()


def test_shares_of_spread_packets():
    """Eight flows of a leaf over four spines and over three; two into one NPU."""
    ack = 1 + sc.ACK / (sc.MTU + sc.HEADER)
    src, dst = np.arange(8), np.arange(8, 16)
    assert spread_shares(src, dst, 3) == pytest.approx(np.full(8, 6 / 8 * NIC))
    assert spread_shares(src, dst, 4) == pytest.approx(np.full(8, NIC))
    assert spread_shares(src, dst[::-1] * 0 + 8, 4) == pytest.approx(np.full(8, NIC / 8))
    both = spread_shares(np.arange(16), (np.arange(16) + 8) % 16, 3)
    assert both == pytest.approx(np.full(16, 6 / 8 * NIC / ack))


def ways(graph, down, src, dst):
    """bool[links, flows]: the links that the data of a flow crosses, and those of its acknowledgements."""
    sent = sc.program(graph.npus, sc.messages(src, dst, 1))
    rest = replace(graph, routing=graph.routing.without(graph, down))
    reference = naive.Simulator(rest, sent, Settings(), 1, 0)
    found = np.zeros((2, graph.links, len(src)), bool)
    for i, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        entropy = naive.mix3(a + Settings().seed, b, naive.P2P_GROUP) % 2**15
        for crossed, begin, goal in ((found[0], a, b), (found[1], b, a)):
            at = begin
            while at != goal:
                link = reference.next_link(at, goal, entropy)
                crossed[link, i] = True
                at = int(graph.link_dst[link])
    return found


@pytest.mark.parametrize("seed", range(4))
def test_flows_by_hash_under_hpcc(seed):
    """All flows together; each alone is up to 6 % from its share, as two in step on one link may differ a little."""
    graph, mtu, eta = leaf_spine(3, "2us"), 1000, 0.8
    rng = np.random.default_rng(seed)
    src = np.flatnonzero(rng.random(3 * HOSTS) < 0.7)
    leaf = (src // HOSTS + rng.integers(1, 3, len(src))) % 3
    dst = leaf * HOSTS + rng.integers(0, HOSTS, len(src))
    died, end = 6 * sc.MS, 12 * sc.MS
    capacity = graph.link_rate_bps / 8e12
    both = [ways(graph, down, src, dst) for down in ((), of_switch(graph, graph.nodes - 1))]
    flows = 2 * int(np.ceil(max((data.sum(axis=1) * NIC / capacity).max() for data, _ in both)))
    step = NIC * (1 - eta) / flows
    weights = [data + acks * sc.ACK / (mtu + sc.HEADER) for data, acks in both]
    whole, residual = (sc.water_fill(weight, capacity, data) for weight, (data, _) in zip(weights, both, strict=True))
    settled = sc.water_fill(weights[1], eta * capacity, both[1][0], step)
    sent = sc.streams(src, dst, 64_000, (1.1 * end * np.maximum(whole, residual) / 64_000).astype(int) + 1)
    values = {"eta": eta, "flows": flows, "fast_react": 0.0}
    chosen = {"mtu_bytes": mtu, "rto_ps": 400 * sc.US, "record_nodes": False, "switch": SHARED}
    faults = last_spine_dies(graph, died)
    results, _ = sc.simulate(graph, sent, control="hpcc", values=values, faults=faults, **chosen)
    assert results.counters["lost_packets"] > 100
    before, after = (goodput(results, src, *window, mtu) for window in ((4 * sc.MS, died), (9 * sc.MS, end)))
    assert after.sum() / before.sum() == pytest.approx(residual.sum() / whole.sum(), rel=0.03)
    assert after.sum() == pytest.approx(settled.sum(), rel=0.03)
    assert after == pytest.approx(settled, rel=0.06)
