"""Status values that kernels return to the driver."""

DONE, FULL, FAILED, GOING_ON, SENT = range(5)
"""DONE: nothing is left; FULL: a pool is full (make room, call again); FAILED: a queue pair gave up; GOING_ON: within a
window; SENT: within a window, everything for other teams is sent, and some nodes have not acted yet.
"""
