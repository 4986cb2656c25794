"""Algorithms with other than their usual parameters, checked as those with them are."""

import pytest

from nadi.workload import KINDS, WorkloadError, algorithms_of, closed_form, collectives
from nadi.workload.collectives.schedules.oracle import check
from nadi.workload.collectives.schedules.packed import pack
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.samples import sampled
from tests.workload.alpha_beta import Network

SPECS = (
    "ring:channels=3",
    "ring:bidirectional=true",
    "ring:channels=2,bidirectional=true",
    "direct:window=1",
    "direct:window=2",
    "direct:window=5",
    "pat:aggregation=1",
    "pat:aggregation=3",
)
TREES = [(kind, chunks) for kind in ("all-reduce", "broadcast", "reduce") for chunks in (1, 3)]
STARS = ("broadcast", "reduce", "gather", "scatter")


def lacks(kind, spec):
    return kind in STARS and ("bidirectional" in spec or "window" in spec)


CASES = [(k, s) for k in KINDS for s in SPECS if s.partition(":")[0] in algorithms_of(k) and not lacks(k, s)]


@pytest.mark.parametrize(("kind", "spec"), CASES)
def test_does_what_the_kind_promises(kind, spec):
    schedules = pack([collectives.plan(kind, spec, n) for n in range(1, 12)])
    for index in range(11):
        check(kind, schedules, index, seed=index)


@sampled({"kind, spec": CASES, "members": [2, 3, 6, 8, 13]})
def test_closed_form_is_what_an_idle_network_takes(kind, spec, members):
    schedules = pack([collectives.plan(kind, spec, members)])
    for latency in (0.5e6, 3e6, 1e8):
        simulated = Network(schedules, 0, 1 << 20, latency, 20.0).finish_time()
        assert closed_form(kind, spec, members, 1 << 20, latency, 5e10) == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize(("kind", "chunks"), TREES)
def test_two_trees_do_what_they_promise_and_keep_to_their_bound(kind, chunks):
    """A broadcast waits for a chunk of the other tree once a level at most, and of one chunk each for none."""
    spec = f"double-binary-tree:chunks={chunks}"
    schedules = pack([collectives.plan(kind, spec, n) for n in range(2, 18)])
    for index, members in enumerate(range(2, 18)):
        check(kind, schedules, index, seed=index)
        for latency in (10.0, 1e6, 3e7):
            simulated = Network(schedules, index, 1 << 20, latency, 20.0).finish_time()
            closed = closed_form(kind, spec, members, 1 << 20, latency, 5e10)
            assert closed <= simulated * (1 + 1e-9)
            waits = (members - 1).bit_length() * (1 << 20) * 20 / (2 * chunks)
            assert kind != "broadcast" or simulated <= closed + waits
            assert (kind, chunks) != ("broadcast", 1) or closed == pytest.approx(simulated, rel=1e-9)


def test_two_trees_send_a_large_buffer_once():
    """A tree of half the buffer and one of the other: S/B, where a binomial tree takes log2(n) S/B."""
    schedules = pack([collectives.plan("broadcast", "double-binary-tree:chunks=256", 17)])
    assert Network(schedules, 0, 1 << 20, 10.0, 20.0).finish_time() < 1.03 * 20 * (1 << 20)


@pytest.mark.parametrize("members", range(2, 40))
def test_nobody_but_the_root_passes_on_data_of_both_trees(members):
    """But where members 1 .. n-1 are an odd number: then one does."""
    plans = collectives.plan("broadcast", "double-binary-tree", members)
    both = 0
    for me, lanes in enumerate(plans.plans):
        sends = [any(step.send_peer >= 0 for lane in tree for step in lane) for tree in (lanes[:6], lanes[6:])]
        both += all(sends) and me > 0
    assert both <= (members - 1) % 2


@pytest.mark.parametrize(
    ("usual", "named"),
    [("ring", "ring:channels=1,bidirectional=false"), ("direct", "direct:window=0"), ("pat", "pat:aggregation=0")],
)
def test_the_usual_parameters_change_nothing(usual, named):
    for kind in nonempty(KINDS):
        if usual in algorithms_of(kind):
            assert collectives.plan(kind, usual, 6) == collectives.plan(kind, named, 6)


@pytest.mark.parametrize("members", range(2, 18))
@pytest.mark.parametrize("kind", ["all-to-all", "reduce-scatter"])
def test_a_window_of_one_is_pairwise(kind, members):
    assert collectives.plan(kind, "direct:window=1", members) == collectives.plan(kind, "pairwise", members)


def test_rings_both_ways_use_both_neighbours():
    plans = collectives.plan("all-reduce", "ring:bidirectional=true", 5)
    assert [{step.send_peer for step in lane} for lane in plans.plans[0]] == [{1}, {4}]


@pytest.mark.parametrize(
    ("kind", "spec", "text"),
    [
        (
            "broadcast",
            "ring:bidirectional=true",
            "algorithm 'ring:bidirectional=true' for broadcast: expected false, as it is a chain",
        ),
        ("gather", "direct:window=2", "algorithm 'direct:window=2' for gather: expected 0, as no sender receives"),
    ],
)
def test_what_a_kind_has_not_is_refused(kind, spec, text):
    assert refused(WorkloadError, collectives.plan, kind, spec, 4) == text
