"""A trace set is what its expansion says, in memory, as files, and on several ranks."""

import copy

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nadi import et
from nadi.et import CollectiveCommType
from nadi.workload import ComputeModel, TraceSet, WorkloadError, build_program, expand, read_set, write_set
from nadi.workload.trace_sets.trace_set import ELSEWHERE, IDLE
from tests.budgets import bounded
from tests.et.alike import check_alike
from tests.workload import naive
from tests.workload.ranks import on_ranks
from tests.workload.sets import expanded, sets, trace_set
from tests.workload.test_ranks import check_parts, outcome, seen

RECORDED = ComputeModel("trace")
AR = CollectiveCommType.ALL_REDUCE


def program_of(traces, groups=None, **named):
    """The Program of a set."""
    examples = {"example_npu": traces.example_npu, "families": traces.families}
    return build_program(traces.traces, traces.trace_of_npu, traces.npus, groups, RECORDED, **examples, **named)


def on_parts(ranks, rank_of_npu, traces, groups=None):
    """The Program or error of ranks that have the traces of their own NPUs only."""

    def build(rank, exchange):
        own = np.where(np.array(rank_of_npu) == rank, traces.trace_of_npu, ELSEWHERE)
        kept = sorted({t for t in own.tolist() if t >= 0})
        numbers = [kept.index(t) if t >= 0 else t for t in own.tolist()]
        part = TraceSet(
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
    wanted = build_program(tables, [*range(len(tables)), *[IDLE] * idle], npus, plain[1] | groups, RECORDED)
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
        wanted = outcome(build_program, tables, range(traces.npus), traces.npus, plain_groups | groups, RECORDED)
    except (KeyError, ValueError) as error:  # an NPU without a group, or with a peer below 0
        wanted = error
    found = outcome(program_of, traces, groups)
    assert isinstance(found, WorkloadError) == isinstance(wanted, Exception)
    rank_of_npu = data.draw(st.lists(st.integers(0, 2), min_size=traces.npus, max_size=traces.npus))
    parts = on_parts(3, rank_of_npu, traces, groups)
    if isinstance(found, Exception):
        assert "\n" not in str(found)
        assert [(type(part), str(part)) for part in parts] == [(WorkloadError, str(found))] * 3
    else:
        check_parts(found, parts, rank_of_npu)


@bounded(40)
@given(sets())
def test_a_set_is_written_read_and_expanded(tmp_path_factory, case):
    nodes, example, width, families, _, idle = case
    folder = tmp_path_factory.mktemp("set")
    traces = trace_set(nodes, example, width, families, idle)
    assert write_set(folder / "s", traces, "gpt") == folder / "s"
    found = read_set(folder / "s")
    assert found.trace_of_npu.tolist() == traces.trace_of_npu.tolist()
    assert found.example_npu.tolist() == traces.example_npu.tolist()
    assert found.families == families
    for a, b in zip(found.traces, traces.traces, strict=True):
        check_alike(a, b)
    of_npus, groups = expanded(nodes, example, width, families)
    prefix = expand(traces, folder / "plain", "x")
    assert et.read_groups(folder / "plain" / "groups.json") == groups
    assert len(list((folder / "plain").iterdir())) == len(of_npus) + 1
    for npu, own in enumerate(of_npus):
        check_alike(et.read_trace(f"{prefix}.{npu}.et"), naive.table(npu, own))
