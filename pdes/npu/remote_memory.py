"""Remote memories that NPUs share, at message level: each serves one access at a time, in order of arrival.

NPU n uses memory n // remote_sharers. An access occupies the lane of its NPU from when it is asked for to its end.
ASTRA-sim's analytical memories of nodes and pools do the same (astra-memory-analytical, AnalyticalRemoteMemory.cc).
"""

import numpy as np

from nadi.pdes.core.jit import inline
from nadi.pdes.core.state import REMOTE_LANE
from nadi.pdes.nic.port import set_event


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
