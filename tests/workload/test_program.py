"""Programs against the naive builder; their numbers are the engine's; collectives in some dimensions of the fabric."""

import dataclasses
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import topologies, workload
from nadi.et import CollectiveCommType, coll_node, comp_node, group_node, metadata, recv_node, send_node, table_of
from nadi.pdes.core import state
from nadi.pdes.npu import trace
from nadi.workload.collectives.plans.plan import NONE
from nadi.workload.collectives.schedules.sends import buffers, message_count, most_bytes, packet_count, pairs, unpack
from nadi.workload.kinds import KINDS as STEP_KINDS
from nadi.workload.trace_sets.trace_set import ELSEWHERE
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.samples import sampled
from tests.scenarios.running import simulate
from tests.workload import naive
from tests.workload.ranks import on_ranks

ALL_REDUCE = CollectiveCommType.ALL_REDUCE


@st.composite
def workloads(draw):
    """Traces of some NPUs that fit together, as lists of dicts, and groups."""
    npus = draw(st.integers(2, 5))
    names = ["7", "a", "b"][: draw(st.integers(0, 3))]
    members = st.lists(st.integers(0, npus - 1), min_size=1, max_size=npus, unique=True).map(tuple)
    groups = {name: draw(members) for name in names}
    nodes = [[] for _ in range(npus)]
    for _ in range(draw(st.integers(0, 12))):
        what = draw(st.sampled_from(["comp", "mem", "coll", "message"]))
        if what == "coll":
            name = draw(st.sampled_from(["", *names]))
            kind = {"what": "coll", "group": name, "type": draw(st.integers(0, 9)), "size": draw(st.integers(1, 99))}
            for npu in groups.get(name, range(npus)):
                nodes[npu].append(dict(kind))
        elif what == "message":
            a, b = draw(st.lists(st.integers(0, npus - 1), min_size=2, max_size=2, unique=True))
            said = {"size": draw(st.integers(0, 99)), "tag": draw(st.integers(0, 2))}
            nodes[a].append({"what": "send", "peer": b, **said})
            nodes[b].append({"what": "recv", "peer": a, **said})
        else:
            npu = draw(st.integers(0, npus - 1))
            nodes[npu].append({"what": what, "micros": draw(st.integers(0, 9)), "cpu": draw(st.booleans())})
    shuffled = draw(st.booleans())
    for own in nodes:
        ids = draw(st.lists(st.integers(0, 10**6), min_size=len(own), max_size=len(own), unique=True))
        for i, node in enumerate(own):
            node["id"] = ids[i]
            before = ids[i - 1 : i] if shuffled and i else []
            node["deps"] = before + draw(st.lists(st.sampled_from(ids[:i]), max_size=3) if i else st.just([]))
        if shuffled:  # each waits for the one before, so the order stays when the file's changes
            own[:] = draw(st.permutations(own))
    return nodes, groups


@bounded(300)
@given(workloads())
def test_is_what_the_naive_builder_makes(case):
    nodes, groups = case
    npus = len(nodes)
    tables = [naive.table(npu, own) for npu, own in enumerate(nodes)]
    program = workload.build_program(tables, range(npus), npus, groups, workload.ComputeModel("trace"))
    for npu, own in nonempty(enumerate(nodes)):
        assert naive.found(program, npu) == naive.expected(npu, own, npus, groups)
    naive.check_lists(program)


def test_dtypes_are_those_of_the_interface():
    nodes = [coll_node(0, "", ALL_REDUCE, 8), comp_node(1, "", deps=[0])]
    program = workload.build_program([table_of(metadata(), nodes)], [0, 0], 2)
    wanted = {"node_kind": np.int8, "node_lane": np.int8, "node_duration_ps": np.int64, "node_bytes": np.int64}
    wanted |= {"recv_key": np.int64, "node_collective": np.int8, "node_uneven": np.bool_, "node_parts": np.int8}
    for name, column in nonempty(program._asdict().items()):
        if isinstance(column, np.ndarray):
            assert column.dtype == wanted.get(name, np.int64 if name.endswith("_ptr") else np.int32), name


def one(*nodes, path="t.et"):
    return table_of(metadata(), nodes, path)


def test_npus_that_do_the_same_share_a_trace_whatever_names_and_ids():
    first = one(coll_node(0, "x", ALL_REDUCE, 8, pg_name="1"), send_node(1, "s", 0, 1, 5), recv_node(2, "r", 3, 0, 5))
    traces = [first]
    for npu in (1, 2, 3):
        group, to, source = ("1", "2")[npu // 2], (npu + 1) % 4, (npu - 1) % 4
        traces.append(
            one(
                coll_node(10, "y", ALL_REDUCE, 8, pg_name=group),
                send_node(11, "s", npu, to, 5),
                recv_node(12, "r", source, npu, 5),
            )
        )
    program = workload.build_program(traces, range(4), 4, {"1": (0, 1), "2": (3, 2), "3": (0,)})
    assert program.trace_of_npu.tolist() == [0, 1, 1, 2]  # peers of the first and the last wrap around
    assert program.slot_group.tolist() == [1, 1, 2, 2]
    assert program.slot_member.tolist() == [0, 1, 1, 0]
    assert program.group_ptr.tolist() == [0, 4, 6, 8]  # group 3 is not used
    assert program.group_member.tolist() == [0, 1, 2, 3, 0, 1, 3, 2]


def test_one_file_with_messages_gives_each_npu_its_own_distance():
    send = send_node(0, "s", 0, 2, 9)
    kept = [a for a in send.attr if a.name != "comm_src"]
    del send.attr[:]
    send.attr.extend(kept)
    receives = one(recv_node(0, "r", 1, 2, 9), recv_node(1, "r", 0, 2, 9))
    program = workload.build_program([one(send), receives], [0, 0, 1], 3)
    assert program.trace_of_npu.tolist() == [0, 1, 2]
    assert program.node_peer.tolist() == [2, 1, -1, -2]
    assert program.recv_node.tolist() == [1, 0]


def test_idle_npus_run_an_empty_trace():
    program = workload.build_program([one(comp_node(0, "c", duration_micros=3))], [-1, 0, -1], 3)
    sizes = np.diff(program.trace_ptr)[program.trace_of_npu]
    assert sizes.tolist() == [0, 1, 0]
    assert program.slot_ptr.tolist() == [0, 0, 0, 0]


def test_traces_that_nobody_runs_do_not_matter():
    wrong = one(coll_node(0, "", ALL_REDUCE, 0))
    program = workload.build_program([wrong, one(comp_node(0, "c"))], [1, 1], 2)
    assert program.trace_ptr.tolist() == [0, 1]


def test_all_gather_sizes():
    table = one(
        coll_node(0, "", CollectiveCommType.ALL_GATHER, 6),
        coll_node(1, "", CollectiveCommType.GATHER, 6, deps=[0]),
        coll_node(2, "", CollectiveCommType.SCATTER, 6, deps=[1]),
        coll_node(3, "", CollectiveCommType.REDUCE_SCATTER_BLOCK, 6, deps=[2]),
        coll_node(4, "", CollectiveCommType.BARRIER, 6, deps=[3]),
    )
    assert workload.build_program([table], [0, 0, 0], 3).node_bytes.tolist() == [18, 18, 6, 6, 0]
    total = workload.CollectiveSettings(all_gather_size="total")
    assert workload.build_program([table], [0, 0, 0], 3, settings=total).node_bytes.tolist() == [6, 6, 6, 6, 0]


def test_algorithms_are_chosen_by_kind():
    table = one(coll_node(0, "", ALL_REDUCE, 6), coll_node(1, "", CollectiveCommType.ALL_TO_ALL, 6, deps=[0]))
    chosen = workload.CollectiveSettings({"all-reduce": "direct"})
    program = workload.build_program([table], [0, 0, 0], 3, settings=chosen)
    plans = program.schedules.plan_of[program.schedules.plan_of_ptr[program.node_schedule]]
    assert np.diff(program.schedules.plan_ptr)[plans].tolist() == [4, 2]


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(
        workload.WorkloadError, match=r"^algorithm 'x' for all-reduce: expected one of direct, .*, ring$"
    ):
        workload.CollectiveSettings({"all-reduce": "x"})
    with pytest.raises(workload.WorkloadError, match=r"^all_gather_size 'half': expected contribution or total$"):
        workload.CollectiveSettings(all_gather_size="half")


def test_groups_of_one_are_done_at_once():
    table = one(coll_node(0, "", ALL_REDUCE, 6, pg_name="1"))
    program = workload.build_program([table], [0, -1], 2, {"1": (0,)})
    assert program.node_schedule.tolist() == [-1]
    assert program.slot_member.tolist() == [0]


def test_metadata_is_nothing_to_do_and_may_name_groups():
    def trace(npu):
        return one(
            group_node(0, "g", "pair", [3, npu % 2]), coll_node(1, "", ALL_REDUCE, 6, pg_name="pair"), path=f"{npu}.et"
        )

    program = workload.build_program([trace(1)], [-1, 0, -1, 0], 4)
    assert program.node_kind.tolist() == [0, 5]
    assert program.group_member.tolist() == [0, 1, 2, 3, 3, 1]
    # the group file wins
    program = workload.build_program([trace(1)], [-1, 0, -1, 0], 4, {"pair": (1, 3)})
    assert program.group_member.tolist() == [0, 1, 2, 3, 1, 3]


def test_collectives_of_the_host_take_their_time():
    node = coll_node(0, "c10d::allreduce_", ALL_REDUCE, 6)
    node.duration_micros = 7
    del node.attr[:]
    node.attr.extend(comp_node(0, "", is_cpu_op=True).attr)
    program = workload.build_program([one(node)], [0], 1)
    assert (program.node_kind[0], program.node_lane[0], program.node_duration_ps[0]) == (1, 0, 7_000_000)


def test_buffers_that_the_engine_cannot_count_are_refused():
    with pytest.raises(workload.WorkloadError) as error:
        workload.build_program([one(coll_node(4, "", ALL_REDUCE, 2**61))], [0] * 3, 3)
    assert str(error.value) == f"t.et: node 4: comm_size is {2**61}, expected at most {2**46 - 1} bytes"
    size, npus = 2**45, 2**18  # of each, gathered from all
    assert (
        refused(
            workload.WorkloadError,
            workload.build_program,
            [one(coll_node(4, "", CollectiveCommType.ALL_GATHER, size))],
            np.zeros(npus, np.int32),
            npus,
        )
        == f"t.et: node 4: all-gather of {size} B: expected at most 2^62 bytes times chunks"
    )


@pytest.mark.parametrize(
    ("trace_of_npu", "npus", "text"),
    [
        ([0, 0, 0], 2, "t.et: trace of NPU 2, but the fabric has 2 NPUs"),
        ([0], 2, "traces for 1 NPUs: expected one for each of 2 (-1 = idle)"),
        ([-1, -1], 2, "no trace for any of 2 NPUs: expected at least one"),
        ([], 0, "0 NPUs: expected 1 to 524287"),
    ],
)
def test_traces_and_npus_must_fit(trace_of_npu, npus, text):
    assert refused(workload.WorkloadError, workload.build_program, [one(comp_node(0, "c"))], trace_of_npu, npus) == text


def test_many_npus_with_one_trace_are_quick():
    nodes = [comp_node(0, "c")]
    for i in range(1, 1000):
        made = coll_node(i, "", ALL_REDUCE, 1 << 20, deps=[i - 1]) if i % 2 else comp_node(i, "c", deps=[i - 1])
        nodes.append(made)
    table = one(*nodes)
    start = time.process_time()
    program = workload.build_program([table], np.zeros(16_384, int), 16_384)
    assert time.process_time() - start < 3
    assert len(program.node_kind) == 1000


def test_many_groups_are_quick():
    """2,048 groups of 8 named in 2,048 traces that are otherwise equal."""
    npus = 16_384
    base = one(coll_node(0, "", ALL_REDUCE, 1 << 20, pg_name="g"))
    groups = {f"g{i}": tuple(range(8 * i, 8 * i + 8)) for i in range(npus // 8)}
    traces = [dataclasses.replace(base, group_names=("", name)) for name in groups]
    start = time.process_time()
    program = workload.build_program(traces, np.arange(npus) // 8, npus, groups)
    assert time.process_time() - start < 5
    assert program.trace_of_npu.tolist() == [0] * npus
    assert program.slot_group.tolist() == (1 + np.arange(npus) // 8).tolist()
    assert program.slot_member.tolist() == (np.arange(npus) % 8).tolist()


KINDS = ("NOOP", "COMPUTE", "MEMORY", "SEND", "RECV", "COLLECTIVE")


def test_the_engine_and_programs_number_kinds_and_lanes_alike() -> None:
    assert [getattr(trace, f"KIND_{kind}") for kind in KINDS] == [getattr(workload.node_kinds, kind) for kind in KINDS]
    assert (state.COMPUTE_LANE, state.LANES) == (workload.node_kinds.COMPUTE_LANE, workload.node_kinds.REMOTE_LANE + 1)


HOSTS = "rail-optimised:npus=8,gpus_per_host=4"
ALGORITHMS = [
    *((kind, name) for kind in STEP_KINDS for name in workload.collectives.algorithms_of(kind)),
    ("all-reduce", "grid:splits=3,order=themis"),
    ("all-reduce", "ring:channels=3,bidirectional=true"),
    ("all-reduce", "nccl:algo=ring,proto=ll128"),
]


def is_counted(schedules, size_bytes):
    """Messages, pairs and packets are counted as if all steps were read one by one."""
    lanes, of_lanes = unpack(schedules, 0), buffers(schedules, 0)
    sends = [
        (me, step.send_peer, of_lanes[me][number].wire_bytes(step.send_chunk, step.send_count, size_bytes))
        for me, own in enumerate(lanes)
        for number, lane in enumerate(own)
        for step in lane
        if step.send_peer != NONE
    ]
    ends = {(src, dst) for src, dst, _ in sends}
    assert pairs(schedules, 0, 1000) == ends
    assert pairs(schedules, 0, len(ends) - 1) is None
    assert message_count(schedules, 0) == len(sends)
    packets = sum(max(1, -(-payload // 64)) for _, _, payload in sends)
    assert packets - len(sends) <= packet_count(schedules, 0, size_bytes, 64) <= packets
    if schedules.uneven[0]:
        sent = np.bincount([src for src, _, _ in sends], [payload for _, _, payload in sends])
        assert most_bytes(schedules, 0, size_bytes) >= sent.max()


@sampled({"size_bytes": [1, 100_003], "kind, algorithm": ALGORITHMS})
def test_every_algorithm(kind, algorithm, size_bytes):
    graph = topologies.build("switch:npus=8" if algorithm == "nvls" else HOSTS)
    is_counted(workload.collective_program(kind, graph.npus, size_bytes, algorithm, graph).schedules, size_bytes)


@pytest.mark.parametrize("unit_bytes", [1, 4096])
def test_uneven_all_to_alls(unit_bytes):
    matrix = np.random.default_rng(5).integers(0, 100, (4, 4)) * unit_bytes
    program = workload.uneven_program(matrix, "direct", topologies.build("switch:npus=4"))
    is_counted(program.schedules, int(program.node_bytes[0]))


TORUS = "torus:sizes=2x3x4"


def involved_trace(*involved, name="t.et"):
    """All-reduces one after another; involved: a list of booleans each, None = absent."""
    nodes = [
        coll_node(i, "x", ALL_REDUCE, 960 + i, involved_dim=dims, deps=range(i)) for i, dims in enumerate(involved)
    ]
    return table_of(metadata(), nodes, name)


def digits(npu):
    return npu % 2, npu // 2 % 3, npu // 6


def naive_members(npu, dims):
    """NPUs with the same digits in all dimensions that do not take part."""
    fixed = [d for d in range(3) if dims is not None and not (d < len(dims) and dims[d])]
    return [other for other in range(24) if all(digits(other)[d] == digits(npu)[d] for d in fixed)]


def found_members(program, npu):
    begin, end = program.trace_ptr[program.trace_of_npu[npu] :][:2].tolist()
    for row in range(begin, end):
        slot = int(program.slot_ptr[npu] + program.node_group[row])
        group = int(program.slot_group[slot])
        members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].tolist()
        yield members, int(program.slot_member[slot]), int(program.node_seq[row])


restrictions = st.one_of(st.none(), st.lists(st.booleans(), min_size=1, max_size=4).filter(lambda d: any(d[:3])))


@bounded(60)
@given(st.lists(restrictions, min_size=1, max_size=4))
def test_groups_are_those_of_the_enumeration(involved):
    program = workload.build_program([involved_trace(*involved)], [0] * 24, 24, fabric=topologies.build(TORUS))
    for npu in range(24):
        seen = []
        for dims, (members, me, seq) in nonempty(zip(involved, found_members(program, npu), strict=True)):
            assert members == naive_members(npu, dims)
            assert members[me] == npu
            assert seq == seen.count(members)
            seen.append(members)
    assert len(program.trace_ptr) == 2


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_agree(ranks):
    table, graph = involved_trace([True, False, False], None, [False, True, True]), topologies.build(TORUS)
    whole = workload.build_program([table], [0] * 24, 24, fabric=graph)
    rank_of = np.arange(24) * 7 % ranks

    def build(rank, exchange):
        own = np.where(rank_of == rank, 0, ELSEWHERE)
        return workload.build_program([table], own, 24, fabric=graph, exchange=exchange)

    for rank, part in nonempty(enumerate(on_ranks(ranks, build))):
        for npu in nonempty(np.flatnonzero(rank_of == rank).tolist()):
            assert [*found_members(part, npu)] == [*found_members(whole, npu)]
            groups = [p.slot_group[p.slot_ptr[npu] : p.slot_ptr[npu + 1]].tolist() for p in (part, whole)]
            assert groups[0] == groups[1]


@pytest.mark.parametrize("algorithm", ["ring", "grid"])
def test_the_engine_keeps_to_the_lines(algorithm):
    graph = topologies.build(TORUS)
    settings = workload.CollectiveSettings({"all-reduce": algorithm})
    program = workload.build_program(
        [involved_trace([True, False, True])], [0] * 24, 24, settings=settings, fabric=graph
    )
    flows = simulate(graph, program).flows
    for src, dst in nonempty(zip(flows["src"].tolist(), flows["dst"].tolist(), strict=True)):
        assert digits(src)[1] == digits(dst)[1]
    assert flows["bytes"].sum() == 3 * 2 * 7 * 960


def test_lines_that_stand_unlike_have_schedules_of_their_own():
    """The first line of four is two hosts, the second is one."""
    settings = workload.CollectiveSettings({"all-reduce": "hierarchical"})
    graph = topologies.build("leaf-spine:npus=8,hosts_per_leaf=4,spines=1,dims=4x2")
    graph = replace(graph, host=np.array([0, 0, 1, 1, 2, 2, 2, 2], np.int32))
    program = workload.build_program([involved_trace([True, False])], [0] * 8, 8, settings=settings, fabric=graph)
    assert program.schedules.members.tolist() == [4, 4]
    assert program.node_schedule[program.trace_ptr[program.trace_of_npu]].tolist() == [0] * 4 + [1] * 4


def test_a_group_by_name_says_who_takes_part():
    node = coll_node(0, "x", ALL_REDUCE, 8, pg_name="a", involved_dim=[True, False, False])
    program = workload.build_program(
        [table_of(metadata(), [node])], [0] * 24, 24, {"a": tuple(range(24))}, fabric=topologies.build(TORUS)
    )
    assert [members for members, _, _ in found_members(program, 5)] == [list(range(24))]


def test_none_of_the_dimensions_is_refused():
    assert (
        refused(
            workload.WorkloadError,
            workload.build_program,
            [involved_trace([False, False, False, True])],
            [0] * 24,
            24,
            fabric=topologies.build(TORUS),
        )
        == "t.et: node 0: involved_dim names none of the fabric's 3 dimensions"
    )


def test_priorities_reach_the_program():
    nodes = [coll_node(i, "x", ALL_REDUCE, 8, comm_priority=priority) for i, priority in enumerate((5, None, -2))]
    program = workload.build_program([table_of(metadata(), nodes)], [0, 0], 2)
    assert program.node_priority.tolist() == [5, 0, -2]
    assert program.node_priority.dtype == np.int32
