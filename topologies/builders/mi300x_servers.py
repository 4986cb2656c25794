"""Servers of 8 MI300X with a link between every two of them, and a NIC of 400 Gb/s for each GPU.

AMD CDNA 3 white paper: seven Infinity Fabric links of a GPU, each of 128 GB/s both ways together. CRC and the protocol
leave 48 of the 64 GB/s of a direction (AMD, Understanding RCCL Bandwidth and xGMI Performance on MI300X,
rocm.blogs.amd.com). NIC j of every server is on one switch with as many ports as servers, a rail. Packets for another
rail go to the GPU of that rail first, as a `stack` routes them. Delays are assumed: 25 ns inside a server, as NVLink;
500 ns to a rail's switch.
"""

from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.builders.stack import build_stack
from nadi.topologies.dimension_routing import Dimension, extent_of
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.parameters import Count, Parameters, Time

_GPUS_PER_SERVER = 8
_RATES_BPS = (384 * GBPS, 400 * GBPS)  # Infinity Fabric link, NIC


class Arguments(Parameters):
    """Parameters of servers of MI300X."""

    npus: Count = Field(description="number of GPUs: a multiple of 8, or fewer than 8")
    delay: Time = Field(500 * NS, description="propagation delay of a NIC's link")
    link_delay: Time = Field(25 * NS, description="propagation delay between two GPUs of a server")
    switch_latency: Time = Field(0, description="forwarding latency of a rail's switch")


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the size of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    return extent_of(_dimensions(arguments, name))


def build(arguments: Arguments, name: str) -> Graph:
    """Build the servers; TopologyError: npus is above 8 and no multiple of 8.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    dimensions = _dimensions(arguments, name)
    count, per_server = len(dimensions), dimensions[0].size
    delays_ps = (arguments.link_delay, arguments.delay)[:count]
    return build_stack(name, dimensions, _RATES_BPS[:count], delays_ps, arguments.switch_latency, per_server)


def _dimensions(arguments: Arguments, name: str) -> list[Dimension]:
    """Return the dimension of a server's GPUs and, if there are several servers, that of the rails."""
    per_server = min(arguments.npus, _GPUS_PER_SERVER)
    if arguments.npus % per_server:
        raise TopologyError.at(name, f"npus = {arguments.npus}", f"a multiple of {per_server}, or fewer")
    inside = Dimension("FullyConnected", per_server)
    servers = arguments.npus // per_server
    return [inside, Dimension("Switch", servers)] if servers > 1 else [inside]
