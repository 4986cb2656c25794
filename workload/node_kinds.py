"""Numbers of a `Program` for the kinds of trace nodes and for the lanes of an NPU (docs/reference/interfaces.md).

The engine, which does not import this folder, has the same numbers in pdes/npu/trace.py and pdes/core/state.py.
"""

NOOP, COMPUTE, MEMORY, SEND, RECV, COLLECTIVE = range(6)
CPU_LANE, COMPUTE_LANE, MEMORY_LANE, REMOTE_LANE = range(4)
