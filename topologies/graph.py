"""A network as a value: nodes, directed links and the routing, in NumPy arrays; its size before it is built."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from nadi.inputs.arrays import Float64, Int8, Int32, Int64
from nadi.inputs.errors import InputError
from nadi.topologies.source_routes import SourceRoutes


class TopologyError(InputError):
    """A user-written topology cannot be built."""


NPU, SWITCH, NVSWITCH, AGGREGATOR = range(4)
RING, TABLE, SINGLE, NONE = 0, 1, 2, 3
_MAX_SHARES = 16  # approximate maximum sum of the shares of an NPU's NICs
RISING_PLACE = 126  # place in `Graph.link_order` of links behind which packets begin anew, in the next lane
UNREACHABLE = 127  # links of tables (topologies/table_routing.py) between switches that no path connects


class Routing(ABC):
    """How packets find their ways through a network: all that other files ask of a kind of routing.

    A kind of routing is a subclass in a file of its own, and a builder brings its routing. The engine's kernels know
    two forms: tables per first switch of the destination (`dimensions` is 0) and digits per dimension
    (pdes/construction/schedule.py fills their arrays). Routing that is not minimal chooses among paths of the same
    tables (pdes/network/detours).
    """

    set_ptr: Int32  # int32[sets + 1], see `set_link`
    set_link: Int32  # int32[], port set s holds the links set_link[set_ptr[s]:set_ptr[s + 1]], ascending

    npus_forward: ClassVar[bool] = False  # whether NPUs carry packets of others
    goes_around: ClassVar[bool] = False  # whether `without` finds paths around links that are down
    dimensions: int = 0  # number of dimensions whose digits the kernels correct; 0 = they look up tables
    homes_per_npu: int = 1  # maximum number of first switches of an NPU

    @property
    def stack(self) -> str:
        """The dimensions by which packets are routed, as topology `stack` takes them; "" = none."""
        return ""

    @abstractmethod
    def next_links(self, graph: "Graph", node: int, dst: int) -> list[int]:
        """Return the equal-cost links on which a packet at `node` may proceed towards NPU dst, ascending.

        Args:
            graph: The network in which packets travel.
            node: The number of the NPU or switch that has the packet.
            dst: The number of the NPU to which the packet travels.
        """

    @abstractmethod
    def path_links(self, src: Int64, dst: Int64) -> Int64:
        """Return int64[p]: number of links of the paths between different NPUs.

        Args:
            src: int64[p], the NPUs at which the paths begin.
            dst: int64[p], the NPUs at which the paths end.
        """

    @abstractmethod
    def longest_links(self) -> int:
        """Return an upper bound of the number of links of a path between NPUs."""

    @abstractmethod
    def diameter(self, npus: int) -> int:
        """Return the number of links of the longest path between NPUs, of which there are `npus`.

        Args:
            npus: The number of NPUs, which are the first nodes.
        """

    @abstractmethod
    def ecmp_width(self) -> int:
        """Return the maximum number of equal-cost links among which a node chooses."""

    @abstractmethod
    def loads(self, graph: "Graph", src: Int64, dst: Int64, packets: Float64) -> Float64:
        """Return float64[links]: packets of each link, shared among the links that `next_links` allows.

        Args:
            graph: The network.
            src: int64[p], the sending NPU of each pair.
            dst: int64[p], the receiving NPU of each pair, another than `src`.
            packets: float64[p], packets of each pair.
        """

    @abstractmethod
    def certain_loads(
        self, graph: "Graph", src: Int64, dst: Int64, amounts: Float64
    ) -> list[tuple[npt.NDArray[np.integer], Int64, Float64]]:
        """Return what must cross sets of links whatever paths are chosen: lists of links, their sets, and sums.

        Args:
            graph: The network.
            src: int64[p], the sending NPU of each pair.
            dst: int64[p], the receiving NPU of each pair.
            amounts: float64[k, p], k amounts of each pair; sums are float64[k, sets].
        """

    @abstractmethod
    def group_places(self, graph: "Graph") -> Callable[[Int64], list[Int64]]:
        """Return a function from groups of NPUs, int64[g, n], to arrays int64[g, w]; equal rows are equal places.

        Args:
            graph: The network.
        """

    def without(self, graph: "Graph", links: Collection[int]) -> "Routing":  # noqa: ARG002 - for those that go around
        """Return the routing while links are down; TopologyError if there is no way around them, as of this class.

        Args:
            graph: The complete network, which this routing routes.
            links: Numbers of the links that are down.
        """
        raise TopologyError(f"{graph.name} is routed by dimensions, which have no way around a link that is down")

    def bisection_bps(self, graph: "Graph") -> int | None:  # noqa: ARG002
        """Return the exact rate in bit/s of one direction between two halves of the NPUs; None = not known.

        Args:
            graph: The network.
        """
        return None

    def side_by_side(
        self,
        graph: "Graph",  # noqa: ARG002
        npu: int,  # noqa: ARG002
        links: npt.NDArray[np.integer],
    ) -> list[npt.NDArray[np.integer]]:
        """Return links of an NPU to ordinary switches, int[n], by those that are equally near to some other NPU.

        Args:
            graph: The network.
            npu: The number of the NPU.
            links: int[n], its links to ordinary switches.
        """
        return [links]

    def reaches(self, src: Int64, dst: Int64) -> npt.NDArray[np.bool_]:  # noqa: ARG002
        """Return bool[p]: whether a path leads from an NPU to another; none leads to the memory of another host.

        Args:
            src: int64[p], the first NPU of each pair.
            dst: int64[p], the other NPU of each pair.
        """
        return np.ones(len(src), np.bool_)

    def has_choice(self) -> bool:
        """Return whether some packet has several equal links, or an NPU several first switches."""
        return True

    def choosing_nodes(self, nodes: int) -> Int64:
        """Return int64[nodes]: 1 for nodes that may have several equal links to some NPU.

        Args:
            nodes: The number of nodes of the network.
        """
        return np.ones(nodes, np.int64)

    def leaves(self, graph: "Graph") -> Int64 | None:  # noqa: ARG002
        """Return int64[nodes], equal numbers for an NPU and its only first switch; None = NPUs have no such switches.

        Args:
            graph: The network.
        """
        return None

    def classes_of(self, npus: Int64) -> Int64:
        """Return int64[n]: equal numbers for NPUs behind the same first switches.

        Args:
            npus: int64[n], numbers of NPUs.
        """
        return np.unique(npus, return_inverse=True)[1].reshape(-1)

    def meets_at(self, src: Int64, dst: Int64, is_kind: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:  # noqa: ARG002
        """Return bool[p]: whether one first switch of a kind joins both NPUs of a pair.

        Args:
            src: int64[p], the first NPU of each pair.
            dst: int64[p], the other NPU of each pair.
            is_kind: bool[nodes], whether each node is of that kind.
        """
        return np.zeros(len(src), np.bool_)

    def ways_along(self, npu: int, dim: int, dims: tuple[int, ...], members: int) -> int:  # noqa: ARG002
        """Return the number of other members of a line of a dimension if an NPU has a link to each; 1 otherwise.

        Args:
            npu: The number of the NPU.
            dim: The number of the logical dimension; -1 = none.
            dims: The logical dimensions of the network.
            members: The number of members of the line.
        """
        return 1

    def directions(self, graph: "Graph") -> Int64 | None:  # noqa: ARG002
        """Return int64[D, links], how each link changes the digits, where these decide; None = they do not.

        Args:
            graph: The network.
        """
        return None

    def used_links(self, graph: "Graph", most: int) -> npt.NDArray[np.bool_] | None:  # noqa: ARG002
        """Return bool[links, destinations]: whether paths between switches take a link; None = none, or too many.

        Args:
            graph: The network.
            most: The maximum number of entries.
        """
        return None

    def common_switch(self, npus: Int64) -> tuple[int, Int64]:  # noqa: ARG002
        """Return the switch nearest to all NPUs, -1 = none, and int64[n], the first switch of each on its path.

        Args:
            npus: int64[n], numbers of NPUs.
        """
        return -1, np.zeros(0, np.int64)

    def first_legs(self, graph: "Graph", destinations: int) -> npt.NDArray[np.bool_]:
        """Return bool[nodes, destinations]: whether NPUs' packets may enter a node first on shortest paths to one.

        Args:
            graph: The network.
            destinations: The number of destinations, as columns of the tables or NPUs.
        """
        begins = np.zeros((graph.nodes, destinations), np.bool_)
        begins[: graph.npus] = True
        begins[graph.link_dst[graph.link_src < graph.npus]] = True
        return begins

    def rising_links(self, graph: "Graph") -> npt.NDArray[np.bool_]:
        """Return bool[links]: whether packets go on in the next virtual lane after a link, where links have credits.

        Those between two groups of switches do, as in a dragonfly, and in a group those from a switch without NPUs to
        one with some, as the way down from a spine of a dragonfly+: waits of packets then form no circle if there are
        enough lanes (topologies/deadlock.py). Where each switch is a group, as in a slim fly, lanes count links. Paths
        that take links in an order wait in no circle anyway, unless they take circuits, behind which they begin anew.

        Args:
            graph: The network.
        """
        if graph.link_order is not None:
            return np.asarray(graph.link_order == RISING_PLACE)
        here, there = graph.group[graph.link_src], graph.group[graph.link_dst]
        is_home = np.zeros(graph.nodes, np.bool_)
        is_home[graph.link_dst[graph.link_src < graph.npus]] = True
        is_down = ~is_home[graph.link_src] & is_home[graph.link_dst]
        return (here >= 0) & (there >= 0) & ((here != there) | is_down)

    def links_to_switch(self, node: int, home: int) -> Int32:  # noqa: ARG002
        """Return the links on which a switch sends towards another that has NPUs, int32[n]; none without such switches.

        Args:
            node: The number of the switch.
            home: The number of the other switch.
        """
        return np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class Graph:
    """A network. Nodes 0 .. npus-1 are the NPUs; links 2i and 2i+1 are the two directions of cable i."""

    name: str  # spec or file of the network
    npus: int  # number of NPUs
    nodes: int  # number of nodes, NPUs and switches
    links: int  # number of directed links; the reverse of link l is l ^ 1
    node_kind: Int8  # int8[nodes], NPU, SWITCH or NVSWITCH; AGGREGATOR of the last NPUs (topologies.endpoints)
    node_latency_ps: Int64  # int64[nodes], forwarding latency of a switch
    link_src: Int32  # int32[links], sending node
    link_dst: Int32  # int32[links], receiving node
    link_rate_bps: Int64  # int64[links], rate, above zero
    link_delay_ps: Int64  # int64[links], propagation delay, zero or more
    dims: tuple[int, ...]  # logical dimensions, fastest first; their product is `npus`
    host: Int32  # int32[npus], server (scale-up domain) of each NPU; without servers, each NPU has its own
    pod: Int32  # int32[nodes], pod for partitions by pod; -1 = none
    group: Int32  # int32[nodes], group of each switch, as of a dragonfly; -1 = none, as of NPUs
    routing: Routing  # routing of packets
    switch_names: tuple[str, ...]  # names of the nodes from `npus` on, such as "leaf 2"
    accelerator: str = ""  # model of the NPUs, such as "h100", which selects NCCL's constants; "" = unknown
    npus_per_nic: int = 1  # number of consecutive NPUs of a server whose links are equal parts of one NIC
    numbers: tuple[int, ...] = ()  # number of each node in a file that numbers GPUs and switches together; () = as here
    bisection: tuple[int, bool] | None = None  # bits per second of one direction, and whether exact; None = not known
    link_order: Int8 | None = None  # int8[links], place in which paths take a link, as of its dimension; None = any
    warnings: tuple[str, ...] = ()  # sentences about what the file of the network has and a run does not use
    source_routes: SourceRoutes | None = None  # paths of pairs, for runs with `routing = "source"`
    known_rate_bps: Int64 | None = None  # int64[links], rates that NPUs count on if others; None = these

    def node_name(self, node: int) -> str:
        """Return a name for messages and tables: "npu 3", "leaf 2".

        Args:
            node: The number of an NPU, switch or aggregator.
        """
        return f"npu {node}" if node < self.npus else self.switch_names[node - self.npus]

    def node_word(self, node: int) -> str:
        """Return the name of a node without its number: "npu", "leaf"; a name of one word is its own.

        Args:
            node: The number of an NPU, switch or aggregator.
        """
        name = self.node_name(node)
        return name.rpartition(" ")[0] or name

    def with_slow_links(self, rate_bps: Int64, delay_ps: Int64) -> "Graph":
        """Return the network with links of other rates and delays, of which its NPUs do not know.

        Args:
            rate_bps: int64[links], rates.
            delay_ps: int64[links], propagation delays.
        """
        return replace(self, link_rate_bps=rate_bps, link_delay_ps=delay_ps, known_rate_bps=self._known_rate_bps)

    @property
    def _known_rate_bps(self) -> Int64:
        """The rates that NPUs count on, int64[links]."""
        return self.link_rate_bps if self.known_rate_bps is None else self.known_rate_bps

    def out_links(self, node: int) -> Int32:
        """Return the links that leave a node, int32[degree], ascending."""
        pointer, link = self._out
        return link[pointer[node] : pointer[node + 1]]

    @cached_property
    def port_shares(self) -> Int32:
        """int32[links]: the share that each link out of an NPU has of what the NPU sends over all its NICs; others 1.

        Shares are the rates, without faults, as small whole numbers, about _MAX_SHARES in all of the NICs that are
        equally near to some NPU. A port to an NVSwitch that forwards to other hosts has as much as a NIC on average:
        its rate limits nothing.
        """
        shares = np.ones(self.links, np.int32)
        links = np.flatnonzero(self.link_src < self.npus)
        nic = links[self.node_kind[self.link_dst[links]] != NVSWITCH]
        rate_bps = self._known_rate_bps.copy()
        rate_bps[nic] = self._chain_rates_bps(nic)
        if len(np.unique(rate_bps[nic])) <= 1:
            return shares
        for npu in range(self.npus):
            own = self.out_links(npu)
            is_nvlink = self.node_kind[self.link_dst[own]] == NVSWITCH
            if len(np.unique(rate_bps[own[~is_nvlink]])) <= 1:
                continue
            for nics in self.routing.side_by_side(self, npu, own[~is_nvlink]):
                rates_bps = rate_bps[nics]
                if len(np.unique(rates_bps)) > 1:
                    # NICs of 400 and 100 Gb/s have 4 shares and 1; of 400 and 25 Gb/s, 15 and 1 instead of 16 and 1
                    parts = rates_bps // np.gcd.reduce(rates_bps)
                    total = int(parts.sum())
                    if total > _MAX_SHARES:
                        parts = np.maximum(np.rint(parts / total * _MAX_SHARES), 1).astype(np.int64)
                        parts //= np.gcd.reduce(parts)
                    shares[own[is_nvlink]] = max(round(parts.mean()), 1)
                    shares[nics] = parts
        return shares

    def _chain_rates_bps(self, links: npt.NDArray[np.integer]) -> Int64:
        """Return the slowest rate from each link, int[n], to a node with several others: past a NIC's chip."""
        pointer, out = self._out
        known_bps = self._known_rate_bps
        rate_bps, link = known_bps[links].copy(), links.astype(np.int64)
        open_ends = np.arange(len(links))
        while len(open_ends):
            node = self.link_dst[link[open_ends]]
            # a switch of two links, such as a NIC's chip between its PCIe link and its cable, only passes on: the NIC
            # is as fast as the slower of the two
            open_ends = open_ends[(node >= self.npus) & (np.diff(pointer)[node] == 2)]
            node = self.link_dst[link[open_ends]]
            first, second = out[pointer[node]], out[pointer[node] + 1]
            link[open_ends] = np.where(first == link[open_ends] ^ 1, second, first)
            rate_bps[open_ends] = np.minimum(rate_bps[open_ends], known_bps[link[open_ends]])
            open_ends = open_ends[link[open_ends] != links[open_ends]]
        return rate_bps

    @cached_property
    def _out(self) -> tuple[Int64, Int32]:
        """CSR of the outgoing links: int64[nodes + 1], int32[links]."""
        pointer = np.zeros(self.nodes + 1, np.int64)
        np.cumsum(np.bincount(self.link_src, minlength=self.nodes), out=pointer[1:])
        return pointer, np.argsort(self.link_src, kind="stable").astype(np.int32)


_NPU_BYTES, _SWITCH_BYTES, _CABLE_BYTES = 100, 400, 220
_ENTRY_BYTES = 7.5
# Peak memory per item while networks of 10^4 to 10^6 nodes and cables were built, measured 2026-11-22
_DIMENSION_CABLE_BYTES = 480
# Further peak memory per byte of a network's file, for its lines, numbers and tables; measured 6 to 15
_TEXT_FACTOR = 10


class Extent(NamedTuple):
    """Counts of a network."""

    npus: int  # number of NPUs
    switches: int  # number of switches
    cables: int  # number of cables
    # number of switches with NPUs: columns of the routing table, which has a row per switch; 0 with dimension routing
    homes: int = 0
    text_bytes: int = 0  # size in bytes of the file that describes the network

    @property
    def nodes(self) -> int:
        """Number of NPUs and switches."""
        return self.npus + self.switches

    @property
    def peak_bytes(self) -> int:
        """Approximate peak memory of building the network, in bytes."""
        cable_bytes = _CABLE_BYTES if self.homes else _DIMENSION_CABLE_BYTES
        table = _ENTRY_BYTES * self.switches * self.homes
        text = _TEXT_FACTOR * self.text_bytes
        return int(_NPU_BYTES * self.npus + _SWITCH_BYTES * self.switches + cable_bytes * self.cables + table + text)


def of_cables(npus: int, switches: int, cables: Iterable[tuple[int, int, int]], text_bytes: int) -> Extent:
    """Return the extent of a file's network of `npus` NPUs and `switches` switches; text_bytes: size of the file.

    cables: ends of each cable, where switches have numbers of npus or more, and the count of parallel cables.
    """
    count, homes = 0, set()
    for a, b, parallel in cables:
        count += parallel
        # a cable between an NPU and a switch makes the switch a home, a column of the routing table
        if (a < npus) != (b < npus):
            homes.add(max(a, b))
    return Extent(npus, switches, count, len(homes), text_bytes)
