"""What a run that cannot go on says: which NPU has lost its path to which, since when, and what is down."""

import numpy as np
import pytest

from nadi.pdes import LinkFault, RunError, Settings, build_world, run
from nadi.pdes.outcomes.stall import LostPaths
from nadi.topologies import build
from nadi.workload import pairs_program
from tests.failures.common import cable, faults_of, of_switch

SPEC = "leaf-spine:leaves=2,hosts_per_leaf=2,spines=2,uplinks=2,rate=100Gbps,delay=1us"
"""NPUs 0 to 3, leaves 4 and 5, spines 6 and 7."""
GRAPH = build(SPEC)
LASTING = {"rto_ps": 20_000_000, "max_retries": 2}
MS = 10**9


def fails(links, owner=None, **more):
    """The line of a run with these faults in which NPUs 0 and 2 send to each other."""
    program = pairs_program(np.array([2, -1, 0, -1]), 1 << 20)
    settings = Settings(faults=faults_of(GRAPH, links), **LASTING, **more)
    with pytest.raises(RunError) as caught:
        run(build_world(GRAPH, program, settings, owner))
    return str(caught.value)


def down(links, at_ps=0, until_ps=None):
    return LinkFault(links, at_ps, down=True, **({} if until_ps is None else {"until_ps": until_ps}))


def paths(*faults, now_ps=10 * MS):
    return LostPaths(GRAPH, faults_of(GRAPH, faults), now_ps)


@pytest.mark.parametrize("owner", [None, [0, 0, 1, 1, 0, 1, 0, 1]])
@pytest.mark.parametrize(
    ("links", "why"),
    [(cable(GRAPH, 0, 4), "link npu 0 - leaf 0 went down at 0 ms"), (of_switch(GRAPH, 5), "leaf 1 went down at 0 ms")],
)
def test_an_npu_that_has_lost_its_path_says_since_when(owner, links, why):
    line = fails([down(links)], None if owner is None else np.array(owner))
    assert line.startswith(("npu 0 has no path to npu 2 since ", "npu 2 has no path to npu 0 since "))
    assert f"{why}: packet 0 unacknowledged after 3 timeouts" in line
    assert "\n" not in line


def test_with_a_path_that_is_left_it_lists_what_is_down():
    lossy = LinkFault(cable(GRAPH, 0, 4), 0, error_rate=0.999)
    line = fails([lossy, down(cable(GRAPH, 4, 6))])
    assert "npu 2: packet" in line or "npu 0: packet" in line
    assert line.endswith(
        "an rto that is too short; down by faults: link leaf 0 - spine 0; "
        "lossy by faults: link npu 0 - leaf 0 (error_rate 0.999)"
    )


def test_nothing_is_down():
    line = fails([LinkFault(cable(GRAPH, 0, 4), 0, error_rate=0.999)])
    assert "unacknowledged" in line
    assert "down" not in line


def test_the_last_of_several_failures_cuts():
    both = down(of_switch(GRAPH, 6), MS), down(of_switch(GRAPH, 7), 2 * MS)
    assert paths(*both).between(1, 3) == "npu 1 has no path to npu 3 since spine 1 went down at 2 ms"
    assert paths(*both).between(0, 1) == ""
    assert paths(*both, now_ps=MS).between(1, 3) == ""


def test_a_path_that_came_back_is_cut_since_it_failed_again():
    link = cable(GRAPH, 1, 4)
    assert paths(down(link, 0, MS), down(link, 3 * MS)).between(1, 0) == (
        "npu 1 has no path to npu 0 since link npu 1 - leaf 0 went down at 3 ms"
    )
    assert paths(down(link, 0, MS)).between(1, 0) == ""


def test_places_that_fail_together_are_listed():
    together = down(cable(GRAPH, 0, 4), MS), down(of_switch(GRAPH, 5), MS)
    assert paths(*together).between(0, 2) == (
        "npu 0 has no path to npu 2 since leaf 1 and link npu 0 - leaf 0 went down at 1 ms"
    )


def test_names_of_what_is_down_now():
    back = down(cable(GRAPH, 4, 6), 0, MS)
    slow = LinkFault(cable(GRAPH, 4, 7), 0, rate_bps=10**10)
    late = down(cable(GRAPH, 5, 7), 100 * MS)
    lost = LinkFault(cable(GRAPH, 1, 4), 0, error_rate=1.0)
    now = paths(back, slow, late, lost, down(cable(GRAPH, 5, 6)[2:]), down(cable(GRAPH, 2, 5)))
    assert now.clause() == "; down by faults: link npu 1 - leaf 0, link npu 2 - leaf 1, link leaf 1 - spine 0 cable 1"
    many = paths(*(down(cable(GRAPH, npu, 4 + npu // 2)) for npu in range(4)), down(of_switch(GRAPH, 6)))
    assert many.clause().startswith("; down by faults: spine 0, link npu 0 - leaf 0, ")


def test_an_npu_and_the_first_peer_that_it_has_lost():
    lost = paths(down(of_switch(GRAPH, 6)), down(of_switch(GRAPH, 7), MS))
    assert lost.of_npu(0, [0, 1, 2, 3]) == "npu 0 has no path to npu 2 since spine 1 went down at 1 ms"
    assert lost.of_npu(0, [1]) == ""
