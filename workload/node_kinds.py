"""Kinds of trace nodes and the lanes of an NPU that do them, as numbers in a `Program` (docs/reference/interfaces.md).

The engine, which does not import this folder, has the same numbers in pdes/npu/trace.py and pdes/core/state.py.
"""

NOOP, COMPUTE, MEMORY, SEND, RECV, COLLECTIVE = range(6)
CPU_LANE, COMPUTE_LANE, MEMORY_LANE, REMOTE_LANE = range(4)
