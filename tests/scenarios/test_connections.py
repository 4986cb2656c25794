"""Connections of two NPUs: each has a way of its own where there are several, and they share a port alike."""

from types import SimpleNamespace

import numpy as np
import pytest

from nadi import topologies
from nadi.pdes import Settings, build_world, run
from nadi.pdes.core import packet
from nadi.pdes.fidelity import fidelity
from nadi.workload import WorkloadError, collective_program, collectives
from nadi.workload.collectives.plans.plan import MAX_CONNECTIONS, NONE, Lane, each_its_own
from tests.fidelity.naive import by_hand
from tests.pdes.compare import check, differences
from tests.scenarios.running import simulate

SPINES = "leaf-spine:leaves=2,hosts_per_leaf=1,spines=4,rate=100Gbps,uplink_rate=100Gbps,delay=500ns"
SEEDS = range(40)
SIZE = 400 * 4096


def lanes(connections, *, to_lane=None, messages=1):
    """Member 0 sends member 1 the whole buffer over each of some connections, from a lane to one of its own."""
    senders = [Lane(connection=connection) for connection in connections]
    receivers = [Lane() for _ in connections]
    for number, sender in enumerate(senders):
        at = number if to_lane is None else to_lane
        for _ in range(messages):
            sender.step(send_to=1, to_lane=at, send=0)
            receivers[at].step(receive_from=0, receive=0)
    return each_its_own(1, [senders, receivers])


@pytest.fixture
def program(monkeypatch):
    """Makes the program of lanes."""
    known = collectives.known_algorithms()

    def made(connections, size_bytes=SIZE, **given):
        fixed = SimpleNamespace(
            NAME="fixed", KINDS=("broadcast",), plan=lambda *_: lanes(connections, **given), closed_form=None
        )
        monkeypatch.setattr(collectives, "known_algorithms", lambda: known | {"fixed": fixed})
        return collective_program("broadcast", 2, size_bytes, "fixed")

    return made


def spines_used(results, graph):
    """Links from the sender's leaf to spines that carried its data."""
    leaf, spines = 2, np.arange(graph.nodes) > 3
    up = (graph.link_src == leaf) & spines[graph.link_dst]
    return int((results.links["tx_packets"][up] > 0).sum())


def test_two_connections_take_two_ways_for_some_seeds(program):
    """One of four spines each, by hash: they meet for about a quarter of the seeds. One connection keeps to one."""
    graph = topologies.build(SPINES)
    used = {
        two: [spines_used(simulate(graph, program(two, 4096), seed=seed), graph) for seed in SEEDS]
        for two in ((0, 1), (0, 0))
    }
    assert set(used[0, 1]) == {1, 2}
    assert set(used[0, 0]) == {1}
    assert used[0, 1].count(2) / len(SEEDS) == pytest.approx(3 / 4, abs=0.2)


def test_all_connections_spread_over_all_ways(program):
    graph = topologies.build(SPINES)
    everything = program(range(MAX_CONNECTIONS), 4096)
    assert spines_used(simulate(graph, everything, window_bytes=10**6), graph) == 4


def test_connections_share_a_port_and_messages_of_one_follow_each_other(program):
    """Sent at the same moment, the first of one connection is there after half of the time, of two at the very end."""
    packet_ps = (4096 + 82) * 8 * 10
    ends = {}
    for two in ((0, 0), (0, 1), (3, 9)):
        flows = simulate("switch:npus=2,rate=100Gbps,delay=500ns", program(two), window_bytes=10**8).flows
        ends[two] = sorted(flows["finish_ps"].tolist())
    assert ends[0, 0][1] - ends[0, 0][0] == 400 * packet_ps
    assert ends[0, 1][1] - ends[0, 1][0] == packet_ps
    assert ends[3, 9] == ends[0, 1]
    assert ends[0, 0][1] == ends[0, 1][1]


def test_three_connections_share_alike(program):
    """Whoever has half as much to send is done when each has sent that much."""
    flows = simulate("switch:npus=2,rate=100Gbps,delay=0ns", program((0, 1, 2, 2)), window_bytes=10**8).flows
    first = np.sort(flows["finish_ps"]) / (400 * (4096 + 82) * 80)
    assert first == pytest.approx([3, 3, 3, 4], rel=0.01)


@pytest.mark.parametrize("lossy", [False, True])
def test_the_naive_model_agrees(program, lossy):
    graph = topologies.build(SPINES.replace("uplink_rate=100Gbps", "uplink_rate=20Gbps"))
    limits = {"queue_limit_bytes": 3000, "rto_ps": 60_000_000, "max_retries": 1000} if lossy else {}
    chosen = Settings(mtu_bytes=512, seed=4, **limits)
    results = check(graph, program((0, 1, 1, 5, 63), 20_000, messages=2), chosen)
    assert (results.counters["dropped_packets"] > 0) == lossy


@pytest.mark.parametrize("kind", ["congestion_unaware", "congestion_aware"])
def test_the_naive_model_of_whole_messages_agrees(program, kind):
    graph, chosen = topologies.build(SPINES), Settings(fidelity=fidelity(kind), seed=4)
    connections = program((0, 1, 1, 5), 20_000)
    results = run(build_world(graph, connections, chosen))
    assert differences(results, by_hand(graph, connections, chosen)) == []


def test_keys_have_room():
    assert (MAX_CONNECTIONS << packet.CONNECTION_SHIFT) * packet.MAX_NPUS**2 == 1 << 63
    assert packet.P2P < 1 << packet.CONNECTION_SHIFT


@pytest.mark.parametrize(
    ("connections", "given", "said"),
    [
        ((0, MAX_CONNECTIONS), {}, "a lane with connection 64, expected one of 0 .. 63"),
        ((0, 1), {"to_lane": 0}, "a lane that gets a peer's messages over several connections, expected one"),
    ],
)
def test_lanes_that_are_refused(program, connections, given, said):
    with pytest.raises(WorkloadError, match=said):
        program(connections, **given)


def test_nccl_gives_each_channel_a_connection():
    graph = topologies.build("rail-optimised:npus=8,gpus_per_host=4")
    for kind, algo in (("all-reduce", "ring"), ("all-reduce", "tree"), ("all-gather", "ring"), ("broadcast", "ring")):
        schedules = collective_program(kind, 8, 1 << 24, f"nccl:algo={algo},channels=5", graph).schedules
        sends = np.maximum.reduceat(schedules.send_peer, schedules.lane_ptr[:-1]) != NONE
        assert set(schedules.lane_connection[sends].tolist()) == set(range(5))
