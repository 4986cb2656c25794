"""Measured against simulated: the times that traces carry beside those of a run of them.

`beside.py` pairs nodes of a run with nodes of traces, `clocks.py` finds how far the clocks of ranks are apart,
`accuracy.py` says how far the run is off, in all and by kind, size, group, pair of NPUs and rank.
"""
