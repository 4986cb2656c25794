"""Collectives over several dimensions: what they do, how large their tables are, what they take on an idle network."""

import math
from itertools import product

import numpy as np
import pytest

from nadi.workload import CollectiveSettings, WorkloadError, closed_form, collectives
from nadi.workload.collectives.grid.phases import pipelined_ps
from nadi.workload.collectives.schedules.checks import checked
from nadi.workload.collectives.schedules.oracle import OracleError, check
from nadi.workload.collectives.schedules.packed import ScheduleSet, pack
from nadi.workload.collectives.schedules.sends import buffers, unpack
from nadi.workload.shape import GroupShape
from tests.nonempty import nonempty
from tests.refusals import refused
from tests.samples import sampled
from tests.workload.alpha_beta import Network

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all")
GRIDS = [(2, 2), (2, 3), (4, 4), (2, 3, 4), (3, 5), (5,)]
G = 10**9


def shape(grid, rates=None, latencies=None, per_host=None):
    """A whole grid; hosts are its lines along the first dimension unless told otherwise."""
    n, per_host = math.prod(grid), per_host or grid[0]
    host, place = (tuple(column.tolist()) for column in divmod(np.arange(n), per_host))
    rates, latencies = rates or tuple(100 * G // (d + 1) for d in range(len(grid))), latencies or (500_000,) * len(grid)
    return GroupShape(n, grid, rates, latencies, host, place)


def made(kind, spec, of_shape, size_bytes=1 << 20):
    schedules = ScheduleSet()
    assert schedules.add(kind, spec, of_shape.members, of_shape, size_bytes) == 0
    return schedules.pack()


@sampled(
    {
        "spec": [
            "grid",
            "grid:splits=3",
            "grid:order=bandwidth-aware,splits=2",
            "grid:order=whole,splits=2",
            "grid:algorithms=direct,ring_below=1000",
            "grid:order=themis,splits=4",
            "grid:algorithms=direct,splits=2",
            "hierarchical",
            "hierarchical:splits=2",
        ],
        "kind": KINDS,
        "grid": GRIDS,
    }
)
def test_does_what_the_kind_promises(grid, kind, spec):
    schedules = made(kind, spec, shape(grid))
    for seed in range(2):
        check(kind, schedules, 0, seed)


def test_algorithms_may_differ_by_dimension():
    for kind in nonempty(KINDS[:3]):
        schedules = made(kind, "grid:algorithms=direct/ring/direct,splits=2", shape((2, 3, 2)))
        check(kind, schedules, 0)
        direct, ring = 2 + 1, 1  # lanes; one more waits for those of direct
        once = 2 * direct + ring
        assert len(schedules.lane_gate) == 2 * (once + (4 - 2 + direct + ring if kind == "all-reduce" else 0))


def test_hosts_of_one_member_take_the_algorithm_between_hosts():
    fabric = shape((4,), per_host=1)
    lanes = made("all-reduce", "hierarchical:algorithms=ring/direct", fabric).lane_gate
    assert lanes.tolist() == [1] * 5
    assert made("all-reduce", "hierarchical:algorithms=ring/direct", shape((4,))).lane_gate.tolist() == [0]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_wrong_arrangement_is_found(kind):
    fabric = shape((2, 3))
    plans = collectives.plan(kind, "grid:splits=2", 6, fabric)
    check(kind, pack([plans]), 0)
    for row, arrangement in enumerate(plans.arrangements):
        wrong = [*plans.arrangements]
        wrong[row] = np.roll(arrangement, 1)
        with pytest.raises(OracleError):
            check(kind, pack([plans._replace(arrangements=tuple(wrong))]), 0)
    with pytest.raises(WorkloadError, match=r"^x: an arrangement of 12 pieces, expected each once$"):
        checked(plans._replace(arrangements=(np.zeros(12, np.int32),) * len(plans.arrangements)), "x")
    with pytest.raises(WorkloadError, match=r"^x: a lane with arrangement 0, expected one of 0$"):
        checked(plans._replace(arrangements=()), "x")


@pytest.mark.parametrize("kind", KINDS)
def test_algorithms_with_a_plan_for_each_member(kind, monkeypatch):
    """Plans that are not relative are laid along the lines one by one, and promise the same."""
    every = collectives.known_algorithms()
    name = "direct" if kind == "all-to-all" else "ring"

    class Absolute:
        NAME, KINDS = "absolute", KINDS

        @staticmethod
        def plan(of_kind, members):
            plans = every[name].plan(of_kind, members)
            own = unpack_alone(plans)
            return plans._replace(relative=False, plans=own, attributes=())

    monkeypatch.setattr(collectives, "known_algorithms", lambda: every | {"absolute": Absolute})
    for grid in ((2, 3), (2, 2, 3)):
        for splits in (1, 2):
            schedules = made(kind, f"grid:algorithms=absolute,splits={splits}", shape(grid))
            assert not schedules.relative[0]
            check(kind, schedules, 0)
            mixed = made(kind, f"grid:algorithms=absolute/{name}/absolute,splits={splits}", shape(grid))
            check(kind, mixed, 0)


def unpack_alone(plans):
    """Absolute steps of each member."""
    return tuple(tuple(tuple(lane) for lane in own) for own in unpack(pack([plans]), 0))


@pytest.mark.parametrize("kind", KINDS)
def test_every_member_sends_what_the_bounds_say(kind):
    """Of extents e: (e-1)/e of what is left, dimension after dimension; the whole buffer each time for all-to-all."""
    size = 5 * 7 * 24 * 4096
    schedules = made(kind, "grid:splits=5", shape((2, 3, 4)), size)
    lanes, of_lanes = unpack(schedules, 0), buffers(schedules, 0)
    sent = [
        sum(
            buffer.bytes(step.send_chunk, step.send_count, size)
            for lane, buffer in zip(own, of_own, strict=True)
            for step in lane
            if step.send_peer >= 0
        )
        for own, of_own in zip(lanes, of_lanes, strict=True)
    ]
    whole = sum((e - 1) * size // e for e in (2, 3, 4)) if kind == "all-to-all" else 23 * size // 24
    assert set(sent) == {2 * whole if kind == "all-reduce" else whole}


@pytest.mark.parametrize("kind", KINDS)
def test_messages_go_along_lines_only(kind):
    schedules = made(kind, "grid:order=themis,splits=3", shape((3, 4)))
    for member, own in nonempty(enumerate(unpack(schedules, 0))):
        peers = {step.send_peer for lane in own for step in lane} - {-1}
        assert all((peer % 3 == member % 3) != (peer // 3 == member // 3) for peer in nonempty(peers))


def test_tables_stay_small():
    schedules = ScheduleSet()
    large = shape((128, 128))
    for kind in KINDS:
        schedules.add(kind, "grid:splits=16", large.members, large, 1 << 30)
    assert sum(column.nbytes for column in schedules.pack()) < 16 << 20


ALPHA_BETA = [((4, 4), (1_000_003.0, 317.0)), ((2, 3, 4), (70_001.0, 9_001.0, 400_009.0))]
PS_PER_BYTE = (80.0, 161.0, 37.0)


def of_network(grid, latencies):
    """The shape whose rates and latencies are those of an alpha-beta network; rates in whole bits per second."""
    rates = tuple(round(8e12 / PS_PER_BYTE[d]) for d in range(len(grid)))
    return shape(grid, rates, latencies), [(a, 8e12 / rate) for a, rate in zip(latencies, rates, strict=True)]


@sampled({"algorithms": ["default", "direct"], "splits": [1, 2, 5], "kind": KINDS, "grid, latencies": ALPHA_BETA})
def test_closed_form_is_what_an_idle_network_takes(grid, latencies, kind, splits, algorithms):
    size = 5 * math.prod(grid) * 1024
    fabric, dimensions = of_network(grid, latencies)
    for order in ("baseline", "bandwidth-aware", "themis", "whole"):
        spec = f"grid:algorithms={algorithms},splits={splits},order={order}"
        simulated = Network(made(kind, spec, fabric, size), 0, size, dimensions=dimensions, tokens=True).finish_time()
        form = closed_form(kind, spec, fabric.members, size, 0.0, 0.0, fabric)
        assert form == pytest.approx(simulated, rel=1e-9), order


def test_equal_streams_take_the_longest_phase_for_each_but_the_first():
    for phases, splits in product([(3.0, 5.0, 2.0), (1.0, 1.0), (7.0,)], [1, 2, 9]):
        streams = [list(enumerate(phases))] * splits
        assert pipelined_ps(streams) == sum(phases) + (splits - 1) * max(phases)


def bound_ps(n, size, rates):
    """All-reduce: 2(n-1)/n of the buffer leaves every member, over all its links."""
    return 2 * (n - 1) / n * size * 8e12 / sum(rates)


@pytest.mark.parametrize(
    ("grid", "rates", "splits", "excess"),
    [((8, 8), (4, 1), 8, 0.05), ((4, 4), (1, 4), 32, 0.1), ((4, 4), (1, 1), 8, 0.01), ((8, 4), (1, 1), 16, 0.05)],
)
def test_themis_comes_close_to_the_sum_of_the_rates(grid, rates, splits, excess):
    """With many splits, and dimensions that do one phase at a time; the baseline's busiest dimension carries more."""
    size, n = 1 << 24, math.prod(grid)
    bps = tuple(rate * 100 * G for rate in rates)
    fabric = shape(grid, bps, (0, 0))
    dimensions = [(0.0, 8e12 / rate) for rate in bps]
    took = {}
    for order in ("baseline", "themis"):
        schedules = made("all-reduce", f"grid:splits={splits},order={order}", fabric, size)
        took[order] = Network(schedules, 0, size, dimensions=dimensions, tokens=True).finish_time()
    bound = bound_ps(n, size, bps)
    first, second = grid
    in_first = 2 * (first - 1) / first * size * 8e12 / bps[0]
    in_second = 2 * (second - 1) / second * size / first * 8e12 / bps[1]
    assert took["baseline"] >= max(in_first, in_second)
    assert max(in_first, in_second) > (1 + 2 * excess) * bound
    assert bound <= took["themis"] * (1 + 1e-9) < (1 + excess) * bound


@pytest.mark.parametrize("ratio", [10, 100])
def test_hierarchical_beats_flat_by_what_the_slow_links_carry(ratio):
    """Hosts of 8 with fast links: a flat ring sends 2(n-1)/n S over the slow ones, the rails 2(h-1)/h S/8 each."""
    hosts, per_host, size = 4, 8, 1 << 24
    rates, n = (ratio * 100 * G, 100 * G), hosts * per_host
    fabric = shape((per_host, hosts), rates, (0, 0))
    form = closed_form("all-reduce", "hierarchical", n, size, 0.0, 0.0, fabric)
    inside, between = (8e12 * size / rate for rate in rates)
    assert form == pytest.approx(2 * 7 / 8 * inside + 2 * 3 / 4 / 8 * between)
    flat = closed_form("all-reduce", "ring", n, size, 0.0, rates[1] / 8)
    assert flat / form == pytest.approx((31 / 32) / (7 / 8 / ratio + 3 / 32))


def test_hosts_count_in_any_order():
    """Members of hosts in turn: the lines inside a host go by the place there."""
    fabric = shape((6,))._replace(host=(0, 1, 0, 1, 0, 1), place=(2, 0, 0, 1, 1, 2))
    schedules = made("all-reduce", "hierarchical", fabric)
    check("all-reduce", schedules, 0)
    peers = [[{s.send_peer for s in lane} - {-1} for lane in own] for own in unpack(schedules, 0)]
    assert peers[0] == [{2}, {5}, {2}]
    assert peers[2] == [{4}, {1}, {4}]


def test_themis_orders_by_what_is_left_to_do():
    """The first split goes as baseline does; the second begins where the first has left less."""
    schedules = made("reduce-scatter", "grid:splits=2,order=themis", shape((4, 4), (100 * G, 100 * G), (0, 0)))
    assert schedules.lane_gate.tolist() == [0, 1, 1, 0]
    assert made("reduce-scatter", "grid:splits=2", shape((4, 4))).lane_gate.tolist() == [0, 1, 0, 1]
    slow_first = shape((4, 4), (100 * G, 200 * G))
    assert made("all-gather", "grid:order=bandwidth-aware", slow_first).lane_gate.tolist() == [0, 1]
    assert made("reduce-scatter", "grid:order=bandwidth-aware", slow_first).lane_gate.tolist() == [1, 0]


def test_sizes_of_a_power_of_two_share_a_schedule():
    schedules, fabric = ScheduleSet(), shape((4, 4))
    spec = "grid:splits=4,order=themis"
    assert [schedules.add("all-reduce", spec, 16, fabric, size) for size in (1000, 1024, 1025, 1)] == [0, 0, 1, 2]
    assert [schedules.add("all-reduce", "grid", 16, fabric, size) for size in (1000, 4000)] == [3, 3]


def test_settings_of_the_run_fill_what_algorithms_leave_open():
    chosen = {"all-reduce": "grid:algorithms=direct", "all-gather": "grid:splits=2", "reduce-scatter": "hierarchical"}
    settings = CollectiveSettings(chosen, splits=8, dimension_order="themis")
    assert settings.algorithm_of("all-reduce") == "grid:algorithms=direct,splits=8,order=themis"
    assert settings.algorithm_of("all-gather") == "grid:splits=2,order=themis"
    assert settings.algorithm_of("reduce-scatter") == "hierarchical:splits=8"
    assert settings.algorithm_of("broadcast") == "ring"
    assert CollectiveSettings(chosen).algorithm_of("reduce-scatter") == "hierarchical"
    with pytest.raises(
        WorkloadError, match=r"order is 'up', expected one of baseline, bandwidth-aware, themis, whole$"
    ):
        CollectiveSettings(chosen, dimension_order="up")


def test_hosts_of_unlike_size_are_refused():
    """tests/records has wrong algorithms of dimensions."""
    unlike = shape((6,))._replace(host=(0, 0, 0, 0, 1, 1))
    line = refused(WorkloadError, made, "all-reduce", "hierarchical", unlike)
    assert line.startswith("hosts of 2 to 4 members: expected equally many")
