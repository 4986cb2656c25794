"""Flows and packets in one run: each kind as in a run of its own without shared links, fair shares, no bytes lost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import pdes
from nadi.configuration.sections import NetworkSection
from nadi.errors import ConfigError
from nadi.et import CollectiveCommType
from nadi.inputs.units import MIB
from nadi.launching.progress import NoProgress
from nadi.pdes import workers
from nadi.pdes.core import declared, state as s
from nadi.pdes.fidelity import fidelity
from nadi.simulation.assembly import with_flows
from nadi.simulation.assembly.resource_checks import estimate
from nadi.simulation.network_settings import network_settings
from nadi.simulation.run import run_program
from nadi.topologies import build
from tests.budgets import bounded
from tests.pdes.cases import Traces, runs
from tests.pdes.compare import simulate
from tests.plain_python import plain_python

BOTH_KINDS = """
from tests.fidelity.test_flows_with_packets import ring_against_messages, ran
from nadi.pdes.core.jit import jit_enabled
print(jit_enabled(), *(ran(LEAVES, ring_against_messages(8, 40_000, 30_000), names).digest for names in KINDS))
"""
LEAVES = "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=500ns"
KINDS = [("p2p",), ("ring",)]
WIRE = (4096 + 82) / 4096  # bytes on the wire of a packet per byte of its payload
BYTE_PS = 80  # at 100 Gb/s


def ran(network, program, names=(), fidelity="packet", **keys):
    """Results of a program in which groups with these names are flows; keys of [network]."""
    settings = network_settings(NetworkSection.model_validate({"fidelity": fidelity, **keys}))
    graph = build(network) if isinstance(network, str) else network
    return run_program(graph, program, with_flows(settings, program, names), NoProgress())


def ring_against_messages(npus, ring_bytes, message_bytes, stride=None):
    """All-reduces of all NPUs, and a message of each to the NPU half of them away, at the same time."""
    traces = Traces(npus)
    for _ in range(2):
        traces.collective(range(npus), CollectiveCommType.ALL_REDUCE, ring_bytes, "ring")
    for npu in range(npus):
        traces.message(npu, (npu + (stride or npus // 2)) % npus, message_bytes)
    return traces.program({"ring": list(range(npus))})


def two_dimensions(npus, size, inner_bytes, outer_bytes, *, group_prefix=("inner", "outer")):
    """All-reduces of groups of `size` neighbours, and at the same time of NPUs with the same place in them."""
    inner, outer = group_prefix
    groups = {f"{inner}{first}": list(range(first, first + size)) for first in range(0, npus, size)}
    groups |= {f"{outer}{place}": list(range(place, npus, size)) for place in range(size)}
    traces = Traces(npus)
    for name, members in groups.items():
        for _ in range(3):
            traces.collective(
                members, CollectiveCommType.ALL_REDUCE, inner_bytes if name.startswith(inner) else outer_bytes, name
            )
    return traces.program(groups)


def named(program, prefix):
    """Names of groups that begin with a prefix, and which messages of results are theirs."""
    numbers = [number for number, name in enumerate(program.group_names) if name.startswith(prefix)]
    return tuple(program.group_names[number] for number in numbers), lambda run: np.isin(run.flows["group"], numbers)


def of(run, is_theirs):
    return {name: column[is_theirs(run)].tolist() for name, column in run.flows.items()}


@bounded(60)
@given(runs(lossy=False), st.lists(st.booleans(), min_size=4, max_size=4))
def test_one_kind_alone_has_its_own_times_and_both_kinds_lose_no_byte(run, kinds):
    spec, work, chosen = run
    graph = build(spec)
    program = work.program(graph.npus)
    groups = len(program.group_ptr)
    packets, flows = (simulate(graph, program, replace(chosen, fidelity=fidelity(name))) for name in ("packet", "flow"))
    as_packets, as_flows, mixed = (
        simulate(graph, program, replace(chosen, flow_groups=np.array(kind[:groups])))
        for kind in ([False] * 4, [True] * 4, kinds)
    )
    assert as_packets.digest == packets.digest
    assert as_flows.node_finish_ps.tolist() == flows.node_finish_ps.tolist()
    assert {name: column.tolist() for name, column in as_flows.flows.items()} == {
        name: column.tolist() for name, column in flows.flows.items()
    }
    assert as_flows.links["tx_bytes"].tolist() == flows.links["tx_bytes"].tolist()
    for counter in ("flows", "payload_bytes", "trace_nodes"):
        assert mixed.counters[counter] == packets.counters[counter]
    assert mixed.links["tx_bytes"].tolist() == packets.links["tx_bytes"].tolist()


@bounded(20)
@given(runs(lossy=True))
def test_packets_alone_lose_and_retransmit_the_same(run):
    spec, work, chosen = run
    graph = build(spec)
    program = work.program(graph.npus)
    try:
        expected = simulate(graph, program, chosen)
    except pdes.RunError:
        return
    found = simulate(graph, program, replace(chosen, flow_groups=np.zeros(len(program.group_ptr), bool)))
    assert found.digest == expected.digest
    assert found.counters["retransmitted_packets"] == expected.counters["retransmitted_packets"]


@pytest.mark.parametrize("flow_kind", ["inner", "outer"])
def test_kinds_that_share_no_link_have_the_times_of_their_own_fidelity(flow_kind):
    graph = build("dgx-h100:npus=16")  # inner groups use NVLinks, outer ones NICs
    program = two_dimensions(16, 8, 3 * MIB + 5, MIB + 3)
    packet_kind = {"inner": "outer", "outer": "inner"}[flow_kind]
    names, are_flows = named(program, flow_kind)
    _, are_packets = named(program, packet_kind)
    mixed = ran(graph, program, names)
    assert of(mixed, are_flows) == of(ran(graph, program, fidelity="flow"), are_flows)
    assert of(mixed, are_packets) == of(ran(graph, program), are_packets)
    assert are_flows(mixed).any()
    assert are_packets(mixed).any()


@pytest.mark.parametrize("flow_is_longer", [False, True])
@pytest.mark.parametrize("network", ["switch:npus=3,rate=100Gbps,delay=500ns", LEAVES])
def test_a_flow_and_packets_share_a_link_half_and_half(network, flow_is_longer):
    """S and 3 S bytes to one receiver: the shorter ends after 2 S, the longer after 4 S."""
    short, long = MIB, 3 * MIB
    traces = Traces(build(network).npus)
    traces.collective([0, 2], CollectiveCommType.BROADCAST, long if flow_is_longer else short, "flow")
    traces.message(1, 2, short if flow_is_longer else long)
    program = traces.program({"flow": [0, 2]})
    run = ran(network, program, ("flow",))
    is_flow = run.flows["group"] >= 0
    flow_ps, packets_ps = (run.flows["finish_ps"][mask].max() for mask in (is_flow, ~is_flow))
    first_ps, last_ps = (packets_ps, flow_ps) if flow_is_longer else (flow_ps, packets_ps)
    packet_ps = 4178 * BYTE_PS
    assert first_ps == pytest.approx(2 * short * WIRE * BYTE_PS, abs=20 * packet_ps)
    assert last_ps == pytest.approx((short + long) * WIRE * BYTE_PS, abs=20 * packet_ps)


@pytest.mark.parametrize("spines", [4, 2, 1])
@pytest.mark.parametrize("names", [("p2p",), ("ring",)])
def test_a_ring_and_messages_on_full_uplinks_end_as_with_packets(spines, names):
    network = f"leaf-spine:leaves=4,hosts_per_leaf=4,spines={spines},rate=100Gbps,delay=500ns"
    program = ring_against_messages(16, 4 * MIB, 2 * MIB, 2)
    packets, mixed = ran(network, program), ran(network, program, names)
    assert mixed.finish_time_ps == pytest.approx(packets.finish_time_ps, rel=0.03)
    assert mixed.links["tx_bytes"].tolist() == packets.links["tx_bytes"].tolist()
    assert mixed.counters["packet_hops"] < packets.counters["packet_hops"]


@pytest.mark.parametrize("flow_kind", ["inner", "outer"])
def test_two_rings_at_a_nic_end_as_with_packets(flow_kind):
    network = "switch:npus=8,rate=100Gbps,delay=500ns"
    program = two_dimensions(8, 4, 4 * MIB, 4 * MIB)
    packets, mixed = ran(network, program), ran(network, program, named(program, flow_kind)[0])
    assert mixed.finish_time_ps == pytest.approx(packets.finish_time_ps, rel=0.03)


def test_pools_grow_in_the_middle_of_a_cell(monkeypatch):
    """An all-to-all and many messages of 32 NPUs: more connections, paths and events than fit at first."""
    in_cell = set()

    def grow(world):
        if world.flows.state.cell_ps >= 0:
            in_cell.add(int(world.net.ctl.need))
        return declared.grow(world)

    monkeypatch.setattr(workers, "grow", grow)
    graph = build("leaf-spine:leaves=4,hosts_per_leaf=8,spines=4,rate=100Gbps,delay=5us")
    traces = Traces(32)
    traces.collective(range(32), CollectiveCommType.ALL_TO_ALL, 32 * 100_000, "all")
    for tag in range(20):
        for npu in range(32):
            traces.message(npu, (npu + 1 + tag) % 32, 20_000, tag=tag)
    program = traces.program({"all": list(range(32))})
    packets, flows = ran(graph, program), ran(graph, program, fidelity="flow")
    as_packets, as_flows = (
        run_program(graph, program, pdes.Settings(flow_groups=np.full(len(program.group_ptr), kind)), NoProgress())
        for kind in (False, True)
    )
    assert as_packets.digest == packets.digest
    assert as_flows.node_finish_ps.tolist() == flows.node_finish_ps.tolist()
    assert {s.NEED_MSGS, s.NEED_QPS, s.NEED_RXQPS, s.NEED_EVENTS, s.NEED_HOPS} <= in_cell


@pytest.mark.full
def test_plain_python_gives_the_same_digests():
    digests = [ran(LEAVES, ring_against_messages(8, 40_000, 30_000), names).digest for names in KINDS]
    assert len({*digests, ran(LEAVES, ring_against_messages(8, 40_000, 30_000)).digest}) == 3
    code = BOTH_KINDS.replace("LEAVES", repr(LEAVES)).replace("KINDS", repr(KINDS))
    assert plain_python("-c", code).split() == ["False", *digests]


def test_messages_as_flows_count_as_no_packets_before_a_run():
    graph = build(LEAVES)
    program = ring_against_messages(8, 40_000, 30_000)
    settings = pdes.Settings()
    hops = [
        estimate(graph, program, with_flows(settings, program, names)).packet_hops
        for names in ((), ("ring",), ("p2p",), ("ring", "p2p"))
    ]
    assert hops[1] + hops[2] == hops[0] > hops[1] > 0 == hops[3]
    assert hops[2] > 0


@pytest.mark.parametrize(
    ("names", "keys", "complaint"),
    [
        (("tp", "rign"), {}, 'flows: found "rign"; expected some of p2p, all, tp, .*, ring'),
        (("ring",), {"endpoint_delay": "1us"}, "flows: found ring with endpoint_delay"),
        (("ring",), {"send_latency": "1us"}, "flows: found ring with send_latency"),
        (("ring",), {"acknowledged": True}, "flows: found ring with acknowledged"),
        (("ring",), {"reduction_bandwidth": "1GB/s"}, "flows: found ring with reduction_bandwidth"),
    ],
)
def test_what_flows_between_packets_do_not_support_is_refused(names, keys, complaint):
    with pytest.raises(ConfigError, match=complaint):
        ran(LEAVES, ring_against_messages(8, 1000, 1000), names, **keys)


def test_other_fidelities_take_no_flows():
    program = ring_against_messages(8, 40_000, 30_000)
    assert ran(LEAVES, program, ("ring",), "flow").digest == ran(LEAVES, program, (), "flow").digest
