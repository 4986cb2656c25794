"""A network of any fidelity to which a caller posts messages, in place of NPUs with traces."""

import numpy as np

import pdes
from nadi.simulation.closed_forms.idle_network import IdleNetwork
from pdes.fidelity.contract import Network
from topologies import Graph
from workload import Program
from workload.collectives.schedules.packed import pack
from workload.program.assembling import assemble, empty_rows
from workload.trace_sets.groups import GroupTable

MAX_OPEN = 1024  # maximum number of messages of one NPU that have not arrived; each takes 20 bytes


def open_network(graph: Graph, settings: pdes.Settings) -> Network:
    """Return an idle network at time 0 of the model in `settings`, whose faults may change links during its life."""
    if not settings.fidelity.model.has_links:
        return IdleNetwork(graph, settings)
    return pdes.OpenNetwork(graph, _rows(graph.npus), settings)


def _rows(num_npus: int) -> Program:
    """Return a program of MAX_OPEN trace rows for each NPU that wait for a parent that they do not have."""
    none, npus = np.zeros(0, np.int32), np.arange(num_npus, dtype=np.int32)
    groups = GroupTable(np.array([0, num_npus]), npus, ("",), np.zeros(num_npus + 1, np.int64), none, none)
    rows = assemble(np.zeros(num_npus, np.int32), [empty_rows(MAX_OPEN)], groups, pack([]))
    return rows._replace(node_deps=np.ones(MAX_OPEN, np.int32))
