"""Files of traces: framing, writing, and that what is written is read, byte by byte."""

import gzip
import os
import tarfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from nadi import et
from nadi.et.framing import frame, iter_messages
from nadi.et.schema import GlobalMetadata, IOInfo, Node
from tests.budgets import bounded
from tests.et.mutations import folder_for, of_seed, tried
from tests.et.parents import parents_of
from tests.nonempty import nonempty


def frames_of(small_trace):
    metadata, nodes = small_trace
    return [frame(message.SerializeToString()) for message in (metadata, *nodes)]


def test_offsets_and_messages(tmp_path):
    path = tmp_path / "t"
    messages = [b"", b"a" * 127, b"b" * 128, b"", b"c" * 20000]
    path.write_bytes(b"".join(map(frame, messages)))
    assert list(iter_messages(path)) == list(zip([0, 1, 129, 259, 260], messages, strict=True))


def test_lengths_are_base_128_varints():
    assert frame(b"") == b"\x00"
    assert frame(b"x" * 300)[:2] == b"\xac\x02"


def test_an_empty_metadata_message_is_legal(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"\x00" + frame(Node(id=3, type=et.NodeType.COMP_NODE).SerializeToString()))
    metadata, nodes = et.read_messages(path)
    assert metadata.version == ""
    assert [node.id for node in nodes] == [3]
    assert et.read_trace(path).node_id.tolist() == [3]


def test_an_empty_node_message_is_a_message_not_the_end(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"\x00\x00" + frame(Node(id=3, type=et.NodeType.COMP_NODE).SerializeToString()))
    assert [node.id for node in et.read_messages(path)[1]] == [0, 3]
    with pytest.raises(et.TraceError, match="node 0: node type 0, expected 1 to 7"):
        et.read_trace(path)


def test_a_file_cut_anywhere_is_an_error_or_ends_between_messages(tmp_path, small_trace):
    frames = frames_of(small_trace)
    data = b"".join(frames)
    starts = [sum(map(len, frames[:i])) for i in range(len(frames) + 1)]
    path = tmp_path / "cut.et"
    refused = 0
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        if cut in starts[1:]:
            assert len(et.read_messages(path)[1]) == starts.index(cut) - 1
            continue
        at = max(start for start in starts if start <= cut)
        for read in (et.read_messages, et.read_trace):
            with pytest.raises(et.TraceError, match=f"cut.et: byte {at}: "):
                read(path)
        refused += 1
    assert refused == len(data) - len(frames) + 1


def test_a_gzip_file_cut_anywhere_is_an_error(tmp_path, small_trace):
    data = gzip.compress(b"".join(frames_of(small_trace)))
    path = tmp_path / "cut.et"
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        with pytest.raises(et.TraceError, match=r"cut\.et"):
            et.read_messages(path)


def test_gzip_is_found_by_its_magic_not_its_name(tmp_path, small_trace):
    path = tmp_path / "plain-name.et"
    path.write_bytes(gzip.compress(b"".join(frames_of(small_trace))))
    assert et.read_messages(path) == small_trace


def test_a_corrupt_gzip_file_is_an_error(tmp_path, small_trace):
    data = bytearray(gzip.compress(b"".join(frames_of(small_trace))))
    data[-6] ^= 1  # of the checksum
    path = tmp_path / "t.et"
    path.write_bytes(data)
    with pytest.raises(et.TraceError, match="corrupt gzip"):
        et.read_trace(path)


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ("7f", "message of 127 bytes, expected at most the 1 that follow"),
        ("ff ff ff ff 07", "message of 2147483647 bytes"),
        ("ff ff ff ff 0f", "message length 4294967295, expected at most 2 GiB"),
        ("80 80 80 80 80 01", "corrupt message length, expected a varint of at most five bytes"),
        ("ff ff ff ff ff ff ff ff ff ff ff", "corrupt message length"),
    ],
)
def test_corrupt_lengths(tmp_path, small_trace, length, message):
    good = frames_of(small_trace)[0]
    path = tmp_path / "t.et"
    path.write_bytes(good + bytes.fromhex(length) + b"x")
    with pytest.raises(et.TraceError, match=f"t.et: byte {len(good)}: {message}"):
        et.read_messages(path)


def test_a_file_without_metadata_is_an_error_not_a_shorter_trace(tmp_path):
    path = tmp_path / "t.et"
    for node in (Node(id=3, type=et.NodeType.COMP_NODE), Node(type=et.NodeType.COMP_NODE)):
        path.write_bytes(frame(node.SerializeToString()))
        for read in (et.read_messages, et.read_trace):
            with pytest.raises(et.TraceError, match="byte 0: found a Node, expected a GlobalMetadata first"):
                read(path)


def test_metadata_with_fields_of_the_future_is_read(tmp_path):
    path = tmp_path / "t.et"
    path.write_bytes(frame(b"\x0a\x03new" + b"\xa2\x06\x01x"))  # field 100
    assert et.read_messages(path)[0].version == "new"


def test_unreadable_files(tmp_path):
    with pytest.raises(et.TraceError, match=r"nowhere\.et: No such file"):
        et.read_trace(tmp_path / "nowhere.et")
    with pytest.raises(et.TraceError, match="is a folder, expected a Chakra trace"):
        et.read_trace(tmp_path)
    empty = tmp_path / "empty.et"
    empty.touch()
    with pytest.raises(et.TraceError, match=r"empty\.et: byte 0: the file is empty"):
        et.read_trace(empty)


def test_a_corrupt_message_is_an_error_with_its_offset(tmp_path, small_trace):
    frames = frames_of(small_trace)
    path = tmp_path / "t.et"
    path.write_bytes(frames[0] + frames[1] + frame(b"\x12\x05ab"))  # a name of 5 bytes, of which 2 follow
    for read in (et.read_messages, et.read_trace):
        with pytest.raises(et.TraceError, match=f"t.et: byte {len(frames[0] + frames[1])}: corrupt message"):
            read(path)


def test_any_changed_byte_gives_a_trace_or_a_trace_error(tmp_path, small_trace):
    data = b"".join(frames_of(small_trace))
    path = tmp_path / "t.et"
    errors = 0
    for place in range(len(data)):
        for flip in (0x01, 0x08, 0x80, 0xFF):
            path.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
            for read in (et.read_messages, et.read_trace):
                text = error_of(read, path)
                assert text == "" or (text.startswith(f"{path}: ") and "\n" not in text)
                errors += text != ""
    assert len(data) < errors < 8 * len(data)


def error_of(read, path):
    try:
        read(path)
    except et.TraceError as error:
        return str(error)
    return ""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_same_messages_same_bytes_even_zipped(tmp_path, small_trace):
    for name in ("a.et", "a.et.gz"):
        (tmp_path / "other").mkdir(exist_ok=True)
        et.write_trace(tmp_path / name, *small_trace)
        et.write_trace(tmp_path / "other" / f"b-{name}", *small_trace)
        assert (tmp_path / name).read_bytes() == (tmp_path / "other" / f"b-{name}").read_bytes()


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, small_trace):
    path = tmp_path / "t.0.et"
    path.write_bytes(b"old")
    metadata, nodes = small_trace

    def interrupted():
        yield from nodes
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        et.write_trace(path, metadata, interrupted())
    assert names(tmp_path) == ["t.0.et"]
    assert path.read_bytes() == b"old"


def test_nothing_but_the_trace_remains(tmp_path, small_trace):
    et.write_trace(tmp_path / "t.et", *small_trace)
    assert names(tmp_path) == ["t.et"]


@pytest.mark.parametrize("place", ["missing/t.et", "file/t.et", "folder"])
def test_unwritable_output_is_an_error_that_names_the_path(tmp_path, small_trace, place):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(et.TraceError, match=f"{place}: .*expected a place to write a trace to") as caught:
        et.write_trace(tmp_path / place, *small_trace)
    assert caught.value.exit_code == 2
    assert names(tmp_path) == ["file", "folder"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(tmp_path, small_trace, monkeypatch):
    path = tmp_path / "t.et"
    open_file = os.open
    monkeypatch.setattr(os, "open", lambda *_, **__: open_file("/dev/full", os.O_WRONLY))
    with pytest.raises(et.TraceError, match=r"t.et: No space left on device"):
        et.write_trace(path, *small_trace)
    assert names(tmp_path) == []


INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
UINT32, UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = {
    "double": st.floats(allow_nan=False),
    "float": st.floats(allow_nan=False, width=32),
    "int32": INT32,
    "int64": INT64,
    "uint32": UINT32,
    "uint64": UINT64,
    "sint32": INT32,
    "sint64": INT64,
    "fixed32": UINT32,
    "fixed64": UINT64,
    "sfixed32": INT32,
    "sfixed64": INT64,
    "bool": st.booleans(),
    "string": TEXT,
    "bytes": st.binary(max_size=8),
}
KINDS = VALUES | {f"{kind}_list": st.lists(values, max_size=4) for kind, values in VALUES.items()}
ATTRIBUTES = st.sampled_from(sorted(KINDS)).flatmap(
    lambda kind: st.builds(et.attribute, TEXT, st.just(kind), KINDS[kind])
)
IO = st.builds(IOInfo, values=TEXT, shapes=TEXT, types=TEXT)
NODES = st.builds(
    Node,
    id=UINT64,
    name=TEXT,
    type=st.sampled_from(et.NodeType),
    ctrl_deps=st.lists(UINT64, max_size=3),
    data_deps=st.lists(UINT64, max_size=3),
    start_time_micros=UINT64,
    duration_micros=UINT64,
    inputs=IO,
    outputs=IO,
    attr=st.lists(ATTRIBUTES, max_size=4),
)
METADATA = st.builds(GlobalMetadata, version=TEXT, attr=st.lists(ATTRIBUTES, max_size=2))


@given(METADATA, st.lists(NODES, max_size=6), st.booleans())
def test_what_is_written_is_read(tmp_path_factory, metadata, nodes, is_zipped):
    path = tmp_path_factory.getbasetemp() / ("any.et.gz" if is_zipped else "any.et")
    et.write_trace(path, metadata, nodes)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == is_zipped
    assert et.read_messages(path) == (metadata, nodes)


@bounded(10)
@given(st.data())
def test_every_type_of_attribute_survives(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "attributes.et"
    made = [et.attribute(kind, kind, data.draw(values)) for kind, values in KINDS.items()]
    assert len(made) == 30
    et.write_trace(path, et.metadata(), [Node(id=1, attr=made)])
    (node,) = et.read_messages(path)[1]
    assert list(node.attr) == made
    for attribute in nonempty(node.attr):
        assert attribute.WhichOneof("value") in {f"{attribute.name}_val", attribute.name}


def assert_identical(path, tmp_path):
    """Read, written and read again: the same messages, and the same bytes."""
    metadata, nodes = et.read_messages(path)
    copy = tmp_path / "copy.et"
    et.write_trace(copy, metadata, nodes)
    assert et.read_messages(copy) == (metadata, nodes)
    assert copy.read_bytes() == path.read_bytes()
    again = b"".join(frame(message) for _, message in iter_messages(path))
    assert again == path.read_bytes()
    return len(nodes)


def test_real_traces_survive_byte_by_byte(shared, tmp_path):
    paths = sorted((shared / "data").glob("**/*.et"))
    assert len(paths) >= 136
    counts = {path.name: assert_identical(path, tmp_path) for path in paths}
    assert counts["all_reduce.0.et"] == 1
    assert counts["custom_allreduce.0.et"] == 35


def test_the_real_resnet_trace_survives_byte_by_byte(shared, tmp_path):
    path = resnet(shared, tmp_path)
    assert assert_identical(path, tmp_path) == 3664


def test_real_traces_become_tables_that_say_what_the_messages_say(shared, tmp_path):
    paths = [*sorted((shared / "data" / "chakra").glob("*/workload.*.et")), resnet(shared, tmp_path)]
    assert len(paths) == 17
    for path in paths:
        table = et.read_trace(path, strict=path.name != "resnet.et")
        _, nodes = et.read_messages(path)
        assert table.node_id.tolist() == [node.id for node in nodes]
        assert list(table.names) == [node.name for node in nodes]
        assert table.type.tolist() == [node.type for node in nodes]
        assert table.duration_micros.tolist() == [node.duration_micros for node in nodes]
        for row, node in nonempty(enumerate(nodes)):
            parents = table.node_id[parents_of(table, row)].tolist()
            control = [] if table.dropped_control else node.ctrl_deps
            assert sorted(parents) == sorted({*node.data_deps, *control})


def test_the_real_resnet_trace_has_control_dependencies_that_make_no_sense(shared, tmp_path):
    table = et.read_trace(resnet(shared, tmp_path), strict=False)
    assert (len(table), len(table.dep), table.dangling, table.dropped_control) == (3664, 181878, 0, 3664)
    assert (table.version, table.dangling_control) == ("1.0.1", 1277)
    is_collective = table.type == et.NodeType.COMM_COLL_NODE
    assert is_collective.sum() == 21
    assert (table.comm_type[is_collective] == -1).sum() == 14
    assert table.is_cpu_op[is_collective & (table.comm_type == -1)].all()
    assert table.involved_dim[is_collective & (table.comm_type >= 0)].min() > 0


def resnet(shared, folder):
    with tarfile.open(shared / "data" / "chakra" / "resnet50_ddp_rank0of8_et.tar.gz") as archive:
        (member,) = archive.getmembers()
        path = folder / "resnet.et"
        path.write_bytes(archive.extractfile(member).read())
    return path


FILES = 240


def test_mutated_files_are_read_rightly_or_refused_in_one_line(tmp_path):
    complaints, were_read = [], 0
    for seed in range(FILES):
        said, was_read = tried(seed, folder_for(tmp_path))
        were_read += was_read
        if said:
            complaints.append(f"seed {seed} ({of_seed(seed)[0]}): {said}")
    assert not complaints
    assert FILES // 20 < were_read < FILES  # some changes leave a good file, most do not


def test_files_of_a_seed_are_always_the_same_and_of_all_kinds():
    made = [of_seed(seed) for seed in range(200)]
    assert made == [of_seed(seed) for seed in range(200)]
    assert {name.split(".", 2)[2] for name, _ in made} == {
        kind + end for kind in ("et", "json", "txt", "goal") for end in ("", ".gz")
    }
