"""Algorithms with parameters, and those that ask for the fabric."""

from types import SimpleNamespace

import pytest

from nadi import topologies
from nadi.workload import CollectiveSettings, WorkloadError, collective_program, collectives
from nadi.workload.collectives.algorithms import ring
from nadi.workload.collectives.schedules.packed import ScheduleSet
from nadi.workload.shape import shape_of
from tests.refusals import refused
from tests.workload.handmade import two_rings

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


@pytest.fixture(autouse=True)
def known(monkeypatch):
    every = collectives.known_algorithms() | {"played": PLAYED, "fitted": FITTED}
    monkeypatch.setattr(collectives, "known_algorithms", lambda: every)
    FITTED.asked.clear()


def test_a_spec_names_values():
    chosen = collectives.choose("all-reduce", "played:channels=4, fast=true")
    assert chosen == ("played", (("channels", 4), ("fast", True), ("shape", "ring"), ("shift", 0)), 1, 1, 1)
    assert collectives.choose("all-reduce", "played:shift=-3,shape=line").parameters[2:] == (
        ("shape", "line"),
        ("shift", -3),
    )
    assert collectives.choose("all-reduce", "played:") == collectives.choose("all-reduce", "played")
    assert collectives.plan("all-reduce", "played:channels=4", 3).launch_ps == 4
    assert collectives.closed_form("all-reduce", "played:fast=true", 3, 10, 1.0, 1.0) == 21


def test_equal_choices_are_one_schedule():
    schedules = ScheduleSet()
    numbers = [
        schedules.add("all-reduce", spec, 4)
        for spec in ("played", "played:channels=2", "played:channels=3", "ring", "played:fast=false,channels=2")
    ]
    assert numbers == [0, 0, 1, 2, 0]
    assert schedules.pack().launch_ps.tolist() == [2, 3, 0]


LISTED = "expected some of channels=2, fast=false, shape=ring, shift=0, dataset_splits=1, chains=1"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("played:chanels=4", f"algorithm 'played:chanels=4' for all-reduce: 'chanels=4' is no parameter, {LISTED}"),
        ("played:fast", f"algorithm 'played:fast' for all-reduce: 'fast' is no parameter, {LISTED}"),
        (
            "played:shift=1,shift=2",
            f"algorithm 'played:shift=1,shift=2' for all-reduce: 'shift=2' is given twice, {LISTED}",
        ),
        ("halving-doubling:x=1", "'x=1' is no parameter, expected some of dataset_splits=1, chains=1"),
        ("ring:dataset_splits=0", "dataset_splits is '0', expected a whole number from 1 to 1024"),
        ("ring:chains=1025", "chains is '1025', expected a whole number from 1 to 1024"),
        ("played:channels=9", "channels is '9', expected a whole number from 1 to 8"),
        ("played:channels=1.5", "channels is '1.5', expected a whole number from 1 to 8"),
        ("played:shift=much", "shift is 'much', expected a whole number"),
        ("played:fast=yes", "fast is 'yes', expected true or false"),
        ("played:shape=star", "shape is 'star', expected one of ring, line"),
    ],
)
def test_what_cannot_be_is_refused(spec, text):
    assert refused(WorkloadError, CollectiveSettings, {"all-reduce": spec}).endswith(text)


def test_an_algorithm_that_asks_for_the_fabric_gets_it():
    graph = topologies.build("torus:sizes=4x2,rate=100Gbps")
    program = collective_program("all-reduce", 8, 3 << 20, "fitted", graph)
    assert FITTED.asked == [3 << 20]
    assert program.schedules.members.tolist() == [8]
    with pytest.raises(WorkloadError, match=r"^algorithm 'fitted' for all-reduce: no fabric is known here, expected"):
        collective_program("all-reduce", 8, 3 << 20, "fitted")


def test_sizes_of_one_class_share_a_schedule():
    """So does a group of another shape whose plans are the same."""
    schedules, graph = ScheduleSet(), topologies.build("ring:npus=8")
    some, others = shape_of(graph, range(4)), shape_of(graph, range(0, 8, 2))
    sizes = (5 << 20, (5 << 20) + 1, 6 << 20, 5 << 20)
    shapes = (some, some, some, others)
    assert [schedules.add("all-reduce", "fitted", 4, *at) for at in zip(shapes, sizes, strict=True)] == [0, 0, 1, 0]
    assert schedules.add("all-reduce", "fitted", 1) == -1


def test_pieces_are_those_of_the_finest_lane(monkeypatch):
    monkeypatch.setattr(PLAYED, "plan", lambda _, members, **__: two_rings(members))
    schedules = ScheduleSet()
    assert schedules.pieces(schedules.add("all-reduce", "played", 5)) == 10
