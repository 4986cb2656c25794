"""How a kernel's call ended, for the driver that called it."""

DONE, FULL, FAILED, GOING_ON = range(4)
"""Nothing is left; a pool is short: make room and call again; a queue pair gave up; within a window."""
