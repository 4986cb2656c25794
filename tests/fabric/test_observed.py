"""What is watched of queues and pauses: against links' own figures, closed forms, and the same on any division."""

import dataclasses

import numpy as np
import pytest

from nadi.pdes import Settings, SharedBuffer, build_world, run
from nadi.topologies import build
from tests.nonempty import nonempty
from tests.pdes.cases import Traces

CHOSEN = {"queue_samples": 16, "logged_pauses": 1000, "window_bytes": 1 << 20}


def incast(senders, size, **chosen):
    graph = build(f"switch:npus={senders + 1},rate=100Gbps,delay=1us")
    traces = Traces(graph.npus)
    for src in range(1, senders + 1):
        traces.message(src, 0, size)
    buffer = SharedBuffer(buffer_bytes=1_500_000, pfc_alpha=1.0)
    return graph, traces.program(), Settings(switch=buffer, **(CHOSEN | chosen))


def test_the_deepest_sample_of_a_link_is_its_longest_queue():
    graph, program, settings = incast(6, 400_000)
    results = run(build_world(graph, program, settings))
    deepest = np.zeros(graph.links, np.int64)
    np.maximum.at(deepest, results.queues["link"], results.queues["bytes"])
    assert deepest.tolist() == results.links["buffered_bytes"].tolist()
    assert deepest.max() > 0


def test_marks_of_all_stretches_are_those_of_the_link():
    graph, program, settings = incast(6, 400_000)
    results = run(build_world(graph, program, settings))
    marked = np.zeros(graph.links, np.int64)
    np.add.at(marked, results.marks["link"], results.marks["packets"])
    assert marked.tolist() == results.links["marked_packets"].tolist()
    assert marked.max() > 0


def test_packets_are_marked_while_the_queue_is_above_its_threshold():
    """At 100 Gb/s from four times the threshold for 25 Gb/s on; stretches join as the run goes on, and so do marks."""
    graph, program, settings = incast(2, 2_000_000, window_bytes=1 << 22)
    certain = dataclasses.replace(settings.switch, ecn_kmax_bytes=settings.switch.ecn_kmin_bytes + 1)
    settings = dataclasses.replace(settings, switch=certain)
    results = run(build_world(graph, program, settings))
    port = int(np.argmax(results.links["marked_packets"]))
    waited, marked = ({}, {})
    for table, name, found in ((results.queues, "bytes", waited), (results.marks, "packets", marked)):
        own = table["link"] == port
        found.update(zip(table["time_ps"][own].tolist(), table[name][own].tolist(), strict=True))
    width_ps = min(np.diff(sorted(waited)))
    threshold = 4 * settings.switch.ecn_kmin_bytes
    above = {time for time in waited if max(waited[time], waited.get(time - width_ps, 0)) > threshold}
    assert set(marked) & set(waited) == above  # packets that no later one follows leave a queue that is not sampled
    assert 0 < len(above) < len(waited)


def test_without_ecn_nothing_is_marked():
    graph, program, settings = incast(6, 400_000)
    settings = dataclasses.replace(settings, switch=dataclasses.replace(settings.switch, ecn=False))
    results = run(build_world(graph, program, settings))
    assert results.queues["bytes"].any()
    assert not len(results.marks["packets"])


def test_stretches_widen_until_the_run_fits():
    """2 x 2 MB at 100 Gb/s take 330 us, so 16 stretches of 32 us; the queue grows until the first sender is done."""
    graph, program, settings = incast(2, 2_000_000, window_bytes=1 << 22)
    results = run(build_world(graph, program, settings))
    times = np.unique(results.queues["time_ps"])
    assert (times % 32_000_000 == 0).all()
    assert len(times) >= 8


def test_pauses_and_resumes_take_turns_and_last_as_long_as_the_links_say():
    graph, program, settings = incast(6, 400_000)
    results = run(build_world(graph, program, settings))
    log = results.pauses
    for link in nonempty(np.unique(log["link"])):
        own = log["link"] == link
        assert log["paused"][own].tolist() == [True, False] * (own.sum() // 2)
        since, until = log["time_ps"][own][::2], log["time_ps"][own][1::2]
        assert (until - since).sum() == results.links["paused_ps"][link]
    assert set(np.flatnonzero(results.links["paused_ps"])) == set(np.unique(log["link"]))


@pytest.mark.parametrize("lps", [2, 3])
def test_the_same_on_any_division(lps):
    graph, program, settings = incast(6, 300_000, logged_pauses=20)
    alone = run(build_world(graph, program, settings))
    divided = run(build_world(graph, program, settings, np.arange(graph.nodes) % lps))
    for table in ("queues", "marks", "pauses"):
        for name, values in nonempty(getattr(alone, table).items()):
            assert values.tolist() == getattr(divided, table)[name].tolist()
    assert len(alone.pauses["time_ps"]) == 20
