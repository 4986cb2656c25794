"""A member walks its plan of a collective: lanes of steps, each a send that never blocks, then a receive.

Messages that come before the member has started wait as counts per lane.
"""

import numpy as np

from pdes.core.hashmap import FREE, find, remove
from pdes.core.jit import call_hook, hook, inline, outline
from pdes.core.packet import CONTROL
from pdes.core.state import (
    CONST_ACT,
    CONST_ADDRESS,
    CONST_COMPUTE_SLOW,
    CONST_CONTROL_BYTES,
    CONST_ENDPOINT,
    CONST_EXPECT,
    CONST_HANDSHAKES,
    CONST_IN_FLIGHT,
    CONST_LANE_STRIDE,
    CONST_REDUCES,
    CONST_RUNNING,
    CTL_CHECK,
    CTL_FREE_INSTS,
    INST_BYTES,
    INST_KEY,
    INST_LANES_LEFT,
    INST_MEMBER,
    INST_PLAN,
    INST_PRIORITY,
    INST_ROW,
    INST_SCHEDULE,
    INST_SENDS_LEFT,
    INST_SLOT,
    INST_STARTED,
    INST_WORDS,
    LANE_BEGINS,
    LANE_BLOCKING,
    LANE_CHUNKS,
    LANE_CONNECTION,
    LANE_LATENCY,
    LANE_PART,
    LANE_PARTS,
    LANE_PLAIN,
    LANE_VIEW,
    LANE_WIRE_DEN,
    LANE_WIRE_NUM,
    LANE_WORDS,
    LAUNCHING,
    NPU_SLOT_BASE,
    NPU_TRACE_BASE,
    NPU_WORDS,
    REF_INSTANCE,
    REF_LANE,
    STARTED,
    TAKEN_WORDS,
    VIEW_FIRST,
    VIEW_PARTS,
    VIEW_SIZE,
    VIEW_WORDS,
)
from pdes.core.world import world_at
from pdes.nic.rendezvous import answer_next, come_to, is_used, post_or_ask
from pdes.nic.transport import post
from pdes.npu.agenda import DUE, lane_place, put_off, wake_place
from pdes.npu.in_flight import CALL_LANE
from pdes.npu.tokens import lane_done, may_begin


@inline
def instance(net, insts, node, group, seq):
    """The NPU's instance of the seq-th collective of `group`; made when it starts or when its first message comes."""
    key = (node << 40) | (group << 20) | seq
    at = find(insts.inst_key, key)
    if insts.inst_key[at] != FREE:
        return np.int64(insts.inst_val[at])
    free = net.ctl[CTL_FREE_INSTS] - 1
    net.ctl[CTL_FREE_INSTS] = free
    net.ctl[CTL_CHECK] = 1
    inst = np.int64(insts.inst_free[free])
    insts.inst_key[at] = key
    insts.inst_val[at] = inst
    for c in range(INST_WORDS):
        insts.inst[inst * INST_WORDS + c] = 0
    insts.inst[inst * INST_WORDS + INST_KEY] = key
    stride = net.const[CONST_LANE_STRIDE]
    for lane in range(stride):
        insts.inst_pc[inst * stride + lane] = 0
        insts.inst_arrived[inst * stride + lane] = 0
    if net.const[CONST_IN_FLIGHT] > 0:
        for lane in range(stride):
            insts.called[inst * stride + lane] = 0
    if net.const[CONST_REDUCES] == 1:
        for i in range(inst * stride * TAKEN_WORDS, (inst + 1) * stride * TAKEN_WORDS):
            insts.taken[i] = 0
    return inst


@inline
def begins_after(net, plans, plan):
    """The endpoint's delay before a collective; 0 where its lanes wait for it themselves."""
    if plans.lane_row[plans.plan_ptr[plan] * LANE_WORDS + LANE_BEGINS] == 1:
        return np.int64(0)
    return net.const[CONST_ENDPOINT]


@inline
def start_collective(w, node, row, now):
    """Begin the collective of a trace row; return its instance. Its first step may be due later (`launch`)."""
    net, npus, insts, trace, plans = w.net, w.npus, w.insts, w.trace, w.plans
    n = node * NPU_WORDS
    r = npus.npu[n + NPU_TRACE_BASE] + row
    slot = npus.npu[n + NPU_SLOT_BASE] + trace.group[r]
    inst = instance(net, insts, node, np.int64(plans.slot_group[slot]), np.int64(trace.seq[r]))
    schedule = np.int64(trace.schedule[r])
    member = np.int64(plans.slot_member[slot])
    plan = plans.plan_of_ptr[schedule]
    if not plans.relative[schedule]:
        plan += member
    plan = np.int64(plans.plan_of[plan])
    i = inst * INST_WORDS
    insts.inst[i + INST_ROW] = row
    insts.inst[i + INST_SLOT] = slot
    insts.inst[i + INST_PLAN] = plan
    insts.inst[i + INST_LANES_LEFT] = plans.plan_ptr[plan + 1] - plans.plan_ptr[plan]
    insts.inst[i + INST_PRIORITY] = trace.priority[r]
    insts.inst[i + INST_STARTED] = STARTED
    later = plans.launch_ps[schedule]
    if later > 0 or net.const[CONST_ACT] == 0:  # messages that go whole: pdes.messages.message_loop.begin_row
        later += begins_after(net, plans, plan)
    if later > 0:
        insts.inst[i + INST_STARTED] = LAUNCHING
        put_off(net, npus, insts, node, wake_place(net, inst), now + later)
    elif net.const[CONST_COMPUTE_SLOW] != 0:
        call_hook(net.const[CONST_RUNNING], net.const[CONST_ADDRESS], node, 1, now, 0, 0, 0, 0)
    insts.inst[i + INST_BYTES] = trace.bytes[r]
    insts.inst[i + INST_SCHEDULE] = schedule
    insts.inst[i + INST_MEMBER] = member
    return inst


@inline
def chunk_bytes(insts, plans, i, chunk, count):
    """Bytes of `count` chunks from `chunk` on, as a plain lane of the instance at row word i names them."""
    schedule = insts.inst[i + INST_SCHEDULE]
    chunks = np.int64(plans.chunks[schedule])
    if plans.relative[schedule]:
        chunk += insts.inst[i + INST_MEMBER] * (chunks // np.int64(plans.members[schedule]))
    chunk %= chunks
    size = insts.inst[i + INST_BYTES]
    return (chunk + count) * size // chunks - chunk * size // chunks


@outline
def part_bytes(address, i, lane, chunk, count):
    """Bytes on the wire of `count` chunks from `chunk` on, as any lane names them; lane: its row word."""
    w = world_at(address)
    insts, plans = w.insts, w.plans
    schedule = insts.inst[i + INST_SCHEDULE]
    member = insts.inst[i + INST_MEMBER]
    chunks = plans.lane_row[lane + LANE_CHUNKS]
    part = plans.lane_row[lane + LANE_PART]
    parts = plans.lane_row[lane + LANE_PARTS]
    line = np.int64(plans.members[schedule])
    place = member
    if plans.lane_row[lane + LANE_VIEW] >= 0:
        view = plans.lane_row[lane + LANE_VIEW] * VIEW_WORDS
        at = plans.view_row[view + VIEW_FIRST] + member
        line = plans.view_row[view + VIEW_SIZE]
        place = np.int64(plans.view_at[at]) % line
        part = part * plans.view_row[view + VIEW_PARTS] + np.int64(plans.view_part[at])
        parts *= plans.view_row[view + VIEW_PARTS]
    if plans.relative[schedule]:
        chunk += place * (chunks // line)
    first = part * chunks + chunk % chunks
    pieces = parts * chunks
    size = insts.inst[i + INST_BYTES]
    data = (first + count) * size // pieces - first * size // pieces
    per = plans.lane_row[lane + LANE_WIRE_DEN]
    return (data * plans.lane_row[lane + LANE_WIRE_NUM] + per - 1) // per


@outline
def peer_in_line(address, view, member, offset):
    """The member that stands `offset` places after this one in its line of a view."""
    plans = world_at(address).plans
    row = view * VIEW_WORDS
    size = plans.view_row[row + VIEW_SIZE]
    first = plans.view_row[row + VIEW_FIRST]
    at = np.int64(plans.view_at[first + member])
    place = at % size
    to = place + offset
    if to >= size:
        to -= size
    return np.int64(plans.view_member[first + at - place + to])


@inline
def npu_of_peer(address, insts, plans, i, lane, peer):
    """The NPU that a step's peer is; i: row word of the instance, lane: that of the lane."""
    if plans.lane_row[lane + LANE_VIEW] >= 0:
        peer = peer_in_line(address, plans.lane_row[lane + LANE_VIEW], insts.inst[i + INST_MEMBER], peer)
    elif plans.relative[insts.inst[i + INST_SCHEDULE]]:
        members = np.int64(plans.members[insts.inst[i + INST_SCHEDULE]])
        peer += insts.inst[i + INST_MEMBER]
        if peer >= members:
            peer -= members
    group = np.int64(plans.slot_group[insts.inst[i + INST_SLOT]])
    return np.int64(plans.group_member[plans.group_ptr[group] + peer])


@outline
def call_sender(address, node, inst, number, lane, step, now):
    """A lane waits for a message: call who sends it, unless that is whom it has called last.

    Arguments are as of `post_step`.
    """
    w = world_at(address)
    net, insts, plans = w.net, w.insts, w.plans
    at = inst * net.const[CONST_LANE_STRIDE] + number
    peer = np.int64(plans.recv_peer[step])
    if insts.called[at] == peer + 1:
        return
    insts.called[at] = peer + 1
    i = inst * INST_WORDS
    dst = npu_of_peer(address, insts, plans, i, lane, peer)
    key = insts.inst[i + INST_KEY]
    tag = ((key >> 20 & 0xFFFFF) << 44) | ((key & 0xFFFFF) << 24) | CALL_LANE
    post(address, node, dst, np.int64(CONTROL), tag, net.const[CONST_CONTROL_BYTES], np.int64(-1), now)


@hook
def expect(address, node, inst, number, lane, step, now, _g):
    """A lane is at a step that receives: answer who asked first, call the sender. Arguments are as of `post_step`."""
    net = world_at(address).net
    if is_used(net):
        answer_next(address, node, inst, number, now)
    if net.const[CONST_IN_FLIGHT] > 0:
        call_sender(address, node, inst, number, lane, step, now)
    return 0


@inline
def post_step(net, insts, plans, node, inst, number, lane, step, now):
    """Post the send of a step; number: of its lane in the plan, lane: the row word of its lane."""
    address = net.const[CONST_ADDRESS]
    i = inst * INST_WORDS
    group = np.int64(plans.slot_group[insts.inst[i + INST_SLOT]])
    chunk = np.int64(plans.send_chunk[step])
    count = np.int64(plans.send_count[step])
    if plans.lane_row[lane + LANE_PLAIN] == 1:
        size = chunk_bytes(insts, plans, i, chunk, count)
    else:
        size = part_bytes(address, i, lane, chunk, count)
    dst = npu_of_peer(address, insts, plans, i, lane, np.int64(plans.send_peer[step]))
    seq = insts.inst[i + INST_KEY] & 0xFFFFF
    tag = (group << 44) | (seq << 24) | np.int64(plans.send_lane[step])
    insts.inst[i + INST_SENDS_LEFT] += 1
    ref = REF_INSTANCE | inst
    if plans.lane_row[lane + LANE_BLOCKING] == 1:
        ref |= (number + 1) << REF_LANE
    post_or_ask(net, node, dst, group | plans.lane_row[lane + LANE_CONNECTION], tag, size, ref, now)


@inline
def send_has_left(net, insts, ref):
    """The last byte of a collective's message has left; the instance. ref: as it was posted."""
    inst = ref & ((1 << REF_LANE) - 1)
    insts.inst[inst * INST_WORDS + INST_SENDS_LEFT] -= 1
    lane = (ref & (REF_INSTANCE - 1)) >> REF_LANE
    if lane > 0:
        insts.inst_left[inst * net.const[CONST_LANE_STRIDE] + lane - 1] += 1
    return inst


@inline
def is_due(net, npus, insts, plans, node, at, lane, pc, now):
    """Whether a step that is ready may be posted; if not yet, it is put off. at: of its lane among all instances'."""
    latency = plans.lane_row[lane + LANE_LATENCY]
    if pc == 0 and plans.lane_row[lane + LANE_BEGINS] == 1:
        latency += net.const[CONST_ENDPOINT]
    if latency == 0 or insts.inst_due[at] == DUE:
        insts.inst_due[at] = 0
        return True
    if insts.inst_due[at] == 0:
        put_off(net, npus, insts, node, at, now + latency)
    return False


@outline
def advance(address, node, inst, now):
    """Do every step of the instance that can be done now."""
    w = world_at(address)
    net, npus, insts, plans = w.net, w.npus, w.insts, w.plans
    i = inst * INST_WORDS
    plan = insts.inst[i + INST_PLAN]
    lanes = insts.inst_pc
    base = inst * net.const[CONST_LANE_STRIDE]
    first = np.int64(plans.plan_ptr[plan])
    count = np.int64(plans.plan_ptr[plan + 1]) - first
    progress = True
    while progress:
        progress = False
        for lane in range(count):
            begin = np.int64(plans.lane_ptr[first + lane])
            steps = np.int64(plans.lane_ptr[first + lane + 1]) - begin
            row = (first + lane) * LANE_WORDS
            plain = plans.lane_row[row + LANE_PLAIN] == 1
            pc = np.int64(lanes[base + lane])
            while pc >> 1 < steps:
                step = begin + (pc >> 1)
                if pc & 1 == 0:
                    needs = np.int64(plans.dep_lane[step])
                    if needs >= 0 and lanes[base + needs] >> 1 <= plans.dep_step[step]:
                        break
                    if not (
                        plain
                        or pc > 0
                        or may_begin(net, npus, insts, plans, node, inst, row, come_to(net, insts, base + lane))
                    ):
                        break
                    if plans.send_peer[step] >= 0:
                        place = lane_place(net, inst, lane)
                        if not (plain or is_due(net, npus, insts, plans, node, place, row, pc, now)):
                            break
                        post_step(net, insts, plans, node, inst, lane, row, step, now)
                    pc += 1
                blocks = plans.lane_row[row + LANE_BLOCKING] == 1 and plans.send_peer[step] >= 0
                if blocks and insts.inst_left[base + lane] == 0:
                    if net.const[CONST_HANDSHAKES] == 1 and plans.recv_peer[step] >= 0:
                        call_hook(net.const[CONST_EXPECT], address, node, inst, lane, row, step, now, 0)
                    break
                if plans.recv_peer[step] >= 0:
                    if insts.inst_arrived[base + lane] == 0:
                        if net.const[CONST_HANDSHAKES] == 1:
                            call_hook(net.const[CONST_EXPECT], address, node, inst, lane, row, step, now, 0)
                        break
                    insts.inst_arrived[base + lane] -= 1
                if blocks:
                    insts.inst_left[base + lane] -= 1
                pc += 1
                progress = True
                if pc >> 1 == steps:
                    insts.inst[i + INST_LANES_LEFT] -= 1
                    if not plain:
                        lane_done(net, npus, insts, plans, node, inst, row, now)
            lanes[base + lane] = pc
        progress = progress and count > 1


@inline
def close_if_done(net, insts, inst):
    """The trace row of an instance that has done and sent all, which is then freed; else -1."""
    i = inst * INST_WORDS
    if insts.inst[i + INST_LANES_LEFT] > 0 or insts.inst[i + INST_SENDS_LEFT] > 0 or insts.inst[i + INST_STARTED] == 0:
        return -1
    remove(insts.inst_key, insts.inst_val, insts.inst[i + INST_KEY])
    insts.inst[i + INST_KEY] = FREE
    insts.inst_free[net.ctl[CTL_FREE_INSTS]] = inst
    net.ctl[CTL_FREE_INSTS] += 1
    return insts.inst[i + INST_ROW]
