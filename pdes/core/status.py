"""How a kernel's call ended, for the driver that called it."""

DONE, FULL, FAILED, GOING_ON, SENT = range(5)
"""Nothing is left; a pool is short: make room and call again; a queue pair gave up; within a window; in a window what
goes to other teams has gone out, and some nodes have not acted yet."""
