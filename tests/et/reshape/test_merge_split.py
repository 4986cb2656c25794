"""Merge, then split, is the identity: every byte, name and companion, gzipped or not."""

import gzip
import tarfile

import pytest
from google.protobuf.internal.encoder import _VarintBytes as varint
from hypothesis import given
from hypothesis import strategies as st

from nadi import et
from nadi.et.files import NO_NPU, companions, npu_of_name
from nadi.et.framing import frame
from nadi.et.reshape import find_files, merge, read_index, split
from nadi.et.schema import GlobalMetadata, Node
from tests.budgets import bounded
from tests.nonempty import nonempty

IDS = st.one_of(st.integers(0, 20), st.sampled_from([2**32, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))


def inflated(path):
    content = path.read_bytes()
    return (True, gzip.decompress(content)) if content[:2] == b"\x1f\x8b" else (False, content)


def check_identity(folder, out, *, where=None):
    """Merge what is in a folder and split it into `out`."""
    out.mkdir()
    files = find_files(where or folder)
    merge(out / "master.et", files, companions(where or folder))
    split(out / "master.et", out)
    for file in nonempty([*(file.path for file in files), *companions(where or folder)]):
        assert inflated(out / file.name) == inflated(file), file
    return out / "master.et"


@st.composite
def messages(draw):
    """Bytes of nodes with different ids: as protobuf writes them, and as it does not."""
    made = []
    for node_id in draw(st.lists(IDS, unique=True, max_size=5)):
        deps = draw(st.lists(IDS, max_size=3))
        node = Node(id=node_id, name=draw(st.sampled_from(["", "n", "ä"])), type=draw(st.integers(0, 7)))
        node.ctrl_deps.extend(draw(st.lists(IDS, max_size=2)))
        if draw(st.booleans()):
            node.attr.append(et.attribute(draw(st.sampled_from(["npu", "mine", "nadi.bytes"])), "bytes", b"\0x"))
        node.duration_micros = draw(st.sampled_from([0, 7]))
        text = node.SerializeToString()
        for dep in deps:  # unpacked, behind the attributes
            text += b"\x28" + varint(dep)
        text += draw(st.sampled_from([b"", b"\xa2\x06\x01?", b"\x42\x00", b"\x08" + varint(node_id)]))
        made.append(text)
    return made


@bounded(60)
@given(st.lists(st.tuples(messages(), st.booleans(), st.sampled_from(["", "0.0.4"])), min_size=1, max_size=3))
def test_merge_then_split_is_the_identity(tmp_path_factory, traces):
    folder = tmp_path_factory.mktemp("merged")
    (folder / "in").mkdir()
    for npu, (nodes, gzipped, version) in enumerate(traces):
        head = GlobalMetadata(version=version, attr=[et.attribute("pid", "int64", npu)])
        content = b"".join(frame(text) for text in (head.SerializeToString(), *nodes))
        ending = ".gz" if npu % 2 == gzipped else ""  # a name need not say that a file is gzipped
        (folder / "in" / f"t.{npu}.et{ending}").write_bytes(gzip.compress(content) if gzipped else content)
    master = check_identity(folder / "in", folder / "out")
    _, found = et.read_messages(master)
    assert len({node.id for node in found}) == len(found) == sum(len(nodes) for nodes, _, _ in traces)
    of_npu = [next(a.int32_val for a in node.attr[::-1] if a.name == "npu") for node in found]
    assert of_npu == [npu for npu, (nodes, _, _) in enumerate(traces) for _ in nodes]


def test_the_master_is_a_trace_of_all(tmp_path, small_trace):
    (tmp_path / "in").mkdir()
    for npu in range(2):
        et.write_trace(tmp_path / "in" / f"t.{npu}.et.gz", *small_trace)
    (tmp_path / "in" / "groups.json").write_text('{"7": [0, 2]}')
    master = check_identity(tmp_path / "in", tmp_path / "out")
    table = et.read_trace(master)
    single = et.read_trace(tmp_path / "in" / "t.0.et.gz")
    assert len(table) == 2 * len(single)
    assert table.dep.tolist() == [*single.dep.tolist(), *(single.dep + len(single)).tolist()]
    assert [member.npu for member in read_index(master).members] == [0, 1]


def test_every_chakra_trace_of_others(shared_data, tmp_path):
    chakra = shared_data / "chakra"
    with tarfile.open(chakra / "resnet50_ddp_rank0of8_et.tar.gz") as archive:
        archive.extractall(tmp_path / "resnet", filter="data")
    folders = {file.parent for root in (chakra, tmp_path / "resnet") for file in root.rglob("*.et")}
    assert len(folders) >= 15
    for number, folder in enumerate(sorted(folders)):
        check_identity(folder, tmp_path / f"out{number}")


def test_a_prefix_takes_its_own_traces_only(tmp_path):
    for name in ("a.0.et", "a.10.et", "a.9.et.gz", "ab.0.et", "a.x.et"):
        et.write_trace(tmp_path / name, et.metadata(), [])
    (tmp_path / "a.json").write_text('{"1": [0]}')
    (tmp_path / "b.json").write_text('{"1": [0]}')
    assert [file.path.name for file in find_files(tmp_path / "a")] == ["a.0.et", "a.9.et.gz", "a.10.et"]
    assert [file.name for file in companions(tmp_path / "a")] == ["a.json"]
    assert [file.path.name for file in find_files(tmp_path / "a.x.et")] == ["a.x.et"]
    with pytest.raises(et.TraceError, match="no traces, expected PREFIX"):
        find_files(tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "npu"), [("t.3.et", 3), ("t.npu12.et.gz", 12), ("t.et", NO_NPU), (f"t.{2**40}.et", NO_NPU)]
)
def test_the_npu_that_a_name_says(name, npu):
    assert npu_of_name(name) == npu


def test_an_id_that_stands_twice_is_refused(tmp_path, write_nodes):
    path = write_nodes((1, []), (1, []))
    with pytest.raises(et.TraceError, match=r"node 1: the id occurs twice"):
        merge(tmp_path / "m.et", find_files(path))
    assert not (tmp_path / "m.et").exists()


def test_a_master_trace_that_was_cut_or_changed_is_refused(tmp_path, write_nodes):
    merge(tmp_path / "m.et", find_files(write_nodes((1, []), (2, [1]))))
    metadata, nodes = et.read_messages(tmp_path / "m.et")
    et.write_trace(tmp_path / "cut.et", metadata, nodes[:1])
    with pytest.raises(et.TraceError, match=r"cut\.et: ends after 1 nodes of trace\.0\.et, expected 2"):
        split(tmp_path / "cut.et", tmp_path)
    et.write_trace(tmp_path / "more.et", metadata, [*nodes, et.comp_node(9, "more")])
    with pytest.raises(et.TraceError, match=r"more\.et: node 9: belongs to no file"):
        split(tmp_path / "more.et", tmp_path)
    del nodes[1].attr[:]
    et.write_trace(tmp_path / "bare.et", metadata, nodes)
    with pytest.raises(et.TraceError, match=r"bare\.et: node 1: cannot be restored for trace\.0\.et: no attribute npu"):
        split(tmp_path / "bare.et", tmp_path)
    with pytest.raises(et.TraceError, match="a trace of one NPU, expected a master trace"):
        read_index(tmp_path / "trace.0.et")


def test_names_cannot_lead_out_of_the_folder(tmp_path, write_nodes):
    merge(tmp_path / "m.et", find_files(write_nodes((1, []))))
    metadata, nodes = et.read_messages(tmp_path / "m.et")
    next(a for a in metadata.attr if a.name == "nadi.files").bytes_list.values[:] = [b"../up.et"]
    et.write_trace(tmp_path / "m.et", metadata, nodes)
    with pytest.raises(et.TraceError, match=r"names a file '\.\./up\.et', expected a name without a folder"):
        read_index(tmp_path / "m.et")


@bounded(60)
@given(st.data())
def test_a_master_trace_with_other_bytes_is_split_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("mutated")
    for npu in range(2):
        deps = [[], [2**63], [1, 7]]
        nodes = [et.comp_node(2**63 * (i == 2) + i, "n", deps=own) for i, own in enumerate(deps)]
        et.write_trace(folder / f"t.{npu}.et", et.metadata(), nodes)
    merge(folder / "m.et", find_files(folder / "t"))
    content = bytearray((folder / "m.et").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    (folder / "m.et").write_bytes(content)
    (folder / "out").mkdir()
    complaint = ""
    try:
        split(folder / "m.et", folder / "out")
    except et.TraceError as error:
        complaint = str(error)
    assert not complaint or complaint.startswith(f"{folder}/")
    assert "\n" not in complaint
