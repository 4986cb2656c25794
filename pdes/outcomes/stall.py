"""Reports of runs that end with work left: who waits for whom, and which paths faults have cut."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from nadi.pdes.construction.faults import Faults
from nadi.pdes.construction.layout import LogicalProcess, Simulation
from nadi.pdes.core import Bools, Graph, Int32, Int64, Rows, state as s
from nadi.pdes.core.packet import destination, end_of, instance_key
from nadi.pdes.core.rows.network import PendingRequest
from nadi.pdes.network.framing import AGGREGATOR_KIND
from nadi.pdes.npu.agenda import lane_place
from nadi.pdes.npu.collective import npu_of_peer
from nadi.pdes.npu.trace import COMMUNICATION, KIND_COLLECTIVE, KIND_RECV, KIND_SEND

PS_PER_MS = 10**9
MAX_PLACES = 8  # places that a message lists


class LostPaths:
    """The fabric of a run at a moment: the links that are down, and the paths that are left."""

    def __init__(self, graph: Graph, faults: Faults, now_ps: int) -> None:
        """Keep the inputs; faults: faults of the run; now_ps: the moment, in picoseconds."""
        self._graph, self._now_ps = graph, now_ps
        self._faults = [fault for fault in faults.links if fault.down or fault.error_rate == 1]
        self._lossy = [fault for fault in faults.links if 0 < fault.error_rate < 1]

    def clause(self) -> str:
        """Return a clause that lists the switches and links that are down or lose packets, by name; "" without any."""
        down = self._names(self._down_at(self._now_ps))
        held = [fault for fault in self._lossy if fault.at_ps <= self._now_ps < fault.until_ps]
        lossy = [f"{name} (error_rate {fault.error_rate:g})" for fault in held for name in self._names(fault.links)]
        places = {"down by faults": down, "lossy by faults": lossy}
        return "".join(f"; {what}: {listed(names, ', ')}" for what, names in places.items() if names)

    def between(self, src: int, dst: int) -> str:
        """Return a clause that says since when NPU src has no path to NPU dst, and why; "" if faults left one."""
        since_ps = None
        # since_ps is the begin of the last stretch without a path
        for time_ps in self._times_ps:
            if self._is_cut(time_ps, src, dst):
                since_ps = time_ps if since_ps is None else since_ps
            else:
                since_ps = None
        # -1: before all faults; a path that never existed was not lost by them
        if since_ps is None or self._is_cut(-1, src, dst):
            return ""
        new = np.setdiff1d(self._down_at(since_ps), self._down_at(since_ps - 1))
        ends = f"{end_name(self._graph, src)} has no path to {end_name(self._graph, dst)}"
        return f"{ends} since {listed(self._names(new), ' and ')} went down at {since_ps / PS_PER_MS:g} ms"

    def of_npu(self, npu: int, peers: Sequence[int]) -> str:
        """Return `between` of an NPU and the first of several others, or aggregator next to it, that it has lost.

        Args:
            npu: Number of the NPU.
            peers: Numbers of the other NPUs.
        """
        if not self._faults:
            return ""
        graph = self._graph
        # aggregators are endpoints in the switches next to an NPU
        # two links away: NPU -> switch -> its other neighbours
        near = [node for link in graph.out_links(npu) for node in graph.link_dst[graph.out_links(graph.link_dst[link])]]
        reducing = [node for node in near if node < graph.npus and graph.node_kind[node] == AGGREGATOR_KIND]
        clauses = (self.between(npu, peer) for peer in [*peers, *reducing] if peer != npu)
        return next((clause for clause in clauses if clause), "")

    def _down_at(self, time_ps: int) -> Int64:
        """Return int64[k]: the links that are down at a time, ascending."""
        held = [fault.links for fault in self._faults if fault.at_ps <= time_ps < fault.until_ps]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(np.array(links, np.int64) for links in held)]))

    @cached_property
    def _times_ps(self) -> list[int]:
        """Return the times until now at which links went down or came up, in ascending order."""
        times = {time for fault in self._faults for time in (fault.at_ps, fault.until_ps)}
        return sorted(time for time in times if time <= self._now_ps)

    @cached_property
    def _parts(self) -> dict[int, tuple[Bools, Int64]]:
        """Return the results of `_parts_at` by time in picoseconds, -1 = before all faults."""
        return {time_ps: self._parts_at(time_ps) for time_ps in [-1, *self._times_ps]}

    def _parts_at(self, time_ps: int) -> tuple[Bools, Int64]:
        """Return bool[links], the links that are up at a time, and int64[nodes], the connected part of each switch."""
        graph = self._graph
        is_up = np.ones(graph.links, np.bool_)
        is_up[self._down_at(time_ps)] = False
        between = np.flatnonzero(is_up & (graph.link_src >= graph.npus) & (graph.link_dst >= graph.npus))
        # label propagation: each switch takes the smallest label among its neighbours until none changes; NPUs pass
        # nothing on, so only links between switches count
        part = np.arange(graph.nodes)
        while True:
            before = part.copy()
            np.minimum.at(part, graph.link_dst[between], part[graph.link_src[between]])
            # pointer jumping, so that long chains take few rounds
            part = part[part]
            if np.array_equal(part, before):
                return is_up, part

    def _is_cut(self, time_ps: int, src: int, dst: int) -> bool:
        """Return whether no path leads from NPU src to NPU dst at a time; NPUs pass nothing on."""
        graph = self._graph
        is_up, part = self._parts[time_ps]
        out, back = graph.out_links(src), graph.out_links(dst)
        # `link ^ 1` is the other direction of a cable: the links into dst are the reverses of those out of it
        leaves, enters = graph.link_dst[out[is_up[out]]], graph.link_dst[back[is_up[back ^ 1]]]
        return dst not in leaves and not np.intersect1d(part[leaves], part[enters]).size

    def _names(self, links: Int64 | Sequence[int]) -> list[str]:
        """Return names of links, int64[k], as [[faults]] takes them; a switch without another link is named instead."""
        graph = self._graph
        both, is_down = np.asarray(links, np.int64), np.zeros(graph.links, np.bool_)
        is_down[both] = is_down[both ^ 1] = True
        alive = graph.link_src[~is_down & (graph.node_kind[graph.link_dst] != AGGREGATOR_KIND)]
        # all its links are down, which a fault of the switch itself does
        is_dead = (np.arange(graph.nodes) >= graph.npus) & (np.bincount(alive, minlength=graph.nodes) == 0)
        is_dead &= np.bincount(graph.link_src, minlength=graph.nodes) > 0
        names = [graph.node_name(node) for node in np.flatnonzero(is_dead).tolist()]
        # [::2]: both directions of a cable are down, and one name is enough
        rest = np.flatnonzero(is_down & ~is_dead[graph.link_src] & ~is_dead[graph.link_dst])[::2]
        for link in rest.tolist():
            a, b = int(graph.link_src[link]), int(graph.link_dst[link])
            cables = np.flatnonzero((graph.link_src == a) & (graph.link_dst == b))
            which = "" if is_down[cables].all() else f" cable {cables.tolist().index(link)}"
            names.append(f"link {graph.node_name(a)} - {graph.node_name(b)}{which}")
        return list(dict.fromkeys(names))


def end_name(graph: Graph, npu: int) -> str:
    """Return the name of an NPU, or of the aggregator in a switch, which is an endpoint, too.

    Args:
        graph: The fabric (`Graph`).
        npu: Number of the NPU.
    """
    if graph.node_kind[npu] != AGGREGATOR_KIND:
        return graph.node_name(npu)
    return f"the reduction in {graph.node_name(int(graph.link_dst[graph.out_links(npu)[0]]))}"


def listed(names: Sequence[str], last: str) -> str:
    """Return the first names, separated by commas and, before the last one, by `last`."""
    if len(names) > MAX_PLACES:
        names, last = [*names[:MAX_PLACES], f"{len(names) - MAX_PLACES} more"], " and "
    return last.join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# Explain a stalled run, when events run out and work is left, or a queue pair gives up: rows that wait and for what.
#
# Pauses may wait for each other in a circle: then a cyclic buffer dependency has become a deadlock.

TOO_LATE_TEXT = (
    f"simulated time exceeds {s.LONGEST_RUN_PS} ps (26 days), the maximum that the engine can represent; "
    "expected faster links, smaller messages or shorter delays"
)


def too_late(lp: LogicalProcess) -> bool:
    """Return whether an event of the LP lies beyond the times that the engine can represent.

    Args:
        lp: The logical process.
    """
    w = lp.world
    npus = lp.part.npus
    # an overflow would have wrapped to a negative time, which no event has otherwise
    pending = (w.net.next_time, w.net.tx.busy_ps, w.npus.npu.rto_at_ps[:npus], w.npus.heap[::2])
    return w.net.ctl.now_ps > s.LONGEST_RUN_PS or any(((t > s.INF) | (t < 0)).any() for t in pending)


def failed_queue_pair(sim: Simulation, lp: LogicalProcess) -> str:
    """Return a line about the queue pair of an LP that gave up.

    Args:
        sim: The part of the run in this process (`Simulation`).
        lp: The logical process.
    """
    w = lp.world
    row = int(w.net.ctl.failed_queue_pair)
    qp, now_ps = w.qps.qp[row], int(w.net.ctl.now_ps)
    src, dst = int(w.npus.npu[qp.npu].number), int(destination(qp.w1))
    ends, packet = f"{end_name(sim.graph, src)} to {end_name(sim.graph, dst)}", f"packet {qp.una} unacknowledged after"
    # it did not give up for timeouts: a packet was trimmed too often
    if qp.retries <= w.net.const.max_retries:
        return (
            f"{ends}: {packet} it was trimmed and sent again {w.qps.resends[row].trimmed_times:,} times (at {now_ps} "
            f"ps){_trimming_port(sim, src, dst)}; expected a larger buffer, a smaller window or a congestion control, "
            "or a larger max_resends if more senders than that share a port"
        )
    given_up = f"{packet} {qp.retries} timeouts (at {now_ps} ps)"
    paths = LostPaths(sim.graph, sim.settings.faults, now_ps)
    if lost := paths.between(src, dst):
        return f"{lost}: {given_up}"
    hint = "; check for a queue_limit below one packet or an rto that is too short"
    return f"{ends}: {given_up}{hint}{_by_faults(paths, lp)}"


def _trimming_port(sim: Simulation, src: int, dst: int) -> str:
    """Return a clause: the port on the shortest ways from NPU src to NPU dst that has trimmed most packets."""
    # Empty where another process has that port.
    graph = sim.graph
    trimmed = np.zeros(graph.links, np.int64)
    for lp in sim.lps:
        trimmed[lp.part.links] = lp.world.net.gate.trimmed_packets[: len(lp.part.links)]
    behind = _links_between(graph.link_src, graph.link_dst, graph.nodes, src)
    ahead = _links_between(graph.link_dst, graph.link_src, graph.nodes, dst)
    # a link is on a shortest path if its distances from both ends and its own length add up to the whole
    trimmed[behind[graph.link_src] + 1 + ahead[graph.link_dst] != behind[dst]] = 0
    most = int(trimmed.argmax())
    if not trimmed[most]:
        return ""
    ends = " -> ".join(graph.node_name(int(end[most])) for end in (graph.link_src, graph.link_dst))
    return f"; the port {ends} has trimmed {trimmed[most]:,} packets"


def _links_between(begin: Int32, end: Int32, nodes: int, start: int) -> Int64:
    """Return int64[nodes]: the number of links from node `start` to each; begin, end: int32[links], nodes of links."""
    distance = np.full(nodes, nodes, np.int64)
    distance[start] = 0
    # breadth-first search over all links at once
    for links in range(nodes):
        reached = end[distance[begin] == links]
        reached = reached[distance[reached] == nodes]
        if not len(reached):
            break
        distance[reached] = links + 1
    return distance


def storming_npus(lp: LogicalProcess) -> list[str]:
    """Return the NPUs whose NICs pause links of the LP's switches for ever, by faults.

    Args:
        lp: The logical process.
    """
    change = lp.world.schedule.change
    links = change.index[(change.kind == s.CHANGE_PAUSE) & (change.begin_ps <= lp.world.net.ctl.now_ps)]
    return [f"npu {lp.part.nodes[end_of(lp.world.net.tx.meta[link])]}" for link in links.tolist()]


def _by_faults(paths: LostPaths, lp: LogicalProcess) -> str:
    """Return a clause that lists what faults have down, lossy or paused; empty without such places."""
    storms = storming_npus(lp)
    paused = f"; pause storms: {listed(storms, ', ')}" if storms else ""
    return paths.clause() + paused


def held_links(graph: Graph, lp: LogicalProcess) -> Int64:
    """Return int64[k, 3]: own links whose port has data that a pause holds back, with their two ends.

    Args:
        graph: The fabric (`Graph`).
        lp: The logical process.
    """
    net = lp.world.net
    if net.hooks.shared_switches == 0:
        return np.zeros((0, 3), np.int64)
    gate: Rows = net.gate[: len(lp.part.links)]
    held = lp.part.links[(gate.mask & gate.paused) != 0]
    return np.stack([held, graph.link_src[held], graph.link_dst[held]], axis=1).astype(np.int64)


def circle(held_links: Int64) -> list[int]:
    """Return the nodes of a circle of held links, each held back by the switch at its end; [] without a circle.

    Args:
        held_links: int64[k, 3], as `held_links` returns them: link and its two ends.
    """
    held_links = held_links[np.argsort(held_links[:, 0])]
    # links whose end is held by nothing go, and then those that led to them: what is left leads into a circle
    while not (continues := np.isin(held_links[:, 2], held_links[:, 1])).all():
        held_links = held_links[continues]
    if not len(held_links):
        return []
    onward = dict(held_links[::-1, 1:].tolist())  # from each node by its first link
    path = [int(held_links[0, 1])]
    # from any node, following held links must meet a node twice
    while (node := onward[path[-1]]) not in path:
        path.append(node)
    return path[path.index(node) :]


def _requests(lp: LogicalProcess) -> dict[tuple[int, int], int]:
    """Return the unanswered rendezvous requests: (LP's number of the sender, Message.ref without lane) -> receiver."""
    w = lp.world
    requests: dict[tuple[int, int], int] = {}
    waiting = w.qps.msg.view(PendingRequest.dtype)
    # requests hang on the queue pairs for answers (`rendezvous.ask`)
    for qp in w.qps.qp[: int(w.net.ctl.queue_pairs)]:
        message = int(qp.pending) - 1
        while message >= 0:
            ref = int(waiting[message].ref)
            # the number of a blocking lane is no part of the collective's name
            if ref >= s.REF_INSTANCE:
                ref &= s.REF_INSTANCE | ((1 << s.REF_LANE) - 1)
            requests.setdefault((int(qp.npu), ref), destination(int(qp.w1)))
            message = int(waiting[message].next_message)
    return requests


def _collective_waits(
    sim: Simulation, lp: LogicalProcess, npu: int, row: int, table_row: int, requests: dict[tuple[int, int], int]
) -> tuple[str, Sequence[int]]:
    """Return a line, what the member of a collective on NPU number `npu` of an LP waits for, and the NPUs it may be."""
    # row: trace row of the collective; table_row: its row in the tables of traces; requests: result of `_requests`.
    w, t, plans = lp.world, lp.world.trace, lp.world.plans
    slot = int(w.npus.npu[npu].slot_base + t.group[table_row])
    group, seq = int(plans.slot_group[slot]), int(t.seq[table_row])
    trace_row = _row_of_trace(sim, table_row, row)
    name = f"{end_name(sim.graph, lp.part.nodes[npu])} row {trace_row}: collective {seq} of group {group}"
    flag = int(w.rows.flag[lp.row_ptr[npu] + row])
    # ready, and yet not started, although no earlier collective of its group holds it back: a limit of the NPU does
    if not flag & s.ROW_STARTED and (not w.net.const.serial_collectives or w.rows.slot_next[slot] == seq):
        if w.net.const.one_at_a_time == 1:
            return f"{name} waits for its turn: row {w.npus.turns[npu].running[COMMUNICATION]} of the npu runs", ()
        in_flight = int(w.npus.system[npu].in_flight)
        return f"{name} waits for a place: collectives in flight on the npu: {in_flight}", ()
    if not flag & s.ROW_STARTED:
        return f"{name} waits for its turn: collective {int(w.rows.slot_next[slot])} of the group is not done", ()
    is_coupled = w.net.hooks.settle != 0 and w.net.hooks.join != 0 and w.flows.is_coupled[t.schedule[table_row]] == 1
    owner = int(plans.group_member[plans.group_ptr[group]]) if is_coupled else npu
    hit = np.flatnonzero(w.insts.inst_key == instance_key(owner, group, seq))
    members = plans.group_member[plans.group_ptr[group] : plans.group_ptr[group + 1]]
    # no instance: it waits for its replay, which needs all members
    if not len(hit) and w.nvlink.start_row[slot % len(w.nvlink.start_row)] == row:
        return f"{name} waits for members to start: {len(members) - w.nvlink.started[group]}", ()
    if not len(hit):
        return f"{name} waits for nothing (engine defect)", ()
    inst = int(w.insts.inst_val[hit[0]])
    collective = w.insts.inst[inst]
    if is_coupled:
        if collective.lanes_left:
            return f"{name} waits for members to start: {collective.lanes_left}", ()
        return f"{name} waits for its links", members.tolist()
    # key of the dictionary: the waiter of a collective's messages, without the lane
    receiver = requests.get((npu, s.REF_INSTANCE | inst))
    for lane in range(int(collective.lanes)):
        state = w.insts.lane[lane_place(w.net, inst, lane)]
        step = int(state.pc) >> 1
        peer = int(plans.step[state.first + step].recv_peer) if step < state.steps else -1
        if peer >= 0 and (receiver is None or state.arrived == 0):
            sender = npu_of_peer(w.insts, plans, inst, collective.first_lane + lane, peer)
            return f"{name}, lane {lane} step {step}, waits for {end_name(sim.graph, sender)}", (sender,)
    if receiver is None:
        return f"{name} waits for its sends to leave", members.tolist()
    return f"{name} waits for {end_name(sim.graph, receiver)} to receive what it sends", (receiver,)


def _row_of_trace(sim: Simulation, table_row: int, row: int) -> int:
    """Return a row of an NPU as its trace counts, in which divided sends are one; table_row: row in the tables."""
    return int(sim.program.whole_row[table_row]) if len(sim.program.whole_row) else row


def waiting_rows(sim: Simulation, lp: LogicalProcess) -> tuple[list[str], str]:
    """Return a line for each trace row of an LP that has started, or could, and is not done: what it waits for.

    And return a clause about an NPU that has lost its only path to one that it waits for; "" if none has.

    Args:
        sim: The run, or the part of it in this process (`Simulation`).
        lp: The logical process.
    """
    w, t = lp.world, lp.world.trace
    flag = w.rows.flag[: lp.row_ptr[-1]]
    # rows that wait for their parents only are left out: they follow from these
    begun = np.flatnonzero(((flag & (s.ROW_STARTED | s.ROW_READY)) != 0) & ((flag & s.ROW_DONE) == 0))
    lines, lost = [], ""
    requests = _requests(lp)
    paths = LostPaths(sim.graph, sim.settings.faults, int(w.net.ctl.now_ps))
    # rows of all NPUs are one array: searchsorted finds the NPU whose rows contain the place
    for own, place in zip((np.searchsorted(lp.row_ptr, begun, side="right") - 1).tolist(), begun.tolist(), strict=True):
        row = place - int(lp.row_ptr[own])
        npu = int(lp.part.nodes[own])
        at = int(w.npus.npu[own].trace_base) + row
        kind = t.kind[at]
        name = f"npu {npu} row {_row_of_trace(sim, at, row)}"
        peers: Sequence[int] = (int(w.net.jobs.npu[w.npus.npu[own].place + t.peer[at]]),)
        if kind == KIND_RECV:
            lines.append(f"{name}: receive {t.seq[at]} of tag {t.tag[at]} waits for npu {peers[0]}")
        elif kind == KIND_SEND:
            waits = "waits for its receive to be posted" if (own, row) in requests else "has not left"
            lines.append(f"{name}: send to npu {peers[0]} {waits}")
        elif kind == KIND_COLLECTIVE:
            line, peers = _collective_waits(sim, lp, own, row, at, requests)
            lines.append(line)
        else:
            lines.append(f"{name} is in its lane (engine defect)")
        lost = lost or paths.of_npu(npu, peers)
    if lines:
        lines[0] += _by_faults(paths, lp)
    return lines, lost
