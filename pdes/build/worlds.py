"""From a graph and a program to a world: all state of the simulation as arrays, ready to run."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from pdes.build.buffers import shared_buffers
from pdes.build.constants import constants_of
from pdes.build.fabric import Fabric
from pdes.build.growth import empty_receivers, events_room
from pdes.build.hooks import hooks_of
from pdes.build.layout import Layout
from pdes.build.limits import check_sizes
from pdes.build.npus import idle_npus, npu_rows, row_states
from pdes.build.part import Part, offsets
from pdes.build.post import Post
from pdes.build.schedule import NO_FAULTS, scheduled, with_pit
from pdes.build.settings import Settings
from pdes.build.simulation import LogicalProcess, Simulation
from pdes.build.tables import padded, plan_tables, trace_tables
from pdes.core import state as s
from pdes.core.inputs import Graph, Int64, Program, Record, Rows
from pdes.core.memory import aligned, full, row_of_zeros, zeros
from pdes.core.rows.messages import Event
from pdes.core.rows.network import PacketRecord, Telemetry
from pdes.core.rows.nic import CongestionState, FlowIn, FlowOut, Message, QueuePair, Selective
from pdes.core.rows.npu import Asked, Instance, LaneState, Phase, Taken
from pdes.core.rows.run import Counters, Hooks, Scalars
from pdes.messages.events import empty_queue
from pdes.messages.fidelity import PACKET
from pdes.network.batch import BUCKETS
from pdes.nic.driven import has_shares, with_driven

FLOW_ROWS = 1 << 16
FIRST_DEPTH_PS = 1_000_000


def _power_of_two(least: int) -> int:
    """The smallest power of two that is at least `least`."""
    return 1 << max(4, (int(least) - 1).bit_length())


def _empty_map(least: int) -> tuple[Int64, Int64]:
    size = _power_of_two(2 * least)
    return full(size, -1), zeros(size)


def _free_list(length: int) -> Int64:
    """A stack of the numbers below `length`, the lowest on top."""
    return aligned(np.arange(length - 1, -1, -1))


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
        batch_near=zeros(fabric.batch),
        batch_box=zeros(fabric.batch),
        batch_apart=zeros(fabric.batch),
        batch_link=zeros(fabric.batch),
        batch_ready=zeros(fabric.batch),
        batch_freed=zeros(fabric.batch),
        bucket=zeros(BUCKETS + 2),
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
        reduces=aligned(padded(np.asarray(steps.reduce)[receives], np.int8)),
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
    settings = with_driven(settings, driven=has_shares(program, settings))
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
    check_sizes(layout.graph, program, settings)
    tables = trace_tables(program), plan_tables(program)
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
    npu, state, row_ptr = npu_rows(program, part, settings)
    const = constants_of(layout, program, settings, part, routing)
    net = with_pit(_net(layout, part, const, npu, post, settings), settings.faults, routing[0])
    const.epochs = epochs
    if len(schedule.change):
        net.ctl.fault_ps = schedule.change[0].begin_ps
    trace, plans = tables
    world = s.World(
        net=net,
        inbox=_inbox(fabric),
        npus=idle_npus(part, npu, const, settings),
        qps=_qps(part, const, net.ctl, settings),
        rows=row_states(state, int(program.slot_ptr[-1]), recorded=settings.record_nodes),
        insts=_insts(part, const, net.ctl),
        routes=routes,
        trace=trace,
        plans=plans,
        schedule=schedule,
        messages=_messages(program, part, const, net.ctl, settings),
    )
    return LogicalProcess(part, world, row_ptr, hooks_of(graph, settings))
