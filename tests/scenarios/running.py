"""Runs a program on a network, and checks what must hold in every run."""

import numpy as np

from nadi import pdes, topologies
from nadi.simulation.assembly import engine_inputs


def simulate(network, program, **settings):
    """Results of `program` on `network` (a spec, a path or a Graph); `settings` are those of pdes.Settings.

    All trace nodes have run, bytes and packets are conserved, every message has arrived whole.
    """
    graph = topologies.build(str(network)) if not isinstance(network, topologies.Graph) else network
    graph, program, _ = engine_inputs(graph, program)
    chosen = pdes.Settings(**settings)
    results = pdes.run(pdes.build_world(graph, program, chosen))
    check(results, program, chosen)
    return results


def check(results, program, settings):
    count, flows = results.counters, results.flows
    rows = int(np.diff(program.trace_ptr)[program.trace_of_npu[program.trace_of_npu >= 0]].sum())
    assert count["trace_nodes"] == rows == len(results.node_finish_ps)
    assert np.all(results.node_start_ps >= 0)
    assert np.all(results.node_finish_ps >= results.node_start_ps)
    assert results.finish_time_ps == results.node_finish_ps.max()
    assert count["bytes_sent"] == count["bytes_received"] + count["bytes_dropped"]
    assert results.links["tx_packets"].sum() == count["packet_hops"]
    assert results.links["dropped_packets"].sum() == count["dropped_packets"]
    packets = np.maximum(1, -(-flows["bytes"] // settings.mtu_bytes)).sum()
    assert count["data_packets"] - count["retransmitted_packets"] == packets
    assert count["flows"] == len(flows["bytes"])
    assert count["payload_bytes"] == flows["bytes"].sum()
    assert np.all(flows["finish_ps"] > flows["start_ps"])
    if count["dropped_packets"] == 0:
        assert count["retransmitted_packets"] == 0
        assert count["ack_packets"] == packets
        wire = flows["bytes"].sum() + packets * (settings.header_bytes + settings.ack_bytes)
        assert count["bytes_sent"] == wire
