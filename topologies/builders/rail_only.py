"""Rail-only: servers behind an NVSwitch; NIC j of all servers on a network of rail j, nothing between the rails.

Wang, Ghobadi, Shakeri, Zhang and Hasani, "Rail-only: A Low-Cost High-Performance Network for Training LLMs with
Trillion Parameters" (arXiv 2307.12169, section IV): the rails of a rail-optimised network without the spines that join
them. A rail is one switch, or a leaf-spine network of its own. What leaves for another rail takes the NVSwitch of the
sender or of the receiver. It is a `rail-fat-tree` with `rail_spines` and `forwarding`.
"""

from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.builders import rail_fat_tree
from nadi.topologies.graph import Extent, Graph
from nadi.topologies.parameters import Count, Name, Parameters, Rate, Ratio, Time


class Arguments(Parameters):
    """Parameters of the rail-only network."""

    npus: Count = Field(description="number of NPUs, a multiple of gpus_per_host")
    gpus_per_host: Count = Field(8, description="NPUs of a server, each with a NIC on a rail of its own")
    hosts_per_rail_leaf: Count | None = Field(
        None, description="servers of a leaf; all servers, so that a rail is one switch, if not given"
    )
    spines: Count | None = Field(None, description="number of spines of a rail; by oversubscription if not given")
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
    accelerator: Name = Field("", description="model of the NPUs, as h100, which selects NCCL's constants")


def extent(arguments: Arguments, name: str) -> Extent:
    """Return the numbers of nodes and cables of the network.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    return rail_fat_tree.extent(_as_fat_tree(arguments), name)


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network. Logical dimensions are (gpus_per_host, servers).

    Raises TopologyError: npus is no multiple of gpus_per_host, or the number of spines is not whole.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    return rail_fat_tree.build(_as_fat_tree(arguments), name)


def _as_fat_tree(arguments: Arguments) -> rail_fat_tree.Arguments:
    """Return the parameters of the same network as a `rail-fat-tree`."""
    values = dict(arguments)
    per_leaf = values.pop("hosts_per_rail_leaf") or max(arguments.npus // arguments.gpus_per_host, 1)
    return rail_fat_tree.Arguments.model_construct(hosts_per_unit=per_leaf, rail_spines=True, forwarding=True, **values)
