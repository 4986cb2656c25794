"""A hierarchy of Ring, FullyConnected and Switch dimensions, as ASTRA-sim describes networks.

Source: Won et al., ASTRA-sim 2.0 (ISPASS 2023), section on multi-dimensional hierarchical topologies. Every NPU has
links in each dimension. Rates and delays are those of one link: a FullyConnected NPU has size - 1 links of that rate,
and a path across a Switch has two links.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.dimension_routing import Dimension, extent_of, lay_out
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Dimensions, Parameters, Rate, Rates, Time, Times


class Arguments(Parameters):
    """Parameters of the hierarchy."""

    dims: Dimensions = Field(
        description="kind(size) of each dimension, fastest first; kinds Ring, FullyConnected, Switch"
    )
    rates: Rates = Field((400 * GBPS,), description="link rate of each dimension, or one for all")
    delays: Times = Field((500 * NS,), description="link delay of each dimension, or one for all")
    switch_latency: Time = Field(0, description="forwarding latency of a switch")
    host_dims: int = Field(0, ge=0, description="number of leading dimensions within one server")


def extent(arguments: Arguments, name: str) -> Extent:  # noqa: ARG001 - as of all builders
    """Return the size of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    return extent_of(arguments.dims)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the hierarchy; packets correct the first dimension first. TopologyError for unlike numbers of values.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    count = len(arguments.dims)
    for key, values in (("rates", arguments.rates), ("delays", arguments.delays)):
        if len(values) not in {1, count}:
            raise TopologyError.at(name, f"{key} has {len(values)} entries", f"1 or {count}, one for each dimension")
    if arguments.host_dims > count:
        raise TopologyError.at(name, f"host_dims = {arguments.host_dims}", f"0 to {count}")
    rates_bps = arguments.rates * (count if len(arguments.rates) == 1 else 1)
    delays_ps = arguments.delays * (count if len(arguments.delays) == 1 else 1)
    # NPUs are numbered with the first dimension fastest, so those of a server are consecutive
    per_host = math.prod(d.size for d in arguments.dims[: arguments.host_dims])
    return build_stack(name, arguments.dims, rates_bps, delays_ps, arguments.switch_latency, per_host)


def build_stack(
    name: str,
    dimensions: Sequence[Dimension],
    rates_bps: Sequence[int],
    delays_ps: Sequence[int],
    switch_latency_ps: int = 0,
    npus_per_host: int = 1,
) -> Graph:
    """Return the graph of a hierarchy, with one rate and delay for each dimension.

    Pods are the slices along the last dimension, if there are several dimensions; that one's switches have no pod.
    Raises TopologyError: there are too many NPUs or cables.

    Args:
        name: The name of the network, with which errors begin.
        dimensions: The dimensions, fastest first.
        rates_bps: The rate of each direction of a link in bits per second, for each dimension.
        delays_ps: The propagation delay of a link in picoseconds, for each dimension.
        switch_latency_ps: The forwarding latency of a switch in picoseconds.
        npus_per_host: The number of consecutive NPUs that a server holds.
    """
    try:
        layout = lay_out(dimensions)
    except TopologyError as error:
        raise TopologyError(f"{name}: {error}") from None
    builder = GraphBuilder(name, layout.npus)
    # column -1 of `digit` is -1 for the switches of the last dimension, which join all pods and belong to none
    last = layout.digit[:, -1] if len(dimensions) > 1 else np.full(layout.nodes, -1)
    switches = layout.nodes - layout.npus
    builder.set_npu_pods(last[: layout.npus])
    builder.add_named_switches(
        [f"switch {i}" for i in range(switches)], latency_ps=switch_latency_ps, pod=last[layout.npus :]
    )
    for a, b, rate_bps, delay_ps in zip(layout.cable_a, layout.cable_b, rates_bps, delays_ps, strict=True):
        builder.add_cables(a, b, rate_bps, delay_ps)
    dims = [d.size for d in dimensions]
    return builder.graph(dims=dims, host=np.arange(layout.npus) // npus_per_host, layout=layout)


class OneDimension(Parameters):
    """Parameters of a network of one dimension."""

    npus: Count = Field(description="number of NPUs, 2 or more")
    rate: Rate = Field(400 * GBPS, description="rate of each direction of a link")
    delay: Time = Field(500 * NS, description="propagation delay of a link")


def one_dimension(kind: str) -> tuple[Callable[[OneDimension, str], Graph], Callable[[OneDimension, str], Extent]]:
    """Return `build` and `extent` of a network of one dimension of a kind: Ring, FullyConnected or Switch."""

    def build(arguments: OneDimension, name: str) -> Graph:
        """Build the network; TopologyError for fewer than two NPUs, or too many.

        Args:
            arguments: The parameters of the network.
            name: The name of the network, with which errors begin.
        """
        if arguments.npus == 1:
            raise TopologyError.at(name, "npus = 1", "2 or more")
        return build_stack(name, [Dimension(kind, arguments.npus)], [arguments.rate], [arguments.delay])

    def extent(arguments: OneDimension, name: str) -> Extent:  # noqa: ARG001 - as of all builders
        """Return the size of the network.

        Args:
            arguments: The parameters of the network.
            name: The name of the network, with which errors begin.
        """
        return extent_of([Dimension(kind, arguments.npus)])

    return build, extent
