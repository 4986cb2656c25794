"""Parts of the engine alone: events, ties and rates of flows."""

import heapq
import itertools
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.pdes import Settings, build_world
from nadi.pdes.core import state as s
from nadi.pdes.core.jit import Directory, row_of, rows_of, unused, zeros
from nadi.pdes.core.packet import LINK_BITS
from nadi.pdes.core.rows.messages import Event, EventQueue, Flow, FlowHop, FlowLink, HopUse, KeyedEntry, LinkFlow
from nadi.pdes.core.rows.network import PacketRecord
from nadi.pdes.core.rows.run import Scalars
from nadi.pdes.messages.events import KIND_SHIFT, LEFT, STEP, begin_with
from nadi.pdes.messages.paths import RATE_UNITS, WEIGHT_SHIFT
from nadi.pdes.messages.rates import LINK_FLOWS_PER_HOP
from nadi.topologies import build
from nadi.workload import collective_program
from tests.budgets import bounded
from tests.pdes import kernels


def max_min_rates(capacity, flows):
    """Return the rate of each flow.

    capacity: load that each link carries; flows: (cap, {link: weight}) of each flow. All rates rise together; a flow
    stops at its cap, or when a link of it is full.
    """
    found = {}
    while len(found) < len(flows):
        moving = [f for f in range(len(flows)) if f not in found]
        level = {}
        for link, load in enumerate(capacity):
            weight = sum(flows[f][1].get(link, 0) for f in moving)
            if weight:
                used = sum(found[f] * flows[f][1].get(link, 0) for f in found)
                level[link] = (load - used) / Fraction(weight)
        lowest = min([*level.values(), *(flows[f][0] for f in moving)])
        for f in moving:
            cap, links = flows[f]
            if cap == lowest or any(level[link] == lowest for link in links):
                found[f] = Fraction(lowest)
    return [found[f] for f in range(len(flows))]


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
        self.flows = unused(
            s.Flows,
            flow=rows_of(Flow, flows),
            hop=rows_of(FlowHop, flows * HOPS),
            hop_use=rows_of(HopUse, flows * HOPS),
            link_flow=rows_of(LinkFlow, LINK_FLOWS_PER_HOP * flows * HOPS),
            link=rows_of(FlowLink, links, capacity=self.capacity, whole_capacity=self.capacity),
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
        expected = max_min_rates(self.capacity, [self.active[f] for f in order])
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


ROOM = 400
LATER = st.sampled_from([0, 0, 1, 62, 63, 64, 65, 4095, 4096, 2**30, 2**30 + 1, 2**47])
ADDED = st.tuples(LATER, st.sampled_from([LEFT, LEFT + 3, STEP, STEP]), st.integers(0, 9))


class Queue:
    """Events under test, beside a heap of (ps, order, item)."""

    def __init__(self, first):
        self.messages = s.MessageModels(
            event=rows_of(Event, ROOM),
            queue=row_of(EventQueue),
            same_time=np.zeros(2 * ROOM, np.int64),
            receive_ptr=np.zeros(1, np.int64),
            reduces=np.zeros(1, np.int8),
            memory_psb=np.zeros(1),
        )
        self.ctl = row_of(Scalars)
        self.directory = Directory(self.messages)
        begin_with(self.messages, self.ctl, np.arange(first), np.arange(first))
        self.model = [(0, i, i) for i in range(first)]
        self.added = {i: (0, i) for i in range(first)}
        self.items = itertools.count(first)
        self.now = 0

    def add(self, time, kind, key):
        item = next(self.items)
        self.added[item] = time, kind << KIND_SHIFT | key
        heapq.heappush(self.model, (*self.added[item], item))
        kernels.event_add(self.ctl, self.directory.address, time, kind, key, item)

    def take(self):
        found = kernels.event_take(self.ctl, self.directory.address)
        expected = heapq.heappop(self.model)
        assert found[:2] == self.added.pop(found[2]) == expected[:2]
        assert self.ctl.events == len(self.model)
        self.now = expected[0]


@bounded(150)
@given(st.integers(0, 5), st.lists(st.one_of(st.integers(1, 6), st.lists(ADDED, max_size=9)), max_size=40))
def test_events_are_taken_as_from_a_heap(first, operations):
    queue = Queue(first)
    for what in operations:
        if isinstance(what, int):
            for _ in range(min(what, len(queue.model))):
                queue.take()
        else:
            for later, kind, key in what:
                queue.add(queue.now + later, kind, key)
    while queue.model:
        queue.take()


def test_many_at_one_moment_in_any_order():
    queue = Queue(1)
    rng = np.random.default_rng(3)
    for key in rng.permutation(150).tolist():
        queue.add(77, STEP, key)
    queue.take()
    queue.take()
    for key in rng.permutation(np.arange(150, 250)).tolist():
        queue.add(77, STEP, key)
        queue.add(78, LEFT, key)
    while queue.model:
        queue.take()


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
