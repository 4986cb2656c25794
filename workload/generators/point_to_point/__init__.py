"""Traces of messages between pairs of NPUs, without a model or collectives."""

from nadi.workload.generators.point_to_point.connection_matrix import (
    ConnectionMatrix,
    FailedLink,
    flow_traces,
    read_connections,
)
from nadi.workload.generators.point_to_point.distributions import EXPECTED, Sizes, arrivals, message_sizes
from nadi.workload.generators.point_to_point.flow_lists import flow_list
from nadi.workload.generators.point_to_point.traces import (
    NODE_BYTES,
    OPS_PER_S,
    MessageSequence,
    all_to_all,
    incast,
    pairs,
    permutation,
    random_messages,
    trace_set,
    write,
)
