"""What it takes to add a received message to what is there: its bytes go three times through an NPU's memory.

Reductions go on side by side, but what a lane receives stays in order.
"""

import numpy as np

from pdes.core.jit import inline
from pdes.core.packet import tag_group, tag_lane, tag_seq
from pdes.core.state import LONGEST_RUN_PS
from pdes.npu.agenda import lane_place
from pdes.npu.collective import instance

TOUCHES = 3
"""Bytes of memory that adding a byte moves: two reads and a write."""


@inline
def lane_of(npus, trace, plans, node, group, seq, lane):
    """Number among all plans' lanes of a lane of the NPU's part of the seq-th collective of `group`, begun or not."""
    npu = npus.npu[node]
    slot = npu.slot_base
    at = trace.trace_slot_ptr[npu.trace_number]
    while plans.slot_group[slot] != group:
        slot += 1
        at += 1
    row = npu.trace_base + trace.coll_node[trace.coll_ptr[at] + seq]
    schedule = np.int64(trace.schedule[row])
    plan = plans.plan_of_ptr[schedule]
    if not plans.relative[schedule]:
        plan += np.int64(plans.slot_member[slot])
    return np.int64(plans.plan_ptr[plans.plan_of[plan]]) + lane


@inline
def in_lane_at(w, node, tag, size, at, is_data):
    """When a lane takes a message that is in and would be taken at `at`: once it is added, and those before are taken.

    The how-manieth receive of its lane a message is tells whether it is added. is_data: else it only stays in order.
    """
    net, messages, taken = w.net, w.messages, w.insts.taken
    number = tag_lane(tag)
    inst = instance(net, w.insts, node, tag_group(tag), tag_seq(tag))
    taken_row = taken[lane_place(net, inst, number)]
    if is_data:
        lane = lane_of(w.npus, w.trace, w.plans, node, tag_group(tag), tag_seq(tag), number)
        if messages.reduces[messages.receive_ptr[lane] + taken_row.messages] == 1:
            time = np.int64(min(size * messages.memory_psb[0] + 0.5, LONGEST_RUN_PS / TOUCHES))
            at += TOUCHES * (time - time % net.const.resolution_ps)
        taken_row.messages += 1
    at = max(at, taken_row.taken_ps)
    taken_row.taken_ps = at
    return at
