"""Runs with faults."""

import numpy as np

from nadi.pdes import Faults, Settings, build_world, run
from nadi.pdes.parallel import down_sets


def faults_of(graph, links=(), npus=(), detection_ps=20_000_000):
    routings = {down: graph.routing.without(graph, down) for _, down in down_sets(links) if down}
    return Faults(tuple(links), tuple(npus), detection_ps, routings)


def cable(graph, a, b):
    """Both directions of all cables between two nodes."""
    there = np.flatnonzero((graph.link_src == a) & (graph.link_dst == b))
    return tuple(sorted([*there.tolist(), *(there ^ 1).tolist()]))


def of_switch(graph, node):
    return tuple(np.flatnonzero((graph.link_src == node) | (graph.link_dst == node)).tolist())


def simulate(graph, program, owner=None, **settings):
    return run(build_world(graph, program, Settings(**settings), owner))
