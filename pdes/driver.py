"""Runs a world to its end: makes room, collects flow records, reports progress, checks the engine's promises."""

import hashlib
import time

import numpy as np

from pdes import packet
from pdes import state as s
from pdes.growth import grow
from pdes.jit import compile_for, jit_enabled
from pdes.results import Results, RunError
from pdes.simulation import Snapshot
from pdes.stall import failed_queue_pair, who_waits
from pdes.window import DONE, FAILED, FULL, run_serial

FIRST_PAUSE_HOPS = 1
PAUSE_HOPS = 2_000_000
PAUSE_HOPS_PLAIN = 2_000


def run(sim, progress=None):
    """Run a Simulation to its end and return its Results.

    progress: called a few times a second with a Snapshot. Raises RunError when events run out and work is left (who
    waits for whom), when a queue pair gives up, and when a promise of the engine is broken (a defect, never the
    user's fault).
    """
    begun = time.perf_counter()
    compile_for(run_serial, sim.world, FIRST_PAUSE_HOPS)
    compile_s = time.perf_counter() - begun
    begun += compile_s
    total = int(sim.world.net.ctl[s.CTL_LEFT])
    hops = FIRST_PAUSE_HOPS
    first_event_s = 0.0
    while True:
        status = run_serial(sim.world, hops)
        if first_event_s == 0.0:
            first_event_s = time.perf_counter() - begun
        hops = PAUSE_HOPS if jit_enabled() else PAUSE_HOPS_PLAIN
        if status == FULL:
            if sim.world.net.ctl[s.CTL_NEED] == s.NEED_FLOWS:
                take_flows(sim)
            else:
                sim.world = grow(sim.world)
        elif status == FAILED:
            raise RunError(failed_queue_pair(sim))
        elif status == DONE:
            break
        if progress is not None:
            progress(_snapshot(sim, total, begun))
    take_flows(sim)
    wall_s = time.perf_counter() - begun
    if sim.world.net.ctl[s.CTL_LEFT] > 0:
        raise RunError(who_waits(sim))
    _check_promises(sim.world)
    return _results(sim, wall_s, compile_s, first_event_s)


def take_flows(sim):
    """Move the flow records out of the world."""
    w = sim.world
    for ctl, array, words, into in (
        (s.CTL_FLOWS_OUT, w.qps.flow_out, s.FLOW_OUT_WORDS, sim.flows_out),
        (s.CTL_FLOWS_IN, w.qps.flow_in, s.FLOW_IN_WORDS, sim.flows_in),
    ):
        rows = int(w.net.ctl[ctl])
        if rows:
            into.append(array[: rows * words].reshape(rows, words).copy())
            w.net.ctl[ctl] = 0


def _snapshot(sim, total, begun):
    w = sim.world
    return Snapshot(
        now_ps=int(w.net.ctl[s.CTL_NOW]),
        packet_hops=int(w.net.count[s.COUNT_HOPS]),
        nodes_done=total - int(w.net.ctl[s.CTL_LEFT]),
        nodes_total=total,
        wall_s=time.perf_counter() - begun,
    )


def _check_promises(w):
    """Bytes sent = received + dropped; packets made = consumed + dropped; blocks, messages, instances given back."""
    c = w.net.count
    sent, received, dropped = (int(c[i]) for i in (s.COUNT_BYTES_SENT, s.COUNT_BYTES_RECEIVED, s.COUNT_BYTES_DROPPED))
    if sent != received + dropped:
        raise RunError(f"engine defect: {sent} bytes sent, but {received} received and {dropped} dropped")
    made = int(c[s.COUNT_DATA_PACKETS] + c[s.COUNT_ACK_PACKETS])
    gone = int(c[s.COUNT_CONSUMED_PACKETS] + c[s.COUNT_DROPPED_PACKETS])
    if made != gone:
        raise RunError(f"engine defect: {made} packets taken, {gone} given back")
    for name, free, expected in (
        ("blocks", w.net.ctl[s.CTL_FREE_BLOCKS], len(w.net.block_free)),
        ("messages", w.net.ctl[s.CTL_FREE_MSGS], len(w.qps.msg_free)),
        ("collective instances", w.net.ctl[s.CTL_FREE_INSTS], len(w.insts.inst_free)),
    ):
        if free != expected:
            raise RunError(f"engine defect: {free} of {expected} {name} given back")


def digest(w):
    """Hash of the completion time of every trace row and flow, the same for any partition."""
    words = w.net.count[[s.COUNT_DIGEST_A, s.COUNT_DIGEST_B, s.COUNT_FLOWS, s.COUNT_NODES]]
    return hashlib.sha256(words.astype("<i8").tobytes()).hexdigest()[:32]


def _flows(sim):
    """Messages with both their ends: posted at the sender, complete at the receiver."""
    out = np.concatenate(sim.flows_out) if sim.flows_out else np.empty((0, s.FLOW_OUT_WORDS), np.int64)
    into = np.concatenate(sim.flows_in) if sim.flows_in else np.empty((0, s.FLOW_IN_WORDS), np.int64)
    out = out[np.lexsort((out[:, 4], out[:, 1] >> 44, out[:, 0]))]
    into = into[np.lexsort((into[:, 2], into[:, 1] >> 44, into[:, 0]))]
    if not np.array_equal(out[:, [0, 1]], into[:, [0, 1]]):
        raise RunError("engine defect: messages posted and messages complete differ")
    group = out[:, 1] >> 44
    flows = {
        "src": out[:, 0] & packet.NPU_MASK,
        "dst": out[:, 0] >> 20,
        "group": np.where(group == packet.P2P, -1, group),
        "seq": (out[:, 1] >> 24) & 0xFFFFF,
        "lane": out[:, 1] & 0xFFFFFF,
        "bytes": out[:, 2],
        "start_ps": out[:, 3],
        "finish_ps": into[:, 3],
    }
    order = np.lexsort((flows["dst"], flows["src"], flows["start_ps"]))
    return {name: column[order] for name, column in flows.items()}


def _links(sim):
    """Per link of the graph: what it sent and how long its queue was."""
    w = sim.world
    tx = w.net.tx.reshape(-1, s.TX_WORDS)
    psb = 8e12 / sim.graph.link_rate_bps[sim.tx_link]
    columns = {
        "tx_bytes": tx[:, s.TX_BYTES],
        "tx_packets": tx[:, s.TX_PACKETS],
        "dropped_packets": w.net.tx_dropped,
        "max_queue_bytes": (w.net.tx_max_wait / psb).astype(np.int64),
    }
    by_graph_link = {}
    for name, values in columns.items():
        by_graph_link[name] = np.empty(len(values), np.int64)
        by_graph_link[name][sim.tx_link] = values
    return by_graph_link


_COUNTERS = {
    "packet_hops": s.COUNT_HOPS,
    "events": s.COUNT_EVENTS,
    "windows": s.COUNT_WINDOWS,
    "flows": s.COUNT_FLOWS,
    "data_packets": s.COUNT_DATA_PACKETS,
    "ack_packets": s.COUNT_ACK_PACKETS,
    "retransmitted_packets": s.COUNT_RETRANSMITTED,
    "dropped_packets": s.COUNT_DROPPED_PACKETS,
    "timeouts": s.COUNT_TIMEOUTS,
    "bytes_sent": s.COUNT_BYTES_SENT,
    "bytes_received": s.COUNT_BYTES_RECEIVED,
    "bytes_dropped": s.COUNT_BYTES_DROPPED,
    "payload_bytes": s.COUNT_PAYLOAD_BYTES,
    "trace_nodes": s.COUNT_NODES,
}


def _results(sim, wall_s, compile_s, first_event_s):
    w = sim.world
    counters = {name: int(w.net.count[index]) for name, index in _COUNTERS.items()}
    counters["packets"] = counters["data_packets"] + counters["ack_packets"]
    recorded = sim.settings.record_nodes
    rows = int(sim.row_ptr[-1]) if recorded else 0
    return Results(
        finish_time_ps=int(w.net.ctl[s.CTL_FINISH]),
        digest=digest(w),
        counters=counters,
        npu_node_ptr=sim.row_ptr if recorded else np.zeros(len(sim.row_ptr), np.int64),
        node_start_ps=w.rows.start[:rows],
        node_finish_ps=w.rows.finish[:rows],
        flows=_flows(sim),
        links=_links(sim),
        wall_s=wall_s,
        setup_s=sim.setup_s,
        compile_s=compile_s,
        first_event_s=first_event_s,
        settled={
            "window_packets": int(w.net.const[s.CONST_WINDOW]),
            "rto_ps": int(w.net.const[s.CONST_RTO]),
            "lookahead_ps": int(w.net.const[s.CONST_LOOKAHEAD]),
        },
    )
