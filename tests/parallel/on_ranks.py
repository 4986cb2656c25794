"""Run by mpiexec: all cases in turn, then random ones; rank 0 prints one JSON document.

Arguments: JSON of the ways of each case by name, each "method/lps/threads/teams"; number of random runs; folder for
checkpoints; names of the cases that stop and continue.
"""

import json
import sys
from pathlib import Path
from unittest import mock

from mpi4py import MPI

from nadi.pdes import RunError, build_world, run
from nadi.pdes.parallel import Layout, Ranks, run_divided
from nadi.pdes.workers import other_teams, processes
from tests.parallel import matrix
from tests.parallel.cuts_on_ranks import cut_cases
from tests.parallel.fingerprint import differing, fingerprint
from tests.parallel.random_runs import some
from tests.parallel.teams import TEAM_RANKS, whole


def on_ranks(world, graph, program, settings, owner, threads, teams):
    """Fingerprint of a run on all ranks, and how it went; on rank 0."""
    layout, team_ranks = Layout(graph, settings, owner), TEAM_RANKS[teams]
    mailbox = Ranks(world, team_ranks)
    functions = {} if teams.endswith("python") else other_teams.mpi_functions(MPI)
    made = []

    def recorded(*arguments):
        made.append(other_teams.BatchExchange(*arguments))
        return made[-1]

    with (
        mock.patch.object(other_teams, "mpi_functions", return_value=functions),
        mock.patch.object(processes, "BatchExchange", recorded),
    ):
        results = run_divided(layout, program, settings, mailbox, threads)
    calls = made[0]._batches.calls[0] if made else None
    alike = world.gather((results.digest, results.finish_time_ps, results.counters, results.settled))
    together = whole(world, results)
    if together is None:
        return None, None
    if any(each != alike[0] for each in alike):
        raise AssertionError(f"ranks do not agree: {alike}")
    workers = {name: column.tolist() for name, column in results.workers.items()}
    counted = {name: results.counters[name] for name in ("windows", "packet_hops", "events")}
    counted |= {"compiled": bool(calls and calls.isend), "agreed": int(calls.agreed) if calls else 0}
    return fingerprint(together), results.settled | counted | {"workers": workers, "wall_s": results.wall_s}


def spread(owner, lps):
    """An owner with at least so many LPs, made of this one."""
    owner = owner.copy()
    for node in range(len(owner)):
        owner = matrix.packed(owner)
        if owner.max() + 1 >= lps:
            break
        owner[node] = owner.max() + 1
    return matrix.packed(owner)


def cases(world, ways_of):
    """What each case brought in each way."""
    found = {}
    for name, ways in ways_of.items():
        graph, program, settings, owners, *_ = matrix.case(name)
        for way in ways:
            method, lps, threads, teams = way.split("/")
            for label in owners if method == "own" else [method]:
                owner = matrix.owner_of(name, label, int(lps))
                if owner is not None:
                    owner = spread(owner, world.size)
                    result, how = on_ranks(world, graph, program, settings, owner, int(threads), teams)
                    found.setdefault(name, {})[way.replace("own", label)] = {"is": result, "how": how}
    return found


def random_ones(world, number):
    """How many ran, and what differed from a run of one LP."""
    ran, wrong = 0, []
    for turn, drawn in enumerate(world.bcast(some(number) if world.rank == 0 else None)):
        graph, program, settings, owner = drawn.parts()
        try:
            wanted = fingerprint(run(build_world(graph, program, settings)))
        except RunError:
            continue  # a rank that gives up ends all
        if graph.nodes < world.size:
            continue
        ran += 1
        threads = 2 if world.size == 2 and turn % 3 == 0 else 1
        owner = spread(owner, world.size)
        result, _ = on_ranks(world, graph, program, settings, owner, threads, ("shared", "sent", "pairs")[turn % 3])
        if result and result != wanted:
            wrong.append({"run": repr(drawn), "differ": differing(result, wanted)})
    return {"ran": ran, "wrong": wrong}


if __name__ == "__main__":
    everyone = MPI.COMM_WORLD
    document = {
        "cases": cases(everyone, json.loads(sys.argv[1])),
        "random": random_ones(everyone, int(sys.argv[2])),
        "cut": cut_cases(everyone, sys.argv[4:], Path(sys.argv[3])),
    }
    if everyone.rank == 0:
        json.dump(document, sys.stdout)
