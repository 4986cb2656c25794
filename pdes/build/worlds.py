"""From a graph and a program to a world: all state of the simulation as arrays, ready to run."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from pdes.build.buffers import shared_buffers
from pdes.build.fabric import Fabric, round_trip_ps, rto_ps, window_packets
from pdes.build.growth import empty_receivers, events_room
from pdes.build.hooks import hooks_of
from pdes.build.layout import Layout
from pdes.build.part import Part, offsets
from pdes.build.post import Post
from pdes.build.schedule import NO_FAULTS, scheduled, with_pit
from pdes.build.settings import PAUSE_FRAME_BYTES, SCHEDULINGS, Settings, SharedBuffer
from pdes.build.simulation import LogicalProcess, Simulation
from pdes.core import packet
from pdes.core import state as s
from pdes.core.errors import RunError
from pdes.core.inputs import Graph, Int32, Int64, Program, Record, Rows, Schedules
from pdes.core.memory import aligned, full, row_of_zeros, zeros
from pdes.core.rows.messages import Event
from pdes.core.rows.network import PacketRecord, Telemetry
from pdes.core.rows.nic import CongestionState, FlowIn, FlowOut, Message, Port, QueuePair, Selective
from pdes.core.rows.npu import Asked, Instance, Lane, LaneState, Npu, Phase, PlanStep, System, Taken, Tokens, View
from pdes.core.rows.run import Constants, Counters, Hooks, Scalars
from pdes.messages.events import empty_queue
from pdes.messages.fidelity import PACKET
from pdes.network.batch import BUCKETS
from pdes.nic.driven import DRIVEN, has_shares, with_driven
from pdes.nic.rendezvous import MAX_TAG
from pdes.npu.trace import KIND_SEND

FLOW_ROWS = 1 << 16
FIRST_DEPTH_PS = 1_000_000


def _check_sizes(graph: Graph, program: Program, settings: Settings) -> None:
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
    if settings.load_balancing.reorders and not settings.selective_repeat:
        raise RunError(
            f"load balancing {settings.load_balancing.name} lets packets overtake; it needs selective repeat"
        )
    tags = np.asarray(program.node_tag)[np.asarray(program.node_kind) == KIND_SEND]
    if settings.rendezvous_bytes and tags.max(initial=0) >= MAX_TAG:
        raise RunError(f"tag {tags.max()} of a send: where messages are asked for, at most {MAX_TAG - 1} is possible")
    if settings.fidelity.act and settings.beyond_messages():
        raise RunError(f"{settings.beyond_messages()} with a message-level model; expected packets")
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


def _tables(program: Program) -> tuple[s.Trace, s.PlanTables]:
    """The program's arrays under the names and with the types of the kernel; worlds of one process share them."""
    made = {"lane_row": _lane_rows(program.schedules), "view_row": _view_rows(program.schedules)}
    made["step"] = _step_rows(program.schedules)

    def array(name: str, kind: Any) -> Any:
        if name in made:
            values = made[name]
        elif name in _OTHER_NAMES:
            values = getattr(program, name)
        elif hasattr(program.schedules, name):
            values = getattr(program.schedules, name)
        else:
            values = getattr(program, f"node_{name}")
        return values if name in made else _padded(values, kind.__metadata__[0])

    def filled(part: Any) -> Any:
        return part(**{name: array(name, kind) for name, kind in part.__annotations__.items()})

    return filled(s.Trace), filled(s.PlanTables)


def _step_rows(schedules: Schedules) -> Rows:
    """The same memory as the steps of schedules, in rows with names."""
    if len(schedules.steps) == 0:
        return zeros(1, PlanStep)
    return np.ascontiguousarray(schedules.steps, np.int32).reshape(-1).view(PlanStep.dtype).view(np.recarray)


def _lane_rows(schedules: Schedules) -> Rows:
    """Rows of all lanes, with views counted over all schedules."""
    lanes = len(schedules.lane_ptr) - 1
    rows = zeros(lanes, Lane)
    for name, column in {
        "plain": schedules.lane_plain
        & (schedules.lane_latency_ps == 0)
        & (schedules.lane_gate < 0)
        & (schedules.lane_blocking == 0)
        & (schedules.lane_begins == 0),
        "view_number": schedules.lane_view,
        "part": schedules.lane_part,
        "parts": schedules.lane_parts,
        "chunks": schedules.lane_chunks,
        "wire_num": schedules.lane_wire_num,
        "wire_den": schedules.lane_wire_den,
        "latency_ps": schedules.lane_latency_ps,
        "gate": np.where(schedules.lane_phase >= 0, schedules.lane_gate, -1),
        "phase": schedules.lane_phase,
        "alike": _lanes_alike(schedules),
        "blocking": schedules.lane_blocking,
        "connection": _connections(schedules),
        "begins": schedules.lane_begins,
        "waited_for": _waited_for(schedules),
    }.items():
        rows[name][:lanes] = column
    views = rows.view_number[:lanes]
    for base, first in zip(schedules.view_base.tolist(), schedules.plan_of_ptr[:-1].tolist(), strict=True):
        if base:  # only a schedule of one plan has views
            plan = schedules.plan_of[first]
            own = views[schedules.plan_ptr[plan] : schedules.plan_ptr[plan + 1]]
            own[own >= 0] += base
    return rows


def _connections(schedules: Schedules) -> Int64:
    """Word `connection` of each lane."""
    shares = np.round(schedules.lane_shares * packet.SHARE_UNITS).astype(np.int64)
    number = schedules.lane_connection.astype(np.int64)
    return number << packet.CONNECTION_SHIFT | np.where(shares > packet.SHARE_UNITS, shares, 0) << packet.SHARES_SHIFT


def _lanes_alike(schedules: Schedules) -> Int64:
    """Of each lane, how many of its plan are of its phase."""
    plan = np.repeat(np.arange(len(schedules.plan_ptr) - 1), np.diff(schedules.plan_ptr))
    pairs = np.stack([plan, schedules.lane_phase], axis=1)
    _, which, count = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    return count[which.reshape(-1)]


def _waited_for(schedules: Schedules) -> Int64:
    """Of each lane, as a bit set, lanes of its plan that wait for a step of it; those beyond the set are left out."""
    waited_for = np.zeros(len(schedules.lane_ptr) - 1, np.int64)
    number = np.arange(len(waited_for)) - np.repeat(schedules.plan_ptr[:-1], np.diff(schedules.plan_ptr))
    lane = np.repeat(np.arange(len(waited_for), dtype=np.int32), np.diff(schedules.lane_ptr))
    needs = schedules.dep_lane
    first = needs >= 0
    first[1:] &= (lane[1:] != lane[:-1]) | (needs[1:] != needs[:-1])
    lane, needs = lane[first], needs[first]
    told = number[lane] < s.STIRRED_LANES
    lane, needs = lane[told], needs[told]
    np.bitwise_or.at(waited_for, lane - number[lane] + needs, 1 << number[lane])
    return waited_for


def _view_rows(schedules: Schedules) -> Rows:
    """Rows of all views."""
    views = len(schedules.view_size)
    rows = zeros(views, View)
    rows.members[:views] = schedules.view_size
    rows.parts[:views] = schedules.view_parts
    rows.first[:views] = schedules.view_ptr[:-1]
    return rows


def _padded(values: ArrayLike, dtype: DTypeLike) -> Any:
    """A contiguous array of the type, never empty (an empty array has no address to read from)."""
    values = np.ascontiguousarray(values, dtype)
    return values if len(values) else np.zeros(1, dtype)


def _ready_templates(program: Program) -> list[tuple[Int32, int, int]]:
    """Per distinct trace: parents left per row with the ready rows chained, and the chain's ends."""
    templates = []
    for t in range(len(program.trace_ptr) - 1):
        left = program.node_deps[program.trace_ptr[t] : program.trace_ptr[t + 1]].astype(np.int32)
        roots = np.flatnonzero(left == 0)
        left[roots] = np.append(roots[1:], -1)[: len(roots)]
        templates.append((left, roots[0] if len(roots) else -1, roots[-1] if len(roots) else -1))
    return templates


def _npu_rows(program: Program, part: Part, settings: Settings) -> tuple[Rows, Int32, Int64]:
    """The `npu` table, the per-NPU rows of `RowStates.state`, and their offsets."""
    npu = zeros(part.npus, Npu)
    ports = np.diff(part.out_ptr[: part.npus + 1])
    for name in (
        "ready_head",
        "ready_tail",
        "kick_head",
        "first_queue_pair",
        "last_receiver",
        "done_head",
        "agenda_head",
        "last_connection",
        "last_instance",
        "lane",
        "wait_head",
        "wait_tail",
    ):
        npu[name] = -1
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
    for name, ends in (("ready_head", 1), ("ready_tail", 2)):
        own[name][has_trace] = np.array([template[ends] for template in templates], np.int64)[of]
    rows = np.zeros(max(1, int(row_ptr[-1])), np.int32)
    for i in has_trace.tolist():
        rows[row_ptr[i] : row_ptr[i + 1]] = templates[trace[i]][0]
    return npu, rows, row_ptr


def _slots(ports: Int64, settings: Settings) -> Int64:
    """Entries of an NPU's heap: ports (twice where there is pacing), lanes, timer, agenda and list of messages."""
    return ports * (2 if settings.congestion_control.update else 1) + s.LANES + 2 + settings.fidelity.has_endpoints


def _most_sends(schedules: Schedules) -> int:
    """The most sends that one plan holds: what one action may post."""
    if len(schedules.send_peer) == 0:
        return 1
    sends = offsets((np.asarray(schedules.send_peer) >= 0).astype(np.int64))
    ends = np.asarray(schedules.lane_ptr)[np.asarray(schedules.plan_ptr)]
    return max(1, int(np.diff(sends[ends]).max(initial=0)))


def _has_control(settings: Settings) -> bool:
    """Whether NPUs send each other requests, answers or calls."""
    return settings.rendezvous_bytes > 0 or settings.collectives_in_flight > 0


def _most_posts(schedules: Schedules, settings: Settings) -> int:
    """The most rows of the pool of messages that one action may take.

    What is asked for takes a row while it waits, and one for its request; a receive an answer and a call.
    """
    sends = _most_sends(schedules)
    if not _has_control(settings):
        return sends
    receives = offsets((np.asarray(schedules.recv_peer) >= 0).astype(np.int64))
    ends = np.asarray(schedules.lane_ptr)[np.asarray(schedules.plan_ptr)]
    return 2 * sends + 2 * int(np.diff(receives[ends]).max(initial=0)) + 2


def _power_of_two(least: int) -> int:
    """The smallest power of two that is at least `least`."""
    return 1 << max(4, (int(least) - 1).bit_length())


def _empty_map(least: int) -> tuple[Int64, Int64]:
    size = _power_of_two(2 * least)
    return full(size, -1), zeros(size)


def _free_list(length: int) -> Int64:
    """A stack of the numbers below `length`, the lowest on top."""
    return aligned(np.arange(length - 1, -1, -1))


def _constants(layout: Layout, program: Program, settings: Settings, part: Part, routing: Sequence[int]) -> Record:
    """The constants of a run; routing: mode, dimensions and homes."""
    graph, fabric = layout.graph, layout.fabric
    sends = _most_posts(program.schedules, settings)
    connections = 1 + int(program.schedules.lane_connection.max(initial=0))
    degree = int(np.diff(part.out_ptr).max(initial=0))
    const = row_of_zeros(Constants)
    for name, value in {
        "seed": settings.seed,
        "mtu_bytes": settings.mtu_bytes,
        "header_bytes": settings.header_bytes,
        "ack_bytes": settings.ack_bytes,
        "window_packets": window_packets(graph, settings),
        "window_fixed": int(settings.congestion_control.update in {None, DRIVEN.update}),
        "queue_limit_bytes": settings.queue_limit_bytes,
        "rto_ps": rto_ps(graph, settings),
        "cell_ps": fabric.cell_ps,
        "lookahead_ps": layout.lookahead_ps,
        "neighbours": len(part.neighbours),
        "route_mode": routing[0],
        "dimensions": routing[1],
        "homes": routing[2],
        "npus": part.npus,
        "nodes": len(part.nodes),
        "lane_stride": 1 + max(1, int(np.diff(program.schedules.plan_ptr).max(initial=0))),
        "reserve_blocks": fabric.batch // s.BLOCK_RECORDS + 2 * s.SIDES * degree + 64,
        "reserve_messages": sends,
        "reserve_queue_pairs": min(sends, graph.npus * (connections + _has_control(settings))),
        "serial_collectives": int(not settings.concurrent_collectives),
        "record_nodes": int(settings.record_nodes),
        "record_flows": int(settings.record_flows),
        "max_retries": settings.max_retries,
        "cut_bytes": settings.header_bytes,
        "crossing_words": fabric.crossing_words,
        "carries_send_time": int("rtt" in settings.congestion_control.signals),
        "cnp_interval_ps": settings.cnp_interval_ps,
        "base_rtt_ps": round_trip_ps(graph, settings)[0],
        "p2p_class": settings.p2p_class,
        "flowlet_gap_ps": settings.flowlet_gap_ps,
        "tokens": settings.phases_per_dimension,
        "gated_dimensions": 1 + int(program.schedules.lane_gate.max(initial=-1)),
        "phase_stride": 1 + int(program.schedules.lane_phase.max(initial=-1)),
        "scheduling": SCHEDULINGS.index(settings.scheduling),
        "rendezvous_bytes": settings.rendezvous_bytes or s.INF,
        "control_bytes": settings.rendezvous_control_bytes,
        "collectives_in_flight": settings.collectives_in_flight,
        "handshakes": int(_has_control(settings)),
        "compute_slow_1000ths": _compute_slow(settings),
        "reorder_packets": settings.reorder_packets or 2 * s.SELECTIVE_PACKETS,
        "endpoint_delay_ps": settings.fidelity.endpoint_delay_ps,
        "reduces": int(settings.fidelity.reduction_psb > 0),
        "resolution_ps": settings.fidelity.resolution_ps,
        "send_latency_ps": settings.fidelity.send_latency_ps,
        "depths": settings.queue_samples if settings.switch else 0,
        **_of_shared_buffers(settings.switch),
    }.items():
        const[name] = value
    if settings.switch:
        const.reserve_blocks += fabric.batch // s.BLOCK_RECORDS + 4 * degree
    return const


def _compute_slow(settings: Settings) -> int:
    """`compute_slow_1000ths`."""
    factor = round(s.SLOWDOWN_UNIT * settings.compute_slowdown)
    return factor if factor > s.SLOWDOWN_UNIT else 0


def _of_shared_buffers(switch: SharedBuffer | None) -> dict[str, int]:
    """Constants of switches that share their buffer."""
    if switch is None:
        return {}
    weights = switch.class_weights or (0, 0)
    return {
        "pfc": int(switch.pfc),
        "pause_frame_bytes": PAUSE_FRAME_BYTES,
        "alpha_1024ths": round(1024 * switch.pfc_alpha),
        "resume_offset_bytes": switch.pfc_resume_offset_bytes,
        "ecn": int(switch.ecn),
        "trim": int(switch.trimming),
        "class_weights": weights[0] | weights[1] << 16,
    }


def _net(layout: Layout, part: Part, const: Record, npu: Rows, post: Post, settings: Settings) -> s.Net:
    """Nodes, links and packets, all idle; NPUs with rows that are ready begin at time 0."""
    graph, fabric = layout.graph, layout.fabric
    tx = part.tx_rows(graph, fabric, layout.owner)
    blocks = len(tx) // 2 + 2 * len(part.nodes) + 2 * int(const.reserve_blocks)
    ctl = row_of_zeros(Scalars)
    ctl.free_blocks = blocks
    ctl.resume_node = ctl.failed_queue_pair = -1
    ctl.rows_left = npu.rows_left.sum()
    ctl.check = 1
    ctl.depth_ps = FIRST_DEPTH_PS
    ctl.soonest_ps = ctl.far_soonest_ps = ctl.out_soonest_ps = ctl.fault_ps = s.INF
    next_time = full(max(len(npu), len(part.nodes)) if settings.switch else len(npu), s.INF)
    next_time[: len(npu)][npu.ready_head >= 0] = 0
    in_at = [post.address(other, part.number, half) for other in part.neighbours for half in range(2)]
    return s.Net(
        ctl=ctl,
        count=row_of_zeros(Counters),
        const=const,
        hooks=row_of_zeros(Hooks),
        next_time=next_time,
        inbox=full(2 * s.SIDES * (len(part.nodes) + len(part.neighbours)), -1, np.int32),
        waiting=zeros(len(tx) // 32 + 1),
        wait_head=full(len(tx), -1, np.int32),
        wait_tail=full(len(tx), -1, np.int32),
        out_ptr=part.out_ptr,
        tx=tx,
        link_class=aligned(fabric.classes),
        tx_dropped=zeros(len(part.links)),
        record=zeros(blocks * s.BLOCK_RECORDS, PacketRecord),
        block_next=zeros(blocks, np.int32),
        block_free=_free_list(blocks).astype(np.int32),
        far=aligned(part.far(graph)),
        ghost=aligned(part.ghost()),
        outbox=post.outbox[part.number],
        out_at=aligned(part.outbox_at()),
        in_at=aligned(in_at, np.int64),
        **shared_buffers(graph, fabric, part, settings),
        telemetry=zeros(
            blocks * s.BLOCK_RECORDS if "telemetry" in settings.congestion_control.signals else 1, Telemetry
        ),
        carried=row_of_zeros(Telemetry),
    )


def _inbox(fabric: Fabric) -> s.Inbox:
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


def _npus(part: Part, npu: Rows, const: Record, settings: Settings) -> s.Npus:
    """NPUs, their idle ports and empty heaps."""
    port = zeros(int(part.out_ptr[part.npus]), Port)
    port.ring = port.sent_ref = -1
    port.kick_next = -2
    port.paced = -1
    port.pace_at_ps = s.INF
    slots = int(npu.heap[-1] + _slots(npu.ports[-1:], settings)[0])
    token = zeros(part.npus * int(const.gated_dimensions), Tokens)
    token.waiting = -1
    return s.Npus(
        npu=npu,
        port=port,
        heap=zeros(2 * slots),
        token=token,
        system=zeros(part.npus, System),
        busy=zeros(part.npus, np.int32),
    )


def _qps(part: Part, const: Record, ctl: Record, settings: Settings) -> s.Qps:
    """No queue pairs yet, and room for some messages and flow records."""
    sends = int(const.reserve_messages)
    msgs = max(4 * part.npus, 64) + sends
    ctl.free_messages = msgs
    qp_key, qp_val = _empty_map(2 * part.npus + sends)
    pairs, receivers = len(qp_key) // 2, _power_of_two(4 * part.npus)
    return s.Qps(
        qp=zeros(pairs, QueuePair),
        msg=zeros(msgs, Message),
        msg_free=_free_list(msgs),
        rxqp=empty_receivers(receivers),
        flow_out=zeros(FLOW_ROWS + sends, FlowOut),
        flow_in=zeros(FLOW_ROWS, FlowIn),
        qp_key=qp_key,
        qp_val=qp_val,
        cc=zeros(pairs if settings.congestion_control.update else 1, CongestionState),
        par=aligned(settings.congestion_control.values, np.float64),
        sel_tx=zeros(pairs if settings.selective_repeat else 1, Selective),
        sel_rx=zeros(receivers if settings.selective_repeat else 1, Selective),
        arrived=zeros(pairs if settings.fidelity.act else 1),
        begun=zeros(receivers if const.reduces else 1),
    )


def _rows(state: Int32, slots: int, recorded: bool) -> s.RowStates:
    """Trace rows of every NPU, none begun; recorded: whether their times are kept."""
    kept = len(state) if recorded else 1
    return s.RowStates(
        state=state,
        flag=zeros(len(state), np.int8),
        start=full(kept, -1),
        finish=full(kept, -1),
        slot_next=zeros(slots, np.int32),
    )


def _insts(part: Part, const: Record, ctl: Record) -> s.Insts:
    """No collective under way."""
    insts = max(2 * part.npus, 64)
    ctl.free_instances = insts
    key, val = _empty_map(insts)
    called = int(const.lane_stride) if const.collectives_in_flight > 0 else 1
    asked = int(const.lane_stride) if const.rendezvous_bytes < s.INF else 1
    taken = int(const.lane_stride) if const.reduces == 1 else 1
    return s.Insts(
        inst=zeros(insts, Instance),
        inst_free=_free_list(insts),
        lane=zeros(insts * int(const.lane_stride), LaneState),
        phase=zeros(insts * int(const.phase_stride), Phase),
        called=zeros(insts * called, np.int32),
        asked=zeros(insts * asked, Asked),
        taken=zeros(insts * taken, Taken),
        inst_key=key,
        inst_val=val,
    )


def _messages(program: Program, part: Part, const: Record, ctl: Record, settings: Settings) -> s.Messages:
    """No message under way at message level, and what of those received is added."""
    model, steps = settings.fidelity, program.schedules
    receives = np.asarray(steps.recv_peer) >= 0 if model.reduction_psb else np.zeros(len(steps.recv_peer), np.bool_)
    room = 1
    if model.act:
        stride = int(const.lane_stride) - 1
        room = events_room(part.npus, int(ctl.free_messages), int(ctl.free_instances), stride)
    return s.Messages(
        event=zeros(room, Event),
        queue=empty_queue(),
        rush=zeros(room),
        receive_ptr=aligned(offsets(receives.astype(np.int64))[np.asarray(steps.lane_ptr)]),
        reduces=aligned(_padded(np.asarray(steps.reduce)[receives], np.int8)),
        memory_psb=aligned((model.reduction_psb,), np.float64),
    )


def build_world(graph: Graph, program: Program, settings: Settings, owner: ArrayLike | None = None) -> Simulation:
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


def build_lps(layout: Layout, program: Program, settings: Settings, parts: Sequence[Part], post: Post) -> Simulation:
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
    return Simulation(layout, program, settings, built, time.perf_counter() - begun)


def _way_back(
    layout: Layout, program: Program, settings: Settings, tables: tuple[s.Trace, s.PlanTables]
) -> LogicalProcess:
    """An LP of the whole fabric where nothing is done and all goes well, for routes only (pdes/network/way_back.py)."""
    plain = replace(settings, fidelity=PACKET, faults=NO_FAULTS)
    whole = Layout(layout.graph, plain)
    part = whole.part(0)
    idle = cast("Any", program)._replace(trace_of_npu=np.full(program.npus, -1, np.int32))
    return _build_lp(whole, idle, plain, part, tables, Post([part]))


def _build_lp(
    layout: Layout, program: Program, settings: Settings, part: Part, tables: tuple[s.Trace, s.PlanTables], post: Post
) -> LogicalProcess:
    """The world of one LP."""
    graph, fabric = layout.graph, layout.fabric
    routes, routing, schedule, epochs = scheduled(graph, fabric, part, settings)
    npu, state, row_ptr = _npu_rows(program, part, settings)
    const = _constants(layout, program, settings, part, routing)
    net = with_pit(_net(layout, part, const, npu, post, settings), settings.faults, routing[0])
    const.epochs = epochs
    if len(schedule.change):
        net.ctl.fault_ps = schedule.change[0].begin_ps
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
