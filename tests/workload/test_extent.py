"""What algorithms count before they make plans is what the plans have; results that programs share."""

import copy
import gc
import os
import tracemalloc
from functools import cache

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import topologies
from nadi.workload import collectives
from nadi.workload.collectives.plans.extent import of_any
from nadi.workload.collectives.schedules.packed import ScheduleSet
from nadi.workload.errors import WorkloadError
from nadi.workload.kept import KeptResults
from nadi.workload.shape import shape_of
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.samples import each_value
from tests.workload import msccl_files

SWITCHES = tuple(f"switch:npus={n}" for n in (2, 3, 5, 8))
FABRICS = (*SWITCHES, "torus:sizes=2x3x4", "dgx-h100:npus=8", "dgx-h100:npus=32", "dgx-h100:npus=24")
PARAMETERS = {
    "ring": ("channels=3", "bidirectional=true"),
    "direct": ("window=3",),
    "double-binary-tree": ("chunks=3",),
    "in-network": ("chunks=3",),
    "nvls": ("chunks=3",),
    "nvls-tree": ("chunks=3",),
    "nvls-sharp": ("chunks=3",),
    "pat": ("aggregation=2",),
    "nccl": ("algo=ring", "algo=tree", "algo=nvls", "algo=nvls-tree", "algo=pat", "algo=collnet-direct,collnet=true",
             "pxn=false", "channels=3"),
    "grid": ("splits=3", "algorithms=direct", "algorithms=halving-doubling"),
    "hierarchical": ("algorithms=pairwise",),
}  # fmt: skip
BOUNDS = ("grid", "hierarchical", "custom")
SIZES = (1024, 1 << 22)
ALGORITHMS = sorted(set(collectives.known_algorithms()) - {"custom"})


@cache
def fabric(spec):
    return topologies.build(spec)


@cache
def shape_on(spec, trees):
    return shape_of(fabric(spec), range(fabric(spec).npus), trees=trees)


def asked(name, fabrics, sizes=SIZES):
    """Choice, kind, shape, members and size of all that an algorithm may be asked for here."""
    module = collectives.known_algorithms()[name]
    for spec in fabrics:
        for kind in module.KINDS:
            for parameters in ("", *PARAMETERS.get(name, ())):
                choice = collectives.choose(kind, f"{name}:{parameters}")
                for size in sizes if choice.needs_shape else sizes[:1]:
                    try:
                        own = shape_on(spec, choice.trees) if choice.needs_shape else None
                    except WorkloadError:
                        continue
                    yield choice, kind, own, fabric(spec).npus, size


def count(plans):
    return sum(len(lane) for plan in plans.plans for lane in plan), sum(map(len, plans.plans)), len(plans.plans)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_plans_have_as_many_steps_and_lanes_as_counted(name):
    seen = 0
    for choice, kind, own, members, size in nonempty(asked(name, FABRICS)):
        try:
            made = choice.plan(kind, members, own, size)
        except WorkloadError:
            continue
        found, want = choice.extent(kind, members, own, size), count(made)
        seen += 1
        if name in BOUNDS:
            assert want[0] <= found.steps <= 2 * want[0] + 4, (choice, kind, members)
            assert want[2] == found.plans
        else:
            assert found[:3] == want, (choice, kind, members, size)
        assert found.widest in {0, *range(max(map(len, made.plans)), 200)}
    assert seen > 1


@pytest.fixture
def little_garbage():
    """What other tests have left is not looked through at each collection."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("little_garbage")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_memory_is_within_a_factor_of_two(name):
    """At two sizes of each kind, of plans that are small enough to be measured."""
    seen = 0
    fabrics = ("switch:npus=16", "torus:sizes=6x6", "dgx-h100:npus=32")
    for choice, kind, own, members, size in nonempty(asked(name, fabrics)):
        try:
            found = choice.extent(kind, members, own, size)
            if found.steps > 6000:
                continue
            peak = measured(choice, kind, own, members, size)
        except WorkloadError:
            continue
        seen += 1
        assert peak / 2 <= found.memory_bytes <= 2 * peak, (choice, kind, members, size)
        if seen == 9:
            break
    assert seen > 1


def measured(choice, kind, shape, members, size):
    parameters = ",".join(f"{key}={str(value).lower()}" for key, value in choice.parameters if value != "")
    spec = f"{choice.name}:{parameters}"
    ScheduleSet().add(kind, spec, members, shape, size)  # what is remembered from then on is not counted
    gc.collect()
    tracemalloc.start()
    try:
        schedules = ScheduleSet()
        schedules.add(kind, spec, members, shape, size)
        schedules.pack()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["ring", "binomial", "halving-doubling", "nvls", "in-network"])
def test_parts_are_counted_too(name):
    """A bound of the idle steps that fill up the lanes of members that have fewer."""
    graph = fabric("switch:npus=12")
    for kind in nonempty(set(collectives.known_algorithms()[name].KINDS) - {"barrier", "all-to-all"}):
        choice = collectives.choose(kind, f"{name}:dataset_splits=3,chains=2")
        shape = shape_of(graph, range(12), trees=choice.trees) if choice.needs_shape else None
        found, want = choice.extent(kind, 12, shape, 1 << 20), count(choice.plan(kind, 12, shape, 1 << 20))
        assert 0.8 * want[0] <= found.steps <= 1.2 * want[0]
        assert found[1:3] == want[1:]


def test_algorithms_of_files_are_bounded_by_their_bytes(tmp_path):
    file = tmp_path / "ring.xml"
    file.write_text(msccl_files.ring(4))
    graph = fabric("switch:npus=4")
    choice = collectives.choose("all-reduce", f"custom:file={file}")
    shape = shape_of(graph, range(4))
    found, want = choice.extent("all-reduce", 4, shape, 1024), count(choice.plan("all-reduce", 4, shape, 1024))
    assert want[0] <= found.steps <= 10 * want[0]


def test_an_algorithm_that_counts_nothing_has_a_bound(monkeypatch):
    counted = [collectives.choose(kind, name).extent(kind, 64) for name, kind in (("ring", "all-reduce"),
               ("direct", "all-to-all"), ("bruck", "all-to-all"), ("halving-doubling", "all-reduce"))]  # fmt: skip
    monkeypatch.delattr(collectives.known_algorithms()["ring"], "extent")
    bound = collectives.choose("all-reduce", "ring").extent("all-reduce", 64)
    assert bound == of_any(64)
    assert all(each.steps <= bound.steps for each in counted)


def test_schedules_of_a_set_share_its_memory():
    one = collectives.choose("all-reduce", "direct").extent("all-reduce", 64).memory_bytes
    schedules = ScheduleSet(max_bytes=one + 1000)
    schedules.add("all-reduce", "direct", 64)
    schedules.add("all-reduce", "direct", 64)  # the same one
    with pytest.raises(WorkloadError, match=r"algorithm direct for all-gather of 64 members: its 126 steps would take"):
        schedules.add("all-gather", "direct", 64)


def test_nothing_is_made_of_what_is_refused(monkeypatch):
    monkeypatch.setattr(collectives.known_algorithms()["direct"], "plan", None)
    with pytest.raises(WorkloadError, match="or --force"):
        ScheduleSet(max_bytes=1000).add("all-to-all", "direct", 64)


GRAPH = topologies.build("dgx-h100:npus=32")
GROUPS = ([0, 1], [2, 5], [0, 8], [1, 9], [*range(4)], [*range(8, 12)], [*range(0, 32, 8)], [*range(16)], [*range(32)])
ASKED = (
    ("all-reduce", "nccl"),
    ("all-reduce", "nccl:algo=ring,channels=2"),
    ("all-reduce", "nccl:algo=tree"),
    ("all-gather", "nccl"),
    ("all-to-all", "nccl"),
    ("all-reduce", "ring"),
    ("all-reduce", "ring:channels=2"),
    ("reduce-scatter", "halving-doubling"),
    ("barrier", "dissemination"),
)
KEPT_SIZES = (1 << 10, 1 << 20, 3 << 20, 300_000_000, 900_000_000)


@bounded(100)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 40)), max_size=60), st.integers(0, 100))
def test_what_is_kept_is_within_the_bytes_and_what_was_used_last(requests, max_bytes):
    kept, last = KeptResults(max_bytes), {}
    for name, size in requests:
        key = name, size
        made = []
        assert kept.get(key, lambda key=key, made=made: made.append(1) or key, lambda made: made[1]) == key
        assert bool(made) == (key not in last)
        if key in last or size <= max_bytes:
            last.pop(key, None)
            last[key] = size
        while sum(last.values()) > max_bytes:
            del last[next(iter(last))]
        assert kept.bytes == sum(last.values())


def _added(schedules, requests, graph=GRAPH, trees=None):
    """The numbers or complaints that a set gives, and the columns of its schedules."""
    numbers = []
    for (kind, algorithm), group, size in requests:
        shape = shape_of(graph, group, trees=collectives.choose(kind, algorithm).trees if trees is None else trees)
        try:
            numbers.append(schedules.add(kind, algorithm, len(group), shape, size))
        except WorkloadError as error:
            numbers.append(str(error))
    return numbers, schedules.pack()


_REQUESTS = st.lists(
    st.tuples(st.sampled_from(ASKED), st.sampled_from(GROUPS), st.sampled_from(KEPT_SIZES)), max_size=8
)


@bounded(30)
@given(st.lists(_REQUESTS, min_size=2, max_size=4), st.sampled_from((0, 100_000, 1_000_000, 64 << 20)))
def test_sets_with_common_schedules_are_those_that_each_builds_alone(sets, max_bytes):
    kept = KeptResults(max_bytes)
    for requests in sets:
        common, alone = _added(ScheduleSet(kept=kept), requests), _added(ScheduleSet(), requests)
        assert common[0] == alone[0]
        for name, column in nonempty(common[1]._asdict().items()):
            assert np.array_equal(column, getattr(alone[1], name)), name
        assert kept.bytes <= max_bytes


def test_rates_that_differ_are_refused_whether_schedules_are_kept_or_not():
    graph, group = topologies.build("rail-optimised:npus=4,gpus_per_host=4"), [*range(4)]
    asked = ("all-reduce", "nccl:algo=ring"), ("all-gather", "nccl:pacing=none"), ("all-gather", "nccl:generation=v100")
    requests = [(each, group, 1 << 20) for each in asked]
    kept, wanted = KeptResults(), _added(ScheduleSet(), requests, graph, "")[0]
    assert wanted[2].endswith("and at 1/24 in algorithm nccl:algo=ring for all-reduce of 4, expected one rate")
    assert [_added(ScheduleSet(kept=kept), requests, graph, "")[0] for _ in range(2)] == [wanted] * 2
    backwards = [_added(ScheduleSet(kept=known), requests[::-1], graph, "")[0] for known in (KeptResults(), kept)]
    assert backwards[0] == backwards[1]


def test_a_file_that_changes_is_read_again(tmp_path):
    file = tmp_path / "mine.xml"
    shape, kept, steps = shape_of(GRAPH, range(4)), KeptResults(), []
    for number, text in enumerate((msccl_files.ring(4), msccl_files.all_pairs(4), msccl_files.ring(4))):
        file.write_text(text)
        os.utime(file, ns=(number, number))
        schedules = ScheduleSet(kept=kept)
        schedules.add("all-reduce", f"custom:file={file}", 4, shape, 1 << 20)
        steps.append(schedules.pack().steps.tolist())
    assert steps[0] == steps[2] != steps[1]


def test_an_algorithm_of_a_user_is_asked_each_time(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from nadi.workload.collectives.algorithms import ring\n"
        "KINDS, calls = ring.KINDS, []\n"
        "def plan(kind, members):\n"
        "    calls.append(kind)\n"
        "    return ring.plan(kind, members, channels=len(calls), bidirectional=False)\n"
    )
    kept, lanes = KeptResults(), []
    for _ in range(3):
        schedules = ScheduleSet(kept=kept)
        schedules.add("all-reduce", str(file), 4)
        lanes.append(len(schedules.pack().lane_ptr) - 1)
    assert lanes == [1, 2, 3]
    assert kept.bytes == 0


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "nccl" else ()) for name in ALGORITHMS]
)
def test_schedules_take_no_more_memory_than_counted(name):
    """Of the product of kinds, parameters and fabrics a sample: tracemalloc makes plans five times as slow."""
    gc.collect()
    gc.freeze()  # what other tests have left is not searched for garbage again and again
    fabrics = "dgx-h100:npus=24", "torus:sizes=2x3x4"
    cases = {(case[1], case[0].parameters, case[3]): case for case in asked(name, fabrics, (1 << 22,))}
    for choice, kind, shape, members, size in nonempty([cases[chosen] for chosen in each_value(cases)]):
        values = (f"{key}={str(value).lower() if key != 'algo' else value}" for key, value in choice.parameters)
        spec, kept = f"{name}:{','.join(values)}", KeptResults(1 << 40)
        try:
            ScheduleSet().add(kind, spec, members, shape, size)  # imports, and tables of algorithms
        except WorkloadError:
            continue
        tracemalloc.start()
        try:
            ScheduleSet(kept=kept).add(kind, spec, members, copy.deepcopy(shape), size)
            gc.collect()
            measured = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert 0 < measured <= kept.bytes, (choice, kind, members, size)
