"""Periods of a run: how often the traces of a program repeat one, and how a world moves forward by some."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


class Together(NamedTuple):
    """The processes of a run, which find together how often a period is repeated."""

    number: int  # of this process
    size: int  # number of processes
    of_npu: Int64  # int64[npus], process of each NPU
    exchange: Callable[[Sequence[Any]], list[Any]]  # what each process has for this one, from what this has for each
    of_all: Callable[[Any], list[Any]]  # value of each process

    @property
    def is_own(self) -> Array:
        """Whether each NPU is in this process."""
        return self.of_npu == self.number


def continuation(program: Program, period: Period, together: Together | None = None) -> Continuation:
    """Return how often a period of a program that has one job is repeated.

    Args:
        program: Work of all NPUs (`Program`), or at least of those of this process.
        period: Period of the NPUs of this process.
        together: Processes of the run, which all call this; None = this is the only one.
    """
    together = together or Together(0, 1, np.zeros(program.npus, np.int64), list, lambda value: [value])
    of_slot, members = np.zeros((2, len(program.slot_group)), np.int64)
    ends = np.zeros(program.npus, np.int64)  # first row of each NPU that differs from the one a period later
    known: dict[tuple[int, int, int], tuple[int, Int64, Int64]] = {}
    busy = np.flatnonzero(period.steps > 0)
    for npu in busy.tolist():
        # NPUs that share a trace and are at the same place of it have the same answer: thousands of NPUs have few keys
        key = int(program.trace_of_npu[npu]), int(period.first[npu]), int(period.steps[npu])
        if key not in known:
            known[key] = _alike(program, *key)
        slots = slice(int(program.slot_ptr[npu]), int(program.slot_ptr[npu + 1]))
        ends[npu], of_slot[slots], members[slots] = known[key]
    claims = [np.zeros((0, len(_CLAIM)), np.int64)]
    for npu in busy.tolist():
        # a send is alike only if its receive is, too, which is in another trace
        ends[npu] = min(ends[npu], _sends_alike(program, period, npu, int(ends[npu]), together.is_own))
        claims.append(_claims(program, period, npu, int(ends[npu]), together.is_own))
    # `touched` is the row up to which this period reaches: rows up to there must be alike in each period that follows
    periods = int(((ends[busy] - period.touched[busy]) // period.steps[busy] + 1).min(initial=INF))
    claimed = np.concatenate(claims)
    process = together.of_npu[claimed[:, 0]]
    coming = together.exchange([claimed[process == other] for other in range(together.size)])
    periods = min(periods, _refuted(program, period, np.concatenate(coming)))
    npu_of_slot = np.repeat(np.arange(program.npus), np.diff(program.slot_ptr))
    is_busy = period.steps[npu_of_slot] > 0
    groups = len(program.group_ptr) - 1
    least, most = np.full(groups, INF), np.zeros((2, groups), np.int64)
    np.minimum.at(least, program.slot_group[is_busy], of_slot[is_busy])
    for value, of_each in zip(most, (of_slot, members), strict=True):
        np.maximum.at(value, program.slot_group[is_busy], of_each[is_busy])
    all_periods, all_least, all_most = zip(*together.of_all((periods, least, most)), strict=True)
    least, (of_group, used) = np.min(all_least, axis=0), np.max(all_most, axis=0)
    # NPUs of one group must have advanced by as many of its collectives, or they are not in the same place of a period.
    # NPUs that do nothing must not be members of these collectives; a switch that sums for a group is no member of
    # those that leave it out.
    is_idle = ~is_busy & together.is_own[npu_of_slot]
    takes_part = (program.slot_member < used[program.slot_group])[is_idle].any()
    periods = 0 if (least < of_group).any() or takes_part or min(all_periods) == INF else max(0, min(all_periods))
    return Continuation(min(together.of_all(periods)), of_slot, of_group)


_CLAIM = ["npu", "key", "later", "periods"]  # columns of what a process claims of the receives of another


def _claims(program: Program, period: Period, npu: int, end: int, is_own: Array) -> Int64:
    """Return a row of _CLAIM for each send of an NPU's rows from its period to `end` to NPUs of other processes.

    It claims that NPU `npu` has a receive with this key and, a period of its own later, the one with key `later`;
    without them there are only so many periods.
    """
    trace, first, steps = int(program.trace_of_npu[npu]), int(period.first[npu]), int(period.steps[npu])
    begin = int(program.trace_ptr[trace])
    sends = first + np.flatnonzero(program.node_kind[begin + first : begin + end] == KIND_SEND)
    peer = program.node_peer[begin + sends].astype(np.int64)
    is_far = ~is_own[npu + peer]
    sends, peer = sends[is_far], peer[is_far]
    keys = [
        packet.receive_key(-peer, program.node_tag[row].astype(np.int64), program.node_seq[row].astype(np.int64))
        for row in (begin + sends, begin + sends + steps)
    ]
    return np.stack([npu + peer, *keys, (sends - period.touched[npu]) // steps + 1], axis=1)


def _refuted(program: Program, period: Period, claims: Int64) -> int:
    """Return how many periods there are by the claims of other processes, int64[n, _CLAIM], INF = all hold."""
    fewest = INF
    for npu in np.unique(claims[:, 0]).tolist():
        own = claims[claims[:, 0] == npu]
        row, later = (_rows_of_keys(program, npu, np.ascontiguousarray(own[:, column])) for column in (1, 2))
        fails = (row < 0) | (later < 0) | (later - row != period.steps[npu])
        fewest = min(fewest, int(own[fails, 3].min(initial=INF)))
    return fewest


def _first(differs: Array, default: int) -> int:
    """Return the index of the first true item, or the default."""
    at = int(differs.argmax()) if len(differs) else 0
    return at if len(differs) and differs[at] else default


def _alike(program: Program, trace: int, first: int, steps: int) -> tuple[int, Int64, Int64]:
    """Return the first row from `first` on that differs from the one `steps` later, and two numbers for each slot.

    They are the collectives of a period, and their members.
    """
    begin, rows = int(program.trace_ptr[trace]), int(program.trace_ptr[trace + 1] - program.trace_ptr[trace])
    slots = int(program.trace_slot_ptr[trace + 1] - program.trace_slot_ptr[trace])
    of_slot, members = np.zeros((2, slots), np.int64)
    end = rows - steps
    if end <= first:
        return first, of_slot, members
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
    schedule = program.node_schedule[one][in_period]
    of_row = np.append(program.schedules.members, 0)[schedule]  # no schedule is -1
    np.maximum.at(members, group[in_period], of_row)
    # np.where: rows of other kinds have no group to look up
    differs = is_collective & (apart != of_slot[np.where(is_collective, group, 0)]) if slots else is_collective
    end = first + _first(differs, end - first)
    return _children_alike(program, begin, first, end, steps), of_slot, members


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


def _sends_alike(program: Program, period: Period, npu: int, end: int, is_own: Array) -> int:
    """Return the first row of an NPU before `end` whose message is not received a period before the later one.

    is_own: bool[npus], whether an NPU is in this process; messages to others are left out.
    """
    trace, first, steps = int(program.trace_of_npu[npu]), int(period.first[npu]), int(period.steps[npu])
    begin = int(program.trace_ptr[trace])
    sends = first + np.flatnonzero(program.node_kind[begin + first : begin + end] == KIND_SEND)
    # by peer, whose trace has the receives
    peers = np.unique(program.node_peer[begin + sends])
    for peer in peers[is_own[npu + peers]].tolist():
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
    return _rows_of_keys(program, npu, packet.receive_key(np.int64(peer), tags.astype(np.int64), seqs.astype(np.int64)))


def _rows_of_keys(program: Program, npu: int, wanted: Int64) -> Int64:
    """Return the rows of an NPU's trace that receive messages with these keys (`packet.receive_key`), -1 = none."""
    trace = program.trace_of_npu[npu]
    own = slice(int(program.recv_ptr[trace]), int(program.recv_ptr[trace + 1]))
    keys, nodes = program.recv_key[own], program.recv_node[own]
    if not len(keys):
        return np.full(len(wanted), -1)
    # a key behind the last one would be out of range; the comparison below then finds that it is not there
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, nodes[place], -1).astype(np.int64)


def _send_rows(program: Program, npu: int, peer: int, tags: Int64, seqs: Int64) -> Int64:
    """Return the rows of an NPU's trace that send messages, which exist, to the rank `peer` more than its own."""
    own = slice(*program.trace_ptr[program.trace_of_npu[npu] :][:2].tolist())
    rows = np.flatnonzero((program.node_kind[own] == KIND_SEND) & (program.node_peer[own] == peer))
    key = packet.receive_key(
        np.int64(0), program.node_tag[own][rows].astype(np.int64), program.node_seq[own][rows].astype(np.int64)
    )
    order = np.argsort(key)
    return rows[order[np.searchsorted(key[order], packet.receive_key(np.int64(0), tags, seqs))]]


def tags_later(
    program: Program, period: Period, following: Continuation, pairs: Int64, tags: Int64, is_own: Array
) -> list[Int64]:
    """Return int64[m] for each period that follows: the tags of the messages that are those of a period again.

    Args:
        program: Work of all NPUs (`Program`).
        period: Period that repeats.
        following: The periods that follow it.
        pairs: int64[m], pairs of NPUs (`packet.pair_word`) of the period's messages.
        tags: int64[m], word 3 of the last packet of these messages.
        is_own: bool[npus], whether an NPU is in this process, as the sender or the receiver of each message is.
    """
    group = packet.tag_group(tags)
    is_p2p = group == packet.P2P
    # the number of a collective is in the tag (SEQ_SHIFT), so its tag grows by the same in each period
    step = np.where(is_p2p, 0, following.of_group[np.where(is_p2p, 0, group)]) << packet.SEQ_SHIFT
    later = [tags + turn * step for turn in range(1, following.periods + 1)]
    sent = np.flatnonzero(is_p2p)
    # tags of messages between two NPUs follow no rule, so they come from the receiver's trace, or else the sender's
    for pair in np.unique(pairs[sent]).tolist():
        which = sent[pairs[sent] == pair]
        src, dst = int(packet.pair_source(pair)), int(packet.pair_destination(pair))
        npu, other, find = (dst, src, receive_rows) if is_own[dst] else (src, dst, _send_rows)
        rows = find(program, npu, other - npu, packet.tag_lane(tags[which]), packet.tag_seq(tags[which]))
        begin = int(program.trace_ptr[program.trace_of_npu[npu]])
        for turn, row_tags in enumerate(later, 1):
            row = begin + rows + turn * period.steps[npu]
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
