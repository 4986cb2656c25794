"""Leaf-spine planes side by side: port i of every NIC in plane i, which has leaves and spines of its own.

A NIC of 800 Gb/s is 2, 4 or 8 ports of its rate / planes. OpenAI, AMD, Broadcom, Intel, Microsoft and NVIDIA,
"Multipath Reliable Connection" (arXiv 2605.04333, section 2): planes of 512-port switches of 100 Gb/s, 512 leaves with
256 NICs each and 256 spines, join 131,072 NICs over two tiers. With `gpus_per_host` above 1, NPUs of a server share an
NVSwitch, and with `rails`, NIC j of the servers of a unit is on leaf j of the unit in each plane.
"""

from typing import NamedTuple

import numpy as np
from pydantic import Field

from nadi.inputs.arrays import Int64
from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import NVSWITCH, Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Flag, Name, Parameters, Rate, Ratio, Time, uplink_count


class Arguments(Parameters):
    """Parameters of the planes."""

    npus: Count = Field(description="number of NPUs, each with a NIC of its own")
    planes: Count = Field(8, description="planes, and ports of a NIC")
    nics_per_leaf: Count = Field(256, description="NICs of a leaf; the last leaf may have fewer")
    gpus_per_host: Count = Field(1, description="NPUs of a server, which share an NVSwitch; 1 means none")
    rails: Flag = Field(False, description="NIC j of a server is on leaf j of its unit of nics_per_leaf servers")
    spines: Count | None = Field(None, description="spines of a plane; as many as oversubscription needs if not given")
    uplinks: Count = Field(1, description="parallel cables between a leaf and a spine")
    oversubscription: Ratio | None = Field(None, description="NIC rate over uplink rate of a leaf; 1 if not given")
    rate: Rate = Field(800 * GBPS, description="rate of a NIC, over all its ports")
    delay: Time = Field(500 * NS, description="propagation delay of a NIC's links")
    uplink_rate: Rate | None = Field(
        None, description="rate of a cable between leaf and spine; that of a port if not given"
    )
    uplink_delay: Time | None = Field(None, description="delay of a cable between leaf and spine; delay if not given")
    nvlink_rate: Rate = Field(7200 * GBPS, description="rate between an NPU and the NVSwitch, each direction")
    nvlink_delay: Time = Field(25 * NS, description="propagation delay between an NPU and the NVSwitch")
    switch_latency: Time = Field(0, description="forwarding latency of leaves and spines")
    nvswitch_latency: Time = Field(0, description="forwarding latency of an NVSwitch")
    accelerator: Name = Field("", description="model of the NPUs, as h100, which selects NCCL's constants")


class _Counts(NamedTuple):
    """Counts of the planes."""

    hosts: int  # number of servers with an NVSwitch
    leaves: int  # number of leaves of a plane
    rails: int  # number of leaves of a unit and plane
    spines: int  # number of spines of a plane; 0 = one leaf needs none
    port_bps: int  # rate of a port of a NIC in bits per second


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the numbers of nodes and cables of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    counts, planes = _counts(arguments, name), arguments.planes
    uplinks = planes * counts.leaves * counts.spines * arguments.uplinks
    cables = arguments.npus * (planes + (counts.hosts > 0)) + uplinks
    leaves = planes * counts.leaves
    return Extent(arguments.npus, counts.hosts + leaves + planes * counts.spines, cables, counts.hosts + leaves)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network, whose pods are the NPUs on the same leaves, or with rails the units.

    Leaves and spines are numbered plane by plane: with L leaves in a plane, leaf L i + j is leaf j of plane i.
    Raises TopologyError: counts do not divide npus, or the number of spines is not whole.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    counts, planes = _counts(arguments, name), arguments.planes
    npu = np.arange(arguments.npus)
    host, place = np.divmod(npu, arguments.gpus_per_host)
    leaf_of: Int64 = npu // arguments.nics_per_leaf
    if arguments.rails:
        leaf_of = host // arguments.nics_per_leaf * counts.rails + place
    pod_of = leaf_of // counts.rails
    builder = GraphBuilder(name, arguments.npus)
    builder.set_npu_pods(pod_of)
    latency_ps = arguments.switch_latency
    if counts.hosts:
        nvswitch = builder.add_named_switches(
            [f"nvswitch {i}" for i in range(counts.hosts)],
            latency_ps=arguments.nvswitch_latency,
            kind=NVSWITCH,
            pod=pod_of[:: arguments.gpus_per_host],
        )
        builder.add_cables(npu, nvswitch[host], arguments.nvlink_rate, arguments.nvlink_delay)
    leaf = builder.add_named_switches(
        [f"leaf {i}" for i in range(planes * counts.leaves)],
        latency_ps=latency_ps,
        pod=np.tile(np.arange(counts.leaves) // counts.rails, planes),
    ).reshape(planes, counts.leaves)
    spine = builder.add_switches("spine", planes * counts.spines, latency_ps=latency_ps).reshape(planes, counts.spines)
    uplink_delay = arguments.delay if arguments.uplink_delay is None else arguments.uplink_delay
    uplink_bps = arguments.uplink_rate or counts.port_bps
    for own_leaves, own_spines in zip(leaf, spine, strict=True):
        builder.add_cables(npu, own_leaves[leaf_of], counts.port_bps, arguments.delay)
        ends = np.repeat(own_leaves, counts.spines), np.tile(own_spines, counts.leaves)
        builder.add_cables(*ends, uplink_bps, uplink_delay, arguments.uplinks)
    per_host = arguments.gpus_per_host
    dims = (per_host, arguments.npus // per_host) if per_host > 1 else ()
    return builder.graph(dims=dims, host=host, accelerator=arguments.accelerator)


def _counts(arguments: Arguments, name: str) -> _Counts:
    """Return the numbers of the network's parts, which fit together; errors begin with the name."""
    npus, planes, per_host = arguments.npus, arguments.planes, arguments.gpus_per_host
    if npus % per_host:
        raise TopologyError.at(name, f"npus = {npus}", f"a multiple of gpus_per_host = {per_host}")
    if arguments.rails and per_host == 1:
        raise TopologyError.at(
            name, "rails = true with gpus_per_host = 1", "several GPUs, each with a NIC, to a server"
        )
    if arguments.rate % planes:
        raise TopologyError.at(name, f"a rate of {arguments.rate} bps", f"a multiple of planes = {planes}")
    rails = per_host if arguments.rails else 1
    # a unit is the servers on the same leaves, or without rails the NPUs on one
    members = npus // rails
    leaves = -(-members // arguments.nics_per_leaf) * rails
    port_bps = arguments.rate // planes
    spines = 0
    if leaves > 1:
        down_bps = min(arguments.nics_per_leaf, members) * port_bps
        uplink_bps = (arguments.uplink_rate or port_bps) * arguments.uplinks
        spines = uplink_count(arguments, name, "spines", "oversubscription", down_bps, uplink_bps)
    return _Counts(npus // per_host if per_host > 1 else 0, leaves, rails, spines, port_bps)
