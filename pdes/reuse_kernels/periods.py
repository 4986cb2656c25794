"""Periods of a run: how often the traces of a program repeat one, and how a world moves forward by some."""

from typing import NamedTuple

import numpy as np

from nadi.pdes.core import Array, Int64, Program, packet
from nadi.pdes.core.jit import inline, kernel
from nadi.pdes.core.state import INF, LANES, ROW_DONE, ROW_STARTED, later_messages, world_at
from nadi.pdes.nic.counting import count_message
from nadi.pdes.npu.trace import KIND_COLLECTIVE, KIND_RECV, KIND_SEND, count_row

# How often the traces of a program repeat a period.
#
# A period is a stretch of `steps` rows of each NPU's trace, such as a micro-batch. Rows a period apart are equal if
# they do the same: equal work, children and parents as far away, messages to receives that are a period apart, too,
# and collectives whose numbers within their groups differ by the same.

FEWEST = 6  # occurrences without which nothing is worth a search
ALIKE = "kind lane duration_ps bytes peer group schedule collective uneven channel priority deps"


class Period(NamedTuple):
    """What a period is, by NPU and by group."""

    first: Int64  # int64[npus], first row of each NPU's trace that belongs to it
    steps: Int64  # int64[npus], rows of it, 0 = the NPU does nothing
    touched: Int64  # int64[npus], row behind the last one to which something happens in it


class Continuation(NamedTuple):
    """How a program continues from a period."""

    periods: int  # periods that follow, in which every NPU does the same as in this one
    of_slot: Int64  # int64[slots], collectives of a slot's group in a period
    of_group: Int64  # int64[groups]


def continuation(program: Program, period: Period) -> Continuation:
    """Return how often a period of a program that has one job is repeated."""
    of_slot = np.zeros(len(program.slot_group), np.int64)
    of_group = np.zeros(len(program.group_ptr) - 1, np.int64)
    ends = np.zeros(program.npus, np.int64)  # first row of each NPU that differs from the one a period later
    known: dict[tuple[int, int, int], tuple[int, Int64]] = {}
    busy = np.flatnonzero(period.steps > 0)
    for npu in busy.tolist():
        # NPUs that share a trace and are at the same place of it have the same answer: thousands of NPUs have few keys
        key = int(program.trace_of_npu[npu]), int(period.first[npu]), int(period.steps[npu])
        if key not in known:
            known[key] = _alike(program, *key)
        ends[npu], of_slot[program.slot_ptr[npu] : program.slot_ptr[npu + 1]] = known[key]
    for npu in busy.tolist():
        # a send is alike only if its receive is, too, which is in another trace
        ends[npu] = min(ends[npu], _sends_alike(program, period, npu, int(ends[npu])))
    npu_of_slot = np.repeat(np.arange(program.npus), np.diff(program.slot_ptr))
    is_busy = period.steps[npu_of_slot] > 0
    of_group[program.slot_group[is_busy]] = of_slot[is_busy]
    # NPUs of one group must have advanced by as many of its collectives, or they are not in the same place of a period
    behind = np.flatnonzero(of_group[program.slot_group] != of_slot)
    if not len(busy) or is_busy[behind].any() or _take_part(program, period, npu_of_slot, behind):
        return Continuation(0, of_slot, of_group)
    # `touched` is the row up to which this period reaches: rows up to there must be alike in each period that follows
    periods = (ends[busy] - period.touched[busy]) // period.steps[busy] + 1
    return Continuation(max(0, int(periods.min())), of_slot, of_group)


def _take_part(program: Program, period: Period, npu_of_slot: Int64, idle: Int64) -> bool:
    """Return whether collectives of a period have NPUs that do nothing in it, by their slots `idle`, as members.

    A switch that sums for a group is no member of those of its collectives that leave it out.
    """
    for slot in idle.tolist():
        group = int(program.slot_group[slot])
        members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]]
        place = int(np.flatnonzero(members == npu_of_slot[slot])[0])
        for other in np.flatnonzero((program.slot_group == group) & (period.steps[npu_of_slot] > 0)).tolist():
            npu = int(npu_of_slot[other])
            begin = int(program.trace_ptr[program.trace_of_npu[npu]] + period.first[npu])
            rows = slice(begin, begin + int(period.steps[npu]))
            is_own = program.node_group[rows] == other - program.slot_ptr[npu]
            own = program.node_schedule[rows][is_own & (program.node_kind[rows] == KIND_COLLECTIVE)]
            if (program.schedules.members[own] > place).any():
                return True
    return False


def _first(differs: Array, default: int) -> int:
    """Return the index of the first true item, or the default."""
    at = int(differs.argmax()) if len(differs) else 0
    return at if len(differs) and differs[at] else default


def _alike(program: Program, trace: int, first: int, steps: int) -> tuple[int, Int64]:
    """Return the first row from `first` on that differs from the one `steps` later, and collectives by slot."""
    begin, rows = int(program.trace_ptr[trace]), int(program.trace_ptr[trace + 1] - program.trace_ptr[trace])
    slots = int(program.trace_slot_ptr[trace + 1] - program.trace_slot_ptr[trace])
    of_slot = np.zeros(slots, np.int64)
    end = rows - steps
    if end <= first:
        return first, of_slot
    one, other = slice(begin + first, begin + end), slice(begin + first + steps, begin + end + steps)
    # each column shortens the stretch that the next one compares
    for name in ALIKE.split():
        column = getattr(program, f"node_{name}")
        end = first + _first(column[one] != column[other], end - first)
        one, other = slice(begin + first, begin + end), slice(begin + first + steps, begin + end + steps)
    is_collective = program.node_kind[one] == KIND_COLLECTIVE
    # collectives are numbered within their group: in the next period by as many more as the group has in a period
    apart = program.node_seq[other].astype(np.int64) - program.node_seq[one]
    group = program.node_group[one]
    in_period = np.flatnonzero(is_collective[:steps])
    # the first period shows by how many collectives each group advances
    of_slot[group[in_period]] = apart[in_period]
    # np.where: rows of other kinds have no group to look up
    differs = is_collective & (apart != of_slot[np.where(is_collective, group, 0)]) if slots else is_collective
    end = first + _first(differs, end - first)
    return _children_alike(program, begin, first, end, steps), of_slot


def _children_alike(program: Program, begin: int, first: int, end: int, steps: int) -> int:
    """Return the first of the rows [first, end) whose children are not as far away as those of the row `steps` later.

    begin: row of all traces at which the trace begins.
    """
    # CSR of children of rows begin .. begin + end + steps: row i has ptr[i + 1] - ptr[i]
    ptr = program.child_ptr[begin : begin + end + steps + 1]
    counts = np.diff(ptr)
    end = first + _first(counts[first:end] != counts[first + steps : end + steps], end - first)
    # distance of each child from its row: equal distances mean the same shape of the graph
    away = [
        program.child[ptr[low] : ptr[high]] - np.repeat(np.arange(low, high), counts[low:high])
        for low, high in ((first, end), (first + steps, end + steps))
    ]
    at = _first(away[0] != away[1], -1)
    return end if at < 0 else int(np.searchsorted(ptr, ptr[first] + at, side="right")) - 1


def _sends_alike(program: Program, period: Period, npu: int, end: int) -> int:
    """Return the first row of an NPU before `end` whose message is not received a period before the later one."""
    trace, first, steps = int(program.trace_of_npu[npu]), int(period.first[npu]), int(period.steps[npu])
    begin = int(program.trace_ptr[trace])
    sends = first + np.flatnonzero(program.node_kind[begin + first : begin + end] == KIND_SEND)
    # by peer, whose trace has the receives
    for peer in np.unique(program.node_peer[begin + sends]).tolist():
        own = sends[program.node_peer[begin + sends] == peer]
        # the receive of each message, and of the one a period later
        columns = [
            receive_rows(program, npu + peer, -peer, program.node_tag[begin + rows], program.node_seq[begin + rows])
            for rows in (own, own + steps)
        ]
        # both must be in the receiver's trace, a period of its own apart
        differs = (columns[0] < 0) | (columns[1] - columns[0] != period.steps[npu + peer])
        at = _first(differs, -1)
        end = end if at < 0 else min(end, int(own[at]))
    return end


def receive_rows(program: Program, npu: int, peer: int, tags: Array, seqs: Array) -> Int64:
    """Return the rows of an NPU's trace that receive some messages, -1 = none.

    Args:
        program: Work of all NPUs (`Program`).
        npu: Number of the NPU.
        peer: Rank of the sender minus that of the NPU.
        tags: int[m], tags of the messages.
        seqs: int[m], number of each message among the messages with its tag.
    """
    trace = program.trace_of_npu[npu]
    own = slice(int(program.recv_ptr[trace]), int(program.recv_ptr[trace + 1]))
    keys, nodes = program.recv_key[own], program.recv_node[own]
    wanted = packet.receive_key(np.int64(peer), tags.astype(np.int64), seqs.astype(np.int64))
    if not len(keys):
        return np.full(len(wanted), -1)
    # a key behind the last one would be out of range; the comparison below then finds that it is not there
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, nodes[place], -1).astype(np.int64)


def tags_later(program: Program, period: Period, following: Continuation, pairs: Int64, tags: Int64) -> list[Int64]:
    """Return int64[m] for each period that follows: the tags of the messages that are those of a period again.

    Args:
        program: Work of all NPUs (`Program`).
        period: Period that repeats.
        following: The periods that follow it.
        pairs: int64[m], pairs of NPUs (`packet.pair_word`) of the period's messages.
        tags: int64[m], word 3 of the last packet of these messages.
    """
    group = packet.tag_group(tags)
    is_p2p = group == packet.P2P
    # the number of a collective is in the tag (SEQ_SHIFT), so its tag grows by the same in each period
    step = np.where(is_p2p, 0, following.of_group[np.where(is_p2p, 0, group)]) << packet.SEQ_SHIFT
    later = [tags + turn * step for turn in range(1, following.periods + 1)]
    sent = np.flatnonzero(is_p2p)
    # tags of messages between two NPUs follow no rule, so they come from the receiver's trace
    for pair in np.unique(pairs[sent]).tolist():
        which = sent[pairs[sent] == pair]
        src, dst = int(packet.pair_source(pair)), int(packet.pair_destination(pair))
        rows = receive_rows(program, dst, src - dst, packet.tag_lane(tags[which]), packet.tag_seq(tags[which]))
        begin = int(program.trace_ptr[program.trace_of_npu[dst]])
        for turn, row_tags in enumerate(later, 1):
            row = begin + rows + turn * period.steps[dst]
            row_tags[which] = packet.message_tag(
                np.int64(packet.P2P), program.node_seq[row].astype(np.int64), program.node_tag[row].astype(np.int64)
            )
    return later


def marks(program: Program, npu: int) -> Int64:
    """Return the rows of an NPU's trace, ascending, after which it may be in the same place of a period.

    They are its messages or, without any, the rows of the rarest kind that occurs several times.

    Args:
        program: Work of all NPUs (`Program`).
        npu: Number of the NPU.
    """
    begin, end = (int(program.trace_ptr[program.trace_of_npu[npu] + i]) for i in range(2))
    kind = program.node_kind[begin:end]
    # messages are rarer than computations, and recur with the period
    for wanted in (KIND_SEND, KIND_RECV):
        if (found := np.flatnonzero(kind == wanted)).size >= FEWEST:
            return found
    # rows are of one kind here if kind, bytes and duration are equal
    columns = np.stack([kind.astype(np.int64), program.node_bytes[begin:end], program.node_duration_ps[begin:end]])
    _, which, counts = np.unique(columns, axis=1, return_inverse=True, return_counts=True)
    often = np.flatnonzero(counts >= FEWEST)
    return np.flatnonzero(which.reshape(-1) == often[counts[often].argmin()]) if len(often) else np.zeros(0, np.int64)


# Periods that repeat themselves: a logical process does what each adds, and is later by all of them, unsimulated.
#
# At a quiescent moment (pdes/reuse_kernels/quiescent.py), where the rows of all traces repeat themselves
# (pdes/reuse/recurrence.py).


@kernel
def repeat_rows(world_address, periods, period_ps, low, high, flag_ptr, flags, high_now, steps):
    """Let the trace rows that a period started and finished start and finish in each of the periods that follow it.

    world_address: address of the directory of the LP's `World`; periods: number of these periods; period_ps: length of
    a period in ps; low, high: int64[NPUs], the rows of `find_windows` at the begin of the period; flag_ptr: int64[NPUs
    + 1], where the flags of each NPU begin in `flags`; flags: int64[], flags of these rows at the begin of the period;
    high_now: `high` at its end; steps: int64[NPUs], trace rows per period.
    """
    world = world_at(world_address)
    net, rows = world.net, world.rows
    for node in range(low.shape[0]):
        npu = world.npus.npu[node]
        base, step = npu.row_base, steps[node]
        if step == 0:
            continue
        total = net.jobs.total[packet.job_of(net.jobs.who[npu.number])]
        for row in range(low[node], high_now[node]):
            # rows beyond the range at the period's begin had no flags then
            before = np.int64(0)
            if row < high[node]:
                before = np.int64(flags[flag_ptr[node] + row - low[node]])
            # flags that the period has set
            new = np.int64(rows.flag[base + row]) & ~before
            for turn in range(1, periods + 1):
                again = row + turn * step
                if new & ROW_STARTED != 0:
                    rows.start[base + again] = rows.start[base + row] + turn * period_ps
                if new & ROW_DONE != 0:
                    now_ps = rows.finish[base + row] + turn * period_ps
                    rows.finish[base + again] = now_ps
                    count_row(net, npu, total, again, now_ps)


@inline
def move_rows(world, node, low, high, by):
    """Let an NPU be some trace rows further, where the rows repeat themselves.

    Args:
        world: State of the LP (`World`).
        node: Number of the NPU in the LP.
        low: First row that is not done.
        high: End of the rows to which something has happened.
        by: Number of trace rows.
    """
    npu, rows = world.npus.npu[node], world.rows
    base = npu.row_base
    # from the last row on, since both ranges may overlap
    for row in range(high - 1, low - 1, -1):
        rows.state[base + row + by] = rows.state[base + row]
        rows.flag[base + row + by] = rows.flag[base + row]
    for row in range(low, low + by):
        rows.state[base + row] = 0
        rows.flag[base + row] = ROW_STARTED | ROW_DONE
    # rows that wait for a lane name the next, and heads of these lists are already those of later rows
    for lane in range(LANES):
        row = npu.wait_head[lane]
        while row >= 0 and row != npu.wait_tail[lane]:
            rows.state[base + row] += by
            row = np.int64(rows.state[base + row])


@inline
def move_events(npus, msg, node, by, shift_ps):
    """Let all future actions of an NPU be later, and those of trace rows name later rows.

    Args:
        npus: NPUs of the LP with their own events (`Npus`).
        msg: Rows of `LaterMessage` (`qps.msg`).
        node: Number of the NPU in the LP.
        by: Number of trace rows.
        shift_ps: Time in ps by which everything is later.
    """
    npu = npus.npu[node]
    for i in range(npu.heap_size):
        npus.heap[2 * (npu.heap + i)] += shift_ps
    row = npus.system[node].later_head - 1
    while row >= 0:
        msg[row].due += shift_ps << 1
        # at a quiescent moment, all later actions name trace rows
        msg[row].ref += by
        row = msg[row].later


@kernel
def go_forward(world_address, shift_ps, low, high, slots, rows_by, collectives_by):
    """Let an LP be later, at a quiescent moment, where every trace repeats itself, after `quiescence.go_forward`.

    Args:
        world_address: Address of the directory of the LP's `World`.
        shift_ps: Time in ps by which everything is later.
        low: int64[NPUs], first trace rows of `find_windows`.
        high: int64[NPUs], ends of the trace rows of `find_windows`.
        slots: int64[NPUs], number of group slots of each NPU.
        rows_by: int64[NPUs], added trace rows of each NPU.
        collectives_by: int64[slots], added collectives of each slot.
    """
    world = world_at(world_address)
    npus, ctl = world.npus, world.net.ctl
    for node in range(world.net.const.npus):
        by = rows_by[node]
        npu = npus.npu[node]
        move_rows(world, node, low[node], high[node], by)
        move_events(npus, later_messages(world.qps.msg), node, by, shift_ps)
        for slot in range(npu.slot_base, npu.slot_base + slots[node]):
            world.rows.slot_next[slot] += collectives_by[slot]
        npu.rows_left -= by
        ctl.rows_left -= by
    ctl.now_ps += shift_ps
    ctl.begin_ps += shift_ps
    if ctl.retry_ps < INF:
        ctl.retry_ps += shift_ps


@kernel
def count_messages_again(world_address, pairs, tags, now_ps):
    """Count messages that are complete.

    Args:
        world_address: Address of the directory of the LP's `World`.
        pairs: int64[m], pairs of NPUs (`pair_word`).
        tags: int64[m], tags of the messages.
        now_ps: int64[m], times in ps at which they are complete.
    """
    net = world_at(world_address).net
    for i in range(pairs.shape[0]):
        count_message(net, pairs[i], tags[i], now_ps[i])
