"""Credits of receivers (RCCC) in incasts: closed forms; tests/importers/test_uet_htsim.py compares with uet-htsim."""

import pytest

from nadi import pdes, workload
from nadi.pdes.nic.receiver_credits import PULL_RATE
from nadi.topologies import build
from tests.congestion.naive.receiver_credits import Incast
from tests.pdes.cases import Traces


def incast(senders, **own):
    """Results of an incast of 400 kB from each sender over a star of 100 Gb/s, whose queues hold 200 kB."""
    graph = build(f"switch:npus={senders + 1},rate=100Gbps,delay=1us")
    switch = pdes.SharedBuffer(
        buffer_bytes=64_000_000, pfc=False, trimming=True, trim_threshold_bytes=50_000, ecn_last_hop=False
    )
    program = workload.pairs_program([-1] + [0] * senders, 400_000)
    settings = pdes.Settings(switch=switch, delivery="rud", receiver_credits=True, **own)
    return pdes.run(pdes.build_world(graph, program, settings))


def test_an_incast_ends_at_the_rate_of_the_pacer():
    found = incast(8)
    packets = 8 * -(-400_000 // 4096)
    wire_bytes = 8 * 400_000 + packets * 82
    at_line_rate_us = wire_bytes * 8 / 100e3
    # what came on speculation left at line rate, the rest is paced
    assert at_line_rate_us < found.finish_time_ps / 1e6 < at_line_rate_us / PULL_RATE + 12
    assert found.counters["dropped_packets"] == 0
    assert found.counters["credit_packets"] > 8 * 400_000 / (4 * 4096)


def test_only_speculation_is_trimmed_in_an_incast():
    # a round trip of about 5 us at 100 Gb/s is 62 kB, and a sender begins with 1.5 of it
    found = incast(16)
    assert 0 < found.counters["trimmed_packets"] < 16 * 30
    # a timeout may repeat a packet or two whose first copy is still in a queue
    again = found.counters["retransmitted_packets"] - found.counters["trimmed_packets"]
    assert 0 <= again <= 16
    assert incast(16, credit_window_bytes=8192).counters["trimmed_packets"] == 0


@pytest.mark.parametrize("senders", [1, 2, 5, 9])
@pytest.mark.parametrize("window_bytes", [9_000, 40_000, 150_000])
def test_a_naive_model_has_the_same_times_and_as_many_grants(senders, window_bytes):
    """Senders begin at different times, and sizes differ, so that no two packets arrive at one time."""
    sizes = [300_000 + 61_111 * number for number in range(senders)]
    starts_us = [7 * number for number in range(senders)]
    traces = Traces(senders + 1)
    for number, size in enumerate(sizes):
        wait = traces.compute(number + 1, starts_us[number])
        traces.message(number + 1, 0, size, deps=((wait,), ()))
    graph = build(f"switch:npus={senders + 1},rate=100Gbps,delay=1us")
    own = pdes.Settings(
        delivery="rud", receiver_credits=True, credit_window_bytes=window_bytes, window_bytes=2_000_000, mtu_bytes=4096
    )
    found = pdes.run(pdes.build_world(graph, traces.program(), own))
    starts_ps = [10**6 * start for start in starts_us]
    naive = Incast(sizes, starts_ps, window=window_bytes, psb=80.0, delay_ps=10**6, mtu=4096, header=82, ack=86).run()
    by_src = dict(zip(found.flows["src"].tolist(), found.flows["finish_ps"].tolist(), strict=True))
    assert by_src == {number + 1: time for number, time in naive.done_ps.items()}
    # grants go on after the last message, up to a largest window unasked
    assert found.counters["credit_packets"] == naive.pulls


@pytest.mark.parametrize("size_bytes", [128, 4096, 10_000])
def test_short_messages_one_after_another_ask_for_their_credit(size_bytes):
    """The last packet of a message does not ask: what follows it soon has neither speculation nor a promise."""
    traces = Traces(2)
    before = traces.message(0, 1, size_bytes)
    for number in range(20):
        before = traces.message(number % 2, 1 - number % 2, size_bytes, deps=((before[1],), ()))
    own = pdes.Settings(delivery="rud", receiver_credits=True, mtu_bytes=4096)
    found = pdes.run(pdes.build_world(build("switch:npus=2,rate=100Gbps,delay=1us"), traces.program(), own))
    assert len(found.flows["finish_ps"]) == 21
