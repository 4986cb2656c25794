"""Ticks: an NPU notices what has ended at multiples of an interval since the begin of its job (`const.tick_ps`).

A GPU sees that a message has come, or a kernel is done, when something next looks at a flag in memory, not at the
picosecond at which that happened. Rows of a trace then start at ticks alone, so that members of a group whose messages
came at slightly different times go on together, and the times of a run repeat themselves (docs/explanation/reuse.md).
"""

import numpy as np

from nadi.pdes.core.jit import hook, inline
from nadi.pdes.core.packet import job_of
from nadi.pdes.core.state import COMPUTE_LANE, later_messages, take_row, world_at
from nadi.pdes.nic.port import set_event
from nadi.pdes.npu.endpoints import NOTICED, put_off
from nadi.pdes.npu.trace import KIND_COLLECTIVE


@inline
def next_tick_ps(net, npu, now_ps):
    """Return the time of an NPU's first tick from now_ps on.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npu: The NPU (a row `Npu`).
        now_ps: Current time in ps.
    """
    # (begin - now) mod tick is what is missing to the next multiple: begin 0, tick 10, now 13: -13 mod 10 = 7, so 20
    return now_ps + (net.jobs.total[job_of(net.jobs.who[npu.number])].begin_ps - now_ps) % net.const.tick_ps


@inline
def lane_waits(net, npus, node, lane, now_ps):
    """Let the row of a lane of an NPU, which is done, stay until the next tick; return False if that is now.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        node: Number of the NPU in the LP.
        lane: Number of the lane.
        now_ps: Current time in ps.
    """
    npu = npus.npu[node]
    tick_ps = next_tick_ps(net, npu, now_ps)
    if tick_ps == now_ps:
        return False
    if lane == COMPUTE_LANE and net.const.slows_compute != 0:
        # no work is left, so that collectives no longer change the end
        npus.system[node].work_ps = npus.system[node].work_part = 0
    set_event(npus, node, tick_ps, npu.ports + lane)
    return True


@hook
def wait_for_tick(world_address, node, row, now_ps):
    """Let a trace row, which is done, finish at the next tick; return 0 if that is now.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        row: Trace row of the NPU.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, trace = world.net, world.trace
    npu = world.npus.npu[node]
    r = npu.trace_base + row
    tick_ps = next_tick_ps(net, npu, now_ps)
    # a collective finishes after all that is to happen at its tick, as one that is replayed does
    if trace.kind[r] == KIND_COLLECTIVE and trace.schedule[r] >= 0 and tick_ps == now_ps:
        tick_ps += net.const.tick_ps
    if tick_ps == now_ps:
        return 0
    at = take_row(net, world.qps)
    later_messages(world.qps.msg)[at].ref = row
    put_off(world.npus, world.qps, node, at, NOTICED, tick_ps)
    return np.int64(1)
