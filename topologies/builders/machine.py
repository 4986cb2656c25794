"""Common parts of named machines: servers with an NVSwitch and a NIC for each GPU, on rails (`rail_optimised`)."""

from pydantic import Field

from topologies.builders import rail_optimised
from topologies.extent import Extent
from topologies.graph import Graph
from topologies.parameters import Count, Parameters, Ratio, Time
from topologies.units import GBPS, NS

_GPUS_PER_HOST = 8


class MachineArguments(Parameters):
    """Parameters of a cluster of one machine, which determines the links inside and the NICs."""

    npus: Count = Field(description="number of GPUs: a multiple of 8, or fewer than 8")
    hosts_per_rail_leaf: Count = Field(32, description="servers of a unit; the last unit may have fewer")
    spines: Count | None = Field(None, description="number of spines; by oversubscription if not given")
    oversubscription: Ratio | None = Field(None, description="NIC rate over uplink rate of a leaf; 1 if not given")
    delay: Time = Field(500 * NS, description="propagation delay of a cable outside the servers")
    switch_latency: Time = Field(0, description="forwarding latency of leaves and spines")


def build_machine(
    arguments: MachineArguments, name: str, *, accelerator: str, rate: int, nvlink_rate: int, nvlink_delay: int
) -> Graph:
    """Build a cluster of servers of eight GPUs.

    Args:
        arguments: Parameters that the user gave.
        name: Name of the network.
        accelerator: Generation of the GPUs, which selects NCCL's constants.
        rate: Rate of a NIC in bits per second.
        nvlink_rate: Rate of a GPU's NVLinks together, each direction, in bits per second.
        nvlink_delay: Delay between a GPU and the NVSwitch in picoseconds.

    Raises:
        TopologyError: The parameters are invalid for the rail-optimised network.
    """
    own = _rails(arguments, rate=rate, nvlink_rate=nvlink_rate, nvlink_delay=nvlink_delay)
    return rail_optimised.build(own, name, accelerator)


def extent_of_machine(arguments: MachineArguments, name: str) -> Extent:
    """Return the size of a cluster, which does not depend on rates.

    Raises TopologyError: the parameters are invalid for the rail-optimised network.
    """
    return rail_optimised.extent(_rails(arguments, rate=GBPS, nvlink_rate=GBPS, nvlink_delay=0), name)


def _rails(arguments: MachineArguments, *, rate: int, nvlink_rate: int, nvlink_delay: int) -> rail_optimised.Arguments:
    """Return the parameters of the equivalent rail-optimised network."""
    return rail_optimised.Arguments.model_construct(
        gpus_per_host=min(_GPUS_PER_HOST, arguments.npus),
        uplinks=1,
        uplink_rate=None,
        uplink_delay=None,
        nvswitch_latency=0,
        rate=rate,
        nvlink_rate=nvlink_rate,
        nvlink_delay=nvlink_delay,
        **dict(arguments),
    )
