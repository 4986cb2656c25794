"""A smaller group takes as long as the whole one, to the picosecond, or there is none."""

import numpy as np
import pytest

import topologies
from nadi.simulation.closed_forms.collective import closed_form
from nadi.simulation.closed_forms.playing.idle_fabric import PreparedSchedule
from nadi.simulation.closed_forms.playing.idle_paths import fabric_of
from nadi.simulation.closed_forms.playing.periodic_groups import smaller_group
from pdes import Settings
from pdes.messages.fidelity import fidelity
from workload import collective_program
from workload.collectives.schedules.sends import message_count, pairs

HOSTS = "rail-optimised:npus=32,gpus_per_host=4,hosts_per_rail_leaf=2,spines=1,nvlink_rate=2400Gbps"
LEAVES = "leaf-spine:leaves=3,spines=2,hosts_per_leaf=4"
PACKETS = Settings()
WHOLE = Settings(fidelity=fidelity("congestion_aware", endpoint_delay_ps=7))
UNAWARE = Settings(fidelity=fidelity("congestion_unaware"))
ALIKE = [
    ("ring:npus=24", 2),
    ("switch:npus=24", 2),
    (HOSTS, 4),
    (LEAVES, 4),
]


def both(spec, kind, algorithm, size, settings):
    """Schedules and fabric of all members, and of fewer or None."""
    graph = topologies.build(spec)
    s = collective_program(kind, graph.npus, size, algorithm).schedules
    fabric = fabric_of(graph, settings, list(range(graph.npus)), pairs(s, 0, 10**6))
    return (s, fabric), smaller_group(s, 0, size, fabric)


@pytest.mark.parametrize(("spec", "members"), ALIKE)
@pytest.mark.parametrize("settings", [WHOLE, UNAWARE], ids=["aware", "unaware"])
@pytest.mark.parametrize(("kind", "algorithm"), [("all-reduce", "ring"), ("all-gather", "ring:channels=3")])
def test_rings_of_whole_messages(spec, members, settings, kind, algorithm):
    size = 24 * 32 * 3 * 1000
    whole, few = both(spec, kind, algorithm, size, settings)
    assert few[0].members[0] == members
    assert (
        PreparedSchedule(few[0], 0, size, few[1]).time_ps() == PreparedSchedule(whole[0], 0, size, whole[1]).time_ps()
    )


@pytest.mark.parametrize("size", [24 * 100, 24 * 100_000])
def test_rings_of_packets_on_links_of_their_own(size):
    whole, few = both("ring:npus=24", "all-reduce", "ring", size, PACKETS)
    assert few[0].members[0] == 3, "the way back is not the way to the next but one"
    assert (
        PreparedSchedule(few[0], 0, size, few[1]).time_ps() == PreparedSchedule(whole[0], 0, size, whole[1]).time_ps()
    )


def test_two_ways_round():
    size = 24 * 2 * 1000
    whole, few = both("ring:npus=24", "all-reduce", "ring:bidirectional=true", size, WHOLE)
    assert few[0].members[0] == 3
    assert (
        PreparedSchedule(few[0], 0, size, few[1]).time_ps() == PreparedSchedule(whole[0], 0, size, whole[1]).time_ps()
    )


@pytest.mark.parametrize(
    ("spec", "algorithm", "size", "settings"),
    [
        ("ring:npus=24", "ring", 24 * 1000 + 1, WHOLE),  # chunks of unequal length
        ("switch:npus=24", "ring:bidirectional=true", 24 * 2000, WHOLE),  # two peers by one port
        ("switch:npus=24", "ring", 24 * 1000, PACKETS),  # acknowledgements take turns with packets
        ("ring:npus=24", "ring:bidirectional=true", 24 * 2000, PACKETS),
        ("switch:npus=24", "direct", 24 * 1000, WHOLE),
        ("switch:npus=24", "halving-doubling", 24 * 1000, WHOLE),  # members differ
        ("ring:npus=2", "ring", 2000, WHOLE),  # no smaller group
    ],
)
def test_where_members_are_not_alike_or_wait_for_each_other(spec, algorithm, size, settings):
    _, few = both(spec, "all-reduce", algorithm, size, settings)
    assert few is None


def test_a_ring_that_is_too_large_to_be_played_whole():
    graph = topologies.build("ring:npus=2048,rate=400Gbps,delay=500ns")
    size = 2048 * 1000
    program = collective_program("all-reduce", graph.npus, size, "ring")
    assert message_count(program.schedules, 0) == 2 * 2047 * 2048
    found = closed_form(
        graph,
        program,
        WHOLE,
        kind="all-reduce",
        algorithm="ring",
        schedule=0,
        members=np.arange(graph.npus),
        size_bytes=size,
    )
    assert found == (7 + 2 * 2047 * (20_000 + 500_000 + 7), True)
