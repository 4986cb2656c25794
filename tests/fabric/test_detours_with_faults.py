"""Detours around links and switches that are down, on each fabric of switches: all arrives, on any partition."""

import numpy as np

from nadi import pdes
from nadi.pdes import LinkFault
from nadi.pdes.network import detours
from nadi.pdes.wire import CreditSwitch
from nadi.topologies import build
from tests.fabric.scenarios import messages, program
from tests.failures.common import faults_of, of_switch
from tests.samples import sampled

FABRICS = [
    "dragonfly:p=1,a=3,h=1",
    "dragonfly-plus:p=1,leaves=2,h=2",
    "slim-fly:q=3,p=1",
    "hyperx:sizes=3x3,p=1",
    "rail-only:npus=8,gpus_per_host=2,hosts_per_rail_leaf=2,spines=2",
    "zcube:npus=12,npus_per_switch=3",
    "twisted-torus:sizes=2x2x4",
    "multi-plane:npus=8,planes=2,nics_per_leaf=4",
    "leaf-spine:leaves=4,hosts_per_leaf=2,spines=2",
]
AT_PS, BACK_PS, DETECTION_PS = 4_000_000, 14_000_000, 1_000_000
NEVER = LinkFault((), 0).until_ps
SWITCHES = {"output queues": {}, "credits": {"credits": CreditSwitch(virtual_lanes=8)}}


def dead_links(graph, part, packets):
    """The cable between switches that carries most packets in one direction, or all cables of the switch at its end."""
    between = (graph.link_src >= graph.npus) & (graph.link_dst >= graph.npus)
    # a leaf of a tree carries nothing but its own NPUs' traffic, which takes no part
    higher = np.setdiff1d(graph.link_dst[between], graph.link_dst[graph.link_src < graph.npus])
    if part == "switch" and len(higher):
        between &= np.isin(graph.link_dst, higher)
    link = int(np.argmax(np.where(between, packets, -1)))
    return of_switch(graph, int(graph.link_dst[link])) if part == "switch" else (link & ~1, link | 1)


def outcome(graph, rule, faults, switch, lps=1, size_bytes=400_000):
    npu = np.arange(graph.npus)
    src = np.tile(npu, 3)
    dst = (src + np.repeat([1, 3, graph.npus // 2], graph.npus)) % graph.npus
    links = np.bincount(graph.link_src, minlength=graph.nodes)
    dead = [link for fault in faults.links for link in fault.links]
    # NPUs that a dead switch cuts off take no part
    cut = links == np.bincount(graph.link_src[dead], minlength=graph.nodes)
    taken = (src != dst) & ~cut[src] & ~cut[dst]
    chosen = pdes.Settings(
        routing=detours.detours(rule), faults=faults, selective_repeat=True, reorder_packets=200, rto_ps=40_000_000,
        max_retries=50, window_bytes=40_000, nvlink_framing=False, seed=5, **SWITCHES[switch],
    )  # fmt: skip
    sent = messages(src[taken], dst[taken], size_bytes)
    owner = np.arange(graph.nodes) * 7 % lps if lps > 1 else None
    return pdes.run(pdes.build_world(graph, program(graph.npus, sent), chosen, owner), threads=1)


@sampled(
    {
        "spec": FABRICS,
        "rule": [name for name in detours.names() if not detours.detours(name).by_source],
        "part": ["link", "switch"],
        "until": [BACK_PS, NEVER],
        "switch": list(SWITCHES),
    }
)
def test_all_arrives_by_another_way(spec, rule, part, until, switch):
    graph = build(spec)
    idle = outcome(graph, rule, pdes.Faults(), switch)
    dead = dead_links(graph, part, idle.links["tx_packets"])
    faults = faults_of(graph, [LinkFault(dead, AT_PS, until, down=True)], detection_ps=DETECTION_PS)
    whole = outcome(graph, rule, faults, switch)
    lost = whole.counters["lost_packets"]
    assert lost > 0
    if detours.detours(rule).publish is None:  # a rule that reads other switches has one logical process
        assert outcome(graph, rule, faults, switch, lps=3).digest == whole.digest
    # what was lost was under way before the routes changed: more traffic loses no more
    assert outcome(graph, rule, faults, switch, size_bytes=600_000).counters["lost_packets"] == lost
