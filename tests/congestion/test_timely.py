from hypothesis import given, strategies as st

from tests.budgets import bounded
from tests.congestion.harness import US, Sender, defaults, near
from tests.congestion.naive.timely import Timely
from tests.nonempty import nonempty

DEFAULTS = defaults("timely")
SLOW = {"t_low_ps": 0, "t_high_ps": 10**12, "beta": 0.5, "alpha": 0.5, "min_rtt_ps": 100 * US}


def round_trips(sender, *micros):
    for micro in micros:
        sender.sent(0)
        sender.ack(0, rtt=round(micro * US))
        yield sender.gbps(10)


def test_above_t_high_the_rate_falls_by_the_excess():
    """rate (1 - 0.8 (1 - 500 / 1000)) = 0.6 rate; the gradient plays no part."""
    sender = Sender("timely", gbps=10)
    assert list(round_trips(sender, 1000, 1000, 625)) == [near(6), near(3.6), near(3.6 * (1 - 0.8 * 0.2))]


def test_below_t_low_the_rate_climbs_by_delta():
    sender = Sender("timely", gbps=10)
    found = list(round_trips(sender, 1000, 40, 49.9, 10, 10, 10, 10, 10))
    assert found == [near(6 + 0.01 * i) for i in range(8)], "HAI is for the gradient only"


def test_the_gradient_between_the_thresholds():
    """alpha = beta = 1/2, minRTT 100 us: rtt_diff 0, 20, 10, -5, -2.5 us."""
    sender = Sender("timely", gbps=10, **SLOW)
    found = list(round_trips(sender, 200, 240, 240, 220, 220))
    first = 10 * (1 - 0.5 * 0.2)
    second = first * (1 - 0.5 * 0.1)
    assert found == [10, near(first), near(second), near(second + 0.01), near(second + 0.02)]


def test_hai_after_five_negative_gradients():
    sender = Sender("timely", gbps=10, **SLOW | {"alpha": 1})
    found = list(round_trips(sender, 500, 550, 549, 548, 547, 546, 545, 544, 544, 543))
    start = 10 * (1 - 0.5 * 0.5)
    steps = [0, 1, 2, 3, 4, 9, 14, 15, 16]
    assert found[1:] == [near(start + 0.01 * step) for step in steps]


def test_one_completion_event_per_round_trip():
    sender = Sender("timely", gbps=10)
    for _ in range(8):
        sender.sent(0)
    found = []
    for _ in range(8):
        sender.sent(0)
        sender.ack(0, rtt=1000 * US)
        found.append(sender.gbps(10))
    assert found == [near(6)] * 8, "packet 9, sent after the first acknowledgement, has not been acknowledged"
    sender.ack(0, rtt=-1)
    sender.ack(0)
    assert sender.gbps(10) == near(6), "the round-trip time is not known"
    sender.ack(0, rtt=1000 * US)
    assert sender.gbps(10) == near(3.6)


def test_bounds_and_the_fabric_s_round_trip():
    sender = Sender("timely", gbps=10, base_rtt=10 * US)
    assert list(round_trips(sender, 100, 101, 200)) == [10, near(10 * (1 - 0.8 * 0.875 * 0.1)), near(1)]
    sender = Sender("timely", gbps=10, min_rate_bps=10**12)
    assert list(round_trips(sender, 1000)) == [10], "no faster than the line"


def test_steps_in_the_units_of_other_simulators():
    sender = Sender("timely", gbps=10, RATE_AI=50, RATE_HAI=100, **SLOW | {"alpha": 1})
    found = list(round_trips(sender, 500, 550, 549, 548, 547, 546, 545))
    assert found[1:] == [near(7.5 + step) for step in (0, 0.05, 0.1, 0.15, 0.2, 0.3)]


CHOICES = st.fixed_dictionaries(
    {
        "fixed_delta_bps": st.sampled_from([0, 40e6]),
        "fixed_hai_bps": st.sampled_from([0, 500e6]),
        "hai_events": st.sampled_from([2, 5]),
        "min_rate_bps": st.sampled_from([1e8, 1e9, 1e12]),
        "alpha": st.sampled_from([0.875, 0.02, 0.5]),
        "beta": st.sampled_from([0.8, 0.1]),
        "t_low_ps": st.sampled_from([0, 50 * US]),
        "min_rtt_ps": st.sampled_from([0, 20 * US]),
    }
)
RTT = st.one_of(st.just(-1), st.integers(1, 1000 * US), st.integers(40 * US, 80 * US), st.just(60 * US))
EVENTS = st.lists(
    st.tuples(st.sampled_from(["sent", "ack", "ack", "cnp", "loss"]), st.integers(1, 4), st.integers(0, 1), RTT),
    min_size=5,
    max_size=80,
)


@bounded(400)
@given(CHOICES, st.sampled_from([25, 100, 400, 77]), EVENTS)
def test_kernel_and_model_agree(choices, gbps, events):
    sender = Sender("timely", gbps=gbps, **choices)
    model = Timely(8e12 / (8000 / gbps), 64, 8 * US, **DEFAULTS | choices)
    for now, (what, packets, mark, rtt) in nonempty(enumerate(events)):
        if what == "sent":
            for _ in range(packets):
                sender.sent(now)
                model.sent(now, 1000)
        elif what == "ack":
            acked = min(packets, sender.outstanding)
            sender.ack(now, acked, mark, rtt)
            model.ack(now, acked, mark, rtt)
        elif what == "cnp":
            sender.cnp(now)
        elif sender.outstanding == 0:
            sender.loss(now)
        assert sender.psb == near(model.psb)
        assert sender.window == model.window
    assert sender.others_untouched
