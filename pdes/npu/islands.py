"""Collectives of an NVLink domain that are replayed: their members' starts and ends in the world of the whole run.

An island is an NVLink domain whose NPUs have no other way to each other. A collective of a group within it is simulated
in a world of its own (pdes/reuse) once all members have started, since none of them ends earlier; then each member ends
at the time found there. Nothing of it happens in this world. Other collectives and messages that cross the domain's
links travel as packets in this world, and so does everything that starts while they are under way. Packets that start
while replayed collectives are under way disturb them: the run begins again, and replays nothing.

Aggregators send nothing before they receive, so that it does not matter how long ago they have started.
"""

import numpy as np

from pdes.core.fifo import NONE, after, free_block, step
from pdes.core.jit import hook, inline, kernel
from pdes.core.message_digest import add_messages
from pdes.core.packet import (
    end_of,
    inbox_later_ps,
    inbox_link,
    job_of,
    longest_wait_ps,
    with_longest_wait,
)
from pdes.core.state import BLOCK_SHIFT, INF, SIDES, later_messages, take_row, world_at
from pdes.network.link import inbox_of, wait
from pdes.nic.counting import tag_within_job
from pdes.npu.collective import begins_after, first_lane_of
from pdes.npu.endpoints import ENDS, RUNS, STARTS, put_off
from pdes.npu.trace import KIND_COLLECTIVE, KIND_SEND, npu_of_rank

OUTSIDE, CROSSING, INSIDE = range(3)
"""Roles of a group for an island: at most one member in it; several, or not replayed; all, and replayed."""


@inline
def is_quiet(net, islands, island, from_ps):
    """Return whether packets of this world have left an island's links and nodes by from_ps, and their ties."""
    busy_ps = np.int64(0)
    for i in range(island.first_link, island.first_link + island.links):
        busy_ps = max(busy_ps, net.tx[islands.link[i]].busy_ps)
    return from_ps > busy_ps + island.drain_ps


@inline
def report(net, islands, group):
    """Add a group to those for which there is something to replay at the end of the cell."""
    islands.due[net.ctl.due_replays] = group
    net.ctl.due_replays += 1


@inline
def wake_aggregators(world, slot, seq, island, now_ps):
    """Let the aggregators of a slot's group start collective number `seq` of the group, whose messages are packets."""
    # One that waits starts in the next cell: before that, no packet arrives there, since the member begins to send a
    # cell from now at the earliest. One that has not started yet, such as a node whose turn in this cell comes later,
    # does not wait (`enter_island`). The first member that sends packets tells them: `start_order` has what they know.
    net, islands, plans = world.net, world.islands, world.plans
    group = plans.slot_group[slot]
    for i in range(plans.group_ptr[group + 1] - 1, plans.group_ptr[group] - 1, -1):
        npu = plans.group_member[i]
        if npu < island.first_aggregator:
            break
        node = islands.node_of[npu]
        other = slot_of(world, node, group)
        if islands.start_order[other] > seq:
            continue
        islands.start_order[other] = seq + 1
        if islands.start_row[other] < 0:
            continue
        at = take_row(net, world.qps)
        later = later_messages(world.qps.msg)[at]
        later.ref = islands.start_row[other]
        put_off(world.npus, world.qps, node, at, STARTS, now_ps + net.ctl.cell_ps)
        net.next_time[node] = min(net.next_time[node], now_ps + net.ctl.cell_ps)
        islands.start_row[other] = -1


@inline
def slot_of(world, node, group):
    """Return NPU `node`'s slot of a group that it is in."""
    slot = world.npus.npu[node].slot_base
    while world.plans.slot_group[slot] != group:
        slot += 1
    return slot


@hook
def enter_island(world_address, node, row, now_ps):
    """Return 1 if trace row `row`, which NPU `node` starts, waits for its replay; 0 if its messages are packets."""
    world = world_at(world_address)
    net, islands, trace = world.net, world.islands, world.trace
    npu = world.npus.npu[node]
    number = islands.island_of[npu.number]
    if number < 0:
        return 0
    r = npu.trace_base + row
    island = islands.island[number]
    replays, slot, first_ps = False, npu.slot_base, now_ps
    if trace.kind[r] == KIND_SEND:
        if islands.island_of[npu_of_rank(net, npu, trace.peer[r])] != number:
            return 0
        first_ps += trace.duration_ps[r]
    else:
        slot += trace.group[r]
        if islands.role[slot] == OUTSIDE:
            return 0
        schedule = np.int64(trace.schedule[r])
        replays = islands.role[slot] == INSIDE and islands.replays[schedule] == 1
        first_ps += world.plans.launch_ps[schedule]
    if npu.number >= island.first_aggregator:
        # its packets follow those of the other members, who decide, and may have told it
        replays = replays and islands.start_order[slot] <= trace.seq[r]
        if replays:
            islands.start_ps[slot] = now_ps
            islands.start_row[slot] = row
        return np.int64(replays)
    is_free = island.open_members == 0 and first_ps > island.busy_until_ps
    replays = replays and island.packet_rows == 0 and not (is_free and island.off == 1)
    if replays and (island.had_packets == 0 or island.open_members > 0 or is_quiet(net, islands, island, first_ps)):
        island.had_packets = 0
        wait_for_replay(world, node, island, slot, row, now_ps)
        return 1
    if not is_free:
        net.ctl.is_disturbed = 1
    island.packet_rows += 1
    island.had_packets = 1
    net.ctl.packet_rows += 1
    net.ctl.changes_cell = np.int64(net.ctl.cell_ps != net.const.cell_ps)
    if trace.kind[r] != KIND_SEND:
        islands.packet_row[slot] = row + 1
        if islands.role[slot] == INSIDE:
            wake_aggregators(world, slot, np.int64(trace.seq[r]), island, now_ps)
    return 0


@inline
def wait_for_replay(world, node, island, slot, row, now_ps):
    """Note the start of a member's collective; report its group if it is the last, or if others are under way."""
    net, islands, plans = world.net, world.islands, world.plans
    islands.start_ps[slot] = now_ps
    islands.start_row[slot] = row
    islands.start_order[slot] = net.ctl.replay_starts
    net.ctl.replay_starts += 1
    if net.const.compute_slow_1000ths != 0:
        schedule = np.int64(world.trace.schedule[world.npus.npu[node].trace_base + row])
        delay_ps = plans.launch_ps[schedule] + begins_after(net, plans, first_lane_of(plans, schedule, slot))
        at = take_row(net, world.qps)
        later_messages(world.qps.msg)[at].ref = row
        put_off(world.npus, world.qps, node, at, RUNS, now_ps + delay_ps)
    group = plans.slot_group[slot]
    islands.started[group] += 1
    island.open_members += 1
    members = 0
    for i in range(plans.group_ptr[group], plans.group_ptr[group + 1]):
        members += np.int64(plans.group_member[i] < island.first_aggregator)
    if islands.started[group] == members:
        island.open_members -= members
        islands.started[group] = 0
        island.busy_until_ps = INF  # until the end of the cell, when it is known
        report(net, islands, group)
    elif now_ps <= island.busy_until_ps:
        report(net, islands, group)


@hook
def leave_island(world_address, node, row, now_ps):
    """Count a trace row of NPU `node` that is done, if its packets crossed the links of the NPU's island."""
    world = world_at(world_address)
    islands, trace = world.islands, world.trace
    npu = world.npus.npu[node]
    number = islands.island_of[npu.number]
    if number < 0 or npu.number >= islands.island[number].first_aggregator:
        return 0
    r = npu.trace_base + row
    slot = npu.slot_base + trace.group[r]
    if trace.kind[r] == KIND_SEND:
        if islands.island_of[npu_of_rank(world.net, npu, trace.peer[r])] != number:
            return 0
    elif trace.kind[r] == KIND_COLLECTIVE and islands.packet_row[slot] == row + 1:
        islands.packet_row[slot] = 0
    else:
        return 0
    islands.island[number].packet_rows -= 1
    world.net.ctl.packet_rows -= 1
    if world.net.ctl.packet_rows == 0 and world.net.const.long_cell_ps > world.net.const.cell_ps:
        world.net.ctl.retry_ps = now_ps + islands.island[number].drain_ps
    return 0


@kernel
def end_members(world_address, nodes, rows, slots, end_ps):
    """Let the members of a replayed collective (int64[n]: nodes, trace rows, slots) end at the times end_ps."""
    # A member that was to end at another time does not end then (pdes.npu.endpoints.do_later).
    world = world_at(world_address)
    net, islands = world.net, world.islands
    for i in range(nodes.shape[0]):
        if islands.end_ps[slots[i]] == end_ps[i]:
            continue
        islands.end_ps[slots[i]] = end_ps[i]
        at = take_row(net, world.qps)
        later = later_messages(world.qps.msg)[at]
        later.ref = rows[i]
        later.connection = slots[i]
        put_off(world.npus, world.qps, nodes[i], at, ENDS, end_ps[i])
        net.next_time[nodes[i]] = min(net.next_time[nodes[i]], end_ps[i])


@kernel
def count_messages(world_address, tag, npu, begin_ps, messages, sums):
    """Count the messages of a replayed collective that began at begin_ps; see pdes.core.message_digest.add_messages."""
    # npu: a member that is no aggregator, for its job.
    net = world_at(world_address).net
    total = net.jobs.total[job_of(net.jobs.who[npu])]
    net.count.flows += messages
    add_messages(total, tag_within_job(net, tag), begin_ps - total.begin_ps, messages, sums)


@kernel
def count_links(world_address, number, sent_bytes, packets, wait_ps):
    """Count what a replayed episode sends over the links of island `number`: int64[links] bytes, packets, waits."""
    world = world_at(world_address)
    island = world.islands.island[number]
    for i in range(island.links):
        tx = world.net.tx[world.islands.link[island.first_link + i]]
        longest_ps = max(longest_wait_ps(tx.sent_bytes, tx.sent_packets), wait_ps[i])
        tx.sent_bytes, tx.sent_packets = with_longest_wait(
            tx.sent_bytes + sent_bytes[i], tx.sent_packets + packets[i], longest_ps
        )


@kernel
def take_packets(world_address, times_ps, links, words1, words2, words3):
    """Take all packets of later cells from inboxes and links; return their number, and their columns in the arrays."""
    # At the end of a cell. links: rows of `tx`. Packets for other LPs stay.
    net, islands = world_at(world_address).net, world_at(world_address).islands
    ctl = net.ctl
    packets = np.int64(0)
    for ahead in range(1, SIDES):
        begin_ps = ctl.now_ps + ahead * ctl.cell_ps
        for node in range(net.const.nodes):
            box = inbox_of(node, ctl.side + ahead & (SIDES - 1))
            record = np.int64(net.inbox[box])
            if record < 0:
                continue
            tail = np.int64(net.inbox[box + 1])
            net.inbox[box] = net.inbox[box + 1] = NONE
            while record != tail:
                packet = net.record[record]
                times_ps[packets] = begin_ps + inbox_later_ps(packet.ready_ps)
                links[packets] = islands.row_of[inbox_link(packet.ready_ps)]
                words1[packets], words2[packets], words3[packets] = packet.w1, packet.w2, packet.w3
                packets += 1
                record = step(net, record)
            free_block(net, record >> BLOCK_SHIFT)
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
            packets += 1
            record = after(net, record)
    return packets


@kernel
def begin_cells(world_address, cell_ps, times_ps, links, words1, words2, words3):
    """Let cells be cell_ps long, and packets, int64[n] in order of time on each link, wait on their links."""
    net = world_at(world_address).net
    ctl = net.ctl
    ctl.soonest_ps = INF
    for i in range(times_ps.shape[0]):
        ctl.soonest_ps = min(ctl.soonest_ps, times_ps[i])
        wait(net, links[i], times_ps[i], words1[i], words2[i], words3[i])
    for side in range(SIDES):
        ctl.pending[side] = 0
    ctl.cell_ps = cell_ps
    ctl.changes_cell = 0
    ctl.retry_ps = INF
