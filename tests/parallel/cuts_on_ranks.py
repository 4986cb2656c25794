"""Cases that stop at a cut and continue, on MPI ranks."""

from unittest import mock

from mpi4py import MPI

from nadi.pdes.parallel import Layout, Ranks, StoppedError, run_divided
from nadi.pdes.workers import other_teams
from tests.features.restarting import Stopping, often
from tests.parallel.fingerprint import differing, fingerprint
from tests.parallel.matrix import case, owner_of, wanted
from tests.parallel.teams import TEAM_RANKS, whole

WAYS = (("shared", "sent"), ("sent", "python"), ("python", "shared"))
"""Kinds of teams before and after a stop."""


def stopped_and_continued(world, name, kinds, folder):
    """Return the fingerprint of a run that stops twice, and how often it stopped; on rank 0."""
    graph, program, settings = case(name)[:3]
    functions = other_teams.mpi_functions(MPI)
    for stops in range(3):
        kind = kinds[stops % 2]
        owner = owner_of(name, ("scatter", "blocks", "scatter")[stops], 3 + stops)
        resumed_from = folder / "checkpoints" / f"{stops:06}" if stops else None
        checkpoints = Stopping(folder, 0, resumed_from, {}, lambda _: None)
        # rank 1 asks first, rank 0 last
        checkpoints.calls_left = (2 - world.Get_rank()) if stops < 2 else 10**9
        patched = mock.patch.object(other_teams, "mpi_functions", return_value={} if kind == "python" else functions)
        try:
            with often(), patched:
                mailbox = Ranks(world, TEAM_RANKS[kind])
                results = run_divided(Layout(graph, settings, owner), program, settings, mailbox, 1, None, checkpoints)
        except StoppedError:
            world.Barrier()
            continue
        together = whole(world, results)
        return (fingerprint(together), stops) if together is not None else (None, stops)
    raise AssertionError("it stopped though nobody asked")


def cut_cases(world, names, folder):
    """Return on rank 0 what differs for each case, in the next of WAYS, and how often it stopped."""
    found = {}
    for number, name in enumerate(names):
        own, stops = stopped_and_continued(world, name, WAYS[number % len(WAYS)], folder / name)
        if own is not None:
            found[name] = {"differs": differing(own, wanted(name)), "stops": stops}
    return found
