"""Networks of networkx graphs are those that GraphBuilder makes of the same nodes and cables."""

import networkx as nx
import numpy as np
import pytest

from nadi.topologies import NVSWITCH, SWITCH, TopologyError, build, from_networkx
from nadi.topologies.graph import NPU


def as_networkx(graph):
    """A Graph of ours as networkx would draw it."""
    drawn = nx.MultiGraph(name=graph.name)
    kinds = {NPU: "npu", SWITCH: "switch", NVSWITCH: "nvswitch"}
    for node in range(graph.nodes):
        more = {"host": int(graph.host[node])} if node < graph.npus else {}
        more["latency"] = int(graph.node_latency_ps[node])
        drawn.add_node(graph.node_name(node), kind=kinds[int(graph.node_kind[node])], pod=int(graph.pod[node]), **more)
    for link in range(0, graph.links, 2):
        ends = (graph.node_name(int(node)) for node in (graph.link_src[link], graph.link_dst[link]))
        drawn.add_edge(*ends, rate=int(graph.link_rate_bps[link]), delay=int(graph.link_delay_ps[link]))
    return drawn


def cables(graph):
    """Sorted rows of the links: both ends, rate and delay."""
    columns = (graph.link_src, graph.link_dst, graph.link_rate_bps, graph.link_delay_ps)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("spec", ["fat-tree:k=4,rate=100Gbps,delay=1us", "dgx-h100:npus=16", "leaf-spine:npus=8"])
def test_what_is_drawn_is_what_is_built(spec):
    wanted = build(spec)
    found = from_networkx(as_networkx(wanted), dims=wanted.dims, accelerator=wanted.accelerator)
    assert cables(found) == cables(wanted)
    for name in ("node_kind", "node_latency_ps", "host", "pod"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
    assert (found.dims, found.switch_names, found.name) == (wanted.dims, wanted.switch_names, wanted.name)


def star(**edge):
    drawn = nx.Graph()
    drawn.add_node("s", kind="switch")
    for npu in range(3):
        drawn.add_node(npu, kind="npu")
        drawn.add_edge(npu, "s", **edge)
    return drawn


def test_what_edges_do_not_say_is_one_for_all():
    found = from_networkx(star(delay="2us", count=2), rate="10Gbps")
    assert found.links == 12
    assert set(found.link_rate_bps.tolist()) == {10**10}
    assert set(found.link_delay_ps.tolist()) == {2 * 10**6}


def with_node(**data):
    drawn = star(rate="1Gbps", delay=0)
    drawn.add_node("more", **data)
    return drawn


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (star(delay=1), "no rate; expected one on the edge"),
        (star(rate="1Gbps"), "no delay"),
        (star(rate="fast", delay=1), "edge 's' - 0.*'fast'"),
        (star(rate=1, delay=1), "has a rate of 1 bps"),
        (star(rate="1Gbps", delay=1, count=0), "count 0; expected a whole number from 1"),
        (with_node(), "node 'more': kind None; expected npu, switch or nvswitch"),
        (with_node(kind="router"), "node 'more': kind 'router'"),
        (with_node(kind="npu"), "npu 3 has no link"),
        (with_node(kind="switch", pod="x"), "pod 'x'; expected a whole number"),
        (with_node(kind="switch", latency="2 parsecs"), "node 'more': '2 parsecs'"),
        (star(rate="1Gbps", delay=0).to_directed(), "a directed graph"),
    ],
)
def test_what_is_wrong_is_one_line(drawn, said):
    with pytest.raises(TopologyError, match=said) as caught:
        from_networkx(drawn)
    assert "\n" not in str(caught.value)


def test_hosts_are_for_all_npus_or_for_none():
    drawn = star(rate="1Gbps", delay=0)
    drawn.nodes[1]["host"] = 0
    with pytest.raises(TopologyError, match="node 0: no host; expected one for each NPU, or for none"):
        from_networkx(drawn)
