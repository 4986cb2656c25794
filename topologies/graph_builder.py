"""Assembly of a `Graph` from NPUs, switches and cables, or from a networkx graph, with checks.

Parallel NVSwitches and NVLinks are one: a GPU stripes what it sends over all NVLinks that lead to the same GPUs. NVLink
interleaves addresses over the NVSwitches of a host, which no choice of a path by connection imitates. Source:
Foley and Danskin, "Ultra-Performance Pascal GPU and NVLink Interconnect" (IEEE Micro 37(2), 2017); NCCL takes all
NVSwitches of a host as one, too (NVIDIA/nccl, src/graph/topo.cc).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nadi.inputs.arrays import Int64
from nadi.inputs.limits import LINK_RATE_BPS, LONGEST_DELAY_PS, MAX_CABLES, MAX_NODES, MAX_NPUS
from nadi.inputs.units import parse_delay, parse_link_rate, short
from nadi.topologies.dimension_routing import Hierarchy, build_dimension_routing
from nadi.topologies.graph import NPU, NVSWITCH, SWITCH, Graph, TopologyError
from nadi.topologies.table_routing import TableRouting, build_table_routing, refuse_parts


class GraphBuilder:
    """Builder of a graph (its name begins errors): add NPUs first, then switches and cables, then take the graph."""

    def __init__(self, name: str, npus: int) -> None:
        """Begin a graph of `npus` NPUs (1 to MAX_NPUS, else TopologyError) without cables; errors begin with `name`."""
        if not 1 <= npus <= MAX_NPUS:
            raise TopologyError.at(name, f"{npus} NPUs", f"1 to {MAX_NPUS}")
        self.name = name
        self.npus = npus
        self._switch_names: list[str] = []
        self._prefix_count: Counter[str] = Counter()
        self._kind: list[npt.NDArray[np.int64]] = [np.full(npus, NPU)]
        self._latency: list[npt.NDArray[np.int64]] = [np.zeros(npus, np.int64)]
        self._pod: list[npt.NDArray[np.int64]] = [np.full(npus, -1)]
        self._group: list[npt.NDArray[np.int64]] = [np.full(npus, -1)]
        self._cables: list[npt.NDArray[np.int64]] = []
        self._cable_count = 0
        self._bisection: tuple[int, bool] | None = None

    @property
    def nodes(self) -> int:
        """Number of nodes so far."""
        return self.npus + len(self._switch_names)

    def add_switches(
        self, prefix: str, count: int, *, latency_ps: int = 0, kind: int = SWITCH, pod: int = -1
    ) -> npt.NDArray[np.int64]:
        """Add `count` switches "prefix 0", ... (numbered on over calls), in a pod or none, -1; return int64[count].

        Args:
            prefix: The word before the number in the names of the switches.
            count: The number of switches to add.
            latency_ps: The forwarding latency of each switch in picoseconds.
            kind: SWITCH or NVSWITCH.
            pod: The number of the pod that the switches belong to; -1 for none.
        """
        self._refuse_too_many(count)
        begin = self._prefix_count[prefix]
        self._prefix_count[prefix] += count
        return self.add_named_switches(
            [f"{prefix} {i}" for i in range(begin, begin + count)], latency_ps=latency_ps, kind=kind, pod=pod
        )

    def add_named_switches(
        self,
        names: Sequence[str],
        *,
        latency_ps: npt.ArrayLike = 0,
        kind: npt.ArrayLike = SWITCH,
        pod: npt.ArrayLike = -1,
        group: npt.ArrayLike = -1,
    ) -> npt.NDArray[np.int64]:
        """Add switches; return their nodes, int64[count].

        Args:
            names: The names of the switches, which must differ from each other.
            latency_ps: The forwarding latency in picoseconds, one value or int[count].
            kind: SWITCH or NVSWITCH, one value or int[count].
            pod: The number of the pod, -1 for none, one value or int[count].
            group: The number of the group, as of a dragonfly, -1 for none, one value or int[count].
        """
        first = self.nodes
        self._refuse_too_many(len(names))
        self._switch_names.extend(names)
        columns = (self._kind, kind), (self._latency, latency_ps), (self._pod, pod), (self._group, group)
        for column, values in columns:
            column.append(np.broadcast_to(np.asarray(values, np.int64), len(names)))
        return np.arange(first, first + len(names))

    def add_cables(
        self, a: npt.ArrayLike, b: npt.ArrayLike, rate_bps: npt.ArrayLike, delay_ps: npt.ArrayLike, count: int = 1
    ) -> None:
        """Add `count` cables per pair (a[i], b[i]) of nodes; arguments are broadcast. TopologyError for too many.

        Args:
            a: The node at one end of each cable, one value or int[pairs].
            b: The node at the other end of each cable, one value or int[pairs].
            rate_bps: The rate of each direction in bits per second, one value or int[pairs].
            delay_ps: The propagation delay in picoseconds, one value or int[pairs].
            count: The number of parallel cables for each pair.
        """
        columns = np.broadcast_arrays(*(np.asarray(x, np.int64).reshape(-1) for x in (a, b, rate_bps, delay_ps)))
        # counted before they are repeated, so that too many cables are refused without memory for them
        self._cable_count += count * len(columns[0])
        if self._cable_count > MAX_CABLES:
            raise TopologyError.at(self.name, f"{self._cable_count} cables", f"at most {MAX_CABLES}")
        self._cables.append(np.repeat(np.stack(columns), count, axis=1))

    def set_npu_pods(self, pod: npt.ArrayLike) -> None:
        """Set the pod of each NPU: one value or int[npus].

        Args:
            pod: The number of the pod, -1 for none, one value or int[npus].
        """
        self._pod[0] = np.broadcast_to(np.asarray(pod, np.int64), self.npus)

    def set_bisection(self, rate_bps: int, *, is_exact: bool) -> None:
        """Set the bisection, which only the builder of a network without tiers knows.

        Args:
            rate_bps: Rate of one direction over the smallest cut of the NPUs into two halves.
            is_exact: Whether it is exact; otherwise it is an estimate.
        """
        self._bisection = rate_bps, is_exact

    def graph(
        self,
        *,
        dims: Sequence[int] = (),
        host: npt.ArrayLike | None = None,
        layout: Hierarchy | None = None,
        accelerator: str = "",
        npus_per_nic: int = 1,
        in_parts: bool = False,
    ) -> Graph:
        """Return the finished graph, with its routing.

        NVSwitches that join the same nodes are one, and NVLinks between two nodes: `topologies.graph_builder`.
        Raises TopologyError: a link has a rate or delay out of bounds or joins a node
        to itself, an NPU has no link, two NPUs are not connected, dims or host do not fit, or the network cannot be
        routed.

        Args:
            dims: Sizes of the logical dimensions, fastest first; empty means one dimension of all NPUs.
            host: int[npus], the server of each NPU; None means one server per NPU.
            layout: The dimensions that route packets; None means routing by tables over the switches.
            accelerator: The model of the NPUs, such as "h100"; "" if it is unknown.
            npus_per_nic: The number of consecutive NPUs of a server whose links are equal parts of one NIC.
            in_parts: Whether NPUs may be without a path to each other, until optical switches connect them.
        """
        try:
            graph = self._graph(tuple(dims) or (self.npus,), host, layout, accelerator, npus_per_nic)
        except TopologyError as error:
            raise TopologyError(f"{self.name}: {error}") from None
        if not in_parts:
            refuse_parts(self.name, self.npus, graph.routing)
        return graph

    def _graph(
        self,
        dims: tuple[int, ...],
        host: npt.ArrayLike | None,
        layout: Hierarchy | None,
        accelerator: str,
        npus_per_nic: int,
    ) -> Graph:
        """Return the finished graph; arguments as of `graph`. Raises TopologyError: something in it is wrong."""
        cables = self._checked(np.concatenate([np.zeros((4, 0), np.int64), *self._cables], axis=1))
        if layout is None:
            cables = self._checked(self._with_parallel_nvlinks_as_one(cables))
        a, b, rate_bps, delay_ps = cables
        if math.prod(dims) != self.npus:
            raise TopologyError(
                f"dims {'x'.join(map(str, dims))} multiply to {math.prod(dims)}; expected {self.npus} NPUs"
            )
        host_of_npu = np.arange(self.npus) if host is None else np.asarray(host)
        if host_of_npu.shape != (self.npus,):
            raise TopologyError(f"host has {host_of_npu.size} entries; expected {self.npus}, one for each NPU")
        # links 2c and 2c + 1 are the two directions of cable c: link ^ 1 is the reverse of a link
        link_src = np.stack([a, b], axis=1).reshape(-1).astype(np.int32)
        link_dst = np.stack([b, a], axis=1).reshape(-1).astype(np.int32)
        return Graph(
            name=self.name,
            npus=self.npus,
            nodes=self.nodes,
            links=len(link_src),
            node_kind=np.concatenate(self._kind).astype(np.int8),
            node_latency_ps=np.concatenate(self._latency),
            link_src=link_src,
            link_dst=link_dst,
            link_rate_bps=np.repeat(rate_bps, 2),
            link_delay_ps=np.repeat(delay_ps, 2),
            dims=dims,
            host=host_of_npu.astype(np.int32),
            pod=np.concatenate(self._pod).astype(np.int32),
            group=np.concatenate(self._group).astype(np.int32),
            routing=build_dimension_routing(layout, link_src, link_dst)
            if layout
            else self._table_routing(link_src, link_dst),
            switch_names=tuple(self._switch_names),
            accelerator=accelerator,
            npus_per_nic=npus_per_nic,
            bisection=self._bisection,
        )

    def _with_parallel_nvlinks_as_one(self, cables: Int64) -> Int64:
        """Remove all NVSwitches but the first that join the same nodes; return the cables between what is left."""
        kind = np.concatenate(self._kind)
        # NVSwitches come first, as merged switches turn further NVLinks into parallel ones
        first = same_switch(kind, cables)
        kept = first == np.arange(len(first))
        if not kept.all():
            # new number of each node that stays
            number = np.cumsum(kept) - 1
            latency_ps = np.concatenate(self._latency)
            # the slowest of the merged switches decides, as a striped message waits for its last part
            np.maximum.at(latency_ps, first, latency_ps)
            self._kind, self._latency = [kind[kept]], [latency_ps[kept]]
            self._pod, self._group = [np.concatenate(self._pod)[kept]], [np.concatenate(self._group)[kept]]
            self._switch_names = [name for name, own in zip(self._switch_names, kept[self.npus :], strict=True) if own]
            cables = np.concatenate([number[first[cables[:2]]], cables[2:]])
        return striped(np.concatenate(self._kind), cables)

    def _checked(self, cables: Int64) -> Int64:
        """Return cables, int64[4, cables]: two ends, rate, delay. Raises TopologyError: a cable is invalid."""
        a, b, rate_bps, delay_ps = cables
        for wrong, error, values in (
            ((np.minimum(a, b) < 0) | (np.maximum(a, b) >= self.nodes), f"expected nodes 0 to {self.nodes - 1}", None),
            (a == b, "expected two different nodes", None),
            (
                (rate_bps < LINK_RATE_BPS.minimum) | (rate_bps > LINK_RATE_BPS.maximum),
                f"has a rate of {{}} bps; expected {LINK_RATE_BPS.minimum} to {LINK_RATE_BPS.maximum}",
                rate_bps,
            ),
            (
                (delay_ps < 0) | (delay_ps > LONGEST_DELAY_PS),
                f"has a delay of {{}} ps; expected 0 to {LONGEST_DELAY_PS}",
                delay_ps,
            ),
        ):
            if wrong.any():
                i = int(np.argmax(wrong))
                problem = error.format(None if values is None else values[i])
                separator = "" if values is not None else ";"
                raise TopologyError(f"link {self._name(a[i])} - {self._name(b[i])}{separator} {problem}")
        return cables

    def _table_routing(self, link_src: npt.NDArray[np.int32], link_dst: npt.NDArray[np.int32]) -> TableRouting:
        """Return routing by tables for links from and to nodes, int32[links] each; TopologyError without paths."""
        degree = np.bincount(link_src, minlength=self.nodes)[: self.npus]
        if self.npus > 1 and not degree.all():
            raise TopologyError(f"npu {np.argmin(degree)} has no link; expected one or more")
        return build_table_routing(self.npus, self.nodes, link_src, link_dst, np.concatenate(self._group))

    def _refuse_too_many(self, more: int) -> None:
        if self.nodes + more > MAX_NODES:
            raise TopologyError.at(self.name, f"{self.nodes + more} nodes", f"at most {MAX_NODES}")

    def _name(self, node: int) -> str:
        """Return the name of a node, for error messages."""
        if self.npus <= node < self.nodes:
            return self._switch_names[node - self.npus]
        return f"npu {node}" if 0 <= node < self.npus else f"node {node}"


def same_switch(kind: Int64, cables: Int64) -> Int64:
    """Return int64[nodes]: for each node itself, for an NVSwitch the first one that joins exactly the same nodes.

    Args:
        kind: int64[nodes], the kind of each node.
        cables: int64[4, cables], the two ends, rate in bits per second and delay in picoseconds of each cable.
    """
    first = np.arange(len(kind))
    inside = (kind[cables[:2]] == NVSWITCH).any(axis=0)
    if (kind == NVSWITCH).sum() < 2 or not inside.any():
        return first
    # each cable in both directions, so that the first row has every NVSwitch with every neighbour
    ends = np.concatenate([cables[:2, inside], cables[1::-1, inside]], axis=1)
    ends = ends[:, kind[ends[0]] == NVSWITCH]
    # a pair as one number: np.unique sorts integers much faster than rows
    switch, neighbour = np.divmod(np.unique(ends[0] * len(kind) + ends[1]), len(kind))
    # pairs are sorted by switch: neighbours of one switch are the run from one bound to the next
    bounds = np.flatnonzero(np.diff(switch, prepend=-1))
    # neighbours are sorted, so that equal sets have equal bytes
    seen: dict[bytes, int] = {}
    for number, joined in zip(switch[bounds].tolist(), np.split(neighbour, bounds[1:]), strict=True):
        first[number] = seen.setdefault(joined.tobytes(), number)
    return first


def striped(kind: Int64, cables: Int64) -> Int64:
    """Return the cables with all NVLinks between two nodes as one, of their rates together and of the longest delay.

    Cables between an NVSwitch and another switch stay as they are.

    Args:
        kind: int64[nodes], the kind of each node.
        cables: int64[4, cables], the two ends, rate in bits per second and delay in picoseconds of each cable.
    """
    ends = kind[cables[:2]]
    nvlink = ((ends == NVSWITCH) | (ends == NPU)).all(axis=0)
    # a cable has no direction: the lower end first
    low, high = np.sort(cables[:2, nvlink], axis=0)
    pair, first, of_pair = np.unique(low * len(kind) + high, return_index=True, return_inverse=True)
    if len(pair) == len(low):
        return cables
    merged = cables[:, np.flatnonzero(nvlink)[first]]
    rate_bps = np.bincount(of_pair, cables[2, nvlink])  # exact below 2^53 bps, and checked against a lower maximum
    merged[2], merged[3] = np.minimum(rate_bps, 2**53), 0
    np.maximum.at(merged[3], of_pair, cables[3, nvlink])
    # a merged cable takes the place of its first one, so that numbers of links change as little as possible
    position = np.concatenate([np.flatnonzero(~nvlink), np.flatnonzero(nvlink)[first]])
    return np.concatenate([cables[:, ~nvlink], merged], axis=1)[:, np.argsort(position)]


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
    Raises TopologyError: the graph is directed; a node has no kind or an unknown one; a value is no time, rate or
    number; or
    `GraphBuilder.graph` refuses the network.

    Args:
        graph: An undirected graph or multigraph of networkx.
        name: The name of the network in messages and results; "" means the name of the graph.
        dims: Sizes of the logical dimensions of the NPUs, fastest first; empty means one dimension of all NPUs.
        rate: The rate of edges without an attribute `rate`, as "400Gbps" or in bits per second; None for no default.
        delay: The delay of edges without an attribute `delay`, as "500ns" or in picoseconds; None for no default.
        accelerator: The model of the NPUs, such as "h100"; "" if it is unknown.
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
    # NPUs first, then switches, as GraphBuilder numbers nodes
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


def _parsed(parse: Any, value: object, label: str) -> int:  # noqa: ANN401 - a function of inputs.quantities
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
