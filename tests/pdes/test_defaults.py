"""The window and timeout that are settled where a run names none, by paths found here and numbers worked out by hand.

Both are of an idle round trip over the longest path, as if each of its links were the fabric's slowest and longest: a
full packet there, its acknowledgement back. The window fills the fastest port of an NPU for so long, and two packets
more; the timeout is four times that with every queue full, and 1 us (docs/reference: run-file.md, faults.md).
"""

import math
from collections import deque
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from nadi.pdes import LinkFault, Settings, SharedBuffer
from nadi.pdes.core.state import SELECTIVE_PACKETS
from nadi.pdes.network.balancing import balancing
from nadi.topologies import build
from nadi.workload import collective_program, pairs_program
from tests.failures.common import faults_of
from tests.pdes.compare import simulate

MTU, HEADER, ACK = 4096, 82, 86
US = 10**6
SPECS = [
    "switch:npus=5,rate=100Gbps,delay=1us",
    "switch:npus=5,rate=100Gbps,delay=0ns,switch_latency=300ns",
    "ring:npus=7,rate=77Gbps,delay=30ns",
    "ring:npus=2",
    "torus:sizes=3x4x2",
    "fully-connected:npus=4,rate=1Gbps",
    "leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,uplink_rate=400Gbps,uplink_delay=3us",
    "fat-tree:k=4,switch_latency=40ns",
    "rail-optimised:npus=16,gpus_per_host=4,hosts_per_rail_leaf=2,spines=2",
    "stack:dims=FullyConnected(3)_Ring(5)_Switch(2),rates=400Gbps_200Gbps_100Gbps,delays=50ns_200ns_800ns",
    "rail-fat-tree:npus=16,gpus_per_host=4,rails=1,hosts_per_unit=2,spines=2",
    "rail-fat-tree:npus=20,gpus_per_host=4,rails=2,hosts_per_unit=2,units_per_pod=2,spines=2,cores=3",
]


def links_of_the_longest_path(graph):
    """By breadth-first searches from each NPU; NPUs pass packets on only where the fabric has no tables for them."""
    onward = [[] for _ in range(graph.nodes)]
    for a, b in zip(graph.link_src.tolist(), graph.link_dst.tolist(), strict=True):
        onward[a].append(b)
    npus_pass_on = not hasattr(graph.routing, "home")
    most = 0
    for src in range(graph.npus):
        far, at = {src: 0}, deque([src])
        while at:
            node = at.popleft()
            if node == src or node >= graph.npus or npus_pass_on:
                for after in onward[node]:
                    if after not in far:
                        far[after] = far[node] + 1
                        at.append(after)
        most = max(most, *(far[dst] for dst in range(graph.npus)))
    return most


def round_trip_ps(graph):
    """Of a full packet and its acknowledgement, exact."""
    wire_ps = Fraction((MTU + HEADER + ACK) * 8 * 10**12, int(graph.link_rate_bps.min()))
    delay_ps, latency_ps = int(graph.link_delay_ps.max()), int(graph.node_latency_ps.max(initial=0))
    return links_of_the_longest_path(graph) * (wire_ps + 2 * delay_ps + 2 * latency_ps)


def settled(graph, **chosen):
    program = collective_program("barrier", graph.npus, 0)
    found = simulate(graph, program, Settings(mtu_bytes=MTU, nvlink_framing=False, **chosen)).settled
    return found["window_packets"], found["rto_ps"]


@pytest.mark.parametrize("spec", SPECS)
def test_the_window_fills_the_fastest_port_over_the_longest_round_trip(spec):
    graph = build(spec)
    fastest_bps = int(graph.link_rate_bps[graph.link_src < graph.npus].max())
    packets = round_trip_ps(graph) * fastest_bps / (10**12 * 8 * (MTU + HEADER))
    assert settled(graph) == (math.ceil(packets) + 2, 0)


def test_numbers_worked_out_by_hand():
    """Two links of 100 Gb/s and 1 us: 2 (2 us + 4264 B x 80 ps) = 4.68224 us, in which 14.009 packets of 4178 B leave.

    With queues of 64 KiB each link adds 5.24288 us: 4 (4.68224 + 2 x 5.24288) + 1 = 61.672 us.
    """
    graph = build(SPECS[0])
    assert settled(graph) == (15 + 2, 0)
    assert settled(graph, queue_limit_bytes=65536) == (17, 61_672_000)
    assert settled(graph, queue_limit_bytes=65536, rto_ps=7 * US) == (17, 7 * US)
    assert settled(graph, window_bytes=3 * MTU + 1) == (3, 0)
    assert settled(graph, window_bytes=1) == (1, 0)


def test_queues_of_shared_buffers():
    """With the dynamic threshold's share alpha one port takes at most alpha / (1 + alpha) of the buffer."""
    graph = build(SPECS[0])
    lossy = SharedBuffer(buffer_bytes=300_000, pfc_alpha=0.5, pfc=False)
    assert settled(graph, switch=lossy)[1] == 4 * (4_682_240 + 2 * 100_000 * 80) + US
    assert settled(graph, switch=SharedBuffer())[1] == 0
    # a threshold of a port, 5,000 bytes at 25 Gb/s, keeps queues shorter; with PFC it has no effect
    own = replace(lossy, trim_threshold_bytes=5000)
    assert settled(graph, switch=own)[1] == 4 * (4_682_240 + 2 * 20_000 * 80) + US
    assert settled(graph, switch=replace(own, trim_last_hop=1.5))[1] == 4 * (4_682_240 + 2 * 30_000 * 80) + US
    assert settled(graph, switch=replace(own, trim_threshold_bytes=500_000)) == settled(graph, switch=lossy)


def test_faults_that_lose_packets():
    """Queues of 1 MB at the lowest rate, and what latency is added, both ways."""
    graph = build(SPECS[0])
    faults = faults_of(
        graph,
        [
            LinkFault((0, 1), 0, 5 * US, error_rate=0.01),
            LinkFault((2, 3), 0, 5 * US, rate_bps=10**9),
            LinkFault((4, 5), 0, 5 * US, added_latency_ps=3 * US),
        ],
    )
    assert settled(graph, faults=faults)[1] == 4 * (4_682_240 + 2 * (10**6 * 8000 + 2 * 3 * US)) + US


def window_with(*faults, spec=SPECS[0]):
    """Payload in packets that leaves in the idle round trip; and window of a run with faults."""
    graph = build(spec)
    return settled(graph, faults=faults_of(graph, faults))[0]


def test_the_window_covers_the_latency_of_faults():
    """A round trip of 4.68224 us and twice what is added to the cables of the longest path; a packet leaves in
    0.33424 us."""

    def packets(added_us):
        return math.ceil(Fraction(4_682_240 + 2 * added_us * US, 334_240)) + 2

    later = [LinkFault((2 * npu, 2 * npu + 1), 0, 5 * US, added_latency_ps=(npu + 1) * 10 * US) for npu in range(5)]
    assert window_with(later[0]) == packets(10)
    assert window_with(*later[:2]) == packets(30)
    assert window_with(*later) == packets(50 + 40)
    again = LinkFault((0, 1), 6 * US, 9 * US, added_latency_ps=30 * US)
    assert window_with(later[0], again) == packets(30)
    assert window_with(LinkFault((0, 1), 0, 5 * US, error_rate=0.1)) == packets(0)


def test_a_late_link_does_not_hold_a_message_back():
    graph = build(SPECS[0])
    faults = faults_of(graph, [LinkFault((0, 1), 0, 10**15, added_latency_ps=100 * US)])
    to = np.array([1, -1, -1, -1, -1])
    took = [
        simulate(graph, pairs_program(to, 10**7), Settings(window_bytes=window, faults=faults)).finish_time_ps
        for window in (0, 1 << 30)
    ]
    assert took[0] == took[1]


@pytest.mark.parametrize("rule", ["spray", "adaptive"])
def test_selective_repeat_bounds_the_window(rule):
    graph = build("switch:npus=5,rate=400Gbps,delay=20us")
    assert settled(graph)[0] > SELECTIVE_PACKETS
    assert settled(graph, load_balancing=balancing(rule))[0] == SELECTIVE_PACKETS


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[2], SPECS[6], SPECS[8]])
def test_a_message_over_the_longest_path_is_not_held_back(spec):
    """Alone, it takes as long as with a window that never ends."""
    graph = build(spec)
    to = np.full(graph.npus, -1)
    to[0] = graph.npus // 2 if "ring" in spec else graph.npus - 1
    program = pairs_program(to, 5 * settled(graph)[0] * MTU)
    alone = [simulate(graph, program, Settings(window_bytes=window)).finish_time_ps for window in (0, 1 << 34)]
    assert alone[0] == alone[1]
    held = simulate(graph, program, Settings(window_bytes=MTU)).finish_time_ps
    assert held > alone[0]
