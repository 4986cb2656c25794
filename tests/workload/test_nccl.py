"""NCCL's rings, trees, protocols and choices against what is known of NCCL, and the oracle."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from nadi import topologies
from nadi.workload import collective_program, collectives
from nadi.workload.collectives.algorithms.nccl import KINDS
from nadi.workload.collectives.nccl.channel_orders import host_parent, ring, tree
from nadi.workload.collectives.nccl.decision import MAX_STEPS, NcclParameters, host_of, nccl_decision
from nadi.workload.collectives.nccl.tuning import model_ps
from nadi.workload.collectives.schedules.oracle import check
from nadi.workload.collectives.schedules.packed import ScheduleSet, pack
from nadi.workload.collectives.schedules.sends import buffers, unpack
from nadi.workload.shape import shape_of
from tests.nonempty import nonempty
from tests.samples import sampled
from tests.workload.nccl_network import INSIDE_PS, OUTSIDE_PS, G, HostsNetwork, hosts

SHAPES = {
    **{f"1x{n}": hosts(n) for n in range(2, 9)},
    "2x8": hosts(8, 8),
    "3x4": hosts(4, 4, 4),
    "2x5": hosts(5, 5),
    "2+3": hosts(2, 3),
    "3+1+1": hosts(3, 1, 1),
    "3x2": hosts(2, 2, 2),
    "4x1": hosts(1, 1, 1, 1),
    "mixed": hosts(3, 3, order=[5, 0, 3, 1, 2, 4]),
}
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
H100 = ("dgx-h100:npus=8", "dgx-h100:npus=16")


def way(kind, shape, size, **given):
    return nccl_decision(kind, shape, size, NcclParameters(**given))


def spec(**given):
    return "nccl" + (":" + ",".join(f"{key}={value}" for key, value in given.items()) if given else "")


def play(kind, shape, size, seed=0, **given):
    schedules = ScheduleSet()
    schedules.add(kind, spec(**given), shape.members, shape, size)
    check(kind, schedules.pack(), 0, seed)


@sampled({"size": [8, 300_000, 20 * MIB], "kind": KINDS, "name": SHAPES})
def test_does_what_the_kind_promises(name, kind, size):
    """At 20 MiB two channels of five members take several loops."""
    play(kind, SHAPES[name], size, channels=2)
    if kind == "all-reduce":
        play(kind, SHAPES[name], size, channels=3, algo="tree")
    if kind == "all-to-all":
        play(kind, SHAPES[name], size, pxn="false")


@pytest.mark.parametrize("proto", ["ll", "ll128", "simple"])
def test_channels_as_nccl_chooses_them(proto):
    for kind in ("all-reduce", "all-gather", "reduce"):
        play(kind, SHAPES["2x5"], 2 * MIB, proto=proto)
    play("all-reduce", SHAPES["3x4"], 2 * MIB, proto=proto, algo="tree")


def test_rings_stay_on_their_rails():
    """Each NIC is entered once and left once by eight channels, and no hop between hosts changes the place."""
    for count in (2, 3, 4, 5):
        shape, used = hosts(*[8] * count), Counter()
        for channel in range(8):
            order = ring(shape, channel)
            assert sorted(order) == list(range(shape.members))
            hops = [(a, b) for a, b in pairwise((*order, order[0])) if shape.host[a] != shape.host[b]]
            assert len(hops) == count
            assert all(shape.place[a] == shape.place[b] for a, b in hops)
            used.update(("out", a) for a, _ in hops)
            used.update(("in", b) for _, b in hops)
        assert used == {(way, member): 1 for way in ("in", "out") for member in range(shape.members)}


@pytest.mark.parametrize("count", range(1, 34))
def test_double_trees(count):
    """Both span the hosts with two children at most and logarithmic depth. Of an even number no host is inside both."""
    parents = [[host_parent(h, count, in_second=second) for h in range(count)] for second in (False, True)]
    for parent in nonempty(parents):
        assert parent.count(-1) == 1
        assert max(Counter(p for p in parent if p >= 0).values(), default=0) <= 2
        above = set(range(count))
        for _ in range(count.bit_length() + 1):
            above = {parent[host] for host in above if host >= 0}
        assert above <= {-1}
    if count % 2 == 0:
        assert not set(parents[0]) & set(parents[1]) - {-1}


def test_trees_chain_the_members_of_a_host():
    shape = hosts(4, 4, 4)
    one = tree(shape, 1, 4)
    assert one.depth == 2 + 3
    inside = [(p, m) for m, p in enumerate(one.parent) if p >= 0 and shape.host[m] == shape.host[p]]
    assert len(inside) == 9
    assert Counter(p for p, _ in inside).most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    ("proto", "most_bytes", "wire"), [("ll", 32 * KIB, 2), ("ll128", 576_000, 16 / 15), ("simple", 2 * MIB, 1)]
)
def test_chunks_fit_the_slots(proto, most_bytes, wire):
    shape, size = hosts(8), 200 * MIB
    schedules = pack([collectives.plan("all-reduce", spec(proto=proto, algo="ring"), 8, shape, size)])
    own = buffers(schedules, 0)[0]
    assert len(own) == 24
    sent = [b.bytes(0, 1, size) for b in own]
    loops = -(-size // (24 * 8 * most_bytes))
    assert max(sent) <= (most_bytes if loops * 14 <= MAX_STEPS else size / 24 / 8 / (MAX_STEPS // 14) + 1)
    assert own[0].wire_bytes(0, 1, size) == pytest.approx(own[0].bytes(0, 1, size) * wire, abs=1)
    slices = 2 if proto == "simple" else 1
    assert {len(lane) for lane in unpack(schedules, 0)[0]} == {14 * slices * min(loops, MAX_STEPS // 14 // slices)}


def test_huge_buffers_grow_their_chunks():
    made = way("all-reduce", hosts(8), 100 * GIB, proto="ll", algo="ring")
    assert made.pieces * 14 <= MAX_STEPS < (made.pieces + 1) * 14
    assert way("all-reduce", hosts(*[8] * 128), 10 * GIB, proto="simple", algo="ring").pieces == 1


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        (hosts(8), KIB, ("ring", "ll")),
        (hosts(8), 64 * KIB, ("ring", "ll")),
        (hosts(8), 8 * MIB, ("ring", "ll128")),
        (hosts(8), GIB, ("ring", "simple")),
        (hosts(*[8] * 16), KIB, ("tree", "ll")),
        (hosts(*[8] * 16), 4 * MIB, ("tree", "ll128")),
        (hosts(*[8] * 16), 4 * GIB, ("ring", "simple")),
        (hosts(*[1] * 16), 8 * KIB, ("tree", "ll")),
        (hosts(*[1] * 16), GIB, ("ring", "simple")),
    ],
)
def test_known_choices(shape, size, expected):
    """LL for tiny buffers, LL128 in between where there is NVLink, Simple for large; trees on many hosts."""
    assert way("all-reduce", shape, size)[:2] == expected


def test_without_nvlink_no_ll128():
    sizes = [1 << e for e in range(3, 33)]
    for kind in ("all-reduce", "all-gather"):
        assert "ll128" not in {way(kind, hosts(*[1] * 8), size).protocol for size in sizes}


def model_us(shape, size, algorithm, protocol, kind="all-reduce", **given):
    return model_ps(kind, host_of(shape, NcclParameters(**given)), size, algorithm, protocol) / 1e6


def test_the_model_of_8_a100():
    """By hand: Simple 8.4 + 14 x 3.4 us and 12 x 20 x 8/14 GB/s; LL 6.6 + 14 x 0.6 us and 87.7 x 8/14 GB/s."""
    assert model_us(hosts(8), 10**9, "ring", "simple") == pytest.approx(8.4 + 14 * 3.4 + 1e9 / (240 * 8 / 14) / 1e3)
    assert model_us(hosts(8), 10**6, "ring", "ll") == pytest.approx(6.6 + 14 * 0.6 + 1e6 / (87.7 * 8 / 14) / 1e3)


def test_the_model_of_a_tree_on_four_hosts():
    """6.8 + 2 (7 x 0.6 + 2 x 5.0) us for LL; 64 KiB are 2^10 x 64 B, of which a tree reaches 0.6."""
    reached = min(8 * min(24 * 0.92, 17.8) / 3.8, 19.0) / 2 * 0.6
    found = model_us(hosts(*[8] * 4), 64 * KIB, "tree", "ll")
    assert found == pytest.approx(6.8 + 2 * (7 * 0.6 + 10) + 64 * KIB / reached / 1e3)


def test_the_model_of_nvls():
    """By hand: eight heads of 40 GB/s at 0.85 are 272 GB/s of the buffer, 476 on the bus; on two hosts 57.7 each."""
    one, two = (shape_of(graph, range(graph.npus), trees="hosts") for graph in map(topologies.build, H100))
    assert model_us(one, 10**9, "nvls", "simple") == pytest.approx(25 + 1e9 / 272 / 1e3)
    reached = 8 * 57.7 * 16 / 30
    assert model_us(two, 10**9, "nvls-tree", "simple") == pytest.approx(25 + 2 * 20.9 + 1e9 / reached / 1e3)
    assert model_us(one, 10**9, "nvls-tree", "simple") == model_us(two, 10**9, "nvls", "simple") == math.inf
    assert model_us(one, 10**9, "nvls", "simple", nvls=False) == math.inf
    chosen = [nccl_decision("all-reduce", one, 10**9, NcclParameters(nvls=nvls)).algorithm for nvls in (True, False)]
    assert chosen == ["nvls", "ring"]


def test_what_the_search_plans():
    """In one H100 host rings of 12 x 30 and heads of 8 x 40 GB/s, as NCCL's logs say; elsewhere by hand."""
    plan = host_of(shape_of(topologies.build(H100[0]), range(8), trees="hosts"), NcclParameters()).plan
    assert (plan.ring[:2], plan.nvls[:3], plan.used) == ((12, 30.0), (8, 40.0, 60.0), 24)
    assert host_of(hosts(8), NcclParameters()).plan.ring[:2] == (12, 20.0)
    assert host_of(hosts(8, 8), NcclParameters()).plan.ring[:2] == (8, 24.0)
    assert host_of(hosts(1, 1), NcclParameters()).plan.ring[:2] == (1, 24.0)
    assert host_of(hosts(8, inside_bps=1200 * G), NcclParameters()).plan[2:4] == ((6, 20.0, 20.0, 0.0),) * 2


def test_the_generation_is_that_of_the_nearest_nvlinks_or_the_machines():
    for gbps, name in ((1200, "v100"), (2000, "a100"), (2400, "a100"), (3600, "h100"), (4000, "h100"), (7200, "b200")):
        assert host_of(hosts(8, inside_bps=gbps * G), NcclParameters()).generation.name == name
    assert (
        host_of(hosts(8, inside_bps=1200 * G)._replace(accelerator="h100"), NcclParameters()).generation.name == "h100"
    )
    assert host_of(hosts(8)._replace(accelerator="h100"), NcclParameters(generation="b200")).generation.name == "b200"
    assert host_of(hosts(1, 1), NcclParameters()).generation.name == "a100"


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter"])
@pytest.mark.parametrize("spec_of", ["dgx-h100:npus=8", "dgx-h100:npus=16", "rail-optimised:npus=12,gpus_per_host=4"])
def test_nvls_does_what_the_kind_promises(spec_of, kind):
    graph = topologies.build(spec_of)
    hosts_there = graph.npus > graph.dims[0]
    if hosts_there and kind != "all-reduce":
        return
    shape = shape_of(graph, range(graph.npus), trees="hosts")
    for size in (1000, 300_000):
        schedules = ScheduleSet()
        text = spec(generation="h100", algo="nvls-tree" if hosts_there else "nvls")
        schedules.add(kind, text, shape.members, shape, size)
        check(kind, schedules.pack(), 0, 0)
        assert schedules.aggregators(0) == graph.npus // graph.dims[0]


def test_pat_does_what_the_kind_promises():
    for kind in ("all-gather", "reduce-scatter"):
        assert way(kind, hosts(*[1] * 6), 64 * KIB, algo="pat").algorithm == "pat"
        play(kind, hosts(*[1] * 6), 64 * KIB, algo="pat")


def test_the_network_sums_only_if_told():
    """NCCL_COLLNET_ENABLE is 0 unless set. With it NVLS goes over hosts, and a rail's switches add its shares up."""
    large = shape_of(topologies.build("dgx-h100:npus=64"), range(64), trees="hosts and rails")
    assert way("all-reduce", large, GIB).algorithm == "nvls-tree"
    assert way("all-reduce", large, GIB, collnet=True).algorithm == "nvls"
    graph = topologies.build("rail-optimised:npus=12,gpus_per_host=4")
    shape = shape_of(graph, range(12), trees="hosts and rails")
    for algo in ("nvls", "nvls-tree", "collnet-direct"):
        schedules = ScheduleSet()
        schedules.add("all-reduce", spec(collnet="true", algo=algo, generation="h100"), 12, shape, 300_000)
        check("all-reduce", schedules.pack(), 0, 0)
        assert schedules.aggregators(0) > 3


def loop_us(chunk, payload, blocks, notice):
    """By hand: a loop of 8 heads' chunks on each block, 9/8 of it over each NVLink, and the members' notices."""
    return notice + 8 * chunk * blocks * 9 / 8 / payload / 1e3


def test_copies_and_chunks_of_nvls():
    """By hand: 3 us, and two stages as long as a loop for the copies in and out; chunks of 128 KiB from 1 GiB on.

    Loops of those are as fast as NCCL plans: 8 heads at 0.85 x 40 GB/s.
    """
    one = shape_of(topologies.build(H100[0]), range(8), trees="hosts")
    for size, chunk in ((GIB, 128 * KIB), (GIB - 1, 64 * KIB), (64 * MIB - 1, 32 * KIB), (8 * MIB - 1, 16 * KIB)):
        made, loop = way("all-reduce", one, size, algo="nvls"), 128 * chunk
        assert made.pieces == -(-size // loop)
        latency_ps = 3_000_000 - 2 * one.inside_ps
        stage_us = max(loop_us(chunk, 360, 16, 6.0), loop / (8 * 0.85 * 40) / 1e3)
        assert made.launch_ps == pytest.approx(latency_ps + 2e6 * stage_us, abs=1)
        assert way("all-reduce", one, size, algo="nvls", registered=True).launch_ps == latency_ps


def test_a_rack_has_32_heads_and_long_stages():
    """By hand: 72 GPUs have 32 heads of 20 GB/s, of which 0.74 x 31/32 remain, and 72/71 of it for an all-reduce.

    With 32 blocks a loop has 64 MiB, which take longer at that rate than over NVLink.
    """
    rack = shape_of(topologies.build("gb200-nvl72:npus=72"), range(72), trees="hosts")
    made, loop = way("all-reduce", rack, GIB, channels=32), 64 * MIB
    assert (made.algorithm, made.pieces) == ("nvls", 16)
    stage_us = loop / (32 * 20 * 0.74 * 31 / 32 * 72 / 71) / 1e3
    assert made.launch_ps == pytest.approx(7_000_000 - 2 * rack.inside_ps + 2e6 * stage_us, abs=1)


def test_heads_are_paced_at_what_nvls_reaches():
    """A head at 0.85 x 40 of 360 GB/s of payload; what goes up for all eight at 8 times that."""
    shape = shape_of(topologies.build(H100[0]), range(8), trees="hosts")
    schedules = pack([collectives.plan("all-reduce", "nccl", 8, shape, GIB)])
    rates = {360 / share for share in schedules.lane_shares.tolist() if share > 1}
    assert sorted(rates) == pytest.approx([34, 272], rel=1e-3)
    assert sorted(set(schedules.lane_connection[schedules.lane_shares > 1].tolist())) == [23, 24]


def test_grains_of_ll128():
    """Up to 2.19 a chunk of LL128 in a ring was no less than 19,200 B, so that few channels had any."""
    v100 = hosts(8, inside_bps=1200 * G)
    assert way("all-reduce", v100, 10**6).channels == 7
    assert way("all-reduce", v100, 10**6, chunks="even").channels == 12
    assert way("all-reduce", hosts(8), 10**6, proto="ll128", chunks="grains").channels == 7
    h100 = hosts(8, inside_bps=3600 * G)
    assert way("all-reduce", h100, 10**6, proto="ll128").channels == 24


def test_an_all_to_all_sends_to_all_at_once():
    """However few the bytes: 7 messages of 32 B by LL need a launch and one hop, besides their bytes."""
    schedules = pack([collectives.plan("all-to-all", "nccl", 8, hosts(8), 256)])
    assert [len(lane) for lane in unpack(schedules, 0)[0]] == [1] * 7 + [7]
    simulated, _ = took("all-to-all", hosts(8), 256)
    assert simulated == pytest.approx(9.1e6 + 7 * 0.51e6, rel=0.001)


def test_few_bytes_use_few_channels():
    assert way("all-reduce", hosts(8), 64 * KIB).channels == 2
    assert way("all-reduce", hosts(8), 8, proto="simple").channels == 1
    assert way("all-reduce", hosts(8), 8, proto="simple", channels=5).channels == 5
    assert way("all-gather", hosts(8, 8), GIB).channels == 16


def test_overrides():
    text = "0-64KiB/tree/ll; 64KiB-4MiB/auto/ll128;4MiB-/ring/simple"
    sizes = {0: ("tree", "ll"), 64 * KIB: ("tree", "ll128"), 4 * MIB - 1: ("ring", "ll128"), GIB: ("ring", "simple")}
    for size, expected in sizes.items():
        assert way("all-reduce", hosts(8), size, overrides=text)[:2] == expected
    assert way("all-reduce", hosts(8), GIB, overrides="-1KiB/tree/ll", proto="ll").protocol == "ll"
    assert way("all-reduce", hosts(8), 5, overrides="-/ring/ll;-/tree/simple")[:2] == ("ring", "ll")
    assert way("broadcast", hosts(8), 5, overrides="-/tree/simple")[:2] == ("ring", "simple")


@pytest.mark.parametrize(("shape", "expected"), [(hosts(8, 8), [0, 1, 2, 2, 3]), (hosts(8), [0, 1, 2, 3, 4])])
def test_sizes_of_one_way_share_a_table(shape, expected):
    """In one host the time of a step depends on its bytes."""
    schedules = ScheduleSet()
    found = [schedules.add("all-reduce", "nccl", 8, shape, size) for size in (100, 5000, 900 * MIB, 910 * MIB, 5 * GIB)]
    assert found == expected


def test_chunks_of_one_slice_and_of_two_have_tables_of_their_own():
    schedules, shape, size = ScheduleSet(), hosts(8), 24 * 8 * 32 * KIB
    found = [schedules.add("all-reduce", spec(algo="ring", proto="simple"), 8, shape, s) for s in (size, size + 200)]
    assert found == [0, 1]


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "broadcast"])
def test_large_groups_have_small_tables(kind):
    schedules = pack([collectives.plan(kind, "nccl:proto=simple", 1024, hosts(*[8] * 128), 8 * GIB)])
    assert len(schedules.dep_lane) <= 2_100_000


def test_pxn_keeps_to_the_rails():
    """Between hosts a member only sends to its own place, one message for each host, of what its host has for it."""
    graph = topologies.build("rail-optimised:npus=12,gpus_per_host=4")
    size = 12 * 12 * 100
    for pxn in (True, False):
        program = collective_program("all-to-all", 12, size, spec(pxn=str(pxn).lower(), proto="simple"), graph)
        lanes = unpack(program.schedules, 0)
        crossing = [
            (member, step.send_peer, step.send_count)
            for member in range(12)
            for lane in lanes[member]
            for step in lane
            if step.send_peer >= 0 and step.send_peer // 4 != member // 4
        ]
        assert len(crossing) == 12 * (2 if pxn else 8)
        assert {count for *_, count in crossing} == {4 if pxn else 1}
        assert all(a % 4 == b % 4 for a, b, _ in crossing) == pxn


def test_shapes_tell_nics_from_nvlinks():
    graph = topologies.build(
        "rail-optimised:npus=8,gpus_per_host=4,nvlink_rate=2400Gbps,nvlink_delay=20ns,rate=100Gbps,delay=1us"
    )
    found = shape_of(graph, range(8))
    assert (found.inside_bps, found.inside_ps) == (2400 * 10**9, 40_000)
    assert (found.outside_bps, found.outside_ps, found.nic_shares) == (100 * 10**9, 2_000_000, (1,))
    assert shape_of(graph, range(4))[-7:] == (0, 0, (), (), "", (), 1)
    assert shape_of(graph, [0, 4])[-9:] == (0, 0, 100 * 10**9, 2_000_000, (1,), (), "", (), 1)


def took(kind, shape, size, **given):
    text = spec(**given)
    schedules = pack([collectives.plan(kind, text, shape.members, shape, size)])
    return HostsNetwork(schedules, shape, size).finish_time(), collectives.closed_form(
        kind, text, shape.members, size, 0, 0, shape
    )


@sampled(
    {
        "size": [64, 3 * MIB, 100 * MIB],
        "proto": ["ll", "ll128", "simple"],
        "kind": ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"],
        "members": [2, 5, 8],
    }
)
def test_closed_form_of_one_ring_in_a_host(members, kind, proto, size):
    """One channel has the links to itself, so the form is exact."""
    simulated, form = took(kind, hosts(members), size, channels=1, algo="ring", proto=proto)
    assert form == pytest.approx(simulated, rel=1e-9)


FOUR = hosts(4, 4, 4, 4)


@pytest.mark.parametrize(
    ("kind", "shape", "size", "given", "error"),
    [
        *(
            (kind, hosts(4, 4, 4), size, {"channels": 1, "algo": "ring"}, 0.01)
            for kind in ("all-reduce", "all-gather", "broadcast", "reduce")
            for size in (64, 64 * MIB)
        ),
        # many chains
        *((kind, hosts(4, 4), 128 * MIB, {}, 0.02) for kind in ("broadcast", "reduce")),
        *((kind, hosts(8), 128 * MIB, {}, 1e-9) for kind in ("broadcast", "reduce")),
        # nothing but hops: 3 inside and 2 between hosts, up and down, besides 8 bytes
        ("all-reduce", FOUR, 8, {"channels": 1, "algo": "tree", "proto": "ll"}, 0.001),
        # two trees load each NIC of the heads with about twice the buffer's half, both ways
        ("all-reduce", FOUR, 256 * MIB, {"channels": 8, "algo": "tree"}, 0.1),
        ("all-to-all", hosts(4, 4), 256 * MIB, {"pacing": "none"}, 0.1),
        ("all-to-all", hosts(8), 256 * MIB, {"pacing": "none"}, 0.001),
    ],
)
def test_closed_forms_are_near_an_idle_network(kind, shape, size, given, error):
    simulated, form = took(kind, shape, size, **{"proto": "simple"} | given)
    assert form == pytest.approx(simulated, rel=error)
    if size == 8:
        # a hop between hosts takes four times 1.9 us of the hosts' threads besides
        assert simulated == pytest.approx(6.8e6 + 2 * (3 * 0.6e6 + 2 * (5.0e6 + 4 * 1.9e6)), rel=0.001)


@pytest.mark.parametrize("proto", ["ll", "ll128", "simple"])
@pytest.mark.parametrize("kind", ["all-reduce", "all-gather"])
def test_closed_form_of_many_channels(kind, proto):
    """At their shares they go in step. Without, and over hosts, they hide each other's hops: the links never idle."""
    simulated, form = took(kind, hosts(8), 32 * MIB, algo="ring", proto=proto)
    assert form == pytest.approx(simulated, rel=1e-9)
    simulated, form = took(kind, hosts(8), 32 * MIB, algo="ring", proto=proto, pacing="none")
    assert form == pytest.approx(simulated, rel=0.002)
    over_hosts = took(kind, hosts(8, 8), 64 * MIB, algo="ring", proto=proto)
    assert over_hosts[1] == pytest.approx(over_hosts[0], rel=0.01)


@pytest.mark.parametrize("proto", ["ll", "ll128", "simple"])
@pytest.mark.parametrize(
    ("gbps", "planned", "payload", "constants"),
    [
        # (launch, hop, payload, rate of all blocks) of each protocol
        (1200, 12, 120, {"ll": (6.6, 0.6, 120, 0), "ll128": (14.0, 1.9, 120, 0), "simple": (8.4, 3.4, 120, 0)}),
        (
            *(2400, 24, 240),
            {"ll": (9.2, 0.76, 0.83 * 240, 24 * 19), "ll128": (22.0, 0.6, 24 * 7.4, 24 * 7.4)}
            | {"simple": (8.2, 3.4, 240, 0.215)},
        ),
        (
            *(3600, 24, 360),
            {"ll": (4.8, 0.76, 0.95 * 360, 24 * 37), "ll128": (15.2, 0.6, 360, 24 * 15)}
            | {"simple": (16.0, 0.75, 360, 0.5)},
        ),
        (
            *(7200, 32, 720),
            {"ll": (7.8, 1.23, 0.83 * 720, 32 * 41), "ll128": (20.0, 0.6, 720, 32 * 22.5)}
            | {"simple": (12.5, 1.7, 720, 0.65)},
        ),
    ],
)
def test_each_channel_takes_its_bytes_and_hops(gbps, planned, payload, constants, proto):
    """By hand for all-reduce of 8: 14 steps of `slices`, each a hop and its bytes, and a last step in own memory."""
    size, shape = 48 * MIB, hosts(8, inside_bps=gbps * G)
    (launch, hop, rate, own), wire = constants[proto], {"ll": 2, "ll128": 16 / 15, "simple": 1}[proto]
    made = way("all-reduce", shape, size, algo="ring", proto=proto)
    assert (made.channels, made.shares, made.slices) == (planned, planned, 2 if proto == "simple" else 1)
    assert made.shares == pytest.approx(gbps / 8 * 0.8 / (payload / planned))
    steps = 14 * made.slices * made.pieces
    wire_bytes = size / 8 / made.slices / made.pieces * wire
    data_us = wire_bytes / rate / 1e3
    if proto == "simple":  # a fraction of a step, hop included
        step_us = (hop + data_us) * (1 + own / 14)
    else:
        step_us = hop + data_us + (wire_bytes / own / 14 / 1e3 if own else 0)
    if gbps == 7200 and proto == "simple":  # a slice is longer on its way than the other one takes
        assert step_us < (11.0 + data_us * (1 + own / 14)) / 2
        step_us = (11.0 + data_us * (1 + own / 14)) / 2
    # the links of this shape have no flits: they carry the bytes faster than NCCL's times assume
    unframed_us = size / 8 / made.slices / made.pieces * wire * (1 / payload - 8 / gbps) / 1e3
    by_hand = launch + steps * (step_us - unframed_us)
    _, form = took("all-reduce", shape, size, algo="ring", proto=proto)
    assert form == pytest.approx(by_hand * 1e6, rel=1e-6)
    schedules = pack([collectives.plan("all-reduce", spec(algo="ring", proto=proto), 8, shape, size)])
    assert set(schedules.lane_shares.tolist()) == {planned}
    assert set(np.diff(schedules.lane_ptr).tolist()) == {steps}


def test_shares_hold_for_rings_and_chains_in_one_host():
    for shape, kind, given, shares in (
        (hosts(8), "broadcast", {}, 24),
        (hosts(8), "all-gather", {"channels": 1}, 24),
        (hosts(8), "all-reduce", {"algo": "tree"}, 1),
        (hosts(8), "all-to-all", {"pacing": "none"}, 1),
        (hosts(8), "all-reduce", {"algo": "ring", "pacing": "none"}, 1),
        (hosts(8, 8), "all-reduce", {"algo": "ring"}, 1),
        (hosts(1, 1, 1, 1), "all-reduce", {"algo": "ring"}, 1),
    ):
        schedules = pack([collectives.plan(kind, spec(**given), shape.members, shape, 64 * MIB)])
        assert set(schedules.lane_shares.tolist()) == {shares}, (kind, given)
        assert (schedules.lane_connection.min() >= 32) == (shares > 1)


def test_slices():
    """Two of a chunk of Simple beyond 32 KiB, one of chains and where a lane would have more than 1,024 steps."""

    def slices(*arguments, **given):
        return way(*arguments, **({"algo": "ring", "proto": "simple"} | given)).slices

    assert slices("all-reduce", hosts(8), 24 * 8 * 32 * KIB) == 1
    assert slices("all-reduce", hosts(8), 24 * 8 * 32 * KIB + 200) == 2
    assert slices("all-reduce", hosts(8), GIB, proto="ll128") == 1
    assert slices("broadcast", hosts(8), GIB) == 1
    assert slices("all-reduce", hosts(*[8] * 32), 8 * GIB) == 2
    assert slices("all-reduce", hosts(*[8] * 33), 8 * GIB) == 1


def test_waits_leave_out_the_path():
    """NCCL's figures are of whole hops, of which the fabric takes a part; on AMD's hosts a hop posts for 6 us."""
    schedules = pack([collectives.plan("all-gather", "nccl:proto=simple,pacing=none", 8, hosts(4, 4), MIB)])
    mean_ps = (6 * (6_000_000 - INSIDE_PS) + 14_000_000 - OUTSIDE_PS) / 7
    assert np.unique(schedules.lane_latency_ps).tolist() == [round(mean_ps)]
    schedules = pack([collectives.plan("broadcast", "nccl:proto=simple", 8, hosts(4, 4), MIB)])
    assert set(schedules.lane_latency_ps.tolist()) == {0, 6_000_000 - INSIDE_PS, 14_000_000 - OUTSIDE_PS}
    assert schedules.launch_ps.tolist() == [8_400_000]


@pytest.mark.parametrize(
    ("size", "proto", "messages", "hop"),
    # one channel enters a host by another GPU than where it leaves; 8 use each NIC both ways; 16 do so twice
    [(KIB, "ll", 1, 2.7), (512 * KIB, "ll", 2, 3.8), (4 * MIB, "ll128", 4, 7.6), (128 * MIB, "simple", 8, 15.2)],
)
def test_a_ring_over_hosts_waits_for_the_threads_of_its_nics(size, proto, messages, hop):
    """By hand: 15 steps, one between hosts, each 1.9 us per message that a GPU's thread sends or receives."""
    shape = shape_of(topologies.build("dgx-b200:npus=16"), range(16), trees="hosts")
    made = way("all-gather", shape, size)
    assert (made.algorithm, made.protocol) == ("ring", proto)
    launch_us = {"ll": 7.8, "ll128": 20.0, "simple": 12.5}[proto]
    path_ps = 14 * shape.inside_ps + shape.outside_ps
    assert made.launch_ps == round((launch_us + 14 * max(1.23, messages * 1.9) + hop) * 1e6) - path_ps
    if proto == "simple":  # two blocks of 20.6 GB/s do not fill a NIC of 400 Gb/s
        assert made.shares == pytest.approx(50 / 20.6)
        slice_us = size / 16 / 16 / 2 / 20.6e3
        assert made.inside_ps - shape.inside_ps == pytest.approx(slice_us * 0.65 / 15 * 1e6, abs=1)


def test_formulas_of_large_nvls_trees_have_nccls_chunks():
    """By hand: 64 hosts of 8 have 4 x 64 x 8 x 8 steps per chunk of a share, so that 2^20 steps leave 64 chunks.

    8 GiB are 1,024 loops of 16 blocks x 8 heads x 64 KiB, which are 2,048 chunks for two trees. With 64 of them, the
    seven stages of a chunk would be 7/64 of the time; 256 MiB have 32 loops.
    """
    shape = shape_of(topologies.build("dgx-h100:npus=512"), range(512), trees="hosts")
    chosen = collectives.choose("all-reduce", "nccl:algo=nvls-tree")
    assert chosen.is_coarse("all-reduce", shape, 8 * GIB)
    assert not chosen.is_coarse("all-reduce", shape, 256 * MIB)
    assert not chosen.is_coarse("all-gather", shape, 8 * GIB)
    times_ps = [chosen.closed_form("all-reduce", 512, size, 0, 0, shape) for size in (4 * GIB, 8 * GIB)]
    # what the fill of the pipeline takes does not grow with the buffer: the NIC of an inner host sends two shares
    assert times_ps[1] - times_ps[0] == pytest.approx(4 * GIB / 8 * 2 / 50e9 * 1e12, rel=0.001)


def test_nvls_can_be_off():
    """NCCL_NVLS_ENABLE=0: NVSwitches neither sum nor copy, whatever the user names."""
    for npus in (8, 16):
        shape = shape_of(topologies.build(f"dgx-h100:npus={npus}"), range(npus), trees="hosts")
        assert way("all-reduce", shape, GIB).algorithm.startswith("nvls")
        for algo in ("auto", "nvls", "nvls-tree"):
            assert way("all-reduce", shape, GIB, nvls=False, algo=algo).algorithm in {"ring", "tree"}
    assert collectives.choose("all-reduce", "nccl:nvls=false").trees == ""


@pytest.mark.parametrize(("machines", "between_us"), [(2, 30.2144), (3, 30.2144), (4, 87.3813)])
def test_a_chunk_of_a_tree_waits_for_half_a_block(machines, between_us):
    """By hand: 512 MiB are 64 slots of 512 KiB on each of 16 channels, of which half a block moves 20 GB/s.

    NVLink takes the chunk at 720 GB/s, and a step takes 4 us besides. From four hosts on the tree has 24 GB/s of the
    bus for each of the 8 channels of NCCL's search, which are used twice: 6 GB/s of the buffer for each channel.
    """
    npus, size = 8 * machines, 512 * MIB
    shape = shape_of(topologies.build(f"dgx-b200:npus={npus}"), range(npus), trees="hosts")
    made = way("all-reduce", shape, size, algo="tree", proto="simple")
    assert (made.channels, made.pieces) == (16, 64)
    assert made.inside_ps == pytest.approx((4 + 0.524288 * (1e3 / 20 - 1e3 / 720)) * 1e6, abs=1)
    assert made.between_ps - shape.outside_ps == pytest.approx(between_us * 1e6, rel=1e-5)
    # the slowest sends of a chunk follow each other for all chunks of a channel, and NICs have time for them
    times_ps = [
        collectives.choose("all-reduce", spec(algo="tree", proto="simple")).closed_form(
            "all-reduce", npus, chunks * 8 * MIB, 0, 0, shape
        )
        for chunks in (64, 128)
    ]
    nic_us = machines * 0.524288e3 / 50  # chunks that a NIC sends in both trees: as many as there are hosts, up to four
    assert (times_ps[1] - times_ps[0]) / 64 == pytest.approx(max(between_us, nic_us) * 1e6, rel=1e-3)
    unpaced = way("all-reduce", shape, size, algo="tree", proto="simple", pacing="none")
    assert (unpaced.inside_ps, unpaced.between_ps) == (4_000_000, 14_000_000)


def test_chunks_of_trees_before_nccl_2_20_fill_the_depth():
    """By hand: 32 MiB are four slots for each of 16 channels; a tree of 4 hosts of 8 has 9 hops, so that 128 KiB do."""
    shape = shape_of(topologies.build("dgx-b200:npus=32"), range(32), trees="hosts")
    given = {"algo": "tree", "proto": "simple"}
    assert way("all-reduce", shape, 32 * MIB, **given).pieces == 4
    assert tree(shape, 0, 16).depth == 9
    assert way("all-reduce", shape, 32 * MIB, **given, chunks="grains").pieces == 16


def test_formulas_of_large_trees_have_nccls_chunks():
    """By hand: 16 channels of 512 members leave 244 of 1,024 chunks; 16 hops more or less matter for 32 of them."""
    shape = shape_of(topologies.build("dgx-h100:npus=512"), range(512), trees="hosts")
    chosen = collectives.choose("all-reduce", "nccl:algo=tree,proto=simple")
    assert chosen.is_coarse("all-reduce", shape, 8 * GIB)
    assert not chosen.is_coarse("all-reduce", shape, 256 * MIB)
    # a member in the chain of a host adds up, receives and sends each chunk
    assert chosen.extent("all-reduce", 512, shape, 8 * GIB).steps == pytest.approx(3 * 16 * 512 * 244, rel=0.1)


@pytest.mark.parametrize("nics", [1, 2, 4])
def test_gpus_that_share_a_nic_share_its_channels(nics):
    """By hand: a ring of 24 GB/s per NIC, used twice; on the fabric each of 16 lanes has a part of a channel.

    The thread of a GPU sends or receives two messages in a step, for the two channels of its NIC; with a NIC of its own
    it does both. All NICs are in use alike: each sends 15/8 of its part of the buffer, in LL128's bytes.
    """
    spec_of = "rail-optimised:npus=16,rate=200Gbps,nvlink_rate=2400Gbps,nvlink_delay=25ns"
    graph = topologies.build(f"{spec_of},nics_per_host={nics}")
    shape = shape_of(graph, range(16))
    host = host_of(shape, NcclParameters())
    assert (shape.nics, host.plan.ring[:3], host.plan.used) == (nics, (nics, 24.0, 24.0), 2 * nics)
    # trees have twice the speed inside hosts, as on two hosts their data cross NICs once
    assert host.plan.tree[:3] == (nics, 48.0, 24.0)
    size = 16 * MIB
    made = way("all-reduce", shape, size, algo="ring", proto="ll128")
    assert made.channels == 16
    assert made.pieces == -(-size // (2 * nics * 16 * 576_000))
    path_ps = 28 * shape.inside_ps + 2 * shape.outside_ps
    assert made.launch_ps == round((22 + 28 * 2 * 1.9 + 2 * 4.0) * 1e6) - path_ps
    one_each = way("all-reduce", shape_of(topologies.build(spec_of), range(16)), size, algo="ring", proto="ll128")
    assert one_each.launch_ps == round((22 + 30 * 4 * 1.9) * 1e6) - path_ps
    simulated_ps, _ = took("all-reduce", shape, size, algo="ring", proto="ll128")
    wire_ps = size * 15 / 8 * 16 / 15 / (25e9 * nics) * 1e12
    assert wire_ps < simulated_ps - made.launch_ps < 1.12 * wire_ps


@pytest.mark.parametrize(
    ("gbps", "blocks", "step_gib", "notice", "full_gbps", "smaller_gbps"),
    [(3600, 16, 1.0, 6.0, 272.0, 260.4), (7200, 24, 1.5, 10.0, 473.6, 424.2)],
)
def test_nvls_is_slower_with_smaller_chunks(gbps, blocks, step_gib, notice, full_gbps, smaller_gbps):
    """By hand: a loop of 8 heads' chunks on each block takes its bytes and a notice; chunks of 128 KiB as planned."""
    machine = {3600: "dgx-h100:npus=8", 7200: "dgx-b200:npus=8"}[gbps]
    shape = shape_of(topologies.build(machine), range(8), trees="hosts")

    def reached_gbps(size):
        made = way("all-reduce", shape, size, algo="nvls")
        assert made.channels == blocks
        return 8 * gbps / 8 * 0.8 / made.shares  # eight heads' pace

    for chunk, size in ((64 * KIB, 64 * MIB * blocks // 16), (32 * KIB, 16 * MIB)):
        in_loop_us = loop_us(chunk, gbps / 10, blocks, notice)
        assert reached_gbps(size) == pytest.approx(8 * chunk / in_loop_us / 1e3 * blocks, rel=1e-3)
    step_bytes = int(step_gib * GIB)
    assert reached_gbps(step_bytes - 1) == pytest.approx(smaller_gbps, rel=2e-3)
    assert reached_gbps(step_bytes) == pytest.approx(full_gbps, rel=1e-3)
    chosen = collectives.choose("all-reduce", "nccl:algo=nvls,registered=true")
    below, above = (chosen.size_class("all-reduce", shape, step_bytes + more) for more in (-1, 0))
    assert below != above


@pytest.mark.parametrize(
    "spec", ["dgx-a100:npus=8", "dgx-h100:npus=8", "dgx-b200:npus=8", "dgx-h100:npus=16", "dgx-h100:npus=4"]
)
def test_a_group_has_collectives_of_all_kinds_and_sizes_in_one_program(spec):
    """A connection has one rate: no two plans of a group may want another rate of the same connection."""
    graph = topologies.build(spec)
    shape = shape_of(graph, range(graph.npus), trees="hosts")
    schedules = ScheduleSet()
    numbers = {
        schedules.add(kind, "nccl", graph.npus, shape, 1 << power) for kind in KINDS for power in range(10, 33, 2)
    }
    assert len(numbers) > 20


def test_the_closed_form_of_parts_is_that_of_the_parts():
    """NCCL's model takes whole bytes: a third of 16 MiB is none."""
    shape = shape_of(topologies.build(H100[0]), range(8), trees="hosts")
    whole, parts = (
        collectives.choose("all-reduce", f"nccl{parts}").closed_form("all-reduce", 8, size, 0, 0, shape)
        for parts, size in (("", -(-16 * MIB // 3)), (":dataset_splits=3", 16 * MIB))
    )
    assert parts == 3 * whole
