"""Values that a run chooses where neither its run file nor its command names them: tick, workers and their parts.

The tick is part of the model, so it follows from fabric and work alone. Workers and logical processes change no result;
they follow from the machine, too.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.configuration.sections import EngineSection
from nadi.inputs.arrays import Int64
from nadi.inputs.units import format_time
from nadi.launching import cores
from nadi.launching.workers import Workers
from nadi.pdes import Faults, Settings
from nadi.pdes.traces import replayable_rows
from nadi.simulation.assembly.resource_checks import Estimate
from nadi.topologies import Graph
from nadi.workload import Program
from nadi.workload.node_kinds import COLLECTIVE, NOOP, SEND

# A GPU notices a message when something next polls for it, about 0.5 us over PCIe (Neugebauer et al., SIGCOMM 2018):
# docs/explanation/reuse.md#ticks
TICK_PS = 1_000_000
# Bytes of the messages and collectives of all NPUs from which a step gets ticks: some 1.7e10 packet-hops, an hour of
# one worker at resource_checks.HOPS_PER_S. Smaller steps end soon enough to the picosecond. Bytes of traces are the
# same on any number of ranks, as sampled packet-hops are not.
FEWEST_BYTES_WITH_TICK = 10**13
# largest share of an NPU's computation that a tick for each of its rows may be
MAX_TICK_SHARE = 0.01
# Simulated packet-hops per worker below which threads gain little: two or three minutes. Measured on 2026-11-30 beside
# other work: a pipeline of 2.2e8 took 18.7 s of CPU time (36 s of wall time) with one worker and 55 s (355 s) with two.
FEWEST_HOPS_OF_WORKER = 1e9
MAX_LPS_PER_WORKER = 6  # as in the steps of 256 and 1,024 GPUs of docs/explanation/reuse.md
HOSTS_OF_LP = 2  # hosts of a logical process, below which too many packets cross between them


class OwnWork(NamedTuple):
    """Work of a rank's NPUs that decides about a tick."""

    inside_bytes: int  # buffers of collectives inside NVLink domains, of kinds that are replayed, of all NPUs
    other_bytes: int  # messages, and buffers of other collectives
    tick_share: float  # largest part of an NPU's computation that a tick for each row of its trace takes


def own_work(graph: Graph, program: Program, settings: Settings) -> OwnWork:
    """Return what decides about the tick of a run of packets, for this rank's NPUs.

    Args:
        graph: The fabric (`Graph`).
        program: Work of this rank's NPUs (`Program`).
        settings: Settings of the run, of which neither reuse nor faults matter.
    """
    plain = replace(settings, reuse=True, faults=Faults())
    is_inside = replayable_rows(graph, program, plain)
    sends = (program.node_kind == SEND) | ((program.node_kind == COLLECTIVE) & (program.node_schedule >= 0))
    inside, other = (
        int(_sums(program, np.where(rows, program.node_bytes, 0)).sum()) for rows in (is_inside, sends & ~is_inside)
    )
    rows, compute_ps = _sums(program, program.node_kind != NOOP), _sums(program, program.node_duration_ps)
    works = rows > 0
    shares = rows[works] * TICK_PS / np.maximum(compute_ps[works], 1)
    return OwnWork(inside, other, float(shares.max(initial=0.0)))


def _sums(program: Program, column: NDArray[np.generic]) -> Int64:
    """Return int64[NPUs]: the sum of a column of rows over the trace of each NPU that has one."""
    of_trace = np.diff(np.append(0, np.cumsum(column, dtype=np.int64))[program.trace_ptr])
    return of_trace[program.trace_of_npu[program.trace_of_npu >= 0]]


def tick_ps(of_ranks: Sequence[OwnWork]) -> int:
    """Return the tick in picoseconds of a run that trains a model and names none, 0 = none; the same on any machine.

    Args:
        of_ranks: Work of each rank.
    """
    inside, other = sum(own.inside_bytes for own in of_ranks), sum(own.other_bytes for own in of_ranks)
    # traffic between domains disturbs what repeats inside them; with more of it than inside, little would be saved
    is_large, repeats = inside + other >= FEWEST_BYTES_WITH_TICK, 0 < other <= inside
    is_short = max(own.tick_share for own in of_ranks) <= MAX_TICK_SHARE
    return TICK_PS if is_large and repeats and is_short else 0


def workers(named: EngineSection, graph: Graph, expected: Estimate, given: Workers) -> Workers:
    """Return the workers of a run of one rank with logical processes; `given` where the run names both.

    Args:
        named: Section [engine] of the run, whose numbers are None where it names none.
        graph: The fabric (`Graph`).
        expected: Work of the run, with what exact reuse saves.
        given: Workers with the values that the run names, and defaults for the others.
    """
    simulated = expected.packet_hops - expected.counted_hops
    hosts = len(np.unique(graph.host))
    number = given.workers
    if named.workers is None and given.backend == "threads":
        number = min(int(simulated // FEWEST_HOPS_OF_WORKER), hosts)
        # idle cores take a moment to find
        number = min(number, cores.idle_cores()) if number > 1 else number
    number = max(1, number)
    lps = given.lps_per_worker
    if named.lps_per_worker is None and number > 1 and simulated >= number * FEWEST_HOPS_OF_WORKER:
        lps = min(MAX_LPS_PER_WORKER, max(1, hosts // (HOSTS_OF_LP * number)))
    return replace(given, workers=number, lps_per_worker=lps)


def sentence(tick_ps: int, workers: Workers | None) -> str:
    """Return what a run has chosen, with what it costs and how to turn it off; "" if it has chosen nothing.

    Args:
        tick_ps: Tick that was chosen, in picoseconds; 0 = none.
        workers: Workers that were chosen; None = those that the run names, or defaults.
    """
    said = []
    if tick_ps:
        said.append(
            f"a tick of {format_time(tick_ps)}, which changes times by at most one tick per row of the critical path "
            "(--set system.tick=0: none)"
        )
    if workers is not None:
        each = f" of {workers.lps_per_worker} logical processes" if workers.lps_per_worker > 1 else ""
        plural = "s" if workers.workers > 1 else ""
        said.append(f"{workers.workers} worker{plural}{each}, which change no result (--workers 1: one)")
    return f"chosen for this run: {'; '.join(said)}" if said else ""
