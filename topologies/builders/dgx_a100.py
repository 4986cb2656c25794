"""DGX A100: 8 A100 with 12 NVLinks of 25 GB/s each, 8 NICs of 200 Gb/s (HDR InfiniBand).

NVIDIA DGX A100 user guide (DU-09821): 600 GB/s of NVLink both ways for each GPU, eight single-port ConnectX-6 for the
cluster.
"""

from topologies.builders.machine import MachineArguments, extent_of_machine, machine_builder
from topologies.units import GBPS, NS

NAME = "dgx-a100"
Arguments = MachineArguments
build = machine_builder("a100", nic_bps=200 * GBPS, nvlink_bps=2400 * GBPS, nvlink_delay_ps=25 * NS)
extent = extent_of_machine
