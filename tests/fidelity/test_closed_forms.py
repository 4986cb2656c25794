"""Whole messages where arithmetic tells the time (400 Gb/s are 20 ps a byte); what models of the network declare."""

import pytest

from nadi import pdes
from nadi.configuration.sections import NetworkSection, given_default
from nadi.pdes import fidelity as contract_fidelity
from nadi.pdes.core import settings_of
from nadi.topologies import build
from nadi.workload import collective_program
from tests.pdes.cases import Traces
from tests.samples import sampled

KINDS = ("congestion_unaware", "congestion_aware")


def simulate(network, program, kind, *, concurrent_collectives=False, compute_slowdown=1.0, **parameters):
    """Results of a program on a network (a spec or a Graph); parameters are those of fidelity.Fidelity."""
    graph = build(network) if isinstance(network, str) else network
    settings = pdes.Settings(
        fidelity=contract_fidelity.fidelity(kind, **parameters),
        concurrent_collectives=concurrent_collectives,
        compute_slowdown=compute_slowdown,
    )
    return pdes.run(pdes.build_world(graph, program, settings))


BYTE_PS = 20
DELAY_PS = 500_000
AWARE, UNAWARE = "congestion_aware", "congestion_unaware"
SWITCH = "rate=400Gbps,delay=500ns,switch_latency=300ns"
SWITCH_PS = 2 * DELAY_PS + 300_000


@sampled({"kind": KINDS, "message": [1, 4096, 10**6, 10**10], "npus": [2, 3, 8, 33]})
def test_ring_all_reduce(npus, message, kind):
    """2 (n-1) (a + S/nB)."""
    program = collective_program("all-reduce", npus, npus * message, "ring")
    results = simulate(f"ring:npus={npus},rate=400Gbps,delay=500ns", program, kind)
    assert results.finish_time_ps == 2 * (npus - 1) * (DELAY_PS + message * BYTE_PS)
    assert results.counters["packet_hops"] == results.counters["flows"] == 2 * npus * (npus - 1)
    assert results.links["max_queue_bytes"].max() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_endpoints_and_reductions(kind):
    """Each message an endpoint's delay, and one more at first; three times its bytes through memory where it is added.

    2,000 bytes take 40,000 ps on a link and 14,000 ps once through memory.
    """
    program = collective_program("all-reduce", 4, 4 * 2000, "ring")
    own = {"endpoint_delay_ps": 10_000, "reduction_bandwidth_bps": 8e12 / 7.0}
    results = simulate("ring:npus=4,rate=400Gbps,delay=500ns", program, kind, **own)
    assert results.finish_time_ps == 6 * (DELAY_PS + 40_000) + 7 * 10_000 + 3 * 3 * 14_000


@pytest.mark.parametrize("kind", KINDS)
def test_times_are_cut_to_the_resolution(kind):
    """333 bytes take 6,660 ps, cut to 6 ns; adding them 2,331 ps, cut to 2 ns and taken three times."""
    program = collective_program("reduce-scatter", 4, 4 * 333, "ring")
    results = simulate(
        "ring:npus=4,rate=400Gbps,delay=500ns", program, kind, reduction_bandwidth_bps=8e12 / 7.0, resolution_ps=1000
    )
    assert results.finish_time_ps == 3 * (DELAY_PS + 6000 + 3 * 2000)


@pytest.mark.parametrize("npus", [2, 3, 8, 16])
def test_direct_all_to_all_on_a_switch(npus):
    """Unaware: all at once. Aware: n - 1 messages one after another out of a port, and the last of them once more."""
    message = 50_000
    program = collective_program("all-to-all", npus, npus * message, "direct")
    spec = f"switch:npus={npus},{SWITCH}"
    assert simulate(spec, program, UNAWARE).finish_time_ps == SWITCH_PS + message * BYTE_PS
    assert simulate(spec, program, AWARE).finish_time_ps == SWITCH_PS + npus * message * BYTE_PS


def two_into_one(first, second, later_micros=0):
    """NPU 0 and, some time later, NPU 1 send to NPU 2."""
    traces = Traces(3)
    waits = (traces.compute(1, later_micros),) if later_micros else ()
    traces.message(0, 2, first)
    traces.message(1, 2, second, deps=(waits, ()))
    return traces.program()


@pytest.mark.parametrize(("first", "second"), [(100_000, 100_000), (100_000, 1000), (1000, 100_000)])
def test_two_messages_share_a_link(first, second):
    """The one that has come to the switch first is sent on first; of two at the same time that of the lower NPU."""
    flows = simulate(f"switch:npus=3,{SWITCH}", two_into_one(first, second), AWARE).flows
    sooner, later = (first, second) if first <= second else (second, first)
    at_switch_ps = [size * BYTE_PS + DELAY_PS + 300_000 for size in (sooner, later)]
    sooner_out_ps = at_switch_ps[0] + sooner * BYTE_PS
    later_out_ps = max(at_switch_ps[1], sooner_out_ps) + later * BYTE_PS
    expected = {sooner: sooner_out_ps + DELAY_PS, later: later_out_ps + DELAY_PS}
    if first == second:
        assert flows["finish_ps"].tolist() == [sooner_out_ps + DELAY_PS, later_out_ps + DELAY_PS]
    else:
        assert dict(zip(flows["bytes"].tolist(), flows["finish_ps"].tolist(), strict=True)) == expected


def test_a_message_that_comes_later_waits_for_the_whole_one_before():
    """NPU 0's 1 MB is at the switch from 20.8 us, and on its way to 40.8 us; NPU 1 sends a byte at 30 us."""
    results = simulate(f"switch:npus=3,{SWITCH}", two_into_one(10**6, 1, later_micros=30), AWARE)
    before_ps = 2 * 10**6 * BYTE_PS + SWITCH_PS
    assert sorted(results.flows["finish_ps"].tolist()) == [before_ps, before_ps + BYTE_PS]
    waited_ps = 40_800_000 - (30_000_000 + BYTE_PS + 800_000)
    assert results.links["max_queue_bytes"].max() == waited_ps // BYTE_PS


def test_unaware_messages_do_not_share():
    flows = simulate(f"switch:npus=3,{SWITCH}", two_into_one(100_000, 100_000), UNAWARE).flows
    assert flows["finish_ps"].tolist() == [SWITCH_PS + 100_000 * BYTE_PS] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_send_is_done_when_its_last_byte_has_left(kind):
    traces = Traces(2)
    traces.message(0, 1, 1000)
    results = simulate(f"switch:npus=2,{SWITCH}", traces.program(), kind)
    hops = 2 if kind == AWARE else 1
    assert results.node_finish_ps.tolist() == [1000 * BYTE_PS, hops * 1000 * BYTE_PS + SWITCH_PS]


@pytest.mark.parametrize(("sizes", "late"), [((10**6, 10), True), ((10, 10**6), False)])
def test_messages_of_one_connection_arrive_in_order(sizes, late):
    traces = Traces(2)
    for tag, size in enumerate(sizes):
        traces.message(0, 1, size, tag=tag)
    flows = simulate("ring:npus=2,rate=400Gbps,delay=500ns", traces.program(), UNAWARE).flows
    by_tag = dict(zip(flows["lane"].tolist(), flows["finish_ps"].tolist(), strict=True))
    assert by_tag[0] == DELAY_PS + sizes[0] * BYTE_PS
    assert by_tag[1] == (by_tag[0] if late else DELAY_PS + sizes[1] * BYTE_PS)


@pytest.mark.parametrize("kind", KINDS)
def test_paths_of_several_dimensions(kind):
    """From (0, 0) to (2, 1): two hops round the ring of 5 at 20 ps a byte, then through the switch at 80."""
    traces = Traces(15)
    traces.message(0, 7, 1000)
    spec = "stack:dims=Ring(5)_Switch(3),rates=400Gbps_100Gbps,delays=500ns_2us,switch_latency=300ns"
    results = simulate(spec, traces.program(), kind)
    latency_ps = 2 * DELAY_PS + 2 * 2_000_000 + 300_000
    whole_ps = 1000 * 80 if kind == UNAWARE else 1000 * (2 * 20 + 2 * 80)
    assert results.finish_time_ps == latency_ps + whole_ps
    assert results.counters["packet_hops"] == 4
    assert results.links["tx_bytes"].sum() == 4000


@pytest.mark.parametrize("kind", KINDS)
def test_compute_hides_communication(kind):
    """A message of 2.5 us beside 2 us and then 3 us of computing; what depends on both begins at 5 us."""
    traces = Traces(2)
    sent, received = traces.message(0, 1, 100_000)
    first = traces.compute(1, 2)
    second = traces.compute(1, 3)
    traces.compute(1, 1, deps=(received, second))
    results = simulate("ring:npus=2,rate=400Gbps,delay=500ns", traces.program(), kind)
    assert sent == received == first - 1
    assert results.node_finish_ps.tolist() == [2_000_000, 2_500_000, 2_000_000, 5_000_000, 6_000_000]


NAMES = tuple(contract_fidelity.networks())


def test_declared_keys_are_keys_of_the_section():
    """Every key of [network] belongs to some model."""
    keys = set().union(*(model.keys for model in contract_fidelity.networks().values()))
    assert keys == set(NetworkSection.model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_capabilities_agree(name):
    model = contract_fidelity.networks()[name]
    assert model.title
    assert model.use
    moves = [hooks.act for hooks in model.hooks if hooks.act]
    assert not (model.has_packets and moves), "packets and whole messages"
    assert moves or model.has_packets or not model.has_links
    assert model.has_packets or not model.several_workers
    assert model.has_links or not moves, "whole messages cross links"
    assert len(model.hooks) == 1 or all(hooks.chosen_by for hooks in model.hooks)
    assert all(hooks.contends or hooks.overload or not model.has_links for hooks in model.hooks)
    assert model.conditions.keys() <= model.keys


@pytest.mark.parametrize("name", NAMES)
def test_keys_of_one_model_come_from_its_file(name):
    """They have defaults with this model, and are neither keys nor results of the others."""
    model = contract_fidelity.networks()[name]
    own = {each.key: given_default(each.key) for each in settings_of(model.own)}
    assert own.keys() <= model.keys - contract_fidelity.PACKET.keys
    for other in NAMES:
        section = NetworkSection(fidelity=other)
        values = {key: section.model_dump(mode="json").get(key) for key in own}
        assert values == (own if other == name else dict.fromkeys(own))
    assert [name for name in NAMES if settings_of(contract_fidelity.networks()[name].own)] == ["flow", "analytical"]


@pytest.mark.parametrize(
    ("model", "key", "value", "expected"),
    [
        ("flow", "collectives", "ring", "'steps', 'coupled' or 'auto'"),
        ("analytical", "resolution", "0s", "more than 0"),
        ("analytical", "congestion_aware", 2, "valid boolean"),
    ],
)
def test_their_values_are_validated(model, key, value, expected):
    with pytest.raises(ValueError, match=expected):
        NetworkSection.model_validate({"fidelity": model, key: value})
