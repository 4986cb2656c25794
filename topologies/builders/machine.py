"""What named machines share: servers with an NVSwitch and a NIC for each GPU, on rails (`rail_optimised`)."""

from pydantic import Field

from topologies.builders import rail_optimised
from topologies.extent import Extent
from topologies.graph import Graph
from topologies.parameters import Count, Parameters, Ratio, Time
from topologies.units import GBPS, NS

_GPUS_PER_HOST = 8


class MachineArguments(Parameters):
    """Parameters of a cluster of one machine; links inside and NICs are the machine's own."""

    npus: Count = Field(description="number of GPUs: a multiple of 8, or some of one server")
    hosts_per_rail_leaf: Count = Field(32, description="servers of a unit; the last unit may have fewer")
    spines: Count | None = Field(None, description="number of spines; by oversubscription if not given")
    oversubscription: Ratio | None = Field(None, description="NIC rate over uplink rate of a leaf; 1 if not given")
    delay: Time = Field(500 * NS, description="propagation delay of a cable outside the servers")
    switch_latency: Time = Field(0, description="forwarding latency of leaves and spines")


def build_machine(
    arguments: MachineArguments, name: str, *, accelerator: str, rate: int, nvlink_rate: int, nvlink_delay: int
) -> Graph:
    """A cluster of servers of eight GPUs.

    Args:
        arguments: what the user gave.
        name: of the network.
        accelerator: the generation of the GPUs, by which NCCL's constants are found.
        rate: of a NIC, bits per second.
        nvlink_rate: of a GPU's NVLinks together, each direction, bits per second.
        nvlink_delay: between a GPU and the NVSwitch, picoseconds.

    Raises:
        TopologyError: as the rail-optimised network.
    """
    own = _rails(arguments, rate=rate, nvlink_rate=nvlink_rate, nvlink_delay=nvlink_delay)
    return rail_optimised.build(own, name, accelerator)


def extent_of_machine(arguments: MachineArguments, name: str) -> Extent:
    """How large a cluster will be, whatever its rates.

    Raises:
        TopologyError: as the rail-optimised network.
    """
    return rail_optimised.extent(_rails(arguments, rate=GBPS, nvlink_rate=GBPS, nvlink_delay=0), name)


def _rails(arguments: MachineArguments, *, rate: int, nvlink_rate: int, nvlink_delay: int) -> rail_optimised.Arguments:
    """The parameters of the network that it is."""
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
