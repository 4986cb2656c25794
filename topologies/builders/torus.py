"""A torus of one to three dimensions: a ring along each."""

from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.builders.stack import build_stack
from nadi.topologies.dimension_routing import Dimension, extent_of
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.parameters import Parameters, Rate, Sizes, Time

_MAX_DIMENSIONS = 3


class Arguments(Parameters):
    """Parameters of the torus."""

    sizes: Sizes = Field(description="NPUs along each dimension, 2 or more, fastest first")
    rate: Rate = Field(400 * GBPS, description="rate of each direction of a link")
    delay: Time = Field(500 * NS, description="propagation delay of a link")


def extent(arguments: Arguments, name: str) -> Extent:  # noqa: ARG001 - as of all builders
    """Return the size of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    return extent_of([Dimension("Ring", size) for size in arguments.sizes])


def build(arguments: Arguments, name: str) -> Graph:
    """Build the torus; packets correct the first dimension first. TopologyError for > 3 dimensions or sizes < 2.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    sizes = arguments.sizes
    if len(sizes) > _MAX_DIMENSIONS or min(sizes) == 1:
        raise TopologyError.at(name, f"sizes = {'x'.join(map(str, sizes))}", "one to three sizes of 2 or more")
    dimensions = [Dimension("Ring", size) for size in sizes]
    return build_stack(name, dimensions, [arguments.rate] * len(sizes), [arguments.delay] * len(sizes))
