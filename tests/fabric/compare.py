"""Running the engine and the reference of the fabric, and saying where they differ."""

from types import SimpleNamespace

import numpy as np
import pytest

from nadi.pdes import RunError, build_world, run
from nadi.pdes.outcomes.outcome import settled
from tests.fabric import naive, naive_credits
from tests.fabric.control import Twin
from tests.pdes import compare as plain
from tests.pdes.naive import GaveUpError

ONLY_THERE = {"resume_frames", "headroom_dropped"}
COLUMNS = ("buffered_bytes", "marked_packets", "trimmed_packets", "pause_frames", "paused_ps")


def by_hand(graph, program, settings, known, simulator=None):
    """The reference with the window and the timeout that the engine settled."""
    simulator = simulator or (naive_credits if settings.credits else naive).Simulator
    window = known["window_packets"]
    control = None
    if settings.congestion_control.update:
        (pace,) = settings.congestion_control.values

        def control():
            return Twin(window, pace, telemetry="telemetry" in settings.congestion_control.signals)

    return simulator(graph, program, settings, window, known["rto_ps"], control).run()


def differences(results, reference):
    count = {name: value for name, value in reference.count.items() if name not in ONLY_THERE}
    found = plain.differences(results, SimpleNamespace(**(vars(reference) | {"count": count})))
    columns = naive.measures(reference).links
    return found + [f"links {name}" for name in COLUMNS if results.links[name].tolist() != columns[name]]


def owners(graph, lps, seed):
    owner = np.random.default_rng(seed).integers(0, lps, graph.nodes)
    owner[np.random.default_rng(seed + 1).permutation(graph.nodes)[:lps]] = np.arange(lps)
    return owner


def same(one, other):
    found = [name for name in one.links if one.links[name].tolist() != other.links[name].tolist()]
    counts = [{k: v for k, v in r.counters.items() if k not in {"windows", "events"}} for r in (one, other)]
    return found + ["digest"] * (one.digest != other.digest) + ["counters"] * (counts[0] != counts[1])


def check(graph, program, settings, lps=1):
    """Engine, reference and the engine on several LPs must agree to the picosecond, or all give up."""
    sim = build_world(graph, program, settings)
    known = settled(sim)
    try:
        results = run(sim)
    except RunError as error:
        if "unacknowledged after" not in str(error):
            raise
        with pytest.raises(GaveUpError):
            by_hand(graph, program, settings, known)
        return None
    reference = by_hand(graph, program, settings, known)
    assert differences(results, reference) == []
    if lps > 1:
        owner = owners(graph, lps, settings.seed)
        assert same(results, run(build_world(graph, program, settings, owner))) == []
    return SimpleNamespace(results=results, reference=reference)
