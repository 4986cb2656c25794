"""A member's execution of a collective's plan: lanes of steps, each a send that never blocks, then a receive.

Messages that come before the member has started wait as counts per lane. Parameters such as `net`, `insts` and `inst`
are explained in pdes/core/state.py.
"""

import numpy as np

from nadi.pdes.core import packet
from nadi.pdes.core.algorithms import FREE, find, remove
from nadi.pdes.core.jit import call_hook, clear_row, hook, inline, outline, trailing_zeros
from nadi.pdes.core.state import LAUNCHING, PENDING_LANES, REF_INSTANCE, REF_LANE, STARTED, world_at
from nadi.pdes.nic.rendezvous import answer_next, is_used, post_or_ask
from nadi.pdes.nic.transport import post
from nadi.pdes.npu.agenda import DUE, lane_done, lane_place, mark_pending, may_begin, put_off, wake_place


@inline
def instance(net, insts, node, group, seq):
    """Return the instance of collective `seq` of `group` at NPU `node`, created at its start or first message."""
    key = packet.instance_key(node, group, seq)
    at = find(insts.inst_key, key)
    if insts.inst_key[at] != FREE:
        return np.int64(insts.inst_val[at])
    # none left cannot happen here: `short_of` looks before each action
    free = net.ctl.free_instances - 1
    net.ctl.free_instances = free
    net.ctl.check = 1
    inst = np.int64(insts.inst_free[free])
    insts.inst_key[at] = key
    insts.inst_val[at] = inst
    clear_row(insts.inst, inst)
    insts.inst[inst].key = key
    # an earlier collective has left its words there
    for i in range(lane_place(net, inst, 0), lane_place(net, inst + 1, 0)):
        clear_row(insts.lane, i)
        if net.const.collectives_in_flight > 0:
            insts.called[i] = 0
        if net.const.reduces == 1:
            clear_row(insts.taken, i)
    return inst


@inline
def instance_for(net, npus, insts, node, group, seq):
    """Return what `instance` (node, group, seq) returns, and try the instance of the NPU's last message first."""
    npu = npus.npu[node]
    inst = npu.last_instance
    if inst < 0 or insts.inst[inst].key != packet.instance_key(node, group, seq):
        inst = instance(net, insts, node, group, seq)
        npu.last_instance = inst
    return inst


@inline
def begins_after(net, plans, first_lane):
    """Return the delay in ps before a collective with its first_lane (row of `plans.lane_row`); 0 if lanes wait."""
    if plans.lane_row[first_lane].begins == 1:
        return np.int64(0)
    return net.const.endpoint_delay_ps


@inline
def plan_entry(plans, schedule, member):
    """Return the entry of `plans.plan_of` and `list_first` for a `member` of a `schedule`, by their numbers."""
    # members of a relative plan do the same, with peers counted from themselves: one entry is enough
    return plans.plan_of_ptr[schedule] + (0 if plans.relative[schedule] else member)


@inline
def first_lane_of(plans, schedule, slot):
    """Return the row of `plans.lane_row` of an NPU's first lane in a `schedule`; slot: the NPU's slot of the group."""
    # entry -> plan -> first lane: members whose plans are equal share the rows of their lanes
    return np.int64(plans.plan_ptr[plans.plan_of[plan_entry(plans, schedule, plans.slot_member[slot])]])


@inline
def start_collective(world, node, row, start_ps, now_ps):
    """Begin, at now_ps or later, the collective of trace row `row` of NPU `node` of `world`; return its instance.

    start_ps: when the row has started, from which its launch counts; at most now_ps.
    """
    net, npus, insts, trace, plans = world.net, world.npus, world.insts, world.trace, world.plans
    npu = npus.npu[node]
    r = npu.trace_base + row
    slot = npu.slot_base + trace.group[r]
    # it may exist: other members that started earlier have sent messages for it, which wait as counts per lane
    inst = instance(net, insts, node, np.int64(plans.slot_group[slot]), np.int64(trace.seq[r]))
    schedule = np.int64(trace.schedule[r])
    entry = plan_entry(plans, schedule, plans.slot_member[slot])
    plan = np.int64(plans.plan_of[entry])
    collective = insts.inst[inst]
    collective.row = row
    collective.slot = slot
    collective.list_first = plans.list_first[entry]
    collective.first_lane = plans.plan_ptr[plan]
    collective.lanes = plans.plan_ptr[plan + 1] - plans.plan_ptr[plan]
    collective.lanes_left = collective.lanes
    for lane in range(collective.lanes):
        state = insts.lane[lane_place(net, inst, lane)]
        state.first = plans.lane_ptr[collective.first_lane + lane]
        state.steps = plans.lane_ptr[collective.first_lane + lane + 1] - state.first
    collective.priority = trace.priority[r]
    collective.started = STARTED
    # messages that came before the start have marked lanes of which nothing was known; so all are checked once
    collective.pending_lanes = -1
    later = plans.launch_ps[schedule]
    if later > 0 or net.hooks.act == 0:  # at message level: pdes.messages.message_loop.begin_row
        later += begins_after(net, plans, collective.first_lane)
    later -= now_ps - start_ps
    if later > 0:
        collective.started = LAUNCHING
        put_off(net, npus, insts, node, wake_place(net, inst), now_ps + later)
    elif net.const.slows_compute != 0 and (net.hooks.act == 0 or begins_after(net, plans, collective.first_lane) == 0):
        call_hook(net.hooks.running, net.const.address, node, row, 1, now_ps)
    collective.buffer_bytes = trace.bytes[r]
    collective.schedule = schedule
    collective.member = plans.slot_member[slot]
    return inst


@inline
def chunk_bytes(insts, plans, instance, chunk, count):
    """Return the bytes of `count` chunks from number `chunk` on, for a plain lane of row `instance` of `insts`."""
    collective = insts.inst[instance]
    schedule = collective.schedule
    chunks = np.int64(plans.chunks[schedule])
    if plans.relative[schedule]:
        # a relative plan counts chunks from the member's own: in a ring of 4 with 8 chunks, chunk 1 of member 3 is 1 +
        # 3 x 2
        chunk += collective.member * (chunks // np.int64(plans.members[schedule]))
    # also for `region * chunks + place` (Schedules.regions): all regions are divided alike, so sizes depend on the
    # place alone
    chunk %= chunks
    size = collective.buffer_bytes
    # differences of rounded ends, so that the sizes of all chunks add up to the buffer
    return (chunk + count) * size // chunks - chunk * size // chunks


@outline
def part_bytes(world_address, instance, lane_row_number, chunk, count):
    """Return the wire bytes of `count` chunks from `chunk` on of `instance`, for row lane_row_number of `lane_row`."""
    world = world_at(world_address)
    insts, plans = world.insts, world.plans
    collective = insts.inst[instance]
    lane_row = plans.lane_row[lane_row_number]
    schedule = collective.schedule
    member = collective.member
    chunks = lane_row.chunks
    part = lane_row.part
    parts = lane_row.parts
    line = np.int64(plans.members[schedule])
    place = member
    # `at % line` is the place in the member's line; parallel lines share the lane's part, each its own (view_part)
    if lane_row.view_number >= 0:
        view_row = plans.view_row[lane_row.view_number]
        at = view_row.first + member
        line = view_row.members
        place = np.int64(plans.view_at[at]) % line
        part = part * view_row.parts + np.int64(plans.view_part[at])
        parts *= view_row.parts
    if plans.relative[schedule]:
        chunk += place * (chunks // line)
    # Example: 10 bytes in 4 pieces: piece i ends at 10 (i + 1) // 4 = 2, 5, 7, 10, so sizes are 2, 3, 2, 3
    first = part * chunks + chunk % chunks
    pieces = parts * chunks
    size = collective.buffer_bytes
    # differences of rounded ends, so that the sizes of all pieces add up to the buffer
    data = (first + count) * size // pieces - first * size // pieces
    # rounded up per message: 120 bytes of data and 8 of flags per 128-byte line (NCCL's LL128) make 16/15
    per = lane_row.wire_den
    return (data * lane_row.wire_num + per - 1) // per


@inline
def sent_bytes_of(world_address, insts, plans, inst, lane, step):
    """Return the payload that `inst` sends in a `step`, row of `plans.step`, of a `lane`, row of `plans.lane_row`."""
    chunk, count = np.int64(plans.step[step].send_chunk), np.int64(plans.step[step].send_count)
    if plans.lane_row[lane].plain == 1:
        return chunk_bytes(insts, plans, inst, chunk, count)
    return part_bytes(world_address, inst, lane, chunk, count)


@inline
def npu_of_peer(insts, plans, instance, lane, peer):
    """Return the NPU of a step's peer in an instance.

    insts, plans: active collectives, and their plans; instance, lane: rows of `insts.inst` and `plans.lane_row`; peer:
    distance from this member in its view or, in relative plans, in the group; else the number of the member, or its
    index in the list of this member.
    """
    lane_row = plans.lane_row[lane]
    collective = insts.inst[instance]
    if lane_row.view_number >= 0:
        # in its line of a view
        view_row = plans.view_row[lane_row.view_number]
        # lines are stored one after another: the line of the member begins at at - place
        members = view_row.members
        at = np.int64(plans.view_at[view_row.first + collective.member])
        place = at % members
        peer += place
        if peer >= members:
            peer -= members
        peer = np.int64(plans.view_member[view_row.first + at - place + peer])
    elif plans.relative[collective.schedule]:
        members = np.int64(plans.members[collective.schedule])
        peer += collective.member
        if peer >= members:
            peer -= members
    elif collective.list_first >= 0:
        peer = np.int64(plans.peer_list[collective.list_first + peer])
    group = np.int64(plans.slot_group[collective.slot])
    return np.int64(plans.group_member[plans.group_ptr[group] + peer])


@inline
def lane_of_peer(insts, plans, instance, lane):
    """Return the lane of the receiver that `send_lane` of a step names, `lane`, in an instance."""
    first = insts.inst[instance].list_first
    return lane if first < 0 else np.int64(plans.peer_list[first + lane])


@hook
def expect(world_address, node, inst, lane_number, lane, step, now_ps):
    """Prepare a step that receives: answer the first request, call the sender.

    world_address, node: the LP's address and the number of the NPU; inst, lane_number: row of `insts.inst` and number
    of the lane in its plan; lane, step: rows of `plans.lane_row` and `plans.step`; now_ps: current time in ps.
    """
    world = world_at(world_address)
    net, insts, plans = world.net, world.insts, world.plans
    if is_used(net):
        answer_next(world_address, node, inst, lane_number, now_ps)
    peer = np.int64(plans.step[step].recv_peer)
    # a call tells the sender once per peer and lane that somebody waits; more calls would change nothing
    at = lane_place(net, inst, lane_number)
    # unless it is whom the lane has called last
    if net.const.collectives_in_flight > 0 and insts.called[at] != peer + 1:
        insts.called[at] = peer + 1
        dst = npu_of_peer(insts, plans, inst, lane, peer)
        tag = packet.tag_for(insts.inst[inst].key, np.int64(packet.CALL_LANE))
        post(world_address, node, dst, np.int64(packet.CONTROL), tag, net.const.control_bytes, np.int64(-1), now_ps)
    return 0


@inline
def post_step(net, insts, plans, node, inst, lane_number, lane, step, now_ps):
    """Post the send of a step of an instance.

    net, insts, plans, node: links, collectives and plans of the LP, and number of the NPU; inst, lane_number: row of
    `insts.inst` and number of the lane in its plan; lane, step: rows of `plans.lane_row` and `plans.step`; now_ps:
    current time in ps.
    """
    lane_row = plans.lane_row[lane]
    collective = insts.inst[inst]
    step_row = plans.step[step]
    world_address = net.const.address
    group = np.int64(plans.slot_group[collective.slot])
    size = sent_bytes_of(world_address, insts, plans, inst, lane, step)
    dst = npu_of_peer(insts, plans, inst, lane, np.int64(step_row.send_peer))
    tag = packet.tag_for(collective.key, lane_of_peer(insts, plans, inst, np.int64(step_row.send_lane)))
    collective.sends_left += 1
    # bits 0 to 39 instance, bits 40 to 60 1 + lane where the lane waits for its last byte, bit 61 marks an instance
    waiter = REF_INSTANCE | inst
    # the lane goes on when the last byte has left
    if lane_row.blocking == 1:
        waiter |= (lane_number + 1) << REF_LANE
    post_or_ask(net, node, dst, group | lane_row.connection, tag, size, waiter, now_ps)


@inline
def arrives(net, insts, instance, lane):
    """Count a message that has arrived for lane number `lane` of `instance`, a row of `insts.inst`."""
    insts.lane[lane_place(net, instance, lane)].arrived += 1
    mark_pending(insts, instance, lane)


@inline
def send_has_left(net, insts, waiter):
    """Handle the departure of a message's last byte; waiter: word of Message.ref. Return (row done, instance)."""
    # a trace row, or -1 for nobody
    if waiter < REF_INSTANCE:
        return waiter, np.int64(-1)
    inst = waiter & ((1 << REF_LANE) - 1)
    insts.inst[inst].sends_left -= 1
    # 0: the lane does not block, so only the instance counts the departure
    lane = (waiter & (REF_INSTANCE - 1)) >> REF_LANE
    if lane > 0:
        insts.lane[lane_place(net, inst, lane - 1)].left += 1
        mark_pending(insts, inst, lane - 1)
    return np.int64(-1), inst


@inline
def is_due(net, npus, insts, plans, node, lane_place, lane, step_word, now_ps):
    """Return whether a lane's ready step may be posted; else postpone it.

    net, npus, insts, plans, node: parts of the world, and number of the NPU; lane_place, lane: rows of `insts.lane` and
    `plans.lane_row`; step_word: word `pc` of the lane; now_ps: current time in ps.
    """
    lane_row = plans.lane_row[lane]
    latency = lane_row.latency_ps
    # `pc` 0 is before the lane's first send
    if step_word == 0 and lane_row.begins == 1:
        latency += net.const.endpoint_delay_ps
    # called twice for a delayed step: first to put it off, then, when the agenda has set DUE, to let it be posted
    if latency == 0 or insts.lane[lane_place].due == DUE:
        insts.lane[lane_place].due = 0
        return True
    # else it waits already
    if insts.lane[lane_place].due == 0:
        put_off(net, npus, insts, node, lane_place, now_ps + latency)
    return False


@inline
def advance_lane(world, node, inst, lane, now_ps):
    """Do all possible steps of lane number `lane` of `inst`, of NPU `node`, at now_ps; return whether there was one."""
    net, npus, insts, plans = world.net, world.npus, world.insts, world.plans
    collective = insts.inst[inst]
    world_address = net.const.address
    base = lane_place(net, inst, 0)
    state = insts.lane[base + lane]
    row = collective.first_lane + lane
    begin = np.int64(state.first)
    steps = np.int64(state.steps)
    lane_row = plans.lane_row[row]
    plain = lane_row.plain == 1
    pc = np.int64(state.pc)
    progress = False
    # pc is 2 x step, and 1 more once the step's send is posted
    while pc >> 1 < steps:
        step = begin + (pc >> 1)
        step_row = plans.step[step]
        if pc & 1 == 0:
            # before the send: the step of another lane that it depends on, a token for the lane's phase, and the
            # latency from when the step is ready
            needs = np.int64(step_row.dep_lane)
            # a dependence is on steps of the same member; on other members a step depends by its messages alone
            if needs >= 0 and insts.lane[base + needs].pc >> 1 <= step_row.dep_step:
                break
            if not plain and pc == 0:
                requests = np.int64(is_used(net) and insts.asked[base + lane].first > 0)
                if not may_begin(net, npus, insts, plans, node, inst, row, state.arrived + requests):
                    break
            if step_row.send_peer >= 0:
                if not (plain or is_due(net, npus, insts, plans, node, base + lane, row, pc, now_ps)):
                    break
                post_step(net, insts, plans, node, inst, lane, row, step, now_ps)
            pc += 1
        # after the send: a blocking lane goes on once its last byte has left, any lane once the message of the step has
        # come; where messages are asked for or called, a lane that waits says so
        blocks = lane_row.blocking == 1 and step_row.send_peer >= 0
        receives = step_row.recv_peer >= 0
        if (blocks and state.left == 0) or (receives and state.arrived == 0):
            if receives and net.const.handshakes == 1:
                call_hook(net.hooks.expect, world_address, node, inst, lane, row, step, now_ps)
            break
        if receives:
            state.arrived -= 1
        if blocks:
            state.left -= 1
        # the step is done
        pc += 1
        progress = True
        if pc >> 1 == steps:
            collective.lanes_left -= 1
            if not plain:
                lane_done(net, npus, insts, plans, node, inst, row, now_ps)
    state.pc = pc
    return progress


@outline
def advance(world_address, node, inst, now_ps):
    """Do all possible steps of `inst`, of NPU `node`, at now_ps, in rounds over its lanes from the first on."""
    # Only lanes with new events are checked, and lanes that wait for one that has advanced.
    world = world_at(world_address)
    net, insts, plans = world.net, world.insts, world.plans
    collective = insts.inst[inst]
    first = collective.first_lane
    count = collective.lanes
    pending_lanes = collective.pending_lanes
    collective.pending_lanes = 0
    # lane after lane as far as each goes, and again as long as one has moved: others may depend on its steps. All are
    # looked at where they may go on, or have to ask for something, though nothing is known to have happened to them
    unknown = net.const.handshakes == 1 or net.const.tokens > 0 or net.hooks.act != 0
    if count > PENDING_LANES or unknown:
        progress = True
        while progress:
            progress = False
            for lane in range(count):
                if advance_lane(world, node, inst, lane, now_ps):
                    progress = True
            # a single lane has gone as far as it can
            progress = progress and count > 1
        return
    # the same by bit sets: of those that wait for a lane which has gone on, lanes behind it have their turn in this
    # round, the others in the next
    pending_lanes &= (np.int64(1) << count) - 1
    while pending_lanes != 0:
        following = np.int64(0)
        while pending_lanes != 0:
            lane = trailing_zeros(pending_lanes)
            pending_lanes &= pending_lanes - 1
            if advance_lane(world, node, inst, lane, now_ps):
                waiting = plans.lane_row[first + lane].waited_for
                behind = np.int64(-2) << lane
                pending_lanes |= waiting & behind
                following |= waiting & ~behind
        pending_lanes = following


@inline
def close_if_done(net, insts, inst):
    """Free `inst`, a row of `insts.inst`, if it has done and sent everything, and return its trace row; else -1."""
    collective = insts.inst[inst]
    # started = 0 with no lanes left: a later collective, of which only messages have come
    if collective.lanes_left > 0 or collective.sends_left > 0 or collective.started == 0:
        return -1
    free_instance(net, insts, inst)
    return collective.row


@inline
def free_instance(net, insts, inst):
    """Return `inst`, a row of `insts.inst`, to the pool."""
    # removed from the map first: the next collective of the group has another key, and may take this row
    remove(insts.inst_key, insts.inst_val, insts.inst[inst].key)
    insts.inst[inst].key = FREE
    insts.inst_free[net.ctl.free_instances] = inst
    net.ctl.free_instances += 1
