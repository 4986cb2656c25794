"""A network as a value: nodes, directed links and the routing, in NumPy arrays; its size before it is built."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from nadi.inputs.arrays import Int8, Int32, Int64
from nadi.inputs.errors import InputError


class TopologyError(InputError):
    """A user-written topology cannot be built."""


NPU, SWITCH, NVSWITCH, AGGREGATOR = range(4)
RING, TABLE, SINGLE, NONE = 0, 1, 2, 3
_MAX_SHARES = 16  # approximate maximum sum of the shares of an NPU's NICs
UNREACHABLE = 127  # `TableRouting.hops` between switches that no path of switches connects


@dataclass(frozen=True, eq=False)
class TableRouting:
    """Shortest paths over the switches, per *home* (a switch that has NPUs); NPUs never carry transit."""

    # A packet at a switch proceeds towards the nearest of its destination's homes; if several are equally near, the
    # links of all their port sets are equivalent. `topologies.routing.next_links` is the reference.

    home_node: Int32  # int32[homes], node of each home, ascending
    home: Int32  # int32[npus, H], home columns of each NPU, ascending; -1 = unused
    attach_set: Int32  # int32[npus, H], port set of the links from that home to the NPU; -1 = unused
    row: Int32  # int32[nodes], row of each switch; -1 for NPUs
    hops: Int8  # int8[rows, homes], links from switch to home; 0 at home, `UNREACHABLE` if there is no path
    next_set: Int32  # int32[rows, homes], port set of all links on shortest paths; -1 at home or unreachable
    set_ptr: Int32  # int32[sets + 1], see `set_link`
    set_link: Int32  # int32[], set s holds the links set_link[set_ptr[s]:set_ptr[s + 1]], ascending


@dataclass(frozen=True, eq=False)
class DimensionRouting:
    """Dimension-ordered routing: packets correct the first dimension with different digits first."""

    sizes: Int32  # int32[D], members of each dimension, fastest first
    digit: Int32  # int32[nodes, D], own coordinate; -1 = any (a switch of that dimension)
    mode: Int8  # int8[nodes, D], action in the dimension: RING, TABLE, SINGLE, NONE (never needed)
    # int64[nodes, D], index of `sets`. RING: sets[o] leads towards +1 and sets[o + 1] towards -1; packets take the
    # shorter way, and either at the opposite node of an even ring. TABLE: sets[o + digit of the destination]. SINGLE:
    # sets[o].
    offset: Int64
    sets: Int32  # int32[], port sets; -1 where a set is not needed (a TABLE's own digit)
    set_ptr: Int32  # int32[sets + 1], see `set_link`
    set_link: Int32  # int32[], set s holds the links set_link[set_ptr[s]:set_ptr[s + 1]], ascending


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
    routing: TableRouting | DimensionRouting  # routing of packets, by tables or by dimensions
    switch_names: tuple[str, ...]  # names of the nodes from `npus` on, such as "leaf 2"
    accelerator: str = ""  # model of the NPUs, such as "h100", which selects NCCL's constants; "" = unknown
    npus_per_nic: int = 1  # number of consecutive NPUs of a server whose links are equal parts of one NIC
    numbers: tuple[int, ...] = ()  # number of each node in a file that numbers GPUs and switches together; () = as here
    warnings: tuple[str, ...] = ()  # sentences about what the file of the network has and a run does not use

    def node_name(self, node: int) -> str:
        """Return a name for messages and tables: "npu 3", "leaf 2".

        Args:
            node: The number of an NPU, switch or aggregator.
        """
        return f"npu {node}" if node < self.npus else self.switch_names[node - self.npus]

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
        rate_bps = self.link_rate_bps.copy()
        rate_bps[nic] = self._chain_rates_bps(nic)
        if len(np.unique(rate_bps[nic])) <= 1:
            return shares
        for npu in range(self.npus):
            own = self.out_links(npu)
            is_nvlink = self.node_kind[self.link_dst[own]] == NVSWITCH
            if len(np.unique(rate_bps[own[~is_nvlink]])) <= 1:
                continue
            for nics in self._side_by_side(npu, own[~is_nvlink]):
                rates_bps = rate_bps[nics]
                if len(np.unique(rates_bps)) > 1:
                    # NICs of 400 and 100 Gb/s have 4 shares and 1; of 400 and 25 Gb/s, 15 and 1 instead of 16 and 1
                    parts = rates_bps // np.gcd.reduce(rates_bps)
                    total = int(parts.sum())
                    if total > _MAX_SHARES:
                        parts = np.maximum(np.rint(parts / total * _MAX_SHARES), 1)
                    shares[own[is_nvlink]] = max(round(parts.mean()), 1)
                    shares[nics] = parts
        return shares

    @cached_property
    def _home_sets(self) -> tuple[Int32, Int64, Int64]:
        """The distinct homes of NPUs, int32[sets, homes], the NPUs of each, int64[sets], and the set of each NPU."""
        routing = cast("TableRouting", self.routing)
        sets, of_npu, counts = np.unique(routing.home, axis=0, return_inverse=True, return_counts=True)
        return sets, counts.astype(np.int64), of_npu.reshape(-1).astype(np.int64)

    def _side_by_side(self, npu: int, links: npt.NDArray[np.integer]) -> list[npt.NDArray[np.integer]]:
        """Return links of an NPU to ordinary switches, int[n], by those that are equally near to some other NPU."""
        if isinstance(self.routing, DimensionRouting) or len(links) < 2:
            return [links]
        sets, counts, of_npu = self._home_sets
        others = sets[(np.arange(len(sets)) != of_npu[npu]) | (counts > 1)]
        far = np.full((len(links), 1), UNREACHABLE, np.int8)  # from home -1, which is none
        hops = np.append(self.routing.hops[self.routing.row[self.link_dst[links]]], far, axis=1)[:, others].min(axis=2)
        is_nearest = (hops == hops.min(axis=0)) & (hops < UNREACHABLE)
        group = np.arange(len(links))
        for first in range(len(links)):
            beside = (is_nearest & is_nearest[first]).any(axis=1)
            if beside.any():
                # whole groups join: if 0 is beside 1, and 1 beside 2, all three share what the NPU sends
                group[np.isin(group, group[beside])] = group[beside].min()
        return [links[group == number] for number in np.unique(group)]

    def _chain_rates_bps(self, links: npt.NDArray[np.integer]) -> Int64:
        """Return the slowest rate from each link, int[n], to a node with several others: past a NIC's chip."""
        pointer, out = self._out
        rate_bps, link = self.link_rate_bps[links].copy(), links.astype(np.int64)
        open_ends = np.arange(len(links))
        while len(open_ends):
            node = self.link_dst[link[open_ends]]
            # a switch of two links, such as a NIC's chip between its PCIe link and its cable, only passes on: the NIC
            # is as fast as the slower of the two
            open_ends = open_ends[(node >= self.npus) & (np.diff(pointer)[node] == 2)]
            node = self.link_dst[link[open_ends]]
            first, second = out[pointer[node]], out[pointer[node] + 1]
            link[open_ends] = np.where(first == link[open_ends] ^ 1, second, first)
            rate_bps[open_ends] = np.minimum(rate_bps[open_ends], self.link_rate_bps[link[open_ends]])
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
