import pytest
from hypothesis import given, strategies as st

from nadi.pdes.core import state as s
from tests.budgets import bounded
from tests.congestion import harness as h
from tests.congestion.naive.nscc import Nscc

RTT = h.BASE_RTT
"""8 us at 400 Gb/s: 400 kB, scaling_a is 8/3, the largest window 600 kB."""

step = st.fixed_dictionaries(
    {
        "after": st.sampled_from([0, 90_000, 800_000, RTT, 2 * RTT, 9 * RTT]) | st.integers(0, 3_000_000),
        "event": st.sampled_from([s.CC_ACK] * 12 + [s.CC_LOSS] * 2 + [s.CC_SENT, s.CC_CNP]),
        "acked": st.integers(0, 12) | st.integers(0, 150),
        "ahead": st.integers(0, 150),
        "mark": st.integers(0, 1),
        "delay": st.sampled_from([-RTT // 2, 0, 0, RTT, 2 * RTT, 9 * RTT]) | st.integers(-1000, 10 * RTT),
        "unknown": st.integers(0, 9),
        "loss": st.sampled_from([s.LOSS_NAK, s.LOSS_TRIMMED, s.LOSS_TRIMMED, s.LOSS_TIMEOUT]),
    }
)


def agree(pair, model):
    assert pair.row.cwnd_bytes == pytest.approx(model.cwnd, rel=1e-11)
    assert pair.row.avg_delay_ps == pytest.approx(model.avg_delay, rel=1e-11)
    assert pair.psb == 0
    assert pair.window in {max(1, int(model.cwnd / h.PACKET * (1 + e))) for e in (-1e-11, 1e-11)}


@bounded(150)
@given(
    st.sampled_from([{}, {"target_qdelay_rtts": 0.75}, {"delay_alpha": 0.5, "gamma": 0.4}, {"base_rtt_ps": 5e6}]),
    st.sampled_from([200, 100]),
    st.lists(step, max_size=80),
)
def test_agrees_with_the_specification(chosen, window, steps):
    pair = h.Pair("nscc", chosen, window=window)
    now = 3_000_000
    network_rtt = int(chosen.get("base_rtt_ps", RTT))
    model = Nscc(now, 1 / h.LINE_PSB, network_rtt, 4096, h.PACKET, window, chosen.get("target_qdelay_rtts", 1.0))
    model.gamma, model.delay_alpha = chosen.get("gamma", 0.8), chosen.get("delay_alpha", 0.0125)
    pair.tell(s.CC_START, now)
    agree(pair, model)
    for told in steps:
        now += told["after"]
        pair.una += told["acked"]
        pair.next = pair.sent_max = max(pair.next, pair.una + told["ahead"])
        in_flight = (pair.next - pair.una) * h.PACKET
        rtt = None if told["unknown"] == 0 else RTT + told["delay"]
        if told["event"] == s.CC_ACK:
            pair.tell(s.CC_ACK, now, told["acked"], told["mark"], -1 if rtt is None else rtt)
            model.on_ack(now, told["acked"] * h.PACKET, told["mark"] == 1, rtt, in_flight)
        elif told["event"] == s.CC_LOSS:
            pair.tell(s.CC_LOSS, now, told["loss"], 0, -1 if rtt is None else rtt)
            if told["loss"] == s.LOSS_TRIMMED:
                model.on_trimmed(now, in_flight, rtt)
            else:
                model.on_inferred_loss(pair.sent_max - pair.una if told["loss"] == s.LOSS_TIMEOUT else 1)
        else:
            pair.tell(told["event"], now, 4178, 3)
        agree(pair, model)


def started(lost=100, **overrides):
    """A queue pair whose window was 600 kB until a timeout of so many packets."""
    pair = h.Pair("nscc", overrides)
    pair.tell(s.CC_START, 0)
    pair.sent_max = lost
    pair.tell(s.CC_LOSS, 0, s.LOSS_TIMEOUT)
    pair.una = pair.next = lost
    return pair, 600_000 - lost * h.PACKET


def test_begins_with_one_and_a_half_bandwidth_delay_products_but_never_more_than_the_static_window():
    pair = h.Pair("nscc")
    pair.tell(s.CC_START, 0)
    assert (pair.row.cwnd_bytes, pair.window, pair.psb) == (600_000, 143, 0)
    narrow = h.Pair("nscc", window=20)
    narrow.tell(s.CC_START, 0)
    assert narrow.window == 20


def test_fair_increase_adds_fi_times_the_share_acknowledged():
    pair, window = started()
    pair.tell(s.CC_ACK, 1, 9, 0, 2 * RTT)
    assert pair.row.cwnd_bytes == pytest.approx(window + 5 * 4096 * (8 / 3) * 9 * h.PACKET / window)


def test_proportional_increase_is_alpha_times_the_distance_to_the_target():
    """alpha x target is 4 MTU x a x b, b = 8 us / 12 us; half of it at half the target."""
    pair, window = started()
    pair.tell(s.CC_ACK, 1, 9, 0, RTT + RTT // 2)
    gain = 4 * 4096 * (8 / 3) * (8 / 12) / 2
    assert pair.row.cwnd_bytes == pytest.approx(window + gain * 9 * h.PACKET / window)


def test_eight_packets_wait_for_the_ninth_or_for_a_round_trip_which_adds_eta():
    pair, window = started()
    pair.tell(s.CC_ACK, 1, 8, 0, 2 * RTT)
    assert pair.row.cwnd_bytes == window
    pair.tell(s.CC_ACK, RTT, 0, 1, RTT)
    fair = 5 * 4096 * (8 / 3) * 8 * h.PACKET / window
    assert pair.row.cwnd_bytes == pytest.approx(window + fair + 0.15 * 4096 * (8 / 3))


def test_fast_increase_after_a_window_without_delay():
    pair, window = started()
    packets = int(window // h.PACKET) + 1
    pair.tell(s.CC_ACK, 1, packets, 0, RTT)
    assert pair.row.cwnd_bytes == pytest.approx(window + packets * h.PACKET * 0.25 * 8 / 3)
    pair.tell(s.CC_ACK, 2, 1, 1, 2 * RTT)
    assert pair.row.increase == 0


def test_any_delay_begins_the_count_for_fast_increase_anew():
    pair, window = started()
    packets = int(window // h.PACKET)
    for acked, delay in ((packets, 0), (1, 1_000_000), (packets, 0)):
        pair.tell(s.CC_ACK, 1, acked, 0, RTT + delay)
    assert (pair.row.increase, pair.row.fi_count_bytes) == (0, packets * h.PACKET)


def test_multiplicative_decrease_once_per_base_round_trip():
    """With an average delay of twice the target: 1 - 0.8 x 0.5. At most by half."""
    pair, window = started(0, delay_alpha=1, eta_packets=0)
    windows = []
    for now, rtt in ((RTT, 3 * RTT), (RTT + 1, 3 * RTT), (2 * RTT + 1, 3 * RTT), (2 * RTT + 2, 3 * RTT)):
        pair.tell(s.CC_ACK, now, 0, 1, rtt)
        windows.append(pair.row.cwnd_bytes)
    assert windows == pytest.approx([window, window * 0.6, window * 0.6, window * 0.36])


def test_a_mark_without_delay_does_nothing():
    pair, window = started()
    pair.tell(s.CC_ACK, 1, 20, 1, RTT + RTT // 2)
    assert pair.row.cwnd_bytes == window


def test_quick_adapt_sets_the_window_to_what_came_through():
    """Ten packets within a target round trip (16 us) and one trimmed: ten packets are the new window."""
    pair = h.Pair("nscc")
    pair.tell(s.CC_START, 0)
    pair.next = pair.sent_max = 140
    pair.tell(s.CC_ACK, 1_000, 0, 0, 2 * RTT)
    for i in range(10):
        pair.una += 1
        pair.tell(s.CC_ACK, 2_000_000 + i, 1, 1, 2 * RTT)
    pair.tell(s.CC_LOSS, 1_000 + 2 * RTT, s.LOSS_TRIMMED)
    assert (pair.row.cwnd_bytes, pair.window) == (10 * h.PACKET, 10)
    assert pair.row.to_ignore_bytes == 129 * h.PACKET
    assert (pair.row.received_bytes, pair.row.inc_bytes) == (0, 0)
    pair.tell(s.CC_LOSS, 1_001 + 2 * RTT, s.LOSS_TRIMMED)
    assert pair.window == 10


@pytest.mark.parametrize("kind", [s.LOSS_NAK, s.LOSS_TRIMMED])
def test_a_loss_takes_one_packet(kind):
    pair, window = started()
    pair.tell(s.CC_LOSS, 1, kind)
    assert pair.row.cwnd_bytes == window - h.PACKET


def test_a_trimmed_packet_shows_the_base_round_trip():
    """The window is at most 1.5 bandwidth-delay products of the shortest round trip, at 50 bytes a ns."""
    pair = h.Pair("nscc")
    pair.tell(s.CC_START, 0)
    pair.tell(s.CC_LOSS, 1_000, s.LOSS_TRIMMED, 0, RTT // 2)
    assert pair.row.cwnd_bytes == pytest.approx(1.5 * RTT // 2 * 50e-3)


def test_the_window_never_falls_below_a_packet():
    pair, _ = started(1000)
    assert (pair.row.cwnd_bytes, pair.window) == (h.PACKET, 1)
