import pytest

from nadi.workload import KINDS, WorkloadError, closed_form, collectives, default_algorithm
from nadi.workload.collectives.schedules.oracle import check
from nadi.workload.collectives.schedules.packed import ScheduleSet, pack
from tests.samples import sampled
from tests.workload.alpha_beta import Network
from tests.workload.plain import plain_algorithms

CASES = [(kind, name) for kind in KINDS for name in plain_algorithms(kind)]
BOUNDED = {name for name, module in collectives.known_algorithms().items() if getattr(module, "LOWER_BOUND", False)}


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_does_what_the_kind_promises(kind, name):
    schedules = pack([collectives.plan(kind, name, n) for n in range(1, 18)])
    for index in range(17):
        for seed in range(3):
            check(kind, schedules, index, seed)


@sampled({"kind, name": CASES, "members": [2, 3, 4, 7, 8, 16]})
def test_closed_form_is_what_an_idle_network_takes(kind, name, members):
    schedules = pack([collectives.plan(kind, name, members)])
    size = 0 if kind == "barrier" else 1 << 20
    # a step's latency is longer than the time of its chunk, or much shorter
    for latency, ps_per_byte in ((1_000_000.0, 20.0), (10.0, 20.0)):
        simulated = Network(schedules, 0, size, latency, ps_per_byte).finish_time()
        closed = closed_form(kind, name, members, size, latency, 1e12 / ps_per_byte)
        assert closed <= simulated * (1 + 1e-9)
        if name not in BOUNDED:
            assert closed == pytest.approx(simulated, rel=1e-9)


def test_every_kind_has_a_default():
    defaults = {kind: default_algorithm(kind) for kind in KINDS}
    rings = ("all-reduce", "reduce", "all-gather", "broadcast", "reduce-scatter")
    stars = ("gather", "scatter", "all-to-all")
    assert defaults == {**dict.fromkeys(rings, "ring"), **dict.fromkeys(stars, "direct"), "barrier": "dissemination"}


def test_unknown_names_list_the_known_ones():
    with pytest.raises(WorkloadError, match=r"^collective 'allreduce': expected one of all-reduce, reduce, all-gather"):
        ScheduleSet().add("allreduce", "ring", 4)
    with pytest.raises(WorkloadError, match=r"^algorithm 'tree' for all-reduce: expected one of direct, .*, ring$"):
        ScheduleSet().add("all-reduce", "tree", 4)
    with pytest.raises(
        WorkloadError, match=r"^algorithm 'ring' for barrier: expected one of dissemination, in-network"
    ):
        ScheduleSet().add("barrier", "ring", 1)
    with pytest.raises(WorkloadError, match=r"^all-reduce of 0 members: expected at least 1$"):
        ScheduleSet().add("all-reduce", "ring", 0)


def test_closed_forms_of_one_member_are_zero():
    assert closed_form("all-reduce", "ring", 1, 100, 5, 1) == 0
