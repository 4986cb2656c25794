"""Connections that are driven at a share of their port's line rate."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from nadi import topologies
from nadi.pdes import Settings, build_world, run
from nadi.pdes.fidelity import fidelity
from nadi.pdes.nic import congestion
from nadi.pdes.outcomes.outcome import settled
from nadi.workload import WorkloadError, collective_program, collectives
from nadi.workload.collectives.plans.plan import MAX_SHARES, Lane, each_its_own
from nadi.workload.collectives.schedules.packed import ScheduleSet
from nadi.workload.shape import shape_of
from tests.fabric.compare import differences
from tests.fabric.driven import Driven
from tests.fidelity.naive import by_hand
from tests.nonempty import nonempty
from tests.pdes import compare
from tests.scenarios.running import simulate

SWITCH = "switch:npus=2,rate=100Gbps,delay=500ns"
MTU, HEADER = 4096, 82
BYTE_PS = 80
PAYLOAD_PS = BYTE_PS * (MTU + HEADER) / MTU


def lanes(driven, messages):
    """Member 0 sends member 1 the buffer so often over each of some (connection, shares)."""
    senders = [Lane(connection=connection, shares=shares) for connection, shares in driven]
    receivers = [Lane() for _ in driven]
    for number, sender in enumerate(senders):
        for _ in range(messages):
            sender.step(send_to=1, to_lane=number, send=0)
            receivers[number].step(receive_from=0, receive=0)
    return [senders, receivers]


@pytest.fixture
def program(monkeypatch):
    """Makes the program of lanes of all members."""
    known = collectives.known_algorithms()

    def made(lanes_of_members, size_bytes):
        fixed = SimpleNamespace(
            NAME="fixed", KINDS=("broadcast",), plan=lambda *_: each_its_own(1, lanes_of_members), closed_form=None
        )
        monkeypatch.setattr(collectives, "known_algorithms", lambda: known | {"fixed": fixed})
        return collective_program("broadcast", len(lanes_of_members), size_bytes, "fixed")

    return made


@pytest.mark.parametrize("size", [200, 3000, MTU, 10 * MTU + 3000, 100 * MTU])
@pytest.mark.parametrize("shares", [2, 7, 24, MAX_SHARES])
def test_a_message_takes_its_bytes_at_the_share(program, shares, size):
    """Then its last packet crosses both links."""
    ends = simulate(SWITCH, program(lanes([(0, shares)], 3), size)).flows["finish_ps"]
    packets = -(-size // MTU)
    last_ps = (size - (packets - 1) * MTU + HEADER) * BYTE_PS
    expected = [k * size * shares * PAYLOAD_PS + 2 * last_ps + 1_000_000 for k in (1, 2, 3)]
    assert np.sort(ends) == pytest.approx(expected, abs=3 * packets)


def test_shares_fill_the_port(program):
    """Three thirds, of which each is done as late as all are at line rate."""
    size = 300 * MTU
    plain, thirds = (
        simulate(SWITCH, program(lanes([(c, n) for c in range(3)], 1), size), window_bytes=10**8) for n in (1, 3)
    )
    assert thirds.finish_time_ps == pytest.approx(plain.finish_time_ps, rel=0.005)
    assert np.ptp(thirds.flows["finish_ps"]) <= 3 * (MTU + HEADER) * BYTE_PS


def test_others_get_what_is_left(program):
    """Beside a quarter somebody at line rate has three quarters of it, or more: waits are not made up for.

    The quarter waits for a packet of the other before each of its own, at most.
    """
    size = 400 * MTU
    flows = simulate(SWITCH, program(lanes([(0, 1), (1, 4)], 1), size), window_bytes=10**8).flows
    at_line, quarter = np.sort(flows["finish_ps"]) - 1_000_000
    assert 5 / 4 * 0.999 < at_line / (size * PAYLOAD_PS) < 4 / 3 * 1.01
    assert 4 < quarter / (size * PAYLOAD_PS) < 4 + 1 / 3


def test_a_share_of_nvlink_is_of_its_payload(program):
    graph = topologies.build("rail-optimised:npus=2,gpus_per_host=2,nvlink_rate=2400Gbps,nvlink_delay=20ns")
    taken = simulate(graph, program(lanes([(0, 24)], 1), 1000 * MTU), nvlink_framing=True).finish_time_ps
    assert taken == pytest.approx(1000 * MTU / 10e9 * 1e12 + 40_000, rel=1e-4)


def test_who_has_no_share_is_as_without(program):
    """Two pairs of NPUs on ports of their own; one is driven."""

    def flows(shares):
        senders = [
            Lane(connection=1).step(send_to=1, send=0),
            Lane(connection=2, shares=shares).step(send_to=3, send=0),
        ]
        receivers = [Lane().step(receive_from=source, receive=0) for source in (0, 2)]
        members = [[senders[0]], [receivers[0]], [senders[1]], [receivers[1]]]
        found = simulate("switch:npus=4,rate=100Gbps,delay=500ns", program(members, 99_999)).flows
        return dict(zip(found["src"].tolist(), found["finish_ps"].tolist(), strict=True))

    assert flows(5)[0] == flows(1)[0] == flows(1)[2] < flows(5)[2]


def drawn(dice):
    """Lanes of three members that send each other some messages, with shares and without."""
    made = [[] for _ in range(3)]
    for number in range(dice.randint(1, 6)):
        src, dst = dice.sample(range(3), 2)
        sender, receiver = Lane(connection=number, shares=dice.choice([1, 2, 3, 5, 24, 100])), Lane()
        for _ in range(dice.randint(1, 4)):
            sender.step(send_to=dst, to_lane=len(made[dst]), send=0)
            receiver.step(receive_from=src, receive=0)
        made[dst].append(receiver)
        made[src].append(sender)
    for member, own in enumerate(made):  # the lanes that take messages are known by their numbers only now
        for lane in own:
            assert all(step.send_peer != member for step in nonempty(lane.steps))
    return [own or [Lane()] for own in made]


@pytest.mark.parametrize("limit", [0, 1800])
@pytest.mark.parametrize("seed", range(12))
def test_the_naive_model_agrees(program, seed, limit):
    dice = random.Random(seed)  # noqa: S311 - a test's dice
    graph = topologies.build("leaf-spine:leaves=3,hosts_per_leaf=1,spines=2,rate=100Gbps,uplink_rate=30Gbps")
    made = program(drawn(dice), dice.choice([100, 511, 5000, 20_000]))
    chosen = Settings(
        mtu_bytes=512, seed=seed, queue_limit_bytes=limit, rto_ps=60_000_000 * (limit > 0), max_retries=999
    )
    sim = build_world(graph, made, chosen)
    known = settled(sim)
    results = run(sim)
    reference = Driven(graph, made, chosen, known["window_packets"], known["rto_ps"]).run()
    assert differences(results, reference) == []


@pytest.mark.parametrize("kind", ["congestion_unaware", "congestion_aware"])
@pytest.mark.parametrize("seed", range(6))
def test_the_naive_model_of_whole_messages_agrees(program, kind, seed):
    dice = random.Random(seed)  # noqa: S311 - a test's dice
    graph = topologies.build("leaf-spine:leaves=3,hosts_per_leaf=1,spines=2,rate=100Gbps,uplink_rate=30Gbps")
    made, chosen = program(drawn(dice), 20_000), Settings(fidelity=fidelity(kind, resolution_ps=1000), seed=seed)
    results = run(build_world(graph, made, chosen))
    assert compare.differences(results, by_hand(graph, made, chosen)) == []


@pytest.mark.parametrize("kind", ["congestion_unaware", "congestion_aware"])
def test_whole_messages_take_their_bytes_at_the_share(program, kind):
    chosen = Settings(fidelity=fidelity(kind))
    graph = topologies.build(SWITCH)
    results = run(build_world(graph, program(lanes([(0, 7)], 1), 10**6), chosen))
    again_ps = 10**6 * BYTE_PS if kind == "congestion_aware" else 0
    assert results.finish_time_ps == 7 * 10**6 * BYTE_PS + again_ps + 1_000_000


@pytest.mark.parametrize("name", [name for name in congestion.names() if name != "none"])
def test_a_congestion_control_has_the_share_as_its_line(program, name):
    graph = topologies.build(SWITCH)
    chosen = Settings(congestion_control=congestion.control(name))
    sim = build_world(graph, program(lanes([(0, 1), (1, 24)], 1), 10 * MTU), chosen)
    run(sim)
    rates = sim.lps[0].world.qps.cc[:2].line_ps_per_byte
    assert np.sort(rates) == pytest.approx([BYTE_PS, 24 * BYTE_PS])


def test_dcqcn_begins_at_the_share(program):
    """Nothing is marked, so the pace stays."""
    chosen = {"congestion_control": congestion.control("dcqcn"), "window_bytes": 10**8}
    taken = simulate(SWITCH, program(lanes([(0, 24)], 1), 200 * MTU), **chosen).finish_time_ps
    assert taken == pytest.approx(200 * MTU * PAYLOAD_PS * 24, rel=0.01)


@pytest.mark.parametrize(
    ("driven", "said"),
    [
        ([(0, 0)], f"a lane with 0 shares of a line rate, expected 1 .. {MAX_SHARES}"),
        ([(0, MAX_SHARES + 1)], f"a lane with {MAX_SHARES + 1} shares of a line rate, expected 1 .. {MAX_SHARES}"),
        ([(3, 2), (3, 5)], "connection 3 at 1/5 of the line rate, and at 1/2, expected one rate"),
    ],
)
def test_lanes_that_are_refused(program, driven, said):
    with pytest.raises(WorkloadError, match=said):
        program(lanes(driven, 1), 1000)


def test_algorithms_that_drive_a_connection_at_two_rates_are_refused():
    graph = topologies.build("rail-optimised:npus=4,gpus_per_host=4")
    found, schedules = shape_of(graph, np.arange(4)), ScheduleSet()
    schedules.add("all-reduce", "nccl:algo=ring", 4, found, 1 << 20)
    schedules.add("all-gather", "nccl:pacing=none", 4, found, 1 << 20)
    with pytest.raises(WorkloadError) as error:
        schedules.add("all-gather", "nccl:generation=v100", 4, found, 1 << 20)
    said = str(error.value)
    assert said.startswith("algorithm nccl:generation=v100 for all-gather of 4: connection 32 at 1/36 of the line rate")
    assert said.endswith("and at 1/24 in algorithm nccl:algo=ring for all-reduce of 4, expected one rate")
