"""Conversion of [[faults]] of a run file to the engine's fault schedule for a fabric."""

from collections.abc import Sequence

import numpy as np

import pdes
from nadi.configuration.faults import FaultSection
from nadi.errors import ConfigError
from nadi.simulation.wiring.node_names import NodeNames
from topologies import Graph, TableRouting, routing_without

_MAX_NEIGHBOURS = 6


def schedule(faults: Sequence[FaultSection], detection_time_ps: int, graph: Graph, *, cut_through: bool) -> pdes.Faults:
    """Return the engine's fault schedule with the routings that it needs.

    Args:
        faults: Faults of the run file.
        detection_time_ps: Time in picoseconds from when links go down or come up until routes change.
        graph: Fabric of the run.
        cut_through: True = switches cut through.

    Raises:
        ConfigError: The fabric lacks a node or link, changes of one property overlap, or the fabric or its switches do
            not support the fault.
    """
    links, npus = [], []
    names = NodeNames(graph)
    reserved: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for number, fault in enumerate(faults):
        place = _FaultPlace(graph, names, fault, f"[faults.{number}]")
        where = place.where
        if fault.npu is not None:
            npu = place.npu()
            _reserve(reserved, "npu", [npu], fault, number)
            npus.append(pdes.NpuFault(npu, fault.at, fault.until_ps, float(fault.slowdown or 1)))
            continue
        affected = place.links_of_switch() if fault.switch is not None else place.links()
        if fault.switch is None or fault.state is None:  # a link may be down for several reasons
            _reserve(reserved, fault.what, affected, fault, number)
        if fault.state and not isinstance(graph.routing, TableRouting):
            raise ConfigError(
                f"{where} state: {graph.name} is routed by dimensions, with no way around a link that is down; "
                "expected rate, added_latency or error_rate, or a fabric with switches"
            )
        if fault.rate and cut_through:
            raise ConfigError(f"{where} rate: rates do not change where switches cut through; expected another fault")
        links.append(
            pdes.LinkFault(
                tuple(affected),
                fault.at,
                fault.until_ps,
                down=fault.state is not None,
                rate_bps=fault.rate or 0,
                added_latency_ps=fault.added_latency or 0,
                error_rate=fault.error_rate or 0.0,
            )
        )
    routings = {down: routing_without(graph, down) for _, down in pdes.down_sets(links) if down}
    return pdes.Faults(tuple(links), tuple(npus), detection_time_ps, routings)


class _FaultPlace:
    """NPU or links of a fault; every method raises ConfigError if the fabric has no such NPU, switch or link."""

    def __init__(self, graph: Graph, names: NodeNames, fault: FaultSection, where: str) -> None:
        self._graph = graph
        self._names = names
        self._fault = fault
        self.where = where

    def npu(self) -> int:
        """Return the NPU."""
        npu = self._node("npu")
        if not 0 <= npu < self._graph.npus:
            raise ConfigError(
                f"{self.where} npu: found {self._fault.npu}; expected one of the NPUs 0 to {self._graph.npus - 1}"
            )
        return npu

    def links_of_switch(self) -> list[int]:
        """Return both directions of all links of a switch."""
        graph, node = self._graph, self._node("switch")
        if not graph.npus <= node < graph.nodes:
            found = f"{self.where} switch: found {self._fault.switch}"
            if graph.nodes == graph.npus:
                raise ConfigError(f"{found}, but {graph.name} has no switches")
            first, last = graph.node_name(graph.npus), graph.node_name(graph.nodes - 1)
            raise ConfigError(
                f"{found}; expected a switch, as {first!r} or {last!r}, or its node, {graph.npus} to {graph.nodes - 1}"
            )
        return np.flatnonzero((graph.link_src == node) | (graph.link_dst == node)).tolist()

    def links(self) -> list[int]:
        """Return both directions of the cables that the fault names."""
        graph, link = self._graph, self._fault.link
        if not isinstance(link, str):
            if link is None or not 0 <= link < graph.links:
                raise ConfigError(f"{self.where} link: found {link}; expected one of the links 0 to {graph.links - 1}")
            return [link & ~1, link | 1]
        try:
            a, b = self._names.ends(link)
        except ValueError as error:
            raise ConfigError(f"{self.where} link: {error}") from None
        links = np.flatnonzero((graph.link_src == a) & (graph.link_dst == b))
        if not len(links):
            near = sorted(set(graph.link_dst[graph.out_links(a)].tolist()))[:_MAX_NEIGHBOURS]
            raise ConfigError(
                f"{self.where} link: {graph.node_name(a)} and {graph.node_name(b)} are not linked; "
                f"nodes next to {a}: {', '.join(f'{node} ({graph.node_name(node)})' for node in near)}"
            )
        cable = self._fault.cable
        if cable is not None:
            if not 0 <= cable < len(links):
                raise ConfigError(f"{self.where} cable: found {cable}; expected 0 to {len(links) - 1}")
            links = links[[cable]]
        return sorted([*links.tolist(), *(links ^ 1).tolist()])

    def _node(self, key: str) -> int:
        node = getattr(self._fault, key)
        if isinstance(node, int):
            return node
        try:
            return self._names.node(node)
        except ValueError as error:
            raise ConfigError(f"{self.where} {key}: {error}") from None


def _reserve(
    reserved: dict[tuple[str, int], list[tuple[int, int, int]]],
    what: str,
    places: Sequence[int],
    fault: FaultSection,
    number: int,
) -> None:
    """Record that a fault changes a property of these links or NPUs for a time; refuse overlaps with another fault."""
    for place in places:
        own = reserved.setdefault((what, place), [])
        for begin, end, other in own:
            if other != number and fault.at < end and begin < fault.until_ps:
                raise ConfigError(
                    f"[faults.{number}] {fault.what}: overlaps with [faults.{other}], which changes the same "
                    "property of the same NPU or link; expected one to end before the other begins"
                )
        own.append((fault.at, fault.until_ps, number))
