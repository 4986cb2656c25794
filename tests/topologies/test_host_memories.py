"""Memories of hosts: on the host's own switches, and on nobody else's way."""

import numpy as np
import pytest

from nadi import topologies
from nadi.topologies import TopologyError
from nadi.topologies.endpoints import with_host_memories
from nadi.topologies.routing import next_links
from tests.nonempty import nonempty

SPECS = (
    "dgx-h100:npus=24,hosts_per_rail_leaf=2",
    "rail-optimised:npus=12,gpus_per_host=4",
    "nvswitch-pairs",
)
PAIRS = """
npus = 5
host = [7, 3, 7, 3, 3]
[[switches]]
name = "a"
[[switches]]
name = "b"
[[switches]]
name = "b again"
[[switches]]
name = "spine"
[[links]]
rate = "100Gbps"
delay = "20ns"
cables = [[0, "a"], [2, "a"], [1, "b"], [3, "b"], [4, "b"], [1, "b again"], [3, "b again"], [4, "b again"]]
[[links]]
rate = "50Gbps"
delay = "1us"
cables = [["a", "spine"], ["b", "spine"], ["b again", "spine"]]
"""


@pytest.fixture(params=SPECS)
def graph(request, tmp_path):
    if request.param != "nvswitch-pairs":
        return topologies.build(request.param)
    (tmp_path / "pairs.toml").write_text(PAIRS)
    return topologies.build(f"file:path={tmp_path / 'pairs.toml'}")


def walk(graph, source, target):
    """All links of shortest paths from one endpoint to another."""
    found, at = set(), {source}
    while at - {target}:
        links = {int(link) for node in at - {target} for link in next_links(graph, node, target)}
        found |= links
        at = {int(graph.link_dst[link]) for link in links}
    return found


def test_paths_between_npus_are_as_before(graph):
    more = with_host_memories(graph)
    assert more.npus == graph.npus + len(np.unique(graph.host))
    for source in range(graph.npus):
        for target in range(graph.npus):
            assert walk(graph, source, target) == walk(more, source, target)


def test_a_memory_is_on_all_switches_of_its_host(graph):
    more = with_host_memories(graph)
    for number, host in nonempty(enumerate(np.unique(graph.host).tolist())):
        memory = graph.npus + number
        own = np.flatnonzero(more.host[: graph.npus] == host)
        assert more.host[memory] == host
        switches = {int(more.link_dst[link]) for link in more.out_links(memory)}
        expected = [set(more.link_dst[more.out_links(npu)].tolist()) for npu in own.tolist()]
        others = {
            int(more.link_dst[link]) for npu in range(graph.npus) if npu not in own for link in more.out_links(npu)
        }
        assert switches == set.intersection(*expected) - others != set()
        for npu in nonempty(own.tolist()):
            links = walk(more, npu, memory)
            assert {int(more.link_dst[link]) for link in links} == switches | {memory}
        for link in nonempty(more.out_links(memory)):
            beside = [i for i in more.out_links(int(more.link_dst[link])) if more.link_dst[i] in own]
            assert more.link_rate_bps[link] == sum(more.link_rate_bps[i] for i in beside)
            assert more.link_delay_ps[link] == max(more.link_delay_ps[i] for i in beside)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ring:npus=4", "ring:npus=4: its NPUs are in no hosts with switches of their own"),
        ("leaf-spine:npus=8", "leaf-spine:npus=8: its NPUs are in no hosts with switches of their own"),
        ("shared", "no switch joins all NPUs of the host of npu 0 and no others"),
    ],
)
def test_hosts_without_a_switch_of_their_own(spec, words, tmp_path):
    (tmp_path / "shared.toml").write_text(PAIRS.replace('[1, "b"]', '[1, "a"]').replace('[2, "a"]', '[2, "b"]'))
    graph = topologies.build(f"file:path={tmp_path / 'shared.toml'}" if spec == "shared" else spec)
    with pytest.raises(TopologyError) as error:
        with_host_memories(graph)
    assert words in str(error.value)
