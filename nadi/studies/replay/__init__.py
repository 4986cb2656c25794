"""Replay of a trace's communication on real hardware over MPI, or over torch.distributed with gloo.

`steps_of` derives the operations of each rank, and `replay` executes and times them.
"""

from nadi.studies.replay.player import read_traces, steps_of
from nadi.studies.replay.running import STORE, ReplayRequest, replay, replay_table, run_local_ranks
from nadi.studies.replay.transports import connect, torchrun_rank
