"""DGX B200: 8 B200 with 18 NVLinks of 50 GB/s each, 8 NICs of 400 Gb/s.

NVIDIA DGX B200 user guide: 1.8 TB/s of NVLink both ways for each GPU, eight ConnectX-7 of 400 Gb/s for the cluster.
"""

from topologies.builders.machine import MachineArguments, build_machine, extent_of_machine
from topologies.graph import Graph
from topologies.units import GBPS, NS

NAME = "dgx-b200"
Arguments = MachineArguments
extent = extent_of_machine


def build(arguments: MachineArguments, name: str) -> Graph:
    """Build the cluster, laid out as `rail-optimised`."""
    return build_machine(
        arguments, name, accelerator="b200", rate=400 * GBPS, nvlink_rate=7200 * GBPS, nvlink_delay=25 * NS
    )
