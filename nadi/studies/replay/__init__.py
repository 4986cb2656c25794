"""Replay of a trace's communication on real hardware over MPI, or over torch.distributed with gloo.

`steps.py` derives the operations of each rank, `mpi.py` and `gloo.py` execute single operations, `player.py` walks the
trace, `outcome.py` reports the times.
"""
