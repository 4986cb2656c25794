"""Results that several programs have in common: the same as made alone, in any order, within a number of bytes."""

import copy
import gc
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.topologies import build
from nadi.workload import WorkloadError, collectives
from nadi.workload.collectives.schedules.packed import ScheduleSet
from nadi.workload.kept import KeptResults
from nadi.workload.shape import shape_of
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.workload import msccl_files
from tests.workload.test_extent import ALGORITHMS, asked

GRAPH = build("dgx-h100:npus=32")
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
SIZES = (1 << 10, 1 << 20, 3 << 20, 300_000_000, 900_000_000)


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


_REQUESTS = st.lists(st.tuples(st.sampled_from(ASKED), st.sampled_from(GROUPS), st.sampled_from(SIZES)), max_size=8)


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
    graph, group = build("rail-optimised:npus=4,gpus_per_host=4"), [*range(4)]
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
    gc.collect()
    gc.freeze()  # what other tests have left is not searched for garbage again and again
    for choice, kind, shape, members, size in nonempty(
        asked(name, ("dgx-h100:npus=24", "torus:sizes=2x3x4"), (1 << 22,))
    ):
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
