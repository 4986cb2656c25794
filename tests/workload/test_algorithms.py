"""Algorithms do what their kinds promise and take what their formulas say, with any parameters, and those of users."""

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest

from nadi import topologies
from nadi.workload import (
    KINDS,
    CollectiveSettings,
    WorkloadError,
    algorithms_of,
    closed_form,
    collective_program,
    collectives,
    default_algorithm,
)
from nadi.workload.collectives.algorithms import ring, rotated_ring
from nadi.workload.collectives.schedules.oracle import check
from nadi.workload.collectives.schedules.packed import ScheduleSet, pack
from nadi.workload.shape import shape_of
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.samples import sampled
from tests.workload.alpha_beta import Network
from tests.workload.handmade import two_rings
from tests.workload.plain import plain_algorithms

CASES = [(kind, name) for kind in KINDS for name in plain_algorithms(kind)]
BOUNDED = {name for name, module in collectives.known_algorithms().items() if getattr(module, "LOWER_BOUND", False)}


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_does_what_the_kind_promises(kind, name):
    schedules = pack([collectives.plan(kind, name, n) for n in range(1, 18)])
    for index in range(17):
        for seed in range(3):
            check(kind, schedules, index, seed)


@sampled({"kind, name": CASES, "members": [2, 3, 4, 7, 8, 16]})
def test_closed_form_is_what_an_idle_network_takes(kind, name, members):
    schedules = pack([collectives.plan(kind, name, members)])
    size = 0 if kind == "barrier" else 1 << 20
    # a step's latency is longer than the time of its chunk, or much shorter
    for latency, ps_per_byte in ((1_000_000.0, 20.0), (10.0, 20.0)):
        simulated = Network(schedules, 0, size, latency, ps_per_byte).finish_time()
        closed = closed_form(kind, name, members, size, latency, 1e12 / ps_per_byte)
        assert closed <= simulated * (1 + 1e-9)
        if name not in BOUNDED:
            assert closed == pytest.approx(simulated, rel=1e-9)


def test_every_kind_has_a_default():
    defaults = {kind: default_algorithm(kind) for kind in KINDS}
    rings = ("all-reduce", "reduce", "all-gather", "broadcast", "reduce-scatter")
    stars = ("gather", "scatter", "all-to-all")
    assert defaults == {**dict.fromkeys(rings, "ring"), **dict.fromkeys(stars, "direct"), "barrier": "dissemination"}


def test_unknown_names_list_the_known_ones():
    with pytest.raises(WorkloadError, match=r"^collective 'allreduce': expected one of all-reduce, reduce, all-gather"):
        ScheduleSet().add("allreduce", "ring", 4)
    with pytest.raises(WorkloadError, match=r"^algorithm 'tree' for all-reduce: expected one of direct, .*, ring$"):
        ScheduleSet().add("all-reduce", "tree", 4)
    with pytest.raises(
        WorkloadError, match=r"^algorithm 'ring' for barrier: expected one of dissemination, in-network"
    ):
        ScheduleSet().add("barrier", "ring", 1)
    with pytest.raises(WorkloadError, match=r"^all-reduce of 0 members: expected at least 1$"):
        ScheduleSet().add("all-reduce", "ring", 0)


def test_closed_forms_of_one_member_are_zero():
    assert closed_form("all-reduce", "ring", 1, 100, 5, 1) == 0


SPECS = (
    "ring:channels=3",
    "ring:bidirectional=true",
    "ring:channels=2,bidirectional=true",
    "direct:window=1",
    "direct:window=2",
    "direct:window=5",
    "pat:aggregation=1",
    "pat:aggregation=3",
)
TREES = [(kind, chunks) for kind in ("all-reduce", "broadcast", "reduce") for chunks in (1, 3)]
STARS = ("broadcast", "reduce", "gather", "scatter")


def lacks(kind, spec):
    return kind in STARS and ("bidirectional" in spec or "window" in spec)


OTHER_CASES = [(k, s) for k in KINDS for s in SPECS if s.partition(":")[0] in algorithms_of(k) and not lacks(k, s)]


@pytest.mark.parametrize(("kind", "spec"), OTHER_CASES)
def test_does_what_the_kind_promises_with_other_parameters(kind, spec):
    schedules = pack([collectives.plan(kind, spec, n) for n in range(1, 12)])
    for index in range(11):
        check(kind, schedules, index, seed=index)


@sampled({"kind, spec": OTHER_CASES, "members": [2, 3, 6, 8, 13]})
def test_closed_form_with_other_parameters_is_what_an_idle_network_takes(kind, spec, members):
    schedules = pack([collectives.plan(kind, spec, members)])
    for latency in (0.5e6, 3e6, 1e8):
        simulated = Network(schedules, 0, 1 << 20, latency, 20.0).finish_time()
        assert closed_form(kind, spec, members, 1 << 20, latency, 5e10) == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize(("kind", "chunks"), TREES)
def test_two_trees_do_what_they_promise_and_keep_to_their_bound(kind, chunks):
    """A broadcast waits for a chunk of the other tree once a level at most, and of one chunk each for none."""
    spec = f"double-binary-tree:chunks={chunks}"
    schedules = pack([collectives.plan(kind, spec, n) for n in range(2, 18)])
    for index, members in enumerate(range(2, 18)):
        check(kind, schedules, index, seed=index)
        for latency in (10.0, 1e6, 3e7):
            simulated = Network(schedules, index, 1 << 20, latency, 20.0).finish_time()
            closed = closed_form(kind, spec, members, 1 << 20, latency, 5e10)
            assert closed <= simulated * (1 + 1e-9)
            waits = (members - 1).bit_length() * (1 << 20) * 20 / (2 * chunks)
            assert kind != "broadcast" or simulated <= closed + waits
            assert (kind, chunks) != ("broadcast", 1) or closed == pytest.approx(simulated, rel=1e-9)


def test_two_trees_send_a_large_buffer_once():
    """A tree of half the buffer and one of the other: S/B, where a binomial tree takes log2(n) S/B."""
    schedules = pack([collectives.plan("broadcast", "double-binary-tree:chunks=256", 17)])
    assert Network(schedules, 0, 1 << 20, 10.0, 20.0).finish_time() < 1.03 * 20 * (1 << 20)


@pytest.mark.parametrize("members", range(2, 40))
def test_nobody_but_the_root_passes_on_data_of_both_trees(members):
    """But where members 1 .. n-1 are an odd number: then one does."""
    plans = collectives.plan("broadcast", "double-binary-tree", members)
    both = 0
    for me, lanes in enumerate(plans.plans):
        sends = [any(step.send_peer >= 0 for lane in tree for step in lane) for tree in (lanes[:6], lanes[6:])]
        both += all(sends) and me > 0
    assert both <= (members - 1) % 2


@pytest.mark.parametrize(
    ("usual", "named"),
    [("ring", "ring:channels=1,bidirectional=false"), ("direct", "direct:window=0"), ("pat", "pat:aggregation=0")],
)
def test_the_usual_parameters_change_nothing(usual, named):
    for kind in nonempty(KINDS):
        if usual in algorithms_of(kind):
            assert collectives.plan(kind, usual, 6) == collectives.plan(kind, named, 6)


@pytest.mark.parametrize("members", range(2, 18))
@pytest.mark.parametrize("kind", ["all-to-all", "reduce-scatter"])
def test_a_window_of_one_is_pairwise(kind, members):
    assert collectives.plan(kind, "direct:window=1", members) == collectives.plan(kind, "pairwise", members)


def test_rings_both_ways_use_both_neighbours():
    plans = collectives.plan("all-reduce", "ring:bidirectional=true", 5)
    assert [{step.send_peer for step in lane} for lane in plans.plans[0]] == [{1}, {4}]


PLAYED = SimpleNamespace(
    NAME="played",
    KINDS=("all-reduce",),
    PARAMETERS={"channels": 2, "fast": False, "shape": "ring", "shift": 0},
    LIMITS={"channels": (1, 8), "shape": ("ring", "line")},
    plan=lambda kind, members, channels, **_: ring.plan(kind, members)._replace(launch_ps=channels),
    closed_form=lambda *given, channels, fast, **_: given[2] * channels + fast,
)
FITTED = SimpleNamespace(
    NAME="fitted",
    KINDS=("all-reduce",),
    NEEDS_SHAPE=True,
    PARAMETERS={},
    asked=[],
    plan=lambda _, shape, size_bytes: FITTED.asked.append(size_bytes) or ring.plan("all-reduce", shape.members),
    closed_form=lambda _, shape, size_bytes: size_bytes / shape.rate_bps[0],
    size_class=lambda _, __, size_bytes: size_bytes >> 20,
)


@pytest.fixture
def known(monkeypatch):
    every = collectives.known_algorithms() | {"played": PLAYED, "fitted": FITTED}
    monkeypatch.setattr(collectives, "known_algorithms", lambda: every)
    FITTED.asked.clear()


@pytest.mark.usefixtures("known")
def test_a_spec_names_values():
    chosen = collectives.choose("all-reduce", "played:channels=4, fast=true")
    assert chosen == ("played", (("channels", 4), ("fast", True), ("shape", "ring"), ("shift", 0)), 1, 1, 1, "auto")
    assert collectives.choose("all-reduce", "played:shift=-3,shape=line").parameters[2:] == (
        ("shape", "line"),
        ("shift", -3),
    )
    assert collectives.choose("all-reduce", "played:") == collectives.choose("all-reduce", "played")
    assert collectives.plan("all-reduce", "played:channels=4", 3).launch_ps == 4
    assert collectives.closed_form("all-reduce", "played:fast=true", 3, 10, 1.0, 1.0) == 21


@pytest.mark.usefixtures("known")
def test_equal_choices_are_one_schedule():
    schedules = ScheduleSet()
    numbers = [
        schedules.add("all-reduce", spec, 4)
        for spec in ("played", "played:channels=2", "played:channels=3", "ring", "played:fast=false,channels=2")
    ]
    assert numbers == [0, 0, 1, 2, 0]
    assert schedules.pack().launch_ps.tolist() == [2, 3, 0]


LISTED = "expected some of channels=2, fast=false, shape=ring, shift=0, dataset_splits=1, chains=1, proto=auto"


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("played:chanels=4", f"algorithm 'played:chanels=4' for all-reduce: 'chanels=4' is no parameter, {LISTED}"),
        ("played:fast", f"algorithm 'played:fast' for all-reduce: 'fast' is no parameter, {LISTED}"),
        (
            "played:shift=1,shift=2",
            f"algorithm 'played:shift=1,shift=2' for all-reduce: 'shift=2' is given twice, {LISTED}",
        ),
        ("played:channels=9", "channels is '9', expected a whole number from 1 to 8"),
        ("played:channels=1.5", "channels is '1.5', expected a whole number from 1 to 8"),
        ("played:shift=much", "shift is 'much', expected a whole number"),
        ("played:fast=yes", "fast is 'yes', expected true or false"),
        ("played:shape=star", "shape is 'star', expected one of ring, line"),
    ],
)
def test_what_cannot_be_is_refused(spec, text):
    assert refused(WorkloadError, CollectiveSettings, {"all-reduce": spec}).endswith(text)


@pytest.mark.usefixtures("known")
def test_an_algorithm_that_asks_for_the_fabric_gets_it():
    graph = topologies.build("torus:sizes=4x2,rate=100Gbps")
    program = collective_program("all-reduce", 8, 3 << 20, "fitted", graph)
    assert FITTED.asked == [3 << 20]
    assert program.schedules.members.tolist() == [8]
    with pytest.raises(WorkloadError, match=r"^algorithm 'fitted' for all-reduce: no fabric is known here, expected"):
        collective_program("all-reduce", 8, 3 << 20, "fitted")


@pytest.mark.usefixtures("known")
def test_sizes_of_one_class_share_a_schedule():
    """So does a group of another shape whose plans are the same."""
    schedules, graph = ScheduleSet(), topologies.build("ring:npus=8")
    some, others = shape_of(graph, range(4)), shape_of(graph, range(0, 8, 2))
    sizes = (5 << 20, (5 << 20) + 1, 6 << 20, 5 << 20)
    shapes = (some, some, some, others)
    assert [schedules.add("all-reduce", "fitted", 4, *at) for at in zip(shapes, sizes, strict=True)] == [0, 0, 1, 0]
    assert schedules.add("all-reduce", "fitted", 1) == -1


@pytest.mark.usefixtures("known")
def test_pieces_are_those_of_the_finest_lane(monkeypatch):
    monkeypatch.setattr(PLAYED, "plan", lambda _, members, **__: two_rings(members))
    schedules = ScheduleSet()
    assert schedules.pieces(schedules.add("all-reduce", "played", 5)) == 10


FABRIC = "rail-optimised:npus={npus},gpus_per_host=4"


def shape(hosts, members=None):
    graph = topologies.build(FABRIC.format(npus=4 * hosts))
    return shape_of(graph, range(graph.npus) if members is None else members)


@pytest.mark.parametrize("kind", rotated_ring.KINDS)
@pytest.mark.parametrize(("hosts", "members"), [(1, None), (2, None), (3, None), (3, (0, 4, 8)), (2, (0, 1, 2, 4, 5))])
def test_plans_do_what_the_kind_promises(kind, hosts, members):
    check(kind, pack([rotated_ring.plan(kind, shape(hosts, members), 1 << 20)]), 0)


def rings_of(shape):
    return rotated_ring._rings(shape)


def test_order_is_that_of_simai():
    """MockNcclGroup::gen_local_ring turns the members of the first host, and further hosts repeat that."""
    assert rings_of(shape(2)) == [
        (0, 1, 2, 3, 4, 5, 6, 7),
        (1, 2, 3, 0, 5, 6, 7, 4),
        (2, 3, 0, 1, 6, 7, 4, 5),
        (3, 0, 1, 2, 7, 4, 5, 6),
    ]
    assert rings_of(shape(2, (0, 1, 2, 4, 5))) == [(0, 1, 2, 3, 4)]


def test_each_network_interface_sends_for_one_ring():
    found = shape(3)
    hops = [hop for ring in rings_of(found) for hop in pairwise((*ring, ring[0]))]
    leaving = Counter(a for a, b in nonempty(hops) if found.host[a] != found.host[b])
    assert set(leaving.values()) == {1}
    assert len(leaving) == found.members
