"""GOAL schedules, as text and binary, beside traces that one makes of them by hand."""

import gzip
import random
import struct

import numpy as np
import pytest

from nadi import et
from nadi.et.errors import TraceError
from nadi.et.formats import format_of, formats
from nadi.et.formats.goal import rounds
from tests.et.checked import checked
from tests.et.parents import parents_of

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


@pytest.mark.parametrize("name", ["x.goal", "x.goal.gz"])
def test_a_file_becomes_the_traces_that_one_makes_of_it_by_hand(tmp_path, name):
    traces = read(tmp_path, TEXT, name)
    assert format_of(tmp_path / name) == "goal"
    zero, one = traces.tables[0], traces.tables[1]
    assert list(zero.names) == ["l1", "l2", "l3", "l4"]
    assert zero.duration_micros.tolist() == [1, 0, 1, 0]  # 1.5 us and 0.7 us: 2.2 in all
    assert (zero.comm_dst[1], zero.comm_size[1], zero.comm_tag[1]) == (1, 65536, 7)
    assert [parents_of(zero, i) for i in range(4)] == [[], [0], [0], []]
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
    parents = {table.names[row]: [table.names[at] for at in parents_of(table, row)] for row in range(4)}
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
    report = checked(tmp_path, [tmp_path / "back" / f"b.{npu}.et" for npu in range(4)])
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
    found = {(row, parent) for row in range(300) for parent in parents_of(table, row)}
    assert found == {(place[f"n{i}"], place[f"n{p}"]) for i, p in waits}
    total = sum(int(line.split()[2]) for line in lines if "calc" in line)
    assert int(table.duration_micros.sum()) == total // 1000


CALC, SEND, RECV = 3, 1, 2


def packed(ranks, magic=4223, max_cpu=3, max_nic=1):
    """Return a file as LogGOPSim's Parser.hpp writes it; a rank: [(type, peer, size, tag, cpu, nic, ends, starts)]."""
    parts = []
    for operations in ranks:
        pointed = [i for *_, ends, starts in operations for i in (*ends, *starts)]
        roots = [i for i in range(len(operations)) if i not in pointed]
        rows, at = b"", 0
        for i, (kind, peer, size, tag, cpu, nic, ends, starts) in enumerate(operations):
            rows += struct.pack("<IBIQIBB", pointed.count(i), kind, peer, size, tag, cpu, nic)
            rows += struct.pack("<IIII", len(ends), at, len(starts), at + len(ends))
            at += len(ends) + len(starts)
        numbers = (len(operations), len(roots), *roots)
        parts.append(struct.pack(f"<{len(numbers)}I", *numbers) + rows + struct.pack(f"<{at}I", *pointed))
    head = struct.pack("<QIBB", magic, len(ranks), max_cpu, max_nic)
    place = len(head) - 8 + 16 * len(ranks)
    for part in parts:
        head += struct.pack("<QQ", place, place + len(part))
        place += len(part)
    return head + b"".join(parts)


RANKS = [
    [
        (CALC, 0, 1500, 0, 2, 0, [1], []),
        (SEND, 1, 65536, 7, 0, 1, [], [3]),
        (CALC, 0, 700, 0, 0, 0, [], []),
        (RECV, 1, 10, 300000000, 0, 0, [], []),
    ],
    [(SEND, 0, 10, 300000000, 0, 0, [], []), (RECV, 0, 65536, 7, 3, 0, [0], []), (CALC, 0, 2000, 0, 0, 0, [], [])],
]
BINARY_TEXT = """num_ranks 2
rank 0 {
calc0: calc 1500 cpu 2
send1: send 65536b to 1 tag 7 nic 1
send1 requires calc0
calc2: calc 700
recv3: recv 10b from 1 tag 300000000
recv3 irequires send1
}
rank 1 {
send0: send 10b to 0 tag 300000000
send0 requires recv1
recv1: recv 65536b from 0 tag 7 cpu 3
calc2: calc 2000
}
"""


def read_binary(tmp_path, content, name="x.bin"):
    (tmp_path / name).write_bytes(content)
    assert format_of(tmp_path / name) == "goal"
    traces = GOAL.read([tmp_path / name], {})
    return [traces.tables[rank] for rank in sorted(traces.tables)], traces


def columns(table):
    others = [{str(message) for message in table.other_attributes[i]} for i in table.other.tolist()]
    numbers = (table.type, table.duration_micros, table.comm_size, table.comm_dst, table.comm_src, table.comm_tag)
    edges = (table.dep_ptr, table.dep)
    return list(table.names), others, [column.tolist() for column in (*numbers, *edges)]


@pytest.mark.parametrize("magic", [4223, 2342])
def test_a_binary_schedule_is_the_trace_of_its_text(tmp_path, magic):
    binary, _ = read_binary(tmp_path, packed(RANKS, magic))
    text, _ = read_binary(tmp_path, BINARY_TEXT.encode(), "x.goal")
    assert [columns(table) for table in binary] == [columns(table) for table in text]


def test_cpu_and_nic_are_kept_and_written(tmp_path):
    _, traces = read_binary(tmp_path, packed(RANKS))
    GOAL.write(traces, tmp_path, "y", {})
    lines = (tmp_path / "y.goal").read_text()
    assert "calc 1500 cpu 2\n" in lines
    assert "send 65536b to 1 tag 7 nic 1\n" in lines
    assert "recv 65536b from 0 tag 7 cpu 3\n" in lines


def test_the_binary_of_htsims_tree_is_the_trace_of_its_text(tmp_path, shared_data):
    source = shared_data / "formats/goal/binary_tree_32.goal"
    traces = GOAL.read([source], {})
    ranks = []
    for rank in range(32):
        table = traces.tables[rank]
        ends = [[] for _ in range(len(table))]
        for child in range(len(table)):
            for parent in parents_of(table, child):
                ends[parent].append(child)
        sends = table.comm_src == rank
        peers = [int(d if s else r) for s, d, r in zip(sends, table.comm_dst, table.comm_src, strict=True)]
        kinds = [SEND if s else RECV for s in sends]
        ranks.append([(kinds[i], peers[i], 1, 0, 0, 0, ends[i], []) for i in range(len(table))])
    binary, _ = read_binary(tmp_path, packed(ranks))
    assert [columns(table)[2] for table in binary] == [columns(traces.tables[rank])[2] for rank in range(32)]


def with_number(content, at, kind, value):
    return content[:at] + struct.pack(kind, value) + content[at + struct.calcsize(kind) :]


FILE = packed(RANKS)
PART = 8 + struct.unpack_from("<Q", FILE, 14)[0]
FIRST = PART + 8 + 4 * 2  # of two roots


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FILE[:10], "0 ranks, expected 1 to"),
        (FILE[:40], "40 bytes, expected the places of 2 ranks first"),
        (with_number(FILE, 14, "<Q", 2**63), "expected a part of the file's"),
        (with_number(FILE, 22, "<Q", 10**6), "expected a part of the file's"),
        (with_number(FILE, PART, "<I", 2**31), "more than its bytes can have"),
        (with_number(FILE, FIRST + 4, "<B", 9), "operation of type 9"),
        (with_number(FILE, FIRST + 9, "<Q", 10**18), "calc of 1000000000000000000, expected less than 10^18"),
        (with_number(FILE, FIRST + 23, "<I", 2**32 - 1), "a successor that is none of its 4 operations"),
        (with_number(FILE, FIRST + 27, "<I", 2**32 - 1), "a successor that is none of its 4 operations"),
        (packed([[(SEND, 5, 1, 0, 0, 0, [], [])], []]), "send with rank 5, expected another of the 2 ranks"),
        (packed([[(RECV, 2**32 - 1, 1, 0, 0, 0, [], [])], []]), "recv with any rank"),
        (packed([[(SEND, 1, 1, 2**31, 0, 0, [], [])], []]), "tag 2147483648"),
        (packed([[(CALC, 0, 1, 0, 0, 0, [0], [])], []]), "calc0 waits for itself"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path, content, message):
    with pytest.raises(TraceError) as caught:
        read_binary(tmp_path, content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
