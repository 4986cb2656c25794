"""Traces that kernels decode and order give the tables and errors of the parser of protobuf and of a naive search."""

import gzip
import itertools
import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from nadi import et
from nadi.et import decoder, order
from nadi.et.errors import TraceError
from nadi.et.framing import frame
from nadi.et.kernels.nodes import PADDING_BYTES
from nadi.et.schema import Node
from nadi.et.table import OtherAttributes, frames_of
from nadi.pdes.core.jit import jit_enabled
from tests.et.alike import check_alike
from tests.nonempty import nonempty
from tests.plain_python import plain_python
from tests.samples import sampled, some

MUTATIONS = some(150, 400)
SHARED = ("chakra/gpt_fsdp8/workload.0.et", "chakra/dense_dp2tp2pp2/workload.5.et")


@pytest.fixture
def compiled(monkeypatch):
    """The kernel decodes, files of any size."""
    if not jit_enabled():
        pytest.skip("kernels are plain Python")
    monkeypatch.setattr(decoder, "MIN_KERNEL_BYTES", 0)


def both(path, **how):
    """What both readers give: a table or the text of an error; and whether the kernel was sure."""
    found = outcome(path, **how)
    was_sure = decoder.decoded(path, keep_others=how.get("keep_others", False)) is not None
    with pytest.MonkeyPatch.context() as patch:
        for module in (decoder, order):
            patch.setattr(module, "jit_enabled", lambda: False)
        wanted = outcome(path, **how)
    return found, wanted, was_sure


def outcome(path, **how):
    try:
        return et.read_trace(path, **how)
    except TraceError as error:
        return str(error)


def check(path, **how):
    """Both readers agree, with other attributes and without; gives whether it was the kernel that decoded."""
    were_sure = []
    for keep_others in (False, True):
        found, wanted, was_sure = both(path, keep_others=keep_others, **how)
        if isinstance(wanted, str) or isinstance(found, str):
            assert found == wanted
        else:
            check_alike(found, wanted)
            assert list(frames_of(found)) == list(frames_of(wanted))
        were_sure.append(was_sure)
    return all(were_sure)


def rich(small_trace):
    """Nodes with all kinds of attributes, several of them unusual, and words of two bytes."""
    metadata, nodes = small_trace
    more = [
        ("rf_id", "int64", 1 << 40), ("stream", "int64", -1), ("op_schema", "string", "aten::mm(Tensor a) -> b" * 9),
        ("cost", "double", 1.5), ("flags", "bool_list", [True, False]), ("scope", "uint64", 7),
        ("note", "string", "µs"), ("fw_tid", "sint32", -4), ("raw", "bytes", b"\xff\x00"), ("is_cpu_op", "int32", 1),
        ("big", "uint64", 1 << 63),
    ]  # fmt: skip
    nodes[2].attr.extend(et.attribute(name, kind, value) for name, kind, value in more)
    nodes[2].inputs.values, nodes[2].inputs.shapes = "[[1, 2]]", "[[3]]"
    nodes[2].outputs.types = "['Tensor(float)']"
    nodes[3].start_time_micros, nodes[3].duration_micros = 1_700_000_000_000_000, 12
    split = et.coll_node(
        8, "split", et.CollectiveCommType.ALL_TO_ALL, 64, in_split_size=[1, 3], out_split_size=[2, 2], deps=[7],
        involved_dim=[True, False],
    )  # fmt: skip
    operators = [et.attribute("operators", "string", "gemm 8x8x8 bf16")]
    kept = [("ranks", "int32_list", [0, 1]), ("ranks", "int64", 3), ("pg_desc", "string", "data parallel")]
    kept = [et.attribute(*each) for each in kept]
    group = et.group_node(10, "group", "g", [0, 1])
    group.attr.append(kept[2])
    plain = et.comp_node(11, "no group", attrs=kept)
    return metadata, [*nodes, split, et.comp_node(9, "naïve", num_ops=1, deps=[8], attrs=operators), group, plain]


@pytest.mark.usefixtures("compiled")
def test_all_kinds_of_attributes(small_trace, tmp_path):
    path = tmp_path / "a.et"
    et.write_trace(path, *rich(small_trace))
    assert check(path)
    zipped = tmp_path / "b.et.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert check(zipped)
    assert et.read_trace(path).names[8] == "naïve"


@pytest.mark.usefixtures("compiled")
def test_other_attributes_are_kept_as_they_stand(small_trace, tmp_path):
    path = tmp_path / "a.et"
    metadata, nodes = rich(small_trace)
    et.write_trace(path, metadata, nodes)
    table = et.read_trace(path, keep_others=True)
    kept = table.other_attributes
    assert isinstance(kept, OtherAttributes)
    assert kept[0] == ()
    of_row = [[message.name for message in map(et.schema.AttributeProto.FromString, kept[row])] for row in table.other]
    assert of_row[-1] == ["ranks", "ranks", "pg_desc"]
    assert of_row[-2] == ["pg_desc"]  # its ranks are a group
    assert of_row[2][-len(of_row[2]) :] == [a.name for a in nodes[2].attr if a.name in of_row[2]]
    assert kept[1:3] == tuple(kept)[1:3]
    assert len(kept) == len(list(kept)) == np.count_nonzero(table.other) + 1


@pytest.mark.usefixtures("compiled")
def test_a_trace_without_nodes(tmp_path):
    path = tmp_path / "a.et"
    et.write_trace(path, et.metadata(), [])
    assert check(path)
    assert len(et.read_trace(path, keep_others=True)) == 0


@pytest.mark.usefixtures("compiled")
def test_a_length_in_more_bytes_than_it_needs_is_for_the_other_reader(tmp_path):
    node = et.comp_node(1, "n", num_ops=1).SerializeToString()
    scope = et.attribute("scope", "int64", 7).SerializeToString()
    path = tmp_path / "a.et"
    longer = b"\x52" + bytes([len(scope) | 0x80, 0]) + scope
    path.write_bytes(b"".join(map(frame, [et.metadata().SerializeToString(), node + longer])))
    assert not check(path)
    assert decoder.decoded(path) is not None  # where the bytes are not kept, they need not be as written


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("chunk", "rows"), [(7, 5), (64, 5), (300, 2), (1 << 20, 1)])
def test_messages_across_chunks_and_rows(small_trace, tmp_path, monkeypatch, chunk, rows):
    monkeypatch.setattr(decoder, "_STEP_BYTES", chunk)
    monkeypatch.setattr(decoder, "_MAX_SPANS", rows)
    monkeypatch.setattr(decoder, "_ROWS_AT_ONCE", rows)
    monkeypatch.setattr(decoder, "_FIRST_ITEMS", rows)
    path = tmp_path / "a.et"
    et.write_trace(path, *rich(small_trace))
    assert check(path)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", SHARED)
def test_traces_of_others(shared, name):
    assert check(shared / "data" / name, strict=False)


@pytest.mark.usefixtures("compiled")
def test_ids_out_of_order_with_dangling_and_control_cycles(tmp_path, monkeypatch):
    monkeypatch.setattr("nadi.et.order._MIN_KERNEL_DEPENDENCIES", 0)
    nodes = [et.comp_node(10 * i, f"n{i}", deps=[10 * (i + 1)], ctrl_deps=[10 * max(i - 1, 0)]) for i in range(50)]
    path = tmp_path / "a.et"
    et.write_trace(path, et.metadata(), nodes)
    assert check(path, strict=False)
    assert check(path)
    table = et.read_trace(path, strict=False)
    assert (table.dangling, table.dropped_control) == (1, 50)
    et.write_trace(path, et.metadata(), [*nodes[:-1], et.comp_node(490, "again", deps=[0])])
    assert check(path)
    assert "dependency cycle" in outcome(path, strict=False)


@pytest.mark.usefixtures("compiled")
def test_attributes_in_any_order_after_any_other(tmp_path):
    """Names of equal length, of which each may follow each, with numbers of one to ten bytes."""
    chance, path = random.Random(3), tmp_path / "a.et"  # noqa: S311 - the same ones every time
    names = ["comm_src", "comm_dst", "comm_tag", "stream_0", "stream_1", "x", "is_cpu_op", "num_ops"]
    nodes = []
    for i in range(300):
        node = et.comp_node(i, f"n{i}", deps=[chance.randrange(i)] if i else [])
        node.ClearField("attr")
        for name in chance.sample(names, chance.randrange(len(names))):
            number = 1 if name == "is_cpu_op" else chance.getrandbits(chance.randrange(31))
            if name.startswith(("stream", "x")):
                number = chance.choice([number, -1 - number, -(2**63), 2**63 - 1])
            node.attr.append(et.attribute(name, "int64", number))
        nodes.append(node)
    et.write_trace(path, et.metadata(), nodes)
    assert check(path)


@pytest.mark.usefixtures("compiled")
@sampled(
    {
        "ids": [range(4), range(7, 11), [0, 1, 3, 4], [3, 2, 1, 0]],
        "kinds": [("deps",), ("ctrl_deps",), ("deps", "ctrl_deps")],
        "parents": [[0, 1, 2], [2, 0, 1], [1, 1, 2], [], [1, None]],
    }
)
def test_parents_in_any_order(tmp_path, ids, kinds, parents):
    """Of the last node; None = one that the file lacks."""
    ids, path = list(ids), tmp_path / "a.et"
    named = [99 if parent is None else ids[parent] for parent in parents]
    nodes = [et.comp_node(i, "n") for i in ids[:3]]
    et.write_trace(path, et.metadata(), [*nodes, et.comp_node(ids[3], "n", **dict.fromkeys(kinds, named))])
    assert check(path, strict=False)
    assert check(path)


def test_words_that_kernels_read_whole_are_there():
    assert PADDING_BYTES <= decoder.SLACK_BYTES


def test_many_small_files_are_for_the_kernel(small_trace, tmp_path, monkeypatch):
    path = tmp_path / "a.et"
    metadata, nodes = rich(small_trace)
    et.write_trace(path, metadata, nodes)
    monkeypatch.setattr(decoder, "MAX_SMALL_FILES_BYTES", int(3.5 * path.stat().st_size))
    if not jit_enabled():
        pytest.skip("kernels are plain Python")
    assert [decoder.decoded(path) is not None for _ in range(5)] == [False] * 3 + [True] * 2
    check_alike(et.read_trace(path, keep_others=True), et.table_of(metadata, nodes, keep_others=True))


def mutated(content, chance):
    content = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(content))
        how = chance.random()
        if how < 0.6:
            content[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, content[at] ^ (1 << chance.randrange(8))])
        elif how < 0.75:
            del content[at : at + chance.randint(1, 9)]
        elif how < 0.9:
            content[at:at] = chance.randbytes(chance.randint(1, 9))
        else:
            content[at:at] = content[at : at + chance.randint(1, 60)]
    return bytes(content)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_mutated_files_have_the_same_outcome(small_trace, tmp_path):
    """Bytes changed within a message, whose length is put right again, get past the framing; others test that."""
    metadata, nodes = rich(small_trace)
    chance, path, sure = random.Random(17), tmp_path / "a.et", 0  # noqa: S311 - the same ones every time
    messages = [metadata.SerializeToString(), *(node.SerializeToString() for node in nodes)]
    for number in range(MUTATIONS):
        changed = list(messages)
        if number % 3:
            at = chance.randrange(1, len(messages))
            changed[at] = mutated(changed[at], chance)
            content = b"".join(map(frame, changed))
        else:
            content = mutated(b"".join(map(frame, changed)), chance)
        path.write_bytes(content)
        sure += check(path, strict=bool(number % 2))
    assert sure > MUTATIONS // 10


def test_the_kernel_as_plain_python(small_trace, tmp_path):
    path = tmp_path / "a.et"
    et.write_trace(path, *rich(small_trace))
    text = f"""
from nadi import et
from nadi.et import decoder
decoder.MIN_KERNEL_BYTES = 0
wanted = et.read_trace({str(path)!r})
assert decoder.decoded({str(path)!r}) is None
decoder.jit_enabled = lambda: True
found = et.read_trace({str(path)!r})
assert decoder.decoded({str(path)!r}) is not None
kept = et.read_trace({str(path)!r}, keep_others=True)
decoder.jit_enabled = lambda: False
old = et.read_trace({str(path)!r}, keep_others=True)
assert [kept.other_attributes[i] for i in kept.other] == [old.other_attributes[i] for i in old.other]
print(list(found.names) == list(wanted.names), (found.comm_size == wanted.comm_size).all(), len(found))
"""
    assert plain_python("-c", text).split() == ["True", "True", "11"]


def graph(*parents, ids=None):
    """Nodes whose parents are given as rows."""
    ids = ids or list(range(len(parents)))
    return [
        Node(id=i, type=et.NodeType.COMP_NODE, data_deps=[ids[p] for p in rows])
        for i, rows in zip(ids, parents, strict=True)
    ]


def table(*parents, ids=None):
    return et.table_of(et.metadata(), graph(*parents, ids=ids))


def naive_order(parents):
    order = []
    while len(order) < len(parents):
        order.append(min(r for r in range(len(parents)) if r not in order and set(parents[r]) <= set(order)))
    return order


def naive_depth(parents, row):
    return 1 + max((naive_depth(parents, p) for p in parents[row]), default=0)


@st.composite
def acyclic(draw):
    """Parents by row, such that some order exists but rarely the rows' own."""
    n = draw(st.integers(1, 9))
    rank = draw(st.permutations(range(n)))
    return [draw(st.lists(st.sampled_from([p for p in range(n) if rank[p] < rank[r]] or [r]), unique=True)
                 if rank[r] else st.just([])) for r in range(n)]  # fmt: skip


@given(acyclic())
def test_order_and_depth_agree_with_a_naive_search(parents):
    made = table(*parents)
    assert et.topological_order(made).tolist() == naive_order(parents)
    assert order.depth(made) == max(naive_depth(parents, row) for row in range(len(parents)))


def test_the_least_row_that_can_goes_first():
    assert et.topological_order(table([3], [], [], [])).tolist() == [1, 2, 3, 0]
    assert et.topological_order(table([2], [], [])).tolist() == [1, 2, 0]
    assert et.topological_order(table([], [], [0])).tolist() == [0, 1, 2]


@given(acyclic())
def test_children_are_parents_the_other_way(parents):
    child_ptr, child = order.children(table(*parents))
    for row in nonempty(range(len(parents))):
        expected = [other for other in range(len(parents)) if row in parents[other]]
        assert child[child_ptr[row] : child_ptr[row + 1]].tolist() == expected


@pytest.mark.parametrize(
    ("parents", "ids", "path"),
    [
        ([[0]], [3], "3 -> 3"),
        ([[1], [0]], [3, 5], "3 -> 5 -> 3"),
        ([[], [2, 0], [3], [1], [1]], [10, 11, 12, 13, 14], "11 -> 12 -> 13 -> 11"),
        ([[2], [3], [1], [2], [0]], [50, 40, 30, 20, 10], "40 -> 20 -> 30 -> 40"),
    ],
)
def test_a_cycle_is_an_error_that_shows_it(parents, ids, path):
    with pytest.raises(et.TraceError) as caught:
        table(*parents, ids=ids)
    assert str(caught.value) == f"<memory>: dependency cycle {path}, expected no cycle"


def test_a_long_cycle_is_shown_in_part():
    with pytest.raises(et.TraceError, match=r"0 -> 99 -> .* -> 89 -> \.\.\. \(88 more\) -> 0,"):
        table(*[[(row - 1) % 100] for row in range(100)])


@given(acyclic(), st.data())
def test_every_cycle_is_found_and_is_one(parents, data):
    rows = range(len(parents))
    path = data.draw(st.lists(st.sampled_from(rows), min_size=1, unique=True))
    for row, parent in zip(path, [*path[1:], path[0]], strict=True):
        parents[row] = sorted({*parents[row], parent})
    with pytest.raises(et.TraceError, match="dependency cycle") as caught:
        table(*parents)
    shown = [int(text) for text in str(caught.value).split("cycle ")[1].split(",")[0].split(" -> ")]
    assert shown[0] == shown[-1] == min(shown)
    assert len(set(shown)) == len(shown) - 1
    assert all(parent in parents[row] for row, parent in itertools.pairwise(shown))


def test_control_dependencies_close_cycles_too(tmp_path):
    path = tmp_path / "t.et"
    nodes = graph([], [0])
    nodes[0].ctrl_deps.append(1)
    et.write_trace(path, et.metadata(), nodes)
    with pytest.raises(et.TraceError, match="0 -> 1 -> 0"):
        et.read_trace(path)
    made = et.read_trace(path, strict=False)
    assert (made.dropped_control, made.dep.tolist()) == (1, [0])


def test_a_cycle_of_data_dependencies_is_always_an_error(write_nodes):
    path = write_nodes((3, [5]), (5, [3]))
    for strict in (False, True):
        with pytest.raises(et.TraceError, match=r"trace\.0\.et: dependency cycle 3 -> 5 -> 3"):
            et.read_trace(path, strict=strict)
