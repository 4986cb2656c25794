"""Shared resources: multiprocessors that compute shares with collectives, remote memories that NPUs share."""

import numpy as np

from nadi.pdes.core.algorithms import heap_decrease_key, heap_increase_key
from nadi.pdes.core.jit import inline, outline
from nadi.pdes.core.state import COMPUTE_LANE, REMOTE_LANE, SLOWDOWN_UNIT, world_at
from nadi.pdes.nic.port import set_event

# Slowdown of compute while collectives run, since both use the same multiprocessors of the NPU.
#
# While at least one collective of an NPU runs that uses multiprocessors, from its first step to its end, a row on the
# compute lane takes slow_1000ths thousandths of its nominal time; jobs may differ in it. The remaining work of the row
# is stored in ps and in fractions of a ps whose unit is 1 / slow_1000ths, so that only the row's end is rounded, up to
# the next ps.
#
# The first three functions are shared with closed forms (nadi/simulation/closed_forms/advancing). Their `system` is a
# row with the words slow_1000ths, running, work_ps, work_part, since_ps and due_ps.


@inline
def left_ps(system):
    """Return the time left of the compute lane's row of an NPU while the number of running collectives is the same.

    Args:
        system: State of the NPU in the system layer (a row `System`).
    """
    if system.running == 0:
        return system.work_ps + np.int64(system.work_part > 0)
    # work x 1.5 in parts: whole thousands of ps exactly, the rest rounded up; 63 bits hold each product
    rest = (system.work_ps % SLOWDOWN_UNIT) * system.slow_1000ths + system.work_part
    return system.work_ps // SLOWDOWN_UNIT * system.slow_1000ths + (rest + SLOWDOWN_UNIT - 1) // SLOWDOWN_UNIT


@inline
def begin_work(system, duration_ps, now_ps):
    """Begin a row on the compute lane and return its time left in ps at the present pace.

    Args:
        system: State of the NPU in the system layer (a row `System`).
        duration_ps: Time of the row in ps without collectives.
        now_ps: Current time in ps.
    """
    system.work_ps = duration_ps
    system.work_part = 0
    system.since_ps = now_ps
    # at the pace of now; a collective that begins or ends later changes it (`change_pace`)
    left = left_ps(system)
    system.due_ps = now_ps + left
    return left


@inline
def change_pace(system, change, now_ps):
    """Change the number of running collectives during a compute row: subtract the work done, return the time left.

    Args:
        system: State of the NPU in the system layer (a row `System`).
        change: Number of collectives that begin, negative if they end.
        now_ps: Current time in ps.
    """
    elapsed = now_ps - system.since_ps
    slow_1000ths = system.slow_1000ths
    done = elapsed
    part = np.int64(0)
    if system.running > 0:
        # quotient and remainder apart, since the product could exceed 63 bits
        rest = elapsed % slow_1000ths * SLOWDOWN_UNIT
        done = elapsed // slow_1000ths * SLOWDOWN_UNIT + rest // slow_1000ths
        part = rest % slow_1000ths
    work = system.work_ps - done
    part = system.work_part - part
    # borrow a ps, which is slow_1000ths units
    if part < 0:
        work -= 1
        part += slow_1000ths
    # the row ends at this time, rounded up to the ps: up to 1 ps less than nothing may be left
    if work < 0:
        work = np.int64(0)
        part = np.int64(0)
    system.work_ps = work
    system.work_part = part
    system.since_ps = now_ps
    system.running += change
    system.due_ps = now_ps + left_ps(system)


@outline
def count_running(world_address, node, change, now_ps):
    """Count a collective that begins or ends; compute continues at its new pace.

    Args:
        world_address: Address of the directory of the LP's `World`.
        node: Number of the NPU in the LP.
        change: 1 if it begins, -1 if it ends.
        now_ps: Current time in ps.
    """
    world = world_at(world_address)
    net, npus = world.net, world.npus
    if now_ps < net.ctl.catch_up_ps:  # it has been counted (pdes/reuse_kernels/domains.py)
        return
    npu = npus.npu[node]
    system = npus.system[node]
    # of several collectives at a time only the first that begins and the last that ends change the pace
    before = system.running
    after = before + change
    nothing_left = system.work_ps == 0 and system.work_part == 0  # the row waits for its tick, or ends now
    is_slowed = system.slow_1000ths > SLOWDOWN_UNIT
    if npu.lane[COMPUTE_LANE] < 0 or (before > 0 and after > 0) or nothing_left or not is_slowed:
        system.running = after
        return
    change_pace(system, change, now_ps)
    slot = npu.ports + COMPUTE_LANE
    if net.hooks.act != 0:  # at message level the row's event waits among those of all NPUs, where it is left to lapse
        set_event(npus, node, system.due_ps, slot)
    elif after > before:
        heap_increase_key(npus.heap, npu.heap, npu.heap_size, system.due_ps, slot)
    else:
        heap_decrease_key(npus.heap, npu.heap, npu.heap_size, system.due_ps, slot)


# Remote memories that NPUs share, at message level: each serves one access at a time, in order of arrival.
#
# NPU n uses memory n // remote_sharers. An access occupies the lane of its NPU from when it is asked for to its end.
# ASTRA-sim's analytical memories of nodes and pools do the same (astra-memory-analytical, AnalyticalRemoteMemory.cc).


@inline
def ask_memory(net, npus, node, duration_ps, now_ps):
    """Let an access in an NPU's lane use the NPU's memory, or wait behind other NPUs.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        node: Number of the NPU in the LP.
        duration_ps: Time of the access in ps.
        now_ps: Current time in ps.
    """
    memory = npus.memory[node // net.const.remote_sharers]
    if memory.user < 0:
        memory.user = node
        set_event(npus, node, now_ps + duration_ps, npus.npu[node].ports + REMOTE_LANE)
        return
    if memory.first_waiting < 0:
        memory.first_waiting = node
    else:
        # row n of `memory` is memory n and, in next_waiting, NPU n's place in a line: an NPU waits for one memory at a
        # time
        npus.memory[memory.last_waiting].next_waiting = node
    memory.last_waiting = node
    npus.memory[node].next_waiting = -1


@inline
def serve_next(net, npus, trace, node, now_ps):
    """Free the memory of an NPU, whose access is done, for the next NPU that waits; return that, -1 for none.

    Args:
        net: Nodes, links and packets of the LP (`Net`).
        npus: NPUs of the LP with their ports and own events (`Npus`).
        trace: The distinct traces (`Trace`).
        node: Number of the NPU in the LP.
        now_ps: Current time in ps.
    """
    memory = npus.memory[node // net.const.remote_sharers]
    following = np.int64(memory.first_waiting)
    memory.user = following
    if following >= 0:
        memory.first_waiting = npus.memory[following].next_waiting
        npu = npus.npu[following]
        # the lane has kept the row since it asked
        duration_ps = trace.duration_ps[npu.trace_base + npu.lane[REMOTE_LANE]]
        set_event(npus, following, now_ps + duration_ps, npu.ports + REMOTE_LANE)
    return following
