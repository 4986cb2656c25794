"""A torus whose short dimensions wrap around with a twist, as of TPU v4: k x 2k, k x k x 2k or k x 2k x 2k.

Camara, Moreto, Vallejo, Beivide, Miguel-Alonso, Martinez and Navaridas, "Twisted Torus Topologies for Enhanced
Interconnection Networks" (IEEE TPDS 21(12), 2010), and Camarero, Martinez and Beivide, "Symmetric Interconnection
Networks from Cubic Crystal Lattices" (arXiv 1311.2019), where k x k x 2k is the face-centred and k x 2k x 2k the body-
centred cubic lattice; Jouppi et al., "TPU v4" (ISCA 2023), section 2.8. The link that closes a ring of a short
dimension ends k places further on in every long dimension. All links are then alike, and paths are shorter than in the
torus of the same sizes.

Each NPU has a router of its own without latency, which passes on the packets of others: packets take all shortest
paths, of which an NPU's place in a twisted ring gives no order by dimensions.
"""

import math

import numpy as np
from pydantic import Field

from nadi.inputs.limits import LINK_RATE_BPS
from nadi.inputs.units import GBPS, NS
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Parameters, Rate, Sizes, Time

_MAX_DIMENSIONS = 3


class Arguments(Parameters):
    """Parameters of the twisted torus."""

    sizes: Sizes = Field(description="NPUs along each dimension, fastest first: k, 2 or more, or 2k")
    rate: Rate = Field(400 * GBPS, description="rate of each direction of a link")
    delay: Time = Field(500 * NS, description="propagation delay of a link")
    npu_rate: Rate | None = Field(
        None, description="rate between an NPU and its router; that of all its links if not given"
    )


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the numbers of nodes and cables of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    _short_size(arguments, name)
    npus = math.prod(arguments.sizes)
    # a cable per NPU and dimension, and that to its router
    return Extent(npus, npus, npus * (len(arguments.sizes) + 1), npus)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network, whose pods are the slices along the last dimension; TopologyError for other sizes.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    short = _short_size(arguments, name)
    sizes = np.array(arguments.sizes)
    strides = np.cumprod([1, *sizes[:-1]])
    npus = int(sizes.prod())
    npu = np.arange(npus)
    place = npu[:, None] // strides % sizes
    builder = GraphBuilder(name, npus)
    builder.set_npu_pods(place[:, -1])
    router = builder.add_named_switches([f"router {i}" for i in range(npus)], pod=place[:, -1])
    npu_rate = arguments.npu_rate or min(2 * len(sizes) * arguments.rate, LINK_RATE_BPS.maximum)
    builder.add_cables(npu, router, npu_rate, 0)
    for dimension, size in enumerate(sizes):
        ahead = place.copy()
        ahead[:, dimension] += 1
        closes = ahead[:, dimension] == size
        if size == short:
            ahead[closes] += np.where(sizes == short, 0, short)
        builder.add_cables(router, router[ahead % sizes @ strides], arguments.rate, arguments.delay)
    # Two planes of cables across a short dimension. The cut across a long one has no fewer: its two planes, and the
    # cables that close the short rings half-way round. In the plain torus that cut has two planes only.
    between = 2 * npus // short * arguments.rate
    builder.set_bisection(min(between, npus // 2 * npu_rate), is_exact=short % 2 == 0)
    return builder.graph(dims=arguments.sizes)


def _short_size(arguments: Arguments, name: str) -> int:
    """Return k, the size of the short dimensions; errors begin with the name."""
    sizes = arguments.sizes
    short = min(sizes)
    if short == 1 or set(sizes) != {short, 2 * short} or len(sizes) > _MAX_DIMENSIONS:
        raise TopologyError.at(
            name, f"sizes = {'x'.join(map(str, sizes))}", "k x 2k, k x k x 2k or k x 2k x 2k in any order, k from 2"
        )
    return short
