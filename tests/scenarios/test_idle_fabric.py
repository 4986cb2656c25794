"""Schedules played on an idle fabric: beside closed forms by hand, and beside runs of the whole fabric."""

import contextlib
import itertools
from functools import cache

import numpy as np
import pytest

from nadi import topologies
from nadi.pdes import Settings, build_world, run
from nadi.pdes.fidelity import fidelity
from nadi.pdes.network.balancing import balancing
from nadi.simulation.assembly import engine_inputs
from nadi.simulation.closed_forms import collective as forms, isolated as played_module
from nadi.simulation.closed_forms.lone_message import train
from nadi.workload import WorkloadError, closed_form, collective_program, collectives, uneven_program
from nadi.workload.collectives.plans.plan import Lane, each_its_own
from nadi.workload.collectives.schedules.packed import ScheduleSet, pack
from nadi.workload.collectives.schedules.sends import pairs
from nadi.workload.kinds import KINDS
from nadi.workload.shape import shape_of
from tests.closed_forms import form_of_all
from tests.samples import each_value, sampled
from tests.scenarios import closed_forms
from tests.scenarios.running import simulate

MIB = 1 << 20
BY_HAND = 1e-3
G100, G400 = 100 * 10**9, 400 * 10**9
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
OF_EIGHT_HOSTS = {1: range(24, 32), 2: [*range(8, 16), *range(40, 48)]}
"""NPUs of HOSTS[8] that are like all of HOSTS[1] and of HOSTS[2]."""
WHOLE_MESSAGES = ("congestion_aware", "congestion_unaware")
"""Names of the message-level models."""
ENDS = {
    "delays": {"endpoint_delay_ps": 7000, "send_latency_ps": 90_000, "reduction_bandwidth_bps": 8e12 / 3.3},
    "acknowledged": {"acknowledged": True},
}


@cache
def built(spec):
    return topologies.build(spec)


def form_of(graph, members, kind, algorithm, size, settings=None):
    chosen, members = collectives.choose(kind, algorithm), np.array(members)
    schedules = ScheduleSet()
    shape = shape_of(graph, members, trees=chosen.trees) if chosen.needs_shape else None
    number = schedules.add(kind, algorithm, len(members), shape, size)
    program = collective_program("barrier", graph.npus, 0)._replace(schedules=schedules.pack())
    return forms.closed_form(graph, program, settings or Settings(), kind, algorithm, number, members, size)


def above_ps(graph, program, kind, algorithm, **settings):
    """What the simulator takes more than the closed form, for a collective of all NPUs."""
    form = form_of_all(graph, program, kind, algorithm, Settings(**settings))
    return simulate(graph, program, **settings).finish_time_ps - form.time_ps


def above_of_ps(spec, kind, algorithm, size, **settings):
    graph = built(spec)
    return above_ps(graph, collective_program(kind, graph.npus, size, algorithm, graph), kind, algorithm, **settings)


def within_ps(whole, members, spec, kind, algorithm, size, **settings):
    """What the simulator takes more on a fabric of their own than the closed form of some members of a larger one."""
    graph, size = built(spec), size * (kind != "barrier")
    program = collective_program(kind, graph.npus, size, algorithm, graph)
    form = form_of(built(whole), members, kind, algorithm, size, Settings(**settings))
    assert form.is_simulated
    complete, reducing, _ = engine_inputs(graph, program)
    return run(build_world(complete, reducing, Settings(**settings))).finish_time_ps - form.time_ps


def played(spec, kind, algorithm, size, **settings):
    """What the steps take when they are played."""
    graph = built(spec)
    form = form_of(graph, range(graph.npus), kind, algorithm, size, Settings(**settings))
    assert form.is_simulated
    return form.time_ps


def plans_ps(graph, chunks, lanes, size, *, launch_ps=0, **settings):
    """What plans take that send from member 0 to 1, from 1 to 2 and so on."""
    schedules = pack([each_its_own(chunks, lanes, launch_ps=launch_ps)])
    fabric = played_module.idle_fabric(graph, Settings(**settings), list(range(len(lanes))), pairs(schedules, 0, 100))
    return fabric.time_ps(schedules, 0, size)


ONE_MESSAGE = [[Lane().step(send_to=1)], [Lane().step(receive_from=0)]]


@pytest.mark.parametrize("spec", ["slim-fly:q=7,p=1", "hyperx:sizes=8x8,p=1"])
def test_a_ring_over_more_switches_than_a_path_may_have_is_played(spec):
    """The links of its routes form a circle of as many switches as NPUs, each a group, without the shorter ways."""
    assert above_of_ps(spec, "all-reduce", "ring", 8 * 65536) == 0


@pytest.mark.parametrize("message", [64, 16 * 4096, 100 * 4096])
@pytest.mark.parametrize("npus", [2, 5, 8])
@pytest.mark.parametrize(("kind", "rounds"), [("all-reduce", 2), ("all-gather", 1)])
def test_a_ring_on_a_switch_is_its_closed_form(kind, rounds, npus, message):
    expected_ps = closed_forms.steps_ps(rounds * (npus - 1), message, BY_SWITCH, G400)
    assert played(SWITCH.format(npus), kind, "ring", npus * message) == pytest.approx(expected_ps, rel=BY_HAND)


@pytest.mark.parametrize("message", [64, 100 * 4096])
@pytest.mark.parametrize("npus", [3, 8])
def test_a_ring_of_links_is_its_closed_form(npus, message):
    """Of two ports each; acknowledgements go the other way, by the port that sends no data."""
    expected_ps = closed_forms.steps_ps(2 * (npus - 1), message, closed_forms.Hop(1, 500_000), G400, shared=False)
    assert played(f"ring:npus={npus}", "all-reduce", "ring", npus * message) == pytest.approx(expected_ps, rel=BY_HAND)


@pytest.mark.parametrize("message", [64, 64 * 4096])
@pytest.mark.parametrize("npus", [2, 5, 8])
def test_direct_on_a_switch_is_its_closed_form(npus, message):
    """Messages to all others take turns at the port: one step of n - 1 messages."""
    expected_ps = closed_forms.steps_ps(1, message, BY_SWITCH, G400, messages=npus - 1)
    assert played(SWITCH.format(npus), "all-to-all", "direct", npus * message) == pytest.approx(
        expected_ps, rel=BY_HAND
    )


@pytest.mark.parametrize("packets", [1, 64])
@pytest.mark.parametrize("rounds", [1, 3])
def test_binomial_on_a_switch_is_a_message_after_another(rounds, packets):
    expected_ps = rounds * closed_forms.train_ps(packets * 4096, [G400] * 2, BY_SWITCH.fixed_ps)
    expected_ps += (rounds - 1) * closed_forms.bits_ps(closed_forms.ROCE.ack, G400)
    found_ps = played(SWITCH.format(1 << rounds), "reduce", "binomial", packets * 4096)
    assert found_ps == pytest.approx(expected_ps, rel=BY_HAND)


@pytest.mark.parametrize("packets", [1, 2, 40])
@pytest.mark.parametrize("uplink", [25, 50, 200])
def test_a_message_over_unlike_links(packets, uplink):
    """Alone, wherever the slow link is, its packets follow each other as on that link."""
    graph = built(f"{LEAVES},rate=100Gbps,uplink_rate={uplink}Gbps,delay=500ns,switch_latency=300ns")
    size = packets * 4096 - 1000
    rates = [G100, uplink * 10**9, uplink * 10**9, G100]
    assert plans_ps(graph, 1, ONE_MESSAGE, size) == closed_forms.train_ps(size, rates, 4 * 500_000 + 3 * 300_000)


@pytest.mark.parametrize("shares", [2, 24])
def test_a_share_by_hand(shares):
    """Three messages at 1 / shares: their bytes in turn, and the last packet over both links."""
    size, senders, receivers = 10 * 4096 + 3000, Lane(shares=shares), Lane()
    for _ in range(3):
        senders.step(send_to=1)
        receivers.step(receive_from=0)
    graph = topologies.build("switch:npus=2,rate=100Gbps,delay=500ns")
    psb = shares * 80 * 4178 / 4096
    message_ps = 10 * 4096 * psb + int(3000 * psb + 0.5)
    expected_ps = 3 * message_ps + 2 * (3000 + 82) * 80 + 1_000_000
    assert plans_ps(graph, 1, [[senders], [receivers]], size) == expected_ps


def test_senders_share_copies_where_switches_choose_among_many_cables(monkeypatch):
    """Routers choose between two cables here, each of which is there three times: senders share four links of six."""
    graph, widest = built("twisted-torus:sizes=2x4"), []
    for most in (511, 5):
        monkeypatch.setattr(played_module, "MAX_SET", most)
        fabric = played_module.idle_fabric(graph, Settings(), list(range(8)), list(itertools.permutations(range(8), 2)))
        widest.append(int(np.diff(fabric.graph.routing.set_ptr).max()))
    assert widest == [6, 4]


def test_waits_of_lanes_and_launch_are_played():
    """One message from 0 to 1, by hand: launch, then the lane's latency, then a packet over two links."""
    lanes = [[Lane(latency_ps=7000).step(send_to=1)], [Lane().step(receive_from=0)]]
    graph = topologies.build("switch:npus=2,rate=100Gbps,delay=500ns")
    expected_ps = 5000 + 7000 + 2 * (300 + 82) * 80 + 1_000_000
    assert plans_ps(graph, 1, lanes, 300, launch_ps=5000) == expected_ps


@pytest.mark.parametrize("packets", [1, 2, 5])
def test_a_window_holds_a_queue_pair_back(packets):
    """One packet at a time: each waits for the acknowledgement of the one before."""
    graph = topologies.build("switch:npus=2,rate=100Gbps,delay=500ns")
    one_way, back = 2 * 4178 * 80 + 1_000_000, 2 * 86 * 80 + 1_000_000
    found_ps = plans_ps(graph, 1, ONE_MESSAGE, packets * 4096, window_bytes=4096)
    assert found_ps == packets * one_way + (packets - 1) * back


@pytest.mark.parametrize("name", WHOLE_MESSAGES)
def test_messages_that_go_whole(name):
    """Played alone, a message takes what its model says."""
    graph, model = topologies.build(SWITCH.format(2)), fidelity(name)
    found_ps = plans_ps(graph, 1, ONE_MESSAGE, MIB, fidelity=model)
    assert found_ps == train(graph, topologies.route(graph, 0, 1), MIB, Settings(fidelity=model)).total_ps


def across(senders, per_sender):
    """Lanes of messages from each of the first NPUs to `per_sender` others, which get one each."""
    receiver = itertools.count(senders)
    lanes = [[Lane().step(send_to=next(receiver), to_lane=0) for _ in range(per_sender)] for _ in range(senders)]
    return lanes + [[Lane().step(receive_from=sender)] for sender in range(senders) for _ in range(per_sender)]


@pytest.mark.parametrize("senders", [2, 4])
def test_senders_do_not_wait_for_each_other_between_switches(senders):
    """By hand: as many messages over one uplink as it has hosts take as long as one."""
    graph = built(f"leaf-spine:leaves=2,spines=1,hosts_per_leaf={senders},rate=100Gbps,delay=500ns")
    plans = pack([each_its_own(1, across(senders, 1))])
    fabric = played_module.idle_fabric(graph, Settings(), list(range(2 * senders)), pairs(plans, 0, 100))
    assert fabric.time_ps(plans, 0, MIB) == closed_forms.train_ps(MIB, [G100] * 4, 4 * 500_000)


def test_messages_of_one_sender_share_its_links():
    """By hand: two messages of a member take turns on an uplink of half its port's rate, packet by packet."""
    graph = built("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2,rate=100Gbps,uplink_rate=50Gbps,delay=500ns")
    plans = pack([each_its_own(1, across(1, 2))])
    fabric = played_module.idle_fabric(graph, Settings(), [0, 2, 3], pairs(plans, 0, 100))
    packet_ps = closed_forms.bits_ps(closed_forms.ROCE.full, G100)
    expected_ps = 2 * 256 * 2 * packet_ps + packet_ps + 2 * packet_ps + packet_ps + 4 * 500_000
    assert fabric.time_ps(plans, 0, MIB) == expected_ps


OF_HOSTS = {"nvls-sharp", "nvls-tree"}
ALGORITHMS = [
    *((kind, name) for kind in KINDS for name in collectives.algorithms_of(kind) if name not in OF_HOSTS),
    *(("all-reduce", f"ring:{choice}") for choice in ("channels=3", "bidirectional=true")),
    ("all-reduce", "grid:algorithms=ring:bidirectional=true,splits=4"),
    ("all-to-all", "direct:window=2"),
    ("all-reduce", f"{TREE}:chunks=1"),
    ("all-reduce", f"{TREE}:chunks=32"),
]


@pytest.mark.parametrize(("kind", "algorithm"), [case for case in ALGORITHMS if case[1] not in {"in-network", "nvls"}])
def test_members_of_a_large_switch_take_as_long_as_on_one_of_their_own(kind, algorithm):
    """To the picosecond, with one packet in a message, and of some many."""
    found = 0
    for members, size in (([1, 5], 1000), ([2, 7, 18], 300_001), ([*range(3, 20)], 1000)):
        with contextlib.suppress(WorkloadError):
            spec, whole = SWITCH.format(len(members)), SWITCH.format(21)
            assert within_ps(whole, members, spec, kind, algorithm, size) == 0, members
            found += 1
    assert found


def place_of(algorithm):
    """A fabric, members on it, and a fabric of their own; aggregators are as fast as all ports of their switch."""
    if algorithm in {"in-network", "nvls"}:
        return HOSTS[8], OF_EIGHT_HOSTS[1], HOSTS[1]
    return SWITCH.format(9), [1, 2, 3, 5, 7, 8], SWITCH.format(6)


@pytest.mark.parametrize(
    ("whole", "members", "spec", "kind", "algorithm"),
    [
        ("fully-connected:npus=8", [1, 3, 6], "fully-connected:npus=3", "all-to-all", "direct"),
        ("torus:sizes=4x3", [4, 5, 6, 7], "ring:npus=4", "all-reduce", "ring:bidirectional=true"),
        ("torus:sizes=4x3", [2, 6, 10], "ring:npus=3", "all-gather", "ring"),
        (HOSTS[8], OF_EIGHT_HOSTS[2], HOSTS[2], "all-reduce", "hierarchical"),
    ],
)
def test_members_with_several_ports(whole, members, spec, kind, algorithm):
    assert within_ps(whole, members, spec, kind, algorithm, 3 * MIB + 77) == 0


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


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("leaf-spine:leaves=8,spines=1,hosts_per_leaf=1", {}),
        ("leaf-spine:leaves=5,spines=1,hosts_per_leaf=1,uplink_rate=800Gbps", {}),
        ("leaf-spine:leaves=5,spines=1,hosts_per_leaf=1", {"cut_through": True}),
    ],
)
def test_what_comes_to_a_member_meets_before_its_leaf(spec, settings):
    """Trees whose messages wait for each other: up to 1 % of the time if the leaf told the order."""
    assert above_of_ps(spec, "all-reduce", TREE, MIB, **settings) == 0


@pytest.mark.parametrize("seed", range(1, 7))
def test_acknowledgements_that_hashes_send_over_another_spine_wait_for_nothing(seed):
    """Those of a closed form go over the spine of the data."""
    time_ps = played(SPINES, "all-to-all", "direct", 16 * MIB, seed=seed)
    assert above_of_ps(SPINES, "all-to-all", "direct", 16 * MIB, seed=seed) / time_ps == pytest.approx(0, abs=0.007)


@pytest.mark.parametrize(
    ("ends", "kind", "algorithm"), [(ends, *case) for ends, case in each_value(itertools.product(ENDS, ALGORITHMS))]
)
def test_every_algorithm_with_what_passes_at_the_ends_of_messages(ends, kind, algorithm):
    model = fidelity("packet", **ENDS[ends])
    assert within_ps(*place_of(algorithm), kind, algorithm, 300_001, fidelity=model) == 0


@pytest.mark.parametrize(
    ("name", "kind", "algorithm"),
    [(name, *case) for name, case in each_value(itertools.product(WHOLE_MESSAGES, ALGORITHMS))],
)
def test_every_algorithm_with_messages_that_go_whole(name, kind, algorithm):
    own = {"endpoint_delay_ps": 7, "reduction_bandwidth_bps": 8e12 / 3.3, "resolution_ps": 10}
    assert within_ps(*place_of(algorithm), kind, algorithm, 300_001, fidelity=fidelity(name, **own)) == 0


@pytest.mark.parametrize("npus", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("kind", ["broadcast", "reduce", "all-reduce"])
def test_two_trees(kind, npus):
    members = range(9 - npus, 9)
    assert within_ps(SWITCH.format(9), members, SWITCH.format(npus), kind, TREE, 8 * MIB) == 0


def test_the_formula_of_two_trees_is_a_bound_and_no_more():
    """Why they are played."""
    bound_ps = closed_form("all-reduce", TREE, 8, 1 << 23, 1.3e6, 50e9)
    assert played(SWITCH.format(8), "all-reduce", TREE, 1 << 23) > 1.15 * bound_ps


@pytest.mark.parametrize("unit", [64, 16384])
@pytest.mark.parametrize("algorithm", ["direct", "pairwise", "hierarchical"])
@pytest.mark.parametrize("network", ["leaf-spine:leaves=2,spines=3,hosts_per_leaf=3,rate=100Gbps,uplink_rate=900Gbps"])
def test_uneven_all_to_alls(network, algorithm, unit):
    graph = topologies.build(network)
    matrix = np.random.default_rng(2).integers(0, 33, (graph.npus, graph.npus)) * unit
    program = uneven_program(matrix, algorithm, graph)
    above = above_ps(graph, program, "all-to-all", "direct")
    assert 0 <= above < 0.01 * simulate(graph, program).finish_time_ps


def test_an_all_to_all_in_which_members_keep_all_their_bytes():
    graph = built(SWITCH.format(3))
    assert above_ps(graph, uneven_program(np.eye(3, dtype=np.int64) * 64, "direct", graph), "all-to-all", "direct") == 0


@sampled(
    {
        "framing": [True, False],
        "kind, algorithm": [
            *(
                ("all-reduce", f"nccl:algo={algo},proto={proto}")
                for algo in ("ring", "tree")
                for proto in ("ll", "simple")
            ),
            ("all-reduce", "nccl:algo=ring,proto=ll128,pacing=none"),
            *((kind, "nccl") for kind in ("all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all")),
        ],
        "hosts": [1, 2],
    }
)
def test_hosts_among_others_take_as_long_as_on_a_fabric_of_their_own(hosts, kind, algorithm, framing):
    """Of several hosts all-to-alls are PXN's."""
    whole, members, spec = HOSTS[8], OF_EIGHT_HOSTS[hosts], HOSTS[hosts]
    assert within_ps(whole, members, spec, kind, algorithm, 4 * MIB, nvlink_framing=framing) == 0


@pytest.mark.parametrize("algorithm", sorted(OF_HOSTS))
def test_a_lane_that_posts_all_its_messages_at_once(algorithm):
    """Each waits for the latency in the heap of events, which must have room for all of them."""
    spec = "rail-optimised:npus=16,gpus_per_host=8,hosts_per_rail_leaf=8,spines=1"
    ends = fidelity("packet", send_latency_ps=1_000_000)
    assert above_of_ps(spec, "all-reduce", f"{algorithm}:chunks=256", MIB, fidelity=ends) == 0


@pytest.mark.parametrize("limit", ["_MAX_MESSAGES_OF_ESTIMATES", "_MAX_PAIRS", "_MAX_PACKETS_OF_ESTIMATES"])
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
    assert inexact == {TREE, "nccl", "nvls-tree", "rotated-ring"}
