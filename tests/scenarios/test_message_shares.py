"""Messages to other hosts at a share of the NIC's rate ([network] p2p_share), by packets and at closed forms."""

import random

import numpy as np
import pytest

from nadi import topologies
from nadi.launching.progress import NoProgress
from nadi.pdes import Settings, build_world, run
from nadi.pdes.nic import congestion
from nadi.pdes.outcomes.outcome import settled
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.advancing.folded_program import MessageKeys
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.closed_forms.lone_message import ideal_ps
from nadi.workload import CollectiveSettings
from tests.fabric.compare import differences
from tests.fabric.driven import Driven
from tests.pdes.cases import Traces

HOSTS = "rail-optimised:npus=16,gpus_per_host=8,hosts_per_rail_leaf=2,spines=2"
MTU, HEADER, BYTE_PS = 4096, 82, 20
"""A NIC has 400 Gb/s."""


def times(share, *messages):
    """When messages (src, dst, bytes) are there, by (src, dst); and the results."""
    traces = Traces(16)
    for message in messages:
        traces.message(*message)
    results = run(build_world(topologies.build(HOSTS), traces.program(), Settings(p2p_share=share)))
    flows = results.flows
    return dict(zip(zip(flows["src"], flows["dst"], strict=True), flows["finish_ps"].tolist(), strict=True)), results


@pytest.fixture(scope="module")
def costs():
    graph = topologies.build(HOSTS)
    return lambda share: CollectiveCosts(graph, Settings(p2p_share=share))


@pytest.mark.parametrize("size", [1, 3000, MTU, 10_000, 1 << 20])
@pytest.mark.parametrize("share", [1.0, 0.756, 0.5, 0.3])
def test_packets_and_closed_forms_agree_to_the_picosecond(costs, share, size):
    """When a message is there, when it has left, and what `nadi` counts as its time alone."""
    there, results = times(share, (0, 8, size))
    closed = costs(share).of_messages(
        MessageKeys(*(np.array([value]) for value in (0, 8, size)), np.ones(1), np.ones(1, np.int64))
    )
    assert closed.total_ps.tolist() == [there[0, 8]]
    assert closed.left_ps.tolist() == [results.node_finish_ps.min()]
    assert ideal_ps(topologies.build(HOSTS), Settings(p2p_share=share), results.flows).tolist() == [there[0, 8]]


def test_a_message_takes_its_bytes_at_the_share():
    """Then its last packet, which is full, crosses both links."""
    packets = 256
    wire_ps = (MTU + HEADER) * BYTE_PS
    whole, _ = times(1, (0, 8, packets * MTU))
    half, _ = times(0.5, (0, 8, packets * MTU))
    fixed_ps = whole[0, 8] - (packets + 1) * wire_ps
    assert half[0, 8] == 2 * packets * wire_ps + 2 * wire_ps + fixed_ps


def test_all_messages_of_an_npu_go_at_the_share_together():
    size = 256 * MTU
    alone, _ = times(0.5, (0, 8, size))
    both, _ = times(0.5, (0, 8, size), (0, 12, size), (1, 9, size))
    assert max(both[0, 8], both[0, 12]) == pytest.approx(2 * alone[0, 8], rel=0.02)
    assert min(both[0, 8], both[0, 12]) > 1.9 * alone[0, 8]
    assert both[1, 9] == alone[0, 8]


def test_messages_in_a_host_and_collectives_go_at_all_of_the_rate(costs):
    size = 1 << 20
    for share in (1, 0.25):
        inside, _ = times(share, (0, 1, size), (0, 8, size))
        closed = costs(share).of_messages(
            MessageKeys(*(np.array([value]) for value in (0, 1, size)), np.ones(1), np.ones(1, np.int64))
        )
        assert closed.total_ps.tolist() == [inside[0, 1]] == [times(1, (0, 1, size))[0][0, 1]]
    traces = Traces(16)
    traces.collective(range(16), 0, size)
    whole, quarter = (
        run(build_world(topologies.build(HOSTS), traces.program(), Settings(p2p_share=share))) for share in (1, 0.25)
    )
    assert whole.digest == quarter.digest


def test_messages_of_an_npu_follow_one_another_at_closed_forms(costs):
    """Each keeps the port for its bytes at the share; the last of three to one NPU, and of three to three others."""
    graph, size = topologies.build(HOSTS), 100 * MTU
    for dst in ((8, 8, 8), (9, 10, 11)):
        traces = Traces(16)
        for tag, each in enumerate(dst):
            traces.message(0, each, size, tag)
        program, prices = traces.program(), costs(0.5)
        folded = running.laid_out(graph, program, prices)
        costed = running.costed(folded, prices, CollectiveSettings())
        closed = running.run(graph, folded, costed, prices, Settings(p2p_share=0.5), NoProgress()).flows["finish_ps"]
        packets = run(build_world(graph, program, Settings(p2p_share=0.5))).flows["finish_ps"]
        assert np.diff(np.sort(closed)).tolist() == [2 * 100 * (MTU + HEADER) * BYTE_PS] * 2
        assert packets.max() == pytest.approx(closed.max(), rel=0.01)


def test_lps_change_nothing():
    """A host and a half in each."""
    graph, dice = topologies.build(HOSTS), random.Random(7)  # noqa: S311 - a test's dice
    traces = Traces(16)
    for tag in range(40):
        traces.message(*dice.sample(range(16), 2), dice.choice([100, 30_000]), tag)
    traces.collective(range(16), 0, 50_000)
    owner = np.arange(graph.nodes) % 3
    one, three = (
        run(build_world(graph, traces.program(), Settings(p2p_share=0.4), where), threads=threads)
        for where, threads in ((None, 1), (owner, 2))
    )
    assert one.digest == three.digest
    assert one.digest != run(build_world(graph, traces.program(), Settings())).digest


@pytest.mark.parametrize("name", ["dcqcn", "swift"])
def test_a_congestion_control_has_the_share_as_its_line(name):
    """Over the NIC; over NVLink it has all of the rate."""
    graph, control = topologies.build(HOSTS), congestion.control(name)
    traces = Traces(16)
    traces.message(0, 8, 10 * MTU)
    traces.message(0, 1, 10 * MTU)
    lines = []
    for share in (1, 0.25):
        sim = build_world(graph, traces.program(), Settings(congestion_control=control, p2p_share=share))
        run(sim)
        lines.append(np.sort(sim.lps[0].world.qps.cc[:2].line_ps_per_byte))
    assert lines[1] / lines[0] == pytest.approx([1, 4], rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_the_naive_model_agrees(seed):
    """Messages of all sizes at random moments among some peers, beside a collective."""
    dice = random.Random(seed)  # noqa: S311 - a test's dice
    graph = topologies.build("leaf-spine:leaves=3,hosts_per_leaf=1,spines=2,rate=100Gbps,uplink_rate=30Gbps")
    traces = Traces(3)
    for tag in range(dice.randint(2, 9)):
        src, dst = dice.sample(range(3), 2)
        after = traces.compute(src, dice.randint(0, 3))
        traces.message(src, dst, dice.choice([1, 511, 5000, 20_000]), tag, ((after,), ()))
    traces.collective(range(3), 0, 5000)
    limit = dice.choice([0, 1800])
    chosen = Settings(
        mtu_bytes=512,
        seed=seed,
        queue_limit_bytes=limit,
        rto_ps=60_000_000 * (limit > 0),
        max_retries=999,
        p2p_share=1 / dice.choice([2, 3, 7]),
    )
    sim = build_world(graph, traces.program(), chosen)
    known = settled(sim)
    reference = Driven(graph, traces.program(), chosen, known["window_packets"], known["rto_ps"])
    assert differences(run(sim), reference.run()) == []
