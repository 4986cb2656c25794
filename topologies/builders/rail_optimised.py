"""Servers of NPUs behind an NVSwitch; NIC j of every server on a leaf of rail j, all leaves on spines.

A *unit* is a group of servers that share one leaf per rail. One switch represents all NVSwitches of a server. NPUs of
different servers and rails communicate through leaf, spine and leaf. NPUs that share a NIC have equal shares of its
rate, even while the others are silent.
"""

import numpy as np
from pydantic import Field

from topologies.builders.capacity import check_nics, share_of_nic, uplink_count
from topologies.errors import TopologyError
from topologies.extent import Extent
from topologies.graph import NVSWITCH, Graph
from topologies.graph_builder import GraphBuilder
from topologies.parameters import Count, Parameters, Rate, Ratio, Time
from topologies.units import GBPS, NS

NAME = "rail-optimised"


class Arguments(Parameters):
    """Parameters of the rail-optimised network."""

    npus: Count = Field(description="number of NPUs, a multiple of gpus_per_host")
    gpus_per_host: Count = Field(8, description="NPUs of a server")
    nics_per_host: Count | None = Field(
        None, description="NICs of a server, each on a rail, shared evenly; gpus_per_host if not given"
    )
    hosts_per_rail_leaf: Count = Field(32, description="servers of a unit; the last unit may have fewer")
    spines: Count | None = Field(None, description="number of spines; by oversubscription if not given")
    uplinks: Count = Field(1, description="parallel cables between a leaf and a spine")
    oversubscription: Ratio | None = Field(None, description="NIC rate over uplink rate of a leaf; 1 if not given")
    rate: Rate = Field(400 * GBPS, description="rate of a NIC's link to its leaf")
    delay: Time = Field(500 * NS, description="propagation delay of a NIC's link")
    nvlink_rate: Rate = Field(3600 * GBPS, description="rate between an NPU and the NVSwitch, each direction")
    nvlink_delay: Time = Field(25 * NS, description="propagation delay between an NPU and the NVSwitch")
    uplink_rate: Rate | None = Field(None, description="rate of a cable between leaf and spine; rate if not given")
    uplink_delay: Time | None = Field(None, description="delay of a cable between leaf and spine; delay if not given")
    switch_latency: Time = Field(0, description="forwarding latency of leaves and spines")
    nvswitch_latency: Time = Field(0, description="forwarding latency of an NVSwitch")


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the size of the network."""
    hosts, per_unit, spines = _counts(arguments, name)
    leaves = -(-hosts // per_unit) * _nics(arguments)
    cables = 2 * arguments.npus + leaves * spines * arguments.uplinks
    return Extent(arguments.npus, hosts + leaves + spines, cables, hosts + leaves)


def build(arguments: Arguments, name: str, accelerator: str = "") -> Graph:
    """Build the network. Logical dimensions are (gpus_per_host, servers); pods are the units, spines belong to no pod.

    accelerator: model of the NPUs, "" = unknown. Raises TopologyError: npus is no multiple of gpus_per_host, the number
    of spines is not whole, or there are too many NPUs.
    """
    npus, per_host, rails = arguments.npus, arguments.gpus_per_host, _nics(arguments)
    hosts, per_unit, spines = _counts(arguments, name)
    uplink_rate = arguments.uplink_rate or arguments.rate
    host, place = np.divmod(np.arange(npus), per_host)
    rail, share_bps = place // (per_host // rails), share_of_nic(arguments.rate, per_host, rails)
    builder = GraphBuilder(name, npus)
    builder.set_npu_pods(host // per_unit)
    nvswitch, leaf = _add_units(builder, arguments, hosts, per_unit)
    spine = builder.add_switches("spine", spines, latency_ps=arguments.switch_latency)
    builder.add_cables(np.arange(npus), nvswitch[host], arguments.nvlink_rate, arguments.nvlink_delay)
    builder.add_cables(np.arange(npus), leaf[host // per_unit * rails + rail], share_bps, arguments.delay)
    uplink_delay = arguments.delay if arguments.uplink_delay is None else arguments.uplink_delay
    builder.add_cables(np.repeat(leaf, spines), np.tile(spine, len(leaf)), uplink_rate, uplink_delay, arguments.uplinks)
    return builder.graph(dims=(per_host, hosts), host=host, accelerator=accelerator)


def _nics(arguments: Arguments) -> int:
    """Return the number of NICs of a server, which is also the number of rails."""
    return arguments.nics_per_host or arguments.gpus_per_host


def _counts(arguments: Arguments, name: str) -> tuple[int, int, int]:
    """Return the numbers of servers, of servers per unit, and of spines."""
    npus, per_host = arguments.npus, arguments.gpus_per_host
    if npus % per_host:
        raise TopologyError(f"{name}: npus = {npus}; expected a multiple of gpus_per_host = {per_host}")
    check_nics(name, per_host, _nics(arguments))
    hosts = npus // per_host
    per_unit = min(arguments.hosts_per_rail_leaf, hosts)
    spines = uplink_count(
        name,
        "spines",
        arguments.spines,
        "oversubscription",
        arguments.oversubscription,
        per_unit * arguments.rate,
        (arguments.uplink_rate or arguments.rate) * arguments.uplinks,
    )
    return hosts, per_unit, spines


def _add_units(builder: GraphBuilder, arguments: Arguments, hosts: int, per_unit: int) -> tuple[np.ndarray, np.ndarray]:
    """Add units one by one, so that their switches have close numbers.

    Returns NVSwitches by server, and leaves by unit and rail.
    """
    nvswitch, leaf = [], []
    for unit, first in enumerate(range(0, hosts, per_unit)):
        count = min(per_unit, hosts - first)
        nvswitch.append(
            builder.add_switches("nvswitch", count, latency_ps=arguments.nvswitch_latency, kind=NVSWITCH, pod=unit)
        )
        leaf.append(builder.add_switches("leaf", _nics(arguments), latency_ps=arguments.switch_latency, pod=unit))
    return np.concatenate(nvswitch), np.concatenate(leaf)
