"""Ring collectives on an idle network: two to 64 members and more, from latency-bound to bandwidth-bound."""

import itertools

import pytest

from nadi.workload import collective_program
from tests.samples import pairwise
from tests.scenarios.closed_forms import ROCE, Hop, Wire, fat_tree_hops, ring_ps, steps_ps
from tests.scenarios.running import simulate

G400 = 400 * 10**9
NS = 10**3
ONE_LINK = Hop(1, 500 * NS)
BY_SWITCH = Hop(2, 1300 * NS)
KINDS = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}
MESSAGES = {"latency": 64, "middle": 16 * 4096, "bandwidth": 400 * 4096}
"""Bytes of one message: 0.6 % of a link's delay, about as long as the way through a switch, and 20 times that."""
PRECISION = 1e-3
ROUNDED = 1e-12  # forms that hold to the picosecond


@pytest.mark.parametrize(
    ("kind", "npus", "message"), pairwise(itertools.product(KINDS, [2, 3, 4, 8, 16, 32, 64], MESSAGES))
)
def test_ring(kind, npus, message):
    size_bytes = MESSAGES[message]
    results = simulate(f"ring:npus={npus}", collective_program(kind, npus, npus * size_bytes))
    steps = KINDS[kind] * (npus - 1)
    expected_ps = steps_ps(steps, size_bytes, ONE_LINK, G400, shared=npus == 2)
    assert results.finish_time_ps == pytest.approx(expected_ps, rel=ROUNDED)
    assert results.counters["flows"] == npus * steps


@pytest.mark.parametrize(("kind", "npus", "message"), pairwise(itertools.product(KINDS, [2, 3, 8, 16, 64], MESSAGES)))
def test_switch(kind, npus, message):
    size_bytes = MESSAGES[message]
    if npus == 64 and message == "bandwidth":
        size_bytes //= 2 * KINDS[kind]  # 90 % of a step, and not too long a test
    results = simulate(f"switch:npus={npus},switch_latency=300ns", collective_program(kind, npus, npus * size_bytes))
    expected_ps = steps_ps(KINDS[kind] * (npus - 1), size_bytes, BY_SWITCH, G400)
    assert results.finish_time_ps == pytest.approx(expected_ps, rel=ROUNDED)


@pytest.mark.parametrize("size_bytes", [77, 100_000, 1_000_000])
@pytest.mark.parametrize(("spec", "hop"), [("ring", ONE_LINK), ("switch", Hop(2, 1000 * NS))])
@pytest.mark.parametrize("npus", [3, 5, 8])
def test_parts_that_do_not_come_out_even(npus, spec, hop, size_bytes):
    """Parts differ by a byte, and end with a packet that is not full; the largest counts."""
    results = simulate(f"{spec}:npus={npus}", collective_program("all-reduce", npus, size_bytes))
    largest = -(-size_bytes // npus)
    expected_ps = steps_ps(2 * (npus - 1), largest, hop, G400, shared=spec == "switch")
    assert results.finish_time_ps == pytest.approx(expected_ps, rel=PRECISION)


def fat_tree_deviation(kind, k, npus, size_bytes, wire=ROCE):
    settings = {"mtu_bytes": wire.mtu, "header_bytes": wire.header, "ack_bytes": wire.ack}
    program = collective_program(kind, npus, npus * size_bytes)
    results = simulate(f"fat-tree:k={k},switch_latency=300ns", program, **settings)
    hops = fat_tree_hops(k, npus, link_ps=500 * NS, switch_ps=300 * NS)
    form_ps = ring_ps(KINDS[kind] * (npus - 1), size_bytes, hops, G400, wire)
    return results.finish_time_ps / form_ps - 1


@pytest.mark.parametrize(
    ("kind", "tree", "size_bytes"),
    pairwise(
        itertools.product(KINDS, [(4, 2), (4, 4), (4, 8), (4, 16), (8, 32), (8, 64), (8, 128)], [64, 4096, 4 * 4096])
    ),
)
def test_fat_tree_with_short_messages(kind, tree, size_bytes):
    """Messages that are through before the first acknowledgements come: nothing meets, so the form is exact."""
    assert abs(fat_tree_deviation(kind, *tree, size_bytes)) < ROUNDED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "npus"), [(4, 4), (4, 16), (8, 32)])
def test_fat_tree_with_long_messages(kind, k, npus):
    """A thousand packets: between the first and the last, each waits for one acknowledgement, in all ports."""
    packets = 500 if npus == 32 and kind == "all-reduce" else 1000
    assert abs(fat_tree_deviation(kind, k, npus, packets * 4096)) < PRECISION


@pytest.mark.parametrize(
    ("kind", "tree", "packets"),
    pairwise(itertools.product(KINDS, [(4, 4), (4, 16), (8, 64), (8, 128)], [2, 6, 12, 32])),
)
def test_fat_tree_in_the_middle(kind, tree, packets):
    """Packets of 32 KiB, so that what `ring_ps` leaves out (in switches, at most a for a packet) is 0.26 % at most."""
    wire = Wire(mtu=32768)
    assert abs(fat_tree_deviation(kind, *tree, packets * wire.mtu, wire)) < PRECISION


@pytest.mark.parametrize(
    ("kind", "tree", "packets"), pairwise(itertools.product(KINDS, [(4, 4), (4, 16), (8, 64)], [6, 12, 32, 100]))
)
def test_fat_tree_in_the_middle_with_packets_of_4_kib(kind, tree, packets):
    """Where 6 packets take half as long as the shortest way, the form holds. Beyond, a / P = 2 % would have to be
    counted in every switch's port; it lies between none there and one for every packet, as in long messages.
    """
    k, npus = tree
    results = simulate(f"fat-tree:k={k},switch_latency=300ns", collective_program(kind, npus, npus * packets * 4096))
    steps, hops = KINDS[kind] * (npus - 1), fat_tree_hops(k, npus, link_ps=500 * NS, switch_ps=300 * NS)
    none_ps = ring_ps(steps, packets * 4096, hops, G400, ROCE._replace(ack=0))
    all_ps = ring_ps(steps, packets * 4096, hops, G400, ROCE._replace(header=ROCE.header + ROCE.ack, ack=0))
    assert none_ps <= results.finish_time_ps <= all_ps
    if packets == 6:
        assert results.finish_time_ps == pytest.approx(ring_ps(steps, 6 * 4096, hops, G400), rel=PRECISION)
