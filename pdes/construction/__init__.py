"""Build the worlds of the logical processes from a graph, a program and settings.

A world is all state of a simulation as arrays, ready to run; the modules of this room build its parts.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nadi.pdes.construction import tables
from nadi.pdes.construction.circuits import lit_tables
from nadi.pdes.construction.constants import constants_of, hooks_of
from nadi.pdes.construction.detours import queues_of_detours
from nadi.pdes.construction.domains import AGGREGATOR_KIND, domain_tables
from nadi.pdes.construction.fabric import window_packets
from nadi.pdes.construction.faults import NO_FAULTS
from nadi.pdes.construction.layout import Layout, LogicalProcess, Outboxes, Part, Simulation, offsets
from nadi.pdes.construction.ports import class_arrays, credit_lanes, samples, shared_buffers
from nadi.pdes.construction.schedule import scheduled, with_pit
from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import Graph, ImpossibleRunError, Int64, Program, Record, Rows, Schedules, packet, state as s
from nadi.pdes.core.declared import empty_map, events_room, power_of_two
from nadi.pdes.core.jit import aligned, full, never_used, row_of, rows_of, unused, zeros
from nadi.pdes.core.rows import messages, network, run
from nadi.pdes.core.rows.npu import CollectivePhase, Instance, LaneReductions, LaneRequest, LaneState
from nadi.pdes.fidelity import Fidelity
from nadi.pdes.messages.paths import capacities
from nadi.pdes.messages.rates import LINK_FLOWS_PER_HOP
from nadi.pdes.network.balancing import MAX_RULES
from nadi.pdes.network.batch import BUCKETS
from nadi.pdes.network.framing import is_ample
from nadi.pdes.nic.pacing import control_of, has_shares
from nadi.pdes.nic.rendezvous import MAX_TAG
from nadi.pdes.npu.trace import KIND_SEND

# Flow records that a world holds before the host takes them out, of each NPU and in all: few enough that a small world
# is built quickly, and many beside the cost of an interruption.
FLOW_ROWS_PER_NPU, MAX_FLOW_ROWS = 1 << 8, 1 << 16


def _net(
    layout: Layout,
    part: Part,
    const: Record,
    npu_table: Rows,
    outboxes: Outboxes,
    jobs: s.JobTables,
    settings: Settings,
) -> s.Net:
    """Return idle nodes, links and packet pools of an LP, `part`; NPUs with rows that are ready begin with the job."""
    graph, fabric = layout.graph, layout.fabric
    tx = part.tx_rows(graph, fabric, layout.owner)
    blocks = len(tx) // 2 + 2 * len(part.nodes) + 2 * int(const.reserve_blocks)
    ctl = row_of(run.Scalars)
    ctl.free_blocks = blocks
    ctl.rows_left = npu_table.rows_left.sum()
    is_mixed = settings.flow_groups is not None
    rows = max(len(npu_table), len(part.nodes)) if settings.has_port_queues else len(npu_table)
    next_time = full(rows + is_mixed, s.INF)
    begin = (npu_table.ready_head >= 0) | (npu_table.job_row >= 0)
    next_time[: len(npu_table)][begin] = npu_table.job_begin_ps[begin]
    sampled = samples(len(tx), const)
    ctl.free_samples = len(sampled.get("sample_log", ()))
    senders = {number: other for other, number in part.list_of_neighbour().items()}  # one of the LPs of each list
    in_at = [outboxes.address(senders[number], part.number, half) for number in range(part.lists) for half in range(2)]
    carries = "telemetry" in settings.congestion_control.signals
    return unused(
        s.Net,
        ctl=ctl,
        const=const,
        next_time=next_time,
        inbox=full(2 * s.SIDES * (len(part.nodes) + part.lists), -1, np.int32),
        waiting=zeros(len(tx) // 32 + 1),
        wait_head=full(len(tx), -1, np.int32),
        wait_tail=full(len(tx), -1, np.int32),
        out_ptr=aligned(part.out_ptr),
        tx=tx,
        link_class=aligned(fabric.classes),
        tx_dropped=zeros(len(part.links)),
        **lit_tables(settings.faults.circuits, part.links, len(tx)),
        record=rows_of(network.PacketRecord, blocks * s.BLOCK_RECORDS),
        block_next=zeros(blocks, np.int32),
        block_free=aligned(np.arange(blocks)[::-1], np.int32),  # a stack, the lowest on top
        far=aligned(part.far(graph)),
        ghost=aligned(part.ghost()),
        outbox=outboxes.outbox[part.number],
        out_at=aligned(part.outbox_at()),
        in_at=aligned(in_at, np.int64),
        counts=rows_of(network.NodeCounts, len(part.nodes)),
        port_ties=rows_of(network.PortTies, len(part.links)),
        telemetry=rows_of(network.Telemetry, blocks * s.BLOCK_RECORDS * carries),
        ordered=zeros(blocks * s.BLOCK_RECORDS * is_mixed, np.int32),
        held_block=zeros(blocks * is_mixed, np.int32),
        jobs=tables.own_tables(jobs, len(tx)),
        **queues_of_detours(part, const, settings),
        **class_arrays(settings, part),
        **shared_buffers(graph, fabric, part, settings),
        **credit_lanes(graph, fabric, part, settings),
        **sampled,
    )


def _qps(part: Part, const: Record, scalars: Record, layout: Layout, settings: Settings) -> s.Qps:
    """Return an LP's tables without queue pairs yet, and with room for some messages and flow records."""
    sends = int(const.reserve_messages)
    msgs = max(4 * part.npus, 64) + sends
    scalars.free_messages = msgs
    # pools begin small and grow (pdes/core/declared.py)
    qp_key, qp_val = empty_map(2 * (2 * part.npus + sends))
    pairs, receivers = len(qp_key) // 2, power_of_two(4 * part.npus)
    flow_rows = min(FLOW_ROWS_PER_NPU * part.npus, MAX_FLOW_ROWS)
    values = settings.congestion_control.values
    par = rows_of(run.ControlParameters, 1)
    par.view(np.float64)[: len(values)] = values
    return s.Qps(
        qp=rows_of(network.QueuePair, pairs),
        msg=rows_of(network.Message, msgs),
        msg_free=aligned(np.arange(msgs)[::-1]),
        rxqp=rows_of(network.Receiver, receivers),
        flow_out=rows_of(network.FlowOut, flow_rows + sends),
        flow_in=rows_of(network.FlowIn, flow_rows),
        qp_key=qp_key,
        qp_val=qp_val,
        cc=rows_of(network.CongestionState, pairs if layout.control.update else 1),
        par=par,
        resends=rows_of(network.Resends, pairs if settings.trims else 1),
        sel_tx=rows_of(network.Selective, pairs if settings.selective_repeat else 1),
        sel_rx=rows_of(network.Selective, receivers if settings.selective_repeat else 1),
        sent_at=zeros(pairs * s.SELECTIVE_PACKETS * settings.coalesces),
        credit_tx=rows_of(network.SendCredit, pairs if settings.receiver_credits else 1),
        credit_rx=rows_of(network.ReceiveCredit, receivers if settings.receiver_credits else 1),
        paths=rows_of(network.PairPaths, pairs if settings.entropy.act else 1),
        penalty=zeros(pairs * int(const.paths) * settings.entropy.learns, np.int8),
        path_sent=zeros(pairs * s.SELECTIVE_PACKETS * settings.entropy.learns, np.int8),
        path_good=zeros(pairs * s.SELECTIVE_PACKETS * settings.entropy.recycles, np.int8),
        arrived=zeros(pairs if settings.fidelity.hooks.act or settings.has_flows else 1),
        begun=zeros(receivers if const.reduces else 1),
    )


def _insts(part: Part, const: Record, scalars: Record) -> s.Insts:
    """Return an LP's tables of collectives, with none under way."""
    insts = max(2 * part.npus, 64)
    scalars.free_instances = insts
    key, val = empty_map(2 * insts)
    lanes = insts * int(const.lane_stride)
    return s.Insts(
        inst=rows_of(Instance, insts),
        inst_free=aligned(np.arange(insts)[::-1]),
        lane=rows_of(LaneState, lanes),
        phase=rows_of(CollectivePhase, insts * int(const.phase_stride)),
        called=zeros(lanes * (const.collectives_in_flight > 0), np.int32),
        asked=rows_of(LaneRequest, lanes * (const.rendezvous_bytes < s.INF)),
        taken=rows_of(LaneReductions, lanes * const.reduces),
        inst_key=key,
        inst_val=val,
    )


def _messages(program: Program, part: Part, const: Record, scalars: Record, settings: Settings) -> s.MessageModels:
    """Return an LP's tables of message-level models without messages, and the table of receives that reduce."""
    model, steps = settings.fidelity, program.schedules
    receives = (steps.recv_peer >= 0) & (model.reduction_psb > 0)
    room = 1
    if model.hooks.act or settings.has_flows:
        stride = int(const.lane_stride) - 1
        room = events_room(part.npus, int(scalars.free_messages), int(scalars.free_instances), stride)
    return unused(
        s.MessageModels,
        event=rows_of(messages.Event, room),
        same_time=zeros(2 * room),
        receive_ptr=aligned(offsets(receives)[steps.lane_ptr]),
        reduces=aligned(steps.reduce[receives], np.int8),
        memory_psb=aligned((model.reduction_psb,), np.float64),
    )


def _coupled_lanes(schedules: Schedules) -> tuple[Int64, int]:
    """Return int64[rows of plan_of], first row of `flows.lane` of each member, and the number of these rows."""
    # members with equal plans and the same peers have the same rows
    schedule = np.repeat(np.arange(len(schedules.members)), np.diff(schedules.plan_of_ptr))
    keys = np.stack([schedule, schedules.plan_of, schedules.list_first])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    first = offsets(np.diff(schedules.plan_ptr)[distinct[1]])
    return first[:-1][which.reshape(-1)], int(first[-1])


def _flows(net: s.Net, pairs: int, nodes: int, schedules: Schedules, settings: Settings) -> s.Flows:
    """Return an LP's tables of the flow model, without flows; pairs: rows of qp; nodes: of the LP."""
    if not settings.has_flows:
        return never_used(s.Flows)
    links, hops = len(net.tx), 2 * int(net.const.reserve_hops)
    kinds, capacity = settings.coupled, capacities(net)
    more: dict[str, Any] = {}
    if kinds is not None:
        lane_first, lanes = _coupled_lanes(schedules)
        rows = rows_of(
            messages.CoupledKind,
            len(kinds.schedule),
            group=np.repeat(np.arange(len(kinds.ptr) - 1), np.diff(kinds.ptr)),
            schedule=kinds.schedule,
            buffer_bytes=kinds.bytes,
            alone_ps=kinds.alone_ps,
        )
        more = {
            "coupled": rows,
            "stage": rows_of(messages.CoupledStage, pairs),
            "lane": rows_of(messages.CoupledLane, lanes),
            "lane_first": aligned(lane_first),
            "is_coupled": aligned(kinds.is_coupled, np.int8),
            "coupled_ptr": aligned(kinds.ptr),
            "hop_total": rows_of(messages.LinkTotal, hops),
            "link_total": rows_of(messages.LinkTotal, links),
            "touched": zeros(links),
        }
    # only beside packets do NPUs take turns in the order of time
    elif settings.flow_groups is not None:
        npus = int(net.const.npus)
        more = {
            "by_flow": aligned(settings.flow_groups, np.int8),
            "turn": rows_of(messages.NpuTurn, npus),
            "turn_heap": rows_of(messages.KeyedEntry, npus),
            "turn_place": zeros(npus),
        }
    return unused(
        s.Flows,
        **more,
        flow=rows_of(messages.Flow, pairs),
        hop=rows_of(messages.FlowHop, hops),
        hop_use=rows_of(messages.HopUse, hops),
        link=rows_of(messages.FlowLink, links, capacity=capacity, idle_capacity=capacity, whole_capacity=capacity),
        link_flow=rows_of(messages.LinkFlow, LINK_FLOWS_PER_HOP * hops),
        link_flow_hop=zeros(LINK_FLOWS_PER_HOP * hops, np.int32),
        finish_heap=rows_of(messages.KeyedEntry, pairs),
        finish_place=zeros(pairs),
        dirty=zeros(links),
        fresh=zeros(pairs),
        reached_flow=zeros(pairs),
        fill_heap=rows_of(messages.KeyedEntry, links),
        fill_place=zeros(links),
        front=zeros(nodes),
        node_share=zeros(nodes),
    )


def _check_sizes(graph: Graph, program: Program, settings: Settings, lps: int) -> None:
    """Raise ImpossibleRunError if words of packets and rows cannot hold a run, or settings contradict each other."""
    if program.in_network:
        raise ImpossibleRunError("the program needs switches that reduce: expected it with their aggregators")
    if program.npus > graph.npus:
        raise ImpossibleRunError(f"the program has {program.npus} NPUs, the fabric {graph.npus}")
    # only selective repeat has a bit for each packet of a window
    window = window_packets(graph, settings) if settings.selective_repeat else 0
    for size, unit, maximum in (
        (graph.npus, "NPUs", packet.MAX_NPUS - 1),
        (graph.nodes, "nodes", s.MAX_NODES - 1),
        (graph.links, "links", s.MAX_LINKS),
        (len(program.group_ptr) - 1, "groups", packet.MAX_GROUPS - 1),
        (program.node_seq.max(initial=0), "collectives of one group", packet.MAX_SEQ - 1),
        (window, "packets of a window with selective repeat", s.SELECTIVE_PACKETS),
        (settings.mtu_bytes + settings.header_bytes, "bytes of a packet", packet.MAX_WIRE_BYTES),
    ):
        if size > maximum:
            raise ImpossibleRunError(f"{size} {unit}: at most {maximum} are possible")
    if settings.overtakes and not (settings.selective_repeat or settings.fidelity.hooks.act):
        raise ImpossibleRunError(
            f"load balancing {settings.load_balancing.name} lets packets overtake; it needs selective repeat"
        )
    if len(settings.balancings) > MAX_RULES:
        raise ImpossibleRunError(
            f"{len(settings.balancings)} rules of load balancing: at most {MAX_RULES} are possible"
        )
    if settings.routing.reorders and not settings.selective_repeat:
        raise ImpossibleRunError(f"routing {settings.routing.name} lets packets overtake; it needs selective repeat")
    if settings.routing.publish and lps > 1:
        raise ImpossibleRunError(f"routing {settings.routing.name} reads all switches; expected one LP, not {lps}")
    if settings.routing.route and graph.routing.dimensions:
        raise ImpossibleRunError(f"routing {settings.routing.name} on a fabric that is routed by dimensions")
    if settings.routing.by_source and graph.source_routes is None:
        raise ImpossibleRunError(f"routing {settings.routing.name} on a fabric without source routes")
    tags = program.node_tag[program.node_kind == KIND_SEND]
    if settings.rendezvous_bytes and tags.max(initial=0) >= MAX_TAG:
        raise ImpossibleRunError(f"tag {tags.max()} of a send: at most {MAX_TAG - 1} is possible with rendezvous")
    most_bps = settings.max_link_rate_bps
    if most_bps and (fastest_bps := graph.link_rate_bps[~is_ample(graph)].max(initial=0)) > most_bps:
        raise ImpossibleRunError(f"a link of {fastest_bps} bit/s: flows support at most {most_bps}")
    if settings.flow_groups is not None and (settings.beyond_mixed() or lps > 1):
        raise ImpossibleRunError(
            f"flows beside packets with {settings.beyond_mixed() or 'several LPs'}; expected one or the other"
        )
    if settings.fidelity.hooks.act and settings.beyond_messages():
        raise ImpossibleRunError(f"{settings.beyond_messages()} with a message-level model; expected packets")


def build_world(
    graph: Graph, program: Program, settings: Settings, owner: ArrayLike | None = None, *, is_rate_limited: bool = False
) -> Simulation:
    """Return a Simulation with worlds of all LPs that run `program` on `graph`, ready for the driver.

    Raises ImpossibleRunError if the packet format cannot hold the run.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: Settings of the run.
        owner: int[nodes], the LP of each node, from 0 without gaps; None = one LP.
        is_rate_limited: Whether lanes are limited to shares whatever the program says.
    """
    layout = Layout(graph, settings, owner)
    layout.control = control_of(settings, rate_limited=is_rate_limited or has_shares(program, settings))
    parts = [layout.part(number) for number in range(layout.lps)]
    return build_lps(layout, program, settings, parts, Outboxes(parts))


def build_lps(
    layout: Layout, program: Program, settings: Settings, parts: Sequence[Part], outboxes: Outboxes
) -> Simulation:
    """Return a Simulation with the worlds of the LPs that this process holds, those of `parts`.

    Args:
        layout: Division of the fabric among LPs (`Layout`).
        program: Work of all NPUs (`Program`), with at least the traces of these LPs' NPUs.
        settings: Settings of the run.
        parts: Parts of the LPs that this process holds.
        outboxes: Outboxes of these LPs and of their neighbours.
    """
    begun = time.perf_counter()
    _check_sizes(layout.graph, program, settings, layout.lps)
    jobs = tables.job_tables(program, layout.graph.npus, settings.queue_pairs)
    shared = tables.trace_tables(program, settings.p2p_share), tables.plan_tables(program), jobs
    built = [_build_lp(layout, program, settings, part, shared, outboxes) for part in parts]
    if settings.fidelity.acknowledged:
        # an idle LP of the whole fabric without faults, only for its routes (pdes/npu/endpoints.py)
        plain = replace(settings, fidelity=Fidelity(), faults=NO_FAULTS)
        whole = Layout(layout.graph, plain)
        whole.control, whole.reuses = layout.control, layout.reuses
        idle = program._replace(trace_of_npu=np.full(program.npus, -1, np.int32))
        back = _build_lp(whole, idle, plain, whole.part(0), shared, Outboxes([whole.part(0)]))
        for lp in built:
            lp.back = back
            lp.world.net.const.back = back.address
    return Simulation(layout, program, settings, built, time.perf_counter() - begun)


def _build_lp(
    layout: Layout,
    program: Program,
    settings: Settings,
    part: Part,
    shared: tuple[s.Trace, s.PlanTables, s.JobTables],
    outboxes: Outboxes,
) -> LogicalProcess:
    """Return one LP, `part`, with its world; shared: traces, plans and jobs, which all LPs of a process share."""
    graph, fabric = layout.graph, layout.fabric
    routes, routing, schedule, epochs, first_repeated = scheduled(graph, fabric, part, settings)
    trace, plans, jobs = shared
    npu, state, row_ptr = tables.npu_rows(program, jobs, part, layout, settings)
    const = constants_of(layout, program, settings, part, routing)
    const.jobs = tables.jobs_per_link(jobs)
    net = with_pit(_net(layout, part, const, npu, outboxes, jobs, settings), settings.faults)
    net.link_class.special |= s.COUNTED * (const.jobs > 0)
    const.epochs = epochs
    const.first_repeated = first_repeated
    net.ctl.cell_ps = const.cell_ps
    domains = [domain for domain in layout.domains if part.local[domain.switch] >= 0 and layout.replays]
    if len(schedule.change):
        net.ctl.fault_ps = schedule.change[0].begin_ps
    batch = {name: zeros(fabric.batch) for name in s.Inbox._fields if name.startswith("batch_")}
    # only switches that cut through need the rates of incoming links
    rx_psb = aligned(fabric.psb) if fabric.cut.any() else zeros(1, np.float64)
    qps = _qps(part, const, net.ctl, layout, settings)
    npus = tables.idle_npus(part, npu, const, layout, settings)
    npus.system.slow_1000ths[: part.npus] = tables.slow_1000ths(jobs, settings, npu.number[: part.npus])
    if settings.one_at_a_time:
        npus.turns.is_free[: part.npus] = graph.node_kind[part.nodes[: part.npus]] == AGGREGATOR_KIND
    world = s.World(
        net=net,
        inbox=s.Inbox(rx_psb=rx_psb, bucket=zeros(BUCKETS + 2), grades=zeros(s.MAX_SET, np.int8), **batch),
        npus=npus,
        qps=qps,
        rows=tables.row_states(state, int(program.slot_ptr[-1]), is_recorded=settings.record_nodes),
        insts=_insts(part, const, net.ctl),
        routes=routes,
        trace=trace,
        plans=plans,
        schedule=schedule,
        messages=_messages(program, part, const, net.ctl, settings),
        flows=_flows(net, len(qps.qp), len(part.nodes), program.schedules, settings),
        nvlink=domain_tables(layout, program, settings, part, domains, net),
    )
    lp = LogicalProcess(part, world, row_ptr, hooks_of(layout, settings))
    lp.domains = domains
    return lp
