"""A network of any fidelity to which a caller posts messages, in place of NPUs with traces."""

import heapq

import numpy as np

from nadi import pdes, topologies
from nadi.pdes.fidelity import MessageReport, Network, check_message
from nadi.simulation.closed_forms.advancing.equivalence import MessageKeys
from nadi.simulation.closed_forms.lone_message import message_times
from nadi.topologies import Graph
from nadi.workload import Program
from nadi.workload.collectives.schedules import pack
from nadi.workload.program import assemble, empty_rows
from nadi.workload.trace_sets import GroupTable

MAX_OPEN = 1024  # maximum number of messages of one NPU that have not arrived; each takes 20 bytes


def open_network(graph: Graph, settings: pdes.Settings) -> Network:
    """Return an idle network at time 0 of the model in `settings`, whose faults may change links during its life.

    Args:
        graph: The fabric (`Graph`).
        settings: The engine's settings of the run (`pdes.Settings`).
    """
    if not settings.fidelity.model.has_links:
        return IdleNetwork(graph, settings)
    return pdes.OpenNetwork(graph, _rows(graph.npus), settings)


def _rows(num_npus: int) -> Program:
    """Return a program of MAX_OPEN trace rows for each NPU that wait for a parent that they do not have."""
    none, npus = np.zeros(0, np.int32), np.arange(num_npus, dtype=np.int32)
    groups = GroupTable(np.array([0, num_npus]), npus, ("",), np.zeros(num_npus + 1, np.int64), none, none)
    rows = assemble(np.zeros(num_npus, np.int32), [empty_rows(MAX_OPEN)], groups, pack([]))
    return rows._replace(node_deps=np.ones(MAX_OPEN, np.int32))


class IdleNetwork:
    """A Network (pdes/fidelity/__init__.py) of a model without links: a message takes its time alone.

    It waits for the messages before it at its sender's port, and nothing changes its time after it was posted.
    """

    grid_ps = 1

    def __init__(self, graph: Graph, settings: pdes.Settings) -> None:
        self.now_ps = 0
        self._graph, self._settings = graph, settings
        self._posted = 0
        self._reports: list[MessageReport] = []  # heap of what is still to happen
        self._port_free_ps: dict[int, int] = {}  # by outgoing link

    def post(self, src: int, dst: int, size_bytes: int) -> int:
        """Post a message now, and return its number: the first has 0.

        Args:
            src: Number of the NPU that sends.
            dst: Number of the NPU that receives.
            size_bytes: Payload of the message in bytes.
        """
        check_message(self._graph.npus, src, dst, size_bytes)
        keys = MessageKeys(np.array([src]), np.array([dst]), np.array([size_bytes]), np.ones(1), np.ones(1, np.int64))
        hold_ps, left_ps, total_ps = (int(times[0]) for times in message_times(self._graph, self._settings, keys))
        port = topologies.route(self._graph, src, dst)[0]
        # messages of one port leave one after another; nothing else holds them up
        begin_ps = max(self.now_ps, self._port_free_ps.get(port, 0))
        self._port_free_ps[port] = begin_ps + hold_ps
        message = self._posted
        self._posted += 1
        heapq.heappush(self._reports, MessageReport(begin_ps + left_ps, message, has_arrived=False))
        heapq.heappush(self._reports, MessageReport(begin_ps + total_ps, message, has_arrived=True))
        return message

    def next_event_ps(self) -> int | None:
        """Return the time of the next report; None = nothing is left."""
        return self._reports[0].time_ps if self._reports else None

    def advance(self, until_ps: int) -> list[MessageReport]:
        """Return the reports before until_ps, and make this time the present."""
        self.now_ps = max(self.now_ps, until_ps)
        found = []
        while self._reports and self._reports[0].time_ps < until_ps:
            found.append(heapq.heappop(self._reports))
        return found
