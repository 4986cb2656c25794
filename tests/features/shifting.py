"""One run whose NPUs begin at 0 and later: all times must be later by as much, and all else the same."""

import sys

import numpy as np

from nadi.cli.main import WRONG_INPUT
from nadi.configuration.run_file import load_config
from nadi.launching.progress import NoProgress
from nadi.pdes.nic.control import ECHO_MASK
from nadi.simulation import resolving
from nadi.simulation.assembly import partitioning
from nadi.simulation.run import execute
from nadi.workload.node_kinds import COMPUTE
from tests.features.running import described
from tests.features.values import COLLECTIVE, OPTICAL

LATER_PS = (1, 999, 12_345_678, ECHO_MASK, 10**12, 3 * 3600 * 10**12)
"""Times in ps by which NPUs begin later: within a cell of the engine, where times in packets wrap, and up to hours."""
OTHER_COUNTERS = {"windows", "events"}
"""Counters that differ: a row of 0 ps is no event."""


def begins_together(run):
    """Return whether everybody begins with the first rows of NPUs, at 0; switches that reduce ask for messages at 0."""
    algorithm = described(run)[COLLECTIVE].split()[1]
    # first rows begin with their job, or end at its ticks; epochs of optical switches begin at times
    if "jobs.start" in run or "system.tick" in run or OPTICAL in run:
        return False
    return "system.collectives_in_flight" not in run or algorithm not in {"in-network", "nvls"}


def begun_at(program, later_ps):
    """Return a program whose rows without parents that compute, one for each NPU, take later_ps."""
    first = (program.node_kind == COMPUTE) & (program.node_deps == 0)
    return program._replace(node_duration_ps=np.where(first, later_ps, program.node_duration_ps))


def grid_ps(config, results):
    """Return the time in ps of which beginnings must be multiples for all times to be later by as much, usually 1 ps.

    Packets beside flows get what flows leave of a link from within the cell on in which that changes, not at its exact
    time (docs/explanation/fidelity.md, "Flows beside packets"), and cells lie on one grid from 0 on. Runs of which all
    messages are flows acknowledge nothing, and are exact. With global queues a switch sees others as they were when the
    cell began.
    """
    is_mixed = config.network.flows and results.counters["ack_packets"] > 0
    return results.settled["cell_ps"] if is_mixed or config.network.routing == "ugal-g" else 1


def results_of(path, later_ps):
    """Return the results of the run of a file whose NPUs begin at later_ps."""

    def place(*arguments, **options):
        work, *others = partitioning.place(*arguments, **options)
        return work._replace(program=begun_at(work.program, later_ps)), *others

    resolving.place = place
    return execute(resolving.Resolver(load_config(path)).plan(), NoProgress()).results


def times(results):
    of_flows = [results.flows[name] for name in ("start_ps", "finish_ps") if name in results.flows]
    return [results.node_start_ps, results.node_finish_ps, *of_flows, np.array([results.finish_time_ps])]


def are_later(own, later, by_ps):
    """Return whether times are later by by_ps, but for those of rows that begin at 0 whatever the first row takes."""
    return own.shape == later.shape and bool(((later == own + by_ps) | ((own == 0) & (later == 0))).all())


def amounts(results):
    """Return all that is not a time, by name."""
    counters = {name: count for name, count in results.counters.items() if name not in OTHER_COUNTERS}
    flows = {name: column for name, column in results.flows.items() if name not in {"start_ps", "finish_ps"}}
    return counters | flows | results.links


def differences(results, shifted, later_ps):
    found = [name for name, own in amounts(results).items() if not np.array_equal(own, amounts(shifted)[name])]
    same = [are_later(own, later, later_ps) for own, later in zip(times(results), times(shifted), strict=True)]
    return found + (["times"] if not all(same) else [])


def shift(path, beginnings_ps=LATER_PS):
    """Do the run of a file from 0 and with later beginnings; return 0, 1 and a line for what differs, or 2: refused."""
    try:
        from_0 = results_of(path, 0)
    except Exception as error:
        if getattr(error, "exit_code", None) != WRONG_INPUT:
            raise
        sys.stderr.write(f"nadi: error: {' '.join(str(error).split())}\n")
        return WRONG_INPUT
    code = 0
    step_ps = grid_ps(load_config(path), from_0)
    for later_ps in sorted({-(-later_ps // step_ps) * step_ps for later_ps in beginnings_ps}):
        found = differences(from_0, results_of(path, later_ps), later_ps)
        if found:
            sys.stderr.write(f"{later_ps} ps later: {', '.join(found)} differ\n")
            code = 1
    return code
