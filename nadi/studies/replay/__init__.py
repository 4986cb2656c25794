"""Replaying the communication of traces for real: over MPI, or over torch.distributed with gloo.

`steps.py` says what each rank has to do, `mpi.py` and `gloo.py` do single operations, `player.py` goes through the
trace, `outcome.py` says how long everything took.
"""
