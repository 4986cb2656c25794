"""Rotated rings: what they promise, SimAI's order of members, and the load of network interfaces."""

from collections import Counter
from itertools import pairwise

import pytest

from nadi import topologies
from nadi.workload.collectives.algorithms import rotated_ring
from nadi.workload.collectives.schedules.oracle import check
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.shape import shape_of
from tests.nonempty import nonempty

FABRIC = "rail-optimised:npus={npus},gpus_per_host=4"


def shape(hosts, members=None):
    graph = topologies.build(FABRIC.format(npus=4 * hosts))
    return shape_of(graph, range(graph.npus) if members is None else members)


@pytest.mark.parametrize("kind", rotated_ring.KINDS)
@pytest.mark.parametrize(("hosts", "members"), [(1, None), (2, None), (3, None), (3, (0, 4, 8)), (2, (0, 1, 2, 4, 5))])
def test_plans_do_what_the_kind_promises(kind, hosts, members):
    check(kind, pack([rotated_ring.plan(kind, shape(hosts, members), 1 << 20)]), 0)


def rings_of(shape):
    return rotated_ring._rings(shape)


def test_order_is_that_of_simai():
    """MockNcclGroup::gen_local_ring turns the members of the first host, and further hosts repeat that."""
    assert rings_of(shape(2)) == [
        (0, 1, 2, 3, 4, 5, 6, 7),
        (1, 2, 3, 0, 5, 6, 7, 4),
        (2, 3, 0, 1, 6, 7, 4, 5),
        (3, 0, 1, 2, 7, 4, 5, 6),
    ]
    assert rings_of(shape(2, (0, 1, 2, 4, 5))) == [(0, 1, 2, 3, 4)]


def test_each_network_interface_sends_for_one_ring():
    found = shape(3)
    hops = [hop for ring in rings_of(found) for hop in pairwise((*ring, ring[0]))]
    leaving = Counter(a for a, b in nonempty(hops) if found.host[a] != found.host[b])
    assert set(leaving.values()) == {1}
    assert len(leaving) == found.members
