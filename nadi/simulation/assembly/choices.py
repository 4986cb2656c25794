"""Values that a run chooses where neither its run file nor its command names them: tick, workers and their parts.

The tick is part of the model, so it follows from fabric and work alone. Workers and logical processes change no result;
they follow from the machine, too.
"""

from dataclasses import replace

import numpy as np

from nadi.configuration.run_config import RunConfig
from nadi.inputs.units import format_time
from nadi.launching import cores
from nadi.launching.workers import Workers
from nadi.simulation.assembly.resource_checks import Estimate
from nadi.topologies import Graph
from nadi.workload import Program
from nadi.workload.node_kinds import NOOP

# A GPU notices a message when something next polls for it, about 0.5 us over PCIe (Neugebauer et al., SIGCOMM 2018):
# docs/explanation/reuse.md#ticks
TICK_PS = 1_000_000
# Packet-hops of a step from which it gets ticks: half an hour and more of one worker at resource_checks.HOPS_PER_S.
# Smaller steps end soon enough to the picosecond.
FEWEST_HOPS_WITH_TICK = 1e10
# largest share of an NPU's computation that a tick for each of its rows may be
MAX_TICK_SHARE = 0.01
# Simulated packet-hops per worker below which threads gain little: two or three minutes. Measured on 2026-11-30 beside
# other work: a pipeline of 2.2e8 took 18.7 s of CPU time (36 s of wall time) with one worker and 55 s (355 s) with two.
FEWEST_HOPS_OF_WORKER = 1e9
MAX_LPS_PER_WORKER = 6  # as in the steps of 256 and 1,024 GPUs of docs/explanation/reuse.md
HOSTS_OF_LP = 2  # hosts of a logical process, below which too many packets cross between them


def tick_ps(config: RunConfig, expected: Estimate, tick_share: float) -> int:
    """Return the tick in picoseconds of a run that names none, 0 = none; the same on any machine.

    Args:
        config: The run's configuration.
        expected: Work of all ranks with exact reuse, whether or not the run has it.
        tick_share: The result of `share_of_ticks`, the largest of all ranks.
    """
    # only steps of a model: traces of users may measure what a tick hides
    is_large = expected.packet_hops + expected.replayable_hops >= FEWEST_HOPS_WITH_TICK
    # traffic between domains disturbs what repeats inside them; with more of it than inside, little would be saved
    repeats = 0 < expected.packet_hops <= expected.replayable_hops
    has_ticks = config.training_plan() is not None and is_large and repeats and tick_share <= MAX_TICK_SHARE
    return TICK_PS if has_ticks else 0


def share_of_ticks(program: Program) -> float:
    """Return the largest part, over the NPUs, of their computation that a tick for each row of their trace takes.

    Args:
        program: Work of this rank's NPUs (`Program`).
    """
    used = np.unique(program.trace_of_npu[program.trace_of_npu >= 0])
    takes_time, duration_ps = program.node_kind != NOOP, program.node_duration_ps
    rows, compute_ps = (
        np.diff(np.append(0, np.cumsum(column))[program.trace_ptr])[used] for column in (takes_time, duration_ps)
    )
    works = rows > 0
    return float((rows[works] * TICK_PS / np.maximum(compute_ps[works], 1)).max(initial=0.0))


def workers(config: RunConfig, graph: Graph, expected: Estimate, given: Workers) -> Workers:
    """Return the workers of a run of one rank with logical processes; `given` where the run names both.

    Args:
        config: The run's configuration.
        graph: The fabric (`Graph`).
        expected: Work of the run, with what exact reuse saves.
        given: Workers with the values that the run names, and defaults for the others.
    """
    engine, simulated = config.engine, expected.packet_hops - expected.counted_hops
    hosts = len(np.unique(graph.host))
    number = given.workers
    if engine.workers is None and given.backend == "threads":
        number = min(cores.idle_cores(), int(simulated // FEWEST_HOPS_OF_WORKER), hosts)
    number = max(1, number)
    lps = given.lps_per_worker
    if engine.lps_per_worker is None and number > 1 and simulated >= number * FEWEST_HOPS_OF_WORKER:
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
