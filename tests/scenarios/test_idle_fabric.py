"""Schedules played on an idle fabric: beside closed forms by hand, and beside the simulator."""

import contextlib
import itertools
from functools import cache

import numpy as np
import pytest

import topologies
from nadi.simulation.closed_forms import collective as forms
from nadi.simulation.closed_forms.lone_message import Hop, train
from nadi.simulation.closed_forms.playing import idle_fabric
from nadi.simulation.closed_forms.playing import played as played_module
from nadi.simulation.closed_forms.playing.idle_fabric import PreparedSchedule
from nadi.simulation.closed_forms.playing.idle_paths import (
    IdleFabric,
    Path,
    PathTimes,
    fabric_of,
    packet_times,
    with_port_ties,
)
from nadi.simulation.closed_forms.playing.state import MessageEnds
from nadi.simulation.wiring.in_network import with_reducers
from pdes import Settings, build_world, run
from pdes.kernels import row_of
from pdes.messages.fidelity import fidelity
from pdes.network.balancing import balancing
from tests.plain_python import plain_python
from tests.samples import each_value
from tests.scenarios import closed_forms
from tests.scenarios.closed_forms import ROCE, bits_ps, steps_ps, train_ps
from tests.scenarios.running import simulate
from workload import WorkloadError, closed_form, collective_program, collectives, uneven_program
from workload.collectives.plans.plan import NONE, Lane, each_its_own
from workload.collectives.schedules.packed import pack
from workload.collectives.schedules.sends import pairs
from workload.kinds import KINDS

MIB = 1 << 20
PRECISION = 1e-2
BY_HAND = 1e-3
G400 = 400 * 10**9
TREE = "double-binary-tree"
SWITCH = "switch:npus={},switch_latency=300ns"
LEAVES = "leaf-spine:leaves=2,spines=1,hosts_per_leaf=1"
SPINES = "leaf-spine:leaves=2,spines=4,hosts_per_leaf=1"
BY_SWITCH = closed_forms.Hop(2, 1_300_000)
HOST = "nvlink_rate=2400Gbps,nvlink_delay=20ns"
HOSTS = {
    1: f"rail-optimised:npus=8,gpus_per_host=8,{HOST}",
    2: f"rail-optimised:npus=16,gpus_per_host=8,rate=200Gbps,delay=500ns,{HOST}",
    8: f"rail-optimised:npus=64,gpus_per_host=8,rate=200Gbps,delay=500ns,{HOST}",
}
WHOLE_MESSAGES = ("congestion_aware", "congestion_unaware")
"""Names of the message-level models."""
ENDS = {
    "delays": {"endpoint_delay_ps": 7000, "send_latency_ps": 90_000, "reduction_bandwidth_bps": 8e12 / 3.3},
    "acknowledged": {"acknowledged": True},
}
PROTOCOLS = ["ll", "ll128", "simple"]


@cache
def built(spec):
    """The graph, which nobody changes."""
    return topologies.build(spec)


def above_ps(graph, program, kind, algorithm, **settings):
    """What the simulator takes more than the closed form."""
    form = forms.closed_form(
        graph,
        program,
        Settings(**settings),
        kind=kind,
        algorithm=algorithm,
        schedule=0,
        members=np.arange(graph.npus),
        size_bytes=int(program.node_bytes[0]),
    )
    return simulate(graph, program, **settings).finish_time_ps - form.time_ps


def above_of_ps(spec, kind, algorithm, size, **settings):
    graph = built(spec)
    return above_ps(graph, collective_program(kind, graph.npus, size, algorithm, graph), kind, algorithm, **settings)


def two_members(way, back, mtu_bytes, window_packets, times):
    """A fabric of two members with ports of their own."""
    paths = {(0, 1): Path(0, 1, way), (1, 0): Path(2, 3, back)}
    links = {(0, 1): (0, 0, 1), (1, 0): (2, 0, 3)}
    ends = row_of(MessageEnds)
    return IdleFabric(paths, links, mtu_bytes, window_packets, seed=1, times=times, moved_ps=None, ends=ends)


def played(spec, kind, algorithm, size, **settings):
    """What the steps take when they are played, also where tables have a formula."""
    graph = built(spec)
    program, chosen = collective_program(kind, graph.npus, size, algorithm, graph), Settings(**settings)
    fabric = fabric_of(graph, chosen, list(range(graph.npus)), pairs(program.schedules, 0, 10**6))
    return PreparedSchedule(program.schedules, 0, size, fabric).time_ps()


@pytest.mark.parametrize("message", [64, 16 * 4096, 100 * 4096])
@pytest.mark.parametrize("npus", [2, 5, 8])
@pytest.mark.parametrize(("kind", "rounds"), [("all-reduce", 2), ("all-gather", 1)])
def test_a_ring_on_a_switch_is_its_closed_form(kind, rounds, npus, message):
    expected_ps = steps_ps(rounds * (npus - 1), message, BY_SWITCH, G400)
    assert played(SWITCH.format(npus), kind, "ring", npus * message) == pytest.approx(expected_ps, rel=BY_HAND)


@pytest.mark.parametrize("message", [64, 100 * 4096])
@pytest.mark.parametrize("npus", [3, 8])
def test_a_ring_of_links_is_its_closed_form(npus, message):
    """Of two ports each; acknowledgements go the other way, by the port that sends no data."""
    expected_ps = steps_ps(2 * (npus - 1), message, closed_forms.Hop(1, 500_000), G400, shared=False)
    assert played(f"ring:npus={npus}", "all-reduce", "ring", npus * message) == pytest.approx(expected_ps, rel=BY_HAND)


@pytest.mark.parametrize("message", [64, 64 * 4096])
@pytest.mark.parametrize("npus", [2, 5, 8])
def test_direct_on_a_switch_is_its_closed_form(npus, message):
    """Messages to all others take turns at the port: one step of n - 1 messages."""
    expected_ps = steps_ps(1, message, BY_SWITCH, G400, messages=npus - 1)
    assert played(SWITCH.format(npus), "all-to-all", "direct", npus * message) == pytest.approx(
        expected_ps, rel=BY_HAND
    )


@pytest.mark.parametrize("packets", [1, 64])
@pytest.mark.parametrize("rounds", [1, 3])
def test_binomial_on_a_switch_is_a_message_after_another(rounds, packets):
    expected_ps = rounds * train_ps(packets * 4096, [G400] * 2, BY_SWITCH.fixed_ps)
    expected_ps += (rounds - 1) * bits_ps(ROCE.ack, G400)
    found_ps = played(SWITCH.format(1 << rounds), "reduce", "binomial", packets * 4096)
    assert found_ps == pytest.approx(expected_ps, rel=BY_HAND)


@pytest.mark.parametrize("rates", [(100, 50, 100), (50, 100, 100), (100, 100, 50), (100, 50, 50, 100)])
@pytest.mark.parametrize("packets", [1, 2, 40])
def test_a_message_over_unlike_links(packets, rates):
    """Alone, wherever the slow link is, its packets follow each other as on that link."""
    size = packets * 4096 - 1000
    plans = each_its_own(1, [[Lane().step(send_to=1)], [Lane().step(receive_from=0)]])
    way = tuple(Hop(8000 / rate, False, 500_000, 300_000 * (i > 0)) for i, rate in enumerate(rates))
    fabric = two_members(way, way[::-1], 4096, 1000, lambda hops, payload: packet_times(hops, payload, Settings()))
    fixed_ps = 500_000 * len(rates) + 300_000 * (len(rates) - 1)
    expected_ps = train_ps(size, [rate * 10**9 for rate in rates], fixed_ps)
    assert PreparedSchedule(pack([plans]), 0, size, fabric).time_ps() == pytest.approx(expected_ps, rel=1e-6)


@pytest.mark.parametrize("shares", [2, 24])
def test_a_share_by_hand(shares):
    """Three messages at 1 / shares: their bytes in turn, and the last packet over both links."""
    size, senders, receivers = 10 * 4096 + 3000, Lane(shares=shares), Lane()
    for _ in range(3):
        senders.step(send_to=1)
        receivers.step(receive_from=0)
    graph = topologies.build("switch:npus=2,rate=100Gbps,delay=500ns")
    fabric = fabric_of(graph, Settings(), [0, 1], [(0, 1)])
    found_ps = PreparedSchedule(pack([each_its_own(1, [[senders], [receivers]])]), 0, size, fabric).time_ps()
    psb = shares * 80 * 4178 / 4096
    message_ps = 10 * 4096 * psb + int(3000 * psb + 0.5)
    assert found_ps == 3 * message_ps + 2 * (3000 + 82) * 80 + 1_000_000


def test_waits_of_lanes_and_launch_are_played():
    """One message from 0 to 1, by hand: launch, then the lane's latency, then a packet over two links."""
    lanes = [[Lane(latency_ps=7).step(send_to=1)], [Lane().step(receive_from=0)]]
    plans = each_its_own(1, lanes, launch_ps=5)

    def times(_hops, payload):
        one = 10 + 2 * max(0, payload)
        return PathTimes(one, one + 60, one, one + 60, 40, one)

    fabric = two_members((), (), 1000, 8, times)
    assert PreparedSchedule(pack([plans]), 0, 300, fabric).time_ps() == 5 + 7 + 2 * (10 + 600) + 100
    full, last = 10 + 2000, 10 + 600
    assert PreparedSchedule(pack([plans]), 0, 2300, fabric).time_ps() == 5 + 7 + (2 * full + last) + full + 100


@pytest.mark.parametrize("packets", [1, 2, 5])
def test_a_window_holds_a_queue_pair_back(packets):
    """One packet at a time: each waits for the acknowledgement of the one before."""
    graph = topologies.build("switch:npus=2,rate=100Gbps,delay=500ns")
    plans = each_its_own(1, [[Lane().step(send_to=1)], [Lane().step(receive_from=0)]])
    fabric = fabric_of(graph, Settings(), [0, 1], [(0, 1)])._replace(window_packets=1)
    one_way, back = 2 * 4178 * 80 + 1_000_000, 2 * 86 * 80 + 1_000_000
    found_ps = PreparedSchedule(pack([plans]), 0, packets * 4096, fabric).time_ps()
    assert found_ps == packets * one_way + (packets - 1) * back


PLAYED = """
from tests.scenarios.test_idle_fabric import HOSTS, SWITCH, played
print(played(HOSTS[1], "all-reduce", "nccl", 1 << 14), played(HOSTS[2], "all-to-all", "nccl", 30_003, seed=5))
print(played(SWITCH.format(5), "all-reduce", "double-binary-tree", 30_003))
print(played("torus:sizes=3x3", "all-reduce", "grid", 5000))
"""


def test_plain_python_plays_the_same(capsys):
    exec(PLAYED)  # noqa: S102 - the same lines here and there
    assert plain_python("-c", PLAYED) == capsys.readouterr().out


def test_members_that_stand_alike_have_equal_fabrics():
    graph = topologies.build(HOSTS[8])
    pairs = [(0, 1), (1, 2), (2, 0)]
    first, second, other = (
        fabric_of(graph, Settings(), npus, pairs).paths for npus in ([0, 1, 8], [16, 17, 24], [0, 1, 2])
    )
    assert first == second
    assert first != other
    assert first[1, 2].first != first[1, 0].first, "the NIC and NVLink"
    assert first[0, 1].last != NONE
    first, second = (
        with_port_ties(fabric_of(graph, Settings(), npus, pairs)).links for npus in ([0, 1, 8], [16, 17, 24])
    )
    assert first == second


@pytest.mark.parametrize("name", ["congestion_aware", "congestion_unaware"])
def test_messages_that_go_whole(name):
    """Played alone, a message takes what its model says."""
    graph, model = topologies.build(SWITCH.format(2)), fidelity(name)
    plans = each_its_own(1, [[Lane().step(send_to=1)], [Lane().step(receive_from=0)]])
    chosen = Settings(fidelity=model)
    found_ps = PreparedSchedule(pack([plans]), 0, MIB, fabric_of(graph, chosen, [0, 1], [(0, 1)])).time_ps()
    assert found_ps == train(graph, topologies.route(graph, 0, 1), MIB, chosen).total_ps


OF_HOSTS = {"nvls-sharp", "nvls-tree"}
ALGORITHMS = [
    *((kind, name) for kind in KINDS for name in collectives.algorithms_of(kind) if name not in OF_HOSTS),
    *(("all-reduce", f"ring:{choice}") for choice in ("channels=3", "bidirectional=true")),
    ("all-reduce", "grid:algorithms=ring:bidirectional=true,splits=4"),
    ("all-to-all", "direct:window=2"),
    ("all-reduce", f"{TREE}:chunks=1"),
    ("all-reduce", f"{TREE}:chunks=32"),
]


@pytest.mark.parametrize(("kind", "algorithm"), ALGORITHMS)
def test_every_algorithm_on_a_switch(kind, algorithm):
    """To the picosecond, with 2 to 17 members, one packet in a message, and of some many."""
    played = 0
    for npus in (2, 3, 4, 7, 8, 16, 17):
        for size in (1000, 300_001) if npus in {3, 8} else (1000,):
            with contextlib.suppress(WorkloadError):
                assert above_of_ps(SWITCH.format(npus), kind, algorithm, size) == 0, (npus, size)
                played += 1
    assert played > 4, "most do with any number of members"


@pytest.mark.parametrize(
    ("spec", "kind", "algorithm"),
    [
        *((f"fully-connected:npus={npus}", kind, "direct") for npus in (3, 8) for kind in ("all-reduce", "all-to-all")),
        *((f"ring:npus={npus}", "all-reduce", "ring:bidirectional=true") for npus in (3, 8)),
        *(("torus:sizes=3x4", kind, "grid") for kind in ("all-reduce", "all-gather", "reduce-scatter")),
        ("torus:sizes=4x4", "all-reduce", "grid:algorithms=ring:bidirectional=true,splits=8,order=themis"),
        (HOSTS[2], "all-reduce", "hierarchical"),
    ],
)
def test_members_with_several_ports(spec, kind, algorithm):
    assert above_of_ps(spec, kind, algorithm, 3 * MIB + 77) == 0


@pytest.mark.parametrize("spec", [LEAVES, "fat-tree:k=2"])
@pytest.mark.parametrize(("kind", "size"), [("broadcast", MIB), ("broadcast", 16 * MIB), ("all-reduce", 1000)])
def test_two_members_over_spines(spec, kind, size):
    assert above_of_ps(spec, kind, "direct", size) == 0


@pytest.mark.parametrize("algorithm", ["direct", TREE])
@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        (LEAVES, {}),
        ("fat-tree:k=2", {}),
        (f"{LEAVES},uplink_rate=800Gbps", {}),
        (LEAVES, {"cut_through": True}),
        (LEAVES, {"mtu_bytes": 1000, "window_bytes": 16 * MIB}),
        (SPINES, {"load_balancing": balancing("static")}),
        (SPINES, {"load_balancing": balancing("rail")}),
    ],
)
def test_acknowledgements_wait_behind_data_over_spines(spec, settings, algorithm):
    """Both ways at once, with windows as long as the way there and back: up to 3.6 % of the time."""
    assert above_of_ps(spec, "all-reduce", algorithm, 3 * MIB + 77, **settings) == 0


def test_three_members_over_several_spines():
    """Each of two messages at a time has acknowledgements in its way."""
    static = {"load_balancing": balancing("static")}
    spec = "leaf-spine:leaves=3,spines=4,hosts_per_leaf=1"
    assert above_of_ps(spec, "all-to-all", "direct", 3 * MIB, **static) == 0


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("leaf-spine:leaves=8,spines=1,hosts_per_leaf=1", {}),
        ("leaf-spine:leaves=5,spines=1,hosts_per_leaf=1,uplink_rate=800Gbps", {}),
        ("leaf-spine:leaves=5,spines=1,hosts_per_leaf=1", {"cut_through": True}),
        ("leaf-spine:leaves=6,spines=4,hosts_per_leaf=1", {"load_balancing": balancing("static")}),
        ("fat-tree:k=2", {}),
    ],
)
def test_what_comes_to_a_member_meets_before_its_leaf(spec, settings):
    """Trees whose messages wait for each other: up to 1 % of the time if the leaf told the order."""
    assert above_of_ps(spec, "all-reduce", TREE, MIB, **settings) == 0


@pytest.mark.parametrize("seed", range(1, 7))
def test_acknowledgements_that_hashes_send_over_another_spine_wait_for_nothing(seed):
    """With ECMP their queue pairs' entropy tells; where it leads both over one spine, they share links."""
    above = above_of_ps(SPINES, "all-to-all", "direct", 16 * MIB, seed=seed) / played(
        SPINES, "all-to-all", "direct", 16 * MIB, seed=seed
    )
    assert above == 0 if seed in {1, 2} else 0 < above < 0.007


@pytest.mark.parametrize("name", ["packet", "congestion_aware"])
def test_a_short_message_stays_behind_a_long_one(name):
    """By hand: seven chunks over four links, and one behind them over the last."""
    lanes = [[Lane().step(send_to=1, send_count=7).step(send_to=1, send=7)], [Lane()]]
    lanes[1][0].step(receive_from=0, receive_count=7).step(receive_from=0, receive=7)
    graph = topologies.build(f"{LEAVES},rate=100Gbps,delay=500ns")
    fabric = fabric_of(graph, Settings(fidelity=fidelity(name)), [0, 1], [(0, 1)])
    header = 82 if name == "packet" else 0
    expected_ps = 80 * (4 * (3500 + header) + 500 + header) + 4 * 500_000
    assert PreparedSchedule(pack([each_its_own(8, lanes)]), 0, 4000, fabric).time_ps() == expected_ps


def test_a_whole_message_that_leaves_later_is_passed():
    """By hand: at half the rate the long one comes to the first switch when the short one has left it."""
    lanes = [
        [Lane(shares=2).step(send_to=1, send_count=7), Lane(connection=1).step(send_to=1, to_lane=1, send=7)],
        [Lane().step(receive_from=0, receive_count=7), Lane(connection=1).step(receive_from=0, receive=7)],
    ]
    graph = topologies.build(f"{LEAVES},rate=100Gbps,delay=500ns")
    fabric = fabric_of(graph, Settings(fidelity=fidelity("congestion_aware")), [0, 1], [(0, 1)])
    expected_ps = 80 * (2 + 3) * 3500 + 4 * 500_000
    assert PreparedSchedule(pack([each_its_own(8, lanes)]), 0, 4000, fabric).time_ps() == expected_ps


@pytest.mark.parametrize(
    ("ends", "kind", "algorithm"), [(ends, *case) for ends, case in each_value(itertools.product(ENDS, ALGORITHMS))]
)
def test_every_algorithm_with_what_passes_at_the_ends_of_messages(ends, kind, algorithm):
    assert above_of_ps(SWITCH.format(6), kind, algorithm, 300_001, fidelity=fidelity("packet", **ENDS[ends])) == 0


@pytest.mark.parametrize(
    ("name", "kind", "algorithm"),
    [(name, *case) for name, case in each_value(itertools.product(WHOLE_MESSAGES, ALGORITHMS))],
)
def test_every_algorithm_with_messages_that_go_whole(name, kind, algorithm):
    own = {"endpoint_delay_ps": 7, "reduction_bandwidth_bps": 8e12 / 3.3, "resolution_ps": 10}
    graph, chosen = built(SWITCH.format(6)), Settings(fidelity=fidelity(name, **own))
    size = 300_001
    program = collective_program(kind, graph.npus, size, algorithm, graph)
    form = forms.closed_form(
        graph,
        program,
        chosen,
        kind=kind,
        algorithm=algorithm,
        schedule=0,
        members=np.arange(graph.npus),
        size_bytes=int(program.node_bytes[0]),
    )
    assert form.is_played
    complete, reducing, _ = with_reducers(graph, program)
    taken_ps = run(build_world(complete, reducing, chosen)).finish_time_ps
    above_ps = taken_ps - form.time_ps
    if (name, kind, algorithm) == ("congestion_aware", "all-reduce", "nvls"):
        assert above_ps > 0, "an aggregator's messages go as they are posted; in the player connections take turns"
    else:
        assert above_ps == 0


@pytest.mark.parametrize("name", ["congestion_aware", "congestion_unaware"])
@pytest.mark.parametrize(("hosts", "kind"), [(1, "all-reduce"), (1, "broadcast"), (2, "all-reduce")])
def test_nccl_with_messages_that_go_whole(name, hosts, kind):
    graph, chosen = built(HOSTS[hosts]), Settings(fidelity=fidelity(name))
    program = collective_program(kind, graph.npus, 4 * MIB, "nccl", graph)
    fabric = fabric_of(graph, chosen, list(range(graph.npus)), pairs(program.schedules, 0, 10**6))
    taken_ps = run(build_world(graph, program, chosen)).finish_time_ps
    assert taken_ps == PreparedSchedule(program.schedules, 0, 4 * MIB, fabric).time_ps()


@pytest.mark.parametrize("size", [1 << 20, 1 << 23])
@pytest.mark.parametrize("npus", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("kind", ["broadcast", "reduce", "all-reduce"])
def test_two_trees(kind, npus, size):
    assert above_of_ps(SWITCH.format(npus), kind, TREE, size) == 0


def test_the_formula_of_two_trees_is_a_bound_and_no_more():
    """Why they are played."""
    graph = topologies.build(SWITCH.format(8))
    program = collective_program("all-reduce", 8, 1 << 23, TREE)
    bound_ps = closed_form("all-reduce", TREE, 8, 1 << 23, 1.3e6, 50e9)
    assert simulate(graph, program).finish_time_ps > 1.15 * bound_ps


@pytest.mark.parametrize("unit", [64, 16384])
@pytest.mark.parametrize("algorithm", ["direct", "pairwise", "hierarchical"])
@pytest.mark.parametrize("network", [SWITCH.format(6), "ring:npus=2"])
def test_uneven_all_to_alls(network, algorithm, unit):
    graph = topologies.build(network)
    matrix = np.random.default_rng(2).integers(0, 33, (graph.npus, graph.npus)) * unit
    program = uneven_program(matrix, algorithm, graph)
    assert above_ps(graph, program, "all-to-all", "direct") == 0


@pytest.mark.parametrize(
    ("spec", "kind", "algorithm", "size", "together"),
    [
        (SWITCH.format(5), "all-reduce", TREE, 16 * MIB, 2),
        (SWITCH.format(6), "all-to-all", "direct", 48 * MIB, 2),
        (SWITCH.format(8), "all-reduce", "halving-doubling", 48 * MIB, 2),
        ("torus:sizes=4x4,rate=62GB/s", "all-reduce", "grid:algorithms=ring:bidirectional=true,splits=2", 48 * MIB, 4),
        (HOSTS[2], "all-to-all", "nccl", 128 * MIB, 21),
    ],
)
def test_packets_of_long_messages_that_go_together(monkeypatch, spec, kind, algorithm, size, together):
    graph = topologies.build(spec)
    program, chosen = collective_program(kind, graph.npus, size, algorithm, graph), Settings()
    fabric = fabric_of(graph, chosen, list(range(graph.npus)), pairs(program.schedules, 0, 10**6))
    each = PreparedSchedule(program.schedules, 0, size, fabric)
    monkeypatch.setattr("nadi.simulation.closed_forms.playing.idle_fabric._BATCH_ABOVE_PACKETS", 1024)
    monkeypatch.setattr("nadi.simulation.closed_forms.playing.idle_fabric._MIN_PIECES_PER_MESSAGE", 64)
    some = PreparedSchedule(program.schedules, 0, size, fabric)
    assert each.packets / some.packets == pytest.approx(together, rel=PRECISION)
    assert some.time_ps() == pytest.approx(each.time_ps(), rel=PRECISION)


def test_packets_do_not_go_together_where_windows_are_small(monkeypatch):
    """A window that holds a few pieces would hold back what one of as many packets does not."""
    monkeypatch.setattr("nadi.simulation.closed_forms.playing.idle_fabric._BATCH_ABOVE_PACKETS", 1)
    assert idle_fabric.packets_per_batch(10**9, 10, 31) == 1
    assert idle_fabric.packets_per_batch(10**9, 10, 64) == 4


def test_packets_of_short_messages_do_not_go_together(monkeypatch):
    monkeypatch.setattr("nadi.simulation.closed_forms.playing.idle_fabric._BATCH_ABOVE_PACKETS", 1)
    graph = topologies.build(SWITCH.format(4))
    program = collective_program("all-reduce", 4, MIB, "ring")
    fabric = fabric_of(graph, Settings(), list(range(4)), pairs(program.schedules, 0, 10**6))
    assert PreparedSchedule(program.schedules, 0, MIB, fabric).packets == 4 * 6 * 64


def test_room_grows_while_it_is_played(monkeypatch):
    """The same, whether there is room from the start or not, and with pauses."""
    graph = topologies.build(SWITCH.format(6))
    program = collective_program("all-to-all", 6, 3 * MIB, "direct")
    fabric = fabric_of(graph, Settings(), list(range(6)), pairs(program.schedules, 0, 10**6))
    at_once_ps = PreparedSchedule(program.schedules, 0, 3 * MIB, fabric).time_ps()
    grown = []
    more = idle_fabric._with_more_room
    monkeypatch.setattr(idle_fabric, "_with_more_room", lambda state: grown.append(1) or more(state))
    monkeypatch.setattr(idle_fabric, "_PAUSE_PACKETS", 7)
    play = PreparedSchedule(program.schedules, 0, 3 * MIB, fabric)
    state = play._state()
    room = int(state.ctl.room)
    ports = state.ports._replace(ack_pair=state.ports.ack_pair[:1].copy(), next_ack=np.array([NONE]))
    small = state._replace(
        ports=ports,
        time_ps=state.time_ps[:room].copy(),
        event=state.event[:room].copy(),
    )
    monkeypatch.setattr(play, "_state", lambda: small)
    assert play.time_ps() == at_once_ps
    assert len(grown) > 1


@pytest.mark.parametrize("proto", PROTOCOLS)
@pytest.mark.parametrize(("hosts", "size"), [(1, MIB), (1, 16 * MIB), (2, MIB), (2, 16 * MIB), (8, MIB), (8, 4 * MIB)])
def test_trees_of_nccl(hosts, size, proto):
    algorithm = f"nccl:algo=tree,proto={proto}"
    assert above_of_ps(HOSTS[hosts], "all-reduce", algorithm, size, nvlink_framing=True) == 0


@pytest.mark.parametrize("size", [MIB, 2 * MIB, 8 * MIB, 16 * MIB])
@pytest.mark.parametrize("proto", PROTOCOLS)
@pytest.mark.parametrize("hosts", [1, 2])
def test_rings_of_nccl(hosts, proto, size):
    algorithm = f"nccl:algo=ring,proto={proto}"
    assert above_of_ps(HOSTS[hosts], "all-reduce", algorithm, size, nvlink_framing=True) == 0


@pytest.mark.parametrize("pacing", ["planned", "none"])
@pytest.mark.parametrize(("hosts", "proto", "size"), [(1, "simple", 128), (2, "simple", 64), (2, "ll128", 256)])
def test_large_rings_of_nccl(hosts, proto, size, pacing):
    algorithm = f"nccl:algo=ring,proto={proto},pacing={pacing}"
    assert above_of_ps(HOSTS[hosts], "all-reduce", algorithm, size * MIB, nvlink_framing=True) == 0


@pytest.mark.parametrize("framing", [True, False])
@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all"])
@pytest.mark.parametrize(("hosts", "size"), [(1, 4 * MIB), (2, 4 * MIB), (8, MIB)])
def test_other_kinds_of_nccl(hosts, size, kind, framing):
    """Of several hosts all-to-alls are PXN's."""
    assert above_of_ps(HOSTS[hosts], kind, "nccl", size, nvlink_framing=framing) == 0


@pytest.mark.parametrize("size", [MIB, 4 * MIB])
@pytest.mark.parametrize("hosts", [2, 4, 8])
@pytest.mark.parametrize("algorithm", sorted(OF_HOSTS))
def test_trees_between_switches_that_reduce(algorithm, hosts, size):
    """All hosts on one leaf for each rail; aggregators have ports of their own."""
    spec = f"rail-optimised:npus={4 * hosts},gpus_per_host=4,hosts_per_rail_leaf=8,spines=1"
    assert above_of_ps(spec, "all-reduce", algorithm, size) == 0


@pytest.mark.parametrize("algorithm", sorted(OF_HOSTS))
def test_a_lane_that_posts_all_its_messages_at_once(algorithm):
    """Each waits for the latency in the heap of events, which must have room for all of them."""
    spec = "rail-optimised:npus=16,gpus_per_host=8,hosts_per_rail_leaf=8,spines=1"
    ends = fidelity("packet", send_latency_ps=1_000_000)
    assert above_of_ps(spec, "all-reduce", f"{algorithm}:chunks=256", MIB, fidelity=ends) == 0


@pytest.mark.parametrize(
    "limit", ["_MAX_MESSAGES_OF_ESTIMATES", "_MAX_PAIRS", "_MAX_HOPS", "_MAX_PACKETS_OF_ESTIMATES"]
)
def test_what_is_too_large_gets_its_formula(monkeypatch, limit):
    algorithm = "nccl:algo=tree"
    graph = topologies.build(HOSTS[2])
    program = collective_program("all-reduce", 16, MIB, algorithm, graph)
    assert above_ps(graph, program, "all-reduce", algorithm, nvlink_framing=True) == 0
    monkeypatch.setattr(played_module, limit, 10)
    above = above_ps(graph, program, "all-reduce", algorithm, nvlink_framing=True)
    assert above != 0
    assert above == pytest.approx(0, abs=0.2 * simulate(graph, program, nvlink_framing=True).finish_time_ps)


def test_an_exact_formula_stands_in_sooner(monkeypatch):
    algorithm = "recursive-doubling"
    assert above_of_ps(SWITCH.format(7), "all-reduce", algorithm, MIB) == 0
    monkeypatch.setattr(played_module, "_MAX_PACKETS", 10)
    assert above_of_ps(SWITCH.format(7), "all-reduce", algorithm, MIB) > 0


def test_who_has_no_exact_form():
    inexact = {name for name in collectives.known_algorithms() if not collectives.AlgorithmChoice(name, ()).is_exact}
    assert inexact == {TREE, "nccl", "nvls-tree"}
