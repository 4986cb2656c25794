"""What optical switches do, in closed form or by count."""

import numpy as np
import pytest

from nadi.configuration.optical import round_robin
from nadi.errors import ConfigError
from nadi.pdes.construction.settings import SharedBuffer
from nadi.pdes.wire import CreditSwitch
from nadi.topologies import GraphBuilder, build
from nadi.workload import collective_program, pairs_program
from tests.optical.common import HEADER, HELD, LEAVES, MTU, ROTOR, US, WIDE, optical_fabric, simulate, wire_ps
from tests.pdes.cases import Traces

SWITCHES = {
    "output": {},
    "shared": {"switch": SharedBuffer(buffer_bytes=64_000_000)},
    "credits": {"credits": CreditSwitch()},
}
SELECTIVE = {"selective_repeat": True, "window_bytes": 512 * MTU, "reorder_packets": 1024}
BIG_LANES = {"credits": CreditSwitch(lane_buffer_bytes=1 << 20)}


@pytest.mark.parametrize("ports", range(2, 12))
def test_a_rotor_joins_each_two_ports_once(ports):
    matchings = round_robin(ports)
    assert len(matchings) == ports - 1 + ports % 2
    assert all(
        len({port for pair in pairs for port in pair}) == 2 * len(pairs) == ports - ports % 2 for pairs in matchings
    )
    pairs = [pair for pairs in matchings for pair in pairs]
    assert sorted(pairs) == [(a, b) for a in range(ports) for b in range(a + 1, ports)]


def last_arrival(windows, period_ps, packets, gbps=100):
    """When the last of a train of packets arrives, if each waits at its leaf for a window of the circuit."""
    packet, free = wire_ps(gbps), 0
    for number in range(packets):
        start = max(free, (number + 1) * wire_ps(100) + US)  # at the leaf
        turns = range(start // period_ps - 1, start // period_ps + 2)
        shifted = ((on + turn * period_ps, off + turn * period_ps) for turn in turns for on, off in windows)
        free = min(max(start, on) + packet for on, off in shifted if max(start, on) + packet <= off)
    return free + US + wire_ps(100) + US


def cable_between(graph, a, b):
    (link,) = np.flatnonzero((graph.link_src == a) & (graph.link_dst == b))
    return int(link) // 2


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_permutation_over_a_rotor_gets_its_share_of_the_time(switch):
    npus, packets = 6, 700
    graph, faults = optical_fabric(LEAVES.format(npus), ROTOR | HELD)
    settings = SWITCHES["output"] if switch == "credits" else SWITCHES[switch]
    program = pairs_program((np.arange(npus) + 1) % npus, packets * MTU)
    results = simulate(graph, program, faults=faults, **settings, **WIDE)
    finish = dict(zip(results.flows["src"].tolist(), results.flows["finish_ps"].tolist(), strict=True))
    lit = {each.cable: each.lit for each in faults.circuits.circuits}
    for src in range(npus):
        windows = lit[cable_between(graph, npus + src, npus + (src + 1) % npus)]
        assert finish[src] == last_arrival(windows, faults.circuits.period_ps, packets)
    # the closed form: one of n - 1 matchings has the circuit, and light for all but the dark time of its slot
    rate = 100e9 / (npus - 1) * (1 - 5 / 50)
    whole = packets * MTU * 8 / (rate * MTU / (MTU + 82))
    period_s = (npus - 1) * 50e-6
    assert abs(max(finish.values()) / 1e12 - whole) < period_s
    assert results.counters["dropped_packets"] == 0


def test_a_ring_after_another_takes_the_sum_of_both_and_the_dark_time():
    """An all-reduce on a ring of leaves, then one on another ring, with the change between them."""
    npus, size, dark = 8, 1 << 20, 20 * US
    base = build(LEAVES.format(npus), in_parts=True)
    order = [3 * i % npus for i in range(npus)]
    rings = [(2 * a, 2 * b + 1) for a, b in _ring(range(npus))], [(2 * a, 2 * b + 1) for a, b in _ring(order)]
    ports = [f"leaf {leaf}" for leaf in range(npus) for _ in range(2)]
    of_all = {"ports": ports, "rate": "100Gbps", "delay": "1us"}
    alone = []
    for ring, members in zip(rings, (range(npus), order), strict=True):
        graph, faults = optical_fabric(base, of_all | {"matchings": [ring]})
        alone.append(simulate(graph, _reduces(npus, [members], size), faults=faults, **WIDE).finish_time_ps - 15 * US)
    at = alone[0] + 10 * US  # the last acknowledgements are in by then
    schedule = of_all | {"matchings": rings, "at": ["0s", f"{at}ps"], "dark": "20us", "in_flight": "hold"}
    graph, faults = optical_fabric(base, schedule)
    results = simulate(graph, _reduces(npus, [range(npus), order], size), faults=faults, rto_ps=10**9, **WIDE)
    # what the second one sends first waits at the leaf, where its first packet is in by then
    at_leaf = wire_ps(100) + US
    expected = at + dark + alone[1] - at_leaf + 15 * US
    # on a ring alone, the last packet waits for an acknowledgement on its way
    assert expected - wire_ps(100, 86) <= results.finish_time_ps <= expected
    assert results.counters["dropped_packets"] == 0


def _ring(members):
    return [(a, b) for a, b in zip(members, [*members[1:], members[0]], strict=True)]


def _reduces(npus, orders, size):
    """All-reduces of rings, one after another."""
    traces, groups, before = Traces(npus), {}, None
    for number, members in enumerate(orders):
        groups[f"ring {number}"] = list(members)
        traces.collective(members, 0, size, f"ring {number}", before)
        # 15 us without messages
        before = {npu: (traces.compute(npu, 15, deps=(2 * number,)),) for npu in members}
    return traces.program(groups)


DETOUR = "leaf-spine:leaves=2,hosts_per_leaf=1,spines=1,rate=100Gbps,uplink_rate=25Gbps,delay=1us"
PAIR = {"ports": ["leaf 0", "leaf 1"], "rate": "60Gbps", "delay": "1us", "matchings": [[[0, 1]], []]}
CHANGE = 100 * US


def _queued_at_change(results, packets, until):
    """Packets that come to the leaf before routes change, and those of them whose last bit is out by `until`."""
    cell = results.settled["cell_ps"]
    change = -(-CHANGE // cell) * cell
    came = [number for number in range(packets) if (number + 1) * wire_ps(100) + US < change]
    gone, free = 0, 0
    for number in came:
        free = max(free, (number + 1) * wire_ps(100) + US) + wire_ps(60)
        gone += free <= until
    return len(came), gone


@pytest.mark.parametrize("switch", ["output", "shared"])
@pytest.mark.parametrize("drain_us", [0, 20, 200])
def test_what_a_circuit_has_not_sent_when_it_goes_dark_is_lost_and_sent_again(switch, drain_us):
    packets, until = 600, CHANGE + drain_us * US
    times = {"at": ["0s", "100us"], "drain": f"{drain_us}us"}
    graph, faults = optical_fabric(DETOUR, PAIR | times)
    results = simulate(
        graph, pairs_program([1, -1], packets * MTU), faults=faults, rto_ps=10**9, **SWITCHES[switch], **SELECTIVE
    )
    came, gone = _queued_at_change(results, packets, until)
    assert gone == came if drain_us == 200 else gone < came
    there = 2 * faults.circuits.circuits[0].cable
    lost = results.links["dropped_packets"]
    assert lost[there] == came - gone
    # acknowledgements that the other end sends between the change and the cell in which routes follow
    assert lost[there + 1] <= 10
    assert results.counters["lost_packets"] == lost.sum() == lost[there] + lost[there + 1]
    assert results.counters["retransmitted_packets"] >= came - gone
    assert len(results.flows["finish_ps"]) == 1
    assert (results.counters["retransmitted_packets"] > 0) == (drain_us < 200)


@pytest.mark.parametrize("switch", ["output", "shared"])
def test_what_a_circuit_holds_goes_when_it_is_back(switch):
    times = {"at": ["0s", "100us"], "period": "1ms", "dark": "10us"}
    graph, faults = optical_fabric(DETOUR, PAIR | times | HELD)
    results = simulate(graph, pairs_program([1, -1], 600 * MTU), faults=faults, **SWITCHES[switch], **WIDE)
    assert results.flows["finish_ps"].tolist() == [last_arrival([(10 * US, 100 * US)], 1000 * US, 600, gbps=60)]
    assert results.counters["dropped_packets"] == 0
    # 161 packets pass in a window of 90 us
    assert results.finish_time_ps > 3010 * US


def test_routes_leave_what_is_held():
    times = {"at": ["0s", "100us"], "period": "5ms", "in_flight": "hold"}
    graph, faults = optical_fabric(DETOUR, PAIR | times)
    results = simulate(graph, pairs_program([1, -1], 600 * MTU), faults=faults, rto_ps=10**11, **SELECTIVE)
    # of 600 packets, those that came to the leaf before the change wait for its next time, the others go by the spine
    assert results.counters["dropped_packets"] == results.counters["retransmitted_packets"] == 0
    came, gone = _queued_at_change(results, 600, CHANGE)
    circuit = 2 * faults.circuits.circuits[0].cable
    assert results.links["tx_packets"][circuit] == came > gone
    assert 5000 * US < results.finish_time_ps < 5000 * US + (came - gone) * wire_ps(60) + 5 * US


def test_a_circuit_that_never_comes_back_holds_nothing():
    graph, faults = optical_fabric(DETOUR, PAIR | {"at": ["0s", "100us"], "in_flight": "hold"})
    assert faults.circuits.need_timers
    results = simulate(graph, pairs_program([1, -1], 600 * MTU), faults=faults, **WIDE)
    came, gone = _queued_at_change(results, 600, CHANGE)
    assert results.links["dropped_packets"][2 * faults.circuits.circuits[0].cable] == came - gone > 0


def test_cubes_that_an_optical_switch_joins_are_the_torus_of_the_same_cables():
    """A job on a torus of 4 x 2 x 2 switches that are two cubes of 2 x 2 x 2 and circuits between their faces."""
    sizes = (4, 2, 2)
    cables = _torus(sizes)
    inside = [(a, b) for a, b in cables if a % 4 // 2 == b % 4 // 2]
    between = [(a, b) for a, b in cables if a % 4 // 2 != b % 4 // 2]
    assert (len(inside), len(between)) == (8 + 16 + 16, 8)
    base, plain = (_switches(16, each) for each in (inside, inside + between))
    ports = [f"chip {chip}" for pair in between for chip in pair]
    pairs = [[2 * number, 2 * number + 1] for number in range(len(between))]
    section = {"ports": ports, "rate": "100Gbps", "delay": "1us", "matchings": [pairs]}
    graph, faults = optical_fabric(base, section)
    for kind in ("all-reduce", "all-to-all"):
        program = collective_program(kind, 16, 1 << 18)
        found = simulate(graph, program, faults=faults, **WIDE)
        expected = simulate(plain, program, **WIDE)
        assert (found.digest, found.finish_time_ps) == (expected.digest, expected.finish_time_ps)


SEEN_PS = HEADER * 80  # a switch that cuts through reads so many bytes first, at 100 Gb/s


def test_npus_have_circuits_of_their_own():
    """A NIC is a leaf without delay that cuts through: a message takes as long as over a cable between two NPUs."""
    packets, delay = 100, 3 * US
    graph, faults = optical_fabric(
        "leaf-spine:leaves=4,hosts_per_leaf=1,spines=0,rate=100Gbps,delay=0ns",
        {"ports": "npu", "rate": "100Gbps", "delay": "3us", "matchings": [[[0, 1], [2, 3]]]},
        {"ports": ["npu 0", "npu 2"], "rate": "100Gbps", "delay": "3us", "matchings": [[[0, 1]]]},
    )
    program = pairs_program([1, -1, -1, 2], packets * MTU)
    results = simulate(graph, program, faults=faults, cut_through=True, **WIDE)
    assert results.flows["finish_ps"].tolist() == [packets * wire_ps(100) + delay + 2 * SEEN_PS] * 2


def test_servers_whose_nics_are_at_an_optical_switch():
    """Rails without spines: a rotor joins each two NICs of 16; names of NPUs and of their leaves are the same."""
    spec = "rail-optimised:npus=16,gpus_per_host=8,hosts_per_rail_leaf=1,spines=0,rate=100Gbps"
    found = []
    for ports in ("npu", "leaf", [*range(16)]):
        graph, faults = optical_fabric(spec, ROTOR | HELD | {"ports": ports, "offset": "50us"})
        found.append(simulate(graph, collective_program("all-reduce", 16, 1 << 18), faults=faults, **WIDE))
    assert len({(each.digest, each.finish_time_ps) for each in found}) == 1
    # NPUs 7 and 8, and 15 and 0, where the ring goes from server to server, are joined in the first slot alone
    assert 55 * US < found[0].finish_time_ps < 100 * US


@pytest.mark.parametrize(
    ("spec", "ports", "text"),
    [
        (
            "leaf-spine:leaves=2,hosts_per_leaf=2,spines=1",
            "npu",
            "npu 0 at leaf 0, with other NPUs; expected NPUs each",
        ),
        ("multi-plane:npus=4,planes=2,nics_per_leaf=1,spines=1", ["npu 1", "npu 2"], "npu 1 at leaf 1 and leaf 5"),
        ("leaf-spine:leaves=2,hosts_per_leaf=1,spines=1", ["npu 0", "npu 2"], "npu 2"),
    ],
)
def test_npus_that_share_leaves_have_no_circuits_of_their_own(spec, ports, text):
    with pytest.raises(ConfigError, match=text):
        optical_fabric(spec, {"ports": ports, "rate": "100Gbps", "matchings": [[[0, 1]]]})


def _torus(sizes):
    """The cables of a torus, as pairs of its nodes; of a dimension of two, both of them."""
    nodes = np.arange(np.prod(sizes)).reshape(sizes[::-1])
    return [
        (int(a), int(b))
        for axis in range(len(sizes))
        for a, b in zip(nodes.reshape(-1), np.roll(nodes, -1, axis=axis).reshape(-1), strict=True)
    ]


def _switches(count, cables):
    """A fabric of so many switches, each with an NPU, and cables between them."""
    builder = GraphBuilder("switches", count)
    switch = builder.add_switches("chip", count)
    builder.add_cables(np.arange(count), switch, 10**11, US)
    a, b = np.array(cables).T
    builder.add_cables(switch[a], switch[b], 10**11, US)
    return builder.graph(in_parts=True)
