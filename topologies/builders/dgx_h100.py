"""DGX H100: 8 H100 with 18 NVLinks of 25 GB/s each, 8 NICs of 400 Gb/s (NDR InfiniBand).

NVIDIA DGX H100/H200 user guide (DU-11188): 900 GB/s of NVLink both ways for each GPU, eight ConnectX-7 of 400 Gb/s for
the cluster.
"""

from topologies.builders.machine import MachineArguments, build_machine, extent_of_machine
from topologies.graph import Graph
from topologies.units import GBPS, NS

NAME = "dgx-h100"
Arguments = MachineArguments
extent = extent_of_machine


def build(arguments: MachineArguments, name: str) -> Graph:
    """Build the cluster, laid out as `rail-optimised`."""
    return build_machine(
        arguments, name, accelerator="h100", rate=400 * GBPS, nvlink_rate=3600 * GBPS, nvlink_delay=25 * NS
    )
