"""Run by mpiexec: runs whose periods recur, and random ones; rank 0 prints one JSON document.

Arguments: number of random runs; folder for checkpoints.
"""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
from mpi4py import MPI

from nadi.launching.ranks import ranks_of
from nadi.pdes import Faults, NpuFault, build_world, run
from nadi.pdes.parallel import Layout, Ranks, StoppedError, run_divided
from nadi.pdes.reuse import recurrence
from nadi.pdes.workers import other_teams
from nadi.simulation.assembly import engine_inputs
from nadi.topologies import build
from nadi.workload import ComputeModel, build_program
from nadi.workload.trace_sets.trace_set import ELSEWHERE
from tests.features.restarting import Stopping, often
from tests.parallel.fingerprint import differing, outcome
from tests.parallel.teams import TEAM_RANKS, whole
from tests.pdes.cases import Traces
from tests.reuse import test_recurrence as cases
from tests.reuse.test_replay import GRAPH, GROUPS, SETTINGS, SHARED, by_host, settings_with

SWITCH = "switch:npus=16"
LEAVES = "leaf-spine:npus=16,hosts_per_leaf=4,spines=2"
CONTROLLED = SHARED | {"congestion_control": "dcqcn"}
SLOW = Faults((), (NpuFault(3, 0, slowdown=1.3),))
ENDS = Faults((), (NpuFault(3, 0, slowdown=1.3, until_ps=10**8),))
"""A GPU that is slow for a time."""


class Case:
    """A run on a fabric: traces, settings, and what rules the fabric is divided by."""

    def __init__(self, traces, chosen=SETTINGS, spec="", scattered=False, threads=1, teams="shared"):
        self.tables, self.fabric = traces.tables(), build(spec) if spec else GRAPH
        self.chosen, self.scattered, self.threads, self.teams = chosen, scattered, threads, teams

    def inputs(self, world=None):
        """Return fabric, program and owner of nodes; on ranks, the program is of those NPUs that this rank has."""
        graph = engine_inputs(self.fabric, self._program(range(16)))[0]
        owner = np.arange(graph.nodes) * 7 % 5 if self.scattered else by_host(graph)
        if world is None:
            return graph, engine_inputs(self.fabric, self._program(range(16)))[1], owner
        own = np.isin(owner[:16], Layout(graph, self.chosen, owner).share(world.size, world.rank))
        program = self._program(np.where(own, np.arange(16), ELSEWHERE), ranks_of(world).exchange)
        return graph, engine_inputs(self.fabric, program)[1], owner

    def _program(self, traces, exchange=None):
        how = {} if exchange is None else {"exchange": exchange}
        return build_program(self.tables, traces, 16, GROUPS, ComputeModel("trace"), fabric=self.fabric, **how)

    def on_ranks(self, world, checkpoints=None):
        """Return the results of a run on all ranks, with the rows of all on rank 0."""
        graph, program, owner = self.inputs(world)
        chosen = replace(self.chosen, reuse=True)
        functions = {} if self.teams.endswith("python") else other_teams.mpi_functions(MPI)
        with mock.patch.object(other_teams, "mpi_functions", return_value=functions):
            mailbox = Ranks(world, TEAM_RANKS[self.teams])
            layout = Layout(graph, chosen, owner)
            return whole(world, run_divided(layout, program, chosen, mailbox, self.threads, None, checkpoints))

    def alone(self):
        """Return the results of a run that simulates each packet in this process."""
        graph, program, _ = self.inputs()
        return run(build_world(graph, program, self.chosen))


NETWORKS = [{}, {"congestion_control": "swift"}, CONTROLLED, {"switch": "credits", "lane_buffer": "20kB"}]
FLAT = replace(SETTINGS, nvlink_framing=False)
CASES = {
    "pipeline": lambda: Case(cases.pipeline()),
    "numbers of one tag": lambda: Case(cases.pipeline(tag_by_turn=False), teams="sent"),
    "no rows of messages": lambda: Case(cases.pipeline(), replace(SETTINGS, record_flows=False), teams="sent"),
    "an odd turn": lambda: Case(cases.pipeline(odd_turn=8), teams="python"),
    "two threads each": lambda: Case(cases.pipeline(), FLAT, SWITCH, scattered=True, threads=2),
    "iterations": lambda: Case(cases.iterations(), replace(SETTINGS, tick_ps=1_000_000), teams="sent"),
    "congestion control": lambda: Case(cases.pipeline(24), settings_with(**CONTROLLED)),
    "a slow GPU": lambda: Case(cases.pipeline(), replace(SETTINGS, faults=SLOW, tick_ps=1_000_000), teams="sent"),
    "scattered": lambda: Case(cases.pipeline(), replace(FLAT, tick_ps=1_000_000), LEAVES, scattered=True, teams="sent"),
    "a fault that ends": lambda: Case(cases.pipeline(), replace(SETTINGS, faults=ENDS)),
    "telemetry": lambda: Case(cases.pipeline(24), settings_with(**cases.HPCC)),
    "telemetry, scattered": lambda: Case(cases.pipeline(24), settings_with(**cases.HPCC), scattered=True, threads=2),
}


def of_case(world, case):
    """Return on rank 0 what differs from the run in one process, and how many periods were counted."""
    found = case.on_ranks(world)
    if found is None:
        return None
    wanted = case.alone()
    return {
        "differs": differing(outcome(found), outcome(wanted)),
        "periods": found.reuse["repeated_periods"],
        "hops": found.reuse["repeated_hops"] / max(1, found.counters["packet_hops"]),
    }


def stopped_and_continued(world, case, folder):
    """Return as `of_case` for a run that stops twice, with the number of stops."""
    for stops in range(3):
        resumed_from = folder / "checkpoints" / f"{stops:06}" if stops else None
        checkpoints = Stopping(folder, 0, resumed_from, {}, lambda _: None)
        checkpoints.calls_left = (5 - world.Get_rank()) if stops < 2 else 10**9
        try:
            with often():
                found = case.on_ranks(world, checkpoints)
        except StoppedError:
            world.Barrier()
            continue
        differs = found and differing(outcome(found), outcome(case.alone()))
        return found and {"differs": differs, "periods": found.reuse["repeated_periods"], "stops": stops}
    raise AssertionError("it stopped though nobody asked")


def random_traces(draw):
    """Return traces that repeat random work, with something else in between now and then.

    Each turn begins with work of all NPUs, and at its end they wait for each other.
    """
    stretch = [
        (
            draw.choice(["compute", "collective", "message", "message", "memory"]),
            draw.sample(range(16), 2),
            draw.choice([1, 3, 10, 100]),
            draw.choice([1, 5000, 300_000]),
            draw.choice(sorted(GROUPS)),
            draw.choice([0, 0, 2, 6, 7]),
        )
        for _ in range(draw.randint(1, 6))
    ]
    members, size, by_turn = (
        draw.choice([range(16), range(16), range(1, 15)]),
        draw.choice([0, 40_000]),
        draw.random() < 0.5,
    )
    odd = set(draw.sample(range(cases.TURNS), draw.choice([0, 0, 1, 2])))
    traces = Traces(16)
    for turn in range(cases.TURNS):
        last = cases.last_of(traces, range(16))
        for npu in range(16):
            traces.compute(npu, 40 + npu % 3, deps=last[npu])
        for number, (what, ends, micros, size_bytes, group, kind) in enumerate(stretch):
            last = cases.last_of(traces, range(16))
            if what == "compute":
                traces.compute(ends[0], micros + (turn in odd), deps=last[ends[0]])
            elif what == "memory":
                traces.memory(ends[0], micros, deps=last[ends[0]])
            elif what == "message":
                tag = number + len(stretch) * turn * by_turn
                traces.message(*ends, size_bytes + (turn in odd), tag=tag, deps=(last[ends[0]], last[ends[1]]))
            else:
                traces.collective(GROUPS[group], kind, size_bytes, group=group, deps=last)
        last = cases.last_of(traces, range(16))
        for member in members if size else ():
            traces.message(
                member, (member + 8) % 16, size, tag=1000 + turn, deps=(last[member], last[(member + 8) % 16])
            )
        traces.collective(range(16), 0, 1 << 14, deps=cases.last_of(traces, range(16)))
    return traces


def random_case(number):
    """Return a run of random work that repeats itself."""
    draw = random.Random(number)  # noqa: S311 - the same runs each time
    on_leaves = draw.random() < 0.5
    chosen = replace(settings_with(**draw.choice(NETWORKS)), tick_ps=draw.choice([0, 1_000_000, 1_000_000]))
    chosen = replace(chosen, nvlink_framing=chosen.nvlink_framing and not on_leaves)
    scattered, teams = on_leaves and draw.random() < 0.5, draw.choice(["shared", "sent", "python"])
    spec = draw.choice([SWITCH, LEAVES, cases.OVERSUBSCRIBED]) if on_leaves else ""
    return Case(random_traces(draw), chosen, spec, scattered=scattered, teams=teams)


if __name__ == "__main__":
    everyone = MPI.COMM_WORLD
    recurrence.HOPS_OF_MOMENT = recurrence.HOPS_OF_NPU = 0
    document = {
        "cases": {name: of_case(everyone, case()) for name, case in CASES.items()},
        "random": [of_case(everyone, random_case(number)) for number in range(int(sys.argv[1]))],
        "cut": stopped_and_continued(everyone, CASES["pipeline"](), Path(sys.argv[2])),
    }
    if everyone.rank == 0:
        json.dump(document, sys.stdout)
