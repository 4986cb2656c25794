"""A ring of NPUs: each is linked to the next, the last to the first."""

from pydantic import Field

from topologies.builders.stack import build_stack
from topologies.dimension_routing import Dimension, extent_of
from topologies.errors import TopologyError
from topologies.extent import Extent
from topologies.graph import Graph
from topologies.parameters import Count, Parameters, Rate, Time
from topologies.units import GBPS, NS

NAME = "ring"


class Arguments(Parameters):
    """Parameters of the ring."""

    npus: Count = Field(description="number of NPUs, 2 or more")
    rate: Rate = Field(400 * GBPS, description="rate of each direction of a link")
    delay: Time = Field(500 * NS, description="propagation delay of a link")


def extent(arguments: Arguments, name: str) -> Extent:  # noqa: ARG001 - as of all builders
    """Return the size of the network."""
    return extent_of([Dimension("Ring", arguments.npus)])


def build(arguments: Arguments, name: str) -> Graph:
    """Build the ring; packets take the shorter way round.

    Raises TopologyError: there are fewer than two NPUs, or too many.
    """
    if arguments.npus == 1:
        raise TopologyError(f"{name}: npus = 1; expected 2 or more")
    return build_stack(name, [Dimension("Ring", arguments.npus)], [arguments.rate], [arguments.delay])
