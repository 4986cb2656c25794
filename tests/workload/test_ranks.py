"""What several ranks build is what one rank builds, and what they refuse it refuses with the same words."""

import copy

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.et import CollectiveCommType, coll_node, comp_node, group_node, metadata, read_groups, table_of, write_trace
from nadi.workload import ComputeModel, WorkloadError, build_program, expand, load_traces
from nadi.workload.collectives.schedules.sends import unpack
from nadi.workload.generators.models import Model
from nadi.workload.generators.training.generator import data_parallel_plan, generate_for_all
from nadi.workload.trace_sets.trace_set import IDLE
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.workload import naive
from tests.workload.ranks import build_on_ranks, on_ranks
from tests.workload.test_program import workloads

ALL_REDUCE = CollectiveCommType.ALL_REDUCE


def outcome(work, *arguments, **named):
    try:
        return work(*arguments, **named)
    except WorkloadError as error:
        return error


def seen(program, npu):
    """What an NPU does, with group numbers and whole schedules."""
    rows = naive.found(program, npu)
    begin = int(program.trace_ptr[program.trace_of_npu[npu]])
    for r, said in enumerate(rows, begin):
        if said["kind"] == 5:
            said["group"] = int(program.slot_group[program.slot_ptr[npu] + program.node_group[r]])
            s = int(program.node_schedule[r])
            said["schedule"] = s if s < 0 else unpack(program.schedules, s)
    return rows


def check_parts(whole, parts, rank_of_npu):
    """Each NPU does on its rank what it does on one rank alone."""
    for rank, part in nonempty(enumerate(parts)):
        if isinstance(part, Exception):
            raise part
        naive.check_lists(part)
        assert (part.npus, len(part.group_ptr)) == (whole.npus, len(whole.group_ptr))
        for npu, of in nonempty(enumerate(rank_of_npu)):
            if of == rank:
                assert seen(part, npu) == seen(whole, npu)
            else:
                assert part.trace_of_npu[npu] == -1
                assert part.slot_ptr[npu] == part.slot_ptr[npu + 1]
        used = {0, *part.slot_group.tolist()}
        for group, size in nonempty(enumerate(np.diff(part.group_ptr).tolist())):
            assert size == (np.diff(whole.group_ptr)[group] if group in used else 0)


@bounded(150)
@given(workloads(), st.data())
def test_ranks_build_what_one_builds(case, data):
    nodes, groups = case
    npus = len(nodes)
    tables = [naive.table(npu, own) for npu, own in enumerate(nodes)]
    whole = build_program(tables, range(npus), npus, groups, ComputeModel("trace"))
    ranks = data.draw(st.integers(1, 3))
    rank_of_npu = data.draw(st.lists(st.integers(0, ranks - 1), min_size=npus, max_size=npus))
    parts = build_on_ranks(ranks, rank_of_npu, tables, range(npus), groups, ComputeModel("trace"))
    check_parts(whole, parts, rank_of_npu)


@bounded(400)
@given(workloads(), st.data())
def test_ranks_refuse_what_one_refuses(case, data):
    """Programs with a few random faults."""
    nodes, groups = copy.deepcopy(case)
    npus = len(nodes)
    for _ in range(data.draw(st.integers(1, 3))):
        own = data.draw(st.sampled_from(nodes))
        if not own:
            continue
        node = data.draw(st.sampled_from(own))
        fault = data.draw(st.sampled_from(["drop", "size", "type", "group", "peer", "tag"]))
        if fault == "drop":
            own.remove(node)
            for other in own:
                other["deps"] = [d for d in other["deps"] if d != node["id"]]
        elif fault in node:
            values = {"group": st.sampled_from(["", "7", "a", "x"]), "type": st.integers(0, 9)}
            node[fault] = data.draw(values.get(fault, st.integers(0, 5)))
    tables = [naive.table(npu, own) for npu, own in enumerate(nodes)]
    trace_of_npu = [npu if own else IDLE for npu, own in enumerate(nodes)]
    whole = outcome(build_program, tables, trace_of_npu, npus, groups, ComputeModel("trace"))
    rank_of_npu = data.draw(st.lists(st.integers(0, 2), min_size=npus, max_size=npus))
    parts = build_on_ranks(3, rank_of_npu, tables, trace_of_npu, groups, ComputeModel("trace"))
    if isinstance(whole, Exception):
        assert [(type(part), str(part)) for part in parts] == [(WorkloadError, str(whole))] * 3
    else:
        check_parts(whole, parts, rank_of_npu)


def test_groups_of_metadata_are_counted_alike():
    """Each pair has a name of its own or "pair", whose members its own traces say."""

    def trace(npu):
        pair = (npu // 2 * 2, npu // 2 * 2 + 1)
        nodes = [group_node(0, "g", "pair", pair), coll_node(1, "", ALL_REDUCE, 6, pg_name="pair")]
        if npu % 4 == 3:  # the second slot of some
            nodes.insert(1, coll_node(2, "", ALL_REDUCE, 6, pg_name="odd"))
        return table_of(metadata(), nodes, f"{npu}.et")

    traces = [trace(npu) for npu in range(12)]
    groups = {"odd": (3, 7, 11)}
    whole = build_program(traces, range(12), 12, groups)
    assert [whole.slot_group[whole.slot_ptr[npu]] for npu in (0, 2, 4)] == [1, 2, 4]
    for rank_of_npu in ([0, 1, 2] * 4, [2] * 4 + [1] * 4 + [0] * 4, [1] * 12):
        check_parts(whole, build_on_ranks(3, rank_of_npu, traces, range(12), groups), rank_of_npu)


def test_no_trace_on_any_rank():
    parts = build_on_ranks(3, [0, 0, 1, 2], [], [IDLE] * 4)
    assert [str(part) for part in parts] == ["no trace for any of 4 NPUs: expected at least one"] * 3


def load_and_build(prefix, rank_of_npu, groups=None, compute=None, ranks=2):
    """Programs of ranks that read their own traces."""
    npus = len(rank_of_npu)

    def work(rank, exchange):
        traces, own = load_traces(prefix, npus, own=np.array(rank_of_npu) == rank, exchange=exchange)
        return build_program(traces, own, npus, groups, compute, exchange=exchange)

    return on_ranks(ranks, work)


def test_a_transformer(tmp_path):
    model = Model(name="gpt", layers=2, hidden=64, heads=4, vocab=1024)
    plan = data_parallel_plan(6, 8, 2, 1 << 20, 1, recompute=False)
    prefix = expand(generate_for_all(model, plan), tmp_path)
    compute = ComputeModel(peak_flops=1e12, memory_bandwidth_Bps=1e12)
    traces, own = load_traces(prefix, 6)
    whole = build_program(traces, own, 6, compute=compute)
    for rank_of_npu in ([0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0], [1] * 6):
        check_parts(whole, load_and_build(prefix, rank_of_npu, compute=compute), rank_of_npu)


@pytest.mark.parametrize("name", ["gpt_fsdp8", "dense_dp2tp2pp2"])
def test_symbolic_tensor_graphs(chakra_data, name):
    folder = chakra_data / name
    groups = read_groups(folder / "workload.json")
    compute = ComputeModel("roofline", peak_flops=312e12, memory_bandwidth_Bps=2.04e12)
    traces, own = load_traces(folder / "workload", 8)
    whole = build_program(traces, own, 8, groups, compute)
    for rank_of_npu in ([0] * 4 + [1] * 4, [1, 0, 0, 2, 1, 2, 2, 0]):
        check_parts(whole, load_and_build(folder / "workload", rank_of_npu, groups, compute, 3), rank_of_npu)


def test_equal_files_have_the_name_of_the_first_on_every_rank(tmp_path):
    """NPU 0 lacks the all-reduce of the others, whose files are equal."""
    write_trace(tmp_path / "w.0.et", metadata(), [comp_node(0, "c")])
    for npu in (1, 2, 3):
        write_trace(tmp_path / f"w.{npu}.et", metadata(), [coll_node(7, "", ALL_REDUCE, 8)])
    write_trace(tmp_path / "w.4.et", metadata(), [comp_node(0, "c")])
    for members, absent in ((range(5), 0), ((1, 2, 3, 4), 4)):
        groups = {"g": tuple(members)}
        for npu in (1, 2, 3):
            write_trace(tmp_path / f"w.{npu}.et", metadata(), [coll_node(7, "", ALL_REDUCE, 8, pg_name="g")])
        text = (
            f'{tmp_path}/w.1.et: node 7: group "g": all-reduce of 8 B, the first of the group, has no counterpart on '
            f"member NPU {absent}: whose trace {tmp_path}/w.0.et has no collective of this group"
        )
        for rank_of_npu in ([0] * 5, [1, 1, 0, 0, 0], [0, 1, 1, 0, 1]):
            assert [str(part) for part in load_and_build(tmp_path / "w", rank_of_npu, groups)] == [text] * 2
