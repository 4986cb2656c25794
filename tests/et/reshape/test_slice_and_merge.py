"""A slice keeps what was before what, and partners together; merge, then split, is the identity."""

import gzip
import tarfile

import numpy as np
import pytest
from google.protobuf.internal.encoder import _VarintBytes as varint
from hypothesis import given, strategies as st

from nadi import et
from nadi.et.files import NO_NPU, companions, npu_of_name
from nadi.et.framing import frame
from nadi.et.order import bridge
from nadi.et.reshape import Selection, find_files, merge, read_index, slice_traces, split
from nadi.et.schema import GlobalMetadata, Node
from tests.budgets import bounded
from tests.et.parents import parents_of
from tests.nonempty import nonempty


def before(parents, rows):
    """Pairs (u, v) of which v waits for u, directly or not, by plain search."""
    found = set()
    for row in rows:
        left = list(parents.get(row, ()))
        while left:
            other = left.pop()
            if (other, row) not in found:
                found.add((other, row))
                left.extend(parents.get(other, ()))
    return found


@bounded(200)
@given(st.lists(st.tuples(st.sets(st.integers(0, 30), max_size=4), st.booleans()), max_size=25), st.booleans())
def test_what_stays_waits_for_what_it_waited_for(rows, backwards):
    n = len(rows)
    ids = [n - 1 - i if backwards else i for i in range(n)]
    nodes = [
        et.comp_node(ids[i], "c", deps=[ids[d] for d in deps if d < i], ctrl_deps=[ids[d] for d in deps if d < i - 3])
        for i, (deps, _) in enumerate(rows)
    ]
    table = et.table_of(et.metadata(), nodes)
    keep = np.array([kept for _, kept in rows], np.bool_)
    bridged = bridge(table, keep)
    parents = {i: set(parents_of(table, i)) for i in range(n)}
    stays = set(np.flatnonzero(keep).tolist())
    assert set(bridged.parents) == stays  # so few need no joints
    assert before(bridged.parents, stays) == {(a, b) for a, b in before(parents, stays) if a in stays}


def test_many_to_many_is_joined(tmp_path):
    nodes = [et.comp_node(i, "in", duration_micros=1) for i in range(40)]
    nodes += [et.comp_node(40, "hub", duration_micros=9, deps=range(40), attrs=[et.attribute("x", "int32", 1)])]
    nodes += [et.comp_node(41 + i, "out", deps=[40]) for i in range(40)]
    et.write_trace(tmp_path / "t.0.et", et.metadata(), nodes)
    (tmp_path / "out").mkdir()
    (said,) = slice_traces(find_files(tmp_path / "t"), tmp_path / "out", Selection(names=("in", "out")))
    table = et.read_trace(tmp_path / "out" / "t.0.et", keep_others=True)
    assert (said.kept, said.joints) == (81, 1)
    hub = table.node_id.tolist().index(40)
    assert (table.type[hub], table.duration_micros[hub]) == (et.NodeType.METADATA_NODE, 0)
    assert table.other[hub] == 0
    assert len(table.dep) == 80


@pytest.fixture
def pair(tmp_path):
    """Two NPUs, two steps each: compute, a message from 0 to 1, compute, an all-reduce of both."""
    (tmp_path / "out").mkdir()
    for npu in range(2):
        nodes = []
        for step in range(2):
            first, at = 10 * step, f"step{step}/"
            after = [first - 7] if step else []
            nodes.append(et.comp_node(first, f"{at}forward/a", duration_micros=5, deps=after))
            make = et.recv_node if npu else et.send_node
            nodes.append(make(first + 1, f"{at}forward/p2p", 0, 1, 100, 3, deps=[first]))
            nodes.append(et.comp_node(first + 2, f"{at}backward/a", duration_micros=5, ctrl_deps=[first + 1]))
            reduce_ = et.CollectiveCommType.ALL_REDUCE
            nodes.append(et.coll_node(first + 3, f"{at}grads", reduce_, 64, pg_name="1", deps=[first + 2]))
        attrs = [et.attribute("mine", "string", f"{npu}")]
        nodes[0].attr.extend(attrs)
        et.write_trace(tmp_path / f"t.{npu}.et", et.metadata("7", attrs), [et.group_node(99, "g", "1", [0, 1]), *nodes])

    def run(partners="keep", **selection):
        said = slice_traces(find_files(tmp_path / "t"), tmp_path / "out", Selection(**selection), partners)
        return said, [et.read_trace(file.path, keep_others=True) for file in find_files(tmp_path / "out")]

    return run


def test_by_step(pair, tmp_path):
    said, tables = pair(steps=frozenset([1]))
    assert [table.node_id.tolist() for table in tables] == [[99, 10, 11, 12, 13]] * 2  # definitions of groups stay
    assert [table.dep.tolist() for table in tables] == [[1, 2, 3]] * 2
    assert [one.for_partners for one in said] == [1, 1]
    metadata, _ = et.read_messages(tmp_path / "out" / "t.1.et")
    assert (metadata.version, metadata.attr[0].string_val) == ("7", "1")


def test_bytes_of_what_does_not_change_stay(pair, tmp_path):
    pair(steps=frozenset([0]))
    (_, was), (_, now) = (et.read_messages(tmp_path / where / "t.0.et") for where in (".", "out"))
    assert [node.SerializeToString() for node in now] == [node.SerializeToString() for node in was[:5]]


def test_torn_partners_are_refused(pair, tmp_path):
    with pytest.raises(et.TraceError, match=r"t\.0\.et: .* has a partner in .*t\.1\.et, which is not selected;"):
        pair(npus=frozenset([0]))
    for npu in range(2):  # only one of the two has the name
        metadata, nodes = et.read_messages(tmp_path / f"t.{npu}.et")
        nodes[2].name = f"p2p of {npu}"
        et.write_trace(tmp_path / f"t.{npu}.et", metadata, nodes)
    with pytest.raises(et.TraceError, match=r"message 0 from NPU 0 to NPU 1 with tag 3 is selected on some"):
        pair(names=("p2p of 0",), partners="refuse")
    said, tables = pair(names=("p2p of 0",))
    assert [table.node_id.tolist() for table in tables] == [[99, 1]] * 2
    assert [one.for_partners for one in said] == [1, 2]


def test_steps_of_the_profiler(tmp_path):
    (tmp_path / "out").mkdir()
    nodes = [Node(id=0, name="a"), Node(id=1, name="ProfilerStep#5", start_time_micros=10, duration_micros=10)]
    nodes += [Node(id=2, name="b", start_time_micros=12), Node(id=3, name="c", start_time_micros=20)]
    for node in nodes:
        node.type = et.NodeType.COMP_NODE
    et.write_trace(tmp_path / "t.0.et", et.metadata(), nodes)
    slice_traces(find_files(tmp_path / "t"), tmp_path / "out", Selection(steps=frozenset([5])))
    assert et.read_trace(tmp_path / "out" / "t.0.et").node_id.tolist() == [1, 2]
    with pytest.raises(et.TraceError, match="no node matches the selection"):
        slice_traces(find_files(tmp_path / "t"), tmp_path / "out", Selection(steps=frozenset([6])))


def test_a_trace_without_steps(tmp_path, write_nodes):
    with pytest.raises(et.TraceError, match=r"no steps, expected names step0/\.\.\. or nodes ProfilerStep"):
        slice_traces(find_files(write_nodes((0, []))), tmp_path, Selection(steps=frozenset([0])))


def test_communications_keep_their_order(tmp_path):
    """In the file the second all-reduce stands first; the slice has them as they come."""
    (tmp_path / "out").mkdir()
    reduce_ = et.CollectiveCommType.ALL_REDUCE
    nodes = [et.coll_node(0, "x", reduce_, 8, deps=[2]), et.coll_node(1, "y", reduce_, 16), et.comp_node(2, "c")]
    for npu in range(2):
        et.write_trace(tmp_path / f"t.{npu}.et", et.metadata(), nodes)
    slice_traces(find_files(tmp_path / "t"), tmp_path / "out", Selection(names=("x", "y")))
    assert et.read_trace(tmp_path / "out" / "t.0.et").comm_size.tolist() == [16, 8]


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
