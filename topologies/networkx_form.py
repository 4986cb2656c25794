"""A network from a networkx graph, whose nodes and edges say what they are by attributes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from topologies.errors import TopologyError
from topologies.graph import NVSWITCH, SWITCH, Graph
from topologies.graph_builder import GraphBuilder
from topologies.units import parse_delay, parse_link_rate, short

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
    """The network of an undirected graph, with shortest paths over its switches.

    A node has the attribute `kind`: "npu", "switch" or "nvswitch"; the NPUs are numbered in the order of the graph. It
    may have `latency` (of a switch, "300ns"), `host` (of an NPU, a number: NPUs of one server have the same) and `pod`.
    An edge is a cable, or `count` of them, with `rate` ("400Gbps", or bits per second) and `delay` ("500ns", or
    picoseconds). Edges of a MultiGraph are cables side by side.

    Args:
        graph: see above.
        name: for messages and results; "" = that of the graph.
        dims: logical dimensions of the NPUs, fastest first; none = one of all.
        rate: of edges that say none.
        delay: of edges that say none.
        accelerator: what the NPUs are, "h100"; "" = not known.

    Raises:
        TopologyError: a directed graph; a node without or of another kind; a value that is no time, rate or number; or
            what `GraphBuilder.graph` refuses.
    """
    label = name or graph.name or "networkx graph"
    if graph.is_directed():
        raise TopologyError(f"{label}: a directed graph; expected an undirected one, whose edges are cables")
    kinds = {node: _kind(label, node, data) for node, data in graph.nodes(data=True)}
    npus = [node for node, kind in kinds.items() if kind == _NPU]
    switches = [node for node, kind in kinds.items() if kind != _NPU]
    builder = GraphBuilder(label, len(npus))
    of = graph.nodes
    builder.set_npu_pods([_number(label, node, of[node], "pod") for node in npus])
    builder.add_named_switches(
        [str(node) for node in switches],
        latency_ps=[_parsed(parse_delay, of[node].get("latency", 0), f"{label}: node {node!r}") for node in switches],
        kind=[_SWITCH_KINDS[kinds[node]] for node in switches],
        pod=[_number(label, node, of[node], "pod") for node in switches],
    )
    number = {node: i for i, node in enumerate((*npus, *switches))}
    cables = list(_cables(graph, label, {"rate": rate, "delay": delay}))
    if cables:
        ends = np.array([(number[a], number[b]) for a, b, *_ in cables], np.int64)
        rate_bps, delay_ps, count = np.array([rest for _, _, *rest in cables], np.int64).T
        repeats = np.repeat(np.arange(len(cables)), count)
        builder.add_cables(ends[repeats, 0], ends[repeats, 1], rate_bps[repeats], delay_ps[repeats])
    return builder.graph(dims=dims, host=_hosts(label, npus, of), accelerator=accelerator)


def _kind(label: str, node: object, data: Mapping[str, Any]) -> str:
    kind = data.get("kind")
    if kind != _NPU and kind not in _SWITCH_KINDS:
        raise TopologyError(f"{label}: node {node!r}: kind {short(kind)}; expected npu, switch or nvswitch")
    return str(kind)


def _cables(
    graph: "nx.Graph[Any]", label: str, defaults: Mapping[str, str | int | None]
) -> Iterator[tuple[Any, Any, int, int, int]]:
    """Both ends, rate in bps, delay in ps and how many, of each edge."""
    for a, b, data in graph.edges(data=True):
        where = f"{label}: edge {a!r} - {b!r}"
        said = {key: data.get(key, default) for key, default in defaults.items()}
        missing = next((key for key, value in said.items() if value is None), None)
        if missing:
            raise TopologyError(f"{where}: no {missing}; expected one on the edge, or for all edges")
        count = data.get("count", 1)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise TopologyError(f"{where}: count {short(count)}; expected a whole number from 1")
        yield a, b, _parsed(parse_link_rate, said["rate"], where), _parsed(parse_delay, said["delay"], where), count


def _parsed(parse: Any, value: object, where: str) -> int:  # noqa: ANN401 - a function of topologies.units
    """A number as it is, else text with a unit."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    try:
        return int(parse(value))
    except ValueError as error:
        raise TopologyError(f"{where}: {error}") from None


def _hosts(label: str, npus: Sequence[Any], of: Any) -> list[int] | None:  # noqa: ANN401 - a view of networkx
    """The server of each NPU; None where no NPU says one."""
    if not any("host" in of[node] for node in npus):
        return None
    for node in npus:
        if "host" not in of[node]:
            raise TopologyError(f"{label}: node {node!r}: no host; expected one for each NPU, or for none")
    return [_number(label, node, of[node], "host") for node in npus]


def _number(label: str, node: object, data: Mapping[str, Any], key: str) -> int:
    value = data.get(key, -1)
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TopologyError(f"{label}: node {node!r}: {key} {short(value)}; expected a whole number")
    return int(value)
