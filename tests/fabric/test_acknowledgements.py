"""Acknowledgements with a bitmap, probes of SLEEK, and congestion notifications that a NIC sends late."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import pdes, workload
from nadi.pdes.core import packet
from nadi.pdes.core.state import SELECTIVE_PACKETS
from nadi.pdes.nic import congestion
from nadi.pdes.nic.selective import set_bit
from nadi.pdes.nic.selective_receiver import bitmap_of
from nadi.topologies import build
from tests.budgets import bounded
from tests.pdes.cases import Traces

US = 10**6


@bounded(100)
@given(st.integers(0, 1 << 40), st.integers(-7000, SELECTIVE_PACKETS), st.integers(-5000, SELECTIVE_PACKETS - 1))
def test_both_numbers_of_an_acknowledgement_are_read_from_its_word(una, advance, ahead):
    word2 = packet.path_word(77, 0x1234)
    found = packet.sack_word(packet.numbered(word2, 123), una + advance, ahead)
    assert packet.sender_pair(found) == 77
    assert packet.entropy(found) == 0x1234
    assert packet.sack_numbers(found, una) == (advance, max(ahead, -512))


@bounded(100)
@given(st.integers(0, 5000), st.sets(st.integers(0, SELECTIVE_PACKETS - 1)))
def test_a_bitmap_has_the_64_packets_behind_its_base(base, arrived):
    seen = np.zeros(SELECTIVE_PACKETS >> 5, np.int64)
    for ahead in arrived:
        set_bit(seen, base + ahead)
    wanted = sum(1 << ahead for ahead in arrived if ahead < 64)
    assert int(bitmap_of(seen, base)) & (1 << 64) - 1 == wanted


def sent(program, spec, **own):
    return pdes.run(pdes.build_world(build(spec), program, pdes.Settings(**own)))


@pytest.mark.parametrize("every_bytes", [0, 4096, 16_384, 1 << 20])
def test_a_message_without_losses_is_acknowledged_every_so_many_bytes(every_bytes):
    """A packet without others under way, the last one, and those that fill the window are acknowledged at once."""
    packets, wire_bytes = 100, 4096 + 82
    program = workload.pairs_program([1, -1], packets * 4096)
    how = {"delivery": "rud", "window_bytes": 200 * 4096, "ack_every_bytes": every_bytes}
    found = sent(program, "switch:npus=2,rate=100Gbps,delay=1us", **how)
    per_answer = -(-every_bytes // wire_bytes) if every_bytes else 1
    between = (packets - 2) // per_answer
    assert found.counters["ack_packets"] == 2 + between


def lossy_tail(**own):
    """Two senders at once to a port that holds eight packets: both lose most of what follows, and all at the end."""
    program = workload.pairs_program([-1, 0, 0], 40 * 4096)
    how = {"delivery": "rud", "window_bytes": 100 * 4096, "queue_limit_bytes": 8 * 4178, "rto_ps": 5000 * US}
    return sent(program, "switch:npus=3,rate=100Gbps,delay=1us", **how, **own)


def test_a_probe_finds_a_lost_tail_before_the_timeout():
    timed_out, probed = lossy_tail(), lossy_tail(sleek=True)
    assert timed_out.finish_time_ps > 5000 * US
    assert timed_out.counters["timeouts"] > 0
    # it asks two round trips after the last answer, each time that a tail is lost
    assert probed.finish_time_ps < 300 * US
    assert probed.counters["timeouts"] == 0
    assert probed.counters["payload_bytes"] == 2 * 40 * 4096


def notified(delay_us):
    """Messages of 5 MB from four NPUs at 100 Gb/s to one, through a buffer that pauses; DCQCN of its paper."""
    traces = Traces(5)
    for npu in range(4):
        traces.message(npu, 4, 5_000_000)
    switch = pdes.SharedBuffer(
        buffer_bytes=3_000_000, pfc_alpha=0.125, ecn_kmin_bytes=25_000, ecn_kmax_bytes=100_000, ecn_pmax=0.2
    )
    how = {"congestion_control": congestion.control("dcqcn"), "cnp_delay_ps": delay_us * US, "window_bytes": 10**7}
    return sent(traces.program(), "switch:npus=5,rate=100Gbps,delay=1us", switch=switch, **how)


def test_late_notifications_let_queues_grow_until_switches_pause():
    """As measured and simulated in aliyun/ns-3-alibabacloud, issue 12: pauses came with a delay of 55 us."""
    prompt, late = notified(0), notified(55)
    assert prompt.counters["pause_frames"] == 0 < late.counters["pause_frames"]
    assert late.links["max_queue_bytes"].max() > 1.2 * prompt.links["max_queue_bytes"].max()
