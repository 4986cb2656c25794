"""Rates of flows are max-min fair, after any changes, and do not depend on the order of the changes."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.pdes.core import state as s
from nadi.pdes.core.jit import Directory
from nadi.pdes.core.memory import rows_of, unused, zeros
from nadi.pdes.core.rows.messages import Flow, FlowHop, FlowLink, HopUse, KeyedEntry, LinkFlow
from nadi.pdes.messages.flows.rates import LINK_FLOWS_PER_HOP, RATE_UNITS, WEIGHT_SHIFT
from tests.budgets import bounded
from tests.pdes import kernels, naive_flows

WHOLE = 1 << WEIGHT_SHIFT
GB = 10**9 * RATE_UNITS
LINKS, FLOWS, HOPS = 12, 20, 5
TOLERANCE = 1e-9  # relative
BACK = 341  # weight of acknowledgements of RoCEv2: 86 of 4,178 bytes


class Network:
    """The flows under test, beside what the naive solver needs."""

    def __init__(self, capacity, flows=FLOWS):
        self.capacity = list(capacity)
        links = len(capacity)
        self.flows = unused(s.Flows)._replace(
            flow=rows_of(Flow, flows),
            hop=rows_of(FlowHop, flows * HOPS),
            hop_use=rows_of(HopUse, flows * HOPS),
            link_flow=rows_of(LinkFlow, LINK_FLOWS_PER_HOP * flows * HOPS),
            link=rows_of(FlowLink, links, capacity=self.capacity),
            finish_heap=rows_of(KeyedEntry, flows),
            finish_place=zeros(flows),
            dirty=zeros(links),
            fresh=zeros(flows),
            reached_flow=zeros(flows),
            fill_heap=rows_of(KeyedEntry, links),
            fill_place=zeros(links),
        )
        self.directory = Directory(self.flows)
        self.active = {}

    def start(self, f, cap, links, now=0):
        flow = self.flows.flow[f]
        flow.first_hop, flow.hops, flow.cap, flow.remaining_bytes = f * HOPS, len(links), cap, 1e12
        for i, (link, weight) in enumerate(links.items()):
            hop = self.flows.hop[f * HOPS + i]
            hop.link, hop.weight = link, weight
        kernels.flow_enter(self.directory.address, f, now)
        self.active[f] = cap, links

    def stop(self, f):
        kernels.flow_leave(self.directory.address, f)
        del self.active[f]

    def change(self, link, capacity):
        kernels.flow_capacity(self.directory.address, link, capacity)
        self.capacity[link] = capacity

    def solve(self, now=0):
        kernels.flow_solve(self.directory.address, now)

    def rates(self):
        return {f: int(self.flows.flow[f].rate) for f in self.active}

    def check(self):
        """Rates are those of the naive solver, sums are right, and the heap has the flows in order of their ends."""
        order = sorted(self.active)
        expected = naive_flows.rates(self.capacity, [self.active[f] for f in order])
        for f, rate in zip(order, expected, strict=True):
            found = int(self.flows.flow[f].rate)
            assert abs(found - rate) <= TOLERANCE * rate + 1, (f, found, float(rate))
        for link, row in enumerate(self.flows.link):
            on_link = [(f, links[link]) for f, (_, links) in self.active.items() if link in links]
            assert row.load == sum(int(self.flows.flow[f].rate) * weight for f, weight in on_link) <= row.capacity
            assert row.weight == sum(weight for _, weight in on_link)
            limited = [(f, weight) for f, weight in on_link if self.flows.flow[f].limit == link]
            assert row.limited_weight == sum(weight for _, weight in limited)
            assert row.open_weight == 0
            assert all(self.flows.flow[f].rate == row.level for f, _ in limited)
            assert (row.level < s.INF) == (len(limited) > 0)
        heap = self.flows.finish_heap[: self.flows.state.active]
        assert sorted(heap.number) == order
        assert [int(self.flows.finish_place[f]) for f in heap.number] == list(range(1, len(heap) + 1))
        finish = heap.key.tolist()
        assert all(finish[(i - 1) // 2] <= finish[i] for i in range(1, len(heap)))


def drawn_links(rng, links):
    count = rng.randint(1, min(HOPS, links))
    weights = [WHOLE, WHOLE, WHOLE, WHOLE // 2, WHOLE // 8, BACK, rng.randint(100, 2 * WHOLE)]
    return {link: rng.choice(weights) for link in rng.sample(range(links), count)}


def drawn_cap(rng):
    return rng.choice([s.INF, s.INF, 3 * GB, rng.randint(GB, 60 * GB)])


def drawn_capacity(rng):
    return rng.choice([50 * GB, 50 * GB, 25 * GB, 12 * GB + 345, rng.randint(GB, 100 * GB)]) << WEIGHT_SHIFT


@pytest.mark.slow
def test_rates_equal_those_of_a_naive_solver_on_random_graphs():
    for seed in range(1000):
        rng = random.Random(seed)  # noqa: S311 - examples, no secrets
        net = Network([drawn_capacity(rng) for _ in range(rng.randint(1, LINKS))])
        for f in range(rng.randint(1, FLOWS)):
            net.start(f, drawn_cap(rng), drawn_links(rng, len(net.capacity)))
        net.solve()
        net.check()


@bounded(150)
@given(st.integers(0, 2**32), st.lists(st.lists(st.sampled_from("sssecd"), min_size=1, max_size=4), max_size=25))
def test_changes_give_the_rates_of_a_solution_from_scratch(seed, moments):
    rng = random.Random(seed)  # noqa: S311 - examples, no secrets
    net = Network([drawn_capacity(rng) for _ in range(rng.randint(1, LINKS))])
    for now, moment in enumerate(moments):
        for what in moment:
            idle = [f for f in range(FLOWS) if f not in net.active]
            if what == "s" and idle:
                net.start(rng.choice(idle), drawn_cap(rng), drawn_links(rng, len(net.capacity)), now)
            elif what == "e" and net.active:
                net.stop(rng.choice(sorted(net.active)))
            elif what == "c":
                net.change(rng.randrange(len(net.capacity)), drawn_capacity(rng))
            elif what == "d":
                net.change(rng.randrange(len(net.capacity)), 0)
        net.solve(now)
        net.check()


def test_rates_do_not_depend_on_the_order_of_starts():
    rng = random.Random(7)  # noqa: S311 - examples, no secrets
    capacity = [drawn_capacity(rng) for _ in range(6)]
    flows = {f: (drawn_cap(rng), drawn_links(rng, 6)) for f in range(4)}
    found = []
    for order in itertools.permutations(flows):
        net = Network(capacity)
        for f in order:
            net.start(f, *flows[f])
        net.solve()
        found.append(net.rates())
    assert all(rates == found[0] for rates in found)


@bounded(40)
@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 40))
def test_changes_spread_along_a_chain_of_full_links(seed, equal, moments):
    """Flows cross neighbouring links of a chain; with equal links and weights, many levels are equal."""
    rng = random.Random(seed)  # noqa: S311 - examples, no secrets
    flows = 60
    net = Network([50 * GB << WEIGHT_SHIFT if equal else drawn_capacity(rng) for _ in range(LINKS)], flows)
    for now in range(moments):
        for f in rng.sample(range(flows), 1 if now else flows):
            if f in net.active:
                net.stop(f)
            else:
                first = rng.randrange(LINKS)
                path = range(first, min(LINKS, first + rng.randint(1, HOPS)))
                weights = {link: WHOLE if equal else rng.choice([WHOLE, WHOLE // 2, BACK]) for link in path}
                net.start(f, s.INF if equal else drawn_cap(rng), weights, now)
        if rng.random() < 0.2:
            net.change(rng.randrange(LINKS), drawn_capacity(rng) * rng.randint(0, 1))
        net.solve(now)
        net.check()


@bounded(60)
@given(st.integers(0, 2**32), st.integers(2, 12))
def test_rates_do_not_depend_on_the_order_of_changes_at_one_time(seed, moments):
    rng = random.Random(seed)  # noqa: S311 - examples, no secrets
    capacity = [drawn_capacity(rng) for _ in range(LINKS)]
    net, other = Network(capacity), Network(capacity)
    for now in range(moments):
        changes = []
        for f in rng.sample(range(FLOWS), rng.randint(1, FLOWS // 2)):
            if f in net.active:
                changes.append((Network.stop, f))
            else:
                changes.append((Network.start, f, drawn_cap(rng), drawn_links(rng, LINKS), now))
        changes += [(Network.change, link, drawn_capacity(rng)) for link in rng.sample(range(LINKS), rng.randint(0, 2))]
        for change, *arguments in changes:
            change(net, *arguments)
        rng.shuffle(changes)
        for change, *arguments in changes:
            change(other, *arguments)
        net.solve(now)
        other.solve(now)
        assert net.rates() == other.rates()
        assert (net.flows.finish_heap.key[0], net.flows.link.level.tolist()) == (
            other.flows.finish_heap.key[0],
            other.flows.link.level.tolist(),
        )


def test_unaffected_flows_are_left_alone():
    """Flows 0 and 1 share a slow link, so flows 2 and 3 on the fast one, which flow 1 crosses, do not affect them."""
    net = Network([50 * GB << WEIGHT_SHIFT, 10 * GB << WEIGHT_SHIFT])
    net.start(0, s.INF, {1: WHOLE})
    net.start(1, s.INF, {1: WHOLE, 0: WHOLE})
    net.solve()
    net.start(2, s.INF, {0: WHOLE})
    net.start(3, s.INF, {0: WHOLE})
    net.solve()
    net.check()
    assert [int(net.flows.flow[f].mark) >> 1 for f in range(4)] == [1, 1, 2, 2]  # the latest solution with the flow
