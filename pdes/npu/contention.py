"""Slowdown of compute while collectives run, since both use the same multiprocessors of the NPU.

While at least one collective of an NPU runs that uses multiprocessors, from its first step to its end, a row on the
compute lane takes compute_slow_1000ths thousandths of its nominal time. The remaining work of the row is stored in ps
and in fractions of a ps whose unit is 1 / compute_slow_1000ths, so that only the row's end is rounded, up to the next
ps.

The first three functions are shared with closed forms (nadi/simulation/closed_forms/advancing). Their `state` is a row
with the words running, work_ps, work_part, since_ps and due_ps; their `factor` is compute_slow_1000ths.
"""

import numpy as np

from pdes.core.heap import heap_hasten, heap_postpone
from pdes.core.jit import inline, outline
from pdes.core.state import COMPUTE_LANE, SLOWDOWN_UNIT, world_at
from pdes.nic.port import set_event


@inline
def left_ps(factor, state):
    """Return the remaining time of the compute lane's row while the number of running collectives stays the same."""
    if state.running == 0:
        return state.work_ps + np.int64(state.work_part > 0)
    rest = (state.work_ps % SLOWDOWN_UNIT) * factor + state.work_part
    return state.work_ps // SLOWDOWN_UNIT * factor + (rest + SLOWDOWN_UNIT - 1) // SLOWDOWN_UNIT


@inline
def begin_work(factor, state, duration_ps, now):
    """Begin a row on the compute lane and return its duration at the present pace."""
    state.work_ps = duration_ps
    state.work_part = 0
    state.since_ps = now
    left = left_ps(factor, state)
    state.due_ps = now + left
    return left


@inline
def change_pace(factor, state, by, now):
    """Change the number of running collectives by `by` during a row: subtract the work done, set the new end."""
    elapsed = now - state.since_ps
    done = elapsed
    part = np.int64(0)
    if state.running > 0:
        rest = elapsed % factor * SLOWDOWN_UNIT
        done = elapsed // factor * SLOWDOWN_UNIT + rest // factor
        part = rest % factor
    work = state.work_ps - done
    part = state.work_part - part
    if part < 0:
        work -= 1
        part += factor
    if work < 0:
        work = np.int64(0)
        part = np.int64(0)
    state.work_ps = work
    state.work_part = part
    state.since_ps = now
    state.running += by
    state.due_ps = now + left_ps(factor, state)


@outline
def count_running(address, node, by, now):
    """Count a collective that begins (by = 1) or ends (-1) on the NPU; compute continues at its new pace."""
    w = world_at(address)
    net, npus = w.net, w.npus
    npu = npus.npu[node]
    system = npus.system[node]
    before = system.running
    after = before + by
    if npu.lane[COMPUTE_LANE] < 0 or (before > 0 and after > 0):
        system.running = after
        return
    change_pace(net.const.compute_slow_1000ths, system, by, now)
    slot = npu.ports + COMPUTE_LANE
    if net.hooks.act != 0:  # at message level the row's event waits among those of all NPUs, where it is left to lapse
        set_event(npus, node, system.due_ps, slot)
    elif after > before:
        heap_postpone(npus.heap, npu.heap, npu.heap_size, system.due_ps, slot)
    else:
        heap_hasten(npus.heap, npu.heap, npu.heap_size, system.due_ps, slot)
