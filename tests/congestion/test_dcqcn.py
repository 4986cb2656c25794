import pytest
from hypothesis import given, strategies as st

from tests.budgets import bounded
from tests.congestion.harness import US, Sender, defaults, near
from tests.congestion.naive.dcqcn import Dcqcn
from tests.nonempty import nonempty

PAPER = {
    "alpha_update_interval_ps": 55 * US,
    "rate_decrease_interval_ps": 0,
    "rp_timer_ps": 55 * US,
    "byte_counter_bytes": 10e6,
    "fast_recovery_times": 5,
    "clamp_target_rate": 1,
    "fixed_rate_ai_bps": 40e6,
}
DEFAULTS = defaults("dcqcn")


def test_the_first_cut_halves_and_fast_recovery_halves_the_gap():
    sender = Sender("dcqcn", gbps=40, **PAPER)
    sender.cnp(0)
    assert sender.gbps() == near(20)
    for i in range(1, 6):
        sender.sent(i * 55 * US - 1)
        assert sender.gbps() == near(40 - 20 / 2 ** (i - 1))
        sender.sent(i * 55 * US)
        assert sender.gbps() == near(40 - 20 / 2**i)


def test_alpha_decays_by_1_minus_g_in_each_interval_without_cnp():
    """Second cut after n intervals: alpha = (1 (1 - g) + g) (1 - g)^n."""
    for n in (0, 1, 7, 400):
        sender = Sender("dcqcn", gbps=40, **PAPER | {"rp_timer_ps": 0, "byte_counter_bytes": 0})
        sender.cnp(0)
        sender.cnp((n * 55 + 30) * US)
        assert sender.gbps() == near(20 * (1 - (255 / 256) ** n / 2))


def test_additive_increase_after_fast_recovery_climbs_by_r_ai():
    """Two cuts put the target at 20; five halvings, then the target climbs by 40 Mb/s in each period."""
    sender = Sender("dcqcn", gbps=40, **PAPER)
    sender.cnp(0)
    sender.cnp(1)
    current, target = 10.0, 20.0
    for i in range(1, 12):
        sender.sent(1 + i * 55 * US, 82)
        target += 0.04 * (i > 5)
        current = (current + target) / 2
        assert sender.gbps() == near(current)


def test_hyper_increase_needs_timer_and_byte_counter():
    sender = Sender("dcqcn", gbps=25, rp_timer_ps=US, byte_counter_bytes=1000, fast_recovery_times=1, min_rate_bps=1e6)
    sender.cnp(0)
    sender.cnp(4 * US)  # the target is what four increases have reached
    target, current = float(sender.row.rt_bps), float(sender.row.rc_bps)
    steps = [0, 5e6, 5e6]  # T: fast recovery, then additive while BC = 0
    for i, step in enumerate(steps, 1):
        sender.ack((4 + i) * US)
        target += step
        current = (target + current) / 2
        assert sender.gbps() == near(current / 1e9)
    for step in (5e6, 5e6, 50e6, 50e6):  # BC = 0, 1: additive; beyond F: hyper
        sender.sent(7 * US, 1000)
        target += step
        current = (target + current) / 2
        assert sender.gbps() == near(current / 1e9)


def test_cnps_within_the_decrease_interval_make_one_cut_at_its_end():
    sender = Sender("dcqcn", gbps=100, alpha_update_interval_ps=0)
    sender.cnp(0)
    for now in (1, 2, 3):
        sender.cnp(now * US)
        assert sender.gbps() == near(50)
    sender.sent(4 * US - 1)
    assert sender.gbps() == near(50)
    sender.sent(4 * US)
    assert sender.gbps() == near(25)
    sender.sent(50 * US)
    assert sender.gbps() == near(25)


@pytest.mark.parametrize(("clamp", "wanted"), [(0, (25 + 100) / 2), (1, (25 + 50) / 2)])
def test_clamp_target_rate(clamp, wanted):
    sender = Sender("dcqcn", gbps=100, clamp_target_rate=clamp, alpha_update_interval_ps=0)
    sender.cnp(0)
    sender.cnp(4 * US)
    sender.sent(304 * US)
    assert sender.gbps() == near(wanted)


def test_an_increase_by_bytes_lets_the_next_cut_move_the_target():
    sender = Sender("dcqcn", gbps=100, rp_timer_ps=0, byte_counter_bytes=1000, alpha_update_interval_ps=0)
    sender.cnp(0)
    sender.sent(0, 1000)
    sender.cnp(4 * US)
    assert sender.gbps() == near(37.5)
    sender.sent(4 * US, 1000)
    assert sender.gbps() == near((75 + 37.5) / 2)


def test_a_held_cut_comes_before_an_increase_of_the_same_instant():
    sender = Sender("dcqcn", gbps=100, alpha_update_interval_ps=0, rp_timer_ps=4 * US, rate_decrease_interval_ps=4 * US)
    sender.cnp(0)
    sender.cnp(US)
    sender.sent(4 * US)
    assert sender.gbps() == near(25)
    sender.sent(8 * US)
    assert sender.gbps() == near((100 + 25) / 2), "no increase came before the second cut, so the target stayed"


def test_years_without_traffic_cost_nothing_and_end_at_line_rate():
    for choice in ({}, PAPER, {"rate_ai_bps": 0, "rate_hai_bps": 0}):
        sender = Sender("dcqcn", **choice)
        sender.cnp(0)
        sender.cnp(US)
        sender.cnp(20 * US)
        sender.sent(4 * 10**18)
        if "rate_ai_bps" not in choice:
            assert sender.psb == 0 or sender.gbps() == near(100)


def test_stages_count_while_the_rate_stands_still():
    """At the least rate with the target there too, fast recovery changes nothing; what follows it does."""
    sender = Sender("dcqcn", gbps=25, clamp_target_rate=1, alpha_update_interval_ps=0, fast_recovery_times=5)
    for i in range(40):
        sender.cnp(4 * i * US)
    begun = 4 * 39 * US
    sender.sent(begun + 5 * 300 * US)
    assert sender.gbps() == near(1)
    sender = Sender("dcqcn", gbps=25, clamp_target_rate=1, alpha_update_interval_ps=0, fast_recovery_times=5)
    for i in range(40):
        sender.cnp(4 * i * US)
    sender.sent(begun + 7 * 300 * US)
    current = (1 + 1.005) / 2
    assert sender.gbps() == near((current + 1.055) / 2)


def test_the_timer_keeps_its_beat_over_a_time_in_which_it_changes_nothing():
    """Without additive increase the rate meets the target; then bytes bring hyper increase."""
    sender = Sender("dcqcn", gbps=100, rate_ai_bps=0, byte_counter_bytes=1000, clamp_target_rate=1)
    sender.cnp(0)
    sender.cnp(4 * US)
    begun = 4 * US
    sender.sent(begun + 100 * 300 * US + 70 * US, 2000)
    assert sender.gbps() == near(50)
    sender.sent(begun + 101 * 300 * US - 1, 0)
    assert sender.gbps() == near(50)
    sender.sent(begun + 101 * 300 * US, 0)
    assert sender.gbps() == near(50.1)


CHOICES = st.fixed_dictionaries(
    {
        "rate_ai_bps": st.sampled_from([0, 5e6]),
        "fixed_rate_ai_bps": st.sampled_from([0, 40e6]),
        "fixed_rate_hai_bps": st.sampled_from([0, 1e9]),
        "min_rate_bps": st.sampled_from([1e8, 1e9, 1e12]),
        "g": st.sampled_from([1 / 256, 1 / 16, 0.3]),
        "alpha_update_interval_ps": st.sampled_from([0, US, 55 * US]),
        "rate_decrease_interval_ps": st.sampled_from([0, 4 * US, 50 * US]),
        "timers": st.sampled_from(
            [(300 * US, 0), (55 * US, 10_000), (3 * US, 2500), (0, 4000), (4 * US, 0), (7 * US, 0), (0, 0)]
        ),
        "fast_recovery_times": st.sampled_from([0, 1, 5]),
        "clamp_target_rate": st.sampled_from([0, 1]),
    }
)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sent", "sent", "cnp", "cnp", "ack", "loss"]),
        st.one_of(st.integers(0, 9 * US), st.sampled_from([0, US, 4 * US, 55 * US, 400 * US, 3000 * US])),
        st.integers(82, 9000),
    ),
    min_size=5,
    max_size=80,
)


@bounded(400)
@given(CHOICES, st.sampled_from([25, 100, 400, 77]), EVENTS)
def test_kernel_and_model_agree(choices, gbps, events):
    choices = dict(choices)
    choices["rp_timer_ps"], choices["byte_counter_bytes"] = choices.pop("timers")
    if choices["rp_timer_ps"] == choices["byte_counter_bytes"] == 0:
        choices["fast_recovery_times"] = 5
    sender = Sender("dcqcn", gbps=gbps, **choices)
    model = Dcqcn(8e12 / (8000 / gbps), 64, **DEFAULTS | choices)
    now = 0
    for what, gap, size in nonempty(events):
        now += gap
        if what == "sent":
            sender.sent(now, size)
            model.sent(now, size)
        elif what == "cnp":
            sender.cnp(now)
            model.cnp(now)
        else:
            getattr(sender, what)(now)
            model.ack(now)
        assert sender.psb == near(model.psb)
        assert sender.window == model.window
    assert sender.others_untouched
