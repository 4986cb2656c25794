"""Sends and receives of traces as NCCL's: by packets, as whole messages and at closed forms."""

import random

import numpy as np
import pytest

from nadi import topologies
from nadi.et import metadata, recv_node, send_node, table_of
from nadi.launching.progress import NoProgress
from nadi.pdes import Settings, build_world, congestion, run
from nadi.pdes.fidelity import fidelity
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.closed_forms.lone_message import ideal_ps, shares_of
from nadi.workload import CollectiveSettings, ComputeModel, build_program
from nadi.workload.collectives import defaults_on
from nadi.workload.program.program import Channels
from tests.fabric.compare import differences
from tests.fabric.driven import Driven
from tests.fidelity.naive import by_hand
from tests.fidelity.naive_closed_form import Simulator
from tests.pdes.cases import Traces
from tests.pdes.compare import differences as of_messages

KIB, MIB = 1 << 10, 1 << 20
WHOLE = ("congestion_unaware", "congestion_aware")


def program_of(traces, graph, **algorithms):
    how = CollectiveSettings(defaults_on(graph) | {name.replace("_", "-"): what for name, what in algorithms.items()})
    return build_program(traces.tables(), range(graph.npus), graph.npus, {}, ComputeModel("trace"), how, fabric=graph)


def of_messages_alone(graph, *messages, **algorithms):
    traces = Traces(graph.npus)
    for tag, (src, dst, size) in enumerate(messages):
        traces.message(src, dst, size, tag)
    return program_of(traces, graph, **algorithms)


def closed(graph, program, settings=Settings()):  # noqa: B008 - frozen
    costs = CollectiveCosts(graph, settings)
    folded = running.laid_out(graph, program, costs)
    costed = running.costed(folded, costs, CollectiveSettings(defaults_on(graph)))
    return running.run(graph, folded, costed, costs, settings, NoProgress())


def packets(graph, program, **settings):
    return run(build_world(graph, program, Settings(**settings)))


@pytest.mark.parametrize(
    ("fabric", "dst", "size", "by_hand_us"),
    [
        ("dgx-b200:npus=8", 1, KIB, 8.8 + 0.36 + 2 * KIB / 18e3),  # LL, one channel: launch, one peer, bytes
        ("dgx-b200:npus=8", 1, 100 * KIB, 13.8 + 0.36 + 100 * KIB / 40e3),  # Simple, two channels of 20 GB/s
        ("dgx-b200:npus=8", 1, MIB, 13.8 + 0.36 + MIB / 80e3),  # four
        ("dgx-b200:npus=8", 1, 32 * MIB, 13.8 + 0.36 + 32 * MIB / 80e3),
        ("dgx-b200:npus=2", 1, 32 * MIB, 13.8 + 0.36 + 32 * MIB / 320e3),  # a communicator of two: 16 channels
        ("dgx-a100:npus=8", 1, MIB, 9.7 + 0.51 + MIB / 20e3),  # a channel for each 512 KiB
        ("dgx-h100:npus=8", 1, 4 * MIB, 9.7 + 0.22 + 4 * MIB / 73.4e3),
        ("dgx-b200:npus=16", 8, KIB, 8.4 + 14),  # between hosts: Simple, whatever the size
        ("dgx-a100:npus=16", 8, 4 * MIB, 8.4 + 14 + 4 * MIB / 20e3),  # two channels of 10 GB/s
        ("dgx-h100:npus=16", 8, 64 * MIB, 8.4 + 14 + 64 * MIB / (50e3 * 4096 / 4178)),  # four: the NIC's rate
    ],
)
def test_a_message_takes_its_launch_hop_and_bytes_at_its_channels_rate(fabric, dst, size, by_hand_us):
    """By hand within 3 % (frames, and the last packet); packets and closed forms agree to the picosecond."""
    graph = topologies.build(fabric)
    program = of_messages_alone(graph, (0, dst, size))
    found = packets(graph, program)
    assert found.finish_time_ps / 1e6 == pytest.approx(by_hand_us, rel=0.03)
    exact = closed(graph, program)
    assert exact.finish_time_ps == found.finish_time_ps
    assert exact.flows["start_ps"].tolist() == found.flows["start_ps"].tolist()
    alone = ideal_ps(graph, Settings(), found.flows, shares_of(program, found.flows))
    assert alone.tolist() == (found.flows["finish_ps"] - found.flows["start_ps"]).tolist()


@pytest.mark.parametrize("model", WHOLE)
def test_whole_messages_pay_launch_and_hop_too(model):
    """And a share of the line rate, of which the model leaves out NVLink's framing."""
    graph = topologies.build("dgx-h100:npus=8")
    for size, by_hand_us in ((KIB, 6.02 + 2 * KIB / 18e3), (4 * MIB, 9.92 + 4 * MIB / (450e3 / (360 / 73.4)))):
        found = packets(graph, of_messages_alone(graph, (0, 1, size)), fidelity=fidelity(model))
        assert found.finish_time_ps / 1e6 == pytest.approx(by_hand_us, rel=0.2 if model == WHOLE[1] else 0.02)


def test_messages_are_plain_where_all_to_alls_are_not_nccls():
    """On other fabrics, or where another algorithm is named; then they take their paths alone, as in ASTRA-sim."""
    for fabric, named in (("switch:npus=4", {}), ("dgx-h100:npus=8", {"all_to_all": "direct"})):
        graph = topologies.build(fabric)
        program = of_messages_alone(graph, (0, 1, MIB), **named)
        assert (program.node_duration_ps.max(), program.node_channel.max()) == (0, -1)
    graph = topologies.build("switch:npus=4")
    named = of_messages_alone(graph, (0, 1, MIB), all_to_all="nccl:generation=h100")
    assert named.node_duration_ps.max() > 6e6


@pytest.mark.parametrize(
    ("machine", "receivers", "bytes_per_us", "tolerance"),
    [("dgx-h100:npus=8", range(1, 8), 360e3, 0.03), ("dgx-b200:npus=8", (1, 1, 1), 80e3, 0.01)],
    ids=["to seven peers more than a port has", "to one peer one after another on its channels"],
)
def test_grouped_messages_launch_together(machine, receivers, bytes_per_us, tolerance):
    """The launch passes once; 7 x 73.4 GB/s from one GPU are more than its port has."""
    graph, size = topologies.build(machine), 8 * MIB
    program = of_messages_alone(graph, *((0, dst, size) for dst in receivers))
    took = packets(graph, program).finish_time_ps / 1e6
    assert took == pytest.approx(11.8 + len(receivers) * size / bytes_per_us, rel=tolerance)
    assert closed(graph, program).finish_time_ps / 1e6 == pytest.approx(took, rel=tolerance)


def test_the_users_share_holds_instead_between_hosts():
    graph, size = topologies.build("dgx-a100:npus=16"), 16 * MIB
    program = of_messages_alone(graph, (0, 8, size))
    own, half = (packets(graph, program, p2p_share=share).finish_time_ps / 1e6 - 22.4 for share in (1.0, 0.5))
    assert own == pytest.approx(size / 20e3, rel=0.03)
    assert half == pytest.approx(size / 12.5e3, rel=0.04)
    assert closed(graph, program, Settings(p2p_share=0.5)).finish_time_ps / 1e6 - 22.4 == pytest.approx(half, rel=1e-6)


def test_who_sends_to_its_own_host_and_who_does_not_have_traces_of_their_own():
    """NPUs of a host share one; a trace whose sends leave the host for some is two."""
    graph = topologies.build("dgx-h100:npus=16")
    traces = Traces(16)
    for npu in range(16):
        traces.send(npu, (npu + 1) % 16, MIB)
    for npu in range(16):
        traces.receive(npu, (npu + 1) % 16, MIB)
    program = program_of(traces, graph)
    distinct, users = np.unique(program.trace_of_npu, return_counts=True)
    assert len(distinct) <= 4
    assert users.max() == 13  # 0, 7 and 15 send or receive over another distance or from another host
    sends = program.node_kind == 3
    assert sorted(set((program.node_duration_ps[sends] / 1e6).round(0).tolist())) == [12, 21]


def random_program(dice, npus, **parameters):
    """Messages of all sizes that wait and have channels of unlike rates, beside computation and a collective."""
    traces = Traces(npus)
    for tag in range(dice.randint(2, 12)):
        src, dst = dice.sample(range(npus), 2)
        after = traces.compute(src, dice.randint(0, 3))
        traces.message(src, dst, dice.choice([1, 511, 5000, 20_000]), tag, ((after,), ()))
    traces.collective(range(npus), 0, 5000)
    program = traces.program(**parameters)
    sends = np.flatnonzero(program.node_kind == 3)
    waits, channel = program.node_duration_ps.copy(), program.node_channel.copy()
    waits[sends] = [dice.choice([0, 1, 700_000, 700_000, 2_000_001]) for _ in sends]
    channel[sends] = [dice.choice([-1, 0, 1, 2]) for _ in sends]
    ways = Channels(np.array([25, 27, 57], np.int8), np.array([2.5, 9.0, 1.0]), np.array([False, False, True]))
    return program._replace(node_duration_ps=waits, node_channel=channel, channels=ways)


@pytest.mark.parametrize("seed", range(12))
def test_the_naive_model_agrees(seed):
    dice = random.Random(seed)  # noqa: S311 - a test's dice
    graph = topologies.build("leaf-spine:leaves=3,hosts_per_leaf=1,spines=2,rate=100Gbps,uplink_rate=30Gbps")
    program = random_program(dice, 3)
    chosen = Settings(mtu_bytes=512, seed=seed, nvlink_framing=False)
    results = run(build_world(graph, program, chosen))
    settled = results.settled
    naive = Driven(graph, program, chosen, settled["window_packets"], settled["rto_ps"]).run()
    assert differences(results, naive) == []


@pytest.mark.parametrize("model", WHOLE)
@pytest.mark.parametrize("seed", range(6))
def test_naive_whole_messages_agree(seed, model):
    dice = random.Random(seed)  # noqa: S311 - a test's dice
    graph, chosen = topologies.build("ring:npus=5,rate=100Gbps"), Settings(fidelity=fidelity(model), seed=seed)
    program = random_program(dice, 5)
    assert of_messages(run(build_world(graph, program, chosen)), by_hand(graph, program, chosen)) == []


@pytest.mark.parametrize("seed", range(12))
def test_naive_closed_forms_agree(seed):
    graph = topologies.build("switch:npus=4,rate=100Gbps")
    program = random_program(random.Random(seed), 4)  # noqa: S311 - a test's dice
    costs = CollectiveCosts(graph, Settings())
    folded = running.laid_out(graph, program, costs)
    costed = running.costed(folded, costs, CollectiveSettings())
    found = running.run(graph, folded, costed, costs, Settings(), NoProgress())
    keys, times = folded.messages, costs.of_messages(folded.messages)
    known = {
        (size, shares): row
        for size, shares, row in zip(keys.bytes.tolist(), keys.shares.tolist(), zip(*times, strict=True), strict=True)
    }
    shares = np.append(program.channels.shares, 1.0)

    class Priced(Simulator):
        def send(self, npu, row):
            self.channel = row.channel
            super().send(npu, row)

    naive = Priced(
        program,
        lambda *_: int(costed.time_ps[0]),
        lambda _src, _dst, size: tuple(int(one) for one in known[size, shares[naive.channel]]),
        lambda *_: 0,
    )
    naive.run()
    assert [row.finish for npu in naive.npus for row in npu.rows] == found.node_finish_ps.tolist()


def test_lps_threads_and_controls_change_nothing_or_hold_the_share():
    graph, dice = topologies.build("dgx-h100:npus=16"), random.Random(3)  # noqa: S311 - a test's dice
    traces = Traces(16)
    for tag in range(40):
        traces.message(*dice.sample(range(16), 2), dice.choice([100, 30_000, 200_000]), tag)
    traces.collective(range(16), 6, 500_000)
    program = program_of(traces, graph)
    one, three = (
        run(build_world(graph, program, Settings(), where), threads=threads)
        for where, threads in ((None, 1), (np.arange(graph.nodes) % 3, 2))
    )
    assert one.digest == three.digest
    size = MIB
    alone = of_messages_alone(graph, (0, 1, size))
    plain = packets(graph, alone).finish_time_ps
    assert packets(graph, alone, congestion_control=congestion.control("swift")).finish_time_ps == pytest.approx(
        plain, rel=0.1
    )
    asked = packets(graph, alone, rendezvous_bytes=1000)
    assert asked.finish_time_ps > plain
    assert dict(zip(asked.flows["control"].tolist(), shares_of(alone, asked.flows).tolist(), strict=True))[2] == 1
    assert (
        packets(graph, alone, fidelity=fidelity("packet", send_latency_ps=5_000_000)).finish_time_ps
        == plain + 5_000_000
    )


def test_a_group_that_a_send_names_has_a_communicator_of_its_own():
    """Two of eight in a host have 16 channels, all eight 4; stages on two hosts those of the network."""
    graph, size = topologies.build("dgx-h100:npus=16"), 4 * MIB
    tables = []
    for npu in range(16):
        group = {0: "near", 1: "near", 2: "far", 10: "far"}.get(npu, "")
        peer = {0: 1, 2: 10, 4: 5}.get(npu)
        nodes = [send_node(0, "s", npu, peer, size)] if peer else []
        source = {1: 0, 10: 2, 5: 4}.get(npu)
        nodes += [recv_node(1, "r", source, npu, size)] if source is not None else []
        for node in nodes:
            if group:
                node.attr.add(name="pg_name", string_val=group)
        tables.append(table_of(metadata(), nodes))
    how = CollectiveSettings(defaults_on(graph))
    groups = {"near": (0, 1), "far": (2, 10)}
    program = build_program(tables, range(16), 16, groups, ComputeModel("trace"), how, fabric=graph)
    found = packets(graph, program).flows
    took_us = dict(zip(found["src"].tolist(), ((found["finish_ps"] - found["start_ps"]) / 1e6).tolist(), strict=True))
    assert took_us[0] == pytest.approx(size / (16 * 18.35e3), rel=0.03)
    assert took_us[4] == pytest.approx(size / (4 * 18.35e3), rel=0.03)
    assert took_us[2] == pytest.approx(size / (50e3 * 4096 / 4178), rel=0.06)
