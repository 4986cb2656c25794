"""The state of a run at a quiescent moment, without packets and messages, and how it moves forward in time."""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi.pdes.core import Int64, Rows, state as s
from nadi.pdes.core.algorithms import FREE
from nadi.pdes.core.declared import DeclaredArray, rows_by, saved_arrays
from nadi.pdes.core.jit import inline, kernel
from nadi.pdes.core.rows import Rest, Row, RowsOf, Word, WordKind
from nadi.pdes.core.rows.network import CongestionState, PairPaths
from nadi.pdes.nic.control import update_control
from nadi.pdes.npu.endpoints import ENDS, NOTICED, POSTS, RUNS, STARTS
from nadi.pdes.reuse_kernels.domains import INSIDE

# Quiescent moments of a logical process: no packet is under way and no message is open.
#
# What happens next then depends on little: rows of traces that are under way, events of NPUs, collectives that wait
# for their replay, and what lasts, such as ties of a moment ago. Words which name neither the time nor the place in a
# trace describe that: of lists and trace rows those that `write_state` writes, of all else those that rows declare
# (`words_at_rest`). Two moments with equal words have equal futures if the traces repeat themselves
# (pdes/reuse/recurrence.py); pdes/reuse_kernels/periods.py then does what these futures have in common.

APPROXIMATE = 1 << 60  # added to words that may differ a little where a state recurs only nearly: times, counts of ties
NOT_QUIESCENT = -1  # result of `write_state` if a packet, a message or a collective of packets is under way
WORDS_OF_NPU, WORDS_OF_SLOT = 16, 4  # words that `write_state` writes, at most
WORDS_OF_ROW, WORDS_OF_EVENT, WORDS_OF_LATER = 3, 2, 4


@inline
def has_no_packets(world):
    """Return whether no packet of the LP of `world` is under way, at the end of a window, and no collective sends."""
    ctl = world.net.ctl
    return (
        ctl.free_blocks == world.net.block_free.shape[0]
        and ctl.out_soonest_ps >= s.INF
        and ctl.far_soonest_ps >= s.INF
        and ctl.free_instances == world.insts.inst_free.shape[0]
    )


@inline
def is_touched(rows, place, parents):
    """Return whether anything has happened to the trace row at `place` of `rows`, which has `parents` parents."""
    # collectives without parents, such as those of aggregators, are ready from the begin of the run until their turn
    if parents == 0 and rows.flag[place] == s.ROW_READY:
        return False
    return rows.flag[place] != 0 or rows.state[place] != parents


@kernel
def find_windows(world_address, parents, row_ptr, low, high):
    """Find the rows [low, high) of each NPU's trace: all before are done, and nothing has happened to later ones.

    world_address: address of the directory of the LP's `World`; parents: int64[rows of all traces], number of parents;
    row_ptr: int64[NPUs + 1], offsets of the NPUs' rows; low, high: int64[NPUs], written; low holds a row before which
    all are done, such as 0.
    """
    world = s.world_at(world_address)
    rows = world.rows
    for node in range(low.shape[0]):
        base, of_trace = row_ptr[node], world.npus.npu[node].trace_base
        end = row_ptr[node + 1] - base
        row = low[node]
        while row < end and rows.flag[base + row] & s.ROW_DONE != 0:
            row += 1
        last = end
        # from the end, since a trace may have rows that begin out of order
        while last > row and not is_touched(rows, base + last - 1, parents[of_trace + last - 1]):
            last -= 1
        low[node], high[node] = row, last


@inline
def write_rows(world, node, low, high, words, at):
    """Write the state of an NPU's trace rows [low, high), and its lanes; return the place behind it in `words`.

    world: state of the LP; node: number of the NPU in the LP; low, high: rows [low, high) of the NPU's trace, of
    `find_windows`; words: int64[], output; at: index in `words` of the first word to write.
    """
    npu, rows = world.npus.npu[node], world.rows
    base = npu.row_base
    words[at] = high - low
    begin = at + 1
    at = begin
    for row in range(low, high):
        flag = np.int64(rows.flag[base + row])
        words[at] = s.ROW_DONE if flag & s.ROW_DONE != 0 else flag
        words[at + 1] = rows.state[base + row] if flag & (s.ROW_DONE | s.ROW_STARTED | s.ROW_READY) == 0 else 0
        at += 2
    for lane in range(s.LANES):
        words[at] = max(npu.lane[lane] - low, -1)
        at += 1
        row = npu.wait_head[lane]
        while row >= 0:
            words[begin + 2 * (row - low) + 1] = 0  # its state names the next row
            words[at] = row - low
            at += 1
            row = np.int64(rows.state[base + row])
        words[at] = -1
        at += 1
    return at


@inline
def write_events(npus, node, moment_ps, words, at):
    """Write an NPU's own events in their order, without its timer; return the place behind them in `words`.

    npus: NPUs of the LP; node: number of the NPU in the LP; moment_ps: time in ps to which times are relative; words:
    int64[], output; at: index in `words` of the first word to write.
    """
    npu = npus.npu[node]
    timer = npu.ports + s.LANES  # slot of the retransmission timer
    begin = at + 1
    at = begin
    for i in range(npu.heap_size):
        entry = 2 * (npu.heap + i)
        time, slot = npus.heap[entry] - moment_ps + APPROXIMATE, npus.heap[entry + 1]
        # Everything is acknowledged, so the timer will find nothing due. What is sent before it expires has deadlines
        # of its own, to which it is then set: it does not matter when that is.
        if slot == timer:
            continue
        place = at
        # insertion sort: the order of entries in a heap depends on its history
        while place > begin and (words[place - 2] > time or (words[place - 2] == time and words[place - 1] > slot)):
            words[place], words[place + 1] = words[place - 2], words[place - 1]
            place -= 2
        words[place], words[place + 1] = time, slot
        at += 2
    words[begin - 1] = at - begin
    return at


@inline
def write_later(world, node, low, moment_ps, words, at):
    """Write an NPU's later actions; return the place behind them in `words`, or NOT_QUIESCENT, and their number.

    world: state of the LP; node: number of the NPU in the LP; low: first trace row of `find_windows`; moment_ps: time
    in ps to which times are relative; words: int64[], output; at: index in `words` of the first word to write.
    """
    later = s.later_messages(world.qps.msg)
    count = np.int64(0)
    row = world.npus.system[node].later_head - 1
    while row >= 0:
        what = later[row].what
        # other actions handle messages, which are under way then
        if what != ENDS and what != NOTICED and what != POSTS and what != STARTS and what != RUNS:
            return np.int64(NOT_QUIESCENT), np.int64(0)
        words[at] = what
        words[at + 1] = (later[row].due >> 1) - moment_ps + APPROXIMATE
        words[at + 2] = later[row].ref - low
        words[at + 3] = later[row].connection if what == ENDS else 0
        at += WORDS_OF_LATER
        row = later[row].later
        count += 1
    words[at] = -1
    return at + 1, count


@inline
def write_work(npus, node, moment_ps, words, at):
    """Write the work of an NPU's compute lane where collectives slow it down; return the place behind it in `words`.

    npus: NPUs of the LP; node: number of the NPU in the LP; moment_ps: time in ps to which times are relative; words:
    int64[], output; at: index in `words` of the first word to write.
    """
    if npus.npu[node].lane[s.COMPUTE_LANE] < 0:
        return at
    system = npus.system[node]
    words[at] = system.work_ps + APPROXIMATE
    words[at + 1] = system.work_part + APPROXIMATE
    words[at + 2] = system.since_ps - moment_ps + APPROXIMATE
    words[at + 3] = system.due_ps - moment_ps + APPROXIMATE
    return at + 4


@inline
def write_starts(world, node, slots, low, moment_ps, words, at):
    """Write which collectives of an NPU wait for their replay; return the place behind it in `words`, or NOT_QUIESCENT.

    world: state of the LP; node: number of the NPU in the LP; slots: number of the NPU's group slots; low: first trace
    row of `find_windows`; moment_ps: time in ps to which times are relative; words: int64[], output; at: index in
    `words` of the first word to write.
    """
    net, nvlink, npu = world.net, world.nvlink, world.npus.npu[node]
    number = nvlink.domain_of[npu.number]
    if number < 0:
        return at
    is_aggregator = npu.number >= nvlink.domain[number].first_aggregator
    for slot in range(npu.slot_base, npu.slot_base + slots):
        if nvlink.role[slot] != INSIDE:
            continue
        if nvlink.packet_row[slot] != 0:
            return np.int64(NOT_QUIESCENT)
        waits = nvlink.start_row[slot] >= 0
        words[at] = nvlink.start_row[slot] - low if waits else -1
        since_ps = nvlink.start_ps[slot] - moment_ps
        if is_aggregator and nvlink.started[world.plans.slot_group[slot]] == 0:
            since_ps = max(since_ps, 0)  # it sends nothing before a member does, however long it waits
        words[at + 1] = since_ps + APPROXIMATE if waits else 0
        words[at + 2] = nvlink.end_ps[slot] - moment_ps + APPROXIMATE if nvlink.end_ps[slot] >= 0 else s.INF
        if is_aggregator:  # its collectives that go by packets, of which none is left to start
            if nvlink.start_order[slot] > world.rows.slot_next[slot]:
                return np.int64(NOT_QUIESCENT)
            words[at + 3] = 0
        else:
            words[at + 3] = net.ctl.replay_starts - nvlink.start_order[slot] + APPROXIMATE if waits else 0
        at += WORDS_OF_SLOT
    return at


@kernel
def write_state(world_address, moment_ps, slots, low, high, words):
    """Write the state of an LP's lists and trace rows at a quiescent moment; return its words, or NOT_QUIESCENT.

    world_address: address of the directory of the LP's `World`; moment_ps: time in ps of the earliest event of all LPs;
    slots: int64[NPUs], number of group slots; low, high: int64[NPUs], trace rows of `find_windows`; words: int64[],
    output.
    """
    world = s.world_at(world_address)
    net, npus = world.net, world.npus
    if not has_no_packets(world):
        return np.int64(NOT_QUIESCENT)
    messages = np.int64(0)
    at = np.int64(0)
    for node in range(net.const.npus):
        at = write_rows(world, node, low[node], high[node], words, at)
        at = write_events(npus, node, moment_ps, words, at)
        if net.const.slows_compute != 0:
            at = write_work(npus, node, moment_ps, words, at)
        at, count = write_later(world, node, low[node], moment_ps, words, at)
        messages += count
        if at >= 0 and net.hooks.leave_domain != 0:
            at = write_starts(world, node, slots[node], low[node], moment_ps, words, at)
        if at < 0:
            return at
    # a message that is in no list of later actions is under way
    if messages + net.ctl.free_messages != world.qps.msg_free.shape[0]:
        return np.int64(NOT_QUIESCENT)
    return at


@kernel
def forget(world_address, moment_ps):
    """Let congestion control of all queue pairs forget what has no effect any more, at a quiescent moment.

    world_address: address of the directory of the LP's `World`; moment_ps: time in ps of the earliest event of all LPs.
    """
    world = s.world_at(world_address)
    for pair in range(world.net.ctl.queue_pairs):
        update_control(world.net, world.qps, pair, s.CC_REST, moment_ps, 0, 0, 0)


# What the words of a logical process tell at a moment without packets and messages, and how they move forward in time.
#
# Both follow from the declarations of words and arrays (pdes.core.rows, pdes.core.state): what a word counts in such a
# moment (`Rest`), and which words are times and trace rows. Lists of an NPU, whose order matters, are left to kernels:
# `write_state` writes their state, pdes/reuse_kernels/periods.py moves them forward.

_LASTING = (
    RowsOf.NODE,
    RowsOf.LINK,
    RowsOf.NPU,
    RowsOf.PORT,
    RowsOf.SLOT,
    RowsOf.PAIR,
    RowsOf.RECEIVER,
)  # tables whose rows are in use


@functools.cache
def _resting() -> list[tuple[DeclaredArray, list[tuple[str, Word]]]]:
    """Return the arrays with words that count in the state at rest, and these words by name."""
    arrays = [(each, getattr(each.kind, "declared", {}).items()) for each in saved_arrays()]
    found = [(each, [(name, word) for name, word in words if word.rest is not Rest.IGNORED]) for each, words in arrays]
    return [(each, words) for each, words in found if words]


def words_at_rest(
    world: s.World, control: type[Row], paths: type[Row], moment_ps: int, forgotten_ps: int
) -> Int64 | None:
    """Return words that are equal for moments with equal futures; None if something is under way.

    Those that may differ a little where a state recurs only nearly, times and counts of ties, have APPROXIMATE added.

    Args:
        world: State of the LP (`World`).
        control: Rows of queue pairs' congestion control (a CongestionState).
        paths: Rows of queue pairs' paths (a PairPaths).
        moment_ps: Time in ps to which times are relative.
        forgotten_ps: Age in ps from which times at ports no longer matter.
    """
    net = world.net
    pairs, receivers, nodes = (
        _plain(world.qps.qp)[: int(net.ctl.queue_pairs)],
        _plain(world.qps.rxqp),
        _plain(net.counts),
    )
    end_seq = pairs["end_seq"]
    is_open = (pairs["una"] != end_seq) | (pairs["next_seq"] != end_seq) | (pairs["head_message"] >= 0)
    is_missing = (receivers["nak_sent"] & 1 != 0) & (receivers["key"] != FREE)
    # a recent choice by load balancing still affects the next one
    has_rule = net.hooks.balancing != 0 or net.hooks.detour != 0
    chooses = has_rule and (moment_ps - nodes["last_choice_ps"] <= forgotten_ps).any()
    chosen: list[NDArray[np.integer[Any]]] = []
    which, states = controlled(world, control)
    if net.hooks.paths != 0:
        penalty = world.qps.penalty
        # a path is out of use, and waits for its next probe
        chooses |= bool(((penalty < 0) & (penalty != s.PATH_DENIED)).any())
        remembering, chosen = _path_words(world, paths, moment_ps, forgotten_ps)
        which = np.intersect1d(which, remembering)  # others start anew with their next packet
    # the lists of a pacer that still grants credit are not in the state
    grants = net.hooks.credits != 0 and _plain(world.npus.pacer)["is_set"].any()
    if is_open.any() or is_missing.any() or chooses or grants:
        return None
    found: dict[Rest, list[Any]] = {rest: [] for rest in Rest}
    for each, words in _resting():
        rows = _plain(each.of(world))
        for name, word in words:
            values = rows[name].reshape(-1)
            found[word.rest].append(values != word.begins if word.rest is Rest.BEGINS else values)
    begins, same, future, recent = (found[rest] for rest in (Rest.BEGINS, Rest.SAME, Rest.FUTURE, Rest.RECENT))
    if np.concatenate(begins).any():
        return None
    ports, draws = _plain(net.port_ties), _plain(net.mark_draws)
    counted = (nodes, "ties", "last_tie_ps"), (ports, "ties", "last_tie_ps"), (draws, "draws", "last_draw_ps")
    same += [*chosen, world.nvlink.started, *(_recent_counts(*each, moment_ps, forgotten_ps) for each in counted)]
    if net.hooks.congestion_control != 0:
        oldest_ps = max(forgotten_ps, int(net.const.base_rtt_ps))
        same += _control_words(states[which], pairs["una"][which], control, moment_ps, oldest_ps)
        notified_ps = (receivers["nak_sent"] >> 1) * (receivers["key"] != FREE)
        ages_ps = np.minimum(moment_ps - notified_ps, int(net.const.cnp_interval_ps))
        same.append(np.where(notified_ps > 0, ages_ps + APPROXIMATE, 0))
    times = _since(np.concatenate(future), moment_ps, -1), _since(np.concatenate(recent), moment_ps, -forgotten_ps)
    # the bits of floats: among integers they would make all words floats, in which times are the same to 128 ps
    return np.concatenate([each.view(np.int64) if each.dtype.kind == "f" else each for each in (*same, *times)])


def _plain(rows: Any) -> Any:
    """Return rows, or the array of one row, as an array whose columns are found faster than those of a recarray."""
    return np.asarray(rows.base if isinstance(rows, np.record) else rows).view(np.ndarray)


def _since(times_ps: Int64, moment_ps: int, oldest_ps: int) -> Int64:
    """Return times since a moment, INF if never; those older than oldest_ps no longer matter, so they are the same."""
    return np.where(times_ps < s.INF, np.maximum(times_ps - moment_ps, oldest_ps) + APPROXIMATE, s.INF)


def _recent_counts(rows: Rows, count: str, last_ps: str, moment_ps: int, forgotten_ps: int) -> Int64:
    """Return what nodes or ports count and have not forgotten: words `count`, and `last_ps` of the latest, of rows."""
    age_ps = moment_ps - rows[last_ps]
    lasts = age_ps <= forgotten_ps
    return np.concatenate([rows[count] * lasts, age_ps * lasts]) + APPROXIMATE


def _path_words(
    world: s.World, kind: type[Row], moment_ps: int, forgotten_ps: int
) -> tuple[Int64, list[NDArray[np.integer[Any]]]]:
    """Return the queue pairs that have not forgotten what they know of their paths, and that, of rows of a `kind`."""
    pairs = int(world.net.ctl.queue_pairs)
    rows = _plain(world.qps.paths).view(kind.dtype).view(np.ndarray)[:pairs]
    recent = np.flatnonzero(moment_ps - rows["last_ps"] <= forgotten_ps)
    found: list[NDArray[np.integer[Any]]] = [recent]
    for name, word in kind.declared.items():
        is_time = word.kind is WordKind.TIME and rows[name][recent] != 0
        found.append(np.where(is_time, rows[name][recent] - moment_ps + APPROXIMATE, rows[name][recent]))
    # arrays that a run does not use have one item
    used = [each for each in (world.qps.penalty, world.qps.path_good) if len(each) > 1]
    return recent, found + [each.reshape(len(world.qps.paths), -1)[recent].reshape(-1) for each in used]


def controlled(world: s.World, control: type[Row]) -> tuple[Int64, Any]:
    """Return the queue pairs that congestion control handles, and all of its rows as rows of the algorithm."""
    pairs = _plain(world.qps.qp)[: int(world.net.ctl.queue_pairs)]
    return np.flatnonzero(pairs["controlled"]), _plain(world.qps.cc).view(control.dtype).view(np.ndarray)


def _control_words(rows: Any, una: Int64, control: type[Row], moment_ps: int, oldest_ps: int) -> list[Int64]:
    """Return what congestion control knows of queue pairs, its `rows`, whose first packets not acknowledged are `una`.

    Times that the algorithm declares as `recent` matter no longer if they are older than oldest_ps.
    """
    found = []
    for name, word in control.declared.items():
        if name in CongestionState.declared and word.kind is not WordKind.FLOAT and name != "window_packets":
            continue  # words of messages, which are over; `next_send_ps` has its own `rest`
        if word.kind is WordKind.TELEMETRY:
            continue  # pdes/reuse/measured_links.py compares it with what its links have sent since
        values = np.ascontiguousarray(rows[name]).view(np.int64)
        if word.kind is WordKind.TIME:
            # other times of the past matter as they are: an algorithm makes up for its timers later
            earliest = {Rest.FUTURE: -1, Rest.RECENT: -oldest_ps - 1}.get(word.rest, -s.INF)
            values = np.where(_are_times(values, word), np.maximum(values - moment_ps, earliest), values)
        elif word.kind is WordKind.SEQUENCE:
            values = np.where(values >= 0, values - una, values)
        found.append(values.reshape(-1))
    return found


def _are_times(values: Int64, word: Word) -> NDArray[np.bool_]:
    """Return which values of a word of congestion control are times: far before or after any run it names none.

    Nor does 0 where only the future matters.
    """
    return np.asarray((np.abs(values) < s.INF >> 1) & ((values != 0) | (word.rest is not Rest.FUTURE)))


def go_forward(
    world: s.World, control: type[Row], paths: type[Row], shift_ps: int, added_rows: Int64, slots: Int64
) -> None:
    """Let all times of an LP be later at a quiescent moment, and trace rows that its words name further.

    Args:
        world: State of the LP (`World`), which the function changes.
        control: Rows of queue pairs' congestion control (a CongestionState).
        paths: Rows of queue pairs' paths (a PairPaths).
        shift_ps: Time in ps by which everything is later.
        added_rows: int64[NPUs], added trace rows of each NPU.
        slots: int64[NPUs], number of group slots of each NPU.
    """
    by_slot = np.zeros(len(world.rows.slot_next), np.int64)
    first = world.npus.npu.slot_base[: len(slots)]
    at = np.repeat(first - np.cumsum(slots) + slots, slots) + np.arange(int(slots.sum()))
    by_slot[at] = np.repeat(added_rows, slots)
    further: dict[RowsOf | None, Int64] = {RowsOf.NPU: added_rows, RowsOf.SLOT: by_slot}
    for each in (each for table in _LASTING for each in rows_by(table)):
        if each.is_shared(world):
            continue
        array, added = each.of(world), further.get(each.table)
        if not issubclass(each.kind, Row):
            _go_forward(array, each.word, 0, shift_ps, added)
            continue
        for name, word in each.kind.declared.items():
            if not word.is_built:
                _go_forward(array[name], word.kind, word.plus, shift_ps, added)
    if world.net.hooks.paths != 0:
        of_rule = _plain(world.qps.paths).view(paths.dtype).view(np.ndarray)
        for name, word in paths.declared.items():
            if name not in PairPaths.declared and word.kind is WordKind.TIME:
                of_rule[name][of_rule[name] > 0] += shift_ps  # 0 means none
    if world.net.hooks.congestion_control == 0:
        return
    which, states = controlled(world, control)
    for name, word in control.declared.items():
        if name not in CongestionState.declared and word.kind is WordKind.TIME:
            values = states[name]
            values[which] += shift_ps * _are_times(values[which], word)
    receivers = world.qps.rxqp
    # bit 0 is another field, and 0 in the others says that there was no notification
    receivers.nak_sent[(receivers.nak_sent >> 1 > 0) & (receivers.key != FREE)] += shift_ps << 1


def _go_forward(values: Any, kind: WordKind | None, plus: int, shift_ps: int, added: Int64 | None) -> None:
    """Let values of one word be later, or name later trace rows, in place; negative ones and INF name nothing."""
    if kind is WordKind.TIME:
        values[(values >= 0) & (values < s.INF)] += shift_ps
    # arrays that a run does not use have one item
    elif kind is WordKind.ROW and added is not None and len(values) == len(added):
        by = added.reshape(-1, *[1] * (values.ndim - 1)).astype(values.dtype)
        np.add(values, by, out=values, where=values >= plus)
