import gzip

import pytest

from nadi import et
from nadi.et.framing import frame, iter_messages
from nadi.et.schema import Node


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
