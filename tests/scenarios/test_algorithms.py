"""Collective algorithms packet by packet on an idle switch, beside their closed forms."""

import numpy as np
import pytest

from nadi import topologies
from nadi.simulation.closed_forms.isolated import IsolatedCollectives
from nadi.workload import KINDS, WorkloadError, algorithms_of, collective_program, collectives
from nadi.workload.collectives.trees import IF_ANY
from tests.closed_forms import form_of_all
from tests.samples import sampled
from tests.scenarios.closed_forms import ROCE, Hop, bits_ps, train_ps
from tests.scenarios.running import simulate

G400 = 400 * 10**9
BY_SWITCH = Hop(2, 1_300_000)
PRECISION = 1e-2
ROUNDED = 1e-12
ALIKE = [
    ("all-reduce", "halving-doubling"),
    ("all-reduce", "recursive-doubling"),
    ("all-reduce", "ring:channels=2"),
    ("all-gather", "bruck"),
    ("all-gather", "halving-doubling"),
    ("all-gather", "pat"),
    ("all-gather", "pat:aggregation=2"),
    ("all-to-all", "bruck"),
    ("all-to-all", "pairwise"),
    ("all-to-all", "direct:window=1"),
    ("reduce-scatter", "halving-doubling"),
    ("reduce-scatter", "pairwise"),
    ("reduce-scatter", "pat"),
    ("barrier", "recursive-doubling"),
]


def on_switch(kind, npus, size_bytes, algorithm):
    """What the simulator and the formula say."""
    graph = topologies.build(f"switch:npus={npus},switch_latency=300ns")
    program = collective_program(kind, npus, size_bytes, algorithm)
    measured_ps = simulate(graph, program).finish_time_ps
    return measured_ps, form_of_all(graph, program, kind, algorithm, isolated=IsolatedCollectives(0)).time_ps


@sampled({"message": [512, 64 * 4096], "npus": [4, 8], "kind, algorithm": ALIKE})
def test_all_do_alike(kind, algorithm, npus, message):
    size_bytes = 0 if kind == "barrier" else npus * message
    measured_ps, closed_ps = on_switch(kind, npus, size_bytes, algorithm)
    assert measured_ps == pytest.approx(closed_ps, rel=PRECISION)


@pytest.mark.parametrize("npus", [5, 6, 7])
@pytest.mark.parametrize(
    ("kind", "algorithm"), [("all-gather", "bruck"), ("all-gather", "pat"), ("all-to-all", "bruck")]
)
def test_other_than_powers_of_two(kind, algorithm, npus):
    measured_ps, closed_ps = on_switch(kind, npus, npus * 64 * 4096, algorithm)
    assert measured_ps == pytest.approx(closed_ps, rel=PRECISION)


@pytest.mark.parametrize("packets", [1, 64])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_binomial_reduce_is_a_message_after_another(rounds, packets):
    """A parent acknowledges while it receives, the last packet just before it sends on."""
    measured_ps, _ = on_switch("reduce", 1 << rounds, packets * 4096, "binomial")
    message_ps = train_ps(packets * 4096, [G400] * 2, BY_SWITCH.fixed_ps)
    expected_ps = rounds * message_ps + (rounds - 1) * bits_ps(ROCE.ack, G400)
    assert measured_ps == pytest.approx(expected_ps, rel=ROUNDED)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_binomial_gather_doubles_its_messages(rounds):
    measured_ps, _ = on_switch("gather", 1 << rounds, (64 << rounds) * 4096, "binomial")
    messages_ps = [train_ps((64 << k) * 4096, [G400] * 2, BY_SWITCH.fixed_ps) for k in range(rounds)]
    expected_ps = sum(messages_ps) + (rounds - 1) * bits_ps(ROCE.ack, G400)
    assert measured_ps == pytest.approx(expected_ps, rel=ROUNDED)


@pytest.mark.parametrize("npus", [4, 6, 8])
@pytest.mark.parametrize(
    ("kind", "algorithm"), [("broadcast", "binomial"), ("scatter", "binomial"), ("all-reduce", "halving-doubling")]
)
def test_sends_to_several_follow_each_other(kind, algorithm, npus):
    """A member sends to one after another, the next when the last byte of the one before has left."""
    measured_ps, closed_ps = on_switch(kind, npus, npus * 256 * 4096, algorithm)
    # where members fold in, some only send; the form takes all to acknowledge too, 86 bytes for 4178
    folds = algorithm == "halving-doubling" and npus == 6
    assert measured_ps == pytest.approx(closed_ps, rel=PRECISION + folds * ROCE.ack / ROCE.full)


SERVERS = "rail-optimised:npus=6,gpus_per_host=2,hosts_per_rail_leaf=2,spines=2"
EVERY = [(kind, name) for kind in KINDS for name in algorithms_of(kind)]


@sampled({"network": [SERVERS, "torus:sizes=3x2"], "size_bytes": [1, 6 * 100_001], "kind, algorithm": EVERY})
def test_every_algorithm_runs_to_its_end(kind, algorithm, size_bytes, network):
    """On servers and on a torus, small and large; `simulate` checks that all that was sent has arrived."""
    graph = topologies.build(network)
    trees = collectives.choose(kind, algorithm).trees
    if trees and not trees.startswith(IF_ANY) and network != SERVERS:
        with pytest.raises(WorkloadError, match="in-network reduction"):
            collective_program(kind, graph.npus, size_bytes, algorithm, graph)
        return
    if algorithm == "nvls":
        with pytest.raises(WorkloadError, match="members on several switches"):
            collective_program(kind, graph.npus, size_bytes, algorithm, graph)
        return
    program = collective_program(kind, graph.npus, size_bytes, algorithm, graph)
    results = simulate(graph, program)
    senders = np.unique(results.flows["src"])
    assert len(senders) >= (1 if kind in {"broadcast", "scatter"} else 5)
