import pytest
from hypothesis import given, strategies as st

from nadi.pdes.core import state as s
from tests.budgets import bounded
from tests.congestion.harness import Sender, defaults, near
from tests.congestion.naive import dctcp as naive
from tests.nonempty import nonempty

DEFAULTS = defaults("dctcp")


def sends(sender, packets):
    for _ in range(packets):
        sender.sent(0)


def acks(sender, packets, mark=0):
    for _ in range(packets):
        sender.ack(0, mark=mark)


def test_all_marked_halves_once_per_window():
    """alpha begins at 1 and stays there while all is marked: DCTCP is TCP then (paper, section 3.1)."""
    sender = Sender("dctcp", window=64)
    sends(sender, 64)
    for window in (32, 16, 8, 4, 2, 1, 1):
        packets = sender.outstanding
        acks(sender, 1, mark=1)
        assert sender.window == window
        sends(sender, window)
        acks(sender, packets - 1, mark=1)
        assert sender.window == window, "one cut per window"
    assert sender.row.alpha == 1


def test_alpha_is_the_average_share_of_marks():
    """Equation 1 with F = 1/4 in each window of eight."""
    sender = Sender("dctcp", window=8)
    sends(sender, 9)
    acks(sender, 1)
    alpha = 15 / 16
    for _ in range(5):
        assert sender.row.alpha == near(alpha)
        acks(sender, 2, mark=1)
        sends(sender, 9)
        acks(sender, 7)
        alpha = alpha * 15 / 16 + 2 / 9 / 16


def test_few_marks_cut_little_and_then_one_packet_per_round_trip_is_added():
    """Paper, equation 2: cwnd (1 - alpha / 2); it grows from the first acknowledged packet sent after the cut on."""
    sender = Sender("dctcp", window=100, initial_alpha=0.2, g=0)
    sends(sender, 100)
    acks(sender, 1, mark=1)
    assert sender.row.cwnd_packets == near(90)
    sends(sender, 90)
    acks(sender, 99)
    assert sender.row.cwnd_packets == near(90)
    acks(sender, 1)
    assert sender.row.cwnd_packets == near(90 + 1 / 90)
    acks(sender, 89)
    assert sender.row.cwnd_packets == pytest.approx(91, rel=1e-4)
    assert sender.window == 90


def test_losses_are_those_of_tcp():
    sender = Sender("dctcp", window=64)
    sends(sender, 64)
    sender.loss(0, s.LOSS_NAK)
    sender.loss(0, s.LOSS_TRIMMED)
    assert sender.window == 32, "once per window"
    sender.loss(0, s.LOSS_TIMEOUT)
    sender.loss(0, s.LOSS_TIMEOUT)
    assert (sender.window, sender.row.ssthresh_packets) == (1, 32)
    windows = []
    for _ in range(6):
        packets = sender.window
        acks(sender, packets)
        windows.append(sender.window)
    assert windows == [2, 4, 8, 16, 32, 32], "slow start, then no growth before what was sent is acknowledged"


def test_the_least_window_is_kept_but_never_raises_it():
    sender = Sender("dctcp", window=3, min_window_packets=2)
    sends(sender, 3)
    acks(sender, 1, mark=1)
    assert sender.window == 2
    sender.loss(0, s.LOSS_TIMEOUT)
    sends(sender, 4)
    acks(sender, sender.outstanding)
    sender = Sender("dctcp", window=1, min_window_packets=2)
    sends(sender, 1)
    acks(sender, 1, mark=1)
    assert sender.window == 1


CHOICES = st.fixed_dictionaries(
    {
        "g": st.sampled_from([1 / 16, 0.4]),
        "initial_alpha": st.sampled_from([0, 1]),
        "increase_packets": st.sampled_from([1, 2.5]),
        "min_window_packets": st.sampled_from([1, 2]),
    }
)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sent", "sent", "ack", "ack", "cnp", "loss"]),
        st.integers(1, 20),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([s.LOSS_NAK, s.LOSS_TIMEOUT, s.LOSS_TRIMMED]),
        st.booleans(),
    ),
    min_size=5,
    max_size=100,
)


@bounded(400)
@given(CHOICES, st.sampled_from([1, 3, 16, 200]), EVENTS)
def test_kernel_and_model_agree(choices, window, events):
    sender = Sender("dctcp", window=window, **choices)
    model = naive.Dctcp(window, **DEFAULTS | choices)
    for now, (what, packets, mark, kind, often) in nonempty(enumerate(events)):
        if what == "sent":
            for _ in range(packets):
                again = sender.next < sender.sent_max
                sender.sent(now)
                if not again:
                    model.sent(now, 1000)
        elif what == "ack":
            for newly in [1] * min(packets, sender.outstanding) if often else [min(packets, sender.outstanding)]:
                sender.ack(now, newly, mark, 1000)
                model.ack(now, newly, mark, 1000)
        elif what == "cnp":
            sender.cnp(now)
        else:
            sender.loss(now, kind)
            model.loss(now, kind)
        assert sender.row.cwnd_packets == near(model.cwnd)
        assert (sender.window, sender.psb) == (model.window, model.psb)
    assert sender.others_untouched
