"""From a graph and a program to a world: all state of the simulation as arrays, ready to run."""

import time
from dataclasses import replace

import numpy as np

from pdes.build.buffers import shared_buffers
from pdes.build.fabric import round_trip_ps, rto_ps, window_packets
from pdes.build.growth import events_room
from pdes.build.hooks import hooks_of
from pdes.build.layout import Layout
from pdes.build.part import offsets
from pdes.build.post import Post
from pdes.build.schedule import NO_FAULTS, scheduled, with_pit
from pdes.build.settings import PAUSE_FRAME_BYTES, SCHEDULINGS
from pdes.build.simulation import LogicalProcess, Simulation
from pdes.core import packet
from pdes.core import state as s
from pdes.core.errors import RunError
from pdes.core.memory import aligned, full, zeros
from pdes.messages.events import empty_queue
from pdes.messages.fidelity import PACKET
from pdes.network.batch import BUCKETS
from pdes.nic.driven import has_shares, with_driven
from pdes.nic.rendezvous import MAX_TAG
from pdes.npu.trace import KIND_SEND

FLOW_ROWS = 1 << 16
FIRST_DEPTH_PS = 1_000_000


def _check_sizes(graph, program, settings):
    """Refuse what the packet words cannot hold."""
    if program.in_network:
        raise RunError("the program needs switches that reduce: expected it with their aggregators")
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
    if settings.selective_repeat and window_packets(graph, settings) > s.SELECTIVE_PACKETS:
        raise RunError(
            f"selective repeat with a window of {window_packets(graph, settings)} packets: at most "
            f"{s.SELECTIVE_PACKETS} are possible"
        )
    if settings.balancing.reorders and not settings.selective_repeat:
        raise RunError(f"load balancing {settings.balancing.name} lets packets overtake; it needs selective repeat")
    tags = np.asarray(program.node_tag)[np.asarray(program.node_kind) == KIND_SEND]
    if settings.rendezvous_bytes and tags.max(initial=0) >= MAX_TAG:
        raise RunError(f"tag {tags.max()} of a send: where messages are asked for, at most {MAX_TAG - 1} is possible")
    if settings.fidelity.act and settings.beyond_messages():
        raise RunError(f"{settings.beyond_messages()} with messages that go whole; expected packets")
    if settings.mtu_bytes + settings.header_bytes > packet.MAX_WIRE_BYTES:
        raise RunError(
            f"packets of {settings.mtu_bytes + settings.header_bytes} bytes: at most {packet.MAX_WIRE_BYTES}"
        )


_OTHER_NAMES = {"slot_group", "slot_member", "group_ptr", "group_member", "child_ptr", "child"} | {
    "recv_ptr",
    "recv_key",
    "recv_node",
    "trace_slot_ptr",
    "coll_ptr",
    "coll_node",
}
"""Arrays that Program calls as the kernel does; other columns of its nodes begin with node_."""


def _tables(program):
    """The program's arrays under the names and with the types of the kernel; worlds of one process share them."""
    made = {"lane_row": _lane_rows(program.schedules), "view_row": _view_rows(program.schedules)}

    def array(name, kind):
        if name in made:
            values = made[name]
        elif name in _OTHER_NAMES:
            values = getattr(program, name)
        elif hasattr(program.schedules, name):
            values = getattr(program.schedules, name)
        else:
            values = getattr(program, f"node_{name}")
        return _padded(values, kind.__metadata__[0])

    return tuple(part(**{n: array(n, kind) for n, kind in part.__annotations__.items()}) for part in (s.Trace, s.Plans))


def _lane_rows(schedules):
    """Rows of all lanes (LANE_*), with views counted over all schedules."""
    rows = np.zeros((len(schedules.lane_ptr) - 1, s.LANE_WORDS), np.int64)
    for word, column in {
        s.LANE_PLAIN: schedules.lane_plain
        & (schedules.lane_latency_ps == 0)
        & (schedules.lane_gate < 0)
        & (schedules.lane_blocking == 0)
        & (schedules.lane_begins == 0),
        s.LANE_VIEW: schedules.lane_view,
        s.LANE_PART: schedules.lane_part,
        s.LANE_PARTS: schedules.lane_parts,
        s.LANE_CHUNKS: schedules.lane_chunks,
        s.LANE_WIRE_NUM: schedules.lane_wire_num,
        s.LANE_WIRE_DEN: schedules.lane_wire_den,
        s.LANE_LATENCY: schedules.lane_latency_ps,
        s.LANE_GATE: np.where(schedules.lane_phase >= 0, schedules.lane_gate, -1),
        s.LANE_PHASE: schedules.lane_phase,
        s.LANE_ALIKE: _lanes_alike(schedules),
        s.LANE_BLOCKING: schedules.lane_blocking,
        s.LANE_CONNECTION: _connections(schedules),
        s.LANE_BEGINS: schedules.lane_begins,
    }.items():
        rows[:, word] = column
    views = rows.view_number
    for base, first in zip(schedules.view_base.tolist(), schedules.plan_of_ptr[:-1].tolist(), strict=True):
        if base:  # only a schedule of one plan has views
            plan = schedules.plan_of[first]
            own = views[schedules.plan_ptr[plan] : schedules.plan_ptr[plan + 1]]
            own[own >= 0] += base
    return rows.reshape(-1)


def _connections(schedules):
    """LANE_CONNECTION of each lane."""
    shares = np.round(schedules.lane_shares * packet.SHARE_UNITS).astype(np.int64)
    number = schedules.lane_connection.astype(np.int64)
    return number << packet.CONNECTION_SHIFT | np.where(shares > packet.SHARE_UNITS, shares, 0) << packet.SHARES_SHIFT


def _lanes_alike(schedules):
    """Of each lane, how many of its plan are of its phase."""
    plan = np.repeat(np.arange(len(schedules.plan_ptr) - 1), np.diff(schedules.plan_ptr))
    pairs = np.stack([plan, schedules.lane_phase], axis=1)
    _, which, count = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    return count[which.reshape(-1)]


def _view_rows(schedules):
    """Rows of all views (VIEW_*)."""
    rows = np.zeros((len(schedules.view_size), s.VIEW_WORDS), np.int64)
    rows.members = schedules.view_size
    rows.parts = schedules.view_parts
    rows.first = schedules.view_ptr[:-1]
    return rows.reshape(-1)


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


def _npu_rows(program, part, settings):
    """The `npu` table, the per-NPU rows of `Rows.state`, and their offsets."""
    npu = np.zeros((max(1, part.npus), s.NPU_WORDS), np.int64)
    ports = np.diff(part.out_ptr[: part.npus + 1])
    lists = (
        s.NPU_READY_HEAD,
        s.NPU_READY_TAIL,
        s.NPU_KICK_HEAD,
        s.NPU_QP_HEAD,
        s.NPU_LAST_RX,
        s.NPU_DONE_HEAD,
        s.NPU_AGENDA_HEAD,
    )
    for column in lists:
        npu[:, column] = -1
    npu[:, s.NPU_LANE : s.NPU_WAIT_TAIL + s.LANES] = -1
    npu.rto_at_ps = s.INF
    own = npu[: part.npus]
    own.ports = ports
    own.heap = offsets(_slots(ports, settings))[:-1]
    own.number = part.nodes[: part.npus]
    busy = np.flatnonzero(part.nodes[: part.npus] < program.npus)
    trace = np.full(part.npus, -1, np.int64)
    trace[busy] = np.asarray(program.trace_of_npu)[part.nodes[busy]]
    has_trace = np.flatnonzero(trace >= 0)
    of = trace[has_trace]
    trace_ptr = np.asarray(program.trace_ptr, np.int64)
    length = np.zeros(part.npus, np.int64)
    length[has_trace] = np.diff(trace_ptr)[of]
    row_ptr = offsets(length)
    own.rows_left = length
    own.row_base = row_ptr[:-1]
    own.trace_number[has_trace] = of
    own.trace_base[has_trace] = trace_ptr[of]
    own.slot_base[has_trace] = np.asarray(program.slot_ptr)[part.nodes[has_trace]]
    templates = _ready_templates(program)
    for column, ends in ((s.NPU_READY_HEAD, 1), (s.NPU_READY_TAIL, 2)):
        own[has_trace, column] = np.array([template[ends] for template in templates], np.int64)[of]
    rows = np.zeros(max(1, int(row_ptr[-1])), np.int32)
    for i in has_trace.tolist():
        rows[row_ptr[i] : row_ptr[i + 1]] = templates[trace[i]][0]
    return npu, rows, row_ptr


def _slots(ports, settings):
    """Entries of an NPU's heap: ports (twice where there is pacing), lanes, timer, agenda and list of messages."""
    return ports * (2 if settings.control.update else 1) + s.LANES + 2 + settings.fidelity.has_endpoints


def _most_sends(schedules):
    """The most sends that one plan holds: what one action may post."""
    if len(schedules.send_peer) == 0:
        return 1
    sends = offsets((np.asarray(schedules.send_peer) >= 0).astype(np.int64))
    ends = np.asarray(schedules.lane_ptr)[np.asarray(schedules.plan_ptr)]
    return max(1, int(np.diff(sends[ends]).max(initial=0)))


def _has_control(settings):
    """Whether NPUs send each other requests, answers or calls."""
    return settings.rendezvous_bytes > 0 or settings.collectives_in_flight > 0


def _most_posts(schedules, settings):
    """The most rows of the pool of messages that one action may take.

    What is asked for takes a row while it waits, and one for its request; a receive an answer and a call.
    """
    sends = _most_sends(schedules)
    if not _has_control(settings):
        return sends
    receives = offsets((np.asarray(schedules.recv_peer) >= 0).astype(np.int64))
    ends = np.asarray(schedules.lane_ptr)[np.asarray(schedules.plan_ptr)]
    return 2 * sends + 2 * int(np.diff(receives[ends]).max(initial=0)) + 2


def _power_of_two(least):
    """The smallest power of two that is at least `least`."""
    return 1 << max(4, (int(least) - 1).bit_length())


def _empty_map(least):
    size = _power_of_two(2 * least)
    return full(size, -1), zeros(size)


def _free_list(length):
    """A stack of the numbers below `length`, the lowest on top."""
    return aligned(np.arange(length - 1, -1, -1))


def _constants(layout, program, settings, part, routing):
    """The constants of a run (CONST_*); routing: mode, dimensions and homes."""
    graph, fabric = layout.graph, layout.fabric
    sends = _most_posts(program.schedules, settings)
    connections = 1 + int(program.schedules.lane_connection.max(initial=0))
    degree = int(np.diff(part.out_ptr).max(initial=0))
    const = zeros(s.CONST_WORDS)
    for index, value in {
        s.CONST_SEED: settings.seed,
        s.CONST_MTU: settings.mtu_bytes,
        s.CONST_HEADER: settings.header_bytes,
        s.CONST_ACK: settings.ack_bytes,
        s.CONST_WINDOW: window_packets(graph, settings),
        s.CONST_QUEUE_LIMIT: settings.queue_limit_bytes,
        s.CONST_RTO: rto_ps(graph, settings),
        s.CONST_CELL: fabric.cell_ps,
        s.CONST_LOOKAHEAD: layout.lookahead_ps,
        s.CONST_NEIGHBOURS: len(part.neighbours),
        s.CONST_ROUTE_MODE: routing[0],
        s.CONST_DIMENSIONS: routing[1],
        s.CONST_HOMES: routing[2],
        s.CONST_NPUS_LOCAL: part.npus,
        s.CONST_NODES_LOCAL: len(part.nodes),
        s.CONST_LANE_STRIDE: max(1, int(np.diff(program.schedules.plan_ptr).max(initial=0))),
        s.CONST_RESERVE_BLOCKS: fabric.batch // s.BLOCK_RECORDS + 2 * s.SIDES * degree + 64,
        s.CONST_RESERVE_MSGS: sends,
        s.CONST_RESERVE_QPS: min(sends, graph.npus * (connections + _has_control(settings))),
        s.CONST_SERIAL_COLLECTIVES: int(not settings.concurrent_collectives),
        s.CONST_RECORD_NODES: int(settings.record_nodes),
        s.CONST_RECORD_FLOWS: int(settings.record_flows),
        s.CONST_MAX_RETRIES: settings.max_retries,
        s.CONST_CUT_BYTES: settings.cut_through_header_bytes,
        s.CONST_CROSSING: fabric.crossing_words,
        s.CONST_RTT: int("rtt" in settings.control.signals),
        s.CONST_TELEMETRY: int("telemetry" in settings.control.signals),
        s.CONST_CNP_INTERVAL: settings.cnp_interval_ps,
        s.CONST_BASE_RTT: round_trip_ps(graph, settings)[0],
        s.CONST_P2P_CLASS: settings.p2p_class,
        s.CONST_FLOWLET_GAP: settings.flowlet_gap_ps,
        s.CONST_SELECTIVE: int(settings.selective_repeat),
        s.CONST_TOKENS: settings.phases_per_dimension,
        s.CONST_DIMENSIONS_GATED: 1 + int(program.schedules.lane_gate.max(initial=-1)),
        s.CONST_PHASE_STRIDE: 1 + int(program.schedules.lane_phase.max(initial=-1)),
        s.CONST_SCHEDULING: SCHEDULINGS.index(settings.scheduling),
        s.CONST_RENDEZVOUS: settings.rendezvous_bytes or s.INF,
        s.CONST_CONTROL_BYTES: settings.rendezvous_control_bytes,
        s.CONST_IN_FLIGHT: settings.collectives_in_flight,
        s.CONST_HANDSHAKES: int(_has_control(settings)),
        s.CONST_COMPUTE_SLOW: _compute_slow(settings),
        s.CONST_REORDER: settings.reorder_packets or 2 * s.SELECTIVE_PACKETS,
        s.CONST_ENDPOINT: settings.fidelity.endpoint_delay_ps,
        s.CONST_REDUCES: int(settings.fidelity.reduction_psb > 0),
        s.CONST_RESOLUTION: settings.fidelity.resolution_ps,
        s.CONST_SEND_LATENCY: settings.fidelity.send_latency_ps,
        s.CONST_DEPTHS: settings.queue_samples if settings.switch else 0,
        **_of_shared_buffers(settings.switch),
    }.items():
        const[index] = value
    if settings.switch:
        const.reserve_blocks += fabric.batch // s.BLOCK_RECORDS + 4 * degree
    return const


def _compute_slow(settings):
    """CONST_COMPUTE_SLOW."""
    factor = round(s.SLOWDOWN_UNIT * settings.compute_slowdown)
    return factor if factor > s.SLOWDOWN_UNIT else 0


def _of_shared_buffers(switch):
    """Constants of switches that share their buffer."""
    if switch is None:
        return {}
    weights = switch.weights or (0, 0)
    return {
        s.CONST_PFC: int(switch.pfc),
        s.CONST_PFC_BYTES: PAUSE_FRAME_BYTES,
        s.CONST_ALPHA: round(1024 * switch.alpha),
        s.CONST_RESUME_OFFSET: switch.resume_offset_bytes,
        s.CONST_ECN: int(switch.ecn),
        s.CONST_TRIM: int(switch.trim),
        s.CONST_WEIGHTS: weights[0] | weights[1] << 16,
    }


def _net(layout, part, const, npu, post, settings):
    """Nodes, links and packets, all idle; NPUs with rows that are ready begin at time 0."""
    graph, fabric = layout.graph, layout.fabric
    tx = part.tx_rows(graph, fabric, layout.owner)
    blocks = len(tx) // 2 + 2 * len(part.nodes) + 2 * int(const.reserve_blocks)
    ctl = zeros(s.CTL_WORDS)
    ctl.free_blocks = blocks
    ctl.resume_node = ctl.failed_queue_pair = -1
    ctl.rows_left = npu.rows_left.sum()
    ctl.check = 1
    ctl.depth_ps = FIRST_DEPTH_PS
    ctl.soonest_ps = ctl.far_soonest_ps = ctl.out_soonest_ps = ctl.fault_ps = s.INF
    next_time = full(max(len(npu), len(part.nodes)) if settings.switch else len(npu), s.INF)
    next_time[: len(npu)][npu.ready_head >= 0] = 0
    link_class = aligned(fabric.classes)
    in_at = [post.address(other, part.number, half) for other in part.neighbours for half in range(2)]
    return s.Net(
        ctl=ctl,
        count=zeros(s.COUNT_WORDS),
        const=const,
        next_time=next_time,
        inbox=full(2 * s.SIDES * (len(part.nodes) + len(part.neighbours)), -1, np.int32),
        waiting=zeros(len(tx) // 32 + 1),
        wait_head=full(len(tx), -1, np.int32),
        wait_tail=full(len(tx), -1, np.int32),
        out_ptr=part.out_ptr,
        tx=aligned(tx),
        link_class=link_class,
        link_class=link_class.view(np.float64),
        tx_dropped=zeros(len(part.links)),
        record=zeros(blocks * s.BLOCK_RECORDS),
        block_next=zeros(blocks, np.int32),
        block_free=_free_list(blocks).astype(np.int32),
        far=aligned(part.far(graph)),
        ghost=aligned(part.ghost()),
        outbox=post.outbox[part.number],
        out_at=aligned(part.outbox_at()),
        in_at=aligned(in_at, np.int64),
        **shared_buffers(graph, fabric, part, settings),
        telemetry=zeros(blocks * s.BLOCK_RECORDS if hooks.telemetry else 1),
        carried=zeros(s.TELEMETRY_WORDS),
    )


def _inbox(fabric):
    """What nodes do with what arrives, and room for one batch."""
    return s.Inbox(
        rx_psb=fabric.psb if fabric.cut.any() else np.zeros(1),
        batch_key=zeros(fabric.batch),
        batch_tmp=zeros(fabric.batch),
        batch_pos=zeros(fabric.batch),
        batch_out=zeros(fabric.batch),
        batch_box=zeros(fabric.batch),
        batch_freed=zeros(fabric.batch),
        bucket=zeros(BUCKETS + 2),
    )


def _npus(part, npu, const, settings):
    """NPUs, their idle ports and empty heaps."""
    port = np.zeros((max(1, int(part.out_ptr[part.npus])), s.PORT_WORDS), np.int64)
    port.ring = port.sent_ref = -1
    port.kick_next = -2
    port.paced = -1
    port.pace_at_ps = s.INF
    slots = int(npu.heap[-1] + _slots(npu.ports[-1], settings))
    token = np.zeros((max(1, part.npus * int(const.gated_dimensions)), s.TOKEN_WORDS), np.int64)
    token.waiting = -1
    return s.Npus(
        npu=aligned(npu),
        port=aligned(port),
        heap=zeros(2 * slots),
        token=aligned(token),
        system=zeros(max(1, part.npus)),
    )


def _qps(part, const, ctl, settings):
    """No queue pairs yet, and room for some messages and flow records."""
    sends = int(const.reserve_messages)
    msgs = max(4 * part.npus, 64) + sends
    ctl.free_messages = msgs
    qp_key, qp_val = _empty_map(2 * part.npus + sends)
    rx_key, rx_val = _empty_map(2 * part.npus)
    selective = hooks.selective_sender == 1
    cc = zeros(len(qp_key) // 2 if settings.control.update else 1)
    return s.Qps(
        qp=zeros(len(qp_key) // 2),
        msg=zeros(msgs),
        msg_free=_free_list(msgs),
        rxqp=zeros(len(rx_key) // 2),
        flow_out=zeros((FLOW_ROWS + sends) * s.FLOW_OUT_WORDS),
        flow_in=zeros(FLOW_ROWS * s.FLOW_IN_WORDS),
        qp_key=qp_key,
        qp_val=qp_val,
        rx_key=rx_key,
        rx_val=rx_val,
        cc=cc,
        cc=cc.view(np.float64),
        par=aligned(settings.control.values, np.float64),
        sel_tx=zeros(len(qp_key) // 2 if selective else 1),
        sel_rx=zeros(len(rx_key) // 2 if selective else 1),
        begun=zeros(len(rx_key) // 2 if const.reduces else 1),
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


def _insts(part, const, ctl):
    """No collective under way."""
    insts = max(2 * part.npus, 64)
    ctl.free_instances = insts
    key, val = _empty_map(insts)
    called = int(const.lane_stride) if const.collectives_in_flight > 0 else 1
    asked = int(const.lane_stride) if const.rendezvous_bytes < s.INF else 1
    taken = int(const.lane_stride) if const.reduces == 1 else 1
    return s.Insts(
        inst=zeros(insts),
        inst_free=_free_list(insts),
        inst_pc=zeros(insts * int(const.lane_stride)),
        inst_arrived=zeros(insts * int(const.lane_stride)),
        inst_left=zeros(insts * int(const.lane_stride)),
        inst_due=zeros(insts * int(const.lane_stride + 1)),
        inst_later=zeros(insts * int(const.lane_stride + 1)),
        phase=zeros(insts * int(const.phase_stride)),
        called=zeros(insts * called, np.int32),
        asked=zeros(insts * asked),
        taken=zeros(insts * taken),
        inst_key=key,
        inst_val=val,
    )


def _messages(program, part, const, ctl, settings):
    """No message that goes whole under way, and what of those received is added."""
    model, steps = settings.fidelity, program.schedules
    receives = np.asarray(steps.recv_peer) >= 0 if model.reduction_psb else np.zeros(len(steps.recv_peer), np.bool_)
    room = 1
    if model.act:
        stride = int(const.lane_stride)
        room = events_room(part.npus, int(ctl.free_messages), int(ctl.free_instances), stride)
    return s.Messages(
        event=zeros(room),
        queue=empty_queue(),
        rush=zeros(room),
        receive_ptr=aligned(offsets(receives.astype(np.int64))[np.asarray(steps.lane_ptr)]),
        reduces=aligned(_padded(np.asarray(steps.reduce)[receives], np.int8)),
        memory_psb=aligned((model.reduction_psb,), np.float64),
    )


def build_world(graph, program, settings, owner=None):
    """Worlds of all LPs that run `program` on `graph`, as a Simulation that the driver runs.

    Args:
        graph: the fabric.
        program: what the NPUs do.
        settings: of the packet network.
        owner: int[nodes], the LP of each node, numbered from 0 without gaps; None = one LP.

    Raises:
        RunError: the packet format cannot hold the run.
    """
    settings = with_driven(settings, driven=has_shares(program))
    layout = Layout(graph, settings, owner)
    parts = [layout.part(number) for number in range(layout.lps)]
    return build_lps(layout, program, settings, parts, Post(parts))


def build_lps(layout, program, settings, parts, post):
    """Worlds of some LPs.

    Args:
        layout: of the whole fabric.
        program: what their NPUs do, at least.
        settings: of the packet network, driven if anything in the run is (pdes.nic.driven).
        parts: the LPs.
        post: their outboxes, and where to find those of their neighbours.

    Raises:
        RunError: the packet format cannot hold the run.
    """
    begun = time.perf_counter()
    _check_sizes(layout.graph, program, settings)
    tables = _tables(program)
    built = [_build_lp(layout, program, settings, part, tables, post) for part in parts]
    if settings.fidelity.acknowledged:
        back = _way_back(layout, program, settings, tables)
        for lp in built:
            lp.look_up_ways_back(back)
    return Simulation(layout.graph, program, settings, built, time.perf_counter() - begun)


def _way_back(layout, program, settings, tables):
    """An LP of the whole fabric where nothing is done and all goes well, for routes only (pdes/network/way_back.py)."""
    plain = replace(settings, fidelity=PACKET, faults=NO_FAULTS)
    whole = Layout(layout.graph, plain)
    part = whole.part(0)
    idle = program._replace(trace_of_npu=np.full(program.npus, -1, np.int32))
    return _build_lp(whole, idle, plain, part, tables, Post([part]))


def _build_lp(layout, program, settings, part, tables, post):
    """The world of one LP."""
    graph, fabric = layout.graph, layout.fabric
    routes, routing, schedule, epochs = scheduled(graph, fabric, part, settings)
    npu, state, row_ptr = _npu_rows(program, part, settings)
    const = _constants(layout, program, settings, part, routing)
    net = with_pit(_net(layout, part, const, npu, post, settings), settings.faults, routing[0])
    const.epochs = epochs
    if len(schedule.change) >= s.CHANGE_WORDS:
        net.ctl.fault_ps = schedule.change.begin_ps
    trace, plans = tables
    world = s.World(
        net=net,
        inbox=_inbox(fabric),
        npus=_npus(part, npu, const, settings),
        qps=_qps(part, const, net.ctl, settings),
        rows=_rows(state, int(program.slot_ptr[-1]), settings.record_nodes),
        insts=_insts(part, const, net.ctl),
        routes=routes,
        trace=trace,
        plans=plans,
        schedule=schedule,
        messages=_messages(program, part, const, net.ctl, settings),
    )
    return LogicalProcess(part, world, row_ptr, hooks_of(graph, settings))
