"""Collectives that threads of the host carry out: what their threads take for themselves, transfers, and clocks."""

import numpy as np
import pytest

from nadi import et
from nadi.et.checking.check import Sources
from nadi.et.checks import check_traces
from nadi.et.pytorch import convert
from nadi.et.pytorch.nodes import BEGINS, ENDS
from nadi.et.table import waited_micros
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
    parents = {table.names[i] for i in table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]].tolist()}
    return int(table.start_time_micros[row]), int(table.duration_micros[row]), parents


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
        after = [row for row in range(len(table)) if f"{CALL} {ENDS}" in parents(table, row)]
        assert [(table.names[row], table.duration_micros[row]) for row in after] == [
            ("ProfilerStep#4 (continued)", 200 - over)
        ]
    assert made.report["ranks"][1]["host_threads_us"] == 25 + 42


def parents(table, row):
    return {table.names[i] for i in table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]].tolist()}


def test_a_call_that_waits_for_its_thread_comes_after_the_one_before(tmp_path):
    events = step([*reduced(210, 215, 280), *reduced(220, 290, 320, elements=64)], 200, 400)
    table = converted(tmp_path, [events, events]).tables[0]
    waits = [row for row, name in enumerate(table.names) if name == f"{CALL} {BEGINS}"]
    assert table.duration_micros[waits].tolist() == [10]  # of the second call, since the first is over
    assert CALL in parents(table, waits[0])


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
    """What `nadi trace check` finds."""
    folder.mkdir()
    files = tuple(folder / f"trace.{npu}.et" for npu in made.tables)
    for file, table in zip(files, made.tables.values(), strict=True):
        et.write_table(file, table)
    users = tuple(np.array([npu]) for npu in made.tables)
    return [sort.what for sort in check_traces(Sources(folder, files, users, (-1, -1), 2)).groups]


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
