"""Named machines: GPUs on NVSwitches with a NIC for each GPU, on rails (`rail_optimised`). A TOML file describes one.

The GPUs of a server are one NVLink domain, or those of all servers of a rack (NVL72). NCCL takes such a rack as one
host (MNNVL), and so do the graph's hosts.
"""

import functools
import math
from collections.abc import Mapping

from pydantic import Field

from nadi import inputs
from nadi.inputs import plug_ins
from nadi.inputs.documents import checked, read_toml
from nadi.inputs.units import NS
from nadi.topologies.builders import rail_optimised
from nadi.topologies.graph import Extent, Graph, TopologyError
from nadi.topologies.parameters import Count, Parameters, Rate, Ratio, Time

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
    """Parameters of a cluster of racks; each rack is one NVLink domain."""

    npus: Count = Field(description="number of GPUs: a multiple of 72, or fewer than 72")
    hosts_per_rail_leaf: Count = Field(1, description="racks that share a leaf per rail")


class Machine(Parameters):
    """The content of a machine's file."""

    summary: str = Field(description="description in one line")
    rack: bool = Field(False, description="whether the NVLink domain is a rack of 72 GPUs; false: a server of 8")
    accelerator: str = Field(description="generation of the GPUs, which selects NCCL's constants")
    rate: Rate = Field(description="rate of a NIC")
    nvlink_rate: Rate = Field(description="rate of a GPU's NVLinks together, each direction")
    nvlink_delay: Time = Field(description="propagation delay between a GPU and the NVSwitch")

    @property
    def domain_gpus(self) -> int:
        """Number of GPUs of a whole NVLink domain: of a server, or of a rack."""
        return _GPUS_PER_RACK if self.rack else _GPUS_PER_SERVER

    @property
    def arguments(self) -> type[MachineArguments]:
        """Parameters of a cluster of the machine."""
        return RackArguments if self.rack else MachineArguments

    def build(self, arguments: MachineArguments, name: str) -> Graph:
        """Build a cluster, laid out as `rail-optimised`; TopologyError if the counts do not fit.

        Args:
            arguments: The parameters of the cluster.
            name: The name of the network, with which errors begin.
        """
        own = self.model_dump(include={"accelerator", "rate", "nvlink_rate", "nvlink_delay"})
        return rail_optimised.build(arguments, name, **self._domain(arguments), **own)

    def extent(self, arguments: MachineArguments, name: str) -> Extent:
        """Return the size of a cluster.

        Args:
            arguments: The parameters of the cluster.
            name: The name of the network, with which errors begin.
        """
        return rail_optimised.extent(arguments, name, **self._domain(arguments))

    def _domain(self, arguments: MachineArguments) -> dict[str, int]:
        """Return the parameters gpus_per_host and rails of an NVLink domain: a server or a rack."""
        # a part of a rack has as many rails as divide its GPUs: 6 GPUs have 2, since each rail takes equally many NICs
        size = min(self.domain_gpus, arguments.npus)
        return {"gpus_per_host": size} | ({"rails": math.gcd(size, _RAILS_OF_RACK)} if self.rack else {})


@functools.cache
def machines() -> Mapping[str, Machine]:
    """Return all machines by name, without those in files of the user's."""
    return {name: machine(name) for name in plug_ins.names("machine")}


def is_machine(name: str) -> bool:
    """Return whether a name is that of a machine or of a file that describes one."""
    kind = inputs.kind_of(name) if plug_ins.is_file("machine", name) else None
    return name in plug_ins.names("machine") or (kind is not None and kind.key == "machine")


def machine(name: str) -> Machine:
    """Return the machine of a name or file; TopologyError if the file is wrong.

    Args:
        name: The name of a machine, or the path of the file that describes it.
    """
    path = plug_ins.toml_file("machine", name, TopologyError)
    return checked(Machine, read_toml(path, "the file of a machine", TopologyError), path, TopologyError)
