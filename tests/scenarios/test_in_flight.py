"""A limit of the collectives that an NPU does at a time (npu/in_flight.py): times, who goes next, nobody is stuck."""

import numpy as np
import pytest

from nadi import topologies
from nadi.et import CollectiveCommType, coll_node, metadata, table_of
from nadi.pdes import LinkFault, RunError
from nadi.workload import KINDS, CollectiveSettings, ComputeModel, WorkloadError, algorithms_of, build_program
from tests.failures.common import faults_of, simulate as lossy
from tests.nonempty import nonempty
from tests.pdes.cases import Traces
from tests.scenarios.closed_forms import Hop, steps_ps
from tests.scenarios.running import simulate

NPUS = 5
RING = f"ring:npus={NPUS}"
ONE_LINK = Hop(1, 500_000)
G400 = 400 * 10**9
MESSAGE = 4096
RINGS = CollectiveSettings({"all-reduce": "ring"})


def alone_ps(message):
    return steps_ps(2 * (NPUS - 1), message, ONE_LINK, G400, shared=False)


def program_of(orders, sizes, kind="ALL_REDUCE", priority=None, settings=RINGS, groups=None, fabric=None):
    """Collectives by number, all ready at once, in an order of each NPU's own; sizes, priority and groups by number."""
    everyone = tuple(range(len(orders)))
    tables = []
    for order in orders:
        nodes = [coll_node(i, f"c{i}", CollectiveCommType[kind], sizes[i], pg_name=f"{i}") for i in order]
        for node in nodes:
            node.attr.add(name="comm_priority", int32_val=(priority or {}).get(node.id, 0))
        tables.append(table_of(metadata(), nodes))
    groups = groups or {f"{i}": everyone for i in sizes}
    trace_of_npu = np.arange(len(orders), dtype=np.int32)
    return build_program(tables, trace_of_npu, len(orders), groups, settings=settings, fabric=fabric)


@pytest.mark.parametrize(
    ("scheduling", "order"), [("fifo", [1, 2, 3, 4]), ("lifo", [1, 4, 3, 2]), ("priority", [1, 3, 2, 4])]
)
def test_who_goes_next(scheduling, order):
    """Four collectives at once, of 1 to 4 packets a message; the third has the highest priority."""
    sizes = {packets: packets * NPUS * MESSAGE for packets in (1, 2, 3, 4)}
    program = program_of([list(sizes)] * NPUS, sizes, priority={1: 0, 2: 5, 3: 9, 4: 5})
    results = simulate(RING, program, collectives_in_flight=1, scheduling=scheduling)
    at = [packets - 1 for packets in order]
    finish_ps = results.node_finish_ps.reshape(NPUS, 4).max(axis=0)[at]
    expected = np.cumsum([alone_ps(packets * MESSAGE) for packets in order])
    assert finish_ps == pytest.approx(expected, rel=1e-3)
    start_ps = results.node_start_ps.reshape(NPUS, 4).min(axis=0)[at]
    assert start_ps == pytest.approx([0, *expected[:-1]], rel=1e-3)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_than_the_limit_at_a_time(limit):
    sizes = dict.fromkeys(range(6), NPUS * MESSAGE)
    program = program_of([list(sizes)] * NPUS, sizes)
    results = simulate(RING, program, collectives_in_flight=limit)
    for npu in nonempty(range(NPUS)):
        start, finish = (column.reshape(NPUS, 6)[npu] for column in (results.node_start_ps, results.node_finish_ps))
        at_once = [((start <= now) & (now < finish)).sum() for now in start]
        assert max(at_once) == limit


def test_a_limit_that_is_enough_costs_calls_only():
    """The first lane of each member calls once: 146 bytes that go against the data."""
    sizes = {i: i * NPUS * MESSAGE for i in (1, 2, 3)}
    program = program_of([list(sizes)] * NPUS, sizes)
    free, limited = simulate(RING, program), simulate(RING, program, collectives_in_flight=3)
    assert (limited.node_start_ps == free.node_start_ps).all()
    assert limited.node_finish_ps == pytest.approx(free.node_finish_ps, rel=2e-3)
    assert np.bincount(limited.flows["control"]).tolist() == [len(free.flows["control"]), 0, 0, 3 * NPUS]
    assert simulate(RING, program, collectives_in_flight=2).finish_time_ps > 1.1 * free.finish_time_ps


def test_those_of_one_group_wait_for_each_other_without_a_place():
    """The second of a group has none before the first is done, so that another group is not kept waiting."""
    names = {1: "a", 2: "a", 3: "b"}
    everyone = tuple(range(NPUS))
    nodes = [
        coll_node(i, f"c{i}", CollectiveCommType.ALL_REDUCE, NPUS * MESSAGE, pg_name=name) for i, name in names.items()
    ]
    program = build_program(
        [table_of(metadata(), nodes)], np.zeros(NPUS, np.int32), NPUS, dict.fromkeys("ab", everyone), settings=RINGS
    )
    results = simulate(RING, program, collectives_in_flight=2)
    start_ps = results.node_start_ps.reshape(NPUS, 3)
    assert (start_ps[:, [0, 2]] == 0).all()
    assert (start_ps[:, 1] == results.node_finish_ps.reshape(NPUS, 3)[:, 0]).all()


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("scheduling", ["fifo", "lifo"])
def test_overlapping_groups_in_different_orders(limit, scheduling):
    rng = np.random.default_rng(limit)
    groups = {"0": (0, 1, 2, 3, 4), "1": (1, 3, 4), "2": (0, 2, 3), "3": (4, 2, 1, 0), "4": (3, 0)}
    sizes = {int(name): 3 * MESSAGE * len(members) for name, members in groups.items()}
    for _ in range(20):
        own = [[int(name) for name, members in groups.items() if npu in members] for npu in range(NPUS)]
        orders = [rng.permutation(order).tolist() for order in own]
        program = program_of(orders, sizes, groups=groups)
        results = simulate(RING, program, collectives_in_flight=limit, scheduling=scheduling)
        assert results.counters["trace_nodes"] == sum(map(len, orders))


ALGORITHMS = [(kind, name) for kind in KINDS if kind != "barrier" for name in algorithms_of(kind) if name != "custom"]


@pytest.mark.parametrize(("kind", "algorithm"), ALGORITHMS)
def test_nobody_is_stuck_whatever_the_order(kind, algorithm):
    """Three collectives of all NPUs, in an order of each NPU's own."""
    rng = np.random.default_rng(1)
    ran = 0
    for spec in ("torus:sizes=2x4", "rail-optimised:npus=6,gpus_per_host=3", "switch:npus=5"):
        graph = topologies.build(spec)
        sizes = dict.fromkeys(range(3), graph.npus * MESSAGE)
        chosen = CollectiveSettings({kind: algorithm}, all_gather_size="total")
        orders = [rng.permutation(3).tolist() for _ in range(graph.npus)]
        name = kind.upper().replace("-", "_")
        try:
            program = program_of(orders, sizes, kind=name, settings=chosen, fabric=graph)
        except WorkloadError:
            continue
        ran += 1
        simulate(graph, program, collectives_in_flight=1)
    assert ran > 0


def test_who_waits_calls():
    """NPU 0 is a leaf of what NPU 1 sends and the other way round; each has the other's broadcast first."""
    broadcasts = {0: (0, 1), 1: (1, 0)}
    groups = {str(i): members for i, members in broadcasts.items()}
    sizes = dict.fromkeys(broadcasts, 3 * MESSAGE)
    program = program_of([[1, 0], [0, 1]], sizes, kind="BROADCAST", settings=CollectiveSettings(), groups=groups)
    results = simulate("fully-connected:npus=2", program, collectives_in_flight=1)
    called = results.flows["control"] == 3
    assert results.flows["src"][called].tolist() == [0, 1]
    assert results.flows["lane"][called].tolist() == [-1, -1]
    starts = results.node_start_ps.reshape(2, 2)
    assert (starts[:, 0] == 0).all()
    assert starts[:, 1].tolist() == results.flows["finish_ps"][called].tolist()


def test_a_call_that_comes_too_late_is_nothing():
    """The root of a star is done when the leaves call it."""
    sizes = {0: 10}
    program = program_of([[0]] * 4, sizes, kind="BROADCAST", settings=CollectiveSettings({"broadcast": "direct"}))
    results = simulate("switch:npus=4", program, collectives_in_flight=1)
    late = results.flows["finish_ps"][results.flows["control"] == 3]
    assert len(late) == 3
    assert (late > results.node_finish_ps[0]).all()


def test_a_dependency_closes_the_circle():
    """NPU 0 has the second collective after the first; NPU 1 has both at once, and begins with the second."""
    both = [coll_node(i, f"c{i}", CollectiveCommType.ALL_REDUCE, 2 * MESSAGE, pg_name=f"{i}") for i in (1, 2)]
    after = coll_node(2, "c2", CollectiveCommType.ALL_REDUCE, 2 * MESSAGE, pg_name="2", deps=[1])
    tables = [table_of(metadata(), [both[0], after]), table_of(metadata(), both[::-1])]
    groups = dict.fromkeys("12", (0, 1))
    program = build_program(tables, np.arange(2, dtype=np.int32), 2, groups, settings=RINGS)
    results = simulate("fully-connected:npus=2", program, collectives_in_flight=1)
    assert results.counters["trace_nodes"] == 4


def test_who_waits_for_a_place_is_named():
    """NPUs 1 and 2 join NPU 0 after a message that it sends after the first of its collectives."""
    traces = Traces(3)
    for npu in (1, 2):
        traces.receive(0, npu, 10)
    for npu, name in ((1, "a"), (2, "b")):
        traces.collective((0, npu), 0, 9000, name, deps={npu: [0]})
    for npu in (1, 2):
        traces.send(0, npu, 10, deps=[0])
    groups = {"a": (0, 1), "b": (0, 2)}
    with pytest.raises(RunError) as caught:
        simulate("switch:npus=3", traces.program(groups), collectives_in_flight=1)
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert lines[1] == "npu 0 row 1: collective 0 of group 2 waits for a place: collectives in flight on the npu: 1"
    assert lines[0] == "npu 0 row 0: collective 0 of group 1, lane 0 step 0, waits for npu 1"
    assert [line.rpartition(" waits for ")[2] for line in lines[2:]] == ["npu 0", "npu 0"]


def test_together_with_the_rest_of_the_system_layer():
    """Places, requests, tokens and slower compute over links that lose packets."""
    graph = topologies.build("torus:sizes=3x3,rate=100Gbps,delay=300ns")
    chosen = CollectiveSettings({"all-reduce": "grid:splits=4"})
    traces = Traces(9)
    groups = {str(i): tuple(range(9)) for i in range(3)}
    for npu in range(9):
        for name in np.random.default_rng(npu).permutation(3):
            traces.collective([npu], 0, 9 * 9 * 4096, str(name))
        traces.compute(npu, 300)
    program = build_program(traces.tables(), range(9), 9, groups, ComputeModel("trace"), chosen, fabric=graph)
    loss = LinkFault(tuple(range(graph.links)), 0, error_rate=0.01)
    settings = {"faults": faults_of(graph, [loss]), "rto_ps": 40_000_000, "max_retries": 1000}
    system = {"collectives_in_flight": 1, "rendezvous_bytes": 4096, "phases_per_dimension": 1, "compute_slowdown": 2.0}
    results = lossy(graph, program, **settings, **system)
    assert results.counters["lost_packets"] > 20
    data = results.flows["control"] == 0
    plain = simulate(graph, program).flows
    assert sorted(results.flows["bytes"][data]) == sorted(plain["bytes"])
