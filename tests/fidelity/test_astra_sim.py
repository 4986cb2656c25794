"""Times of ASTRA-sim's analytical networks, to the nanosecond, from run files (docs/explanation/fidelity.md).

A clock of 1 ns; endpoints of 10 ns; memory of 1,600 B/ns for reductions; GB of 2^30 bytes; chunks one after another.
tests/importers/test_astra_sim_results.py runs all published rows from ASTRA-sim's own files.
"""

import heapq
from typing import NamedTuple

import numpy as np
import pytest

from nadi import et
from nadi.configuration.run_file import load_config
from tests.running import simulate

MEMORY_BYTES_PER_NS = 1600
RUN = """
[workload]
traces = "trace.et"
[topology]
spec = "{spec}"
[system]
collectives = {{ all-reduce = "{algorithm}" }}
dataset_splits = {chunks}
phases_per_dimension = 1
[network]
fidelity = "analytical"
congestion_aware = {aware}
endpoint_delay = "10ns"
reduction_bandwidth = "{memory}GB/s"
resolution = "1ns"
"""
BYTES_PER_NS = 50 * 2**30 / 1e9


def done_ns(folder, spec, backend, algorithm="ring", chunks=1, memory=MEMORY_BYTES_PER_NS):
    """Run an all-reduce of 1 MiB as a user writes it; return when the first and the last NPU is done."""
    node = et.coll_node(1, "all-reduce", et.CollectiveCommType.ALL_REDUCE, 1 << 20)
    et.write_trace(folder / "trace.et", et.metadata(), [node])
    aware = str(backend == "Aware").lower()
    (folder / "run.toml").write_text(
        RUN.format(spec=spec, algorithm=algorithm, chunks=chunks, aware=aware, memory=memory)
    )
    results = simulate(load_config(folder / "run.toml")).results
    done = np.maximum.reduceat(results.node_finish_ps, results.npu_node_ptr[:-1])
    assert not np.any(done % 1000)
    return int(done.min()) // 1000, int(done.max()) // 1000


@pytest.mark.parametrize("backend", ["Unaware", "Aware"])
@pytest.mark.parametrize(
    ("topology", "algorithm", "npus", "nanoseconds"),
    [
        ("ring", "ring", 8, {"Unaware": 43_025, "Aware": 43_025}),
        ("ring", "ring", 16, {"Unaware": 53_710, "Aware": 53_710}),
        ("fully-connected", "direct", 8, {"Unaware": 6155, "Aware": 6155}),
        ("switch", "halving-doubling", 8, {"Unaware": 40_978, "Aware": 75_154}),
    ],
)
def test_known_all_reduces_of_1_mib(tmp_path, topology, algorithm, npus, nanoseconds, backend):
    """Their halving-doubling takes no time for the first of its reductions, of half of the buffer."""
    expected = nanoseconds[backend] + (3 * 327 if algorithm == "halving-doubling" else 0)
    spec = f"{topology}:npus={npus},rate=50GiB/s,delay=500ns"
    assert done_ns(tmp_path, spec, backend, algorithm) == (expected, expected)


def test_their_regression_of_four_splits(tmp_path):
    """Memory of 50 B/ns: a ring of 8 that is done with all four quarters at 117,780 ns on every rank."""
    spec = "ring:npus=8,rate=50GiB/s,delay=500ns"
    assert done_ns(tmp_path, spec, "Aware", chunks=4, memory=50) == (117_780, 117_780)


def phases_of(size, rows, columns):
    """Phases of one split of a torus' all-reduce: (dimension, nanoseconds), of rings with endpoints of 10 ns."""

    def ring_ns(nodes, all_bytes, reduces):
        step = int(500 + all_bytes / nodes / BYTES_PER_NS) + 10
        return (nodes - 1) * (step + reduces * 3 * int(all_bytes / nodes / MEMORY_BYTES_PER_NS))

    inner = size // rows
    between = ring_ns(columns, inner, reduces=True) + ring_ns(columns, inner, reduces=False)
    return [(0, ring_ns(rows, size, True) + 10), (1, between + 10), (0, ring_ns(rows, size, False) + 10)]


CHOICES = {
    "came first": lambda waiting: waiting.order,
    "came last": lambda waiting: -waiting.order,
    "made last": lambda waiting: (-waiting.split, waiting.order),
}


class Waiting(NamedTuple):
    """A phase of a split that waits for its dimension; order: of all that have come to any."""

    order: int
    split: int
    phase: int


def finish_ns(phases, splits, choice):
    """When all splits are done, if each dimension does one phase at a time and then takes the one that is chosen."""
    queues, busy, events, come = ([], []), [False, False], [], 0
    arrivals = [(split, 0) for split in range(splits)]
    now = 0
    while arrivals or events or any(queues):
        for split, phase in arrivals:
            queues[phases[phase][0]].append(Waiting(come, split, phase))
            come += 1
            if now == 0 and not busy[0]:  # the first split goes before the others are made
                busy[0] = True
                heapq.heappush(events, (phases[0][1], *queues[0].pop()[1:]))
        for dimension in (0, 1):
            if queues[dimension] and not busy[dimension]:
                chosen = min(queues[dimension], key=CHOICES[choice])
                queues[dimension].remove(chosen)
                busy[dimension] = True
                heapq.heappush(events, (now + phases[chosen.phase][1], chosen.split, chosen.phase))
        arrivals = []
        now = events[0][0] if events else now
        while events and events[0][0] == now:
            _, split, phase = heapq.heappop(events)
            busy[phases[phase][0]] = False
            if phase + 1 < len(phases):
                arrivals.append((split, phase + 1))
    return now


@pytest.mark.parametrize(
    ("rows", "columns", "splits", "times"),
    [
        (8, 8, 4, {"came first": 64_480, "came last": 64_886, "made last": 64_480}),
        (4, 4, 8, {"came first": 55_360, "came last": 56_494, "made last": 56_017}),
    ],
)
def test_their_lifo_is_not_ours(tmp_path, monkeypatch, rows, columns, splits, times):
    """Theirs prefers the split that was made last, ours the phase that came last to its dimension."""
    phases = phases_of((1 << 20) // splits, rows, columns)
    assert {choice: finish_ns(phases, splits, choice) for choice in CHOICES} == times
    spec = f"stack:dims=Ring({rows})_Ring({columns}),rates=50GiB/s_50GiB/s,delays=500ns_500ns"
    by_default = RUN
    for scheduling, choice in (("fifo", "came first"), ("lifo", "came last")):
        run = by_default.replace("[network]", f'scheduling = "{scheduling}"\n[network]')
        monkeypatch.setattr(f"{__name__}.RUN", run)
        found = done_ns(tmp_path, spec, "Unaware", "grid:algorithms=ring/ring", splits)
        assert found == (times[choice], times[choice])
