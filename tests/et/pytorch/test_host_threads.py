"""Threads of the host, their collectives and calls, pieces of time, and clocks of ranks."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.et.pytorch import comm_calls, convert
from nadi.et.pytorch.comms import Comm
from nadi.et.pytorch.host_trace import HostOp
from nadi.et.pytorch.injected import nadi_collecting
from nadi.et.pytorch.nodes import BEGINS, ENDS
from nadi.et.pytorch.rank_nodes import NO_OWNER, HostSpan, pieces
from nadi.et.pytorch.ranks import estimate, waited_and_early_ns
from nadi.et.schema import CollectiveCommType as Kind
from nadi.et.table import waited_micros
from tests.et.checked import checked_tables
from tests.et.parents import names_of_parents
from tests.et.pytorch.recorded import kineto, op, written

CALL = "gloo:all_reduce"


def reduced(issue, begin, end, thread=5, elements=256):
    """An all-reduce that the main thread hands over from `issue` to issue + 5 and a thread of gloo's carries out."""
    said = {"Input Dims": [[elements]], "Input type": ["float"]}
    return [
        op("c10d::allreduce_", issue, issue + 5, rf_id=issue),
        op(CALL, begin, end, thread, issue + 1, category="user_annotation", **said),
    ]


def step(events, begin, end, number=4):
    return [op(f"ProfilerStep#{number}", begin, end, category="user_annotation"), *events]


def converted(folder, of_ranks, hosts=("one", "one"), chosen="4"):
    documents = {
        f"kineto_{rank}": kineto(events, rank, 2, host_name=host)
        for rank, (events, host) in enumerate(zip(of_ranks, hosts, strict=True))
    }
    return convert(written(folder, **documents), chosen)


def node(table, name):
    """Start, duration and parents' names of the one node of that name; None = there is none."""
    rows = [row for row, found in enumerate(table.names) if found == name]
    if not rows:
        return None
    (row,) = rows
    return int(table.start_time_micros[row]), int(table.duration_micros[row]), names_of_parents(table, row)


def two_steps(fast_us):
    """A step whose transfer takes so long, and one (200 to 400) in which threads begin late and end late.

    There the last member comes at 280; rank 0 leaves at 300, rank 1 at 330.
    """
    fast = [step(reduced(10, 20, 30 + fast_us), 0, 190, 3), step(reduced(10, 30, 30 + fast_us), 0, 190, 3)]
    slow = [step(reduced(210, 230, 300), 200, 400), step(reduced(250, 280, 330), 200, 400)]
    return [a + b for a, b in zip(fast, slow, strict=True)]


def test_what_threads_take_beyond_the_fastest_transfer_are_nodes_of_the_host(tmp_path):
    made = converted(tmp_path, two_steps(fast_us=8))
    late, last = made.tables[0], made.tables[1]
    assert node(late, f"{CALL} {BEGINS}")[:2] == (15, 15)  # handed over at 215, begun at 230
    assert node(last, f"{CALL} {BEGINS}")[:2] == (55, 25)
    assert node(late, CALL) == node(last, CALL) == (80, 8, {f"{CALL} {BEGINS}"})  # from when the last has come
    assert node(late, f"{CALL} {ENDS}") == (88, 12, {CALL})
    assert node(last, f"{CALL} {ENDS}") == (88, 42, {CALL})
    assert [waited_micros(table).max() for table in (late, last)] == [50, 0]
    for table, over in ((late, 100), (last, 130)):  # the step goes on when the thread has ended, not the transfer
        after = [row for row in range(len(table)) if f"{CALL} {ENDS}" in names_of_parents(table, row)]
        assert [(table.names[row], table.duration_micros[row]) for row in after] == [
            ("ProfilerStep#4 (continued)", 200 - over)
        ]
    assert made.report["ranks"][1]["host_threads_us"] == 25 + 42


def test_a_call_that_waits_for_its_thread_comes_after_the_one_before(tmp_path):
    events = step([*reduced(210, 215, 280), *reduced(220, 290, 320, elements=64)], 200, 400)
    table = converted(tmp_path, [events, events]).tables[0]
    waits = [row for row, name in enumerate(table.names) if name == f"{CALL} {BEGINS}"]
    assert table.duration_micros[waits].tolist() == [10]  # of the second call, since the first is over
    assert CALL in names_of_parents(table, waits[0])


def test_time_of_two_threads_at_once_counts_once(tmp_path):
    """Handed over at 215 and 225, begun at 260 and 270: 45 microseconds, not 45 and 45."""
    events = step([*reduced(210, 260, 300, 5), *reduced(220, 270, 310, 6, elements=50)], 200, 400)
    table = converted(tmp_path, [events, events]).tables[0]
    begins = sorted(row for row, name in enumerate(table.names) if name.endswith(BEGINS))
    assert table.start_time_micros[begins].tolist() == [15, 60]
    assert table.duration_micros[begins].tolist() == [45, 10]


def test_a_thread_that_waits_while_another_does_is_left_a_microsecond(tmp_path):
    """Handed over at 215 and 225, begun at 260 and 258: no computation without any time is left, as if unmeasured."""
    events = step([*reduced(210, 260, 300, 5), *reduced(220, 258, 310, 6, elements=50)], 200, 400)
    made = converted(tmp_path, [events, events])
    durations = [
        table.duration_micros[[name.endswith(BEGINS) for name in table.names]] for table in made.tables.values()
    ]
    assert [sorted(each.tolist()) for each in durations] == [[1, 45], [1, 45]]
    assert not [what for what in found_in(made, tmp_path / "traces") if "no time" in what]


@pytest.mark.parametrize("hosts", [("one", "two"), ("", "")])
def test_between_hosts_all_that_a_transfer_takes_is_the_networks(tmp_path, hosts):
    made = converted(tmp_path, two_steps(fast_us=8), hosts)
    assert [node(table, f"{CALL} {ENDS}") for table in made.tables.values()] == [None, None]
    assert made.report["ranks"][1]["clock_offset_removed_us"] == -30
    assert [node(table, CALL)[1] for table in made.tables.values()] == [50, 50]  # both leave at once, 50 after the last


def test_two_calls_that_threads_begin_in_another_order_stay_in_that_of_issue(tmp_path):
    first, second = reduced(210, 240, 300, 5, elements=100), reduced(220, 230, 310, 6, elements=50)
    usual = [*reduced(210, 235, 300, 5, elements=100), *reduced(220, 245, 310, 6, elements=50)]
    made = converted(tmp_path, [step([*first, *second], 200, 400), step(usual, 200, 400)])
    sizes = [table.comm_size[table.comm_type >= 0].tolist() for table in made.tables.values()]
    assert sizes[0] == sizes[1]


def found_in(made, folder):
    return [sort.what for sort in checked_tables(folder, made.tables).groups]


def test_times_are_of_one_clock_though_waiting_is_taken_out_unless_recorded_ones_are_not(tmp_path):
    """A member that waited leaves when the others do; one that leaves before another has come has a wrong clock."""
    (tmp_path / "right").mkdir()
    right = converted(tmp_path / "right", two_steps(fast_us=8))
    assert right.report["left_too_early_us"] == []
    assert found_in(right, tmp_path / "right-traces") == []
    ahead = [step(reduced(210, 230, 260), 200, 400), step(reduced(250, 280, 330), 200, 400)]
    (tmp_path / "wrong").mkdir()
    wrong = converted(tmp_path / "wrong", ahead)
    assert wrong.report["left_too_early_us"] == [20.0]
    assert any("leaves a collective before another has come, up to 20.0 us" in note for note in wrong.notes)
    assert found_in(wrong, tmp_path / "wrong-traces") == ["collectives end at a member before another begins them"]


END = 40


def naive(spans):
    """By moment the owner: of the spans that are open the one that began last, of these the last one listed."""
    found = []
    for now in range(END):
        open_now = [span for span in spans if span.start_ns <= now < span.end_ns]
        found.append(max(open_now, key=lambda span: (span.start_ns, span.owner)).owner if open_now else NO_OWNER)
    return found


@given(st.lists(st.tuples(st.integers(0, END - 1), st.integers(0, END)), max_size=8))
def test_every_moment_belongs_to_what_began_last(drawn):
    spans = [HostSpan(start, min(start + length, END), owner) for owner, (start, length) in enumerate(drawn)]
    made = pieces(spans, 0, END)
    assert [piece.owner for piece in made for _ in range(piece.start_ns, piece.end_ns)] == naive(spans)
    assert all(before.end_ns == after.start_ns for before, after in pairwise(made))
    first = [piece.owner for piece in made if piece.is_first and piece.owner != NO_OWNER]
    assert sorted(first) == list(range(len(spans)))


TENSOR = [5, 6, 0, 1000, 2, "cuda:0"]


def record(inputs, types, **attributes):
    return HostOp(1, "record_param_comms", 0, 1, 1, inputs, types, [], attributes)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", Kind.ALL_REDUCE),
        ("_allgather_base", Kind.ALL_GATHER),
        ("all_gather_into_tensor_coalesced", Kind.ALL_GATHER),
        ("reduce_scatter_tensor_coalesced", Kind.REDUCE_SCATTER),
        ("all_to_allv", Kind.ALL_TO_ALL),
        ("c10d::alltoall_base_", Kind.ALL_TO_ALL),
        ("c10d::allreduce_coalesced_", Kind.ALL_REDUCE),
        ("reduce", Kind.REDUCE),
        ("scatter", Kind.SCATTER),
        ("send", comm_calls.SEND),
        ("recv_any_source", comm_calls.RECV),
        ("wait", None),
        ("all_reduce_of_the_future", None),
    ],
)
def test_a_name_means_its_kind_or_none(name, kind):
    assert comm_calls.kind_named(name) == kind


OLD = ([[TENSOR], 3, 93825114103440, 0, "allreduce", [], [], 8], ["GenericList[Tensor(c10::Half)]", *["Int"] * 7])
NEW = ([[TENSOR], 3, ["1", "tp"], 0, "allreduce", [], [], 4, 2, 8], ["GenericList[Tensor(float)]", *["Int"] * 9])


def test_every_schema_says_kind_bytes_and_group():
    old = comm_calls.call_of_host(record(*OLD))
    assert (old.kind, old.size_bytes, old.group, old.group_size, old.dtype) == (0, 2000, "93825114103440", 8, "Half")
    new = comm_calls.call_of_host(
        record(*NEW, pg_name="1", pg_size=8, global_rank_start=4, global_rank_stride=2, dtype="Half")
    )
    assert (new.kind, new.size_bytes, new.group, new.ranks) == (0, 2000, "1", tuple(range(4, 20, 2)))
    assert comm_calls.call_of_host(record([3, 0, 0, "wait", [], [], 1], ["Int"] * 7)) is None


def test_split_sizes_and_sizes_in_elements_are_kept():
    args = {"Collective name": "all_to_allv", "In msg nelems": 6, "Out msg nelems": 4, "dtype": "BFloat16"}
    call = comm_calls.call_of_kineto(
        "record_param_comms", args | {"In split size": "[4, 2]", "Out split size": "[1, 3]"}
    )
    assert (call.size_bytes, call.in_split, call.out_split) == (12, (4, 2), (1, 3))
    cut = comm_calls.call_of_kineto("record_param_comms", args | {"In split size": "[4, ...]"})
    assert cut.in_split == ()


def test_gloo_has_peers_and_splits_from_what_has_issued_it():
    send = comm_calls.call_of_kineto("gloo:send", {"Input Dims": [[4]], "Input type": ["float"]})
    send = comm_calls.with_issuer(send, "c10d::send", ["", "", "3", "17"])
    assert (send.kind, send.size_bytes, send.peer, send.tag) == (comm_calls.SEND, 16, 3, 17)
    even = comm_calls.call_of_kineto("gloo:all_to_all", {"Input Dims": [[4]], "Input type": ["float"]})
    uneven = comm_calls.with_issuer(even, "c10d::alltoall_base_", ["", "", "", "[3, 1]", "[1, 3]", "False", "-1"])
    assert (uneven.in_split, uneven.out_split) == ((1, 3), (3, 1))
    assert comm_calls.call_of_kineto("gloo:barrier", {}).size_bytes == 0
    assert comm_calls.call_of_kineto("gloo:all_reduce", {}).size_bytes == -1


def test_the_annotation_of_groups_is_that_of_the_collector():
    assert comm_calls.GROUP_ANNOTATION == nadi_collecting.GROUP_ANNOTATION


def executed(start_ns, end_ns):
    return Comm(call=None, issuer=-1, name="", start_ns=start_ns, end_ns=end_ns)


def test_offsets_of_clocks_are_found_and_removed():
    rng = np.random.default_rng(1)
    offsets = {0: 0, 1: 7_000_000, 2: -3_000_000}
    instances = []
    for moment in range(0, 10**9, 10**7):
        end = {rank: moment + int(rng.integers(0, 20_000)) for rank in offsets}
        own = {rank: end[rank] - offset for rank, offset in offsets.items()}
        instances.append({rank: executed(own[rank] - 10**6, own[rank]) for rank in offsets})
    first = [{rank: taken for rank, taken in some.items() if rank < 2} for some in instances]
    second = [{rank: taken for rank, taken in some.items() if rank > 0} for some in instances]
    clocks = estimate([0, 1, 2, 5], first + second)  # ranks 0 and 2 share none
    assert clocks.offset_ns == pytest.approx(offsets | {5: 0}, abs=20_000)
    assert clocks.unknown == (5,)
    hosts = {0: "a", 1: "b", 2: "b", 5: "b"}
    assert clocks.significant(hosts) == clocks.offset_ns
    assert set(clocks.significant(dict.fromkeys(hosts, "a")).values()) == {0}


def test_an_offset_no_larger_than_chance_is_not_significant():
    ends = [0, 100, -90, 110, -80]
    clocks = estimate([0, 1], [{0: executed(-9, 0), 1: executed(-9, end)} for end in ends])
    assert clocks.spread_ns[1] > 0
    assert clocks.significant({0: "", 1: ""}) == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("kind", "root", "waited"),
    [
        (Kind.ALL_REDUCE, None, {0: 30, 1: 20, 2: 0}),
        (Kind.BROADCAST, 1, {0: 10, 1: 0, 2: 0}),
        (Kind.REDUCE, 0, {0: 30, 1: 0, 2: 0}),
    ],
)
def test_members_wait_for_those_whom_they_need(kind, root, waited):
    instance = {0: executed(0, 100), 1: executed(10, 100), 2: executed(30, 100)}
    assert waited_and_early_ns(kind, instance, dict.fromkeys(instance, 0), root)[0] == waited
    shifted = {0: executed(0, 100), 1: executed(10, 100), 2: executed(1030, 1100)}
    assert waited_and_early_ns(kind, shifted, {0: 0, 1: 0, 2: -1000}, root)[0] == waited
