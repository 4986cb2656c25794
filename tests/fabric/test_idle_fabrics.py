"""Dragonflies, slim flies, HyperX, rails, ZCube, twisted tori and planes without contention, to the picosecond.

Times follow from the published structure: which links lead from one NPU to the other, and how many switches.
"""

import numpy as np
import pytest

from nadi import topologies
from tests.fabric import scenarios as sc
from tests.nonempty import nonempty

FULL_BYTES = sc.MTU + sc.HEADER
LATENCY_PS = 100_000
# kinds of links: rate in Gb/s and delay in ps
HOST, LOCAL, GLOBAL = (400, 10_000), (200, 20_000), (100, 500_000)
NVLINK, PORT = (3600, 30_000), (100, 10_000)
OWN = (1600, 0)  # of a twisted torus, between an NPU and its router
DELAYS = "delay=10ns,switch_latency=100ns"
GROUPS = f"rate=400Gbps,local_rate=200Gbps,local_delay=20ns,global_rate=100Gbps,global_delay=500ns,{DELAYS}"
RAILS = "npus=16,gpus_per_host=4,nvlink_rate=3600Gbps,nvlink_delay=30ns,nvswitch_latency=100ns"
PATHS = {
    # the first global port of group 0, at its router 0, leads to router 3 of group 1
    f"dragonfly:p=2,a=4,h=2,{GROUPS}": {
        (0, 1): [HOST, HOST],
        (0, 2): [HOST, LOCAL, HOST],
        (0, 14): [HOST, GLOBAL, HOST],
        (0, 8): [HOST, GLOBAL, LOCAL, HOST],
        (2, 8): [HOST, LOCAL, GLOBAL, LOCAL, HOST],
    },
    f"dragonfly-plus:p=2,leaves=2,groups=5,{GROUPS}": {
        (0, 1): [HOST, HOST],
        (0, 2): [HOST, LOCAL, LOCAL, HOST],
        (0, 5): [HOST, LOCAL, GLOBAL, LOCAL, HOST],
    },
    # router y is (0, 0, y), and 25 + 5 m is (1, m, 0), which is linked to (0, 0, 0); differences of 1 and 4 are local
    f"slim-fly:q=5,p=2,{GROUPS}": {
        (0, 1): [HOST, HOST],
        (0, 2): [HOST, LOCAL, HOST],
        (0, 4): [HOST, LOCAL, LOCAL, HOST],
        (1, 61): [HOST, GLOBAL, HOST],
    },
    f"hyperx:sizes=3x4,p=2,rate=400Gbps,switch_rate=100Gbps,switch_delay=500ns,{DELAYS}": {
        (0, 1): [HOST, HOST],
        (0, 4): [HOST, GLOBAL, HOST],
        (0, 18): [HOST, GLOBAL, HOST],
        (0, 23): [HOST, GLOBAL, GLOBAL, HOST],
    },
    f"rail-only:{RAILS},rate=400Gbps,{DELAYS}": {
        (0, 1): [NVLINK, NVLINK],
        (0, 12): [HOST, HOST],
        (0, 5): [NVLINK, HOST, HOST],
    },
    # NPU i has ports on odd switch i mod 4 and on even switch i / 4
    f"zcube:npus=16,npus_per_switch=4,rate=400Gbps,uplink_rate=100Gbps,uplink_delay=500ns,{DELAYS}": {
        (0, 4): [HOST, HOST],
        (0, 1): [HOST, HOST],
        (0, 5): [HOST, GLOBAL, HOST],
    },
    # NPU x + 4 y; the ring of row 0 closes in row 4
    "twisted-torus:sizes=4x8,rate=100Gbps,npu_rate=1600Gbps,delay=500ns": {
        (0, 1): [OWN, GLOBAL, OWN],
        (0, 4): [OWN, GLOBAL, OWN],
        (3, 16): [OWN, GLOBAL, OWN],
        (0, 6): [OWN, GLOBAL, GLOBAL, GLOBAL, OWN],
    },
    f"multi-plane:npus=16,planes=4,nics_per_leaf=4,rate=400Gbps,uplink_rate=200Gbps,uplink_delay=20ns,{DELAYS}": {
        (0, 1): [PORT, PORT],
        (0, 15): [PORT, LOCAL, LOCAL, PORT],
    },
}


def alone_ps(links, packets, latency_ps):
    """Time of a message of full packets over links: the first crosses all, others follow it at the slowest."""
    sends_ps = [FULL_BYTES * 8000 // rate for rate, _ in links]
    return sum(sends_ps) + sum(delay for _, delay in links) + latency_ps + (packets - 1) * max(sends_ps)


def took(graph, sent, **chosen):
    results, _ = sc.simulate(graph, sent, nvlink_framing=False, window_bytes=1 << 20, **chosen)
    ends = zip(*(results.flows[name].tolist() for name in ("src", "dst")), strict=True)
    return dict(zip(ends, (results.flows["finish_ps"] - results.flows["start_ps"]).tolist(), strict=True))


@pytest.mark.parametrize("spec", PATHS)
def test_a_message_alone_takes_the_sum_of_its_links_and_switches(spec):
    graph, paths = topologies.build(spec), PATHS[spec]
    src, dst = np.array(list(paths)).T
    for packets in (1, 4):
        # one after the other, so that none meets another
        sent = sc.messages(src, dst, packets * sc.MTU, sc.MS * np.arange(1, len(src) + 1))
        latency_ps = 0 if spec.startswith("twisted") else LATENCY_PS
        expected = {ends: alone_ps(links, packets, latency_ps * (len(links) - 1)) for ends, links in paths.items()}
        assert took(graph, sent) == expected


@pytest.mark.parametrize("spec", PATHS)
def test_messages_without_shared_links_take_as_long_as_each_alone(spec):
    graph = topologies.build(spec)
    src, dst = _disjoint(graph)
    together = took(graph, sc.messages(src, dst, 64 * sc.MTU))
    assert len(nonempty(together)) >= 4
    for ends, took_ps in together.items():
        links = topologies.route(graph, *ends)
        kinds = [(int(graph.link_rate_bps[link]) // 10**9, int(graph.link_delay_ps[link])) for link in links]
        latency_ps = int(graph.node_latency_ps[graph.link_src[links]].sum())
        assert took_ps == alone_ps(kinds, 64, latency_ps)


def _disjoint(graph):
    """Pairs of NPUs with one shortest path each, of which no two have a cable in common."""
    used, pairs, ends = set(), [], set()
    order = np.random.default_rng(4).permutation(graph.npus * graph.npus)
    for src, dst in zip(*np.divmod(order, graph.npus), strict=True):
        if src == dst or {int(src), int(dst)} & ends:
            continue
        loads = graph.routing.loads(graph, np.array([src]), np.array([dst]), np.ones(1))
        cables = set((np.flatnonzero(loads) // 2).tolist())
        if loads.max() == loads[loads > 0].min() and not cables & used:
            used, ends = used | cables, ends | {int(src), int(dst)}
            pairs.append((int(src), int(dst)))
        if len(pairs) == 8:
            break
    return zip(*pairs, strict=True)


# Rings


def test_a_ring_shares_as_many_links_as_its_load_says():
    """Neighbours of a ring over all NPUs, in their order: how many messages the busiest link carries.

    A dragonfly's or a slim fly's first NPU of the next group is not always at the end of the link between them.
    """
    busiest = {}
    for spec in PATHS:
        graph = topologies.build(spec)
        npu = np.arange(graph.npus)
        loads = graph.routing.loads(graph, npu, (npu + 1) % graph.npus, np.ones(graph.npus))
        busiest[spec.partition(":")[0]] = float(loads.max())
    # a message of a NIC with four ports is a quarter on each
    assert busiest == {
        "dragonfly": 2.0, "dragonfly-plus": 1.0, "slim-fly": 2.0, "hyperx": 1.0, "rail-only": 1.0, "zcube": 1.0,
        "twisted-torus": 1.0625, "multi-plane": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize("rule", ["ecmp", "spray"])
@pytest.mark.parametrize("spec", ["hyperx:sizes=4x4,p=2,switch_delay=25ns", "twisted-torus:sizes=4x8,delay=25ns"])
def test_a_ring_takes_as_long_as_its_busiest_link(spec, rule):
    """Neighbours in two lines have several shortest paths, and ECMP puts two of these flows on one link here.

    Then the ring takes twice as long; packets that are spread take what equal shares of all paths say.
    """
    # With ECMP as long as a window: all packets wait where paths meet, and no flow starves that shares several
    # links one after the other. Longer where packets are spread at random, as their shares vary.
    graph, size = topologies.build(spec), (2 if rule == "ecmp" else 8) << 20
    npu = np.arange(graph.npus)
    chosen = {"balance": rule, "selective_repeat": rule == "spray", "reorder_packets": 0, "window_bytes": 500 * sc.MTU}
    results, _ = sc.simulate(graph, sc.messages(npu, (npu + 1) % graph.npus, size), **chosen)
    bound_ps = (results.links["tx_bytes"] * 8e12 / graph.link_rate_bps).max()
    assert bound_ps <= results.finish_time_ps <= 1.05 * bound_ps
    alone_ps = size / sc.MTU * FULL_BYTES * 20
    # packets of data one way, and an acknowledgement for each the other way
    data, acks = (
        graph.routing.loads(graph, *ends, np.ones(graph.npus))
        for ends in ((npu, (npu + 1) % graph.npus), ((npu + 1) % graph.npus, npu))
    )
    shared = (data + acks * sc.ACK / FULL_BYTES)[graph.link_rate_bps == graph.link_rate_bps.min()].max()
    assert bound_ps / alone_ps == pytest.approx(2 if rule == "ecmp" else shared, rel=0.05)
