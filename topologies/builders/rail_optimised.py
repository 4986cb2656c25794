"""Servers of NPUs behind an NVSwitch; NIC j of every server on a leaf of rail j, all leaves on spines.

A *unit* is a group of servers that share one leaf per rail. One switch represents all NVSwitches of a server. NPUs of
different servers and rails communicate through leaf, spine and leaf. NPUs that share a NIC have equal shares of its
rate, even while the others are silent. It is a `rail-fat-tree` of one pod and plane, with spines in any case.
"""

from collections.abc import Mapping

from pydantic import Field

from nadi.inputs.units import GBPS, NS
from nadi.topologies.builders import rail_fat_tree
from nadi.topologies.graph import Extent, Graph
from nadi.topologies.parameters import Count, CountOrNone, Parameters, Rate, Ratio, Time


class Arguments(Parameters):
    """Parameters of the rail-optimised network."""

    npus: Count = Field(description="number of NPUs, a multiple of gpus_per_host")
    gpus_per_host: Count = Field(8, description="NPUs of a server")
    nics_per_host: Count | None = Field(
        None, description="NICs of a server, each on a rail, shared evenly; gpus_per_host if not given"
    )
    hosts_per_rail_leaf: Count = Field(32, description="servers of a unit; the last unit may have fewer")
    spines: CountOrNone | None = Field(
        None,
        description="number of spines, 0 where optical switches connect the leaves; by oversubscription if not given",
    )
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


def extent(arguments: Parameters, name: str, **machine: object) -> Extent:
    """Return the size of the network; the arguments are those of `build`.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
        machine: Further parameters, those of a named machine.
    """
    return rail_fat_tree.extent(_as_fat_tree(arguments, machine), name, keeps_spines=True)


def build(arguments: Parameters, name: str, **machine_parameters: object) -> Graph:
    """Build the network. Logical dimensions are (gpus_per_host, servers); pods are the units, spines belong to no pod.

    machine_parameters are further ones, those of a named machine. Raises TopologyError: npus is no multiple of
    gpus_per_host, the number of spines is not whole, or there are too many NPUs.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
        machine_parameters: Further parameters, those of a named machine.
    """
    return rail_fat_tree.build(_as_fat_tree(arguments, machine_parameters), name, keeps_spines=True)


def _as_fat_tree(arguments: Parameters, machine_parameters: Mapping[str, object]) -> rail_fat_tree.Arguments:
    """Return the parameters of the same network as a `rail-fat-tree`; machine_parameters replace others."""
    values = {**dict(arguments), **machine_parameters}
    return rail_fat_tree.Arguments.model_construct(hosts_per_unit=values.pop("hosts_per_rail_leaf"), **values)
