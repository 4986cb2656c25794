"""Division of the fabric among the logical processes of a parallel run.

`expected` predicts how many packets each node and link will process, `partition` divides the fabric by that, and
`report` predicts the effect. Invalid requests raise PartitionError.
"""

from nadi.partition.methods import DEFAULT_METHOD, method, methods
from nadi.partition.owners import NO_CUT_PS, SMALLEST_BYTES, Partition, PartitionReport, partition, reach_ps, report
from nadi.partition.weights import PartitionError, TrafficWeights, expected, from_links, link_loads, uniform
