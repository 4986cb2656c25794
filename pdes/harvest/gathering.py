"""What a run has brought: from the worlds of the logical processes to Results, over any number of processes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pdes.build.simulation import LogicalProcess, Simulation
from pdes.core import packet
from pdes.core import state as s
from pdes.core.errors import RunError
from pdes.core.inputs import Array, Graph, Int8, Int64, Record, Rows
from pdes.core.link_words import bytes_sent, longest_wait_ps, packets_sent
from pdes.core.memory import peak_rss_bytes, rows_of
from pdes.core.rows.network import Gate
from pdes.core.rows.nic import FlowIn, FlowOut
from pdes.core.rows.row import Row
from pdes.core.rows.run import Counters
from pdes.harvest.deadlock import circle, held_links
from pdes.harvest.observed import depth_rows, mark_rows, marks, pause_rows, pauses, queues
from pdes.harvest.stall import TOO_LATE_TEXT, too_late, waiting_rows
from pdes.nic import rendezvous
from pdes.npu.in_flight import CALL_LANE
from pdes.results import Results

COUNTERS = {
    "packet_hops": "hops",
    "events": "events",
    "flows": "flows",
    "data_packets": "data_packets",
    "ack_packets": "ack_packets",
    "retransmitted_packets": "retransmitted_packets",
    "dropped_packets": "dropped_packets",
    "timeouts": "timeouts",
    "lost_packets": "lost_packets",
    "marked_packets": "marked_packets",
    "pause_frames": "pause_frames",
    "trimmed_packets": "trimmed_packets",
    "congestion_notifications": "congestion_notifications",
    "bytes_sent": "sent_bytes",
    "bytes_received": "received_bytes",
    "bytes_dropped": "dropped_bytes",
    "payload_bytes": "payload_bytes",
    "trace_nodes": "trace_rows",
}
_GATE_COLUMNS = {
    "buffered_bytes": "longest_bytes",
    "marked_packets": "marked_packets",
    "trimmed_packets": "trimmed_packets",
    "pause_frames": "pause_frames",
    "paused_ps": "paused_ps",
}
LINK_COLUMNS = ("tx_bytes", "tx_packets", "dropped_packets", "max_queue_bytes", *_GATE_COLUMNS)


WorkerTimes = dict[str, np.ndarray]
"""What each worker of a process did and how long it waited: columns of Results.workers but `worker`."""


@dataclass
class Harvest:
    """What the LPs of one process have brought.

    Attributes:
        count: Counters, sums over LPs; windows are those of one LP.
        finish_ps: last trace row finished.
        now_ps: where the last LP stopped.
        left: trace rows not finished.
        waits: who waits for whom, one line each.
        too_late: whether something was to happen later than the engine can count.
        depths: int64[k, 3], see pdes.harvest.observed.depth_rows; depth_ps: the longest stretch.
        marks: int64[k, 3], see pdes.harvest.observed.mark_rows; stretches are as long as those of depths.
        pauses: int64[k, 2], their log, of which the first kept_pauses are kept.
        held: int64[k, 3], links that a pause holds back while work is left, and their ends.
        npus: int64[n], own NPUs, ascending.
        rows: int64[n], how many trace rows of each were recorded.
        start_ps, finish_times_ps: int64[sum of rows].
        flows_out, flows_in: int64[m, words] records.
        links: int64[k], own links.
        link_columns: int64[columns, k].
        asked_for: whether some messages are asked for before they are sent.
        called: whether members of collectives are called.
        not_given_back: pools to which something was not given back.
        peak_rss_bytes: the most memory that the process has had.
        settled: what was settled from the fabric.
        forked_rss_bytes: the most memory that processes forked for the run have had, summed.
        workers: of the process, in order; empty where nothing was recorded.
    """

    count: Record
    finish_ps: int
    now_ps: int
    left: int
    waits: list[str]
    too_late: bool
    depths: np.ndarray
    depth_ps: int
    marks: np.ndarray
    pauses: np.ndarray
    kept_pauses: int
    held: np.ndarray
    npus: np.ndarray
    rows: np.ndarray
    start_ps: np.ndarray
    finish_times_ps: np.ndarray
    flows_out: Rows
    flows_in: Rows
    links: np.ndarray
    link_columns: np.ndarray
    asked_for: bool
    called: bool
    not_given_back: list[str]
    peak_rss_bytes: int
    settled: dict[str, int]
    forked_rss_bytes: int = 0
    workers: WorkerTimes = field(default_factory=dict)


def harvest(sim: Simulation) -> Harvest:
    """What the LPs of a Simulation have brought."""
    for lp in sim.lps:
        lp.take_flows()
    worlds = [lp.world for lp in sim.lps]
    parts = [lp.part for lp in sim.lps]
    count = _summed([w.net.count for w in worlds])
    npus = np.concatenate([part.nodes[: part.npus] for part in parts])
    order = np.argsort(npus, kind="stable")
    recorded = sim.settings.record_nodes
    rows = np.concatenate([np.diff(lp.row_ptr) if recorded else np.zeros(lp.part.npus, np.int64) for lp in sim.lps])
    kept = [slice(int(lp.row_ptr[-1]) if recorded else 0) for lp in sim.lps]
    times = [
        _in_order([getattr(w.rows, name)[own] for w, own in zip(worlds, kept, strict=True)], rows, order)
        for name in ("start", "finish")
    ]
    left = sum(int(w.net.ctl.rows_left) for w in worlds)
    depths = [depth_rows(lp) for lp in sim.lps]
    return Harvest(
        count=count,
        finish_ps=max(int(w.net.ctl.finish_ps) for w in worlds),
        now_ps=max(int(w.net.ctl.now_ps) for w in worlds),
        left=left,
        waits=[line for lp in sim.lps for line in waiting_rows(lp)] if left else [],
        too_late=left > 0 and any(too_late(lp) for lp in sim.lps),
        depths=np.concatenate([rows for rows, _ in depths]),
        depth_ps=max(width_ps for _, width_ps in depths),
        marks=np.concatenate([mark_rows(lp) for lp in sim.lps]),
        pauses=np.concatenate([pause_rows(lp) for lp in sim.lps]),
        kept_pauses=sim.settings.logged_pauses,
        held=np.concatenate([held_links(sim.graph, lp) for lp in sim.lps]),
        npus=npus[order],
        rows=rows[order],
        start_ps=times[0],
        finish_times_ps=times[1],
        flows_out=_stacked([lp.flows_out for lp in sim.lps], FlowOut),
        flows_in=_stacked([lp.flows_in for lp in sim.lps], FlowIn),
        links=np.concatenate([part.links for part in parts]),
        link_columns=np.concatenate([_link_columns(sim.graph, lp) for lp in sim.lps], axis=1),
        asked_for=sim.settings.rendezvous_bytes > 0,
        called=sim.settings.collectives_in_flight > 0,
        not_given_back=[text for w in worlds for text in _not_given_back(w)],
        peak_rss_bytes=peak_rss_bytes(),
        settled=settled(sim),
    )


def _summed(counts: Sequence[Record]) -> Record:
    """Sums of counters, but windows, which are those of the first."""
    words = np.sum([np.array(count).reshape(1).view(np.int64) for count in counts], axis=0)
    total = words.view(Counters.dtype)[0]
    total.windows = counts[0].windows
    return total


def settled(sim: Simulation) -> dict[str, int]:
    """What was settled from the fabric."""
    model = sim.settings.fidelity
    if model.act:
        return {"endpoint_delay_ps": model.endpoint_delay_ps, "resolution_ps": model.resolution_ps}
    const = sim.lps[0].world.net.const
    return {
        "window_packets": int(const.window_packets),
        "rto_ps": int(const.rto_ps),
        "lookahead_ps": int(const.lookahead_ps),
        "cell_ps": int(const.cell_ps),
    }


def _stacked(lists: Sequence[list[Rows]], kind: type[Row]) -> Rows:
    """The blocks of rows in these lists as one array, of which they are parts from now on: none is there twice."""
    rows = np.empty(sum(len(block) for blocks in lists for block in blocks), kind.dtype).view(np.recarray)
    end = 0
    for blocks in lists:
        for i, block in enumerate(blocks):
            begin, end = end, end + len(block)
            rows[begin:end] = block
            blocks[i] = rows[begin:end]
    return rows


def _in_order(values: Sequence[Int64], rows: Int64, order: Int64) -> Int64:
    """Runs of `rows` values each, put in another order of the runs."""
    joined = np.concatenate(values)
    begin = np.cumsum(rows) - rows
    ends = np.cumsum(rows[order])
    at = np.arange(len(joined)) - np.repeat(ends - rows[order], rows[order]) + np.repeat(begin[order], rows[order])
    return joined[at]


def _link_columns(graph: Graph, lp: LogicalProcess) -> Int64:
    """Per own link: what it sent and how long its queue was."""
    net = lp.world.net
    own = len(lp.part.links)
    tx: Rows = net.tx[:own]
    psb = 8e12 / graph.link_rate_bps[lp.part.links]
    sent_bytes, packets = tx.sent_bytes, tx.sent_packets
    queue = (longest_wait_ps(sent_bytes, packets) / psb).astype(np.int64)
    gate = net.gate[:own] if net.hooks.shared_switches != 0 else rows_of(Gate, own)[:own]
    of_gate = [gate[name] for name in _GATE_COLUMNS.values()]
    return np.stack([bytes_sent(sent_bytes), packets_sent(packets), net.tx_dropped[:own], queue, *of_gate])


def _not_given_back(w: s.World) -> list[str]:
    """Pools of a world to which something was not given back."""
    pools = (
        ("blocks", w.net.ctl.free_blocks, len(w.net.block_free)),
        ("messages", w.net.ctl.free_messages, len(w.qps.msg_free)),
        ("collective instances", w.net.ctl.free_instances, len(w.insts.inst_free)),
    )
    return [f"{free} of {expected} {name} given back" for name, free, expected in pools if free != expected]


def digest(count: Record) -> str:
    """Hash of the completion time of every trace row and flow, the same for any partition."""
    words = np.array([count.digest_a, count.digest_b, count.flows, count.trace_rows])
    return hashlib.sha256(words.astype("<i8").tobytes()).hexdigest()[:32]


def merge(harvests: Sequence[Harvest]) -> Harvest:
    """What all processes have brought, as one."""
    npus = np.concatenate([h.npus for h in harvests])
    order = np.argsort(npus, kind="stable")
    rows = np.concatenate([h.rows for h in harvests])
    count = _summed([h.count for h in harvests])
    return Harvest(
        count=count,
        finish_ps=max(h.finish_ps for h in harvests),
        now_ps=max(h.now_ps for h in harvests),
        left=sum(h.left for h in harvests),
        waits=[line for h in harvests for line in h.waits],
        too_late=any(h.too_late for h in harvests),
        depths=np.concatenate([h.depths for h in harvests]),
        depth_ps=max(h.depth_ps for h in harvests),
        marks=np.concatenate([h.marks for h in harvests]),
        pauses=np.concatenate([h.pauses for h in harvests]),
        kept_pauses=harvests[0].kept_pauses,
        held=np.concatenate([h.held for h in harvests]),
        npus=npus[order],
        rows=rows[order],
        start_ps=_in_order([h.start_ps for h in harvests], rows, order),
        finish_times_ps=_in_order([h.finish_times_ps for h in harvests], rows, order),
        flows_out=np.concatenate([h.flows_out for h in harvests]).view(np.recarray),
        flows_in=np.concatenate([h.flows_in for h in harvests]).view(np.recarray),
        links=np.concatenate([h.links for h in harvests]),
        link_columns=np.concatenate([h.link_columns for h in harvests], axis=1),
        asked_for=harvests[0].asked_for,
        called=harvests[0].called,
        not_given_back=[text for h in harvests for text in h.not_given_back],
        peak_rss_bytes=sum(h.peak_rss_bytes for h in harvests),
        settled=harvests[0].settled,
        workers={name: np.concatenate([h.workers[name] for h in harvests]) for name in harvests[0].workers},
    )


def check(whole: Harvest) -> None:
    """All is done and the engine has kept its promises.

    Bytes sent = received + dropped; packets made = consumed + dropped; blocks, messages and instances given back.

    Raises:
        RunError: who waits for whom, if work is left; or what promise is broken (a defect, never the user's fault).
    """
    if whole.left > 0:
        raise RunError(TOO_LATE_TEXT if whole.too_late else _who_waits(whole))
    c = whole.count
    sent, received, dropped = int(c.sent_bytes), int(c.received_bytes), int(c.dropped_bytes)
    if sent != received + dropped:
        raise RunError(f"engine defect: {sent} bytes sent, but {received} received and {dropped} dropped")
    made = int(c.data_packets + c.ack_packets + c.congestion_notifications)
    gone = int(c.consumed_packets + c.dropped_packets)
    if made != gone:
        raise RunError(f"engine defect: {made} packets taken, {gone} given back")
    if whole.not_given_back:
        raise RunError(f"engine defect: {whole.not_given_back[0]}")


MOST_LINES = 12


def _who_waits(whole: Harvest) -> str:
    """The rows that are under way and what each waits for, a line each."""
    more = f"\n  and {len(whole.waits) - MOST_LINES} more" if len(whole.waits) > MOST_LINES else ""
    nodes = circle(whole.held)
    if nodes:
        around = " -> ".join(str(node) for node in [*nodes, nodes[0]])
        more += f"\n  deadlock: every link of {around} waits for the next, paused by the switch at its end"
    head = f"nothing is left to happen at {whole.now_ps} ps, but {whole.left} trace nodes are not done:"
    return head + "".join(f"\n  {line}" for line in whole.waits[:MOST_LINES]) + more


REQUEST, ANSWER, CALL = 1, 2, 3
"""Column control of the flows; 0 is data."""


def _control(tag: Int64, whole: Harvest) -> Int8:
    """int8[m]: what messages are."""
    kind = tag & rendezvous.KIND_MASK
    is_call = (packet.tag_group(tag) != packet.P2P) & (packet.tag_lane(tag) == CALL_LANE)
    cases = {
        REQUEST: whole.asked_for & (kind == rendezvous.REQUEST),
        ANSWER: whole.asked_for & (kind == rendezvous.CLEAR),
        CALL: whole.called & is_call,
    }
    return np.select(list(cases.values()), list(cases), 0).astype(np.int8)


def _order_of_posts(rows: Rows, whole: Harvest) -> Int64:
    """int64[rows]: flow records by pair of NPUs, group of their queue pair, and ordinal there."""
    group = packet.tag_group(rows.tag).astype(np.int32)
    group[_control(rows.tag, whole) >= ANSWER] = packet.CONTROL
    return np.lexsort((rows.tag, rows.ordinal, group, rows.pair))


def _flows(whole: Harvest) -> dict[str, Array]:
    """Messages with both their ends: posted at the sender, complete at the receiver."""
    out, into = whole.flows_out, whole.flows_in
    posted, complete = _order_of_posts(out, whole), _order_of_posts(into, whole)
    if len(out) != len(into) or any(np.any(out[word][posted] != into[word][complete]) for word in ("pair", "tag")):
        raise RunError("engine defect: messages posted and messages complete differ")
    pair, start_ps = out.pair[posted], out.posted_ps[posted]
    order = np.lexsort((packet.pair_destination(pair), packet.pair_source(pair), start_ps))
    pair, start_ps, finish_ps = pair[order], start_ps[order], into.finished_ps[complete][order]
    posted = posted[order]
    del complete, order  # a word of every message each
    tag = out.tag[posted]
    control = _control(tag, whole)
    group = packet.tag_group(tag)
    group[group == packet.P2P] = -1
    lane = packet.tag_lane(tag) & ~(rendezvous.KIND_MASK if whole.asked_for else 0)
    lane[control == CALL] = -1
    return {
        "src": packet.pair_source(pair),
        "dst": packet.pair_destination(pair),
        "group": group,
        "seq": packet.tag_seq(tag),
        "lane": lane,
        "control": control,
        "bytes": out.payload_bytes[posted],
        "start_ps": start_ps,
        "finish_ps": finish_ps,
    }


def _numbered(workers: WorkerTimes) -> WorkerTimes:
    """With a column of their numbers, if there are any."""
    return {"worker": np.arange(len(workers["rank"])), **workers} if workers else {}


def results(whole: Harvest, own: Harvest, graph: Graph, **seconds: Any) -> Results:
    """Results of a run.

    Args:
        whole: of all processes.
        own: the part whose trace rows the results are to hold.
        graph: the fabric.
        seconds: wall_s and the like.
    """
    counters = {name: int(whole.count[counter]) for name, counter in COUNTERS.items()}
    counters["windows"] = int(whole.count.windows)
    counters["packets"] = counters["data_packets"] + counters["ack_packets"]
    rows = np.zeros(graph.npus, np.int64)
    rows[own.npus] = own.rows
    links = {name: np.zeros(graph.links, np.int64) for name in LINK_COLUMNS}
    for name, values in zip(LINK_COLUMNS, whole.link_columns, strict=True):
        links[name][whole.links] = values
    return Results(
        finish_time_ps=whole.finish_ps,
        digest=digest(whole.count),
        counters=counters,
        npu_node_ptr=np.concatenate([[0], np.cumsum(rows)]),
        node_start_ps=own.start_ps,
        node_finish_ps=own.finish_times_ps,
        flows=_flows(whole),
        links=links,
        queues=queues(whole.depths, whole.depth_ps),
        marks=marks(whole.marks, whole.depth_ps),
        pauses=pauses(whole.pauses, whole.kept_pauses),
        settled=whole.settled,
        workers_rss_bytes=whole.forked_rss_bytes,
        workers=_numbered(whole.workers),
        **seconds,
    )
