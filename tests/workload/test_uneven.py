"""All-to-alls with a number of bytes for each pair, also from the split sizes of traces."""

from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from nadi import et, topologies, workload
from nadi.pdes import Settings
from nadi.workload.collectives.plans.plan import NONE
from nadi.workload.collectives.schedules.checks import checked
from nadi.workload.collectives.schedules.oracle import Game, OracleError, play
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.collectives.schedules.sends import buffers, unpack
from nadi.workload.collectives.uneven import ALGORITHMS, all_to_all_v, buffer_bytes, matrices, units
from nadi.workload.program.traffic import traffic
from nadi.workload.trace_sets.groups import resolve
from nadi.workload.trace_sets.trace_set import own_traces
from tests.nonempty import nonempty
from tests.pdes import compare
from tests.refusals import refused


def check_uneven(schedules, index, count, seed=0):
    """Run schedule `index` as an all-to-all-v, whose blocks are ordered by member in regions 0 and 1.

    The matrix `count` is int64[n, n], chunks from member to member.
    """
    play(partial(UnevenGame, count), "all-to-all", schedules, index, seed)


class UnevenGame(Game):
    """A run with blocks of different numbers of chunks: the input ordered by receiver, the output by sender."""

    def __init__(self, count, *arguments):
        self.count = count
        super().__init__(*arguments)

    def start(self, member):
        return {a: {(member, a): 1} for a in range(int(self.count[member].sum()))}

    def promised(self, member):
        promised, at = {}, self.grid.atoms
        for source, row in enumerate(self.count):
            first = int(row[:member].sum())
            for chunk in range(first, first + int(row[member])):
                promised[at] = {(source, chunk): 1}
                at += 1
        return promised


HOSTS = (0, 0, 1, 1, 0, 0, 1, 1)


def routed(members=8, seed=0):
    """What a router of tokens of 1,536 bytes could do: few experts are wanted by many, some by none."""
    rng = np.random.default_rng(seed)
    wanted = rng.dirichlet(np.full(members, 0.4))
    return np.stack([rng.multinomial(24, wanted) for _ in range(members)]) * 1536


def cases():
    few = routed()
    few[3] = few[:, 5] = 0  # who sends nothing, who gets nothing
    return {
        "routed": routed(),
        "another": routed(seed=3),
        "few": few,
        "one": np.diag([0, 0, 7]) + np.eye(3, k=1, dtype=int),
    }


def plans_of(algorithm, matrix):
    hosts = HOSTS if len(matrix) == len(HOSTS) else range(len(matrix))
    return all_to_all_v(matrix, algorithm, hosts)


def messages(plans, matrix):
    """Bytes sent from member to member in all, and how many messages."""
    schedules, size = pack([plans]), buffer_bytes(plans, matrix)
    sent, number = np.zeros_like(matrix), 0
    for me, (lanes, own) in enumerate(zip(unpack(schedules, 0), buffers(schedules, 0), strict=True)):
        for steps, buffer in zip(lanes, own, strict=True):
            for step in steps:
                if step.send_peer != NONE:
                    sent[me, step.send_peer] += buffer.wire_bytes(step.send_chunk, step.send_count, size)
                    number += 1
    return sent, number


@pytest.mark.parametrize("matrix", cases().values(), ids=cases())
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_end_with_what_is_meant_for_them(algorithm, matrix):
    plans = checked(plans_of(algorithm, matrix), algorithm, "all-to-all")
    schedules = pack([plans])
    for seed in range(5):
        check_uneven(schedules, 0, units(matrix).sent, seed)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_check_notices_another_matrix(algorithm):
    matrix = routed()
    other = units(matrix).sent.copy()
    other[1, 2:4] += (1, -1)
    with pytest.raises(OracleError):
        check_uneven(pack([plans_of(algorithm, matrix)]), 0, other)


@pytest.mark.parametrize("matrix", cases().values(), ids=cases())
@pytest.mark.parametrize("algorithm", ["direct", "pairwise"])
def test_every_message_has_its_bytes(algorithm, matrix):
    wanted = matrix * (1 - np.eye(len(matrix), dtype=int))
    sent, number = messages(plans_of(algorithm, matrix), matrix)
    assert sent.tolist() == wanted.tolist()
    assert number == np.count_nonzero(wanted)


def test_between_hosts_only_equal_places_meet():
    matrix = routed()
    sent, _ = messages(plans_of("hierarchical", matrix), matrix)
    place = np.array([0, 1, 0, 1, 2, 3, 2, 3])
    host = np.array(HOSTS)
    for src, dst in nonempty(np.argwhere(sent)):
        expected = 0
        if host[src] == host[dst]:
            expected = matrix[src, place == place[dst]].sum()
        elif place[src] == place[dst]:
            expected = matrix[host == host[src], dst].sum()
        assert sent[src, dst] == expected
    crossing = host[:, None] != host[None, :]
    assert sent[crossing].sum() == matrix[crossing].sum()


def test_even_sizes_are_the_even_all_to_all():
    """Unlike it, the own block is copied."""
    matrix = np.full((5, 5), 4096)
    ours, known = (
        pack([p]) for p in (all_to_all_v(matrix, "pairwise"), workload.collectives.plan("all-to-all", "pairwise", 5))
    )
    sends = [
        Counter(
            (me, s.send_peer, s.send_chunk, s.recv_peer, s.recv_chunk) for lane in own for s in lane if s.send_peer >= 0
        )
        for schedules in (ours, known)
        for me, own in enumerate(unpack(schedules, 0))
    ]
    assert sends[:5] == sends[5:]
    assert units(matrix)[:2] == (4096, 5)


@pytest.mark.parametrize("matrix", [routed(), cases()["few"]], ids=["routed", "few"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_engine_moves_these_bytes(monkeypatch, algorithm, matrix):
    plans = plans_of(algorithm, matrix)
    module = SimpleNamespace(NAME="uneven", KINDS=("all-to-all",), plan=lambda *_: plans)
    monkeypatch.setattr(workload.collectives, "known_algorithms", lambda: {"uneven": module})
    program = workload.collective_program("all-to-all", 8, buffer_bytes(plans, matrix), "uneven")
    results = compare.check(topologies.build("switch:npus=8"), program, Settings())
    moved = np.zeros((8, 8), np.int64)
    np.add.at(moved, (results.flows["src"], results.flows["dst"]), results.flows["bytes"])
    assert moved.tolist() == messages(plans, matrix)[0].tolist()


@pytest.mark.parametrize(
    ("matrix", "text"),
    [
        ([[1, 2], [3, -4]], "all-to-all-v: -4 B from member 1 to 1, expected 0 or more"),
        ([[1, 2, 3], [4, 5, 6]], "all-to-all-v: a matrix of 2 x 3, expected a square one of bytes"),
        ([[1, 2], [3]], "all-to-all-v: rows of unlike lengths, expected a square matrix of bytes"),
        ([1, 2], "all-to-all-v: a matrix of 2, expected a square one of bytes"),
        ([[1.5]], "all-to-all-v: a matrix of float64, expected whole numbers of bytes"),
        ([[1, 1 << 40], [0, 0]], "all-to-all-v: 1099511627777 units of 1 B in a buffer, expected at most 268435456"),
    ],
)
def test_matrices_that_cannot_be_are_refused(matrix, text):
    assert refused(workload.WorkloadError, all_to_all_v, matrix, "direct") == text


@pytest.mark.parametrize(
    ("algorithm", "hosts", "text"),
    [
        ("bruck", None, "algorithm 'bruck' for all-to-all-v: expected one of direct, pairwise, hierarchical"),
        ("hierarchical", None, "all-to-all-v, hierarchical: hosts of none members, expected of 3"),
        ("hierarchical", (0, 0), "all-to-all-v, hierarchical: hosts of 2 members, expected of 3"),
        ("hierarchical", (0, 0, 1), "all-to-all-v, hierarchical: hosts of 1 to 2 members, expected as many on each"),
    ],
)
def test_algorithms_and_hosts_that_cannot_be_are_refused(algorithm, hosts, text):
    assert refused(workload.WorkloadError, all_to_all_v, np.ones((3, 3), int), algorithm, hosts) == text


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
    settings = workload.CollectiveSettings({"all-to-all-v": algorithm} if algorithm else {})
    return workload.build_program(traces, range(len(traces)), len(traces), settings=settings, **others)


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
    expected = workload.uneven_program(matrix, algorithm or None)
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
    assert sent(build(tables(*texts))).tolist() == sent(workload.uneven_program(matrix)).tolist()


def test_an_empty_list_is_even():
    one = et.coll_node(0, "a", ALL_TO_ALL, 400, attrs=[et.attribute("in_split_size", "string", "[]")])
    program = workload.build_program(tables([one]), [0] * 4, 4)
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
    assert {workload.KINDS[kind] for kind in program.node_collective} == {"all-to-all"}


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
    program = workload.build_program(traces, [0, 1, 0, 0], 4, fabric=topologies.build("torus:sizes=2x2"))
    assert sent(program)[[0, 1, 2, 3], [1, 0, 3, 2]].tolist() == [TOKEN, 5 * TOKEN, TOKEN, 2 * TOKEN]


def refused_splits(traces, **others):
    with pytest.raises(workload.WorkloadError) as error:
        build(traces, **others)
    return str(error.value)


def test_members_that_disagree_are_refused():
    matrix = matrix_of()
    columns = matrix.T.copy()
    columns[2, 1] += TOKEN
    traces = tables(*([node(row, column=columns[i])] for i, row in enumerate(matrix)))
    assert refused_splits(traces) == (
        f"t.2.et: node 0: out_split_size says {columns[2, 1]} B from member 1, expected the {matrix[1, 2]} B of its "
        "in_split_size"
    )
    mixed = tables([node(matrix[0])], [et.coll_node(0, "a", ALL_TO_ALL, 2048)])
    assert refused_splits(mixed).endswith(
        "collective 0 on NPU 0 is all-to-all with split sizes, but on NPU 1 it is all-to-all of 2048 B (t.1.et: node 0)"
    )


def test_lists_that_cannot_be_are_refused():
    assert refused_splits(tables([node([1, 2, 3])], [node([1, 2, 3])])) == (
        "t.0.et: node 0: in_split_size has 3 numbers, expected one for each of the group's 2 members"
    )
    part = et.coll_node(0, "a", ALL_TO_ALL, 10, in_split_size=[1, 2])
    assert refused_splits(tables([part], [part])) == (
        "t.0.et: node 0: in_split_size has 1 of 3 in comm_size 10, expected whole bytes"
    )
    none = et.coll_node(0, "a", ALL_TO_ALL, 10, in_split_size=[0, 0])
    assert (
        refused_splits(tables([none], [none]))
        == "t.0.et: node 0: in_split_size is all 0 and comm_size 10, expected 0 too"
    )
    with pytest.raises(
        workload.WorkloadError, match="algorithm 'bruck' for all-to-all-v: expected one of direct, pairwise, h"
    ):
        workload.CollectiveSettings({"all-to-all-v": "bruck"})


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
    with pytest.raises(
        workload.WorkloadError, match=r"t\.1\.et: node 0: out_split_size says \d+ B from member 2"
    ) as error:
        build(tables(*calls))
    assert error.value.npu == 1
