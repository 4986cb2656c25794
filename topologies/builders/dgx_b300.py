"""DGX B300: 8 B300 with 18 NVLinks of 50 GB/s each, 8 ConnectX-8 of 800 Gb/s.

NVIDIA DGX B300 data sheet: 14.4 TB/s of NVLink for 8 GPUs, both ways together, and eight ConnectX-8 for the cluster.
NCCL has the same constants for B300 as for B200.
"""

from topologies.builders.machine import MachineArguments, extent_of_machine, machine_builder
from topologies.units import GBPS, NS

NAME = "dgx-b300"
Arguments = MachineArguments
build = machine_builder("b200", nic_bps=800 * GBPS, nvlink_bps=7200 * GBPS, nvlink_delay_ps=25 * NS)
extent = extent_of_machine
