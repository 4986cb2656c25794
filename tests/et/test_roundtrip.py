import tarfile

import hypothesis.strategies as st
from hypothesis import given

from nadi import et
from nadi.et.framing import frame, iter_messages
from nadi.et.schema import GlobalMetadata, IOInfo, Node
from tests.budgets import bounded
from tests.nonempty import nonempty

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
            parents = table.node_id[table.dep[table.dep_ptr[row] : table.dep_ptr[row + 1]]].tolist()
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
