import struct

import pytest

from nadi.et.errors import TraceError
from nadi.et.formats import format_of, formats

GOAL = formats()["goal"]
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
    [
        (SEND, 0, 10, 300000000, 0, 0, [], []),
        (RECV, 0, 65536, 7, 3, 0, [0], []),
        (CALC, 0, 2000, 0, 0, 0, [], []),
    ],
]
TEXT = """num_ranks 2
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


def read(tmp_path, content, name="x.bin"):
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
    binary, _ = read(tmp_path, packed(RANKS, magic))
    text, _ = read(tmp_path, TEXT.encode(), "x.goal")
    assert [columns(table) for table in binary] == [columns(table) for table in text]


def test_cpu_and_nic_are_kept_and_written(tmp_path):
    _, traces = read(tmp_path, packed(RANKS))
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
            for parent in table.dep[table.dep_ptr[child] : table.dep_ptr[child + 1]].tolist():
                ends[parent].append(child)
        sends = table.comm_src == rank
        peers = [int(d if s else r) for s, d, r in zip(sends, table.comm_dst, table.comm_src, strict=True)]
        kinds = [SEND if s else RECV for s in sends]
        ranks.append([(kinds[i], peers[i], 1, 0, 0, 0, ends[i], []) for i in range(len(table))])
    binary, _ = read(tmp_path, packed(ranks))
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
        read(tmp_path, content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
