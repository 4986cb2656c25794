"""From a graph and a program to a world: all state of the simulation as arrays, ready to run."""

import math
import time

import numpy as np

from pdes import packet
from pdes import state as s
from pdes.batch import BUCKETS
from pdes.hashing import mix3
from pdes.jit import kernel
from pdes.memory import aligned, full, zeros
from pdes.results import RunError
from pdes.routing import MODE_DIMENSIONS, MODE_ONE_HOME, MODE_TABLE, SET_SHIFT
from pdes.simulation import Simulation

MAX_BATCH = 60_000
MAX_WINDOW_PS = 1 << 36
NEVER_CUT = 1 << 16
NPU_KIND = 0
FLOW_ROWS = 1 << 16


@kernel
def _fill_salts(salt, seed):
    for node in range(salt.shape[0]):
        salt[node] = mix3(seed, node, 0x5A17)


def _offsets(counts):
    """CSR offsets of counts."""
    ptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def _check_sizes(graph, program, settings):
    """Refuse what the packet words cannot hold."""
    if program.npus > graph.npus:
        raise RunError(f"the program has {program.npus} NPUs, the fabric {graph.npus}")
    if graph.npus >= packet.MAX_NPUS:
        raise RunError(f"{graph.npus} NPUs: at most {packet.MAX_NPUS - 1} are possible")
    if graph.nodes >= s.MAX_NODES or graph.links >= s.MAX_LINKS:
        raise RunError(f"{graph.nodes} nodes and {graph.links} links: at most {s.MAX_NODES - 1} and {s.MAX_LINKS - 1}")
    if len(program.group_ptr) - 1 >= packet.MAX_GROUPS:
        raise RunError(f"{len(program.group_ptr) - 1} groups: at most {packet.MAX_GROUPS - 1} are possible")
    if len(program.node_seq) and program.node_seq.max() >= packet.MAX_SEQ:
        raise RunError(f"{program.node_seq.max()} collectives of one group: at most {packet.MAX_SEQ - 1} are possible")
    if settings.mtu_bytes + settings.header_bytes > packet.MAX_WIRE_BYTES:
        raise RunError(
            f"packets of {settings.mtu_bytes + settings.header_bytes} bytes: at most {packet.MAX_WIRE_BYTES}"
        )


class _Fabric:
    """Links in the order of their sender (tx) and of their receiver (rx), and how long a window may be."""

    def __init__(self, graph, settings):
        self.tx_link = np.argsort(graph.link_src, kind="stable")
        self.tx_of = np.empty(graph.links, np.int64)
        self.tx_of[self.tx_link] = np.arange(graph.links)
        self.out_ptr = _offsets(np.bincount(graph.link_src, minlength=graph.nodes))
        self.psb = 8e12 / graph.link_rate_bps.astype(np.float64)
        self.cut = np.zeros(graph.nodes, np.int8)
        if settings.cut_through:
            self.cut[graph.node_kind != NPU_KIND] = 1
        self.classes, self.link_class = self._classes(graph, settings)
        smallest = min(settings.ack_bytes, settings.header_bytes)
        first = np.minimum(smallest, self._seen(graph, settings))
        reach = graph.link_delay_ps + (first * self.psb + 0.5).astype(np.int64)
        in_flight = np.bincount(graph.link_dst, weights=1 / (smallest * self.psb), minlength=graph.nodes)
        degree = np.bincount(graph.link_dst, minlength=graph.nodes)
        room = (MAX_BATCH - 2 * degree.max(initial=0)) / max(in_flight.max(initial=0), 1e-12)
        self.lookahead_ps = int(min(reach.min(), room, MAX_WINDOW_PS))
        self.batch = math.ceil(self.lookahead_ps * in_flight.max(initial=0)) + 2 * int(degree.max(initial=0)) + 8

    def _seen(self, graph, settings):
        """Bytes that the receiving end of each link waits for before it acts on a packet in transit."""
        return np.where(self.cut[graph.link_dst] == 1, settings.cut_through_header_bytes, NEVER_CUT)

    def _classes(self, graph, settings):
        """The `link_class` table and the class of each link."""
        rows = np.stack([self.psb.view(np.int64), graph.link_delay_ps, self._seen(graph, settings)], axis=1)
        kinds, number = np.unique(rows, axis=0, return_inverse=True)
        if len(kinds) > s.MAX_CLASSES:
            raise RunError(f"links of {len(kinds)} different rates and delays: at most {s.MAX_CLASSES} are possible")
        table = np.zeros((len(kinds), s.CLASS_WORDS), np.int64)
        table[:, : kinds.shape[1]] = kinds
        return table, number.reshape(-1)

    def tx_rows(self, graph):
        """The `tx` table."""
        tx = np.zeros((graph.links, s.TX_WORDS), np.int64)
        number = self.link_class[self.tx_link]
        tx[:, s.TX_META] = graph.link_dst[self.tx_link].astype(np.int64) | (self.tx_link << 22) | (number << 46)
        return tx


def round_trip_ps(graph, settings):
    """Upper bound of an idle round trip of a full packet and its acknowledgement, with the longest path's hops."""
    routing = graph.routing
    if hasattr(routing, "home"):
        hops = int(routing.hops[routing.hops < 127].max(initial=0)) + 2
    else:
        ring = (routing.mode[: graph.npus] == 0).any(axis=0)
        single = (routing.mode[: graph.npus] == 2).any(axis=0)
        hops = int(np.where(ring, routing.sizes // 2, np.where(single, 2, 1)).sum())
    psb = 8e12 / graph.link_rate_bps.min()
    wire = settings.mtu_bytes + settings.header_bytes + settings.ack_bytes
    per_hop = 2 * int(graph.link_delay_ps.max()) + wire * psb + 2 * int(graph.node_latency_ps.max(initial=0))
    return int(hops * per_hop), hops


def _window_packets(graph, settings):
    """The window of a queue pair: as set, or what fills the fastest port over the longest round trip, and one more."""
    if settings.window_bytes:
        return max(1, settings.window_bytes // settings.mtu_bytes)
    from_npu = int(graph.link_rate_bps[graph.link_src < graph.npus].max())
    rtt, _ = round_trip_ps(graph, settings)
    wire_bits = 8 * (settings.mtu_bytes + settings.header_bytes)
    return min(math.ceil(rtt * from_npu / 1e12 / wire_bits) + 2, packet.HALF_PSN // 2)


def _rto_ps(graph, settings):
    """The timeout: as set; none where queues have no limit; else four times the round trip with every queue full."""
    if settings.rto_ps or not settings.queue_limit_bytes:
        return settings.rto_ps
    rtt, hops = round_trip_ps(graph, settings)
    queue = settings.queue_limit_bytes * 8e12 / graph.link_rate_bps.min()
    return int(4 * (rtt + hops * queue)) + 1_000_000


def _routes(graph, fabric, seed):
    """The routing tables as cells of port sets (pdes/routing.py)."""
    r = graph.routing
    count = np.diff(r.set_ptr).astype(np.int64)
    link = fabric.tx_of[r.set_link]
    first = (
        np.where(count == 1, link[np.minimum(r.set_ptr[:-1], max(len(link) - 1, 0))], r.set_ptr[:-1])
        if len(link)
        else r.set_ptr[:-1]
    )
    if len(count) and count.max() > s.MAX_SET:
        raise RunError(f"{count.max()} equal-cost links: at most {s.MAX_SET} are possible")
    cells = ((count << SET_SHIFT) | first).astype(np.int32)
    salt = np.empty(graph.nodes, np.int64)
    _fill_salts(salt, seed)
    none32, none64 = np.zeros(1, np.int32), np.zeros(1, np.int64)
    fields = {
        "row": none64,
        "cell": none32,
        "hops": np.zeros(1, np.int8),
        "attach": none32,
        "home": none32,
        "column": none32,
        "digit": none32,
        "mode": np.zeros(1, np.int8),
        "offset": none64,
        "size": none64,
    }
    if hasattr(r, "home"):
        cell = np.where(r.next_set >= 0, cells[np.maximum(r.next_set, 0)], 0)
        column = np.full(graph.nodes, -1, np.int32)
        column[r.home_node] = np.arange(len(r.home_node))
        fields |= {
            "row": r.row.astype(np.int64) * len(r.home_node),
            "cell": cell.reshape(-1),
            "hops": r.hops.astype(np.int8).reshape(-1),
            "attach": np.where(r.attach_set >= 0, cells[np.maximum(r.attach_set, 0)], 0).reshape(-1),
            "home": r.home.astype(np.int32).reshape(-1),
            "column": column,
        }
        mode, dims = (MODE_ONE_HOME if r.home.shape[1] == 1 else MODE_TABLE), 0
    else:
        fields |= {
            "cell": cells[r.sets],
            "digit": r.digit.astype(np.int32).reshape(-1),
            "mode": r.mode.astype(np.int8).reshape(-1),
            "offset": r.offset.astype(np.int64).reshape(-1),
            "size": r.sizes.astype(np.int64),
        }
        mode, dims = MODE_DIMENSIONS, len(r.sizes)
    homes = r.home.shape[1] if hasattr(r, "home") else 1
    fields = {k: aligned(v) for k, v in fields.items()}
    return s.Routes(link=link.astype(np.int32) if len(link) else none32, salt=salt, **fields), mode, dims, homes


def _tables(program):
    """The program's arrays under the names of the kernel."""
    sched = program.schedules
    values = {
        "kind": program.node_kind,
        "lane": program.node_lane,
        "duration_ps": program.node_duration_ps,
        "bytes": program.node_bytes,
        "peer": program.node_peer,
        "tag": program.node_tag,
        "seq": program.node_seq,
        "group": program.node_group,
        "schedule": program.node_schedule,
        "child_ptr": program.child_ptr,
        "child": program.child,
        "recv_ptr": program.recv_ptr,
        "recv_key": program.recv_key,
        "recv_node": program.recv_node,
        "trace_slot_ptr": program.trace_slot_ptr,
        "coll_ptr": program.coll_ptr,
        "coll_node": program.coll_node,
        "slot_group": program.slot_group,
        "slot_member": program.slot_member,
        "group_ptr": program.group_ptr,
        "group_member": program.group_member,
    }
    types = {
        "kind": np.int8,
        "lane": np.int8,
        "duration_ps": np.int64,
        "bytes": np.int64,
        "child_ptr": np.int64,
        "recv_ptr": np.int64,
        "recv_key": np.int64,
        "trace_slot_ptr": np.int64,
        "coll_ptr": np.int64,
        "group_ptr": np.int64,
        "plan_of_ptr": np.int64,
        "relative": np.bool_,
    }
    for name in s.Plans._fields:
        if name not in values:
            values[name] = getattr(sched, name)
    values = {k: _padded(v, types.get(k, np.int32)) for k, v in values.items()}
    return (part(**{k: values[k] for k in part._fields}) for part in (s.Trace, s.Plans))


def _padded(values, dtype):
    """A contiguous array of the type, never empty (an empty array has no address to read from)."""
    values = np.ascontiguousarray(values, dtype)
    return values if len(values) else np.zeros(1, dtype)


def _ready_templates(program):
    """Per distinct trace: parents left per row with the ready rows chained, and the chain's ends."""
    templates = []
    for t in range(len(program.trace_ptr) - 1):
        left = program.node_deps[program.trace_ptr[t] : program.trace_ptr[t + 1]].astype(np.int32)
        roots = np.flatnonzero(left == 0)
        left[roots] = np.append(roots[1:], -1)[: len(roots)]
        templates.append((left, roots[0] if len(roots) else -1, roots[-1] if len(roots) else -1))
    return templates


def _npu_rows(graph, program, fabric, slots_ptr):
    """The `npu` table, the per-NPU rows of `row_state`, and their offsets."""
    npu = np.zeros((graph.npus, s.NPU_WORDS), np.int64)
    ports = np.diff(fabric.out_ptr[: graph.npus + 1])
    for column in (s.NPU_READY_HEAD, s.NPU_READY_TAIL, s.NPU_KICK_HEAD, s.NPU_QP_HEAD, s.NPU_LAST_RX):
        npu[:, column] = -1
    npu[:, s.NPU_LANE : s.NPU_WAIT_TAIL + s.LANES] = -1
    npu[:, s.NPU_PORTS] = ports
    npu[:, s.NPU_HEAP_BASE] = _offsets(ports + s.LANES + 1)[:-1]
    npu[:, s.NPU_RTO_AT] = s.INF
    npu[:, s.NPU_GLOBAL] = np.arange(graph.npus)
    trace = np.asarray(program.trace_of_npu, np.int64)
    length = np.diff(program.trace_ptr)
    active = np.zeros(graph.npus, np.int64)
    active[: program.npus] = np.where(trace >= 0, length[np.maximum(trace, 0)] if len(length) else 0, 0)
    row_ptr = _offsets(active)
    npu[:, s.NPU_LEFT] = active
    npu[:, s.NPU_ROW_BASE] = row_ptr[:-1]
    npu[: program.npus, s.NPU_TRACE] = trace
    npu[: program.npus, s.NPU_TRACE_BASE] = np.asarray(program.trace_ptr)[np.maximum(trace, 0)]
    npu[: program.npus, s.NPU_SLOT_BASE] = slots_ptr[:-1]
    rows = np.zeros(max(1, int(row_ptr[-1])), np.int32)
    templates = _ready_templates(program)
    heads = np.array([t[1] for t in templates] or [-1])
    tails = np.array([t[2] for t in templates] or [-1])
    npu[: program.npus, s.NPU_READY_HEAD] = np.where(trace >= 0, heads[np.maximum(trace, 0)], -1)
    npu[: program.npus, s.NPU_READY_TAIL] = np.where(trace >= 0, tails[np.maximum(trace, 0)], -1)
    for i in range(program.npus):
        if active[i]:
            rows[row_ptr[i] : row_ptr[i + 1]] = templates[trace[i]][0]
    return npu, rows, row_ptr


def _most_sends(schedules):
    """The most sends that one plan holds: what one action may post."""
    if len(schedules.send_peer) == 0:
        return 1
    sends = _offsets((np.asarray(schedules.send_peer) >= 0).astype(np.int64))
    ends = np.asarray(schedules.lane_ptr)[np.asarray(schedules.plan_ptr)]
    return max(1, int(np.diff(sends[ends]).max(initial=0)))


def _power_of_two(least):
    """The smallest power of two that is at least `least`."""
    return 1 << max(4, (int(least) - 1).bit_length())


def _empty_map(least):
    size = _power_of_two(2 * least)
    return full(size, -1), zeros(size)


def _free_list(length):
    """A stack of the numbers below `length`, the lowest on top."""
    return aligned(np.arange(length - 1, -1, -1))


def _constants(graph, program, settings, fabric, routing):
    """The constants of a run (CONST_*); routing: mode, dimensions and homes."""
    sends = _most_sends(program.schedules)
    degree = int(np.diff(fabric.out_ptr).max(initial=0))
    const = zeros(s.CONST_WORDS)
    for index, value in {
        s.CONST_SEED: settings.seed,
        s.CONST_MTU: settings.mtu_bytes,
        s.CONST_HEADER: settings.header_bytes,
        s.CONST_ACK: settings.ack_bytes,
        s.CONST_WINDOW: _window_packets(graph, settings),
        s.CONST_QUEUE_LIMIT: settings.queue_limit_bytes,
        s.CONST_RTO: _rto_ps(graph, settings),
        s.CONST_LOOKAHEAD: fabric.lookahead_ps,
        s.CONST_ROUTE_MODE: routing[0],
        s.CONST_DIMENSIONS: routing[1],
        s.CONST_HOMES: routing[2],
        s.CONST_NPUS_LOCAL: graph.npus,
        s.CONST_NODES_LOCAL: graph.nodes,
        s.CONST_LANE_STRIDE: max(1, int(np.diff(program.schedules.plan_ptr).max(initial=0))),
        s.CONST_RESERVE_BLOCKS: fabric.batch // s.BLOCK_RECORDS + 2 * s.SIDES * degree + 64,
        s.CONST_RESERVE_MSGS: sends,
        s.CONST_RESERVE_QPS: min(sends, graph.npus),
        s.CONST_SERIAL_COLLECTIVES: int(not settings.concurrent_collectives),
        s.CONST_RECORD_NODES: int(settings.record_nodes),
        s.CONST_RECORD_FLOWS: int(settings.record_flows),
        s.CONST_MAX_RETRIES: settings.max_retries,
        s.CONST_CUT_BYTES: settings.cut_through_header_bytes,
    }.items():
        const[index] = value
    return const


def _net(graph, fabric, const, npu):
    """Nodes, links and packets, all idle; NPUs with rows that are ready begin at time 0."""
    blocks = graph.links // 2 + 2 * graph.nodes + 2 * int(const[s.CONST_RESERVE_BLOCKS])
    ctl = zeros(s.CTL_WORDS)
    ctl[s.CTL_FREE_BLOCKS] = blocks
    ctl[s.CTL_RESUME_NODE] = ctl[s.CTL_FAILED_QP] = -1
    ctl[s.CTL_LEFT] = npu[:, s.NPU_LEFT].sum()
    ctl[s.CTL_CHECK] = 1
    ctl[s.CTL_SOONEST] = s.INF
    next_time = full(graph.npus, s.INF)
    next_time[npu[:, s.NPU_READY_HEAD] >= 0] = 0
    link_class = aligned(fabric.classes)
    return s.Net(
        ctl=ctl,
        count=zeros(s.COUNT_WORDS),
        const=const,
        next_time=next_time,
        inbox=full(2 * s.SIDES * graph.nodes, -1),
        waiting=zeros(graph.links // 32 + 1),
        wait_head=full(graph.links, -1),
        wait_tail=full(graph.links, -1),
        out_ptr=fabric.out_ptr,
        tx=aligned(fabric.tx_rows(graph)),
        link_class=link_class,
        link_classf=link_class.view(np.float64),
        tx_max_wait=zeros(graph.links),
        tx_dropped=zeros(graph.links),
        record=zeros(blocks * s.BLOCK_RECORDS * s.RECORD_WORDS),
        block_next=zeros(blocks),
        block_free=_free_list(blocks),
    )


def _inbox(graph, fabric):
    """What nodes do with what arrives, and room for one batch."""
    return s.Inbox(
        rx_psb=fabric.psb,
        latency_ps=graph.node_latency_ps.astype(np.int64),
        cut=fabric.cut,
        batch_key=zeros(fabric.batch),
        batch_tmp=zeros(fabric.batch),
        batch_pos=zeros(fabric.batch),
        batch_out=zeros(fabric.batch),
        batch_freed=zeros(fabric.batch),
        bucket=zeros(BUCKETS + 2),
    )


def _npus(fabric, npu):
    """NPUs, their idle ports and empty heaps."""
    port = np.zeros((max(1, int(fabric.out_ptr[len(npu)])), s.PORT_WORDS), np.int64)
    port[:, s.PORT_RING] = port[:, s.PORT_SENT_REF] = -1
    port[:, s.PORT_KICK_NEXT] = -2
    slots = int(npu[-1, s.NPU_HEAP_BASE] + npu[-1, s.NPU_PORTS]) + s.LANES + 1
    return s.Npus(npu=aligned(npu), port=aligned(port), heap=zeros(2 * slots))


def _qps(graph, const, ctl):
    """No queue pairs yet, and room for some messages and flow records."""
    sends = int(const[s.CONST_RESERVE_MSGS])
    msgs = max(4 * graph.npus, 64) + sends
    ctl[s.CTL_FREE_MSGS] = msgs
    qp_key, qp_val = _empty_map(2 * graph.npus + sends)
    rx_key, rx_val = _empty_map(2 * graph.npus)
    return s.Qps(
        qp=zeros(len(qp_key) // 2 * s.QP_WORDS),
        msg=zeros(msgs * s.MSG_WORDS),
        msg_free=_free_list(msgs),
        rxqp=zeros(len(rx_key) // 2 * s.RXQP_WORDS),
        flow_out=zeros((FLOW_ROWS + sends) * s.FLOW_OUT_WORDS),
        flow_in=zeros(FLOW_ROWS * s.FLOW_IN_WORDS),
        qp_key=qp_key,
        qp_val=qp_val,
        rx_key=rx_key,
        rx_val=rx_val,
    )


def _rows(state, slots, recorded):
    """Trace rows of every NPU, none begun; recorded: whether their times are kept."""
    kept = len(state) if recorded else 1
    return s.Rows(
        state=state,
        flag=zeros(len(state), np.int8),
        start=full(kept, -1),
        finish=full(kept, -1),
        slot_next=zeros(slots, np.int32),
    )


def _insts(graph, const, ctl):
    """No collective under way."""
    insts = max(2 * graph.npus, 64)
    ctl[s.CTL_FREE_INSTS] = insts
    key, val = _empty_map(insts)
    return s.Insts(
        inst=zeros(insts * s.INST_WORDS),
        inst_free=_free_list(insts),
        inst_pc=zeros(insts * int(const[s.CONST_LANE_STRIDE])),
        inst_arrived=zeros(insts * int(const[s.CONST_LANE_STRIDE])),
        inst_key=key,
        inst_val=val,
    )


def build_world(graph, program, settings):
    """A world that runs `program` on `graph`; returns a Simulation that the driver runs.

    Raises RunError when the packet format cannot hold the run.
    """
    begun = time.perf_counter()
    _check_sizes(graph, program, settings)
    fabric = _Fabric(graph, settings)
    routes, *routing = _routes(graph, fabric, settings.seed)
    slot_ptr = np.asarray(program.slot_ptr, np.int64)
    npu, state, row_ptr = _npu_rows(graph, program, fabric, slot_ptr)
    const = _constants(graph, program, settings, fabric, routing)
    net = _net(graph, fabric, const, npu)
    trace, plans = _tables(program)
    world = s.World(
        net=net,
        inbox=_inbox(graph, fabric),
        npus=_npus(fabric, npu),
        qps=_qps(graph, const, net.ctl),
        rows=_rows(state, int(slot_ptr[-1]), settings.record_nodes),
        insts=_insts(graph, const, net.ctl),
        routes=routes,
        trace=trace,
        plans=plans,
    )
    return Simulation(graph, program, settings, world, fabric.tx_link, row_ptr, time.perf_counter() - begun)
