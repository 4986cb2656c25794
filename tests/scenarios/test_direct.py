"""Direct collectives, stars, chains, barriers and pairs on an idle network."""

import numpy as np
import pytest

from nadi.workload import collective_program, pairs_program
from tests.samples import sampled
from tests.scenarios.closed_forms import ROCE, Hop, bits_ps, port_ps, steps_ps, train_ps
from tests.scenarios.running import simulate

G400 = 400 * 10**9
NS = 10**3
BY_SWITCH = Hop(2, 1300 * NS)
MEMBERS = [2, 3, 8, 16, 32]
MESSAGES = [64, 12 * 4096, 100 * 4096]
ROUNDED = 1e-12  # forms that hold to the picosecond
PRECISION = 1e-2
CHUNKS = 16  # of the chains


def on_switch(kind, npus, size_bytes, algorithm):
    program = collective_program(kind, npus, size_bytes, algorithm)
    return simulate(f"switch:npus={npus},switch_latency=300ns", program).finish_time_ps


@sampled(
    {"size_bytes": MESSAGES, "npus": MEMBERS, "kind": ["all-to-all", "reduce-scatter", "all-gather", "all-reduce"]}
)
def test_everybody_to_everybody(kind, npus, size_bytes):
    """a + (n-1) S/nB: at each moment everybody sends to one member and receives from one, so ports stay in step."""
    steps = 2 if kind == "all-reduce" else 1
    expected_ps = steps_ps(steps, size_bytes, BY_SWITCH, G400, messages=npus - 1)
    assert on_switch(kind, npus, npus * size_bytes, "direct") == pytest.approx(expected_ps, rel=ROUNDED)


@sampled({"size_bytes": [1, 64, 50_000, 4096 * 100 + 100], "npus": MEMBERS, "kind": ["broadcast", "scatter"]})
def test_from_the_root(kind, npus, size_bytes):
    """The root's port sends (n-1) M packets, a packet to each in turn; acknowledgements come the other way.

    So it sends the last packet of each message last, in (n-1) p. The last of these must wait in the switch until the
    full one before it has been sent on, in P.
    """
    buffer_bytes = size_bytes if kind == "broadcast" else npus * size_bytes
    last = bits_ps(ROCE.last(size_bytes), G400)
    full = bits_ps(ROCE.full, G400) if ROCE.packets(size_bytes) > 1 else 0
    before = (npus - 1) * (ROCE.packets(size_bytes) - 1) * full
    expected_ps = before + max(full, (npus - 1) * last) + last + BY_SWITCH.fixed_ps
    assert on_switch(kind, npus, buffer_bytes, "direct") == pytest.approx(expected_ps, rel=ROUNDED)


@sampled({"size_bytes": [1, 64, 50_000, 4096 * 100 + 100], "npus": MEMBERS, "kind": ["gather", "reduce"]})
def test_to_the_root(kind, npus, size_bytes):
    """All messages wait in the port towards the root, which is busy from the first packet in to the last."""
    buffer_bytes = size_bytes if kind == "reduce" else npus * size_bytes
    full, last = bits_ps(ROCE.full, G400), bits_ps(ROCE.last(size_bytes), G400)
    count = ROCE.packets(size_bytes)
    message = (count - 1) * full + last
    expected_ps = (full if count > 1 else last) + (npus - 1) * message + BY_SWITCH.fixed_ps
    assert on_switch(kind, npus, buffer_bytes, "direct") == pytest.approx(expected_ps, rel=ROUNDED)


@pytest.mark.parametrize("packets", [1, 8, 64])
@pytest.mark.parametrize("npus", [2, 3, 8, 16])
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_chains_round_a_ring(kind, npus, packets):
    """(n-1) a + (n-2 + k) S/kB: data one way round, acknowledgements the other."""
    program = collective_program(kind, npus, CHUNKS * packets * 4096, "ring")
    results = simulate(f"ring:npus={npus}", program)
    chunk_ps = packets * bits_ps(ROCE.full, G400)
    if npus > 2:
        # there is a shorter way round from the last member to the first, but nothing takes it
        assert np.count_nonzero(results.links["tx_bytes"]) == 2 * (npus - 1)
    assert results.finish_time_ps == (npus - 1) * 500 * NS + (npus - 2 + CHUNKS) * chunk_ps


@pytest.mark.parametrize("packets", [1, 8, 64])
@pytest.mark.parametrize("npus", [2, 3, 8, 16])
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_chains_through_a_switch(kind, npus, packets):
    """The first sends M P a chunk; those between acknowledge what they pass on, M (P + a) once chunks overlap."""
    packet, ack = bits_ps(ROCE.full, G400), bits_ps(ROCE.ack, G400)
    onward = packet + BY_SWITCH.fixed_ps
    between = port_ps(packets, packet, packet, ack, 0) if npus > 2 else packets * packet
    expected_ps = packets * packet + onward + (npus - 2) * (between + onward) + (CHUNKS - 1) * between
    measured_ps = on_switch(kind, npus, CHUNKS * packets * 4096, "ring")
    assert measured_ps == pytest.approx(expected_ps, rel=PRECISION)


@pytest.mark.parametrize("npus", [2, 3, 4, 7, 8, 16, 33, 64])
def test_barrier(npus):
    """ceil(log2 n) rounds of messages without bytes: headers only."""
    expected_ps = steps_ps((npus - 1).bit_length(), 0, BY_SWITCH, G400)
    assert on_switch("barrier", npus, 0, "dissemination") == pytest.approx(expected_ps, rel=ROUNDED)


@pytest.mark.parametrize("size_bytes", [0, 64, 4096, 300_000, 400 * 4096])
@pytest.mark.parametrize("npus", [2, 6])
def test_everybody_sends_to_the_next(npus, size_bytes):
    program = pairs_program((np.arange(npus) + 1) % npus, size_bytes)
    results = simulate(f"switch:npus={npus},switch_latency=300ns", program)
    assert results.finish_time_ps == pytest.approx(steps_ps(1, size_bytes, BY_SWITCH, G400), rel=ROUNDED)


@pytest.mark.parametrize("size_bytes", [0, 64, 4096, 300_000, 400 * 4096])
def test_a_send_is_done_when_its_last_byte_has_left_and_a_receive_when_it_is_in(size_bytes):
    results = simulate("switch:npus=2,switch_latency=300ns", pairs_program([1, -1], size_bytes))
    left_ps, in_ps = results.node_finish_ps.tolist()
    assert left_ps == train_ps(size_bytes, [G400], 0)
    assert in_ps == train_ps(size_bytes, [G400] * 2, BY_SWITCH.fixed_ps)
    assert results.node_start_ps.tolist() == [0, 0]


@pytest.mark.parametrize("senders", [1, 2, 7, 31])
def test_flows_into_one_port_share_it_fairly(senders):
    """All end within one turn of each other, however many they are, and none is late."""
    packets = 64
    results = simulate("switch:npus=32", pairs_program([-1] + [0] * senders + [-1] * (31 - senders), packets * 4096))
    packet = bits_ps(ROCE.full, G400)
    ends = np.sort(results.flows["finish_ps"])
    assert ends[-1] == 1000 * NS + packet + senders * packets * packet
    assert ends[-1] - ends[0] <= senders * packet
