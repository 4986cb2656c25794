import gzip
import random

import numpy as np
import pytest

from nadi import et
from nadi.et.checking.check import Sources
from nadi.et.checks import check_traces
from nadi.et.formats import format_of, formats
from nadi.et.goal.writing import rounds

GOAL = formats()["goal"]
TEXT = """// two ranks
num_ranks 2

rank 0 {
l1: calc 1500 cpu 0
l2: send 65536b to 1 tag 7 cpu 0 nic 0
l2 requires l1
/* rank 7 { of a comment */
l3: calc 700
l4: recv 10b from 1 tag 300000000
l3 irequires l2
}
rank 1 {
b: send 10b to 0 tag 300000000
b requires a
a: recv 65536b from 0 tag 7
calc 2000
}
"""


def read(tmp_path, text, name="x.goal"):
    (tmp_path / name).write_bytes(text.encode() if name.endswith("l") else gzip.compress(text.encode()))
    return GOAL.read([tmp_path / name], {})


def checked(folder, npus):
    files = tuple(folder / f"b.{npu}.et" for npu in range(npus))
    return check_traces(Sources(folder, files, tuple(np.array([n]) for n in range(npus)), (-1,) * npus, npus))


@pytest.mark.parametrize("name", ["x.goal", "x.goal.gz"])
def test_a_file_becomes_the_traces_that_one_makes_of_it_by_hand(tmp_path, name):
    traces = read(tmp_path, TEXT, name)
    assert format_of(tmp_path / name) == "goal"
    zero, one = traces.tables[0], traces.tables[1]
    assert list(zero.names) == ["l1", "l2", "l3", "l4"]
    assert zero.duration_micros.tolist() == [1, 0, 1, 0]  # 1.5 us and 0.7 us: 2.2 in all
    assert (zero.comm_dst[1], zero.comm_size[1], zero.comm_tag[1]) == (1, 65536, 7)
    assert [zero.dep[zero.dep_ptr[i] : zero.dep_ptr[i + 1]].tolist() for i in range(4)] == [[], [0], [0], []]
    assert list(one.names) == ["a", "b", "calc2"]
    assert one.dep.tolist() == [0]
    assert zero.comm_tag[3] == one.comm_tag[1] < 2**24
    assert one.comm_src[0] == 0


@pytest.mark.parametrize(
    "statements", ["c requires d\na irequires b\nb irequires c", "b irequires c\na irequires b\nc requires d"]
)
def test_waits_for_starts_of_operations_that_wait_for_starts(tmp_path, statements):
    operations = "\n".join(f"{name}: calc 1000" for name in "abcd")
    table = read(tmp_path, f"num_ranks 1\nrank 0 {{\n{operations}\n{statements}\n}}\n").tables[0]
    parents = {
        table.names[row]: [table.names[at] for at in table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]].tolist()]
        for row in range(4)
    }
    assert parents == {"a": ["d"], "b": ["d"], "c": ["d"], "d": []}


def test_what_is_written_reads_back_the_same(tmp_path):
    traces = read(tmp_path, TEXT)
    out = tmp_path / "out"
    out.mkdir()
    GOAL.write(traces, out, "y", {})
    again = GOAL.read([out / "y.goal"], {})
    for rank in range(2):
        a, b = traces.tables[rank], again.tables[rank]
        assert a.duration_micros.tolist() == b.duration_micros.tolist()
        assert (a.dep_ptr.tolist(), a.dep.tolist()) == (b.dep_ptr.tolist(), b.dep.tolist())
        for column in ("type", "comm_size", "comm_src", "comm_dst", "comm_tag"):
            assert np.array_equal(getattr(a, column), getattr(b, column))
    assert (out / "y.goal").read_text().count("calc 1500 cpu 0\n") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rank 0 {\n}\n", "no num_ranks"),
        ("num_ranks 1\nrank 0 {\nl1: calc 5\n", "ends without a bracket"),
        ("num_ranks 1\nrank 1 {\n}\n", "rank 1 is beyond num_ranks 1"),
        ("num_ranks 1\nrank 0 {\n}\nrank 0 {\n}\n", "rank 0 occurs twice"),
        ("num_ranks 2\nrank 0 {\nl1: send 5b to 2\n}\n", "send with rank 2, expected another of the 2 ranks"),
        ("num_ranks 2\nrank 0 {\nl1: recv 5b from -1\n}\n", "recv with any rank"),
        ("num_ranks 1\nrank 0 {\nl1: calc 1\nl1 requires l2\n}\n", "no label l2"),
        ("num_ranks 1\nrank 0 {\nl1: calc 1\nl1: calc 1\n}\n", "label l1 occurs twice"),
        ("num_ranks 1\nrank 0 {\na: calc 1\nb: calc 1\na requires b\nb requires a\n}\n", "waits for itself"),
        ("num_ranks 1\nrank 0 {\na: calk 1\n}\n", "found 'a: calk 1'"),
        ("num_ranks 9999999\n", "no num_ranks from 1 to"),
    ],
)
def test_wrong_files_are_told(tmp_path, text, says):
    with pytest.raises(et.TraceError, match=says):
        list(read(tmp_path, text).tables.values())


def played(plans):
    """Whether all members come to their ends, each round waiting for what it receives."""
    done = [0] * len(plans)
    inbox = [[] for _ in plans]
    posted = set()
    for _ in range(sum(map(len, plans)) + 1):
        for me, plan in enumerate(plans):
            if done[me] == len(plan):
                continue
            round_ = plan[done[me]]
            if (me, done[me]) not in posted:
                posted.add((me, done[me]))
                for to, size in round_.sends:
                    inbox[to].append((me, size))
            if all(end in inbox[me] for end in round_.receives):
                for end in round_.receives:
                    inbox[me].remove(end)
                done[me] += 1
    return done == [len(plan) for plan in plans] and not any(inbox)


@pytest.mark.parametrize("kind", list(et.CollectiveCommType))
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_rounds_of_members_fit_together_and_move_what_they_should(kind, n):
    size = 1000
    plans = [rounds(kind, me, n, size, None) for me in range(n)]
    assert played(plans)
    first_share = size // n
    expected = {
        "ALL_REDUCE": 2 * (n - 1) * size,
        "ALL_GATHER": n * (n - 1) * size,
        "SCATTER": size - first_share,
        "BARRIER": n * (n - 1).bit_length(),
    }.get(kind.name, (n - 1) * size)
    assert sum(b for plan in plans for r in plan for _, b in r.sends) == expected


def test_collectives_become_messages_that_check_clean(tmp_path):
    kinds = [et.CollectiveCommType(i) for i in range(10)]
    for npu in range(4):
        nodes = [et.comp_node(100, "x", duration_micros=3)]
        nodes += [et.coll_node(i, kind.name, kind, 1000, deps=[100]) for i, kind in enumerate(kinds)]
        nodes.append(et.coll_node(30, "g", kinds[0], 64, pg_name="p", deps=[0, 1]))
        et.write_trace(tmp_path / f"a.{npu}.et", et.metadata(), nodes)
    (tmp_path / "groups.json").write_text('{"p": [3, 1, 0, 2]}')
    (tmp_path / "goal").mkdir()
    (tmp_path / "back").mkdir()
    chakra = formats()["chakra"]
    GOAL.write(chakra.read([tmp_path], {}), tmp_path / "goal", "y", {})
    chakra.write(GOAL.read([tmp_path / "goal" / "y.goal"], {}), tmp_path / "back", "b", {})
    report = checked(tmp_path / "back", 4)
    assert (report.count("error"), report.count("warning")) == (0, 0), report.described(3)


def test_what_has_no_time_is_refused_unless_rates_are_given(tmp_path):
    nodes = [
        et.comp_node(1, "x", num_ops=10**9, tensor_size=8000),
        et.mem_node(2, "m", et.NodeType.MEM_LOAD_NODE, 10**6),
    ]
    et.write_trace(tmp_path / "a.0.et", et.metadata(), nodes)
    traces = formats()["chakra"].read([tmp_path / "a.0.et"], {})
    with pytest.raises(et.TraceError, match=r"node 1: no duration, expected one, or --to goal:tflops=N"):
        GOAL.write(traces, tmp_path, "y", {})
    GOAL.write(traces, tmp_path, "y", {"tflops": "100", "memory_gbps": "500"})
    text = (tmp_path / "y.goal").read_text()
    assert "l0: calc 10000 cpu 0\n" in text  # 1e9 / 100e12 s; its 8,000 B take 16 ns
    assert "l1: calc 2000 cpu 2\n" in text  # 1e6 B / 500 GB/s


def test_a_random_program_reads_as_a_naive_reader_has_it(tmp_path):
    rng = random.Random(5)  # noqa: S311 - a test
    lines, waits = [], []
    for i in range(300):
        lines.append(f"n{i}: calc {rng.randrange(10**6)}")
        for parent in rng.sample(range(i), min(i, 2)):
            waits.append((i, parent))
            lines.append(f"n{i} requires n{parent}")
    rng.shuffle(lines)
    table = read(tmp_path, "num_ranks 1\nrank 0 {\n" + "\n".join(lines) + "\n}\n").tables[0]
    place = {name: row for row, name in enumerate(table.names)}
    found = {
        (row, parent)
        for row in range(300)
        for parent in table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]].tolist()
    }
    assert found == {(place[f"n{i}"], place[f"n{p}"]) for i, p in waits}
    total = sum(int(line.split()[2]) for line in lines if "calc" in line)
    assert int(table.duration_micros.sum()) == total // 1000
