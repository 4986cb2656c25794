"""Statistics and percentiles against examples whose answers are found by hand."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import et
from nadi.et.communications import communications_of, evenly, some_of
from nadi.et.statistics import Rank, statistics
from nadi.et.statistics.timing import _union, critical_path, earliest, percentile, values_needed
from tests.budgets import bounded
from tests.et.measured_ranks import ranks_of, timed

REDUCE = et.CollectiveCommType.ALL_REDUCE


@pytest.fixture
def measured():
    """Two ranks: the second computes longer and comes 30 us late to an all-reduce that takes 10 us.

    rank 0: compute 100 .. 150, all-reduce 150 .. 190 (30 of it waiting), host 50 .. 550, which only the span counts
    rank 1: compute 100 .. 180, all-reduce 180 .. 190, compute beside it 185 .. 200, idle, compute 230 .. 240
    """
    return ranks_of(
        [
            timed(et.comp_node(0, "step/host", is_cpu_op=True), 50, 500),
            timed(et.comp_node(1, "step/gemm0", num_ops=100), 100, 50),
            timed(et.coll_node(2, "grads", REDUCE, 1000, deps=[1]), 150, 40),
        ],
        [
            timed(et.comp_node(1, "step/gemm1", num_ops=300), 100, 80),
            timed(et.coll_node(2, "grads", REDUCE, 1000, deps=[1]), 180, 10),
            timed(et.comp_node(3, "gemm", deps=[1]), 185, 15),
            timed(et.comp_node(4, "gemm", deps=[2, 3]), 230, 10),
        ],
    )


def test_waiting_is_told_from_transfer(measured):
    found = statistics(measured)["arrivals"]
    (kind,) = found["kinds"]
    assert (kind["kind"], kind["count"]) == ("all-reduce", 1)
    assert (kind["transfer_micros"], kind["waiting_micros"]) == (10, 30)
    assert kind["greatest_skew_micros"] == 30
    assert [rank["waiting_micros"] for rank in found["ranks"]] == [30, 0]
    assert [rank["late"] for rank in found["ranks"]] == [0, 1]
    assert found["most_waiting"][0]["last_npu"] == 1


def test_waiting_that_a_converter_has_taken_out_counts(measured):
    waited = et.attribute("wait_micros", "int64", 30)
    late = timed(et.coll_node(2, "grads", REDUCE, 1000, deps=[1], attrs=[waited]), 180, 10)
    nodes = [timed(et.comp_node(1, "step/gemm0", num_ops=100), 100, 50), late]
    taken_out = [Rank(0, et.table_of(et.metadata(), nodes, keep_others=True)), measured[1]]
    assert statistics(taken_out)["arrivals"] == statistics(measured)["arrivals"]


def test_overlap_exposed_and_idle(measured):
    first, second = statistics(measured)["overlap"]
    assert first == {
        "npu": 0,
        "span_micros": 500,
        "compute_micros": 50,
        "communication_micros": 40,
        "overlap_micros": 0,
        "exposed_micros": 40,
        "idle_micros": 410,
    }
    assert second == {
        "npu": 1,
        "span_micros": 140,
        "compute_micros": 80 + 15 + 10,
        "communication_micros": 10,
        "overlap_micros": 5,
        "exposed_micros": 5,
        "idle_micros": 140 - 110,
    }


def test_the_critical_path_crosses_ranks(measured):
    """Rank 1's first gemm, then its second one (15 us), which takes longer than the all-reduce, then the last."""
    found = statistics([Rank(r.npu, r.table) for r in measured])["critical_path"]
    assert found["micros"] == 500  # the host operator of rank 0, which nothing waits for
    tables = [measured[0].table, measured[1].table]
    gpu = [
        et.table_of(et.metadata(), [timed(et.comp_node(1, "a"), 1, 50), timed(_coll(2, [1]), 1, 40), _comp(3, 5, [2])])
    ]
    gpu.append(tables[1])
    found = critical_path(ranks := [Rank(0, gpu[0]), Rank(1, gpu[1])], communications_of(ranks))
    assert found["micros"] == 80 + 15 + 10
    assert found["by_rank"] == {1: 105}
    longer = et.table_of(et.metadata(), [_comp(1, 50, []), timed(_coll(2, [1]), 1, 40), _comp(3, 70, [2])])
    ranks = [Rank(0, longer), Rank(1, gpu[1])]
    found = critical_path(ranks, communications_of(ranks))
    assert found["micros"] == 80 + 10 + 70  # from rank 1 through the all-reduce, without rank 0's waiting, to rank 0
    assert found["by_rank"] == {1: 80, 0: 80}
    assert found["by_lane"] == {"compute": 150, "collectives": 10}
    assert [(step["npu"], step["id"]) for step in found["steps"]] == [(1, 1), (0, 2), (0, 3)]


def _coll(node_id, deps):
    return et.coll_node(node_id, "grads", REDUCE, 1000, deps=deps)


def _comp(node_id, micros, deps):
    return et.comp_node(node_id, f"c{node_id}", duration_micros=micros, deps=deps)


def test_messages_are_on_the_path():
    send = timed(et.send_node(1, "s", 0, 1, 10, 7, deps=[0]), 0, 4)
    recv = timed(et.recv_node(1, "r", 0, 1, 10, 7, deps=[0]), 0, 60)  # 56 of it waiting
    ranks = ranks_of([_comp(0, 100, []), send, _comp(2, 1, [1])], [_comp(0, 20, []), recv, _comp(2, 8, [1])])
    found = critical_path(ranks, communications_of(ranks))
    assert found["micros"] == 100 + 4 + 8
    assert found["by_lane"] == {"compute": 108, "receives": 4}
    schedule = earliest(ranks, communications_of(ranks))
    assert schedule.start_micros[1].tolist() == [0, 100, 104]
    alone = [ranks[1]]
    assert earliest(alone, communications_of(alone)).start_micros[0].tolist() == [0, 20, 80]


def test_what_never_starts_is_counted():
    first = [
        _comp(0, 1, []),
        et.coll_node(1, "x", REDUCE, 8, pg_name="a", deps=[0, 2]),
        et.coll_node(2, "y", REDUCE, 8),
    ]
    other = [et.coll_node(1, "x", REDUCE, 8, pg_name="a"), et.coll_node(2, "y", REDUCE, 8, deps=[1])]
    ranks = ranks_of(first, other)  # each waits for the other
    assert critical_path(ranks, communications_of(ranks))["unfinished"] == 4


def test_uneven_sizes_are_seen_by_rank_and_by_collective():
    kind = et.CollectiveCommType.ALL_TO_ALL
    sizes = [(100, 200), (100, 100), (100, 150), (100, 150)]
    ranks = ranks_of(*([et.coll_node(i, f"step0/mb{i}/ep", kind, own[i]) for i in range(2)] for own in sizes))
    found = statistics(ranks)
    matrix = found["sizes_by_collective"]
    assert matrix["uneven"] == 1
    assert [label["name"] for label in matrix["collectives"]] == ["step0/mb0/ep", "step0/mb1/ep"]
    assert matrix["bytes"] == [list(own) for own in sizes]
    assert [row[0] for row in matrix["deviation"]] == [0, 0, 0, 0]
    assert [row[1] for row in matrix["deviation"]] == pytest.approx([1 / 3, -1 / 3, 0, 0], abs=1e-6)
    assert found["bytes_by_rank"]["bytes"] == [[300], [200], [250], [250]]
    assert found["bytes_by_rank"]["greatest_deviation"] == {"npu": 0, "kind": "all-to-all", "deviation": 0.2}
    (mix,) = found["collectives"]
    assert (mix["count"], mix["bytes"], mix["least_bytes"], mix["median_bytes"], mix["most_bytes"]) == (
        8,
        1000,
        100,
        100,
        200,
    )
    assert mix["different_sizes"] == 3


def test_operators_are_summed_by_the_last_part_of_their_names(measured):
    rows = {(row["lane"], row["name"]): row for row in statistics(measured)["operators"]}
    assert rows["compute", "gemm#"]["flops"] == 400
    assert rows["compute", "gemm#"]["micros"] == 130
    assert rows["compute", "gemm"]["count"] == 2
    assert rows["collectives", "grads"]["bytes"] == 2000
    assert rows["host", "host"]["micros"] == 500


def test_ranks_that_share_a_trace_count_as_often():
    table = et.table_of(
        et.metadata(),
        [et.coll_node(0, "x", REDUCE, 64, pg_name="tp"), et.send_node(1, "s", 0, 1, 8), et.recv_node(2, "r", 3, 0, 8)],
    )
    ranks = [Rank(npu, table, npu, {"tp": f"tp[{npu // 2}]"}) for npu in range(4)]
    found = communications_of(ranks)
    assert [[m.rank for m in members] for key, members in found.items() if key[0] == "collective"] == [[0, 1], [2, 3]]
    messages = {key[1:3]: [(m.rank, m.row) for m in members] for key, members in found.items() if key[0] == "message"}
    assert messages[0, 1] == [(0, 1)]  # NPU 1 receives from 4, as shifts do not wrap
    said = statistics(ranks)
    assert (said["ranks"], said["traces"], said["nodes"]) == (4, 1, 12)
    assert next(row["count"] for row in said["collectives"] if row["kind"] == "all-reduce") == 4


def test_traces_without_times_say_so():
    said = statistics(ranks_of([et.comp_node(0, "c", num_ops=5)], [et.coll_node(0, "x", REDUCE, 8)]))
    assert said["times"] == "none"
    assert said["arrivals"] is said["overlap"] is said["critical_path"] is None
    assert said["collectives"][0]["missing_sizes"] == 0


def test_large_sets_are_looked_at_in_part():
    tables = [et.table_of(et.metadata(), [et.comp_node(i, "c") for i in range(10)]) for _ in range(3)]
    ranks = [Rank(npu, tables[npu % 3]) for npu in range(30)]
    assert [rank.npu for rank in some_of(ranks, 40)] == [0, 1, 2]
    assert len(some_of(ranks, 300)) == 30
    own = [Rank(npu, et.table_of(et.metadata(), [et.comp_node(0, "c")])) for npu in range(9)]
    assert [rank.npu for rank in some_of(own, 3)] == [0, 4, 8]
    assert statistics(ranks, 40)["looked_at"] == 3
    assert evenly(5, 1) == [0]


@bounded(60)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=8))
def test_unions_cover_what_intervals_cover(intervals):
    begin = [a for a, _ in intervals]
    end = [a + n for a, n in intervals]
    import numpy as np

    found = _union(np.array(begin, np.int64), np.array(end, np.int64))
    covered = [t for a, b in zip(*(x.tolist() for x in found), strict=True) for t in range(a, b)]
    assert covered == sorted({t for a, b in zip(begin, end, strict=True) for t in range(a, b)})


@pytest.mark.parametrize(("percent", "needed"), [(50, 1), (90, 10), (95, 20), (99, 100), (99.9, 1000), (100, 1)])
def test_a_percentile_needs_a_value_above_it(percent, needed):
    assert values_needed(percent) == needed
    values = np.arange(needed)
    assert percentile(values, percent) == np.sort(values)[max(int(np.ceil(needed * percent / 100 - 1e-9)) - 1, 0)]
    assert percentile(values[:-1], percent) is None
