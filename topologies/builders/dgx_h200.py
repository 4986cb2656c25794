"""DGX H200: 8 H200, whose NVLinks and NICs are those of the DGX H100.

NVIDIA DGX H100/H200 user guide (DU-11188). H200 is an H100 with more and faster memory: to NCCL they are the same.
"""

from topologies.builders.machine import MachineArguments, build_machine, extent_of_machine
from topologies.graph import Graph
from topologies.units import GBPS, NS

NAME = "dgx-h200"
Arguments = MachineArguments
extent = extent_of_machine


def build(arguments: MachineArguments, name: str) -> Graph:
    """Build the cluster, laid out as `rail-optimised`."""
    return build_machine(
        arguments, name, accelerator="h100", rate=400 * GBPS, nvlink_rate=3600 * GBPS, nvlink_delay=25 * NS
    )
