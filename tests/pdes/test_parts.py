import heapq
import itertools
from collections import deque

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.pdes import Settings, build_world, run
from nadi.pdes.core import state as s
from nadi.pdes.core.jit import rows_of
from nadi.pdes.core.packet import LINK_BITS, bytes_sent, header
from nadi.pdes.core.rows.network import FlowIn, FlowOut, Message, PacketRecord, QueuePair, Receiver
from nadi.pdes.core.rows.npu import Instance, LaneState
from nadi.pdes.workers import SingleProcess, WorkerPool
from nadi.topologies import build
from nadi.workload import collective_program, pairs_program
from tests.budgets import bounded
from tests.pdes import kernels, naive
from tests.pdes.cases import Traces
from tests.pdes.compare import simulate

quick = bounded(60)
WORD = st.integers(0, 2**63 - 1)
VERB = st.sampled_from(["put", "get", "remove"])


@quick
@given(WORD, WORD, WORD)
def test_hashes_are_those_of_plain_integers(a, b, c):
    assert kernels.hash1(a) == naive.mix(a)
    assert kernels.hash2(a, b) == naive.mix2(a, b)
    assert kernels.hash3(a, b, c) == naive.mix3(a, b, c)


def test_hashes_spread():
    low = np.array([kernels.hash3(1, link, 1000) for link in range(4096)])
    ones = [np.mean((low >> bit) & 1) for bit in range(32)]
    assert len(set(low.tolist())) > 4090
    assert 0.46 < min(ones) <= max(ones) < 0.54


@quick
@given(st.lists(st.tuples(VERB, st.integers(0, 12), st.integers(0, 99)), max_size=80))
def test_map_is_a_dict(operations):
    keys, values, model = np.full(32, -1, np.int64), np.zeros(32, np.int64), {}
    for what, number, value in operations:
        key = number * 0x1_0000_0001 * 977
        if what == "put":
            assert kernels.map_put(keys, values, key, value) == (key not in model)
            model[key] = value
        elif what == "get":
            assert kernels.map_get(keys, values, key) == model.get(key, -1)
        else:
            kernels.map_remove(keys, values, key)
            model.pop(key, None)
        assert sorted(keys[keys >= 0].tolist()) == sorted(model)
    assert {key: kernels.map_get(keys, values, key) for key in model} == model


@quick
@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=40), st.integers(0, 3))
def test_heap_of_own_events_is_heapq(operations, base):
    heap, model, unused = np.full(2 * (base + 10), -7, np.int64), [], deque(range(10))
    for time in operations:
        if time is None and model:
            assert (heap[2 * base], heap[2 * base + 1]) == model[0]
            kernels.heap_take(heap, base, len(model))
            unused.append(heapq.heappop(model)[1])
        elif time is not None and unused:
            slot = unused.popleft()
            kernels.heap_add(heap, base, len(model), time, slot)
            heapq.heappush(model, (time, slot))
        held = heap[2 * base : 2 * (base + len(model))].reshape(-1, 2)
        assert sorted(map(tuple, held.tolist())) == sorted(model)
    assert heap[: 2 * base].tolist() == [-7] * 2 * base


@quick
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=120))
def test_queues_of_records_are_deques(operations):
    net = build_world(build("switch:npus=3"), collective_program("barrier", 3, 0), Settings()).lps[0].world.net
    free = int(net.ctl.free_blocks)
    head, tail, model = [-1] * 3, [-1] * 3, [deque() for _ in range(3)]

    def take(queue):
        assert net.record[head[queue]].tolist() == tuple(model[queue].popleft())
        head[queue] = int(kernels.queue_after(net, head[queue]))
        assert (head[queue] == -1) == (not model[queue])

    for number, (queue, adds) in enumerate(operations):
        if adds:
            if not model[queue]:
                head[queue] = tail[queue] = int(kernels.queue_begin(net))
            tail[queue] = int(kernels.queue_add(net, tail[queue], 10 + number, number, 2 * number, 3 * number))
            model[queue].append([10 + number, number, 2 * number, 3 * number])
        elif model[queue]:
            take(queue)
    for queue, own in enumerate(model):
        while own:
            take(queue)
    assert net.ctl.free_blocks == free
    assert sorted(net.block_free[:free].tolist()) == list(range(free))


def acting(seed, net, arrivals):
    """Arrivals at a node (ps, link, anything) in the order in which they act."""
    ties = naive.Ties(seed, int(net.const.tie_pause_ps))
    times = itertools.groupby(sorted(arrivals), key=lambda arrival: arrival[0])
    together = ((at, [(link, what) for _, link, what in group]) for at, group in times)
    return [(at, link, what) for at, group in together for link, what in ties.in_order(int(at), group)]


@pytest.mark.parametrize("packets", [2, 7, 24, 25, 100, 400, 3000])
@pytest.mark.parametrize("span", [3, 256, 263_167, 526_000, 40_000_000])
def test_batches_are_sorted_and_ties_shuffled(packets, span):
    # 263,167 and 526,000 are a little more than 256 buckets of a power of two
    world = build_world(build("switch:npus=12"), collective_program("barrier", 12, 0), Settings(seed=5)).lps[0].world
    begin = 123_456_789
    random = np.random.default_rng(packets * span)
    link = random.integers(0, 24, packets)
    time = random.integers(span - span // 100 - 2 if packets == 3000 else 0, span, packets)
    record = rows_of(PacketRecord, packets)
    record.ready_ps = time << LINK_BITS | link
    net = world.net._replace(record=record)
    inbox = world.inbox._replace(
        batch_key=(time << 16) | np.arange(packets), batch_tmp=np.zeros(packets, np.int64), batch_pos=np.arange(packets)
    )
    kernels.order_batch(net, inbox, 3, packets, begin, begin + span)
    wanted = [index for _, _, index in acting(5, net, zip(begin + time, link, range(packets), strict=True))]
    found = inbox.batch_key & 0xFFFF
    assert (inbox.batch_key >> 16).tolist() == time[wanted].tolist()
    assert link[found].tolist() == link[wanted].tolist()
    assert sorted(found.tolist()) == list(range(packets))


@pytest.mark.slow
@quick
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3000), st.integers(90, 4178)), min_size=1, max_size=30),
    st.integers(4000, 12_000),
)
def test_a_port_of_a_switch_is_a_list_with_a_limit(packets, limit):
    graph = build("switch:npus=4,rate=100Gbps,delay=500ns,switch_latency=40ns")
    sim = build_world(graph, pairs_program([-1] * 4, 1), Settings(queue_limit_bytes=limit, seed=3))
    world = sim.lps[0].world
    free, arrivals = [0, 0, 0], []
    for src, gap_ns, size in packets:
        start = free[src] + gap_ns * 1000
        free[src] = start + 80 * size
        kernels.inject(world.net, int(world.net.out_ptr[src]), start, header(3, src, size, 0))
        at = free[src] + 500_000
        arrivals.append((at, int(graph.out_links(src)[0]), size))
    busy = sent = dropped = 0
    for at, _, size in acting(3, world.net, arrivals):
        if max(0, busy - at - 40_000) + 80 * size > 80 * limit:
            dropped += 1
        else:
            busy = max(busy, at + 40_000) + 80 * size
            sent += size
    SingleProcess([lp.part for lp in sim.lps]).everywhere(sim.layout, 1, lambda place: WorkerPool(sim, place).run())
    out = int(np.flatnonzero(np.sort(graph.link_src) == 4)[3])
    row = world.net.tx[out]
    assert (row.busy_ps, bytes_sent(row.sent_bytes), world.net.tx_dropped[out]) == (busy, sent, dropped)


def shrunk(world):
    """The world with every pool as small as the engine lets it be."""
    net, qps, insts = world.net, world.qps, world.insts
    least = int(net.const.reserve_messages)
    queues = len(net.block_free) - int(net.ctl.free_blocks)
    blocks = queues + int(net.const.reserve_blocks)
    stride = int(net.const.lane_stride)
    net.ctl.free_blocks, net.ctl.free_messages, net.ctl.free_instances = blocks - queues, least, 1
    free = np.zeros(blocks, np.int32)
    free[: blocks - queues] = np.arange(queues, blocks)
    none = np.full(2, -1, np.int64)
    return world._replace(
        net=net._replace(
            block_free=free, block_next=np.zeros(blocks, np.int32), record=net.record[: blocks * s.BLOCK_RECORDS].copy()
        ),
        qps=qps._replace(
            qp=rows_of(QueuePair, 1),
            msg=rows_of(Message, least),
            msg_free=np.arange(least),
            rxqp=rows_of(Receiver, 2),
            flow_out=rows_of(FlowOut, least),
            flow_in=rows_of(FlowIn, 1),
            qp_key=none.copy(),
            qp_val=np.zeros(2, np.int64),
        ),
        insts=insts._replace(
            inst=rows_of(Instance, 1),
            inst_free=np.zeros(1, np.int64),
            lane=rows_of(LaneState, stride),
            inst_key=none.copy(),
            inst_val=np.zeros(2, np.int64),
        ),
    )


@pytest.mark.parametrize(
    ("spec", "program"),
    [
        ("leaf-spine:leaves=2,hosts_per_leaf=4,spines=2", collective_program("all-to-all", 8, 300_000)),
        ("ring:npus=6,delay=3us", collective_program("all-reduce", 6, 200_000)),
        ("switch:npus=5", pairs_program([1, 2, 3, 4, 0], 3_000_000)),
    ],
)
def test_pools_that_grow_give_the_same_answer(spec, program):
    graph, chosen = build(spec), Settings(mtu_bytes=256, window_bytes=600_000)
    wanted = simulate(graph, program, chosen)
    sim = build_world(graph, program, chosen)
    sim.lps[0].world = small = shrunk(sim.lps[0].world)
    grown = run(sim)
    assert grown.digest == wanted.digest
    assert {name: (grown.flows[name] == wanted.flows[name]).all() for name in wanted.flows} == dict.fromkeys(
        wanted.flows, True
    )
    assert grown.counters == wanted.counters
    assert len(sim.lps[0].world.qps.qp_key) > len(small.qps.qp_key)
    assert len(sim.lps[0].world.qps.rxqp) > len(small.qps.rxqp)
    assert len(sim.lps[0].world.net.block_free) > len(small.net.block_free)
    assert len(sim.lps[0].flows_in) > 3


def test_collective_instances_grow():
    # the last member comes late: messages of the barrier wait for it, and every NPU has several collectives under way
    graph, chosen = build("switch:npus=4"), Settings(concurrent_collectives=True)
    traces = Traces(4)
    for _ in range(6):
        traces.collective(range(4), 0, 9000)
    sim = build_world(graph, traces.program(), chosen)
    wanted = simulate(graph, traces.program(), chosen)
    sim.lps[0].world = shrunk(sim.lps[0].world)
    assert run(sim).digest == wanted.digest
    assert len(sim.lps[0].world.insts.inst_free) >= 6
    assert len(sim.lps[0].world.qps.msg_free) > sim.lps[0].world.net.const.reserve_messages
