"""Compute that takes longer while collectives run, since both use the same processors of the NPU.

While at least one collective of an NPU runs, from its first step to its end, a row on the compute lane takes
CONST_COMPUTE_SLOW thousandths of its time. What is left of the row is kept in ps and in parts of a ps, as many as the
factor has thousandths, so that nothing is rounded but the row's end, up to the next ps.
"""

import numpy as np

from pdes.core.heap import heap_hasten, heap_postpone
from pdes.core.jit import inline, outline
from pdes.core.state import (
    COMPUTE_LANE,
    CONST_COMPUTE_SLOW,
    NPU_HEAP_BASE,
    NPU_HEAP_SIZE,
    NPU_LANE,
    NPU_PORTS,
    NPU_WORDS,
    SLOWDOWN_UNIT,
    SYSTEM_RUNNING,
    SYSTEM_SINCE,
    SYSTEM_WORDS,
    SYSTEM_WORK_PART,
    SYSTEM_WORK_PS,
)
from pdes.core.world import world_at


@inline
def left_ps(net, npus, node):
    """Time that the rest of the compute lane's row takes if as many collectives go on running."""
    factor = net.const[CONST_COMPUTE_SLOW]
    y = node * SYSTEM_WORDS
    work = npus.system[y + SYSTEM_WORK_PS]
    part = npus.system[y + SYSTEM_WORK_PART]
    if npus.system[y + SYSTEM_RUNNING] == 0:
        return work + np.int64(part > 0)
    rest = (work % SLOWDOWN_UNIT) * factor + part
    return work // SLOWDOWN_UNIT * factor + (rest + SLOWDOWN_UNIT - 1) // SLOWDOWN_UNIT


@inline
def begin_work(net, npus, node, duration_ps, now):
    """A row begins on the compute lane: the time that it takes as things are."""
    y = node * SYSTEM_WORDS
    npus.system[y + SYSTEM_WORK_PS] = duration_ps
    npus.system[y + SYSTEM_WORK_PART] = 0
    npus.system[y + SYSTEM_SINCE] = now
    return left_ps(net, npus, node)


@inline
def take_off(net, npus, node, now):
    """Take what has been done by now off what is left."""
    factor = net.const[CONST_COMPUTE_SLOW]
    y = node * SYSTEM_WORDS
    elapsed = now - npus.system[y + SYSTEM_SINCE]
    done = elapsed
    part = np.int64(0)
    if npus.system[y + SYSTEM_RUNNING] > 0:
        rest = elapsed % factor * SLOWDOWN_UNIT
        done = elapsed // factor * SLOWDOWN_UNIT + rest // factor
        part = rest % factor
    work = npus.system[y + SYSTEM_WORK_PS] - done
    part = npus.system[y + SYSTEM_WORK_PART] - part
    if part < 0:
        work -= 1
        part += factor
    if work < 0:
        work = np.int64(0)
        part = np.int64(0)
    npus.system[y + SYSTEM_WORK_PS] = work
    npus.system[y + SYSTEM_WORK_PART] = part
    npus.system[y + SYSTEM_SINCE] = now


@outline
def count_running(address, node, by, now):
    """One collective more runs on the NPU (by = 1), or one less (-1): compute goes on at its new pace."""
    w = world_at(address)
    net, npus = w.net, w.npus
    n = node * NPU_WORDS
    y = node * SYSTEM_WORDS
    before = npus.system[y + SYSTEM_RUNNING]
    after = before + by
    if npus.npu[n + NPU_LANE + COMPUTE_LANE] < 0 or (before > 0 and after > 0):
        npus.system[y + SYSTEM_RUNNING] = after
        return
    take_off(net, npus, node, now)
    npus.system[y + SYSTEM_RUNNING] = after
    end = now + left_ps(net, npus, node)
    slot = npus.npu[n + NPU_PORTS] + COMPUTE_LANE
    if after > before:
        heap_postpone(npus.heap, npus.npu[n + NPU_HEAP_BASE], npus.npu[n + NPU_HEAP_SIZE], end, slot)
    else:
        heap_hasten(npus.heap, npus.npu[n + NPU_HEAP_BASE], npus.npu[n + NPU_HEAP_SIZE], end, slot)
