"""DGX H200: 8 H200, whose NVLinks and NICs are those of the DGX H100.

NVIDIA DGX H100/H200 user guide (DU-11188). H200 is an H100 with more and faster memory: to NCCL they are the same.
"""

from topologies.builders.machine import MachineArguments, extent_of_machine, machine_builder
from topologies.units import GBPS, NS

NAME = "dgx-h200"
Arguments = MachineArguments
build = machine_builder("h100", nic_bps=400 * GBPS, nvlink_bps=3600 * GBPS, nvlink_delay_ps=25 * NS)
extent = extent_of_machine
