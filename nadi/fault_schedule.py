"""From [[faults]] of a run file to the engine's schedule for a fabric."""

from collections.abc import Sequence

import numpy as np

import pdes
from nadi.errors import ConfigError
from nadi.faults import FaultSection
from topologies import Graph, TableRouting, routing_without


def schedule(faults: Sequence[FaultSection], detection_ps: int, graph: Graph, *, cut_through: bool) -> pdes.Faults:
    """The engine's schedule, with the routings that it needs.

    Args:
        faults: of the run file.
        detection_ps: routes change so long after links go down or come up.
        graph: the fabric.
        cut_through: whether switches cut through.

    Raises:
        ConfigError: a node or link that the fabric lacks, changes of the same thing that overlap, or what a fabric or
            switch of this kind cannot do.
    """
    links, npus = [], []
    taken: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for number, fault in enumerate(faults):
        where = f"[faults.{number}]"
        if fault.npu is not None:
            _check_npu(graph, fault.npu, where)
            _take(taken, "npu", [fault.npu], fault, number)
            npus.append(pdes.NpuFault(fault.npu, fault.at, fault.until_ps, float(fault.slowdown or 1)))
            continue
        found = _links_of_switch(graph, fault, where) if fault.switch is not None else _links(graph, fault, where)
        if fault.switch is None:
            _take(taken, fault.what, found, fault, number)
        if fault.state and not isinstance(graph.routing, TableRouting):
            raise ConfigError(
                f"{where} state: {graph.name} is routed by dimensions, with no way around a link that is down; "
                "expected rate, added_latency or error_rate, or a fabric with switches"
            )
        if fault.rate and cut_through:
            raise ConfigError(f"{where} rate: rates do not change where switches cut through; expected another fault")
        links.append(
            pdes.LinkFault(
                tuple(found),
                fault.at,
                fault.until_ps,
                down=fault.state is not None,
                rate_bps=fault.rate or 0,
                added_latency_ps=fault.added_latency or 0,
                error_rate=fault.error_rate or 0.0,
            )
        )
    routings = {down: routing_without(graph, down) for _, down in pdes.down_sets(links) if down}
    return pdes.Faults(tuple(links), tuple(npus), detection_ps, routings)


def _check_npu(graph: Graph, npu: int, where: str) -> None:
    if not 0 <= npu < graph.npus:
        raise ConfigError(f"{where} npu: found {npu}; expected one of the NPUs 0 to {graph.npus - 1}")


def _links_of_switch(graph: Graph, fault: FaultSection, where: str) -> list[int]:
    """Both directions of all links of a switch."""
    node = fault.switch
    if node is None or not graph.npus <= node < graph.nodes:
        raise ConfigError(
            f"{where} switch: found {node}; expected a node of a switch, {graph.npus} to {graph.nodes - 1}"
            if graph.nodes > graph.npus
            else f"{where} switch: found {node}, but {graph.name} has no switches"
        )
    return np.flatnonzero((graph.link_src == node) | (graph.link_dst == node)).tolist()


def _links(graph: Graph, fault: FaultSection, where: str) -> list[int]:
    """Both directions of the cables that are meant."""
    if not isinstance(fault.link, str):
        number = fault.link
        if number is None or not 0 <= number < graph.links:
            raise ConfigError(f"{where} link: found {number}; expected one of the links 0 to {graph.links - 1}")
        return [number & ~1, number | 1]
    ends = [end.strip() for end in fault.link.split("-")]
    if len(ends) != 2 or not all(end.isascii() and end.isdigit() for end in ends):
        raise ConfigError(f'{where} link: found {fault.link!r}; expected the numbers of two nodes, as "12-40"')
    a, b = (int(end) for end in ends)
    for node in (a, b):
        if node >= graph.nodes:
            raise ConfigError(f"{where} link: found node {node}; expected one of the nodes 0 to {graph.nodes - 1}")
    there = np.flatnonzero((graph.link_src == a) & (graph.link_dst == b))
    if not len(there):
        near = sorted(set(graph.link_dst[graph.out_links(a)].tolist()))[:6]
        raise ConfigError(
            f"{where} link: {graph.node_name(a)} and {graph.node_name(b)} are not linked; "
            f"nodes next to {a}: {', '.join(map(str, near))}"
        )
    if fault.cable is not None:
        if not 0 <= fault.cable < len(there):
            raise ConfigError(f"{where} cable: found {fault.cable}; expected 0 to {len(there) - 1}")
        there = there[[fault.cable]]
    return sorted([*there.tolist(), *(there ^ 1).tolist()])


def _take(
    taken: dict[tuple[str, int], list[tuple[int, int, int]]],
    what: str,
    places: Sequence[int],
    fault: FaultSection,
    number: int,
) -> None:
    """Note that a fault has something of these links or NPUs for a time; refuse if another has."""
    for place in places:
        own = taken.setdefault((what, place), [])
        for begin, end, other in own:
            if other != number and fault.at < end and begin < fault.until_ps:
                raise ConfigError(
                    f"[faults.{number}] {fault.what}: overlaps with [faults.{other}], which changes the same of the "
                    "same; expected one to end before the other begins"
                )
        own.append((fault.at, fault.until_ps, number))
