"""Collectives as coupled flows: alone, against their messages as flows, under contention, and with faults."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from nadi import pdes, workload
from nadi.configuration.sections import NetworkSection
from nadi.et import CollectiveCommType, coll_node, metadata, table_of
from nadi.inputs.units import MIB
from nadi.launching.progress import NoProgress
from nadi.pdes import Faults, LinkFault
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.mixed_fidelity import coupled_collectives
from nadi.simulation.network_settings import network_settings
from nadi.simulation.run import run_program
from nadi.topologies import build
from tests.fidelity.test_training_steps import CASES, HOSTS, LINKS, SWITCH, over_packets
from tests.pdes.cases import Traces
from tests.samples import sampled

LEAVES = "leaf-spine:npus=16,hosts_per_leaf=4,rate=100Gbps,delay=500ns"
RING = workload.CollectiveSettings({"all-reduce": "ring"})
ALONE, CONGESTED = 0.01, 0.05  # of the time by packets


def ran(network, program, collectives=RING, fidelity="coupled", faults=None, **keys):
    """Results of a program as packets, as flows ("steps") or with coupled flows, and the kinds of these."""
    graph = build(network) if isinstance(network, str) else network
    name = "packet" if fidelity == "packet" else "flow"
    settings = network_settings(NetworkSection.model_validate({"fidelity": name, **keys}))
    if fidelity == "coupled":
        costs = CollectiveCosts(graph, settings)
        settings = replace(settings, coupled=coupled_collectives(program, costs, collectives))
    if faults is not None:
        settings = replace(settings, faults=faults)
    return run_program(graph, program, settings, NoProgress()), settings.coupled


ALGORITHMS = [
    ("switch:npus=8", "all-reduce", "ring", MIB),
    ("switch:npus=8", "all-reduce", "ring", 64),
    ("switch:npus=8", "all-reduce", "double-binary-tree", MIB),
    ("switch:npus=8", "all-to-all", "direct", MIB),
    ("switch:npus=8", "broadcast", "binomial", MIB),
    ("ring:npus=6", "all-reduce", "ring", MIB),
    ("dgx-h100:npus=16", "all-reduce", "hierarchical", MIB),
    *(("dgx-h100:npus=16", "all-reduce", f"nccl:algo={algo}", 16 * MIB) for algo in ("ring", "tree", "nvls")),
    ("dgx-h100:npus=8", "all-reduce", "nccl", 16 * MIB),
    ("dgx-h100:npus=16", "all-to-all", "nccl", MIB),
]


@pytest.mark.parametrize(("network", "kind", "algorithm", "size"), ALGORITHMS)
def test_a_collective_alone_takes_its_closed_form_and_links_carry_what_its_messages_put_there(
    network, kind, algorithm, size
):
    graph, how = build(network), workload.CollectiveSettings({kind: algorithm})
    program = workload.collective_program(kind, graph.npus, size, algorithm, graph)
    found, kinds = ran(graph, program, how)
    messages, _ = ran(graph, program, how, "steps")
    assert len(kinds.alone_ps) == 1
    assert found.finish_time_ps == pytest.approx(int(kinds.alone_ps[0]), abs=2)
    assert np.array_equal(found.links["tx_bytes"], messages.links["tx_bytes"])
    assert np.array_equal(found.links["tx_packets"], messages.links["tx_packets"])
    for counter in ("flows", "payload_bytes", "packet_hops", "bytes_sent", "trace_nodes"):
        assert found.counters[counter] == messages.counters[counter] > 0


@pytest.mark.parametrize(("kind", "algorithm"), [("all-reduce", "ring"), ("all-to-all", "direct")])
@pytest.mark.parametrize("spines", [4, 2, 1])
def test_collectives_take_as_long_as_by_packets(kind, algorithm, spines):
    """4 spines: as much uplink as hosts have, but several flows on some; 2: half of it; 1: a quarter."""
    program = workload.collective_program(kind, 16, 4 * MIB, algorithm)
    how = workload.CollectiveSettings({kind: algorithm})
    coupled, packet = (ran(f"{LEAVES},spines={spines}", program, how, each)[0] for each in ("coupled", "packet"))
    assert coupled.finish_time_ps == pytest.approx(packet.finish_time_ps, rel=ALONE)


HOSTS_OF_8 = "rail-fat-tree:npus=32,rails=1,hosts_per_unit=2"
CONTENDED = [
    *((f"{HOSTS_OF_8},accelerator=a100", f"all-reduce {algorithm}", 0.06) for algorithm in ("nvls-sharp", "nvls-tree")),
    (f"{HOSTS_OF_8},accelerator=a100", "all-gather pat", 0.06),
    (f"{HOSTS_OF_8},accelerator=a100", "all-to-all bruck", 0.1),
    (f"{HOSTS_OF_8},accelerator=a100", "all-reduce nccl:algo=tree", 0.03),
    (f"{HOSTS_OF_8},accelerator=h100", "all-reduce nccl:algo=nvls", 0.03),
    (LEAVES, "all-gather nccl:algo=pat", 0.05),
    (LEAVES, "all-reduce nccl:algo=ring", 0.05),
    (LEAVES, "all-reduce nccl:algo=tree", 0.12),  # its packets wait in queues between the levels
    (LEAVES, "all-reduce double-binary-tree", 0.09),
]


@pytest.mark.parametrize(("network", "collective", "error"), CONTENDED)
@pytest.mark.parametrize("ratio", [2, 4])
def test_collectives_in_levels_and_stages_take_as_long_as_by_packets(network, collective, error, ratio):
    """Among even hosts and among odd ones at once, over uplinks with a half or a quarter of the hosts' rate."""
    kind, algorithm = collective.split()
    graph = build(f"{network},spines={(4 if network == LEAVES else 16) // ratio}")
    host = np.arange(graph.npus) if network == LEAVES else graph.host
    halves = tuple(tuple(np.flatnonzero(host % 2 == half).tolist()) for half in range(2))
    how = workload.CollectiveSettings({kind: algorithm}, all_gather_size="total")
    node = coll_node(0, kind, CollectiveCommType(workload.KINDS.index(kind)), 4 * MIB, pg_name="half")
    traces = np.zeros(graph.npus, np.int32)
    program = workload.build_program(
        [table_of(metadata(), [node])], traces, graph.npus, settings=how, fabric=graph, families={"half": halves}
    )
    coupled, packet = (ran(graph, program, how, each)[0].finish_time_ps for each in ("coupled", "packet"))
    assert coupled == pytest.approx(packet, rel=error)


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("all-reduce", "halving-doubling"), ("all-to-all", "pairwise"), ("all-to-all", "bruck"), ("all-gather", "pat")],
)
def test_collectives_in_stages_of_single_messages_send_message_by_message_unless_there_are_too_many(
    monkeypatch, kind, algorithm
):
    graph, how = build("switch:npus=8"), workload.CollectiveSettings({kind: algorithm})
    program = workload.collective_program(kind, graph.npus, MIB, algorithm, graph)
    found, kinds = ran(graph, program, how)
    messages, _ = ran(graph, program, how, "steps")
    assert len(kinds.alone_ps) == 0
    assert found.digest == messages.digest
    monkeypatch.setattr("nadi.simulation.mixed_fidelity.MAX_STAGED_MESSAGES", found.counters["flows"] - 1)
    coupled, kinds = ran(graph, program, how)
    assert coupled.finish_time_ps == pytest.approx(int(kinds.alone_ps[0]), abs=2)
    assert np.array_equal(coupled.links["tx_bytes"], messages.links["tx_bytes"])
    monkeypatch.setattr("nadi.simulation.mixed_fidelity.MAX_STAGED_MESSAGES", found.counters["flows"])
    assert ran(graph, program, how)[0].digest == messages.digest


@pytest.mark.parametrize("case", [case for case in CASES if case != "llama"])
def test_steps_of_models_take_as_long_as_by_packets(case):
    for fabric in [HOSTS] if "hosts" in case else [LINKS, SWITCH]:
        assert over_packets(case, fabric, "coupled") == pytest.approx(1, abs=ALONE)


@sampled(
    {
        "fidelity": ["flow", "coupled"],
        "case, spines": list(itertools.product([case for case in CASES if "hosts" not in case], [4, 2, 1])),
    }
)
def test_steps_of_models_on_congested_leaves_take_as_long_as_by_packets(case, spines, fidelity):
    fabric = f"leaf-spine:hosts_per_leaf=4,rate=100Gbps,delay=500ns,spines={spines}"
    assert over_packets(case, fabric, fidelity) == pytest.approx(1, abs=CONGESTED)


def test_a_collective_shares_a_port_with_a_message():
    """A ring's lane and a message have half of the port each, and the ring waits for this lane."""
    traces = Traces(8)
    traces.collective(range(4), 0, 8 * MIB, group="ring")
    traces.message(0, 4, MIB)
    program = traces.program({"ring": tuple(range(4))}, RING)
    found, kinds = ran("switch:npus=8,rate=100Gbps", program)
    wire_bytes = MIB + 256 * (82 + 86 / 2)  # the ring has acknowledgements on the port, the message does not
    assert found.finish_time_ps == pytest.approx(int(kinds.alone_ps[0]) + wire_bytes * 80, rel=1e-3)
    assert found.flows["finish_ps"][0] == pytest.approx(2 * MIB * 80 * 1.03, rel=2e-2)


def test_a_collective_begins_with_its_last_member_and_ends_for_all_at_once():
    traces = Traces(4)
    late = traces.compute(3, 100)
    traces.collective(range(4), 0, MIB, deps={3: (late,)})
    found, kinds = ran("switch:npus=4", traces.program({}, RING))
    ends = found.node_finish_ps[[0, 1, 2, 4]]
    assert ends.tolist() == pytest.approx([100_000_000 + int(kinds.alone_ps[0])] * 4, abs=2)
    assert len(set(ends.tolist())) == 1


def test_collectives_of_one_group_at_a_time_and_all_at_once():
    """Two at once share their links, so together they take as long as one after the other, but for latencies."""
    traces = Traces(4)
    for _ in range(2):
        traces.collective(range(4), 0, 4 * MIB)
    program = traces.program({}, RING)
    serial, kinds = ran("switch:npus=4", program)
    settings = network_settings(NetworkSection.model_validate({"fidelity": "flow"}))
    settings = replace(settings, coupled=kinds, concurrent_collectives=True)
    together = run_program(build("switch:npus=4"), program, settings, NoProgress())
    assert serial.finish_time_ps == pytest.approx(2 * int(kinds.alone_ps[0]), abs=4)
    assert together.finish_time_ps == pytest.approx(serial.finish_time_ps, rel=3e-2)
    assert together.finish_time_ps < serial.finish_time_ps


def test_a_slow_link_slows_the_collective_and_a_failure_moves_it():
    graph = build(f"{LEAVES},spines=2")
    program = workload.collective_program("all-reduce", 16, 64 * MIB, "ring")
    healthy, _ = ran(graph, program)
    port = int(np.flatnonzero(graph.link_src == 0)[0])
    at_ps = healthy.finish_time_ps // 2
    slow, _ = ran(graph, program, faults=Faults((LinkFault((port,), at_ps, rate_bps=25_000_000_000),)))
    assert slow.finish_time_ps == pytest.approx(at_ps + 4 * (healthy.finish_time_ps - at_ps), rel=2e-2)
    used = next(
        link
        for link in range(0, graph.links, 2)
        if min(graph.link_src[link], graph.link_dst[link]) >= 16 and healthy.links["tx_bytes"][link] > MIB
    )
    links = (used, used + 1)
    routings = {frozenset(links): graph.routing.without(graph, frozenset(links))}
    down, _ = ran(graph, program, faults=Faults((LinkFault(links, at_ps, down=True),), (), 50_000_000, routings))
    assert down.finish_time_ps == pytest.approx(healthy.finish_time_ps + 50_000_000, rel=2e-2)
    assert down.links["tx_bytes"].sum() == pytest.approx(healthy.links["tx_bytes"].sum(), rel=1e-6)


def test_members_that_wait_for_each_other_are_named():
    """Two groups of the same NPUs, whose collectives the NPUs do in opposite orders."""
    traces = Traces(2)
    for npu, (first, second) in enumerate(("ab", "ba")):
        traces.collective([npu], 0, MIB, group=first)
        traces.collective([npu], 0, MIB, group=second, deps={npu: (0,)})
    program = traces.program({"a": (0, 1), "b": (0, 1)}, RING)
    with pytest.raises(pdes.RunError, match="collective 0 of group 1 waits for members to start: 1"):
        ran("switch:npus=2", program)


@pytest.mark.full
def test_pools_grow_and_results_do_not_depend_on_their_size():
    """More collectives at once than there is room for at first, of many groups and sizes."""
    traces = Traces(6)
    for number in range(200):
        for which in range(3):
            members = [(number + which * (1 + number % 2) + k) % 6 for k in range(2 + number % 3)]
            traces.collective(members, 0, 600 + number + which, group=f"g{number}-{which}")
    groups = {
        f"g{number}-{which}": tuple((number + which * (1 + number % 2) + k) % 6 for k in range(2 + number % 3))
        for number in range(200)
        for which in range(3)
    }
    program = traces.program(groups, RING)
    found, _ = ran("ring:npus=6", program)
    messages, _ = ran("ring:npus=6", program, fidelity="steps")
    assert found.counters["flows"] == messages.counters["flows"]
    assert np.array_equal(found.links["tx_bytes"], messages.links["tx_bytes"])


def test_an_all_to_all_with_split_sizes_is_a_coupled_flow():
    matrix = np.arange(36).reshape(6, 6) * 10_000
    np.fill_diagonal(matrix, 0)
    program = workload.uneven_program(matrix, "direct")
    found, _ = ran("switch:npus=6", program, workload.CollectiveSettings())
    messages, _ = ran("switch:npus=6", program, fidelity="steps")
    assert found.finish_time_ps == pytest.approx(messages.finish_time_ps, rel=2e-2)
    assert np.array_equal(found.links["tx_bytes"], messages.links["tx_bytes"])


def test_stages_of_coupled_flows_have_different_links(monkeypatch):
    """Halving and doubling: the third stage alone crosses the only spine, with a quarter of the bytes."""
    monkeypatch.setattr("nadi.simulation.mixed_fidelity.MAX_STAGED_MESSAGES", 0)
    program = workload.collective_program("all-reduce", 8, 8 * MIB, "halving-doubling")
    how = workload.CollectiveSettings({"all-reduce": "halving-doubling"})
    spec = "leaf-spine:npus=8,hosts_per_leaf=4,rate=100Gbps,delay=500ns,spines=1"
    coupled, packet = (ran(spec, program, how, each)[0] for each in ("coupled", "packet"))
    assert coupled.finish_time_ps == pytest.approx(packet.finish_time_ps, rel=1e-2)


def test_results_do_not_depend_on_the_order_of_collectives_that_begin_together():
    """Three groups that share ports, started by all NPUs at one time in each order."""
    groups = {"a": (0, 1, 2, 3), "b": (2, 3, 4, 5), "c": (0, 2, 4)}
    sizes = {"a": MIB, "b": 3 * MIB + 5, "c": 2 * MIB}
    ends = set()
    for order in itertools.permutations(groups):
        traces = Traces(6)
        rows = {}
        for name in order:
            rows[name] = len(traces.nodes[groups[name][0]])
            traces.collective(groups[name], 0, sizes[name], group=name)
        found, _ = ran("switch:npus=6", traces.program(groups, RING))
        first = {name: found.npu_node_ptr[groups[name][0]] + rows[name] for name in groups}
        ends.add(tuple(int(found.node_finish_ps[first[name]]) for name in sorted(groups)))
    assert len(ends) == 1
