"""How a run is divided among threads, processes and ranks, compiled before it, and saved so that it can continue."""

from nadi.pdes.checkpoint import Checkpoints, SavedState
from nadi.pdes.construction.circuits import NO_CIRCUITS, Circuit, Circuits, FollowingCircuits
from nadi.pdes.construction.faults import down_sets
from nadi.pdes.construction.layout import Layout, shares
from nadi.pdes.core.jit import peak_rss_bytes
from nadi.pdes.driver import compile_all, run_divided
from nadi.pdes.messages.message_loop import work_messages
from nadi.pdes.workers import NO_SNAPSHOT, SAVE, SAVE_AND_END, StoppedError, compile_kernels
from nadi.pdes.workers.processes import Processes, Ranks
from nadi.pdes.workers.team import work
