"""What a run that cannot go on says of the links and switches that are down."""

import numpy as np
import pytest

from pdes import LinkFault, RunError, Settings, build_world, run
from pdes.harvest.stall import down_places
from tests.failures.common import cable, faults_of, of_switch
from topologies import build
from workload import pairs_program

SPEC = "leaf-spine:leaves=2,hosts_per_leaf=2,spines=2,uplinks=2,rate=100Gbps,delay=1us"
"""NPUs 0 to 3, leaves 4 and 5, spines 6 and 7."""
LASTING = {"rto_ps": 20_000_000, "max_retries": 2}


def fails(links, owner=None, **more):
    """The line of a run with these faults in which NPUs 0 and 2 send to each other."""
    graph = build(SPEC)
    faults = faults_of(graph, [at if isinstance(at, LinkFault) else LinkFault(at, 0, down=True) for at in links])
    program = pairs_program(np.array([2, -1, 0, -1]), 1 << 20)
    sim = build_world(graph, program, Settings(faults=faults, **LASTING, **more), owner)
    with pytest.raises(RunError) as caught:
        run(sim)
    return str(caught.value), sim


def test_links_by_their_ends_and_a_switch_as_one():
    graph = build(SPEC)
    line, _ = fails([cable(graph, 4, 6), cable(graph, 0, 4), of_switch(graph, 7)])
    assert line.endswith("an rto that is too short; down by faults: switch 7, link 0-4, link 4-6")


def test_only_what_is_down_at_that_time():
    graph = build(SPEC)
    back = LinkFault(cable(graph, 4, 6), 0, 1_000_000, down=True)
    slow = LinkFault(cable(graph, 4, 7), 0, rate_bps=10**10)
    late = LinkFault(cable(graph, 5, 7), 10**12, down=True)
    line, _ = fails([back, slow, late, cable(graph, 5, 6)[2:], cable(graph, 2, 5)])
    assert line.endswith("; down by faults: link 2-5, link 5-6 cable 1")


def test_a_part_knows_its_own_links():
    graph = build(SPEC)
    owner = np.array([0, 0, 1, 1, 0, 1, 0, 1])
    _, sim = fails([cable(graph, 0, 4), cable(graph, 5, 6)], owner)
    numbers = [f"link {number}" for number in cable(graph, 5, 6) if number % 2 == 0]
    assert len(numbers) == 2
    assert down_places(sim.lps[0]) == ["link 0-4", *numbers]


def test_nothing_is_down():
    graph = build(SPEC)
    line, _ = fails([LinkFault(cable(graph, 0, 4), 0, error_rate=0.999)])
    assert "unacknowledged" in line
    assert "down" not in line
