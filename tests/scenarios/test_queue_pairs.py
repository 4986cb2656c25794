"""Queue pairs of point-to-point messages ([network] queue_pairs): one per pair of NPUs, or one per message."""

import numpy as np
import pytest

from nadi.configuration.sections import NetworkSection
from nadi.pdes import build_world, run
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build
from tests.pdes.cases import Traces

LONG, SHORT, LATER_US = 4_000_000, 1000, 20


def outcome(queue_pairs, spec, *messages, **more):
    """Results of messages (src, dst, bytes, start in µs) that no other message of their sender waits for."""
    graph = build(spec)
    traces = Traces(graph.npus)
    for tag, (src, dst, size, start_us) in enumerate(messages):
        deps = [traces.compute(src, start_us, cpu=True)] if start_us else ()
        traces.message(src, dst, size, tag, (deps, ()))
    section = NetworkSection.model_validate({"queue_pairs": queue_pairs, **more})
    results = run(build_world(graph, traces.program(), network_settings(section)))
    flows = results.flows
    return dict(zip(flows["lane"].tolist(), (flows["finish_ps"] - flows["start_ps"]).tolist(), strict=True)), results


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_a_short_message_waits_for_a_long_one_of_its_queue_pair_only(fidelity):
    spec = "switch:npus=2,rate=100Gbps"
    alone, _ = outcome("pair", spec, (0, 1, SHORT, 0), fidelity=fidelity)
    shared, _ = outcome("pair", spec, (0, 1, LONG, 0), (0, 1, SHORT, LATER_US), fidelity=fidelity)
    apart, _ = outcome("message", spec, (0, 1, LONG, 0), (0, 1, SHORT, LATER_US), fidelity=fidelity)
    rest_ps = shared[0] - LATER_US * 10**6
    assert shared[1] >= rest_ps > 100 * alone[0]
    assert apart[1] < 3 * alone[0]  # both share the line, packet by packet or half of the rate each
    short_on_line_ps = (SHORT + 82) * 80
    assert 0 <= apart[0] - shared[0] <= 2 * short_on_line_ps


@pytest.mark.parametrize(("queue_pairs", "paths"), [("pair", 1), ("message", 4)])
def test_each_queue_pair_takes_a_path_of_its_own(queue_pairs, paths):
    spec = "leaf-spine:npus=8,hosts_per_leaf=4,rate=100Gbps"
    _, results = outcome(queue_pairs, spec, *((0, 4, 10_000, i) for i in range(32)))
    graph = build(spec)
    up = (graph.node_kind[graph.link_src] == graph.node_kind[-1]) | (graph.link_src >= graph.npus)
    used = results.links["tx_bytes"][up & (graph.link_dst >= graph.npus)]
    data = used[used > 32 * 1000]  # bytes of acknowledgements are fewer
    assert len(data) == 2 * paths


def test_every_message_has_a_fresh_window():
    """A congestion control that has slowed a queue pair down does not slow the next message of another one."""
    shared = {"switch": "shared-buffer", "congestion_control": "dcqcn"}
    spec = "switch:npus=5,rate=100Gbps"
    crowd = [(src, 0, 2_000_000, 0) for src in range(1, 5)]
    later = (1, 0, 200_000, 5000)
    slow, _ = outcome("pair", spec, *crowd, later, **shared)
    fresh, _ = outcome("message", spec, *crowd, later, **shared)
    alone, _ = outcome("message", spec, later, **shared)
    assert fresh[4] == alone[0]
    assert slow[4] >= fresh[4]


def test_digests_do_not_depend_on_the_partition():
    spec = "leaf-spine:npus=16,hosts_per_leaf=4,rate=100Gbps"
    graph = build(spec)
    rng = np.random.default_rng(1)
    traces = Traces(16)
    for tag in range(200):
        src, dst = rng.choice(16, 2, replace=False).tolist()
        start = [traces.compute(src, int(rng.integers(1, 50)), cpu=True)]
        traces.message(src, dst, int(rng.integers(1, 50_000)), tag, (start, ()))
    section = NetworkSection.model_validate({"queue_pairs": "message", "switch": "shared-buffer"})
    settings, program = network_settings(section), traces.program()
    whole = run(build_world(graph, program, settings))
    owner = np.arange(graph.nodes) % 2
    owner[graph.npus :] = 0
    parts = run(build_world(graph, program, settings, owner=owner))
    assert parts.digest == whole.digest
