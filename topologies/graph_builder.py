"""Assembly of a `Graph` from NPUs, switches and cables, with checks."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nadi.inputs.limits import MAX_NPUS
from nadi.topologies.bounds import LINK_RATE_BPS, LONGEST_DELAY_PS, MAX_CABLES, MAX_NODES
from nadi.topologies.dimension_routing import Hierarchy, build_dimension_routing
from nadi.topologies.errors import TopologyError
from nadi.topologies.graph import NPU, SWITCH, Graph, Int64, TableRouting
from nadi.topologies.parallel_nvlinks import same_switch, striped
from nadi.topologies.table_routing import build_table_routing, unreachable_pair


class GraphBuilder:
    """Builder of a graph (its name begins errors): add NPUs first, then switches and cables, then take the graph."""

    def __init__(self, name: str, npus: int) -> None:
        """Begin a graph of `npus` NPUs (1 to MAX_NPUS, else TopologyError) without cables; name: begin of errors."""
        if not 1 <= npus <= MAX_NPUS:
            raise TopologyError.at(name, f"{npus} NPUs", f"1 to {MAX_NPUS}")
        self.name = name
        self.npus = npus
        self._switch_names: list[str] = []
        self._prefix_count: Counter[str] = Counter()
        self._kind: list[npt.NDArray[np.int64]] = [np.full(npus, NPU)]
        self._latency: list[npt.NDArray[np.int64]] = [np.zeros(npus, np.int64)]
        self._pod: list[npt.NDArray[np.int64]] = [np.full(npus, -1)]
        self._cables: list[npt.NDArray[np.int64]] = []
        self._cable_count = 0

    @property
    def nodes(self) -> int:
        """Number of nodes so far."""
        return self.npus + len(self._switch_names)

    def add_switches(
        self, prefix: str, count: int, *, latency_ps: int = 0, kind: int = SWITCH, pod: int = -1
    ) -> npt.NDArray[np.int64]:
        """Add `count` switches "prefix 0", ... (numbered on over calls), in a pod or none, -1; return int64[count]."""
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
    ) -> npt.NDArray[np.int64]:
        """Add switches; return their nodes, int64[count]. latency_ps, kind, pod (-1 = none): one value, or one each."""
        first = self.nodes
        self._refuse_too_many(len(names))
        self._switch_names.extend(names)
        for column, values in ((self._kind, kind), (self._latency, latency_ps), (self._pod, pod)):
            column.append(np.broadcast_to(np.asarray(values, np.int64), len(names)))
        return np.arange(first, first + len(names))

    def add_cables(
        self, a: npt.ArrayLike, b: npt.ArrayLike, rate_bps: npt.ArrayLike, delay_ps: npt.ArrayLike, count: int = 1
    ) -> None:
        """Add `count` cables per pair (a[i], b[i]) of nodes; arguments are broadcast. TopologyError for too many."""
        columns = np.broadcast_arrays(*(np.asarray(x, np.int64).reshape(-1) for x in (a, b, rate_bps, delay_ps)))
        self._cable_count += count * len(columns[0])
        if self._cable_count > MAX_CABLES:
            raise TopologyError.at(self.name, f"{self._cable_count} cables", f"at most {MAX_CABLES}")
        self._cables.append(np.repeat(np.stack(columns), count, axis=1))

    def set_npu_pods(self, pod: npt.ArrayLike) -> None:
        """Set the pod of each NPU: one value or int[npus]."""
        self._pod[0] = np.broadcast_to(np.asarray(pod, np.int64), self.npus)

    def graph(
        self,
        *,
        dims: Sequence[int] = (),
        host: npt.ArrayLike | None = None,
        layout: Hierarchy | None = None,
        accelerator: str = "",
    ) -> Graph:
        """Return the finished graph, with its routing.

        NVSwitches that join the same nodes are one, and NVLinks between two nodes: `topologies.parallel_nvlinks`.
        dims: logical dimensions, fastest first, empty = one of all NPUs; host: int[npus], server of each NPU, None =
        one server per NPU; layout: dimensions for routing, None = routing by tables over the switches; accelerator:
        model of the NPUs, "" = unknown. Raises TopologyError: a link has a rate or delay out of bounds or joins a node
        to itself, an NPU has no link, two NPUs are not connected, dims or host do not fit, or the network cannot be
        routed.
        """
        try:
            return self._graph(tuple(dims) or (self.npus,), host, layout, accelerator)
        except TopologyError as error:
            raise TopologyError(f"{self.name}: {error}") from None

    def _graph(
        self, dims: tuple[int, ...], host: npt.ArrayLike | None, layout: Hierarchy | None, accelerator: str
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
            routing=build_dimension_routing(layout, link_src, link_dst)
            if layout
            else self._table_routing(link_src, link_dst),
            switch_names=tuple(self._switch_names),
            accelerator=accelerator,
        )

    def _with_parallel_nvlinks_as_one(self, cables: Int64) -> Int64:
        """Remove all NVSwitches but the first that join the same nodes; return the cables between what is left."""
        kind = np.concatenate(self._kind)
        first = same_switch(kind, cables)
        kept = first == np.arange(len(first))
        if not kept.all():
            number = np.cumsum(kept) - 1
            latency_ps = np.concatenate(self._latency)
            np.maximum.at(latency_ps, first, latency_ps)
            self._kind, self._latency = [kind[kept]], [latency_ps[kept]]
            self._pod = [np.concatenate(self._pod)[kept]]
            self._switch_names = [name for name, own in zip(self._switch_names, kept[self.npus :], strict=True) if own]
            cables = np.concatenate([number[first[cables[:2]]], cables[2:]])
        return striped(np.concatenate(self._kind), cables)

    def _checked(self, cables: Int64) -> Int64:
        """Return cables, int64[4, cables]: two ends, rate, delay. Raises TopologyError: a cable is invalid."""
        a, b, rate_bps, delay_ps = cables
        for wrong, complaint, values in (
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
                problem = complaint.format(None if values is None else values[i])
                separator = "" if values is not None else ";"
                raise TopologyError(f"link {self._name(a[i])} - {self._name(b[i])}{separator} {problem}")
        return cables

    def _table_routing(self, link_src: npt.NDArray[np.int32], link_dst: npt.NDArray[np.int32]) -> TableRouting:
        """Return routing by tables for links from and to nodes, int32[links] each; TopologyError without paths."""
        degree = np.bincount(link_src, minlength=self.nodes)[: self.npus]
        if self.npus > 1 and not degree.all():
            raise TopologyError(f"npu {np.argmin(degree)} has no link; expected one or more")
        routing = build_table_routing(self.npus, self.nodes, link_src, link_dst)
        pair = unreachable_pair(self.npus, routing)
        if pair:
            raise TopologyError(
                f"no path of switches from npu {pair[0]} to npu {pair[1]}; "
                "expected a connected network, as NPUs carry no transit"
            )
        return routing

    def _refuse_too_many(self, more: int) -> None:
        if self.nodes + more > MAX_NODES:
            raise TopologyError.at(self.name, f"{self.nodes + more} nodes", f"at most {MAX_NODES}")

    def _name(self, node: int) -> str:
        """Return the name of a node, for error messages."""
        if self.npus <= node < self.nodes:
            return self._switch_names[node - self.npus]
        return f"npu {node}" if 0 <= node < self.npus else f"node {node}"
