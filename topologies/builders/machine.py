"""Common parts of named machines: GPUs on NVSwitches with a NIC for each GPU, on rails (`rail_optimised`).

The GPUs of a server are one NVLink domain, or those of all servers of a rack (NVL72). NCCL takes such a rack as one
host (MNNVL), and so do the graph's hosts.
"""

import math
from collections.abc import Callable

from pydantic import Field

from topologies.builders import rail_optimised
from topologies.extent import Extent
from topologies.graph import Graph
from topologies.parameters import Count, Parameters, Ratio, Time
from topologies.units import NS

_GPUS_PER_SERVER, _GPUS_PER_RACK = 8, 72
_RAILS_OF_RACK = 4  # NICs of a server of a rack, each on its rail


class MachineArguments(Parameters):
    """Parameters of a cluster of one machine, which determines the links inside and the NICs."""

    npus: Count = Field(description="number of GPUs: a multiple of 8, or fewer than 8")
    hosts_per_rail_leaf: Count = Field(32, description="servers of a unit; the last unit may have fewer")
    spines: Count | None = Field(None, description="number of spines; by oversubscription if not given")
    oversubscription: Ratio | None = Field(None, description="NIC rate over uplink rate of a leaf; 1 if not given")
    delay: Time = Field(500 * NS, description="propagation delay of a cable outside the servers")
    switch_latency: Time = Field(0, description="forwarding latency of leaves and spines")


class RackArguments(MachineArguments):
    """Parameters of a cluster of racks, each of which is one NVLink domain."""

    npus: Count = Field(description="number of GPUs: a multiple of 72, or fewer than 72")
    hosts_per_rail_leaf: Count = Field(1, description="racks that share a leaf per rail")


def extent_of_machine(arguments: MachineArguments, name: str) -> Extent:
    """Return the size of a cluster, which does not depend on rates."""
    return rail_optimised.extent(arguments, name, **_domain(arguments))


def machine_builder(
    accelerator: str, *, nic_bps: int, nvlink_bps: int, nvlink_delay_ps: int
) -> Callable[[MachineArguments, str], Graph]:
    """Return the builder of clusters of servers of eight GPUs, or of racks of 72 if its arguments are RackArguments.

    accelerator: generation of the GPUs, which selects NCCL's constants; nic_bps: rate of a NIC; nvlink_bps: rate of a
    GPU's NVLinks together, each direction; nvlink_delay_ps: delay between a GPU and the NVSwitch.
    """
    links = {"rate": nic_bps, "nvlink_rate": nvlink_bps, "nvlink_delay": nvlink_delay_ps}

    def build(arguments: MachineArguments, name: str) -> Graph:
        """Build the cluster, laid out as `rail-optimised`; TopologyError if the counts do not fit."""
        return rail_optimised.build(arguments, name, accelerator=accelerator, **_domain(arguments), **links)

    return build


def _domain(arguments: MachineArguments) -> dict[str, int]:
    """Return the parameters gpus_per_host and rails of an NVLink domain: a server, or a rack for RackArguments."""
    if not isinstance(arguments, RackArguments):
        return {"gpus_per_host": min(_GPUS_PER_SERVER, arguments.npus)}
    size = min(_GPUS_PER_RACK, arguments.npus)
    return {"gpus_per_host": size, "rails": math.gcd(size, _RAILS_OF_RACK)}
