"""Packets that tie at a node: whoever ties, each order is equally likely, and no sender waits for long."""

import itertools
from collections import Counter

import numpy as np
import pytest

from nadi.pdes import Settings, build_world
from nadi.pdes.core.memory import rows_of
from nadi.pdes.core.packet import LINK_BITS
from nadi.pdes.core.rows.network import PacketRecord
from nadi.topologies import build
from nadi.workload import collective_program
from tests.pdes import kernels

TIES = 6000


def orders(links_of_tie, seed=1):
    """Return in which order the packets of consecutive ties at one node act, as tuples of links.

    links_of_tie: links of the packets of each tie.
    """
    world = build_world(build("switch:npus=16"), collective_program("barrier", 16, 0), Settings(seed=seed)).lps[0].world
    found = []
    for number, links in enumerate(links_of_tie):
        count = len(links)
        record = rows_of(PacketRecord, count)
        record.ready_ps = np.array(links) | 7 << LINK_BITS
        keys = 7 << 16 | np.arange(count)
        places = {"batch_key": keys, "batch_tmp": np.zeros(count, np.int64), "batch_pos": np.arange(count)}
        inbox = world.inbox._replace(**places)
        kernels.order_batch(world.net._replace(record=record), inbox, 16, count, number * 1000, (number + 1) * 1000)
        found.append(tuple(links[at] for at in (keys & 0xFFFF).tolist()))
    return found


@pytest.mark.parametrize("links", [2, 3, 4])
def test_each_order_is_equally_likely(links):
    counted = Counter(orders([tuple(range(links))] * TIES))
    expected = TIES / len(list(itertools.permutations(range(links))))
    assert len(counted) == TIES / expected
    assert max(abs(count - expected) for count in counted.values()) < 5 * expected**0.5


@pytest.mark.parametrize("pair", [(0, 1), (3, 4), (0, 15)])
def test_each_of_two_links_comes_before_the_other_as_often_whoever_else_ties(pair):
    """A rotation of all would let a link come before its neighbour in 15 of 16 ties."""
    first = [order.index(pair[0]) < order.index(pair[1]) for order in orders([tuple(range(16))] * TIES)]
    assert abs(np.mean(first) - 0.5) < 2.5 / TIES**0.5


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("pairs", [1, 2, 3, 4])
def test_no_sender_starves_where_pairs_tie_in_turn(pairs, seed):
    """Pairs of senders to different receivers tie one after another: each pair sees every n-th tie of the node."""
    ties = orders([(2 * (n % pairs), 2 * (n % pairs) + 1) for n in range(TIES)], seed)
    for pair in range(pairs):
        won = [order[0] == 2 * pair for order in ties[pair::pairs]]
        assert abs(np.mean(won) - 0.5) < 2.5 / len(won) ** 0.5
        assert max(len(list(same)) for _, same in itertools.groupby(won)) <= 20


def test_a_pause_lets_a_node_forget():
    """After it, ties are ordered as from the run's begin; after a shorter one they are not."""
    world = build_world(build("switch:npus=2"), collective_program("barrier", 2, 0), Settings()).lps[0].world
    pause = int(world.net.const.tie_pause_ps)
    drawn = [[kernels.draw_tie(world.net, 2, begin + n * pause) for n in range(3)] for begin in (5, 5 + 10 * pause)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3
    assert kernels.draw_tie(world.net, 2, 5 + 13 * pause) != drawn[0][0]
    assert kernels.draw_tie(world.net, 2, 6 + 14 * pause) == drawn[0][0]
