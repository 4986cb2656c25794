"""Loads of links the slow way: every pair walked alone, link by link, with the reference walker."""

import numpy as np

from nadi import topologies


def fluid_loads(graph, pairs):
    """Packets of each link when each pair's are shared equally at every branch. pairs: (src, dst, packets)."""
    load = np.zeros(graph.links)

    def walk(node, dst, packets):
        links = topologies.next_links(graph, node, dst)
        for link in links:
            load[link] += packets / len(links)
            following = int(graph.link_dst[link])
            if following != dst:
                walk(following, dst, packets / len(links))

    for src, dst, packets in pairs:
        walk(src, dst, packets)
    return load


def data_and_acks(pairs):
    """Both directions of (src, dst, packets)."""
    return [*pairs, *((dst, src, packets) for src, dst, packets in pairs)]


def arrivals(graph, load):
    """Packets that arrive at each node."""
    at = np.zeros(graph.nodes)
    for link in range(graph.links):
        at[graph.link_dst[link]] += load[link]
    return at
