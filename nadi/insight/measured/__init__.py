"""Comparison of measured times in traces with the times of a run that simulated these traces.

`timed_nodes.py` pairs nodes of the run with nodes of the traces, `clocks.py` estimates the clock offsets of ranks,
`accuracy.py` reports the errors, in total and by kind, size, group, pair of NPUs and rank.
"""
