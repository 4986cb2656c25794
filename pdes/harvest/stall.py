"""When events run out and work is left, or a queue pair gives up: who waits for whom."""

import numpy as np

from pdes.build.schedule import ALWAYS_LOST
from pdes.build.simulation import LogicalProcess
from pdes.core import state as s
from pdes.core.inputs import Int64
from pdes.core.link_words import class_of, end_of
from pdes.core.packet import destination, instance_key
from pdes.core.rows.nic import Request
from pdes.npu.trace import KIND_COLLECTIVE, KIND_RECV, KIND_SEND

MOST_PLACES = 8
TOO_LATE_TEXT = (
    f"simulated time goes beyond {s.LONGEST_RUN_PS} ps, 26 days, which is more than the engine can count; "
    "expected faster links, smaller messages or shorter delays"
)


def too_late(lp: LogicalProcess) -> bool:
    """Whether something of the LP was to happen later than the engine can count, and so never does."""
    w = lp.world
    npus = lp.part.npus
    pending = (
        w.net.next_time,
        w.net.tx.busy_ps,
        w.npus.npu.rto_at_ps[:npus],
        w.npus.heap[::2],
    )
    return w.net.ctl.now_ps > s.LONGEST_RUN_PS or any(((t > s.INF) | (t < 0)).any() for t in pending)


def failed_queue_pair(lp: LogicalProcess) -> str:
    """One line about the queue pair that tried too often."""
    w = lp.world
    row = int(w.net.ctl.failed_queue_pair)
    src = int(w.npus.npu[w.qps.qp[row].npu].number)
    return (
        f"npu {src} to npu {destination(w.qps.qp[row].w1)}: packet {w.qps.qp[row].una} unacknowledged after "
        f"{w.qps.qp[row].retries} timeouts (at {w.net.ctl.now_ps} ps); "
        "a queue_limit below one packet or too short an rto does this" + _and_down(lp)
    )


def down_places(lp: LogicalProcess) -> list[str]:
    """What faults have down now, of the links that leave the LP's nodes, as [[faults]] calls them, by number.

    A switch none of whose links is up stands for them. A link to a node of another LP is known by its number alone.
    """
    net, part = lp.world.net, lp.part
    meta = net.tx.meta[: len(part.links)]
    is_down = net.link_class.error[class_of(meta)] == ALWAYS_LOST
    down_before = np.concatenate([[0], np.cumsum(is_down)])
    down, links = np.diff(down_before[part.out_ptr]), np.diff(part.out_ptr)
    whole = [own for own in np.flatnonzero((down == links) & (links > 0)).tolist() if own >= part.npus]
    places = [f"switch {part.nodes[own]}" for own in whole]
    source = np.repeat(np.arange(len(part.nodes)), links)
    target = end_of(meta)
    named = set()
    for row in np.flatnonzero(is_down).tolist():
        a, b, cable = int(source[row]), int(target[row]), int(part.links[row]) >> 1
        if a in whole or b in whole or cable in named:
            continue
        named.add(cable)
        if b >= len(part.nodes):
            places.append(f"link {2 * cable}")
            continue
        between = np.flatnonzero((source == a) & (target == b))
        which = "" if is_down[between].all() else f" cable {between.tolist().index(row)}"
        places.append(f"link {part.nodes[a]}-{part.nodes[b]}{which}")
    return list(dict.fromkeys(places))


def _and_down(lp: LogicalProcess) -> str:
    """What is down, as the rest of a line; empty if nothing is."""
    places = down_places(lp)
    if not places:
        return ""
    more = f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
    return f"; down by faults: {', '.join(places[:MOST_PLACES])}{more}"


def _unfinished(lp: LogicalProcess) -> tuple[Int64, Int64]:
    """Own number of the NPU and trace row of what has started, or could, and is not done."""
    w = lp.world
    flag = w.rows.flag[: lp.row_ptr[-1]]
    begun = np.flatnonzero(((flag & (s.ROW_STARTED | s.ROW_READY)) != 0) & ((flag & s.ROW_DONE) == 0))
    npu = np.searchsorted(lp.row_ptr, begun, side="right") - 1
    return npu, begun - lp.row_ptr[npu]


def _asked(lp: LogicalProcess) -> dict[tuple[int, int], int]:
    """(own number of an NPU, `ref` without the lane) of what is asked for and not answered: the NPU that is asked."""
    w = lp.world
    asked: dict[tuple[int, int], int] = {}
    waiting = w.qps.msg.view(Request.dtype)
    for qp in w.qps.qp[: int(w.net.ctl.queue_pairs)]:
        message = int(qp.pending) - 1
        while message >= 0:
            ref = int(waiting[message].ref)
            if ref >= s.REF_INSTANCE:
                ref &= s.REF_INSTANCE | ((1 << s.REF_LANE) - 1)
            asked.setdefault((int(qp.npu), ref), destination(int(qp.w1)))
            message = int(waiting[message].next_message)
    return asked


def _collective_waits(lp: LogicalProcess, npu: int, row: int, at: int, asked: dict[tuple[int, int], int]) -> str:
    """What a member of a collective waits for; npu: its own number in the LP; asked: as _asked gives it."""
    w, t, plans = lp.world, lp.world.trace, lp.world.plans
    slot = int(w.npus.npu[npu].slot_base + t.group[at])
    group, seq = int(plans.slot_group[slot]), int(t.seq[at])
    members = plans.group_member[plans.group_ptr[group] : plans.group_ptr[group + 1]]
    name = f"npu {lp.part.nodes[npu]} row {row}: collective {seq} of group {group}"
    flag = int(w.rows.flag[lp.row_ptr[npu] + row])
    if not flag & s.ROW_STARTED and (not w.net.const.serial_collectives or w.rows.slot_next[slot] == seq):
        in_flight = int(w.npus.system[npu].in_flight)
        return f"{name} waits for a place: collectives in flight on the npu: {in_flight}"
    if not flag & s.ROW_STARTED:
        return f"{name} waits for its turn: collective {int(w.rows.slot_next[slot])} of the group is not done"
    key = instance_key(npu, group, seq)
    hit = np.flatnonzero(w.insts.inst_key == key)
    if not len(hit):
        return f"{name} waits for nothing (engine defect)"
    inst = int(w.insts.inst_val[hit[0]])
    plan = int(w.insts.inst[inst].plan)
    schedule = int(w.insts.inst[inst].schedule)
    stride = int(w.net.const.lane_stride)
    for lane in range(int(plans.plan_ptr[plan + 1] - plans.plan_ptr[plan])):
        first = int(plans.lane_ptr[plans.plan_ptr[plan] + lane])
        step = first + int(w.insts.lane[inst * stride + lane].pc >> 1)
        begun = (npu, s.REF_INSTANCE | inst) in asked and w.insts.lane[inst * stride + lane].arrived > 0
        if step < plans.lane_ptr[plans.plan_ptr[plan] + lane + 1] and plans.step[step].recv_peer >= 0 and not begun:
            peer = int(plans.step[step].recv_peer)
            view = int(plans.lane_row[plans.plan_ptr[plan] + lane].view_number)
            if view >= 0:
                peer = _in_line(plans, view, int(plans.slot_member[slot]), peer)
            elif plans.relative[schedule]:
                peer = (peer + int(plans.slot_member[slot])) % int(plans.members[schedule])
            return f"{name}, lane {lane} step {step - first}, waits for npu {members[peer]}"
    if (npu, s.REF_INSTANCE | inst) in asked:
        return f"{name} waits for npu {asked[npu, s.REF_INSTANCE | inst]} to receive what it sends"
    return f"{name} waits for its sends to leave"


def _in_line(plans: s.PlanTables, view: int, member: int, offset: int) -> int:
    """The member that stands `offset` places after this one in its line of a view."""
    row = plans.view_row[view]
    first, members = int(row.first), int(row.members)
    at = int(plans.view_at[first + member])
    return int(plans.view_member[first + at - at % members + (at + offset) % members])


def waiting_rows(lp: LogicalProcess) -> list[str]:
    """The rows of an LP that are under way and what each waits for, a line each."""
    w, t = lp.world, lp.world.trace
    lines = []
    asked = _asked(lp)
    for own, row in zip(*(numbers.tolist() for numbers in _unfinished(lp)), strict=True):
        npu = int(lp.part.nodes[own])
        at = int(w.npus.npu[own].trace_base) + row
        kind = t.kind[at]
        if kind == KIND_RECV:
            lines.append(
                f"npu {npu} row {row}: receive {t.seq[at]} of tag {t.tag[at]} waits for npu {npu + t.peer[at]}"
            )
        elif kind == KIND_SEND:
            waits = "waits for its receive to be posted" if (own, row) in asked else "has not left"
            lines.append(f"npu {npu} row {row}: send to npu {npu + t.peer[at]} {waits}")
        elif kind == KIND_COLLECTIVE:
            lines.append(_collective_waits(lp, own, row, at, asked))
        else:
            lines.append(f"npu {npu} row {row} is in its lane (engine defect)")
    if lines:
        lines[0] += _and_down(lp)
    return lines
