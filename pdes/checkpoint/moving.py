"""Moving the state of logical processes into others: worlds that divide the fabric in another way.

`move` fills a world that was just built with what it has in common with each old one. Local numbers are translated
(`pdes.checkpoint.whole_fabric`); what is not by node, link, NPU or queue pair, such as counters, moves to the LP that
owns the first node of the old one.
"""

from typing import Any

import numpy as np

from nadi.pdes.checkpoint.whole_fabric import Shared, looked_up, walked
from nadi.pdes.construction.packets import put_in_queues, queues_of, words_of_packets
from nadi.pdes.core import Int64, Rows, state as s
from nadi.pdes.core.algorithms import FREE, rehash
from nadi.pdes.core.declared import WATCHED, DeclaredArray, arrays_by, rows_by, widen
from nadi.pdes.core.packet import class_of, end_of, instance_node, key_owner, link_meta, number_of
from nadi.pdes.core.rows import Row, RowsOf, WordKind
from nadi.pdes.core.rows.network import KeptMessage, LaterMessage, Message, PendingRequest, QueuedRequest
from nadi.pdes.network.port_queues import TIME_BITS
from nadi.pdes.npu.endpoints import ENDS, NOTIFIES

# kinds of words that `renumbered` translates, and the field of Shared with their new numbers
NUMBERED = {
    WordKind.LINK: "link",
    WordKind.NODE: "node",
    WordKind.QUEUE_PAIR: "pair",
    WordKind.MESSAGE: "message",
}
GATE_QUEUES = s.TRIMMED + 1
NODE_SHIFT = 40  # of the NPU in an instance's key
LANE_MASK = (1 << s.REF_LANE) - 1


def ranges(begins: Int64, lengths: Int64) -> Int64:
    """Return the concatenated ranges of `lengths` numbers from each of `begins` on."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begins - ends + lengths, lengths)


def by_parts(old: Int64, new: Int64, parts: int) -> tuple[Int64, Int64]:
    """Return old and new numbers of the `parts` items of each thing, numbered `old` and `new`, in order."""
    each = np.arange(parts)
    return (old[:, None] * parts + each).reshape(-1), (new[:, None] * parts + each).reshape(-1)


def take_rows(lp: Any, counter: str, need: int, count: int) -> Int64:
    """Take `count` rows of a pool of `lp`, which grows if need be; return their numbers.

    need: NEED_* of the pool; counter: field of `Scalars` that counts its free rows.
    """
    lp.make_room(counter, need, count)
    stack = lp.world.qps.msg_free if need == s.NEED_MSGS else lp.world.insts.inst_free
    free = int(lp.world.net.ctl[counter])
    lp.world.net.ctl[counter] = free - count
    return stack[free - count : free][::-1].astype(np.int64)


def waiter(shared: Shared, words: Any) -> Int64:
    """Return `words` that name waiters (Message.ref) with the new numbers, from `shared`, of active collectives."""
    words = np.asarray(words, np.int64)
    is_instance = words >= s.REF_INSTANCE
    instance = looked_up(shared.collective, np.where(is_instance, words & LANE_MASK, -1))
    return np.where(is_instance, (words & ~np.int64(LANE_MASK)) | instance, words)


def renumbered(shared: Shared, rows: Rows) -> Rows:
    """Return a copy of rows of an old LP whose words name things of the new one, as their declarations say.

    Words of PLACE, RECORD and PACKED_LOCAL depend on more than the row, and the caller sets them.

    Args:
        shared: Common parts of the two LPs; `message` and `collective` must be known if the rows name such.
        rows: Rows of one kind, taken from an array of the old LP.
    """
    moved = rows.copy()
    for name, word in Row.by_dtype[rows.dtype].declared.items():
        if word.kind in NUMBERED:
            moved[name] = looked_up(getattr(shared, NUMBERED[word.kind]), rows[name], plus=word.plus)
        elif word.kind in _BY_KIND:
            moved[name] = _BY_KIND[word.kind](shared, rows[name])
        elif word.kind is WordKind.PACKET_WORD:
            moved[name] = shared.pairs.renumbered(rows["w1"], rows[name])
        elif word.kind in {WordKind.RECEIVER, WordKind.INSTANCE}:
            moved[name] = -1  # it only saves a search
    return moved


def move_items(shared: Shared, array: DeclaredArray, at: Int64, to: Int64) -> None:
    """Move items `at` of an array to items `to` of the new LP's, unless the run does not use it.

    What the building of a world has set stays, and words of PACKED_LOCAL, which functions set by name.
    """
    old, new = array.of(shared.world), array.of(shared.lp.world)
    # arrays that a run does not use have one item
    if not len(to) or array.is_shared(shared.lp.world) or len(new) <= int(to.max()) or len(old) <= int(at.max()):
        return
    if not old.dtype.names:
        new[to] = old[at]
        return
    moved = renumbered(shared, old[at])
    for name, word in array.kind.declared.items():
        if word.is_built or word.kind is WordKind.PACKED_LOCAL:
            moved[name] = new[name][to]
    new[to] = moved


def move_rows(shared: Shared, table: RowsOf, at: Int64, to: Int64) -> None:
    """Move rows `at` of all arrays that have rows of a table to rows `to` of the new LP."""
    const = shared.lp.world.net.const
    for each in rows_by(table):
        items = int(const[each.each]) if isinstance(each.each, str) else each.each
        move_items(shared, each, *by_parts(at, to, items))


def move_nodes_and_links(shared: Shared) -> None:
    """Move times, counts and buffers of the nodes of `shared`, and what its links have sent."""
    old, new = shared.world, shared.lp.world
    nodes, to_nodes = shared.nodes
    move_rows(shared, RowsOf.NODE, nodes, to_nodes)
    # `next_time` has NPUs first, and switches only where these share buffers
    if new.net.hooks.shared_switches:
        new.net.next_time[to_nodes] = old.net.next_time[nodes]
    links, to_links = shared.links
    move_rows(shared, RowsOf.LINK, links, to_links)
    meta = new.net.tx.meta[to_links]
    new.net.tx.meta[to_links] = link_meta(end_of(meta), number_of(meta), class_of(old.net.tx.meta[links]))
    move_watched(shared, links, to_links)


def move_watched(shared: Shared, links: Int64, to_links: Int64) -> None:
    """Move `depth` and `marks`, the arrays of WATCHED, of `shared` from ports `links` to `to_links`, at one width."""
    old, new = shared.world.net, shared.lp.world.net
    columns = int(new.const.depths)
    if columns == 0:
        return
    # both must have columns of one width, which is a power of two times the first
    width_ps = max(int(old.ctl.depth_ps), int(new.ctl.depth_ps))
    for name, join in WATCHED.items():
        into, saved = getattr(new, name), getattr(old, name)
        if len(into) < columns:
            continue
        saved = saved.copy()
        for array, of_ps in ((into, int(new.ctl.depth_ps)), (saved, int(old.ctl.depth_ps))):
            widen(array[: len(array) // columns * columns].reshape(-1, columns), width_ps // of_ps, join)
        at, to = by_parts(links, to_links, columns)
        into[to] = saved[at]
    new.ctl.depth_ps = width_ps


def move_npus(shared: Shared) -> None:
    """Move the NPUs of `shared`, their ports, their own events and their trace rows, without packets that wait."""
    old, new = shared.world.npus, shared.lp.world.npus
    npus, to = shared.npus
    move_rows(shared, RowsOf.NPU, npus, to)
    move_rows(shared, RowsOf.PORT, *ports_of(shared))
    saved: Rows = old.npu[npus]
    into: Rows = new.npu[to]
    pairs = 2 * saved.heap_size
    new.heap[ranges(2 * into.heap, pairs)] = old.heap[ranges(2 * saved.heap, pairs)]
    lengths = np.diff(shared.lp.row_ptr)[to]
    move_rows(shared, RowsOf.ROW, ranges(saved.row_base, lengths), ranges(into.row_base, lengths))
    move_rows(shared, RowsOf.SLOT, *slots_of(shared))


def slots_of(shared: Shared) -> tuple[Int64, Int64]:
    """Return the old and the new numbers of the group slots of the NPUs that both LPs of `shared` have."""
    npus, to = shared.npus
    has_rows = np.diff(shared.lp.row_ptr)[to] > 0  # so that the program has the NPU
    npus, to = npus[has_rows], to[has_rows]
    lengths = np.diff(shared.slot_ptr)[shared.lp.part.nodes[to]]
    old, new = shared.world.npus.npu.slot_base[npus], shared.lp.world.npus.npu.slot_base[to]
    return ranges(old, lengths), ranges(new, lengths)


def ports_of(shared: Shared) -> tuple[Int64, Int64]:
    """Return the old and the new rows of the ports of the NPUs that both LPs of `shared` have."""
    links, to = shared.links
    is_port = links < shared.part.out_ptr[shared.part.npus]
    return links[is_port], to[is_port]


def lane_places(shared: Shared, places: Any) -> Int64:
    """Return the new `places` of lanes of collectives of `shared`, which agendas list; the last is the collective."""
    old, new = stride_of(shared.world, "lane"), int(shared.lp.world.net.const.lane_stride)
    places = np.asarray(places, np.int64)
    lane = places % old
    lane = np.where(lane == old - 1, new - 1, lane)
    return np.where(places < 0, places, looked_up(shared.collective, places // old) * new + lane)


def phase_places(shared: Shared, places: Any) -> Int64:
    """Return the new numbers of phases of active collectives of `shared`, from the old ones, `places`; -1: none."""
    old, new = stride_of(shared.world, "phase"), int(shared.lp.world.net.const.phase_stride)
    places = np.asarray(places, np.int64)
    return np.where(places < 0, places, looked_up(shared.collective, places // old) * new + places % old)


def stride_of(world: s.World, name: str) -> int:
    """Return the rows per collective of array `name` of `world.insts`; the programs of two ranks may differ in it."""
    return max(1, len(getattr(world.insts, name)) // len(world.insts.inst_free))


def move_collectives(shared: Shared) -> None:
    """Move active collectives of `shared`, without their lanes and phases."""
    lp, old = shared.lp, shared.world
    # rows that are not on the stack of free ones are in use
    used = np.ones(len(old.insts.inst_free), bool)
    used[old.insts.inst_free[: int(old.net.ctl.free_instances)]] = False
    rows = np.flatnonzero(used)
    rows = rows[shared.node[instance_node(old.insts.inst.key[rows])] >= 0]
    to = take_rows(lp, "free_instances", s.NEED_INSTS, len(rows))
    shared.collective = np.full(len(used), -1, np.int64)
    shared.collective[rows] = to
    new, plans, trace = lp.world, lp.world.plans, lp.world.trace
    saved: Rows = old.insts.inst[rows]
    into = new.insts.inst
    move_rows(shared, RowsOf.INSTANCE, rows, to)
    node = shared.node[instance_node(saved.key)]
    # the key holds the NPU's number in its LP, which is another now
    into.key[to] = (saved.key & ((1 << NODE_SHIFT) - 1)) | node << NODE_SHIFT
    begun = to[saved.started != 0]
    npu = new.npus.npu[instance_node(into.key[begun])]
    row = npu.trace_base + into.row[begun]
    slot = npu.slot_base + trace.group[row]
    schedule = trace.schedule[row].astype(np.int64)
    plan_at = plans.plan_of_ptr[schedule] + np.where(plans.relative[schedule], 0, plans.slot_member[slot])
    plan = plans.plan_of[plan_at].astype(np.int64)
    into.slot[begun], into.schedule[begun], into.list_first[begun] = slot, schedule, plans.list_first[plan_at]
    into.first_lane[begun] = plans.plan_ptr[plan]
    keys, values = into.key[to].copy(), to.copy()
    rehash(np.append(keys, FREE), np.append(values, 0), new.insts.inst_key, new.insts.inst_val)


def move_lanes(shared: Shared) -> None:
    """Move the lanes and phases of active collectives of `shared`, after its messages, which lanes list."""
    rows = np.flatnonzero(shared.collective >= 0)
    to, new, plans = shared.collective[rows], shared.lp.world.insts, shared.lp.world.plans
    stride, new_stride = stride_of(shared.world, "lane"), int(shared.lp.world.net.const.lane_stride)
    # programs differ in their maximum of lanes; the last row is the collective itself
    common = min(stride, new_stride) - 1
    lanes = np.append(np.arange(common), stride - 1)
    new_lanes = np.append(np.arange(common), new_stride - 1)
    at = (rows[:, None] * stride + lanes).reshape(-1)
    into = (to[:, None] * new_stride + new_lanes).reshape(-1)
    phases = stride_of(shared.world, "phase") if shared.lp.world.net.const.phase_stride else 0
    for each in arrays_by(RowsOf.INSTANCE):
        if each.each == "lane_stride":
            move_items(shared, each, at, into)
        elif each.each == "phase_stride":
            move_items(shared, each, *by_parts(rows, to, phases))
    own = np.repeat(to, common)
    lane = np.tile(np.arange(common), len(to))
    has_steps = (new.inst.started[own] != 0) & (lane < new.inst.lanes[own])
    place = own[has_steps] * new_stride + lane[has_steps]
    new.lane.first[place] = plans.lane_ptr[new.inst.first_lane[own[has_steps]] + lane[has_steps]]


def move_messages(shared: Shared) -> None:
    """Move the messages of `shared`, each from the list that holds it."""
    lp, old = shared.lp, shared.world
    following = np.array(old.qps.msg.next_message)
    own: Rows = old.qps.qp[own_pairs(shared)[0]]
    npus = shared.npus[0]
    kept = old.npus.npu.done_head[npus]
    if len(old.qps.sel_rx) == len(old.qps.rxqp):
        kept = np.append(kept, old.qps.sel_rx.head_message[own_receivers(shared)])
    asked = np.full(0, -1, np.int64)
    if lp.world.net.const.rendezvous_bytes < s.INF:
        stride = stride_of(old, "lane")
        lanes = (np.flatnonzero(shared.collective >= 0)[:, None] * stride + np.arange(stride)).reshape(-1)
        asked = old.insts.asked.first[lanes] - 1
    # every row in use is in a list, which says what the row holds: find all from the heads of the lists
    lists = {
        Message: walked(own.head_message, following),
        PendingRequest: walked(own.pending.astype(np.int64) - 1, following),
        LaterMessage: walked(old.npus.system.later_head[npus] - 1, following),
        KeptMessage: walked(kept, following),
        QueuedRequest: walked(asked, following),
    }
    rows = np.concatenate(list(lists.values()))
    to = take_rows(lp, "free_messages", s.NEED_MSGS, len(rows))
    shared.message = np.full(len(following), -1, np.int64)
    shared.message[rows] = to
    for kind, listed in lists.items():
        into, saved = _seen_as(kind, lp.world.qps.msg), _seen_as(kind, old.qps.msg)[listed]
        into[shared.message[listed]] = renumbered(shared, saved)
    # the end of a replayed collective has a group slot in place of a queue pair, and a notification word 2 of a packet
    later = _seen_as(LaterMessage, old.qps.msg)[lists[LaterMessage]]
    ends = np.flatnonzero(later.what == ENDS)
    slots, new_slots = slots_of(shared)
    place = np.zeros(int(slots.max(initial=0)) + 1, np.int64)
    place[slots] = new_slots
    at = shared.message[lists[LaterMessage][ends]]
    moved = _seen_as(LaterMessage, lp.world.qps.msg)
    moved.connection[at] = place[later.connection[ends]]
    of = later.what == NOTIFIES
    words = shared.pairs.renumbered(later.w1[of], later.payload_bytes[of])
    moved.payload_bytes[shared.message[lists[LaterMessage][of]]] = words


def _seen_as(kind: type[Row], rows: Rows) -> Rows:
    """Return rows of `msg` as rows of another kind in the same memory."""
    return rows.view(np.ndarray).view(kind.dtype).view(np.recarray)


def own_pairs(shared: Shared) -> tuple[Int64, Int64]:
    """Return the old and the new rows of the queue pairs of the NPUs that both LPs of `shared` have."""
    count = int(shared.world.net.ctl.queue_pairs)
    old = np.flatnonzero(shared.node[shared.world.qps.qp.npu[:count]] >= 0)
    return old, shared.pair[old]


def own_receivers(shared: Shared) -> Int64:
    """Return the old rows of the receiving queue pairs of the NPUs that both LPs of `shared` have."""
    key = np.array(shared.world.qps.rxqp.key)
    used = np.flatnonzero(key != FREE)
    local = shared.lp.part.local[key_owner(key[used])]
    return used[(local >= 0) & (shared.part.local[key_owner(key[used])] >= 0)]


def move_queue_pairs(shared: Shared) -> None:
    """Move the sending queue pairs of `shared`, after their messages."""
    old, new = shared.world.qps, shared.lp.world.qps
    move_rows(shared, RowsOf.PAIR, *own_pairs(shared))
    key = old.qp_key
    at = np.flatnonzero(key != FREE)
    at = at[shared.node[shared.part.local[key_owner(key[at])]] >= 0]
    # the free entry at the end is skipped: compiled code needs arrays that are not empty
    keys, values = np.append(key[at], FREE), np.append(shared.pair[old.qp_val[at]], 0)
    rehash(np.ascontiguousarray(keys), np.ascontiguousarray(values), new.qp_key, new.qp_val)


def move_receivers(shared: Shared) -> None:
    """Move receiving queue pairs of `shared`, after the messages that they keep."""
    old, new = shared.world.qps, shared.lp.world.qps
    rows = own_receivers(shared)
    keys = shared.pairs.receiver_keys(np.array(old.rxqp.key[rows]))
    table, came_from = np.array(new.rxqp.key), np.full(len(new.rxqp), -1, np.int64)
    # find the place of each key first: the rows move there at once
    rehash(np.append(keys, FREE), np.append(np.arange(len(rows)), 0), table, came_from)
    to = np.flatnonzero(came_from >= 0)
    move_rows(shared, RowsOf.RECEIVER, rows[came_from[to]], to)
    new.rxqp.key[to] = keys[came_from[to]]
    if shared.lp.world.net.hooks.credits != 0:
        _move_credit_lists(shared, rows[came_from[to]], to)


def _move_credit_lists(shared: Shared, rows: Int64, to: Int64) -> None:
    """Move the lists of pacers, whose receiving queue pairs have rows `rows` in the old and `to` in the new LP."""

    def moved(keys: Int64) -> Int64:
        known = np.where(keys != FREE, keys, 0)
        return np.where(keys != FREE, shared.pairs.receiver_keys(known.reshape(-1)).reshape(keys.shape), FREE)

    old, new = shared.world, shared.lp.world
    new.qps.credit_rx.following[to] = moved(np.array(old.qps.credit_rx.following[rows]))
    npus, to_npus = shared.npus
    for name in ("head", "tail"):
        new.npus.pacer[name][to_npus] = moved(np.array(old.npus.pacer[name][npus]))


def move_port_queues(shared: Shared) -> None:
    """Move packets that wait at ports of NPUs and at shared-buffer switches of `shared`."""
    old, lp = shared.world, shared.lp
    links, to = ports_of(shared)
    for name in ("control", "transit"):
        waits = np.flatnonzero(old.npus.port[f"{name}_packets"][links] > 0)
        heads = old.npus.port[f"{name}_head"][links[waits]]
        records, counts = queues_of(old.net, heads, np.full(len(waits), -1))
        packets, telemetry = words_of_packets(old.net, records)
        packets[:, 2] = shared.pairs.renumbered(packets[:, 1], packets[:, 2])
        heads, tails = put_in_queues(lp, counts, packets, telemetry)
        # INF marks the free record behind the last packet
        lp.world.net.record.ready_ps[tails] = s.INF
        lp.world.npus.port[f"{name}_head"][to[waits]] = heads
        lp.world.npus.port[f"{name}_tail"][to[waits]] = tails
    if len(lp.world.net.gate) > 1:
        _move_gates(shared)


def _move_gates(shared: Shared) -> None:
    """Move the packets in the queues of switches that share buffers, or have credits."""
    old, lp = shared.world, shared.lp
    links, to = shared.links
    gate: Rows = old.net.gate[links]
    queues = int(old.net.const.queues) or GATE_QUEUES
    port, queue = np.nonzero(gate.mask[:, None] >> np.arange(queues) & 1)
    # with credits, queues are in rows of their own
    has_credits = old.net.const.queues > 0
    words = old.net.lane.queue[links[port] * queues + queue] if has_credits else gate.queues[port, queue]
    records, counts = queues_of(old.net, words & ((1 << 32) - 1), words >> 32)
    packets, telemetry = words_of_packets(old.net, records)
    packets[:, 2] = shared.pairs.renumbered(packets[:, 1], packets[:, 2])
    # waiting packets name the port by which they came in
    ingress = looked_up(shared.link, packets[:, 0] >> TIME_BITS)
    packets[:, 0] = (packets[:, 0] & ((1 << TIME_BITS) - 1)) | ingress << TIME_BITS
    heads, tails = put_in_queues(lp, counts, packets, telemetry)
    new = lp.world.net
    if has_credits:
        new.lane.queue[to[port] * queues + queue] = heads | tails << 32
    else:
        new.gate.queues[to[port], queue] = heads | tails << 32
    nodes, to_nodes = shared.nodes
    is_switch = nodes >= shared.part.npus
    nodes, to_nodes = nodes[is_switch], to_nodes[is_switch]
    ports = old.net.pool.ports[nodes]
    at, into = ranges(shared.part.out_ptr[nodes], ports), ranges(lp.part.out_ptr[to_nodes], ports)
    new.backlog[into] = shared.link[old.net.backlog[at]]
    new.gate.place[new.backlog[into]] = into


def move(shared: Shared) -> None:
    """Move what an old LP and a new one have in common; messages need collectives, and all else needs both."""
    move_collectives(shared)
    move_messages(shared)
    move_lanes(shared)
    move_npus(shared)
    move_queue_pairs(shared)
    move_receivers(shared)
    move_nodes_and_links(shared)
    move_port_queues(shared)


_BY_KIND = {WordKind.LANE: lane_places, WordKind.PHASE: phase_places, WordKind.WAITER: waiter}
