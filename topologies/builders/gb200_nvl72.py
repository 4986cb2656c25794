"""GB200 NVL72: racks of 18 servers of 4 GPUs that are one NVLink domain, with a ConnectX-7 of 400 Gb/s for each GPU.

NVIDIA GB200 NVL72 data sheet: 1.8 TB/s of NVLink for each GPU, both ways together (18 NVLinks of 50 GB/s), nine switch
trays in a rack. NIC j of every server is on rail j.
"""

from topologies.builders.machine import RackArguments, extent_of_machine, machine_builder
from topologies.units import GBPS, NS

NAME = "gb200-nvl72"
Arguments = RackArguments
build = machine_builder("b200", nic_bps=400 * GBPS, nvlink_bps=7200 * GBPS, nvlink_delay_ps=25 * NS)
extent = extent_of_machine
