"""Run by mpiexec: all cases in turn, then random ones; rank 0 prints one JSON document.

Arguments: JSON of the ways of each case by name, each "method/lps/threads/teams"; number of random runs.
"""

import json
import sys
from dataclasses import replace
from unittest import mock

import numpy as np
from mpi4py import MPI

from nadi.pdes import Layout, Ranks, RunError, build_world, run, run_divided
from nadi.pdes.workers import exchange, ranks
from tests.parallel import matrix
from tests.parallel.fingerprint import differing, fingerprint
from tests.parallel.random_runs import some

TEAM_RANKS = {"shared": 0, "sent": 1, "python": 1, "pairs": 2, "pairs-python": 2}
"""Ranks of a team; "python": which calls MPI, as where compiled code cannot."""


def whole(world, own):
    """Results with the rows of all ranks' NPUs, on rank 0."""
    parts = world.gather((own.npu_node_ptr, own.node_start_ps, own.node_finish_ps))
    if parts is None:
        return None
    counts = np.array([np.diff(ptr) for ptr, _, _ in parts])
    if ((counts > 0).sum(axis=0) > 1).any():
        raise AssertionError("two ranks have rows of one NPU")

    def joined(column):
        rank_of = counts.argmax(axis=0).tolist()
        of_npu = [parts[rank][column][slice(*parts[rank][0][npu : npu + 2])] for npu, rank in enumerate(rank_of)]
        return np.concatenate(of_npu)

    ptr = np.concatenate([[0], np.cumsum(counts.max(axis=0))])
    return replace(own, npu_node_ptr=ptr, node_start_ps=joined(1), node_finish_ps=joined(2))


def on_ranks(world, graph, program, settings, owner, threads, teams):
    """Fingerprint of a run on all ranks, and how it went; on rank 0."""
    layout, team_ranks = Layout(graph, settings, owner), TEAM_RANKS[teams]
    mailbox = Ranks(world, team_ranks)
    functions = {} if teams.endswith("python") else exchange.mpi_functions(MPI)
    made = []

    def recorded(*arguments):
        made.append(exchange.ParcelExchange(*arguments))
        return made[-1]

    with (
        mock.patch.object(exchange, "mpi_functions", return_value=functions),
        mock.patch.object(ranks, "ParcelExchange", recorded),
    ):
        results = run_divided(layout, program, settings, mailbox, threads)
    calls = made[0]._parcels.calls[0] if made else None
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
    }
    if everyone.rank == 0:
        json.dump(document, sys.stdout)
