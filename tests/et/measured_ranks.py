"""Traces of several NPUs with measured times, built from nodes."""

from nadi import et
from nadi.et.statistics import Rank


def timed(node, start, duration):
    node.start_time_micros, node.duration_micros = start, duration
    return node


def ranks_of(*nodes_of_npu):
    return [Rank(npu, et.table_of(et.metadata(), nodes)) for npu, nodes in enumerate(nodes_of_npu)]
