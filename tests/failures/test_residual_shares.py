"""What a dead spine costs long flows: goodput before and after, against max-min shares of what is left of the fabric.

Shares come from plain water-filling (tests/fabric/scenarios.py). Goodput is counted in bytes on the wire, over a steady
stretch well after the routes have changed; acknowledgements take their part of the links that they cross.
"""

from dataclasses import replace

import numpy as np
import pytest

from nadi.pdes import LinkFault, Settings, SharedBuffer
from nadi.topologies import build, routing_without
from tests.fabric import scenarios as sc
from tests.failures.common import faults_of, of_switch
from tests.pdes import naive

HOSTS, SPINES = 8, 4
BYTES_PER_PS = 1e9 / 8e12
NIC, UPLINK = 100 * BYTES_PER_PS, 200 * BYTES_PER_PS
SHARED = SharedBuffer(buffer_bytes=256 * 10**6, ecn=False)
DETECTION = 50 * sc.US


def leaf_spine(leaves, delay):
    """Leaves with as much rate up as down: 8 NPUs at 100 Gb/s, 4 spines at 200 Gb/s."""
    return build(
        f"leaf-spine:leaves={leaves},hosts_per_leaf={HOSTS},spines={SPINES},rate=100Gbps,uplink_rate=200Gbps,"
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
    whole, residual = (spread_shares(src, dst, spines) for spines in (SPINES, SPINES - 1))
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
    rest = replace(graph, routing=routing_without(graph, down))
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
