"""The fabric of a finished run, and closed forms on it."""

import numpy as np
from numpy.typing import NDArray

from nadi.insight.explanation.run_events import RunEvents
from nadi.insight.runs import Run
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.closed_forms.curves import WHAT_IF_EFFORT
from nadi.simulation.fidelities import fabric_settings
from nadi.simulation.run import network_settings
from pdes import Settings
from topologies import Graph

Int64 = NDArray[np.int64]


def settings_of(run: Run) -> Settings:
    """Return the engine's settings of the run."""
    config = run.config
    return fabric_settings.fitted(run.graph, network_settings(config.network, config.system, seed=config.engine.seed))


def closed_forms(run: Run) -> CollectiveCosts:
    """Return closed forms of collectives on the run's fabric."""
    return closed_forms_on(run.graph, settings_of(run))


def closed_forms_on(graph: Graph, settings: Settings) -> CollectiveCosts:
    """Return closed forms on a fabric; large collectives are extrapolated, because each what-if evaluates all again."""
    return CollectiveCosts(graph, settings, WHAT_IF_EFFORT)


def shares_of_messages(found: RunEvents, sends: Int64) -> NDArray[np.float64]:
    """Return float64[k]: share of the port's line rate that drives each message; sends: int64[k], nodes."""
    of_channel = np.append(found.program.channels.shares, 1.0)  # the last is that of -1, no channel
    return of_channel[found.program.node_channel[found.at[sends]]]


def of_collectives(found: RunEvents, nodes: Int64) -> tuple[Int64, Int64, Int64]:
    """Return group, schedule and bytes of collectives."""
    program, at, npu = found.program, found.at[nodes], found.npu[nodes]
    group = program.slot_group[program.slot_ptr[npu] + program.node_group[at]].astype(np.int64)
    return group, program.node_schedule[at].astype(np.int64), program.node_bytes[at].astype(np.int64)
