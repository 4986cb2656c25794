"""All-to-alls of traces with split sizes: the matrix that all members say together, and what they may not say."""

import numpy as np
import pytest

from nadi import et, topologies
from nadi.workload import KINDS, CollectiveSettings, WorkloadError, build_program, uneven_program
from nadi.workload.collectives.uneven import matrices
from nadi.workload.program.traffic import traffic
from nadi.workload.trace_sets.groups import resolve
from nadi.workload.trace_sets.trace_set import own_traces
from tests.nonempty import nonempty

ALL_TO_ALL = et.CollectiveCommType.ALL_TO_ALL
TOKEN = 512


def matrix_of(members=4, seed=0):
    return np.random.default_rng(seed).integers(0, 9, (members, members)) * TOKEN


def node(row, number=0, column=None, unit=1, **others):
    out = None if column is None else [int(size) // unit for size in column]
    splits = [int(size) // unit for size in row]
    return et.coll_node(number, "a", ALL_TO_ALL, int(sum(row)), in_split_size=splits, out_split_size=out, **others)


def tables(*nodes_of_members):
    return [et.table_of(et.metadata(), list(nodes), f"t.{i}.et") for i, nodes in enumerate(nodes_of_members)]


def build(traces, algorithm="", **others):
    settings = CollectiveSettings({"all-to-all-v": algorithm} if algorithm else {})
    return build_program(traces, range(len(traces)), len(traces), settings=settings, **others)


def sent(program):
    found = traffic(program)
    made = np.zeros((program.npus, program.npus), np.int64)
    made[found.src, found.dst] = found.bytes
    return made


@pytest.mark.parametrize("unit", [1, TOKEN], ids=["bytes", "tokens"])
@pytest.mark.parametrize("algorithm", ["", "direct", "pairwise"])
def test_every_pair_sends_what_its_trace_says(algorithm, unit):
    matrix = matrix_of()
    program = build(tables(*([node(row, column=matrix[:, i], unit=unit)] for i, row in enumerate(matrix))), algorithm)
    assert sent(program).tolist() == (matrix * (1 - np.eye(4, dtype=int))).tolist()
    expected = uneven_program(matrix, algorithm or None)
    assert all(np.array_equal(a, b) for a, b in nonempty(zip(program.schedules, expected.schedules, strict=True)))
    assert np.all(program.node_bytes == expected.node_bytes[0])


def test_text_of_pytorch_is_the_list():
    matrix = matrix_of()
    texts = [
        [
            et.coll_node(0, "a", ALL_TO_ALL, int(row.sum()), attrs=[
                et.attribute("in_split_size", "string", str((row // TOKEN).tolist()))
            ])
        ]
        for row in matrix
    ]  # fmt: skip
    assert sent(build(tables(*texts))).tolist() == sent(uneven_program(matrix)).tolist()


def test_an_empty_list_is_even():
    one = et.coll_node(0, "a", ALL_TO_ALL, 400, attrs=[et.attribute("in_split_size", "string", "[]")])
    program = build_program(tables([one]), [0] * 4, 4)
    assert not program.schedules.uneven.any()
    assert not program.node_uneven.any()
    assert program.node_bytes.tolist() == [400]


def test_equal_matrices_and_their_multiples_share_a_schedule():
    first, other = matrix_of(), matrix_of(seed=5)
    steps = (first, other, first, 3 * first)
    traces = tables(*([node(m[i], k, deps=range(k)) for k, m in enumerate(steps)] for i in range(4)))
    program = build(traces)
    assert len(program.schedules.members) == 2
    rows = program.trace_of_npu[0]
    numbers = program.node_schedule[program.trace_ptr[rows] : program.trace_ptr[rows + 1]].tolist()
    assert numbers == [0, 1, 0, 0]
    size = program.node_bytes[program.trace_ptr[rows] : program.trace_ptr[rows + 1]].tolist()
    assert size[3] == 3 * size[0] == 3 * size[2]
    assert program.node_uneven.all()
    assert {KINDS[kind] for kind in program.node_collective} == {"all-to-all"}


def test_who_sends_nothing_may_say_so():
    matrix = matrix_of()
    matrix[2] = 0
    assert sent(build(tables(*([node(row, column=matrix[:, i])] for i, row in enumerate(matrix)))))[2].sum() == 0


def test_groups_have_matrices_of_their_own():
    matrices = matrix_of(2), matrix_of(2, seed=1)
    groups = {"low": (0, 1), "high": (3, 2)}
    traces = tables(
        *([node(matrices[npu // 2][groups[("low", "high")[npu // 2]].index(npu)], pg_name=("low", "high")[npu // 2])]
          for npu in range(4))
    )  # fmt: skip
    found = sent(build(traces, groups=groups))
    assert (found[0, 1], found[1, 0]) == (matrices[0][0, 1], matrices[0][1, 0])
    assert (found[3, 2], found[2, 3]) == (matrices[1][0, 1], matrices[1][1, 0])
    assert found.sum() == found[0, 1] + found[1, 0] + found[2, 3] + found[3, 2]


def test_npus_that_share_a_trace_may_have_other_matrices():
    """In lines 0, 1 and 2, 3 of a grid, NPUs 0, 2 and 3 run the same trace."""
    few, many = ([2 * TOKEN, TOKEN], [5 * TOKEN, 7 * TOKEN])
    traces = tables(*([node(row, involved_dim=[True, False])] for row in (few, many)))
    program = build_program(traces, [0, 1, 0, 0], 4, fabric=topologies.build("torus:sizes=2x2"))
    assert sent(program)[[0, 1, 2, 3], [1, 0, 3, 2]].tolist() == [TOKEN, 5 * TOKEN, TOKEN, 2 * TOKEN]


def refused(traces, **others):
    with pytest.raises(WorkloadError) as error:
        build(traces, **others)
    return str(error.value)


def test_members_that_disagree_are_refused():
    matrix = matrix_of()
    columns = matrix.T.copy()
    columns[2, 1] += TOKEN
    traces = tables(*([node(row, column=columns[i])] for i, row in enumerate(matrix)))
    assert refused(traces) == (
        f"t.2.et: node 0: out_split_size says {columns[2, 1]} B from member 1, expected the {matrix[1, 2]} B of its "
        "in_split_size"
    )
    mixed = tables([node(matrix[0])], [et.coll_node(0, "a", ALL_TO_ALL, 2048)])
    assert refused(mixed).endswith(
        "collective 0 on NPU 0 is all-to-all with split sizes, but on NPU 1 it is all-to-all of 2048 B (t.1.et: node 0)"
    )


def test_lists_that_cannot_be_are_refused():
    assert refused(tables([node([1, 2, 3])], [node([1, 2, 3])])) == (
        "t.0.et: node 0: in_split_size has 3 numbers, expected one for each of the group's 2 members"
    )
    part = et.coll_node(0, "a", ALL_TO_ALL, 10, in_split_size=[1, 2])
    assert refused(tables([part], [part])) == (
        "t.0.et: node 0: in_split_size has 1 of 3 in comm_size 10, expected whole bytes"
    )
    none = et.coll_node(0, "a", ALL_TO_ALL, 10, in_split_size=[0, 0])
    assert refused(tables([none], [none])) == "t.0.et: node 0: in_split_size is all 0 and comm_size 10, expected 0 too"
    with pytest.raises(WorkloadError, match="algorithm 'bruck' for all-to-all-v: expected one of direct, pairwise, h"):
        CollectiveSettings({"all-to-all-v": "bruck"})


def test_groups_that_share_traces_say_the_same_matrices():
    """600 NPUs in 100 groups of 6; each of 6 traces calls twice."""
    members = 6
    first, second = matrix_of(members), matrix_of(members, seed=3)
    calls = [
        [node(first[i], 0, column=first[:, i], pg_name="ep"), node(second[i], 1, deps=[0], pg_name="ep")]
        for i in range(members)
    ]
    families = {"ep": tuple(tuple(range(start, 600, 100)) for start in range(100))}
    trace_of_npu = np.arange(600, dtype=np.int32) // 100
    own = own_traces(tables(*calls), trace_of_npu, None, np.full(members, -1, np.int32))
    found = matrices(own, resolve(own, 600, {}, families=families))
    assert set(found) == {(group, seq) for group in range(1, 101) for seq in range(2)}
    assert all(np.array_equal(matrix, (first, second)[seq]) for (_, seq), matrix in nonempty(found.items()))
    assert len({id(matrix) for matrix in found.values()}) == 2


def test_the_first_npu_of_several_that_are_wrong_is_named():
    matrix = matrix_of()
    calls = [[node(row, column=matrix[:, i])] for i, row in enumerate(matrix)]
    wrong = matrix[:, 1].copy()
    wrong[[2, 3]] = wrong[[2, 3]] + [TOKEN, -TOKEN]
    calls[1] = [node(matrix[1], column=wrong)]
    calls[3] = [node(matrix[3], column=matrix[:, 0])]
    with pytest.raises(WorkloadError, match=r"t\.1\.et: node 0: out_split_size says \d+ B from member 2") as error:
        build(tables(*calls))
    assert error.value.npu == 1
