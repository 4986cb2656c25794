"""DGX A100: 8 A100 with 12 NVLinks of 25 GB/s each, 8 NICs of 200 Gb/s (HDR InfiniBand).

NVIDIA DGX A100 user guide (DU-09821): 600 GB/s of NVLink both ways for each GPU, eight single-port ConnectX-6 for the
cluster.
"""

from topologies.builders.machine import MachineArguments, build_machine, extent_of_machine
from topologies.graph import Graph
from topologies.units import GBPS, NS

NAME = "dgx-a100"
Arguments = MachineArguments
extent = extent_of_machine


def build(arguments: MachineArguments, name: str) -> Graph:
    """Build the cluster, laid out as `rail-optimised`."""
    return build_machine(
        arguments, name, accelerator="a100", rate=200 * GBPS, nvlink_rate=2400 * GBPS, nvlink_delay=25 * NS
    )
