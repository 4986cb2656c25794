"""All NPUs on one switch."""

import numpy as np
from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import Extent, Graph
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Parameters, Rate, Sizes, Time


class Arguments(Parameters):
    """Parameters of the switch."""

    npus: Count = Field(description="number of NPUs")
    rate: Rate = Field(400 * GBPS, description="rate of each direction of a link")
    delay: Time = Field(500 * NS, description="propagation delay of a link")
    switch_latency: Time = Field(0, description="forwarding latency of the switch")
    dims: Sizes = Field((), description="logical dimensions, fastest first; one of all NPUs if not given")


def extent(arguments: Arguments, name: str) -> Extent:  # noqa: ARG001 - as of all builders
    """Return the size of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    return Extent(arguments.npus, 1, arguments.npus, 1)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the switch and its NPUs. Raises TopologyError: there are too many NPUs, or dims have another product.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    builder = GraphBuilder(name, arguments.npus)
    switch = builder.add_switches("switch", 1, latency_ps=arguments.switch_latency)
    builder.add_cables(np.arange(arguments.npus), switch, arguments.rate, arguments.delay)
    return builder.graph(dims=arguments.dims)
