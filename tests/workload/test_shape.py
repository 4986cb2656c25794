"""Shapes of groups against what the spec of the fabric says."""

import pytest

from nadi import topologies
from nadi.workload.shape import shape_of

G = 10**9
NS = 1000
STACK = (
    "stack:dims=Ring(4)_FullyConnected(3)_Switch(2),rates=100Gbps_50Gbps_25Gbps,delays=100ns_200ns_300ns,"
    "switch_latency=40ns,host_dims=1"
)


def shape(spec, members):
    return shape_of(topologies.build(spec), members)


def test_a_whole_stack():
    found = shape(STACK, range(24))
    assert found.members == 24
    assert found.grid == (4, 3, 2)
    assert found.rate_bps == (100 * G, 2 * 50 * G, 25 * G)
    assert found.latency_ps == (100 * NS, 200 * NS, 640 * NS)
    assert found.host == tuple(i // 4 for i in range(24))
    assert found.place == tuple(i % 4 for i in range(24))


@pytest.mark.parametrize(
    ("members", "grid", "rates"),
    [
        (range(4), (4,), (100 * G,)),
        (range(4, 8), (4,), (100 * G,)),
        ([2, 6, 10], (3,), (100 * G,)),
        ([1, 13], (2,), (25 * G,)),
        ([0, 1, 12, 13], (2, 2), (100 * G, 25 * G)),
        ([1, 2, 3, 0], (4,), (100 * G,)),
        ([0, 12, 1, 13], (4,), (25 * G,)),
        ([7], (1,), (0,)),
    ],
)
def test_groups_of_the_stack(members, grid, rates):
    found = shape(STACK, members)
    assert found.grid == grid
    assert found.rate_bps == rates


def test_a_group_in_another_order_is_no_grid():
    found = shape(STACK, [4, 5, 6, 7, 0, 1, 2, 3])
    assert found.grid == (8,)
    assert found.host == (0,) * 4 + (1,) * 4
    assert shape(STACK, [7, 0, 4]).host == (0, 1, 0)
    assert shape(STACK, [7, 0, 4]).place == (3, 0, 0)


def test_parallel_and_switched_links():
    spec = "leaf-spine:leaves=2,spines=2,hosts_per_leaf=4,rate=100Gbps,delay=1us,switch_latency=300ns"
    found = shape(spec, range(8))
    assert found.rate_bps[0] == 100 * G
    assert max(found.latency_ps) == 4 * 1000 * NS + 3 * 300 * NS


def test_alike_groups_are_equal():
    graph = topologies.build("torus:sizes=4x4x2")
    one, other = shape_of(graph, range(4)), shape_of(graph, range(8, 12))
    assert one == other
    assert hash(one) == hash(other)
    assert one != shape_of(graph, [0, 4, 8, 12, 16])
