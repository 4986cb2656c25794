"""One answer with faults, however the fabric is divided and whoever runs it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.pdes import LinkFault, NpuFault, RunError, Settings, build_world, run
from nadi.pdes.construction.settings import SharedBuffer
from nadi.pdes.parallel import Layout, Processes, run_divided
from nadi.topologies import build
from nadi.workload import collective_program
from tests.budgets import bounded
from tests.failures.common import cable, faults_of, of_switch
from tests.parallel.fingerprint import fingerprint
from tests.parallel.random_runs import divided
from tests.pdes.test_lps import fullest
from tests.plain_python import plain_python

US = 1_000_000


@st.composite
def schedules(draw, graph, settings):
    """Faults at any time, some in the same cell, some that never end."""
    kinds = ["added_latency_ps", "error_rate"]
    kinds += ["rate_bps"] if not settings.cut_through else []
    kinds += ["down", "down", "switch"] if graph.routing.goes_around else []
    faults, npus, taken = [], [], set()
    time = st.integers(0, 40 * US)
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(kinds))
        at = draw(time)
        until = at + 1 + draw(time)
        number = draw(st.integers(0, graph.links - 1))
        links = (number & ~1, number | 1)
        if kind == "switch":
            links = of_switch(graph, draw(st.integers(graph.npus, graph.nodes - 1)))
        elif (kind, links) in taken:
            continue
        taken.add((kind, links))
        values = {
            "added_latency_ps": st.integers(1, 9 * US),
            "error_rate": st.sampled_from([0.01, 0.2]),
            "rate_bps": st.sampled_from([10**9, 30 * 10**9, 10**12]),
        }
        value = {kind: draw(values[kind])} if kind in values else {"down": True}
        if "down" not in value and draw(st.booleans()):
            until = 1 << 62
        faults.append(LinkFault(links, at, until, **value))
    for npu in draw(st.sets(st.integers(0, graph.npus - 1), max_size=2)):
        at = draw(time)
        npus.append(NpuFault(npu, at, at + 1 + draw(time), draw(st.sampled_from([1.0, 1.5, 3.14]))))
    return faults_of(graph, faults, npus, draw(st.sampled_from([0, 3 * US, 30 * US])))


@st.composite
def damaged(draw):
    graph, program, settings, owner = draw(divided()).parts()
    if draw(st.booleans()):
        settings = replace(
            settings, cut_through=False, queue_limit_bytes=0, switch=SharedBuffer(pfc=draw(st.booleans()))
        )
    settings = replace(settings, rto_ps=60 * US, max_retries=60)
    return graph, program, replace(settings, faults=draw(schedules(graph, settings))), owner


def outcome(*parts):
    try:
        return fingerprint(run(build_world(*parts)))
    except RunError as error:
        return "defect" if "defect" in str(error) else "failed"


@pytest.mark.slow
@bounded(200)
@given(damaged())
def test_any_division_gives_the_same(drawn):
    graph, program, settings, owner = drawn
    wanted = outcome(graph, program, settings)
    assert wanted != "defect"
    assert outcome(graph, program, settings, owner) == wanted


@bounded(40)
@given(damaged())
def test_outboxes_have_room_for_the_fastest_rate(drawn):
    *parts, owner = drawn
    try:
        most, rooms = fullest(parts, owner)
    except RunError:
        return
    assert all(most[pair] <= room for pair, room in rooms.items())


def case(switch=None):
    graph = build("leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=500ns")
    faults = faults_of(
        graph,
        [
            LinkFault(of_switch(graph, 9), 5 * US, 40 * US, down=True),
            LinkFault(cable(graph, 0, 6), 2 * US, 9 * US, rate_bps=20 * 10**9),
            LinkFault(cable(graph, 0, 6), 3 * US, 8 * US, added_latency_ps=2 * US),
            LinkFault(cable(graph, 7, 10), 0, error_rate=0.05),
        ],
        [NpuFault(1, 0, 7 * US, 2.0)],
        4 * US,
    )
    return (
        graph,
        collective_program("all-to-all", 6, 240_000),
        Settings(faults=faults, switch=switch, rto_ps=30 * US, max_retries=99),
    )


@pytest.mark.parametrize(
    "switch", [None, SharedBuffer(buffer_bytes=1_000_000), SharedBuffer(pfc=False, buffer_bytes=50_000)]
)
def test_threads_and_processes_give_the_same(switch):
    parts = case(switch)
    wanted = run(build_world(*parts))
    assert wanted.counters["lost_packets"] > 0
    nodes = parts[0].nodes
    for owner in (np.arange(nodes) % 2, np.arange(nodes) * 3 // nodes):
        assert fingerprint(run(build_world(*parts, owner), threads=2)) == fingerprint(wanted)
    graph, program, settings = parts
    layout = Layout(graph, settings, np.arange(nodes) % 2)
    assert run_divided(layout, program, settings, Processes(2)).digest == wanted.digest


def test_plain_python_gives_the_same():
    code = (
        "from tests.failures.test_partitions import *\n"
        "print(*[run(build_world(*case(s))).digest for s in (None, SharedBuffer(buffer_bytes=1_000_000))])"
    )
    found = plain_python("-c", code).split()
    wanted = [run(build_world(*case(switch))).digest for switch in (None, SharedBuffer(buffer_bytes=1_000_000))]
    assert found == wanted
