import pytest
from hypothesis import given, strategies as st

from nadi.pdes.core import state as s
from tests.budgets import bounded
from tests.congestion import harness as h
from tests.congestion.naive.swift import Swift

WINDOW = 200
rtts = st.sampled_from([-1, h.BASE_RTT // 3, h.BASE_RTT, 4 * h.BASE_RTT, 30 * h.BASE_RTT]) | st.integers(1, 10**9)
step = st.fixed_dictionaries(
    {
        "after": st.sampled_from([0, 90_000, 2_000_000, 30_000_000, 300_000_000]) | st.integers(0, 9_000_000),
        "event": st.sampled_from([s.CC_ACK] * 8 + [s.CC_LOSS] * 3 + [s.CC_SENT, s.CC_CNP]),
        "acked": st.integers(0, 40),
        "rtt": rtts,
        "loss": st.sampled_from([s.LOSS_NAK, s.LOSS_TRIMMED, s.LOSS_TIMEOUT, s.LOSS_TIMEOUT]),
    }
)
choices = st.sampled_from(
    [
        {},
        {"initial_cwnd_packets": 12, "base_target_ps": 25e6, "fs_range_ps": 300e6},
        {"ai_packets": 0.5, "beta": 0.4, "max_mdf": 0.9, "hop_scale": 0.5},
        {"min_cwnd_packets": 0.3, "retx_reset_threshold": 2, "fs_range_ps": 0},
        {"fs_min_cwnd_packets": 1, "fs_max_cwnd_packets": 50},
        {"initial_cwnd_packets": 0.7, "ai_packets": 0.001},
    ]
)


def model_of(chosen):
    model = Swift(
        h.BASE_RTT, WINDOW, chosen.get("initial_cwnd_packets"), chosen.get("base_target_ps"), chosen.get("fs_range_ps")
    )
    model.ai = chosen.get("ai_packets", model.ai)
    model.beta = chosen.get("beta", model.beta)
    model.max_mdf = chosen.get("max_mdf", model.max_mdf)
    model.hop_scale = chosen.get("hop_scale", model.hop_scale)
    model.min_cwnd = chosen.get("min_cwnd_packets", model.min_cwnd)
    model.retx_reset_threshold = chosen.get("retx_reset_threshold", model.retx_reset_threshold)
    model.fs_min_cwnd = chosen.get("fs_min_cwnd_packets", model.fs_min_cwnd)
    model.fs_max_cwnd = chosen.get("fs_max_cwnd_packets", model.fs_max_cwnd)
    return model


def agree(pair, model):
    assert pair.row.cwnd_packets == pytest.approx(model.cwnd, rel=1e-12)
    assert pair.psb * h.PACKET == pytest.approx(model.pacing_delay, rel=1e-12)
    assert pair.window in {max(1, int(model.cwnd * (1 + e))) for e in (-1e-12, 1e-12)}


@bounded(150)
@given(choices, st.lists(step, min_size=10, max_size=60))
def test_agrees_with_the_paper_line_by_line(chosen, steps):
    pair, model = h.Pair("swift", chosen, window=WINDOW), model_of(chosen)
    now = 5_000_000
    pair.tell(s.CC_START, now)
    agree(pair, model)
    for told in steps:
        now += told["after"]
        if told["event"] == s.CC_ACK:
            pair.tell(s.CC_ACK, now, told["acked"], 1, told["rtt"])
            model.on_ack(now, told["acked"], told["rtt"] if told["rtt"] >= 0 else None)
        elif told["event"] == s.CC_LOSS:
            pair.tell(s.CC_LOSS, now, told["loss"])
            (model.on_timeout if told["loss"] == s.LOSS_TIMEOUT else model.on_fast_recovery)(now)
        else:
            pair.tell(told["event"], now, 4178, 3)
        agree(pair, model)


def started(cwnd, **overrides):
    pair = h.Pair("swift", {"initial_cwnd_packets": cwnd} | overrides, window=WINDOW)
    pair.tell(s.CC_START, 0)
    return pair


def cut(pair, delay):
    """The factor by which an acknowledgement of that delay changes the window."""
    before = pair.row.cwnd_packets
    pair.tell(s.CC_ACK, 1, 1, 0, delay)
    return pair.row.cwnd_packets / before


@pytest.mark.parametrize(
    ("cwnd", "flow"),
    # alpha = 300 us / (sqrt(10) - 1 / 10), beta = -alpha / 10
    [(0.05, 300), (0.1, 300), (1, 300 * 0.9 / 3.0622777), (4, 300 * 0.4 / 3.0622777), (100, 0), (150, 0)],
)
def test_target_scales_with_the_path_and_the_window(cwnd, flow):
    """Section 3.5. A long delay tells: the factor is 1 - beta (delay - target) / delay."""
    overrides = {"base_target_ps": 25e6, "fs_range_ps": 300e6, "beta": 1, "max_mdf": 1, "hop_scale": 3}
    pair = started(cwnd, **overrides)
    target_us = cut(pair, 10**9) * 1000
    assert target_us == pytest.approx(25 + 3 * 8 + flow, abs=1e-3)


def test_topology_term_is_the_smallest_round_trip_and_never_more_than_the_idle_one():
    overrides = {"base_target_ps": 25e6, "fs_range_ps": 0, "beta": 1, "max_mdf": 1}
    pair = started(100, **overrides)
    pair.tell(s.CC_ACK, 1, 0, 0, 2_000_000)
    assert cut(pair, 10**9) * 1000 == pytest.approx(25 + 2)


def test_one_packet_more_for_a_window_acknowledged():
    pair = started(10)
    pair.tell(s.CC_ACK, 1, 10, 0, h.BASE_RTT)
    assert pair.row.cwnd_packets == 11
    assert (pair.window, pair.psb) == (11, 0)


def test_below_one_packet_each_acknowledgement_adds_a_packet_and_pacing_sets_in():
    pair = started(0.25)
    assert (pair.window, pair.psb * h.PACKET) == (1, pytest.approx(4 * h.BASE_RTT))
    pair.tell(s.CC_ACK, 1, 1, 0, h.BASE_RTT)
    assert (pair.row.cwnd_packets, pair.psb) == (1.25, 0)


def test_pacing_follows_the_smoothed_round_trip():
    pair = started(0.5, ai_packets=0)
    for rtt, smoothed in ((8_000_000, 8_000_000), (16_000_000, 9_000_000), (1_000_000, 8_000_000)):
        pair.tell(s.CC_ACK, 1, 1, 0, rtt)
        assert pair.psb * h.PACKET == pytest.approx(2 * smoothed)


def test_one_decrease_a_round_trip():
    pair = started(100, fs_range_ps=0)
    long = 32_000_000  # twice the target: 1 - 0.8 x 0.5
    windows = []
    for now in (100_000_000, 100_000_001, 131_999_999, 132_000_000):
        pair.tell(s.CC_ACK, now, 0, 0, long)
        windows.append(pair.row.cwnd_packets)
    assert windows == pytest.approx([60, 60, 60, 36])


def test_timeouts_halve_and_the_fifth_in_a_row_resets():
    pair = started(64)
    windows = []
    for i in range(5):
        pair.tell(s.CC_LOSS, i * 10 * h.BASE_RTT, s.LOSS_TIMEOUT)
        windows.append(pair.row.cwnd_packets)
    assert windows == [32, 16, 8, 4, 0.001]
    assert pair.psb * h.PACKET == pytest.approx(1000 * h.BASE_RTT)
