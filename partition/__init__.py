"""Which part of a parallel run owns which node of the fabric.

`expected` says how many packets each node and link will see, `partition` divides the fabric by it, and `report` says
what that promises. What the user asks wrongly raises PartitionError.
"""

from partition.errors import PartitionError
from partition.methods import DEFAULT_METHOD, methods
from partition.owners import NO_CUT_PS, Partition, partition
from partition.reach import SMALLEST_BYTES, reach_ps
from partition.report import PartitionReport, report
from partition.weights import TrafficWeights, expected, from_links, link_loads, uniform

__all__ = [
    "DEFAULT_METHOD",
    "NO_CUT_PS",
    "SMALLEST_BYTES",
    "Partition",
    "PartitionError",
    "PartitionReport",
    "TrafficWeights",
    "expected",
    "from_links",
    "link_loads",
    "methods",
    "partition",
    "reach_ps",
    "report",
    "uniform",
]
