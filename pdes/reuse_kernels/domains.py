"""Collectives of an NVLink domain that are replayed: their members' starts and ends in the world of the whole run.

NPUs of a replayed NVLink domain have no other way to each other. A collective of a group within it is simulated
in a world of its own (pdes/reuse) once all members have started, since none of them ends earlier; then each member ends
at the time found there. Nothing of it happens in this world. Other collectives and messages that cross the links of its
members travel as packets in this world, and so does what starts on these links while they are under way.

Packets that start while a replayed collective is under way on their links disturb it. It then continues as packets: its
members start again at their times (`send_packets`), and the cells since then, in which nothing else is left to happen,
bring its packets to where they are now. What its rows have done before (`catch_up_ps`) is not done again.

Aggregators send nothing before they receive, so that it does not matter how long ago they have started. Parameters
such as `world` and `world_address` are explained in pdes/core/state.py.
"""

import numpy as np

from nadi.pdes.core import state
from nadi.pdes.core.algorithms import NONE, after, free_block, step
from nadi.pdes.core.jit import hook, inline, kernel
from nadi.pdes.core.packet import end_of, inbox_later_ps, inbox_link, job_of, longest_wait_ps, with_longest_wait
from nadi.pdes.network.link import inbox_of, wait
from nadi.pdes.nic.counting import add_messages, tag_within_job
from nadi.pdes.npu.collective import begins_after, first_lane_of
from nadi.pdes.npu.endpoints import ENDS, LAPSED, RUNS, STARTS, put_off
from nadi.pdes.npu.trace import KIND_COLLECTIVE, KIND_SEND, npu_of_rank

OUTSIDE, CROSSING, INSIDE = range(3)
"""Roles of a group for an NVLink domain: at most one member in it; several, or not replayed; all, and replayed."""


@inline
def is_quiescent(net, domain, member, from_ps, now_ps):
    """Return whether packets have left the links of `member` of `domain` by from_ps, and ties are forgotten."""
    # those that were still on their way to its links when the last row ended are there after drain_ps
    # in both directions: packets of others may come in on the member's link down while its link up is idle
    busy_ps = max(net.tx[member.link_out].busy_ps, net.tx[member.link_in].busy_ps)
    return now_ps > member.crossed_ps + domain.drain_ps and from_ps > busy_ps + domain.drain_ps


@inline
def report(net, nvlink, due):
    """Note what is `due` at the end of the cell: a group has something to replay; -1 - a domain is disturbed."""
    nvlink.due[net.ctl.due_replays] = due
    net.ctl.due_replays += 1


@inline
def wake_aggregators(world, slot, seq, domain, now_ps):
    """At now_ps, let aggregators of the group of `slot` of `domain` start its collective `seq`, sent as packets."""
    # One that waits starts in the next cell: before that, no packet arrives there, since the member begins to send a
    # cell from now at the earliest. One that has not started yet, such as a node whose turn in this cell comes later,
    # does not wait (`enter_domain`). The first member that sends packets tells them: `start_order` has what they know.
    net, nvlink, plans = world.net, world.nvlink, world.plans
    group = plans.slot_group[slot]
    for i in range(plans.group_ptr[group + 1] - 1, plans.group_ptr[group] - 1, -1):
        npu = plans.group_member[i]
        if npu < domain.first_aggregator:
            break
        node = nvlink.node_of[npu]
        other = slot_of(world, node, group)
        if nvlink.start_order[other] > seq:
            continue
        nvlink.start_order[other] = seq + 1
        row = np.int64(nvlink.start_row[other])
        if row < 0 or world.trace.seq[world.npus.npu[node].trace_base + row] > seq:  # one that it takes part in later
            continue
        at = state.take_row(net, world.qps)
        later = state.later_messages(world.qps.msg)[at]
        later.ref = row
        put_off(world.npus, world.qps, node, at, STARTS, now_ps + net.ctl.cell_ps)
        net.next_time[node] = min(net.next_time[node], now_ps + net.ctl.cell_ps)
        nvlink.start_row[other] = -1


@inline
def slot_of(world, node, group):
    """Return the slot of NPU `node` of the LP of `world` in a `group`, by its number, that it is in."""
    slot = world.npus.npu[node].slot_base
    while world.plans.slot_group[slot] != group:
        slot += 1
    return slot


@inline
def members_on(world, group, schedule):
    """Return the range of `plans.group_member` whose NPUs take part in a collective of `group` with `schedule`."""
    first = np.int64(world.plans.group_ptr[group])
    return first, first + np.int64(world.plans.members[schedule])


@inline
def may_wait(world, domain, first, last, first_ps, now_ps):
    """Return whether a collective of `domain`, begun at now_ps, can be replayed; first, last: see `members_on`."""
    net, nvlink = world.net, world.nvlink
    is_free = True  # no member waits for a replay, or is busy with one
    for i in range(first, last):
        member = nvlink.member[nvlink.node_of[world.plans.group_member[i]]]
        has_left = member.had_packets == 0 or is_quiescent(net, domain, member, first_ps, now_ps)
        if member.packet_rows > 0 or not has_left:
            return False
        # a domain that is off replays only what others under way depend on
        is_free = is_free and member.waiting == 0 and first_ps > member.busy_until_ps
    return not (is_free and domain.off == 1)


@inline
def cross(world, number, npu, first_ps):
    """Count a row whose packets may cross the links of an NPU of an NVLink domain; return whether it is disturbed.

    world: state of the LP; number: number of the domain; npu: number of the NPU in the fabric; first_ps: earliest time
    in ps at which they cross them.
    """
    nvlink, ctl = world.nvlink, world.net.ctl
    member = nvlink.member[nvlink.node_of[npu]]
    member.packet_rows += 1
    member.had_packets = 1
    # once per episode: the report is for the end of this cell, and names the domain
    if member.is_disturbed == 0 and (member.waiting > 0 or first_ps <= member.busy_until_ps):
        member.is_disturbed = 1
        report(world.net, nvlink, -1 - number)
    # within this cell there is no time to turn replays into packets: the run begins again
    if member.is_disturbed == 1 and first_ps < ctl.now_ps + ctl.cell_ps:
        ctl.is_disturbed = 1
    return member.is_disturbed == 1


@inline
def count_packet_row(world, number):
    """Count a row that sends packets over the links of domain `number`."""
    ctl = world.net.ctl
    world.nvlink.domain[number].packet_rows += 1
    ctl.packet_rows += 1
    ctl.changes_cell = np.int64(ctl.cell_ps != world.net.const.cell_ps)


@hook
def enter_domain(world_address, node, row, now_ps):
    """Return 1 if trace row `row`, which `node` starts at now_ps, waits for its replay; 0 if it sends packets."""
    world = state.world_at(world_address)
    net, nvlink, trace, plans = world.net, world.nvlink, world.trace, world.plans
    npu = world.npus.npu[node]
    number = nvlink.domain_of[npu.number]
    if number < 0:
        return 0
    r = npu.trace_base + row
    if trace.kind[r] == KIND_SEND:
        peer = npu_of_rank(net, npu, trace.peer[r])
        if nvlink.domain_of[peer] == number:
            # both ends: packets take the sender's link up and the receiver's link down
            cross(world, number, npu.number, now_ps + trace.duration_ps[r])
            cross(world, number, peer, now_ps + trace.duration_ps[r])
            count_packet_row(world, number)
        return 0
    slot = npu.slot_base + trace.group[r]
    if nvlink.role[slot] == OUTSIDE:
        return 0
    domain, group = nvlink.domain[number], plans.slot_group[slot]
    schedule = np.int64(trace.schedule[r])
    replays = nvlink.role[slot] == INSIDE and nvlink.replays[schedule] == 1
    if npu.number >= domain.first_aggregator:
        # its packets follow those of the other members, who decide, and may have told it
        replays = replays and nvlink.start_order[slot] <= trace.seq[r]
        if replays:
            nvlink.start_ps[slot] = now_ps
            nvlink.start_row[slot] = row
        return np.int64(replays)
    # packets cannot be on the links before the launch has passed
    first_ps = now_ps + plans.launch_ps[schedule]
    first, last = members_on(world, group, schedule)
    if replays and (nvlink.started[group] > 0 or may_wait(world, domain, first, last, first_ps, now_ps)):
        wait_for_replay(world, node, number, slot, row, now_ps)
        return 1
    disturbs = False
    for i in range(first, last):
        if nvlink.domain_of[plans.group_member[i]] == number:
            disturbs = cross(world, number, plans.group_member[i], first_ps) or disturbs
    count_packet_row(world, number)
    nvlink.packet_row[slot] = row + 1
    if nvlink.role[slot] == INSIDE:
        wake_aggregators(world, slot, np.int64(trace.seq[r]), domain, now_ps)
    if disturbs:  # it starts together with what it disturbs, in the order of their starts, as all that follows it here
        nvlink.member[node].is_disturbed = 1
        note_start(net, nvlink, slot, row, now_ps)
    return np.int64(disturbs)


@inline
def note_start(net, nvlink, slot, row, now_ps):
    """Note in `nvlink` that the collective of trace row `row` has started, at now_ps, in an NPU's `slot`."""
    nvlink.start_ps[slot] = now_ps
    nvlink.start_row[slot] = row
    # the order of starts within the LP: members that start at the same ps start in it again in the episode's own world
    nvlink.start_order[slot] = net.ctl.replay_starts
    net.ctl.replay_starts += 1


@inline
def wait_for_replay(world, node, number, slot, row, now_ps):
    """Note a start of `row` of `node`, of domain `number`; report the group if it is the last or others run."""
    net, nvlink, plans = world.net, world.nvlink, world.plans
    note_start(net, nvlink, slot, row, now_ps)
    schedule = np.int64(world.trace.schedule[world.npus.npu[node].trace_base + row])
    if net.const.slows_compute != 0:
        delay_ps = plans.launch_ps[schedule] + begins_after(net, plans, first_lane_of(plans, schedule, slot))
        at = state.take_row(net, world.qps)
        state.later_messages(world.qps.msg)[at].ref = row
        put_off(world.npus, world.qps, node, at, RUNS, now_ps + delay_ps)
    group = plans.slot_group[slot]
    first, last = members_on(world, group, schedule)
    nvlink.started[group] += 1
    begins, meets, real = nvlink.started[group] == 1, False, np.int64(0)
    # aggregators start nothing by themselves, so only the real members are awaited
    for i in range(first, last):
        npu = plans.group_member[i]
        member = nvlink.member[nvlink.node_of[npu]]
        real += np.int64(npu < nvlink.domain[number].first_aggregator)
        meets = meets or now_ps <= member.busy_until_ps
        if begins:
            member.had_packets = 0
            member.waiting += 1
    if nvlink.started[group] == real:
        nvlink.started[group] = 0
        for i in range(first, last):
            member = nvlink.member[nvlink.node_of[plans.group_member[i]]]
            member.waiting -= 1
            member.busy_until_ps = state.INF  # until the end of the cell, when it is known
    if meets or nvlink.started[group] == 0:
        report(net, nvlink, group)


@inline
def leave(world, npu, now_ps):
    """Count at now_ps a row that no longer sends packets over the links of `npu` (of the fabric) in its domain."""
    member = world.nvlink.member[world.nvlink.node_of[npu]]
    member.packet_rows -= 1
    # packets of the row may still be on the wire: the links count as idle only drain_ps later
    member.crossed_ps = now_ps


@hook
def leave_domain(world_address, node, row, now_ps):
    """Count trace row `row` of NPU `node`, done at now_ps, if its packets crossed the links of the NPU's domain."""
    world = state.world_at(world_address)
    net, nvlink, trace, plans = world.net, world.nvlink, world.trace, world.plans
    npu = world.npus.npu[node]
    number = nvlink.domain_of[npu.number]
    if number < 0 or npu.number >= nvlink.domain[number].first_aggregator:
        return 0
    r = npu.trace_base + row
    slot = npu.slot_base + trace.group[r]
    if trace.kind[r] == KIND_SEND:
        peer = npu_of_rank(net, npu, trace.peer[r])
        if nvlink.domain_of[peer] != number:
            return 0
        leave(world, npu.number, now_ps)
        leave(world, peer, now_ps)
    elif trace.kind[r] == KIND_COLLECTIVE and nvlink.packet_row[slot] == row + 1:
        nvlink.packet_row[slot] = 0
        first, last = members_on(world, plans.slot_group[slot], np.int64(trace.schedule[r]))
        for i in range(first, last):
            if nvlink.domain_of[plans.group_member[i]] == number:
                leave(world, plans.group_member[i], now_ps)
    else:
        return 0
    nvlink.domain[number].packet_rows -= 1
    net.ctl.packet_rows -= 1
    # cells may be long again once the links have been idle for drain_ps
    if net.ctl.packet_rows == 0 and net.const.long_cell_ps > net.const.cell_ps:
        net.ctl.retry_ps = now_ps + nvlink.domain[number].drain_ps
    return 0


@inline
def lapse(world, node, row):
    """Let the later action of NPU `node` lapse that is to begin its replayed collective, trace row `row`."""
    later = state.later_messages(world.qps.msg)
    at = world.npus.system[node].later_head - 1
    # it stays in the list: taking it out of the middle would change the event of the list's head
    while at >= 0:
        if later[at].what == RUNS and later[at].ref == row:
            later[at].what = LAPSED
        at = later[at].later


@kernel
def send_packets(world_address, nodes, rows, slots, start_ps, begin_ps):
    """Let members of collectives start to send packets, in past cells, whose replay is disturbed or which disturb it.

    nodes, rows, slots: int64[n], nodes of the members, trace rows, slots. start_ps: int64[n], when they have started,
    those of each node in order. begin_ps: begin of the next cell.
    """
    world = state.world_at(world_address)
    net, nvlink, plans = world.net, world.nvlink, world.plans
    net.ctl.catch_up_ps = begin_ps
    for i in range(nodes.shape[0]):
        node, row, slot = nodes[i], rows[i], slots[i]
        npu = world.npus.npu[node]
        at = state.take_row(net, world.qps)
        state.later_messages(world.qps.msg)[at].ref = row
        put_off(world.npus, world.qps, node, at, STARTS, start_ps[i])
        # in the past: cells from there on follow once more, in which nothing but these packets is left to happen
        net.next_time[node] = min(net.next_time[node], start_ps[i])
        is_done = world.rows.flag[npu.row_base + row] & state.ROW_DONE != 0
        if not is_done:
            lapse(world, node, row)
            nvlink.end_ps[slot] = -1
        number = nvlink.domain_of[npu.number]
        # aggregators send nothing of their own; a row that was counted before is not counted again
        if npu.number >= nvlink.domain[number].first_aggregator or nvlink.packet_row[slot] == row + 1:
            continue
        first, last = members_on(world, plans.slot_group[slot], np.int64(world.trace.schedule[npu.trace_base + row]))
        for j in range(first, last):
            member = nvlink.member[nvlink.node_of[plans.group_member[j]]]
            member.packet_rows += np.int64(not is_done)
            member.had_packets = 1
            member.crossed_ps = begin_ps
        if not is_done:
            nvlink.packet_row[slot] = row + 1
            count_packet_row(world, number)


@kernel
def end_members(world_address, nodes, rows, slots, end_ps):
    """Let the members of a replayed collective end at the times that its record has for them.

    Args:
        world_address: Address of the directory of the LP's `World`.
        nodes: int64[n], node of each member.
        rows: int64[n], trace row of each member.
        slots: int64[n], group slot of each member.
        end_ps: int64[n], time in ps at which each member ends.
    """
    # An end that was planned for another time stays among the later actions, but then does nothing: it is not the
    # time in `nvlink.end_ps` any more (pdes.npu.endpoints.do_later).
    world = state.world_at(world_address)
    net, nvlink = world.net, world.nvlink
    for i in range(nodes.shape[0]):
        if nvlink.end_ps[slots[i]] == end_ps[i]:
            continue
        nvlink.end_ps[slots[i]] = end_ps[i]
        at = state.take_row(net, world.qps)
        later = state.later_messages(world.qps.msg)[at]
        later.ref = rows[i]
        later.connection = slots[i]
        put_off(world.npus, world.qps, nodes[i], at, ENDS, end_ps[i])
        net.next_time[nodes[i]] = min(net.next_time[nodes[i]], end_ps[i])


@kernel
def count_messages(world_address, tag, npu, begin_ps, messages, sums):
    """Count the messages of a replayed collective that began at begin_ps; see pdes.nic.counting.add_messages."""
    # npu: a member that is no aggregator, for its job.
    net = state.world_at(world_address).net
    total = net.jobs.total[job_of(net.jobs.who[npu])]
    net.count.flows += messages
    add_messages(total, tag_within_job(net, tag), begin_ps - total.begin_ps, messages, sums)


@kernel
def count_links(world_address, links, sent_bytes, packets, wait_ps):
    """Count what a replayed episode sends over `links`, rows of `tx`: int64[links] sent_bytes, packets, wait_ps."""
    net = state.world_at(world_address).net
    for i in range(links.shape[0]):
        tx = net.tx[links[i]]
        # sums add up over replays, a longest wait does not
        longest_ps = max(longest_wait_ps(tx.sent_bytes, tx.sent_packets), wait_ps[i])
        tx.sent_bytes, tx.sent_packets = with_longest_wait(
            tx.sent_bytes + sent_bytes[i], tx.sent_packets + packets[i], longest_ps
        )


@kernel
def take_packets(world_address, times_ps, links, words1, words2, words3, records):
    """Take packets of later cells from inboxes and links; return their number, and columns (times_ps, records)."""
    # At the end of a cell. links: rows of `tx`. Packets for other LPs stay.
    net, nvlink = state.world_at(world_address).net, state.world_at(world_address).nvlink
    ctl = net.ctl
    packets = np.int64(0)
    # first packets in inboxes of the next three cells, whose time counts from the begin of their cell
    for ahead in range(1, state.SIDES):
        begin_ps = ctl.now_ps + ahead * ctl.cell_ps
        for node in range(net.const.nodes):
            box = inbox_of(node, ctl.side + ahead & (state.SIDES - 1))
            record = np.int64(net.inbox[box])
            if record < 0:
                continue
            tail = np.int64(net.inbox[box + 1])
            net.inbox[box] = net.inbox[box + 1] = NONE
            while record != tail:
                packet = net.record[record]
                times_ps[packets] = begin_ps + inbox_later_ps(packet.ready_ps)
                links[packets] = nvlink.row_of[inbox_link(packet.ready_ps)]
                words1[packets], words2[packets], words3[packets] = packet.w1, packet.w2, packet.w3
                records[packets] = record
                packets += 1
                record = step(net, record)
            free_block(net, record >> state.BLOCK_SHIFT)
    # then packets that wait on links for cells beyond these
    for link in range(net.wait_head.shape[0]):
        record = np.int64(net.wait_head[link])
        if record < 0 or end_of(net.tx[link].meta) >= net.const.nodes:
            continue
        net.wait_head[link] = net.wait_tail[link] = NONE
        net.waiting[link >> 5] &= ~(np.int64(1) << (link & 31))
        while record >= 0:
            packet = net.record[record]
            times_ps[packets], links[packets] = packet.ready_ps, link
            words1[packets], words2[packets], words3[packets] = packet.w1, packet.w2, packet.w3
            records[packets] = record
            packets += 1
            record = after(net, record)
    return packets


@kernel
def begin_cells(world_address, cell_ps, times_ps, links, words1, words2, words3, records):
    """Let cells be cell_ps long, and packets wait on their `links`; write their new records to `records`."""
    # times_ps, links, words1, words2, words3: int64[n] of the packets, in order of time on each link.
    net = state.world_at(world_address).net
    ctl = net.ctl
    ctl.soonest_ps = state.INF
    for i in range(times_ps.shape[0]):
        ctl.soonest_ps = min(ctl.soonest_ps, times_ps[i])
        records[i] = wait(net, links[i], times_ps[i], words1[i], words2[i], words3[i])
    # inboxes belong to cells of the old length, and have just been emptied: all packets wait on their links now
    for side in range(state.SIDES):
        ctl.pending[side] = 0
    ctl.cell_ps = cell_ps
    ctl.changes_cell = 0
    ctl.retry_ps = state.INF
