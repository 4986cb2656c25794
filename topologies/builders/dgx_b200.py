"""DGX B200: 8 B200 with 18 NVLinks of 50 GB/s each, 8 NICs of 400 Gb/s.

NVIDIA DGX B200 user guide: 1.8 TB/s of NVLink both ways for each GPU, eight ConnectX-7 of 400 Gb/s for the cluster.
"""

from topologies.builders.machine import MachineArguments, extent_of_machine, machine_builder
from topologies.units import GBPS, NS

NAME = "dgx-b200"
Arguments = MachineArguments
build = machine_builder("b200", nic_bps=400 * GBPS, nvlink_bps=7200 * GBPS, nvlink_delay_ps=25 * NS)
extent = extent_of_machine
