import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from nadi import et
from nadi.et import order
from nadi.et.schema import Node
from tests.nonempty import nonempty


def graph(*parents, ids=None):
    """Nodes whose parents are given as rows."""
    ids = ids or list(range(len(parents)))
    return [
        Node(id=i, type=et.NodeType.COMP_NODE, data_deps=[ids[p] for p in rows])
        for i, rows in zip(ids, parents, strict=True)
    ]


def table(*parents, ids=None):
    return et.table_of(et.metadata(), graph(*parents, ids=ids))


def naive_order(parents):
    order = []
    while len(order) < len(parents):
        order.append(min(r for r in range(len(parents)) if r not in order and set(parents[r]) <= set(order)))
    return order


def naive_depth(parents, row):
    return 1 + max((naive_depth(parents, p) for p in parents[row]), default=0)


@st.composite
def acyclic(draw):
    """Parents by row, such that some order exists but rarely the rows' own."""
    n = draw(st.integers(1, 9))
    rank = draw(st.permutations(range(n)))
    return [draw(st.lists(st.sampled_from([p for p in range(n) if rank[p] < rank[r]] or [r]), unique=True)
                 if rank[r] else st.just([])) for r in range(n)]  # fmt: skip


@given(acyclic())
def test_order_and_depth_agree_with_a_naive_search(parents):
    made = table(*parents)
    assert et.topological_order(made).tolist() == naive_order(parents)
    assert order.depth(made) == max(naive_depth(parents, row) for row in range(len(parents)))


def test_the_least_row_that_can_goes_first():
    assert et.topological_order(table([3], [], [], [])).tolist() == [1, 2, 3, 0]
    assert et.topological_order(table([2], [], [])).tolist() == [1, 2, 0]
    assert et.topological_order(table([], [], [0])).tolist() == [0, 1, 2]


@given(acyclic())
def test_children_are_parents_the_other_way(parents):
    child_ptr, child = order.children(table(*parents))
    for row in nonempty(range(len(parents))):
        expected = [other for other in range(len(parents)) if row in parents[other]]
        assert child[child_ptr[row] : child_ptr[row + 1]].tolist() == expected


@pytest.mark.parametrize(
    ("parents", "ids", "path"),
    [
        ([[0]], [3], "3 -> 3"),
        ([[1], [0]], [3, 5], "3 -> 5 -> 3"),
        ([[], [2, 0], [3], [1], [1]], [10, 11, 12, 13, 14], "11 -> 12 -> 13 -> 11"),
        ([[2], [3], [1], [2], [0]], [50, 40, 30, 20, 10], "40 -> 20 -> 30 -> 40"),
    ],
)
def test_a_cycle_is_an_error_that_shows_it(parents, ids, path):
    with pytest.raises(et.TraceError) as caught:
        table(*parents, ids=ids)
    assert str(caught.value) == f"<memory>: dependency cycle {path}, expected no cycle"


def test_a_long_cycle_is_shown_in_part():
    with pytest.raises(et.TraceError, match=r"0 -> 99 -> .* -> 89 -> \.\.\. \(88 more\) -> 0,"):
        table(*[[(row - 1) % 100] for row in range(100)])


@given(acyclic(), st.data())
def test_every_cycle_is_found_and_is_one(parents, data):
    rows = range(len(parents))
    path = data.draw(st.lists(st.sampled_from(rows), min_size=1, unique=True))
    for row, parent in zip(path, [*path[1:], path[0]], strict=True):
        parents[row] = sorted({*parents[row], parent})
    with pytest.raises(et.TraceError, match="dependency cycle") as caught:
        table(*parents)
    shown = [int(text) for text in str(caught.value).split("cycle ")[1].split(",")[0].split(" -> ")]
    assert shown[0] == shown[-1] == min(shown)
    assert len(set(shown)) == len(shown) - 1
    assert all(parent in parents[row] for row, parent in itertools.pairwise(shown))


def test_control_dependencies_close_cycles_too(tmp_path):
    path = tmp_path / "t.et"
    nodes = graph([], [0])
    nodes[0].ctrl_deps.append(1)
    et.write_trace(path, et.metadata(), nodes)
    with pytest.raises(et.TraceError, match="0 -> 1 -> 0"):
        et.read_trace(path)
    made = et.read_trace(path, strict=False)
    assert (made.dropped_control, made.dep.tolist()) == (1, [0])


def test_a_cycle_of_data_dependencies_is_always_an_error(write_nodes):
    path = write_nodes((3, [5]), (5, [3]))
    for strict in (False, True):
        with pytest.raises(et.TraceError, match=r"trace\.0\.et: dependency cycle 3 -> 5 -> 3"):
            et.read_trace(path, strict=strict)
