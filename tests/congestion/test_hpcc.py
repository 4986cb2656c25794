import math

import pytest
from hypothesis import given, strategies as st

from nadi.pdes.core import state as s
from tests.budgets import bounded
from tests.congestion import harness as h
from tests.congestion.naive.hpcc import Hpcc, Link

PATHS = [[0, 1, 0], [0, 1], [0, 0, 0], [0, 1, 0], [1] * 7]
"""Classes of the links of some paths. The fourth looks like the first, but its ports have sent much more."""
BEGIN = (1 << s.TELEMETRY_CLASS_SHIFT) - 30_000_000

step = st.fixed_dictionaries(
    {
        "after": st.sampled_from([90_000, 500_000, 3_000_000, 8_000_000, 20_000_000]) | st.integers(1000, 9_000_000),
        "path": st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3, 4]),
        "busy": st.lists(st.sampled_from([0.0, 0.5, 0.95, 1.0]) | st.floats(0, 1), min_size=7, max_size=7),
        "queue": st.lists(st.just(0) | st.integers(0, 2_000_000), min_size=7, max_size=7),
        "acked": st.integers(0, 40),
        "ahead": st.integers(0, 60),
        "event": st.sampled_from([s.CC_ACK] * 12 + [s.CC_SENT, s.CC_LOSS, s.CC_CNP]),
    }
)
choices = st.sampled_from(
    [
        {},
        {"RATE_AI": 5000, "MIN_RATE": 2000},
        {"fast_react": 0, "flows": 100},
        {"max_stage": 1, "eta": 0.5},
        {"base_rtt_ps": 5e6},
    ]
)


def model_of(chosen):
    rtt = chosen.get("base_rtt_ps", h.BASE_RTT)
    return Hpcc(
        1 / h.LINE_PSB,
        rtt,
        chosen.get("eta", 0.95),
        chosen.get("max_stage", 5),
        chosen.get("flows", 16),
        w_ai=chosen["RATE_AI"] * 1e6 / 8 * rtt / 1e12 if "RATE_AI" in chosen else None,
        least=chosen.get("MIN_RATE", 0) * 1e6 / 8 * rtt / 1e12,
        fast_react=chosen.get("fast_react", 1) == 1,
    )


def agree(pair, model):
    assert pair.row.wc_bytes == pytest.approx(model.wc, rel=1e-12)
    assert pair.row.u == pytest.approx(model.u, rel=1e-12)
    assert pair.psb == pytest.approx(1 / model.rate, rel=1e-12)
    packets = model.w / h.PACKET
    fair = {max(1, min(200, math.ceil(packets * (1 + e)))) for e in (-1e-12, 1e-12)}
    assert pair.window in fair


@bounded(150)
@given(choices, st.lists(step, max_size=60))
def test_agrees_with_the_paper_line_by_line(chosen, steps):
    pair, model = h.Pair("hpcc", chosen), model_of(chosen)
    now = BEGIN
    pair.tell(s.CC_START, now)
    agree(pair, model)
    sent = [[(1 << 34) - 500_000 + (number // 3 << 33)] * len(path) for number, path in enumerate(PATHS)]
    for told in steps:
        now += told["after"]
        for path, ports in zip(PATHS, sent, strict=True):
            for i, kind in enumerate(path):
                ports[i] += int(told["busy"][i] * told["after"] / h.LINE_PSB / (1 + kind))
        pair.una += told["acked"]
        pair.next = pair.sent_max = max(pair.next, pair.una + told["ahead"])
        path = told["path"]
        links = [
            Link((path, i), 1 / h.LINE_PSB / (1 + kind), now - 700 * i, sent[path][i], told["queue"][i])
            for i, kind in enumerate(PATHS[path])
        ]
        pair.carry([(link.ts, PATHS[path][i], link.tx_bytes, link.qlen) for i, link in enumerate(links)])
        pair.tell(told["event"], now, told["acked"], 0, -1)
        if told["event"] == s.CC_ACK:
            model.new_ack(pair.una, pair.next, links)
        agree(pair, model)


def acknowledge(pair, now, sent, queue, *, kind=0):
    """An acknowledgement of what was sent after the last one came; it met one link."""
    pair.una = pair.next + 1
    pair.next = pair.una + 1
    pair.carry([(now, kind, sent, queue)])
    pair.tell(s.CC_ACK, now, 1, 0, -1)


def at_100g(overrides=None):
    """100 Gb/s and 4 us: W_init is 50 kB, and W_AI 156.25 bytes with N = 16."""
    pair = h.Pair("hpcc", overrides, base_rtt=4_000_000, line_psb=80.0)
    pair.tell(s.CC_START, 0)
    acknowledge(pair, 1_000_000, 0, 50_000)
    return pair


def test_begins_at_line_rate_and_the_first_acknowledgement_changes_nothing():
    pair = at_100g()
    assert pair.row.wc_bytes == 50_000
    assert pair.psb == 80.0
    assert pair.window == 12


def test_full_link_with_a_queue_of_one_bandwidth_delay_product():
    """u = qlen / (B T) + txRate / B = 1 + 1, over a whole T: W = 50000 / (2 / 0.95) + 156.25 (lines 3, 5, 13)."""
    pair = at_100g()
    acknowledge(pair, 5_000_000, 50_000, 70_000)
    assert pair.row.u == pytest.approx(2)
    assert pair.row.wc_bytes == pytest.approx(23_906.25)
    assert pair.psb == pytest.approx(4_000_000 / 23_906.25)
    assert pair.window == 6


def test_five_additive_steps_then_a_multiplicative_one():
    pair = at_100g()
    acknowledge(pair, 5_000_000, 50_000, 50_000)
    expected = 23_906.25
    for stage in range(5):
        acknowledge(pair, 9_000_000 + stage * 4_000_000, 75_000 + stage * 25_000, 0)
        expected += 156.25
        assert pair.row.u == pytest.approx(0.5)
        assert pair.row.wc_bytes == pytest.approx(expected)
    acknowledge(pair, 29_000_000, 200_000, 0)
    assert pair.row.wc_bytes == pytest.approx(expected / (0.5 / 0.95) + 156.25)


def test_reactions_within_a_round_trip_start_from_the_same_reference_window():
    """A tenth of T with u = 2 in a window that was not updated yet: U = 0.9 + 0.2, and again U = 0.9 x 1.1 + 0.2."""
    pair = at_100g()
    for i, u in enumerate([1.1, 1.19, 1.271]):
        pair.next += 1
        pair.carry([(1_400_000 + 400_000 * i, 0, 5_000 * (i + 1), 50_000)])
        pair.tell(s.CC_ACK, 2_000_000 + 400_000 * i, 1, 0, -1)
        assert pair.row.wc_bytes == 50_000
        assert pair.psb == pytest.approx(4_000_000 / (50_000 / (u / 0.95) + 156.25))


def test_updates_once_what_was_sent_after_the_last_update_is_acknowledged():
    pair = at_100g()
    for una, now, updates in ((pair.next, 2_000_000, False), (pair.next + 1, 3_000_000, True)):
        pair.una = una
        pair.carry([(now, 0, (now - 1_000_000) // 80, 0)])
        pair.tell(s.CC_ACK, now, 1, 0, -1)
        assert (pair.row.wc_bytes < 50_000) == updates


def test_paths_that_differ_begin_anew():
    pair = at_100g()
    acknowledge(pair, 5_000_000, 50_000, 50_000, kind=1)
    assert pair.row.wc_bytes == 50_000
    acknowledge(pair, 5_000_001, 50_000, 50_000, kind=1)
    assert pair.row.wc_bytes < 50_000


@pytest.mark.parametrize("sent", [50_000 + 4179, 1 << 33])
def test_a_port_that_sent_more_than_it_could_is_another(sent):
    pair = at_100g()
    acknowledge(pair, 5_000_000, sent, 50_000)
    assert (pair.row.wc_bytes, pair.row.u) == (50_000, 1)
