"""The least that a program can take: what its busiest link needs to send all that crosses it, were it never idle.

Traffic is spread evenly over links of equal cost. Data packets have their headers, and are acknowledged the other way;
messages that go whole have neither.
"""

import numpy as np

import partition
from nadi.in_network import with_reducers
from pdes.framing import FLIT_BYTES, is_framed
from pdes.settings import Settings
from topologies import Graph
from workload import Program
from workload.traffic import traffic

_PS_PER_S = 10**12


def link_bound_ps(graph: Graph, program: Program, settings: Settings) -> float:
    """Picoseconds of the busiest link, and its delay; 0 if nothing is sent."""
    graph, running, _ = with_reducers(graph, program)
    src, dst, payload, messages = traffic(running)
    if not len(src):
        return 0.0
    packets = np.maximum(messages, -(-payload // settings.mtu_bytes))
    sent = partition.link_loads(graph, src, dst, payload)
    if not settings.fidelity.alone_ps:
        framed = is_framed(graph, settings)
        header, ack = (np.where(framed, FLIT_BYTES, each) for each in (settings.header_bytes, settings.ack_bytes))
        sent += header * partition.link_loads(graph, src, dst, packets)
        sent += ack * partition.link_loads(graph, dst, src, packets)
    busy_ps = sent * (8 * _PS_PER_S / graph.link_rate_bps)
    busiest = int(busy_ps.argmax())
    return float(busy_ps[busiest] + graph.link_delay_ps[busiest])
