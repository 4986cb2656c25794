"""Gather the outcome of a run: from the worlds of the logical processes to Results, over any number of processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, get_type_hints

import numpy as np

from nadi.pdes.construction.layout import LogicalProcess, Simulation
from nadi.pdes.construction.ports import lane_units
from nadi.pdes.construction.settings import Settings
from nadi.pdes.construction.tables import digests
from nadi.pdes.core import Array, Graph, Int8, Int64, Program, Record, Rows, RunError, packet, state as s
from nadi.pdes.core.jit import peak_rss_bytes, rows_of
from nadi.pdes.core.rows import Row
from nadi.pdes.core.rows.network import FlowIn, FlowOut, Gate
from nadi.pdes.core.rows.run import Counters
from nadi.pdes.nic import rendezvous
from nadi.pdes.outcomes import Results, by_interval, pauses_of, samples_of, stretches
from nadi.pdes.outcomes.stall import TOO_LATE_TEXT, circle, held_links, too_late, waiting_rows

_OTHER_NAMES = {
    "hops": "packet_hops",
    "sent_bytes": "bytes_sent",
    "received_bytes": "bytes_received",
    "dropped_bytes": "bytes_dropped",
    "trace_rows": "trace_nodes",
}  # word of Counters -> its name in results, where they differ
_NO_RESULTS = {"consumed_packets"}
# counter of results -> word of Counters
COUNTERS = {_OTHER_NAMES.get(word, word): word for word in Counters.declared if word not in _NO_RESULTS}
_JOB_WORDS = ("digest_a", "digest_b", "messages", "trace_rows", "messages_a", "messages_b")  # what digests have
_GATE_WORDS = ("longest_bytes", "marked_packets", "trimmed_packets", "pause_frames", "paused_ps")
_DATA_CLASSES = Gate.declared["since_ps"].many
LINK_COLUMNS = ("tx_bytes", "tx_packets", "dropped_packets", "max_queue_bytes", "buffered_bytes", *_GATE_WORDS[1:])
LIMIT_COLUMNS = ("src", "dst", "group", "link", "limited_ps")

WorkerTimes = dict[str, np.ndarray]  # work and waiting time of each worker of a process, as columns of Results.workers


def _summed(counts: Sequence[Record]) -> Record:
    """Return the sums of counters; the windows are those of the first, since all LPs have the same."""
    words = np.sum([np.array(count).reshape(1).view(np.int64) for count in counts], axis=0)
    total = words.view(Counters.dtype)[0]
    total.windows = counts[0].windows
    return total


def _added(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return sums of counts by name."""
    return {name: sum(each.get(name, 0) for each in counts) for name in dict.fromkeys(chain.from_iterable(counts))}


def _lists(lists: Sequence[list[Any]]) -> list[Any]:
    """Return all items of several lists in one list."""
    return list(chain.from_iterable(lists))


def _columns(tables: Sequence[WorkerTimes]) -> WorkerTimes:
    """Return tables with the same columns as one, row after row."""
    return {name: np.concatenate([columns[name] for columns in tables]) for name in tables[0]}


@dataclass
class LpResults:
    """The outcome of one LP, of a process's LPs, or of all; each annotation holds the function that merges a field."""

    count: Annotated[Record, _summed]  # Counters
    jobs: Annotated[Int64, sum]  # int64[jobs, 6] _JOB_WORDS of each; the last of several is none
    job_bytes: Annotated[Int64, np.concatenate]  # int64[own links, jobs] bytes of each job; no columns for one job
    finish_ps: Annotated[int, max]  # last trace row finished
    now_ps: Annotated[int, max]  # where the last LP stopped
    is_disturbed: Annotated[bool, any]  # packets met a replayed collective: the outcome is void
    reuse: Annotated[dict[str, int], _added]  # of a process: counts of replayed collectives
    resumed_hops: Annotated[int, sum]  # of a process: packet-hops that an earlier part of the run simulated
    left: Annotated[int, sum]  # trace rows not finished
    waits: Annotated[list[str], _lists]  # rows that wait and what each waits for, one line each
    lost: Annotated[str, max]  # an NPU that has no path left to one that it waits for, and why
    too_late: Annotated[bool, any]  # an event lies beyond the times that the engine can represent
    depths: Annotated[Int64, np.concatenate]  # int64[k, 3] maximum of the bytes that waited, see _watched
    marks: Annotated[Int64, np.concatenate]  # int64[k, 3] packets that were marked, likewise
    depth_ps: Annotated[int, max]  # length in ps of the longest interval of both
    pauses: Annotated[Int64, np.concatenate]  # int64[k, 2] log of pauses
    samples: Annotated[Int64, np.concatenate]  # int64[k, 4] samples of links, see pdes.outcomes
    held: Annotated[Int64, np.concatenate]  # int64[k, 3] links that `held_by` holds back, and their ends
    held_by: Annotated[str, max]  # a pause or a lack of credits, in words
    limits: Annotated[Int64, np.concatenate]  # int64[k, 5] links that limited flows, see _limits
    npus: Annotated[Int64, np.concatenate]  # int64[n] own NPUs
    rows: Annotated[Int64, np.concatenate]  # int64[n] number of recorded trace rows of each
    start_ps: Annotated[Int64, np.concatenate]  # int64[sum of rows]
    finish_times_ps: Annotated[Int64, np.concatenate]  # int64[sum of rows]
    flows_out: Annotated[list[list[Rows]], _lists]  # of each LP: blocks of FlowOut
    flows_in: Annotated[list[list[Rows]], _lists]  # of each LP: blocks of FlowIn
    links: Annotated[Int64, np.concatenate]  # int64[k] own links
    link_rows: Annotated[Int64, np.concatenate]  # int64[k, LINK_COLUMNS]
    not_given_back: Annotated[list[str], _lists]  # pools with rows that were not returned
    settled: Annotated[dict[str, int], itemgetter(0)]  # what was settled from the fabric
    peak_rss_bytes: Annotated[int, sum]  # peak resident memory
    forked_rss_bytes: Annotated[int, sum]  # likewise, of processes forked for the run
    workers: Annotated[WorkerTimes, _columns]  # of a process, in order; empty where nothing was recorded


def merge(outcomes: Sequence[LpResults]) -> LpResults:
    """Return the merged outcome of several LPs or processes.

    Args:
        outcomes: LpResults of LPs or processes.
    """
    return LpResults(**{name: join([getattr(h, name) for h in outcomes]) for name, join in _joins().items()})


@cache
def _joins() -> dict[str, Callable[[list[Any]], Any]]:
    """Return the function that merges the values of each field of a LpResults."""
    return {name: hint.__metadata__[-1] for name, hint in get_type_hints(LpResults, include_extras=True).items()}


def outcome_of(sim: Simulation) -> LpResults:
    """Return the outcome of the LPs of a Simulation.

    Args:
        sim: The run, or the part of it in this process (`Simulation`).
    """
    total = replace(merge([_of(sim, lp) for lp in sim.lps]), peak_rss_bytes=peak_rss_bytes())
    if not total.left:
        return total
    late = any(lp.world.net.ctl.rows_left and too_late(lp) for lp in sim.lps)
    waits, lost = zip(*(waiting_rows(sim, lp) for lp in sim.lps if lp.world.net.ctl.rows_left), strict=True)
    return replace(total, waits=_lists(waits), lost=max(lost), too_late=late)


def outcome_so_far(sim: Simulation) -> LpResults:
    """Return the outcome of the LPs of a Simulation that stops at a snapshot point, without messages.

    Args:
        sim: The run, or the part of it in this process (`Simulation`).
    """
    total = merge([_of(sim, lp) for lp in sim.lps])
    return replace(total, flows_out=[], flows_in=[])


def _of(sim: Simulation, lp: LogicalProcess) -> LpResults:
    """Return the outcome of one LP, which belongs to the Simulation `sim`."""
    lp.take_flows()
    w, npus = lp.world, lp.part.npus
    ctl = w.net.ctl
    left = int(ctl.rows_left)
    pools = (
        ("blocks", ctl.free_blocks, len(w.net.block_free)),
        ("messages", ctl.free_messages, len(w.qps.msg_free)),
        ("collective instances", ctl.free_instances, len(w.insts.inst_free)),
    )
    links, jobs = len(lp.part.links), int(w.net.const.jobs)
    # without records, there are no times of rows
    row_ptr = lp.row_ptr if sim.settings.record_nodes else np.zeros(npus + 1, np.int64)
    return LpResults(
        count=w.net.count,
        jobs=np.stack([w.net.jobs.total[word] for word in _JOB_WORDS], axis=1).astype(np.int64),
        job_bytes=w.net.jobs.link_bytes[: links * jobs].reshape(links, jobs),
        finish_ps=int(ctl.finish_ps),
        now_ps=int(ctl.now_ps),
        is_disturbed=bool(ctl.is_disturbed),
        reuse={},
        resumed_hops=0,
        left=left,
        waits=[],
        lost="",
        too_late=False,
        depths=_watched(lp, w.net.depth),
        marks=_watched(lp, w.net.marks if w.net.const.ecn == 1 else None),
        depth_ps=int(ctl.depth_ps),
        pauses=w.net.pause_log[: len(w.net.pause_log) // 2 * 2].reshape(-1, 2)[: int(ctl.pauses)],
        samples=samples_of(lp),
        held=held_links(sim.graph, lp),
        held_by="without credits for the buffer" if w.net.const.queues else "paused by the switch",
        limits=_limits(lp),
        npus=lp.part.nodes[:npus],
        rows=np.diff(row_ptr),
        start_ps=w.rows.start[: row_ptr[-1]],
        finish_times_ps=w.rows.finish[: row_ptr[-1]],
        flows_out=[lp.flows_out],
        flows_in=[lp.flows_in],
        links=lp.part.links,
        link_rows=_link_rows(sim.graph, lp),
        not_given_back=[f"{free} of {size} {name} returned to the pool" for name, free, size in pools if free != size]
        + _missing_credits(sim, lp),
        settled=settled(sim),
        peak_rss_bytes=0,
        forked_rss_bytes=0,
        workers={},
    )


def settled(sim: Simulation) -> dict[str, int]:
    """Return the settings that were computed from the fabric.

    Args:
        sim: The run, or the part of it in this process (`Simulation`).
    """
    fidelity = sim.settings.fidelity
    if not fidelity.model.has_headers:
        return {"endpoint_delay_ps": fidelity.endpoint_delay_ps, "resolution_ps": fidelity.resolution_ps}
    const = sim.lps[0].world.net.const
    if fidelity.hooks.act:
        return {"endpoint_delay_ps": fidelity.endpoint_delay_ps, "window_packets": int(const.window_packets)}
    return {
        "window_packets": int(const.window_packets),
        "rto_ps": int(const.rto_ps),
        "lookahead_ps": int(const.lookahead_ps),
        "cell_ps": int(const.cell_ps),
    }


def _stacked(lists: Sequence[list[Rows]], row_kind: type[Row]) -> Rows:
    """Return lists of blocks of rows as one array; each block becomes a view of it, so that memory holds it once."""
    rows = np.empty(sum(len(block) for blocks in lists for block in blocks), row_kind.dtype).view(np.recarray)
    end = 0
    for blocks in lists:
        for i, block in enumerate(blocks):
            begin, end = end, end + len(block)
            rows[begin:end] = block
            blocks[i] = rows[begin:end]
    return rows


def _in_order(values: Int64, lengths: Int64, order: Int64) -> Int64:
    """Return `values`, consecutive segments of `lengths` values each, with the segments in the order `order`."""
    # Example: values a b c d e, lengths 2 1 2, order 2 0 1: begin 0 2 3, ends 2 4 5. Item k of the result is values[k +
    # shift], where the shift of each segment is its begin here minus its begin there: 3, -2, -2. So d e a b c.
    begin = np.cumsum(lengths) - lengths  # of each segment in `values`
    ends = np.cumsum(lengths[order])  # of each in the result
    return values[np.arange(len(values)) + np.repeat(begin[order] - ends + lengths[order], lengths[order])]


def _link_rows(graph: Graph, lp: LogicalProcess) -> Int64:
    """Return int64[own links, LINK_COLUMNS and one for each data class]: traffic and queue of each link.

    The last columns are the begins in ps of the pauses that last, INF = the class is not paused.
    """
    net = lp.world.net
    own = len(lp.part.links)
    tx: Rows = net.tx[:own]
    psb = s.PS_PER_BYTE_AT_1_BPS / graph.link_rate_bps[lp.part.links]
    sent_bytes, packets = tx.sent_bytes, tx.sent_packets
    # an output queue has no counter of bytes: the longest wait at the link's rate gives them
    queue = (packet.longest_wait_ps(sent_bytes, packets) / psb).astype(np.int64)
    gate: Rows = net.gate[:own] if net.hooks.shared_switches != 0 else rows_of(Gate, own)[:own]
    # a lane without credits counts once it has some again
    paused = gate.paused if net.const.queues == 0 else np.zeros(own, np.int64)
    pauses = [np.where(paused >> k & 1, gate.since_ps[:, k], s.INF) for k in range(_DATA_CLASSES)]
    columns = [packet.bytes_sent(sent_bytes), packet.packets_sent(packets), net.tx_dropped[:own], queue]
    return np.stack([*columns, *(gate[name] for name in _GATE_WORDS), *pauses], axis=1)


def _missing_credits(sim: Simulation, lp: LogicalProcess) -> list[str]:
    """Return a phrase about credits of the LP's links that are not with their senders; [] if all are."""
    net = lp.world.net
    queues, lanes = int(net.const.queues), int(net.const.lanes)
    if queues == 0:
        return []
    rows: Rows = net.lane[: len(lp.part.links) * queues].reshape(-1, queues)[:, :lanes]
    all_units = lane_units(sim.graph, sim.layout.fabric, sim.settings)[lp.part.links]
    missing = int((all_units[:, None] - rows.free_units).sum())
    return [f"{missing} credits did not return to their senders"] if missing else []


def _limits(lp: LogicalProcess) -> Int64:
    """Return int64[k, 5]: LIMIT_COLUMNS of the connections and coupled flows that one link limited most of the time."""
    world = lp.world
    count = int(world.net.ctl.queue_pairs) if world.net.hooks.settle != 0 else 0
    all_flows: Rows = world.flows.flow[:count]
    # a majority vote (`count_limit`): with bound_ps 0, no link has the majority of the time
    which = np.flatnonzero((all_flows.bound_link >= 0) & (all_flows.bound_ps > 0) & (all_flows.is_packets == 0))
    flow: Rows = all_flows[which]
    qp: Rows = world.qps.qp[which]
    coupled = flow.is_coupled == 1
    group = qp.connection & packet.P2P
    group = np.where(group == packet.P2P, -1, group)
    group[coupled] = world.flows.coupled.group[world.flows.stage.kind[which[coupled]]]
    ends = [np.where(coupled, -1, end) for end in (lp.part.nodes[qp.npu], packet.destination(qp.w1))]
    return np.stack([*ends, group, lp.part.links[flow.bound_link], flow.bound_ps], axis=1).astype(np.int64)


def _watched(lp: LogicalProcess, samples: Array | None) -> Int64:
    """Return int64[k, 3]: link, begin of the interval (ps) and value of the non-zero entries of `depth` or `marks`."""
    net = lp.world.net
    columns = int(net.const.depths)
    if columns == 0 or samples is None:
        return np.zeros((0, 3), np.int64)
    samples = samples[: len(lp.part.links) * columns].reshape(-1, columns)
    link, column = np.nonzero(samples)
    return np.stack([lp.part.links[link], column * net.ctl.depth_ps, samples[link, column]], axis=1).astype(np.int64)


def check(total: LpResults) -> None:
    """Check that all work is done and that the invariants of the engine hold.

    Bytes sent = received + dropped; packets made = consumed + dropped; blocks, messages and instances returned.

    Raises RunError: the run takes more simulated time than the engine can represent; work is left (the text lists which
    row waits for what); or an invariant is broken (a defect, never the user's fault).

    Args:
        total: Merged outcome of all LPs.
    """
    if total.too_late or total.finish_ps > s.LONGEST_RUN_PS:
        raise RunError(TOO_LATE_TEXT)
    if total.left > 0:
        raise RunError(_who_waits(total))
    c = total.count
    sent, received, dropped = int(c.sent_bytes), int(c.received_bytes), int(c.dropped_bytes)
    if sent != received + dropped:
        raise RunError(f"engine defect: {sent} bytes sent, but {received} received and {dropped} dropped")
    # notifications are no acknowledgements, but packets too
    created = int(c.data_packets + c.ack_packets + c.congestion_notifications + c.credit_packets)
    gone = int(c.consumed_packets + c.dropped_packets)
    if created != gone:
        raise RunError(f"engine defect: {created} packets made, {gone} consumed or dropped")
    if total.not_given_back:
        raise RunError(f"engine defect: {total.not_given_back[0]}")


MAX_LINES = 12  # rows that the message of a stalled run lists


def _who_waits(total: LpResults) -> str:
    """Return the message of a stalled run: the trace rows under way and what each waits for, a line each."""
    more = f"\n  and {len(total.waits) - MAX_LINES} more" if len(total.waits) > MAX_LINES else ""
    nodes = circle(total.held)
    if nodes:
        around = " -> ".join(str(node) for node in [*nodes, nodes[0]])
        more += f"\n  deadlock: every link of {around} waits for the next, {total.held_by} at its end"
    head = total.lost or f"nothing is left to happen at {total.now_ps} ps"
    head += f", but {total.left} trace nodes are not done:"
    return head + "".join(f"\n  {line}" for line in total.waits[:MAX_LINES]) + more


REQUEST, ANSWER, CALL = 1, 2, 3  # values of the flows' column control; 0 is data


def _control(tags: Int64, settings: Settings) -> Int8:
    """Return int8[m]: the kind of each message by its tag, int64[m]: 0 = data, REQUEST, ANSWER or CALL."""
    asked_for, called = settings.rendezvous_bytes > 0, settings.collectives_in_flight > 0
    kind = tags & rendezvous.KIND_MASK
    is_call = (packet.tag_group(tags) != packet.P2P) & (packet.tag_lane(tags) == packet.CALL_LANE)
    cases = [asked_for & (kind == rendezvous.REQUEST), asked_for & (kind == rendezvous.CLEAR), called & is_call]
    return np.select(cases, [REQUEST, ANSWER, CALL], 0).astype(np.int8)


def order_of_posts(rows: Rows, settings: Settings) -> Int64:
    """Return int64[rows]: the order of flow records by NPU pair, group of their queue pair, and ordinal there.

    Args:
        rows: Flow records (rows `FlowOut`, or of the same words).
        settings: Settings of the run.
    """
    group = packet.tag_group(rows.tag).astype(np.int32)
    group[_control(rows.tag, settings) >= ANSWER] = packet.CONTROL
    return np.lexsort((rows.tag, rows.ordinal, group, rows.pair))


def _flows(total: LpResults, settings: Settings) -> dict[str, Array]:
    """Return the table of messages by column: posted at the sender, complete at the receiver."""
    out, into = _stacked(total.flows_out, FlowOut), _stacked(total.flows_in, FlowIn)
    posted, complete = order_of_posts(out, settings), order_of_posts(into, settings)
    if len(out) != len(into) or any(np.any(out[word][posted] != into[word][complete]) for word in ("pair", "tag")):
        raise RunError("engine defect: messages posted and messages complete differ")
    pair, start_ps = out.pair[posted], out.posted_ps[posted]
    order = np.lexsort((out.tag[posted], packet.pair_destination(pair), packet.pair_source(pair), start_ps))
    pair, start_ps, finish_ps = pair[order], start_ps[order], into.finished_ps[complete][order]
    posted = posted[order]
    del complete, order  # each holds a word per message
    tag = out.tag[posted]
    control = _control(tag, settings)
    group = packet.tag_group(tag)
    group[group == packet.P2P] = -1
    lane = packet.tag_lane(tag) & ~(rendezvous.KIND_MASK if settings.rendezvous_bytes > 0 else 0)
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


def results(
    total: LpResults, own: LpResults, graph: Graph, program: Program, settings: Settings, **seconds: Any
) -> Results:
    """Return the Results of a run.

    Args:
        total: LpResults of all processes.
        own: LpResults of this process, from which the trace rows come.
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: Settings of the run.
        **seconds: Wall times in seconds, by field of Results: wall_s and the like.
    """
    counters = {name: int(total.count[counter]) for name, counter in COUNTERS.items()}
    counters["packets"] = counters["data_packets"] + counters["ack_packets"]
    if not settings.receiver_credits:
        del counters["credit_packets"]
    rows, order = np.zeros(graph.npus, np.int64), np.argsort(own.npus)
    rows[own.npus] = own.rows
    links = np.zeros((len(LINK_COLUMNS), graph.links), np.int64)
    links[:, total.links], begins_ps = np.split(total.link_rows.T, [len(LINK_COLUMNS)])
    links[LINK_COLUMNS.index("paused_ps"), total.links] += np.maximum(total.finish_ps - begins_ps, 0).sum(axis=0)
    job_bytes = np.zeros((graph.links, total.job_bytes.shape[1]), np.int64)
    job_bytes[total.links] = total.job_bytes
    workers = total.workers
    return Results(
        finish_time_ps=total.finish_ps,
        **digests(total.jobs, program),
        job_bytes=job_bytes,
        counters=counters,
        npu_node_ptr=np.concatenate([[0], np.cumsum(rows)]),
        node_start_ps=_in_order(own.start_ps, own.rows, order),
        node_finish_ps=_in_order(own.finish_times_ps, own.rows, order),
        flows=_flows(total, settings),
        links=dict(zip(LINK_COLUMNS, links, strict=True)),
        queues=stretches(total.depths, total.depth_ps, "bytes", np.maximum),
        marks=stretches(total.marks, total.depth_ps, "packets", np.add),
        pauses=pauses_of(total.pauses, settings.logged_pauses),
        samples=by_interval(total.samples),
        limits=dict(zip(LIMIT_COLUMNS, total.limits.T, strict=True)),
        settled=total.settled,
        reuse=total.reuse,
        resumed_hops=total.resumed_hops,
        workers_rss_bytes=total.forked_rss_bytes,
        workers={"worker": np.arange(len(workers["rank"])), **workers} if workers else {},
        **seconds,
    )
