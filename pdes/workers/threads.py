"""Runs a Simulation to its end in this process, on one thread or several."""

import time

import numpy as np

from pdes.harvest.gathering import check, harvest, results
from pdes.workers.crew import Crew, compile_kernels
from pdes.workers.team import found_team, team_words


def run(sim, progress=None, threads=1):
    """Run a Simulation that holds all LPs to its end and return its Results.

    Args:
        sim: from build_world.
        progress: called a few times a second with a Snapshot.
        threads: workers; they share the LPs.

    Raises:
        RunError: events run out and work is left (who waits for whom), a queue pair gives up, or a promise of the
            engine is broken (a defect, never the user's fault).
    """
    compile_s = compile_kernels(sim.graph, sim.settings)
    crew = crew_of(sim, progress, threads)
    begun = time.perf_counter()
    crew.run()
    wall_s = time.perf_counter() - begun
    own = harvest(sim)
    check(own)
    return results(
        own,
        own,
        sim.graph,
        wall_s=wall_s,
        setup_s=sim.setup_s,
        compile_s=compile_s,
        first_event_s=crew.first_event_s,
        settled=settled(sim),
    )


def crew_of(sim, progress=None, threads=1):
    """A crew that is the whole team."""
    threads = min(threads, len(sim.lps))
    team = np.zeros(team_words(threads), np.int64)
    found_team(team, threads, int(sim.lps[0].world.net.const.cell_ps), crew_size=threads)
    nodes_total = sum(int(lp.world.net.ctl.rows_left) for lp in sim.lps)
    return Crew(sim, team, threads, progress=progress, nodes_total=nodes_total)


def settled(sim):
    """What was settled from the fabric."""
    const = sim.lps[0].world.net.const
    return {
        "window_packets": int(const.window_packets),
        "rto_ps": int(const.rto_ps),
        "lookahead_ps": int(const.lookahead_ps),
        "cell_ps": int(const.cell_ps),
    }
