"""Collectives whose lanes see the group in other orders and in lines: to the picosecond, on an idle network."""

from types import SimpleNamespace

import numpy as np
import pytest

from nadi import topologies
from nadi.et import CollectiveCommType, coll_node, metadata, table_of
from nadi.pdes import RunError, Settings
from nadi.simulation.closed_forms.isolated import IsolatedCollectives
from nadi.workload import build_program, collective_program, collectives
from nadi.workload.collectives.plans.plan import Lane, everyone_alike, lines
from tests.closed_forms import form_of_all
from tests.fidelity import test_closed_forms as whole
from tests.pdes import compare
from tests.scenarios.closed_forms import Hop, steps_ps
from tests.scenarios.running import simulate
from tests.workload.handmade import grid, two_rings

G400 = 400 * 10**9
ONE_LINK = Hop(1, 500_000)
ROUNDED = 1e-12


@pytest.fixture
def program(monkeypatch):
    def made(plans, size_bytes):
        module = SimpleNamespace(
            NAME="fixed",
            KINDS=("all-reduce",),
            plan=lambda *_: plans,
            closed_form=lambda _, n, size, latency, rate: 2 * (n - 1) * (latency + size / n / 2 / rate * 1e12),
        )
        monkeypatch.setattr(collectives, "known_algorithms", lambda: {"fixed": module})
        return collective_program("all-reduce", plans.members, size_bytes, "fixed")

    return made


MESSAGES = [64, 4096, 16 * 4096]


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("npus", [3, 4, 8])
def test_two_rings_in_opposite_orders(program, npus, message):
    """Each sends one half one way round. The acknowledgement of the other half goes before its next data or after it,
    whichever has come first.
    """
    size_bytes = 2 * npus * message
    results = simulate(f"ring:npus={npus}", program(two_rings(npus), size_bytes))
    forms_ps = [steps_ps(2 * (npus - 1), message, ONE_LINK, G400, shared=shared) for shared in (False, True)]
    assert forms_ps[0] <= results.finish_time_ps <= forms_ps[1]
    assert results.flows["bytes"].sum() == 2 * (npus - 1) * size_bytes
    assert np.unique((results.flows["dst"] - results.flows["src"]) % npus).tolist() == [1, npus - 1]


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("npus", [5, 7])
@pytest.mark.parametrize("wire", [1, 2])
def test_two_rings_that_do_not_meet(program, npus, message, wire):
    """To the next and to the next but one, over links of their own; acknowledgements come back over others."""
    size_bytes = 2 * npus * message
    made = program(two_rings(npus, stride=2, wire=(wire, 1)), size_bytes)
    results = simulate(f"fully-connected:npus={npus}", made)
    form_ps = steps_ps(2 * (npus - 1), wire * message, ONE_LINK, G400, shared=False)
    assert results.finish_time_ps == pytest.approx(form_ps, rel=ROUNDED)
    assert results.flows["bytes"].sum() == wire * 2 * (npus - 1) * size_bytes
    assert np.unique((results.flows["dst"] - results.flows["src"]) % npus).tolist() == [1, 2]


@pytest.mark.parametrize("message", [64, 4096, 8 * 4096])
@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (3, 5), (4, 3)])
def test_a_grid(program, rows, columns, message):
    """Rings along rows, then along columns on the part that is left, then along rows: their forms in a sum."""
    size_bytes = rows * columns * message
    results = simulate(f"torus:sizes={columns}x{rows}", program(grid(rows, columns), size_bytes))
    form_ps = 2 * steps_ps(columns - 1, rows * message, ONE_LINK, G400, shared=False)
    form_ps += steps_ps(2 * (rows - 1), message, ONE_LINK, G400, shared=False)
    assert results.finish_time_ps == pytest.approx(form_ps, rel=ROUNDED)


@pytest.mark.parametrize("size_bytes", [7, 1000, 100_003])
@pytest.mark.parametrize("plans", [two_rings(4), two_rings(5, wire=(16, 15)), grid(2, 3), grid(4, 2)])
@pytest.mark.parametrize("spec", ["switch", "ring"])
def test_the_naive_model_agrees(program, plans, size_bytes, spec):
    network = topologies.build(f"{spec}:npus={plans.members},rate=100Gbps")
    compare.check(network, program(plans, size_bytes), Settings(mtu_bytes=512))


def test_a_wire_factor_rounds_each_message_up(program):
    """Of 1,000 bytes in ten pieces of 100 each message is ceil(100 x 16 / 15) = 107."""
    results = simulate("switch:npus=5", program(two_rings(5, wire=(16, 15)), 1000))
    assert np.unique(results.flows["bytes"]).tolist() == [107]


def test_views_of_the_second_schedule_are_its_own(program):
    program(grid(2, 3), 1)
    plans = {6: grid(2, 3), 4: two_rings(4)}
    collectives.known_algorithms()["fixed"].plan = lambda _, members: plans[members]
    nodes = [coll_node(0, "a", CollectiveCommType.ALL_REDUCE, 6000)]
    more = [*nodes, coll_node(1, "b", CollectiveCommType.ALL_REDUCE, 999, pg_name="four")]
    tables = [table_of(metadata(), nodes), table_of(metadata(), more)]
    made = build_program(tables, [1, 1, 1, 1, 0, 0], 6, {"four": (3, 1, 0, 2)})
    assert made.schedules.view_base.tolist() == [0, 2]
    compare.check(topologies.build("torus:sizes=3x2"), made, Settings(mtu_bytes=512))


@pytest.mark.parametrize("wire", [(1, 1), (2, 1)])
def test_what_the_report_shows_as_closed_form(program, wire):
    network, made = topologies.build("ring:npus=8"), program(two_rings(8, wire=wire), 16 * 64 * 4096)
    results = simulate(network, made)
    formula = form_of_all(network, made, "all-reduce", "fixed", isolated=IsolatedCollectives(0))
    assert results.finish_time_ps == pytest.approx(formula.time_ps, rel=0.03)


def test_who_waits_for_whom_is_told_along_the_line(program):
    lane = Lane(view=0).step(receive_from=1)
    made = program(everyone_alike(4, 1, [lane], views=[lines([[0, 2], [1, 3]])]), 100)
    with pytest.raises(RunError, match=r"npu 0 row 0: collective 0 of group 0, lane 0 step 0, waits for npu 2"):
        simulate("switch:npus=4", made)


def later(plans, latencies_ps, launch_ps):
    """The same plans, with a latency of each lane."""
    attributes = tuple(
        tuple(a._replace(latency_ps=latency) for a, latency in zip(own, latencies_ps, strict=True))
        for own in (plans.attributes_of(row) for row in range(len(plans.plans)))
    )
    return plans._replace(attributes=attributes, launch_ps=launch_ps)


@pytest.mark.parametrize("latencies_ps", [(0, 0), (700_000, 700_000), (1_900_000, 300_000), (0, 2_500_000)])
@pytest.mark.parametrize("launch_ps", [0, 5_000_000])
@pytest.mark.parametrize("fidelity", ["packet", *whole.KINDS])
def test_a_protocol_takes_its_time_before_each_send(program, latencies_ps, launch_ps, fidelity):
    """The slower ring takes its latency once a step; the launch comes once."""
    npus, message = 5, 4096
    size_bytes = 2 * npus * message
    made = program(later(two_rings(npus, stride=2), latencies_ps, launch_ps), size_bytes)
    spec = f"fully-connected:npus={npus}"
    steps = 2 * (npus - 1)
    if fidelity == "packet":
        results = simulate(spec, made)
        form_ps = steps_ps(steps, message, ONE_LINK, G400, shared=False)
    else:
        results = whole.simulate(spec, made, fidelity)
        form_ps = steps * (500_000 + message * 8 * 10**12 / G400)
    assert results.finish_time_ps == pytest.approx(form_ps + steps * max(latencies_ps) + launch_ps, rel=ROUNDED)
