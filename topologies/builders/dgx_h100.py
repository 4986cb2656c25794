"""DGX H100: 8 H100 with 18 NVLinks of 25 GB/s each, 8 NICs of 400 Gb/s (NDR InfiniBand).

NVIDIA DGX H100/H200 user guide (DU-11188): 900 GB/s of NVLink both ways for each GPU, eight ConnectX-7 of 400 Gb/s for
the cluster.
"""

from topologies.builders.machine import MachineArguments, extent_of_machine, machine_builder
from topologies.units import GBPS, NS

NAME = "dgx-h100"
Arguments = MachineArguments
build = machine_builder("h100", nic_bps=400 * GBPS, nvlink_bps=3600 * GBPS, nvlink_delay_ps=25 * NS)
extent = extent_of_machine
