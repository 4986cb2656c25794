"""Every model of the network implements the same verbs (pdes/fidelity/__init__.py): post, next_event_ps and advance."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import nadi
from nadi import pdes, topologies
from nadi.configuration.sections import NetworkSection
from nadi.launching.progress import NoProgress
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.network_settings import network_settings
from nadi.simulation.open_network import MAX_OPEN, open_network
from nadi.simulation.run import run_program
from nadi.workload import CollectiveSettings
from nadi.workload.node_kinds import COMPUTE
from tests.budgets import bounded
from tests.pdes.cases import Traces
from tests.samples import sampled

MODELS = {
    "packet": {"fidelity": "packet"},
    "flow": {"fidelity": "flow"},
    "aware": {"fidelity": "analytical", "congestion_aware": True},
    "unaware": {"fidelity": "analytical", "congestion_aware": False},
    "closed-form": {"fidelity": "closed-form"},
}
WITH_HEADERS = ("packet", "flow", "closed-form")
LEAVES = topologies.build("leaf-spine:npus=8,hosts_per_leaf=4,spines=2,rate=100Gbps,switch_latency=300ns")
FABRICS = {
    "leaves": LEAVES,
    "hosts": topologies.build("dgx-a100:npus=16"),
    "torus": topologies.build("torus:sizes=3x3"),
}
MTU, HEADER, ACK = 4096, 82, 86  # bytes, the defaults


def opened(model, graph=LEAVES, **keys):
    return open_network(graph, network_settings(NetworkSection.model_validate({**MODELS[model], **keys})))


def to_the_end(network):
    """All reports, from one event to the next."""
    found = []
    while (next_ps := network.next_event_ps()) is not None:
        found += network.advance(next_ps + 1)
    return found


def by_message(reports):
    """(time of leaving, time of arrival) of each message, which does both once."""
    times = {(report.message, report.has_arrived): report.time_ps for report in reports}
    assert len(times) == len(reports)
    return [(times[number, False], times[number, True]) for number in range(len(times) // 2)]


def crossed_ps(graph, route, packets, begin_ps, cuts):
    """Times at which packets (bytes on the wire, and times from which they wait) are at the end of a route."""
    free = dict.fromkeys(route, 0)
    for size, at_ps in zip(packets, begin_ps, strict=True):
        ready_ps = at_ps
        for link in route:
            psb, after = 8e12 / graph.link_rate_bps[link], graph.link_dst[link]
            begin_ps = max(ready_ps, free[link])
            free[link] = begin_ps + int(size * psb + 0.5)
            seen = min(size, HEADER) if cuts and after >= graph.npus else size
            ready_ps = begin_ps + int(seen * psb + 0.5) + int(graph.link_delay_ps[link])
            ready_ps += int(graph.node_latency_ps[after]) if link != route[-1] else 0
        yield ready_ps


@sampled(
    {
        "fabric": ["leaves", "torus"],
        "cuts, answers": [(False, False), (True, False), (False, True), (True, True)],
        "size": [1, MTU, MTU + 1, 300_001],
    }
)
def test_a_message_alone_takes_the_time_of_its_packets(fabric, cuts, answers, size):
    """With `acknowledged`, the sender is done when the acknowledgement of the last packet is back."""
    graph = FABRICS[fabric]
    packets = [MTU + HEADER] * (size // MTU) + [size % MTU + HEADER] * (size % MTU > 0)
    route = topologies.route(graph, 0, 7)
    arrives_ps = list(crossed_ps(graph, route, packets, [0] * len(packets), cuts))
    back = [link ^ 1 for link in reversed(route)]
    *_, answered_ps = crossed_ps(graph, back, [ACK] * len(packets), arrives_ps, cuts)
    # an acknowledgement is longer than a packet of one byte
    more_ps = int(8e12 / graph.link_rate_bps[0]) * (ACK - HEADER - 1)
    for model in WITH_HEADERS:
        network = opened(model, graph, cut_through=cuts, acknowledged=answers)
        assert network.post(0, 7, size) == 0
        ((left_ps, found_ps),) = by_message(to_the_end(network))
        if model == "closed-form" and answers:  # it knows only when both ends are done
            assert left_ps == found_ps == pytest.approx(answered_ps, abs=more_ps)
            continue
        assert found_ps == pytest.approx(arrives_ps[-1], abs=(1 + more_ps) * (model == "flow"))
        assert left_ps == answered_ps if answers and model == "packet" else left_ps < found_ps


@pytest.mark.parametrize("model", ["aware", "unaware"])
def test_a_whole_message_alone_takes_the_time_of_its_bytes(model):
    network = opened(model)
    network.post(0, 7, 1000)
    ((left_ps, arrived_ps),) = by_message(to_the_end(network))
    sent_ps, delays_ps = 80 * 1000, 4 * 500_000 + 3 * 300_000
    assert left_ps == sent_ps
    assert arrived_ps == delays_ps + (4 if model == "aware" else 1) * sent_ps


POSTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 7), st.integers(1, 7), st.sampled_from([1, 512, 9000, 100_000])),
    min_size=1,
    max_size=12,
)


def driven(network, posts, unit_ps, steps_ps=()):
    """Reports of posts (units of time, sender, receiver - sender, bytes), with further stops of `advance`."""
    found = []
    for at, src, away, size in sorted(posts):
        for stop_ps in [stop for stop in steps_ps if network.now_ps < stop < at * unit_ps]:
            found += network.advance(stop_ps)
        found += network.advance(at * unit_ps)
        assert network.now_ps == at * unit_ps
        network.post(src, (src + away) % 8, size)
    return found + to_the_end(network)


@pytest.mark.parametrize("model", MODELS)
@given(POSTS, st.lists(st.integers(1, 10**8), max_size=8))
@bounded(25)
def test_reports_do_not_depend_on_the_steps_in_which_a_network_advances(model, posts, stops):
    network = opened(model)
    unit_ps = -(-(10**6) // network.grid_ps) * network.grid_ps
    found = driven(network, posts, unit_ps)
    assert found == driven(opened(model), posts, unit_ps, sorted(stop // network.grid_ps * network.grid_ps
                                                                 for stop in stops))  # fmt: skip
    assert [report.time_ps for report in found] == sorted(report.time_ps for report in found)
    begins_ps = [at * unit_ps for at, *_ in sorted(posts)]
    assert len(by_message(found)) == len(posts)
    assert all(begin <= left <= arrived for begin, (left, arrived) in zip(begins_ps, by_message(found), strict=True))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_messages_take_as_long_as_in_a_run_whose_traces_post_them(model, seed):
    """Random messages at random times on hosts with NVLinks; one per NPU at a time, as then no order is arbitrary."""
    graph, dice = FABRICS["hosts"], np.random.default_rng(seed)
    network, traces, posts = opened(model, graph), Traces(16), []
    unit_ps = -(-(10**6) // network.grid_ps) * network.grid_ps
    for src in range(16):
        for number in range(3):
            dst = int((src + dice.integers(1, 16)) % 16)
            size, wait = int(dice.integers(1, 10**6)), int(dice.integers(1, 20))
            posts.append([wait, src, dst, size])
            deps = (traces.compute(src, wait, cpu=True, deps=(traces.nodes[src][-2].id,) if number else ()),)
            traces.send(src, dst, size, tag=3 * src + number, deps=deps)
            posts[-1][0] += posts[-2][0] if number else 0
    for tag, (_, src, dst, size) in enumerate(posts):
        traces.receive(src, dst, size, tag=tag)
    program = traces.program()
    durations_ps = np.where(program.node_kind == COMPUTE, program.node_duration_ps // 10**6 * unit_ps, 0)
    program = program._replace(node_duration_ps=durations_ps)
    settings = network_settings(NetworkSection.model_validate(MODELS[model]))
    if settings.fidelity.model.has_links:
        results = run_program(graph, program, settings, NoProgress())
    else:
        costs = CollectiveCosts(graph, settings)
        folded = running.laid_out(graph, program, costs)
        costed = running.costed(folded, costs, CollectiveSettings())
        results = running.run(graph, folded, costed, costs, settings, NoProgress())
    order = sorted(range(len(posts)), key=lambda tag: (posts[tag][0], posts[tag][1]))
    found = []
    for tag in order:
        at, src, dst, size = posts[tag]
        found += network.advance(at * unit_ps)
        network.post(src, dst, size)
    found = by_message(found + to_the_end(network))
    arrived_ps = dict(zip(results.flows["lane"].tolist(), results.flows["finish_ps"].tolist(), strict=True))
    assert [arrived for _, arrived in found] == [arrived_ps[tag] for tag in order]


@pytest.mark.parametrize("model", MODELS)
def test_messages_wait_for_each_other_where_the_model_says_so(model):
    """Two senders and one receiver."""
    size = 4_096_000
    alone, both = opened(model), opened(model)
    for network, senders in ((alone, (0,)), (both, (0, 1))):
        for src in senders:
            network.post(src, 7, size)
    (_, alone_ps), *_ = by_message(to_the_end(alone))
    last_ps = max(arrived for _, arrived in by_message(to_the_end(both)))
    if network_settings(NetworkSection.model_validate(MODELS[model])).fidelity.hooks.contends:
        assert last_ps == pytest.approx(alone_ps + 80 * size * (1 + HEADER / MTU * (model != "aware")), rel=1e-3)
    else:
        assert last_ps == alone_ps


@pytest.mark.parametrize("model", ["packet", "flow"])
def test_a_message_that_begins_or_a_slow_link_reprices_those_under_way(model):
    size, half_ps = 8_192_000, 40 * 8_192_000
    whole_ps = int(80 * size * (1 + HEADER / MTU))
    network = opened(model)
    network.post(0, 7, size)
    found = network.advance(half_ps // network.grid_ps * network.grid_ps)
    network.post(1, 7, size)
    (_, first_ps), (_, second_ps) = by_message(found + to_the_end(network))
    assert first_ps == pytest.approx(2 * whole_ps - half_ps, rel=1e-2)
    assert second_ps == pytest.approx(2 * whole_ps, rel=1e-2)
    port = int(np.flatnonzero(LEAVES.link_src == 0)[0])
    settings = network_settings(NetworkSection.model_validate(MODELS[model]))
    faults = pdes.Faults((pdes.LinkFault((port,), half_ps, rate_bps=25 * 10**9),))
    slowed = open_network(LEAVES, pdes.Settings(fidelity=settings.fidelity, faults=faults))
    slowed.post(0, 7, size)
    ((_, slow_ps),) = by_message(to_the_end(slowed))
    assert slow_ps == pytest.approx(half_ps + 4 * (whole_ps - half_ps), rel=1e-2)


@pytest.mark.parametrize("model", ["packet", "flow", "aware", "unaware"])
def test_links_carry_the_bytes_of_all_messages(model):
    """From leaf 0 to leaf 1 and back; no packet is lost."""
    network = opened(model)
    sizes = {(0, 5): 10_000, (1, 6): 123_456, (6, 1): 4096, (0, 7): 1}
    for (src, dst), size in sizes.items():
        network.post(src, dst, size)
    to_the_end(network)
    packets = sum(-(-size // MTU) for size in sizes.values())
    sent = network._lp.world.net.tx.sent_bytes
    plain = model in {"aware", "unaware"}
    on_wire = sum(sizes.values()) + (0 if plain else packets * (HEADER + ACK))
    assert int(np.sum(sent & ((1 << 40) - 1))) == 4 * on_wire


@pytest.mark.parametrize("model", MODELS)
def test_a_caller_reacts_to_what_it_is_told(model):
    """A message goes to and fro; each answer takes as long as the first message, from the grid's next line on."""
    network, ends = opened(model), (0, 7)
    starts_ps, arrivals_ps = [], []
    for turn in range(6):
        starts_ps.append(network.now_ps)
        network.post(ends[turn % 2], ends[1 - turn % 2], 5000)
        arrived = [report for report in to_the_end(network) if report.has_arrived]
        arrivals_ps.append(arrived[-1].time_ps)
    lasted = {arrival - start for start, arrival in zip(starts_ps, arrivals_ps, strict=True)}
    assert len(lasted) == 1
    assert network.post(3, 4, 1) == 6


@pytest.mark.parametrize("model", MODELS)
def test_wrong_messages_are_refused(model):
    network = opened(model)
    for src, dst, size, expected in (
        (0, 8, 1, "npu 0 to npu 8: expected two different numbers from 0 to 7"),
        (3, 3, 1, "npu 3 to npu 3: expected two"),
        (-1, 3, 1, "npu -1 to npu 3: expected two"),
        (0, 1, 0, "message of 0 bytes: expected 1 to"),
    ):
        with pytest.raises(ValueError, match=expected):
            network.post(src, dst, size)
    assert network.next_event_ps() is None or to_the_end(network) == []


def test_too_many_messages_under_way_are_refused_and_their_room_is_used_again():
    network = opened("flow")
    for _turn in range(3):
        for _ in range(MAX_OPEN):
            network.post(0, 7, 1000)
        with pytest.raises(pdes.RunError, match="npu 0 has 1,024 messages under way; expected fewer"):
            network.post(0, 7, 1000)
        assert len(to_the_end(network)) == 2 * MAX_OPEN
    assert network.post(0, 7, 1000) == 3 * MAX_OPEN


def test_the_python_interface_opens_a_network():
    network = nadi.open_network("ring:npus=4", fidelity="flow", mtu="1KiB")
    network.post(0, 1, 1)
    assert len(network.advance(10**9)) == 2
    with pytest.raises(nadi.ConfigError, match="fidelity: found 'fluid'; expected 'packet'"):
        nadi.open_network("ring:npus=4", fidelity="fluid")
    with pytest.raises(nadi.ConfigError, match="queue: unknown key"):
        nadi.open_network("ring:npus=4", queue="1MiB")
