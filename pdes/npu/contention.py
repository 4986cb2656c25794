"""Compute that takes longer while collectives run, since both use the same processors of the NPU.

While at least one collective of an NPU runs, from its first step to its end, a row on the compute lane takes
compute_slow_1000ths thousandths of its time. What is left of the row is kept in ps and in parts of a ps, as many as the
factor has thousandths, so that nothing is rounded but the row's end, up to the next ps.
"""

import numpy as np

from pdes.core.heap import heap_hasten, heap_postpone
from pdes.core.jit import inline, outline
from pdes.core.state import COMPUTE_LANE, SLOWDOWN_UNIT
from pdes.core.world import world_at


@inline
def left_ps(net, npus, node):
    """Time that the rest of the compute lane's row takes if as many collectives go on running."""
    factor = net.const.compute_slow_1000ths
    system = npus.system[node]
    if system.running == 0:
        return system.work_ps + np.int64(system.work_part > 0)
    rest = (system.work_ps % SLOWDOWN_UNIT) * factor + system.work_part
    return system.work_ps // SLOWDOWN_UNIT * factor + (rest + SLOWDOWN_UNIT - 1) // SLOWDOWN_UNIT


@inline
def begin_work(net, npus, node, duration_ps, now):
    """A row begins on the compute lane: the time that it takes as things are."""
    system = npus.system[node]
    system.work_ps = duration_ps
    system.work_part = 0
    system.since_ps = now
    return left_ps(net, npus, node)


@inline
def take_off(net, npus, node, now):
    """Take what has been done by now off what is left."""
    factor = net.const.compute_slow_1000ths
    system = npus.system[node]
    elapsed = now - system.since_ps
    done = elapsed
    part = np.int64(0)
    if system.running > 0:
        rest = elapsed % factor * SLOWDOWN_UNIT
        done = elapsed // factor * SLOWDOWN_UNIT + rest // factor
        part = rest % factor
    work = system.work_ps - done
    part = system.work_part - part
    if part < 0:
        work -= 1
        part += factor
    if work < 0:
        work = np.int64(0)
        part = np.int64(0)
    system.work_ps = work
    system.work_part = part
    system.since_ps = now


@outline
def count_running(address, node, by, now):
    """One collective more runs on the NPU (by = 1), or one less (-1): compute goes on at its new pace."""
    w = world_at(address)
    net, npus = w.net, w.npus
    npu = npus.npu[node]
    system = npus.system[node]
    before = system.running
    after = before + by
    if npu.lane[COMPUTE_LANE] < 0 or (before > 0 and after > 0):
        system.running = after
        return
    take_off(net, npus, node, now)
    system.running = after
    end = now + left_ps(net, npus, node)
    slot = npu.ports + COMPUTE_LANE
    if after > before:
        heap_postpone(npus.heap, npu.heap, npu.heap_size, end, slot)
    else:
        heap_hasten(npus.heap, npu.heap, npu.heap_size, end, slot)
