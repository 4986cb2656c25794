"""A reduced trace has fewer nodes, and every node that stays finishes when it did, to the picosecond."""

import tarfile

import pytest
from hypothesis import given, strategies as st

from nadi import et, pdes, workload
from nadi.et.reshape import reduce_trace
from nadi.et.schema import Node
from nadi.topologies import build
from tests.budgets import bounded

GRAPH = build("ring:npus=4,rate=100Gbps,delay=1us")
GROUPS = {"1": (0, 1, 2, 3), "2": (0, 2, 1, 3), "3": (0,), "4": (1,), "5": (2,), "6": (3,)}


@st.composite
def traces(draw):
    """Nodes of four NPUs that do the same, and the order in which they stand in the files."""
    kinds = draw(
        st.lists(st.sampled_from(["metadata", "host", "gpu", "memory", "all", "few", "one", "pair"]), max_size=14)
    )
    edges = [draw(st.lists(st.integers(0, max(i - 1, 0)), max_size=3)) if i else [] for i in range(len(kinds))]
    micros = [draw(st.sampled_from([0, 0, 1, 2, 3])) for _ in kinds]
    order = draw(st.sampled_from([None, None, "reversed", "shuffled"]))
    shuffled = draw(st.permutations(range(len(kinds)))) if order == "shuffled" else range(len(kinds))
    rows = list(reversed(shuffled)) if order == "reversed" else list(shuffled)
    chain = draw(st.booleans())
    if chain:
        edges = [sorted({*deps, i - 1}) if i else [] for i, deps in enumerate(edges)]
    return [_nodes_of(npu, kinds, edges, micros, rows) for npu in range(4)]


def _nodes_of(npu, kinds, edges, micros, rows):
    made = {}
    for i, (kind, deps, duration) in enumerate(zip(kinds, edges, micros, strict=True)):
        parents = [2 * parent for parent in sorted(set(deps))]
        number, more = 2 * i, []
        if kind == "metadata":
            node = Node(id=number, name="m", type=et.NodeType.METADATA_NODE, ctrl_deps=parents)
        elif kind in {"host", "gpu"}:
            node = et.comp_node(number, kind, duration_micros=duration, is_cpu_op=kind == "host", deps=parents)
        elif kind == "memory":
            node = et.mem_node(number, "l", et.NodeType.MEM_LOAD_NODE, 64, deps=parents)
            node.duration_micros = duration
        elif kind == "pair":  # a message around the ring, and its receipt after it
            node = et.recv_node(number, "r", (npu - 1) % 4, npu, 3000, i, deps=[*parents, number + 1])
            more = [et.send_node(number + 1, "s", npu, (npu + 1) % 4, 3000, i, deps=parents)]
        else:
            name = {"all": "1", "few": "2", "one": str(3 + npu)}[kind]
            reduce_ = et.CollectiveCommType.ALL_REDUCE
            node = et.coll_node(number, kind, reduce_, 4096 * (1 + duration), pg_name=name, deps=parents)
        made[i] = [*more, node]
    return [node for i in rows for node in made[i]]


def finishes(tables):
    """By NPU and node id when each is done, and when all are."""
    program = workload.build_program(tables, range(4), 4, GROUPS, workload.ComputeModel("trace"))
    results = pdes.run(pdes.build_world(GRAPH, program, pdes.Settings(mtu_bytes=512)))
    found = {}
    for npu, table in enumerate(tables):
        own = results.node_finish_ps[results.npu_node_ptr[npu] : results.npu_node_ptr[npu + 1]]
        found.update(zip(((npu, i) for i in table.node_id.tolist()), own.tolist(), strict=True))
    return found, results.finish_time_ps


def reduced(folder, nodes_of_npu):
    """Tables before and after, and what was said."""
    before, after, said = [], [], []
    for npu, nodes in enumerate(nodes_of_npu):
        et.write_trace(folder / f"t.{npu}.et", et.metadata(), nodes)
        said.append(reduce_trace(folder / f"t.{npu}.et", folder / f"r.{npu}.et", npu=npu))
        before.append(et.read_trace(folder / f"t.{npu}.et"))
        after.append(et.read_trace(folder / f"r.{npu}.et"))
    return before, after, said


@bounded(120)
@given(traces())
def test_random_traces_take_as_long(tmp_path_factory, nodes_of_npu):
    check_same_times(tmp_path_factory.mktemp("reduced"), nodes_of_npu)


@bounded(60)
@given(traces())
def test_traces_too_large_to_compare_all_with_all(tmp_path_factory, nodes_of_npu):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nadi.et.reshape.parts._MAX_BITS", 0)
        check_same_times(tmp_path_factory.mktemp("reduced"), nodes_of_npu)


def check_same_times(folder, nodes_of_npu):
    """What stays ends when it did."""
    before, after, said = reduced(folder, nodes_of_npu)
    if not len(before[0]):
        return
    was, ends = finishes(before)
    if not len(after[0]):  # nothing but nodes of no time
        assert ends == 0
        return
    now, end = finishes(after)
    assert end == ends
    assert {key: was[key] for key in now} == now
    assert [one.kept for one in said] == [len(table) for table in after]
    assert [one.kept_dependencies for one in said] == [len(table.dep) for table in after]


def test_nodes_without_time_go_and_runs_of_the_host_become_one(tmp_path):
    nodes = [
        Node(id=0, name="profile", type=et.NodeType.METADATA_NODE),
        et.comp_node(1, "aten::linear", is_cpu_op=True, duration_micros=5, deps=[0]),
        et.comp_node(2, "aten::t", is_cpu_op=True, deps=[1]),
        et.comp_node(3, "cudaLaunchKernel", is_cpu_op=True, duration_micros=7, deps=[2, 1, 0]),
        et.comp_node(4, "gemm", duration_micros=30, deps=[3, 1], attrs=[et.attribute("stream", "int64", 7)]),
        et.comp_node(5, "cudaSynchronize", is_cpu_op=True, duration_micros=2, deps=[4, 3]),
    ]
    (before, *_), (after, *_), (said, *_) = reduced(tmp_path, [nodes] * 4)
    assert after.node_id.tolist() == [3, 4, 5]
    assert after.duration_micros.tolist() == [12, 30, 2]
    assert after.dep.tolist() == [0, 1]
    assert (said.dropped, said.fused) == (2, 1)
    assert (said.dependencies, said.kept_dependencies) == (len(before.dep), 2)
    assert et.read_messages(tmp_path / "r.0.et")[1][1].attr[-1].int64_val == 7
    assert finishes([after] * 4)[1] == finishes([before] * 4)[1] == 44_000_000


def test_a_node_without_time_stays_where_it_decides_who_is_first(tmp_path):
    """Both kernels are ready at 0; the second's way leads through a node of no time, so the first in the file waits."""
    nodes = [
        et.comp_node(0, "late", duration_micros=3, deps=[2]),
        et.comp_node(1, "early", duration_micros=5),
        Node(id=2, name="detour", type=et.NodeType.METADATA_NODE),
    ]
    (before, *_), (after, *_), (said, *_) = reduced(tmp_path, [nodes] * 4)
    assert len(after) == 3
    assert said.dropped == 0
    assert finishes([after] * 4) == finishes([before] * 4)
    bare = et.table_of(et.metadata(), [et.comp_node(0, "late", duration_micros=3), nodes[1]])
    assert finishes([bare] * 4)[0][0, 0] != finishes([before] * 4)[0][0, 0]  # so it must not go


def test_all_nodes_stay_where_communications_would_come_in_another_order(tmp_path):
    """Of rows that are free the least comes first: without node 9, node 0 would come before node 5."""
    reduce_, made = et.CollectiveCommType.ALL_REDUCE, {"pg_name": "1"}
    nodes = [
        et.coll_node(0, "x", reduce_, 1000, deps=[3], **made),
        et.comp_node(3, "k", duration_micros=1, deps=[9]),
        et.coll_node(5, "y", reduce_, 2000, **made),
        Node(id=9, name="m", type=et.NodeType.METADATA_NODE),
    ]
    (before, *_), (after, *_), (said, *_) = reduced(tmp_path, [nodes] * 4)
    assert said.reordered
    assert after.node_id.tolist() == before.node_id.tolist()
    assert finishes([after] * 4) == finishes([before] * 4)


def test_definitions_of_groups_stay(tmp_path):
    nodes = [et.group_node(0, "g", "x", [0, 1]), et.comp_node(1, "c", duration_micros=1, deps=[0])]
    assert len(reduced(tmp_path, [nodes] * 4)[1][0]) == 2


def test_without_host_leaves_the_accelerator(tmp_path):
    nodes = [
        et.comp_node(0, "a", duration_micros=3),
        et.comp_node(1, "call", is_cpu_op=True, duration_micros=100, deps=[0]),
        et.comp_node(2, "b", duration_micros=3, deps=[1]),
    ]
    et.write_trace(tmp_path / "t.et", et.metadata(), nodes)
    reduce_trace(tmp_path / "t.et", tmp_path / "r.et", without_host=True)
    table = et.read_trace(tmp_path / "r.et")
    assert table.node_id.tolist() == [0, 2]
    assert table.dep.tolist() == [0]


def test_a_real_trace(shared_data, tmp_path):
    with tarfile.open(shared_data / "chakra" / "resnet50_ddp_rank0of8_et.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (path,) = tmp_path.rglob("*.et")
    said = reduce_trace(path, tmp_path / "r.et")
    before, after = et.read_trace(path, strict=False), et.read_trace(tmp_path / "r.et")
    assert said.kept_dependencies < len(before.dep) / 20
    finish = []
    for table in (before, after):
        program = workload.build_program([table], [0] * 8, 8, compute=workload.ComputeModel("trace"))
        results = pdes.run(pdes.build_world(build("ring:npus=8,rate=800Gbps,delay=1us"), program, pdes.Settings()))
        finish.append(results.finish_time_ps)
    assert finish[0] == finish[1]


@pytest.mark.parametrize("where", ["gpt_fsdp8", "dense_dp2tp2pp2"])
def test_traces_of_others_keep_what_takes_time(shared_data, tmp_path, where):
    for npu in range(8):
        path = shared_data / "chakra" / where / f"workload.{npu}.et"
        said = reduce_trace(path, tmp_path / "r.et", npu=npu)
        before, after = et.read_trace(path), et.read_trace(tmp_path / "r.et")
        assert said.kept == len(after) <= len(before)
        assert int(after.num_ops.clip(0).sum()) == int(before.num_ops.clip(0).sum())
        assert int(after.comm_size.clip(0).sum()) == int(before.comm_size.clip(0).sum())
