"""Networks from networkx graphs, with attributes that describe nodes and edges."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nadi.topologies.errors import TopologyError
from nadi.topologies.graph import NVSWITCH, SWITCH, Graph
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.units import parse_delay, parse_link_rate, short

if TYPE_CHECKING:
    import networkx as nx

_NPU = "npu"
_SWITCH_KINDS = {"switch": SWITCH, "nvswitch": NVSWITCH}


def from_networkx(
    graph: "nx.Graph[Any]",
    *,
    name: str = "",
    dims: Sequence[int] = (),
    rate: str | int | None = None,
    delay: str | int | None = None,
    accelerator: str = "",
) -> Graph:
    """Return the network of an undirected graph, with shortest paths over its switches.

    A node has the attribute `kind`: "npu", "switch" or "nvswitch"; the NPUs are numbered in the order of the graph. It
    may have `latency` (of a switch, "300ns"), `host` (of an NPU, a number: NPUs of one server have the same) and `pod`.
    An edge is a cable, or `count` of them, with `rate` ("400Gbps", or bits per second) and `delay` ("500ns", or
    picoseconds). Edges of a MultiGraph are parallel cables.
    name: for messages and results, "" = that of the graph; dims: logical dimensions of the NPUs, fastest first, empty =
    one of all; rate, delay: of edges without one; accelerator: model of the NPUs, "h100", "" = unknown. Raises
    TopologyError: the graph is directed; a node has no kind or an unknown one; a value is no time, rate or number; or
    `GraphBuilder.graph` refuses the network.
    """
    label = name or graph.name or "networkx graph"
    if graph.is_directed():
        raise TopologyError.at(label, "a directed graph", "an undirected one, whose edges are cables")
    kinds = dict(graph.nodes(data="kind"))
    for node, kind in kinds.items():
        if kind != _NPU and kind not in _SWITCH_KINDS:
            raise TopologyError.at(label, f"node {node!r}: kind {short(kind)}", "npu, switch or nvswitch")
    npus = [node for node, kind in kinds.items() if kind == _NPU]
    switches = [node for node, kind in kinds.items() if kind != _NPU]
    builder = GraphBuilder(label, len(npus))
    attributes = graph.nodes
    builder.set_npu_pods([_number(label, node, attributes[node], "pod") for node in npus])
    builder.add_named_switches(
        [str(node) for node in switches],
        latency_ps=[
            _parsed(parse_delay, attributes[node].get("latency", 0), f"{label}: node {node!r}") for node in switches
        ],
        kind=[_SWITCH_KINDS[kinds[node]] for node in switches],
        pod=[_number(label, node, attributes[node], "pod") for node in switches],
    )
    number = {node: i for i, node in enumerate((*npus, *switches))}
    cables = list(_cables(graph, label, {"rate": rate, "delay": delay}))
    if cables:
        ends = np.array([(number[a], number[b]) for a, b, *_ in cables], np.int64)
        rate_bps, delay_ps, count = np.array([rest for _, _, *rest in cables], np.int64).T
        repeats = np.repeat(np.arange(len(cables)), count)
        builder.add_cables(ends[repeats, 0], ends[repeats, 1], rate_bps[repeats], delay_ps[repeats])
    hosts = None
    if any("host" in attributes[node] for node in npus):
        without = next((node for node in npus if "host" not in attributes[node]), None)
        if without is not None:
            raise TopologyError.at(label, f"node {without!r}: no host", "one for each NPU, or for none")
        hosts = [_number(label, node, attributes[node], "host") for node in npus]
    return builder.graph(dims=dims, host=hosts, accelerator=accelerator)


def _cables(
    graph: "nx.Graph[Any]", label: str, edge_defaults: Mapping[str, str | int | None]
) -> Iterator[tuple[Any, Any, int, int, int]]:
    """Yield both ends, rate in bps, delay in ps and count of each edge."""
    # label: name of the network, for errors; edge_defaults: values of "rate" and "delay" of edges without them.
    for a, b, data in graph.edges(data=True):
        place = f"{label}: edge {a!r} - {b!r}"
        values = {key: data.get(key, default) for key, default in edge_defaults.items()}
        missing = next((key for key, value in values.items() if value is None), None)
        if missing:
            raise TopologyError.at(place, f"no {missing}", "one on the edge, or for all edges")
        count = data.get("count", 1)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise TopologyError.at(place, f"count {short(count)}", "a whole number from 1")
        yield a, b, _parsed(parse_link_rate, values["rate"], place), _parsed(parse_delay, values["delay"], place), count


def _parsed(parse: Any, value: object, label: str) -> int:  # noqa: ANN401 - a function of topologies.units
    """Return a whole number as it is, and text with a unit as `parse` reads it; label: begin of errors."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    try:
        return int(parse(value))
    except ValueError as error:
        raise TopologyError(f"{label}: {error}") from None


def _number(label: str, node: object, data: Mapping[str, Any], key: str) -> int:
    """Return attribute `key` of a node, a whole number (-1 without it); label: name of the network, for errors."""
    value = data.get(key, -1)
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TopologyError.at(label, f"node {node!r}: {key} {short(value)}", "a whole number")
    return int(value)
