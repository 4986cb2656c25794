"""Times of collectives on a cluster that is changed in one way: what-ifs, each run by the simulator.

Messages are flows, on the routes that they would take as packets. Where flows would be too many, times of larger
buffers lie on the line through two smaller ones with the same steps. What-ifs of congestion control run as packets.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import pdes, workload
from nadi.configuration.run_file import collective_config
from nadi.inputs.arrays import Int64
from nadi.inputs.units import PS_PER_US
from nadi.insight.benchmark_logs import SEND_RECEIVE
from nadi.launching.progress import NoProgress
from nadi.pdes.wire import window_packets
from nadi.simulation.closed_forms import with_flows
from nadi.simulation.resolving import Resolver, TimedFabric
from nadi.simulation.run import run_program
from nadi.topologies import NVSWITCH, Graph
from nadi.topologies.registry import spec_with_gpus
from nadi.workload import Program
from nadi.workload.collectives import ON_NVSWITCHES, UNEVEN, choose, defaults_on, with_parameters
from nadi.workload.collectives.schedules import connections_of_pairs, message_count
from nadi.workload.shape import GroupShape, shape_of

MAX_FLOWS = 1 << 18  # messages of a run: a quarter of a second; with more, two smaller buffers give the line
_MAX_PACKETS = 1 << 16  # packets of a run that is simulated as packets: about 0.2 s
_CHANNELS = re.compile(r"(?<![0-9])([0-9]++) channel")  # of the communicator, or of a peer, in what NCCL chooses
_KEPT_PROGRAMS = 256  # programs that are kept: all sizes of a log with the algorithms of a few what-ifs


def nic_links(graph: Graph) -> NDArray[np.bool_]:
    """Return bool[links]: links between an NPU and a switch of the network, in both directions.

    Args:
        graph: The fabric.
    """
    ends = graph.link_src, graph.link_dst
    return (np.minimum(*ends) < graph.npus) & (np.maximum(*ends) >= graph.npus) & ~nvlinks(graph)


def nvlinks(graph: Graph) -> NDArray[np.bool_]:
    """Return bool[links]: links inside hosts, to NVSwitches or between NPUs of a host.

    Args:
        graph: The fabric.
    """
    ends = graph.link_src, graph.link_dst
    to_switch = (graph.node_kind[ends[0]] == NVSWITCH) | (graph.node_kind[ends[1]] == NVSWITCH)
    return to_switch | (np.maximum(*ends) < graph.npus)


def switch_links(graph: Graph) -> NDArray[np.bool_]:
    """Return bool[links]: links between switches of the network.

    Args:
        graph: The fabric.
    """
    return ~nic_links(graph) & ~nvlinks(graph)


def _of_npus(graph: Graph, links: NDArray[np.bool_], first: int, count: int) -> NDArray[np.bool_]:
    """Return those of the links that belong to `count` NPUs from `first` on."""
    npu = np.minimum(graph.link_src, graph.link_dst)
    return links & (npu >= first) & (npu < first + count)


def _of_host(graph: Graph, links: NDArray[np.bool_], npu: int) -> NDArray[np.bool_]:
    """Return those of the links that belong to the host of an NPU."""
    return links & (
        graph.host[np.minimum(np.minimum(graph.link_src, graph.link_dst), graph.npus - 1)] == graph.host[npu]
    )


def _second_plane(graph: Graph, _: int) -> NDArray[np.bool_]:
    """Return the links of each NPU to the network but the first, in both directions."""
    nics = np.flatnonzero(nic_links(graph) & (graph.link_src < graph.npus))
    further = np.delete(nics, np.unique(graph.link_src[nics], return_index=True)[1])
    chosen = np.zeros(graph.links, np.bool_)
    chosen[further], chosen[further ^ 1] = True, True
    return chosen


def _one_uplink(graph: Graph, npu: int) -> NDArray[np.bool_]:
    """Return a link between the first leaf of an NPU and another switch, in both directions."""
    leaves = graph.link_dst[nic_links(graph) & (graph.link_src == npu)]
    up = np.flatnonzero(switch_links(graph) & np.isin(graph.link_src, leaves[:1]))[:1]
    chosen = np.zeros(graph.links, np.bool_)
    chosen[up], chosen[up ^ 1] = True, True
    return chosen


PLACES: Mapping[str, Callable[[Graph, int], NDArray[np.bool_]]] = MappingProxyType(
    {
        "one NIC": lambda graph, npu: _of_npus(graph, nic_links(graph), npu, graph.npus_per_nic),
        "all NICs": lambda graph, _: nic_links(graph),
        "a GPU's NVLinks": lambda graph, npu: _of_npus(graph, nvlinks(graph), npu, 1),
        "a host": lambda graph, npu: (
            _of_host(graph, nic_links(graph), npu)
            | _of_npus(graph, nvlinks(graph), npu - npu % max(1, graph.dims[0]), max(1, graph.dims[0]))
        ),
        "a plane": _second_plane,
        "an uplink": _one_uplink,
        "all uplinks": lambda graph, _: switch_links(graph),
    }
)
"""Links of a fabric by the name of a place: functions of the fabric and the number of the NPU at the place."""


class Slow(NamedTuple):
    """Links that are slower than NCCL knows when it plans."""

    place: str  # one of PLACES
    factor: float = 1.0  # factor on the rates of the links
    added_ps: int = 0  # delay in picoseconds on top of the links' own, in both directions
    npu: int = 0  # number of the NPU at the place


class Cap(NamedTuple):
    """What connections over the network reach at most."""

    share: float  # of a NIC's rate
    of_pair: bool = False  # whether all connections of two NICs together reach that; else each connection


class WhatIf(NamedTuple):
    """A change of a healthy cluster; the default changes nothing."""

    settings: tuple[str, ...] = ()  # values of [network], or topology.params, as "network.mtu=512B"
    nccl: tuple[str, ...] = ()  # parameters of the algorithm nccl, as "nvls=false"
    slow: Slow | None = None
    cap: Cap | None = None
    seed: int = 1  # seed of hashed choices of paths
    by_packets: bool = False  # whether only packets show the change


HEALTHY = WhatIf()


class TimedCollective(NamedTuple):
    """A measurement: a collective of a size on some GPUs."""

    kind: str
    gpus: int
    size_bytes: int
    hosts: int = 0  # number of hosts; 0 = whole hosts
    nccl: tuple[str, ...] = ()  # parameters of the algorithm nccl that variables of the test set


class Simulator:
    """Times of collectives on one cluster, with any change."""

    def __init__(self, cluster: str) -> None:
        """Begin without any fabric; cluster: a name, file or specification, whose number of GPUs is replaced."""
        self._cluster = cluster
        self._times_us: dict[tuple[WhatIf, TimedCollective], float] = {}
        self.fabric = lru_cache(self._fabric)
        self._program = lru_cache(_KEPT_PROGRAMS)(self._new_program)
        self._shape = lru_cache(self._new_shape)

    def time_us(self, what_if: WhatIf, place: TimedCollective) -> float:
        """Return the time of a measurement in microseconds.

        Args:
            what_if: The change of the cluster.
            place: Collective, number of GPUs and size.

        Raises:
            ConfigError, TopologyError, WorkloadError: The cluster cannot have the change, or the number of GPUs.
        """
        what_if = self._felt(what_if, place)
        key = what_if, place
        if key not in self._times_us:
            variant = self.variant(what_if, place)
            if what_if._replace(nccl=()) == HEALTHY and variant and variant == self.variant(HEALTHY, place):
                what_if = HEALTHY  # NCCL chooses the same as without its settings
            self._times_us[key] = self._packets_us(*key) if what_if.by_packets else self._flows_us(what_if, place)
        return self._times_us[key]

    def _felt(self, what_if: WhatIf, place: TimedCollective) -> WhatIf:
        """Return what of a change a measurement can show: within one host, nothing of the network."""
        if self.hosts(place) > 1:
            return what_if
        return what_if._replace(settings=(), cap=None, by_packets=False, seed=1)

    def hosts(self, place: TimedCollective) -> int:
        """Return the number of hosts of a measurement.

        Args:
            place: Number of GPUs, and of hosts unless these are whole.
        """
        return len(np.unique(self.fabric_of(HEALTHY, place).graph.host))

    def fabric_of(self, what_if: WhatIf, place: TimedCollective) -> TimedFabric:
        """Return the fabric that a measurement runs on, without slow links.

        Args:
            what_if: The change of the cluster.
            place: Number of GPUs, and of hosts unless these are whole.
        """
        return self.fabric(what_if.settings, place.gpus, what_if.seed, place.hosts)

    def variant(self, what_if: WhatIf, place: TimedCollective) -> str:
        """Return NCCL's algorithm, protocol and channels; "" for other algorithms.

        Args:
            what_if: The change of the cluster.
            place: Collective, number of GPUs and size.
        """
        algorithm = self.algorithm(what_if, place)
        if place.kind == SEND_RECEIVE or not algorithm.startswith(ON_NVSWITCHES):
            return ""
        chosen = choose(place.kind, algorithm)
        shape = self._shape(what_if.settings, place.gpus, what_if.seed, place.hosts, chosen.trees)
        return chosen.describe(place.kind, shape, place.size_bytes)

    def algorithm(self, what_if: WhatIf, place: TimedCollective) -> str:
        """Return the algorithm of a collective with its parameters.

        Args:
            what_if: The change of the cluster.
            place: Collective, number of GPUs and size.
        """
        fabric = self.fabric_of(what_if, place)
        kind = UNEVEN if place.kind == SEND_RECEIVE else place.kind
        algorithms = {**self._defaults(fabric, place), **fabric.collectives.algorithm}
        name = replace(fabric.collectives, algorithm=algorithms).algorithm_of(kind)
        # a change replaces what the test sets
        own = dict(part.split("=", 1) for part in (*place.nccl, *what_if.nccl))
        if not own or name.partition(":")[0] != ON_NVSWITCHES:
            return name
        return with_parameters(name, own)

    def _defaults(self, fabric: TimedFabric, place: TimedCollective) -> Mapping[str, str]:
        """Return the default algorithms: of one GPU of each host those of whole hosts, whose library it uses."""
        return defaults_on((self.fabric((), place.gpus, 1) if place.hosts else fabric).graph)

    def _fabric(self, settings: tuple[str, ...], gpus: int, seed: int, hosts: int = 0) -> TimedFabric:
        """Return the fabric of some GPUs with settings."""
        spec = spec_with_gpus(self._cluster, gpus, gpus // hosts if hosts else 0)
        config = collective_config(spec, settings)
        idle = Resolver(config, force=True).idle_fabric(seed)
        window_bytes = window_packets(idle.graph, idle.settings) * idle.settings.mtu_bytes
        return idle._replace(settings=replace(idle.settings, window_bytes=window_bytes))

    def _new_shape(self, settings: tuple[str, ...], gpus: int, seed: int, hosts: int, trees: str) -> GroupShape:
        """Return the shape of all GPUs of a fabric."""
        graph = self.fabric(settings, gpus, seed, hosts).graph
        return shape_of(graph, range(graph.npus), trees=trees)

    def _new_program(self, settings: tuple[str, ...], seed: int, algorithm: str, place: TimedCollective) -> Program:
        """Return the program of a measurement, which NCCL plans on the fabric without slow links."""
        fabric = self.fabric(settings, place.gpus, seed, place.hosts)
        if place.kind == SEND_RECEIVE:
            return workload.uneven_program(_ring_shift(place.gpus, place.size_bytes), algorithm, fabric.graph)
        most = fabric.collectives.most_bytes
        return workload.collective_program(place.kind, place.gpus, place.size_bytes, algorithm, fabric.graph, most)

    def program(self, what_if: WhatIf, place: TimedCollective) -> Program:
        """Return the program of a measurement.

        Args:
            what_if: The change of the cluster.
            place: Collective, number of GPUs and size.
        """
        return self._program(what_if.settings, what_if.seed, self.algorithm(what_if, place), place)

    def _flows_us(self, what_if: WhatIf, place: TimedCollective) -> float:
        """Return a time by flows, of a large buffer on the line through two smaller ones with the same steps."""
        variant, smaller = self.variant(what_if, place), place
        while self._messages(what_if, smaller) > MAX_FLOWS and smaller.size_bytes > 1:
            smaller = smaller._replace(size_bytes=smaller.size_bytes // 2)
        half = smaller._replace(size_bytes=smaller.size_bytes // 2)
        if smaller == place or self.variant(what_if, half) != variant or self.variant(what_if, smaller) != variant:
            return self.run_us(what_if, place)
        low, high = (self.time_us(what_if, each) for each in (half, smaller))
        per_byte = (high - low) / (smaller.size_bytes - half.size_bytes)
        return high + per_byte * (place.size_bytes - smaller.size_bytes)

    def _packets_us(self, what_if: WhatIf, place: TimedCollective) -> float:
        """Return the healthy time by flows times the ratio by packets, of a smaller buffer if packets are many."""
        mtu_bytes = self.fabric_of(HEALTHY, place).settings.mtu_bytes
        smaller = place._replace(size_bytes=min(place.size_bytes, max(1, _MAX_PACKETS * mtu_bytes // place.gpus)))
        changed_us, healthy_us = (self.run_us(each, smaller, by_packets=True) for each in (what_if, HEALTHY))
        return self.time_us(HEALTHY, place) * changed_us / healthy_us

    def _messages(self, what_if: WhatIf, place: TimedCollective) -> int:
        """Return the number of messages of a measurement."""
        program = self.program(what_if, place)
        return message_count(program.schedules, int(program.node_schedule[0]))

    def run_us(self, what_if: WhatIf, place: TimedCollective, *, by_packets: bool = False) -> float:
        """Run a measurement as a whole, and return its time in microseconds.

        Args:
            what_if: The change of the cluster.
            place: Collective, number of GPUs and size.
            by_packets: Whether packets are simulated; False = each message is a flow.
        """
        fabric = self.fabric_of(what_if, place)
        graph, settings = fabric.graph, fabric.settings if by_packets else with_flows(fabric.settings)
        slow, window = self._capped(what_if, place)
        if window is not None:
            settings = replace(settings, window_bytes=_window_bytes(graph, settings, window))
        program = self.program(what_if, place)
        return run_program(slowed(graph, slow), program, settings, NoProgress()).finish_time_ps / PS_PER_US

    def _capped(self, what_if: WhatIf, place: TimedCollective) -> tuple[Slow | None, float | None]:
        """Return slower links, and the window of a simulated connection as a share of the NIC's, that a cap means.

        Pairs of NICs with a cap leave a NIC as much as the NICs have together to which it sends. A simulated connection
        stands for one or several of NCCL, which has one between two NICs for each channel of a ring or tree, and for
        each channel of a peer of sends: with PXN, sends of all GPUs of a host to a GPU share them
        (NCCL_NET_SHARED_COMMS).
        """
        cap = what_if.cap
        if cap is None:
            return what_if.slow, None
        program, graph = self.program(what_if, place), self.fabric_of(what_if, place).graph
        host = graph.host.astype(np.int64)
        of_members = connections_of_pairs(program.schedules, int(program.node_schedule[0]), host)
        of_members = [counts for counts in of_members if counts]  # of those that send to other hosts
        if not of_members:
            return what_if.slow, None
        if cap.of_pair:
            return Slow("all NICs", min(1.0, cap.share * float(np.mean([len(counts) for counts in of_members])))), None
        channels = float(self.channels(place, what_if))
        if place.kind not in {"all-to-all", SEND_RECEIVE}:
            nics = graph.npus / graph.npus_per_nic / len(np.unique(graph.host))  # of a host
            channels = max(1.0, channels / nics)
        return what_if.slow, cap.share * channels / float(np.mean([each for counts in of_members for each in counts]))

    def relays_sends(self, place: TimedCollective) -> bool:
        """Return whether sends between hosts leave by the NIC on the receiver's rail (PXN).

        Args:
            place: A measurement.
        """
        return "over PXN" in self.variant(HEALTHY, place._replace(kind="all-to-all"))

    def channels(self, place: TimedCollective, what_if: WhatIf = HEALTHY) -> int:
        """Return the number of channels of a measurement, or of each peer of sends; 1 = not known.

        Args:
            place: The measurement.
            what_if: The change of the cluster.
        """
        if place.kind == SEND_RECEIVE:  # messages are as large as those of an all-to-all of all of them
            place = place._replace(kind="all-to-all", size_bytes=place.size_bytes * place.gpus)
        match = _CHANNELS.search(self.variant(what_if, place))
        return int(match[1]) if match else 1


def slowed(graph: Graph, slow: Slow | None) -> Graph:
    """Return the fabric with its slow links; the fabric itself without any, or if the place is on none of its GPUs.

    Args:
        graph: The fabric.
        slow: The links, and how slow they are.
    """
    if slow is None or slow.npu >= graph.npus:
        return graph
    which = PLACES[slow.place](graph, slow.npu)
    rate_bps, delay_ps = graph.link_rate_bps.copy(), graph.link_delay_ps.copy()
    rate_bps[which] = np.maximum(1, np.round(rate_bps[which] * slow.factor)).astype(rate_bps.dtype)
    delay_ps[which] += slow.added_ps
    return graph.with_slow_links(rate_bps, delay_ps)


def _ring_shift(gpus: int, size_bytes: int) -> Int64:
    """Return int64[gpus, gpus], the bytes between ranks of sendrecv_perf: each sends to the next."""
    matrix = np.zeros((gpus, gpus), np.int64)
    matrix[np.arange(gpus), (np.arange(gpus) + 1) % gpus] = size_bytes
    return matrix


def _window_bytes(graph: Graph, settings: pdes.Settings, share: float) -> int:
    """Return a window in bytes: a share of what a NIC sends in a round trip to another host."""
    shape = shape_of(graph, range(graph.npus))
    packet_ps = (settings.mtu_bytes + settings.header_bytes) * 8 * 1e12 / shape.outside_bps
    round_trip_ps = 2 * shape.outside_ps + 2 * packet_ps
    packets = share * round_trip_ps / packet_ps
    return max(1, round(packets)) * settings.mtu_bytes
