"""A network at closed forms: each message takes its time alone, after those before it at its sender's port."""

import heapq

import numpy as np

import topologies
from nadi.simulation.closed_forms.advancing.folded_program import MessageKeys
from nadi.simulation.closed_forms.lone_message import message_times
from pdes import Settings
from pdes.fidelity.contract import MessageReport, check_message
from topologies import Graph


class IdleNetwork:
    """A Network (pdes/fidelity/contract.py) of a model without links; nothing reprices a message that was posted."""

    grid_ps = 1

    def __init__(self, graph: Graph, settings: Settings) -> None:
        self.now_ps = 0
        self._graph, self._settings = graph, settings
        self._posted = 0
        self._reports: list[MessageReport] = []  # heap of what is still to happen
        self._port_free_ps: dict[int, int] = {}  # by outgoing link

    def post(self, src: int, dst: int, size_bytes: int) -> int:
        """Post a message now, and return its number: the first has 0."""
        check_message(self._graph.npus, src, dst, size_bytes)
        keys = MessageKeys(np.array([src]), np.array([dst]), np.array([size_bytes]), np.ones(1))
        hold_ps, left_ps, total_ps = (int(times[0]) for times in message_times(self._graph, self._settings, keys))
        port = topologies.route(self._graph, src, dst)[0]
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
