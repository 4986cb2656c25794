"""Trace sets: as their expansion, as files, on several ranks; traces that others made; plans that members share."""

import copy
import re
import tarfile

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import et, workload
from nadi.pdes import Settings, build_world
from nadi.topologies import build
from nadi.workload.collectives.plans.plan import Lane, each_its_own
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.collectives.schedules.sends import peers_of_members, unpack
from nadi.workload.program.building import WorkOfRanks
from nadi.workload.program.jobs import FabricJob, build_jobs
from nadi.workload.shape import shape_of
from nadi.workload.trace_sets.trace_set import ELSEWHERE, IDLE
from tests.budgets import bounded
from tests.et.alike import check_alike
from tests.nonempty import nonempty
from tests.workload import naive
from tests.workload.ranks import on_ranks
from tests.workload.sets import expanded, sets, trace_set
from tests.workload.test_ranks import check_parts, outcome, seen

RECORDED = workload.ComputeModel("trace")
AR = et.CollectiveCommType.ALL_REDUCE


def program_of(traces, groups=None, **named):
    examples = {"example_npu": traces.example_npu, "families": traces.families}
    return workload.build_program(
        traces.traces, traces.trace_of_npu, traces.npus, groups, RECORDED, **examples, **named
    )


def on_parts(ranks, rank_of_npu, traces, groups=None):
    """The Program or error of ranks that have the traces of their own NPUs only."""

    def build(rank, exchange):
        own = np.where(np.array(rank_of_npu) == rank, traces.trace_of_npu, ELSEWHERE)
        kept = sorted({t for t in own.tolist() if t >= 0})
        numbers = [kept.index(t) if t >= 0 else t for t in own.tolist()]
        part = workload.TraceSet(
            [traces.traces[t] for t in kept], np.array(numbers, np.int32), traces.example_npu[kept], traces.families
        )
        return program_of(part, groups, exchange=exchange)

    return on_ranks(ranks, build)


@bounded(80)
@given(sets(), st.data())
def test_a_set_does_what_its_expansion_does(case, data):
    nodes, example, width, families, groups, idle = case
    traces = trace_set(nodes, example, width, families, idle)
    npus, plain = traces.npus, expanded(nodes, example, width, families)
    groups = groups if any(node.get("group") == "named" for own in nodes for node in own) else {}
    if any(node.get("group") == "" for own in nodes for node in own):
        traces = trace_set(nodes, example, width, families, idle := 0)
        npus = traces.npus
    tables = [naive.table(npu, own) for npu, own in enumerate(plain[0])]
    wanted = workload.build_program(tables, [*range(len(tables)), *[IDLE] * idle], npus, plain[1] | groups, RECORDED)
    program = program_of(traces, groups)
    naive.check_lists(program)
    sizes = {len(members) for members in families["tp"]}  # groups of other sizes have other schedules
    assert len(program.trace_ptr) - 1 <= len(nodes) * len(sizes) + 1
    for name in ("group_ptr", "group_member"):
        assert np.array_equal(getattr(program, name), getattr(wanted, name)), name
    family_of = {str(number): name for number, name in enumerate((n for n in families for _ in families[n]), 1)}
    for npu in range(npus):
        rows = seen(wanted, npu)
        for said in rows:
            if "name" in said:
                said["name"] = family_of.get(said["name"], said["name"])
        assert seen(program, npu) == rows
    ranks = data.draw(st.integers(2, 3))
    rank_of_npu = data.draw(st.lists(st.integers(0, ranks - 1), min_size=npus, max_size=npus))
    check_parts(program, on_parts(ranks, rank_of_npu, traces, groups), rank_of_npu)


@bounded(120)
@given(sets(), st.data())
def test_a_set_is_refused_where_its_expansion_is(case, data):
    """Sets with a few random faults; all ranks refuse them with the same words."""
    nodes, example, width, families, groups, _ = copy.deepcopy(case)
    for _ in range(data.draw(st.integers(1, 3))):
        own = data.draw(st.sampled_from(nodes))
        if not own:
            continue
        node = data.draw(st.sampled_from(own))
        fault = data.draw(st.sampled_from(["drop", "size", "type", "group", "peer", "tag", "family"]))
        if fault == "drop":
            own.remove(node)
            for other in own:
                other["deps"] = [d for d in other["deps"] if d != node["id"]]
        elif fault == "family":
            name = data.draw(st.sampled_from(sorted(families)))
            families[name] = families[name][1:]
        elif fault in node:
            values = {"group": st.sampled_from(["", "tp", "pp", "x"]), "type": st.integers(0, 9)}
            node[fault] = data.draw(values.get(fault, st.integers(0, 12)))
    traces = trace_set(nodes, example, width, families, 0)
    plain_nodes, plain_groups = [[]] * traces.npus, {}
    try:
        plain_nodes, plain_groups = expanded(nodes, example, width, families)
        tables = [naive.table(npu, own) for npu, own in enumerate(plain_nodes)]
        wanted = outcome(
            workload.build_program, tables, range(traces.npus), traces.npus, plain_groups | groups, RECORDED
        )
    except (KeyError, ValueError) as error:  # an NPU without a group, or with a peer below 0
        wanted = error
    found = outcome(program_of, traces, groups)
    assert isinstance(found, workload.WorkloadError) == isinstance(wanted, Exception)
    rank_of_npu = data.draw(st.lists(st.integers(0, 2), min_size=traces.npus, max_size=traces.npus))
    parts = on_parts(3, rank_of_npu, traces, groups)
    if isinstance(found, Exception):
        assert "\n" not in str(found)
        assert [(type(part), str(part)) for part in parts] == [(workload.WorkloadError, str(found))] * 3
    else:
        check_parts(found, parts, rank_of_npu)


@bounded(40)
@given(sets())
def test_a_set_is_written_read_and_expanded(tmp_path_factory, case):
    nodes, example, width, families, _, idle = case
    folder = tmp_path_factory.mktemp("set")
    traces = trace_set(nodes, example, width, families, idle)
    assert workload.write_set(folder / "s", traces, "gpt") == folder / "s"
    found = workload.read_set(folder / "s")
    assert found.trace_of_npu.tolist() == traces.trace_of_npu.tolist()
    assert found.example_npu.tolist() == traces.example_npu.tolist()
    assert found.families == families
    for a, b in zip(found.traces, traces.traces, strict=True):
        check_alike(a, b)
    of_npus, groups = expanded(nodes, example, width, families)
    prefix = workload.expand(traces, folder / "plain", "x")
    assert et.read_groups(folder / "plain" / "groups.json") == groups
    assert len(list((folder / "plain").iterdir())) == len(of_npus) + 1
    for npu, own in enumerate(of_npus):
        check_alike(et.read_trace(f"{prefix}.{npu}.et"), naive.table(npu, own))


def put(path, micros=1):
    et.write_trace(path, et.metadata(), [et.comp_node(0, "c", duration_micros=micros)])


def test_equal_files_are_read_once(tmp_path):
    for npu, micros in enumerate([1, 2, 1, 1]):
        put(tmp_path / f"w.{npu}.et", micros)
    traces, own = workload.load_traces(tmp_path / "w", 4)
    assert own.tolist() == [0, 1, 0, 0]
    assert own.dtype == "int32"
    assert [t.path for t in traces] == [str(tmp_path / "w.0.et"), str(tmp_path / "w.1.et")]


def test_npus_without_a_file_are_idle(tmp_path):
    put(tmp_path / "w.2.et.gz")
    put(tmp_path / "w.x.et")
    put(tmp_path / "other.w.1.et")
    put(tmp_path / "wx.1.et")
    _, own = workload.load_traces(str(tmp_path / "w"), 4)
    assert own.tolist() == [-1, -1, 0, -1]


def test_one_file_is_for_all(tmp_path):
    put(tmp_path / "w.et")
    traces, own = workload.load_traces(tmp_path / "w.et", 3)
    assert (len(traces), own.tolist()) == (1, [0, 0, 0])


def test_special_characters_in_the_prefix_are_themselves(tmp_path):
    put(tmp_path / "w[1]+.0.et")
    _, own = workload.load_traces(tmp_path / "w[1]+", 1)
    assert own.tolist() == [0]


def test_a_folder_is_its_only_prefix(tmp_path):
    put(tmp_path / "w.0.et")
    put(tmp_path / "w.2.et")
    traces, own = workload.load_traces(tmp_path, 3)
    assert (len(traces), own.tolist()) == (1, [0, IDLE, 0])
    assert workload.groups_of(tmp_path) is None
    (tmp_path / "groups.json").write_text("{}")
    assert workload.groups_of(tmp_path) == tmp_path / "groups.json"
    assert workload.groups_of(tmp_path / "w") is None
    put(tmp_path / "v.0.et")
    with pytest.raises(workload.WorkloadError, match=r"traces of 2 prefixes, expected one of them \(.*/v, .*/w\)$"):
        workload.load_traces(tmp_path, 3)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["w.0.et", "w.10.et"], "w.10.et: trace of NPU 10, but the fabric has 10 NPUs"),
        (["w.1.et", "w.1.et.gz"], "w.1.et.gz: second trace of NPU 1, besides w.1.et, expected one per NPU"),
        (["w.0.et/"], "w.0.et: Is a directory; expected a trace"),
        ([], "w: no traces, looked for @/w.<npu>.et, @/w.<npu>.et.gz and @/w"),
    ],
)
def test_files_that_do_not_fit_are_told(tmp_path, files, said):
    for name in files:
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            put(tmp_path / name)
    with pytest.raises(
        workload.WorkloadError, match=f"^{re.escape(f'{tmp_path}/{said}'.replace('@', str(tmp_path)))}$"
    ):
        workload.load_traces(tmp_path / "w", 10)


def test_a_file_that_is_wrong(tmp_path):
    put(tmp_path / "w.0.et")
    whole = (tmp_path / "w.0.et").read_bytes()
    (tmp_path / "w.0.et").write_bytes(whole[:-1])
    with pytest.raises(et.TraceError):
        workload.load_traces(tmp_path / "w", 1)


def test_a_rank_opens_the_files_of_its_own_npus_only(tmp_path):
    for npu in (0, 3, 4):
        put(tmp_path / f"w.{npu}.et", npu // 4)
    (tmp_path / "w.1.et").mkdir()  # cannot be read
    (tmp_path / "w.2.et").write_bytes(b"no trace")
    traces, own = workload.load_traces(tmp_path / "w", 6, own=np.array([True, False, False, True, True, True]))
    assert own.tolist() == [0, ELSEWHERE, ELSEWHERE, 0, 1, IDLE]
    assert [t.path for t in traces] == [str(tmp_path / "w.0.et"), str(tmp_path / "w.4.et")]
    traces, own = workload.load_traces(tmp_path / "w", 6, own=np.zeros(6, np.bool_))
    assert (traces, own.tolist()) == ([], [ELSEWHERE] * 6)


def test_one_file_is_for_all_ranks_that_have_npus(tmp_path):
    put(tmp_path / "w.et")
    traces, own = workload.load_traces(tmp_path / "w.et", 3, own=np.array([False, True, True]))
    assert (len(traces), own.tolist()) == (1, [ELSEWHERE, 0, 0])
    (tmp_path / "w.et").write_bytes(b"no trace")
    traces, own = workload.load_traces(tmp_path / "w.et", 2, own=np.zeros(2, np.bool_))
    assert (traces, own.tolist()) == ([], [ELSEWHERE] * 2)


def test_every_rank_finds_files_that_are_missing_or_too_many(tmp_path):
    nobody = np.zeros(10, np.bool_)
    with pytest.raises(workload.WorkloadError, match="no traces, looked for"):
        workload.load_traces(tmp_path / "w", 10, own=nobody)
    put(tmp_path / "w.10.et")
    with pytest.raises(workload.WorkloadError, match=r"w\.10\.et: trace of NPU 10, but the fabric has 10 NPUs$"):
        workload.load_traces(tmp_path / "w", 10, own=nobody)


ROOFLINE = workload.ComputeModel("roofline", peak_flops=312e12, memory_bandwidth_Bps=2.04e12)


@pytest.mark.parametrize("npus", [4, 8, 16])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "reduce_scatter"])
def test_microbenchmarks(chakra_data, kind, npus):
    traces, own = workload.load_traces(chakra_data / "microbenchmarks" / kind / f"{npus}npus_1MB" / kind, npus)
    program = workload.build_program(traces, own, npus)
    assert program.trace_of_npu.tolist() == [0] * npus
    assert program.node_bytes.tolist() == [(npus if kind == "all_gather" else 1) << 20]


@pytest.mark.parametrize("name", ["gpt_fsdp8", "dense_dp2tp2pp2"])
def test_symbolic_tensor_graphs(chakra_data, name):
    folder = chakra_data / name
    traces, own = workload.load_traces(folder / "workload", 8)
    program = workload.build_program(traces, own, 8, et.read_groups(folder / "workload.json"), ROOFLINE)
    own_nodes = np.diff(program.trace_ptr)[program.trace_of_npu]
    assert own_nodes.tolist() == [len(traces[t]) for t in own]
    assert np.all(program.node_schedule[program.node_kind != 5] == -1)
    sizes = np.diff(program.group_ptr)[program.slot_group]
    assert set(sizes.tolist()) == ({2} if name.startswith("dense") else {8})


def test_a_real_rank(chakra_data, tmp_path):
    with tarfile.open(chakra_data / "resnet50_ddp_rank0of8_et.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (file,) = tmp_path.rglob("*.et")
    traces, own = workload.load_traces(file, 8, strict=False)
    program = workload.build_program(traces, own, 8, compute=workload.ComputeModel("trace"))
    kinds = np.bincount(program.node_kind, minlength=6).tolist()
    assert kinds == [0, 3643 + 14, 0, 0, 0, 7]
    on_cpu = (program.node_kind == 1) & (program.node_lane == 0)
    assert on_cpu.sum() >= 14


HOSTS = "dgx-h100:npus=512"
TREE = "nccl:algo=tree"
SIZE = 1 << 26


def tree_of(npus):
    """NCCL's trees over these NPUs of HOSTS."""
    graph = build(HOSTS)
    return workload.collectives.plan("all-reduce", TREE, len(npus), shape_of(graph, np.array(npus, np.int32)), SIZE)


def scattered(count, seed=1):
    return np.random.default_rng(seed).permutation(512)[:count].astype(np.int32)


def test_members_with_other_peers_share_a_plan():
    """A chain: the first, the last and all between. The lanes of the peers differ, too."""
    members = 6
    lanes = [[Lane() for _ in range(1 + member % 2)] for member in range(members)]
    for member, own in enumerate(lanes):
        own[0].copy(0, to=0)
        if member > 0:
            own[-1].step(receive_from=member - 1)
        if member < members - 1:
            own[-1].step(send_to=member + 1, to_lane=len(lanes[member + 1]) - 1)
    plans = each_its_own(1, lanes)
    packed = pack([plans])
    assert packed.plan_of.tolist() == [0, 1, 2, 1, 2, 3]
    assert packed.list_first.tolist() == [0, 2, 5, 8, 11, 14]
    assert packed.peer_list.tolist() == [1, 1, 2, 0, 0, 3, 1, 1, 4, 2, 0, 5, 3, 1, 4]
    assert unpack(packed, 0) == [[list(lane) for lane in plan] for plan in plans.plans]
    assert peers_of_members(packed, 0) == [[1], [2], [3], [4], [5], []]


def test_plans_that_no_other_member_has_name_members():
    """Without a member that does the same, lists would only add to the memory."""
    lanes = [[Lane().step(send_to=1 - member, send=member, receive_from=1 - member)] for member in range(2)]
    packed = pack([each_its_own(2, lanes)])
    assert packed.send_peer.tolist() == [1, 0]
    assert packed.list_first.tolist() == [-1, -1]
    assert packed.peer_list.tolist() == []


@pytest.mark.parametrize("pieces", [1 << 19, 1 << 14])
def test_trees_over_scattered_npus_are_read_back_as_planned(pieces, monkeypatch):
    monkeypatch.setattr("nadi.workload.collectives.schedules.checks._SHARED_STEPS", pieces)
    all_plans = [tree_of(scattered(96, seed)) for seed in (1, 2)]
    packed = pack(all_plans)
    assert packed.list_first.min() == 0
    for index, plans in nonempty(enumerate(all_plans)):
        assert unpack(packed, index) == [[list(lane) for lane in plan] for plan in plans.plans]


def test_the_number_of_plans_hardly_grows_with_the_members():
    small, large = (pack([tree_of(scattered(count))]) for count in (64, 256))
    assert len(large.plan_ptr) < 1.5 * len(small.plan_ptr)
    assert len(large.plan_ptr) < 256 / 4


def test_schedules_share_plans():
    """A second group, of another placement, adds few plans."""
    one, two = (pack([tree_of(scattered(512, seed)) for seed in seeds]) for seeds in ((1,), (1, 2)))
    assert len(two.steps) < 1.2 * len(one.steps)


def bytes_of(value):
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(bytes_of, value)) if isinstance(value, tuple) else 0


def set_up_bytes(placement):
    """Bytes of the program and the world of two jobs, with all-reduces in four groups of 64 each and among all."""
    graph = build(HOSTS)
    groups = {f"stage {stage}": tuple(range(64 * stage, 64 * (stage + 1))) for stage in range(4)}
    tables = [
        et.table_of(
            et.metadata(),
            [
                et.coll_node(0, "gradients", et.CollectiveCommType.ALL_REDUCE, SIZE, pg_name=name),
                et.coll_node(1, "norm", et.CollectiveCommType.ALL_REDUCE, 8, deps=[0]),
            ],
        )
        for name in groups
    ]
    settings = workload.CollectiveSettings({"all-reduce": TREE})
    work = WorkOfRanks(tables, np.repeat(np.arange(4), 64), 256, groups, None, settings)
    jobs = [FabricJob(name, work, npus, 0) for name, npus in zip("ab", np.split(placement, 2), strict=True)]
    program = build_jobs(jobs, graph, np.ones(graph.npus, bool))
    world = build_world(graph, program, Settings()).lps[0].world
    return bytes_of(program) + bytes_of(world)


def test_scattered_jobs_take_little_more_memory_than_packed_ones():
    packed, elsewhere = (set_up_bytes(placement) for placement in (np.arange(512, dtype=np.int32), scattered(512)))
    assert elsewhere < 1.2 * packed, (elsewhere, packed)
